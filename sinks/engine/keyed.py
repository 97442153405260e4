"""Events of a batch in Spark: exploded, keyed, and shuffled so that all events of a row lie in one part. [spark]

Promises: the part of a row is a fixed function of its table and key, so a replay with the same number of parts finds the same rows in the
same part. Rows of clustered tables are distributed over the parts by key. All rows of a table with ``_tidb_rowid`` as its handle are in one
part, because the table may have no key in the target, and two connections deleting from it would block each other. Rows whose handle is an
integer are distributed by blocks of neighbours (``fold.part_numbers``).

A Spark row is a block of many events, so that Spark shuffles and stores a few blobs instead of hundreds of thousands of rows. A block holds events of one
kind (format: ``schemas.packed``). A block of row changes carries its first and last commit_ts, so that whole blocks can be skipped. ``unpack`` reverses ``pack``.
"""

import enum
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.packed import packed, unpacked
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT, ROW_EVENT, ROW_SUMMARY, TRANSACTION, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import PARTIAL, rows_between, slices, summarise
from pyspark_tidb_binlog.sinks.engine.choice import NOTHING_LEFT_OUT, LeftOut
from pyspark_tidb_binlog.sinks.engine.fold import part_numbers
from pyspark_tidb_binlog.sinks.engine.identity import row_identities

BLOCK = pa.schema(
    [
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("first_ts", pa.int64()),
        pa.field("last_ts", pa.int64()),
        pa.field("events", pa.binary(), nullable=False),
    ]
)
"""``kind``: ``BlockKind``. ``first_ts``, ``last_ts``: commit_ts of row changes, null for others."""


class BlockKind(enum.IntEnum):
    """The kind of a block's events."""

    ROWS = 0
    DDLS = 1
    CONTROLS = 2
    SUMMARIES = 3
    MARKS = 4
    """Row changes of the mark table (``choice.MarkTables``)."""


FRAMES: Mapping[BlockKind, pa.Schema] = {
    BlockKind.ROWS: ROW_EVENT,
    BlockKind.DDLS: DDL_EVENT,
    BlockKind.CONTROLS: CONTROL,
    BlockKind.SUMMARIES: ROW_SUMMARY,
    BlockKind.MARKS: ROW_EVENT,
}
"""The schema of each kind; row changes may have further columns."""

KEYED = ROW_EVENT.append(pa.field("key", pa.binary())).append(pa.field("part", pa.int32(), nullable=False))
"""A row event with its row's identity and its part. ``key`` is null if the table is not in the history."""

Span = tuple[int, int]
"""(after_ts exclusive, upto_ts inclusive)."""
IN_MEMORY = 32 << 20
"""Bytes of rows that a ``RowSpool`` keeps in memory."""


@dataclass(frozen=True, slots=True)
class KeyedEvents:
    """The events of a batch, held by the executors: ``frame`` has the schema ``BLOCK``, each part in the Spark partition of its number."""

    frame: DataFrame
    parts: int

    def except_rows(self) -> Mapping[BlockKind, pa.Table]:
        """Collect the DDLs, the control rows and the summaries on the driver; runs one Spark job."""
        return collected(self.frame.filter(F.col("kind") != int(BlockKind.ROWS)))

    def summaries(self, span: Span, ddl_ts: Sequence[int]) -> pa.Table:
        """Collect the partial summaries of the row changes in ``span``; runs one Spark job."""
        bounds = list(ddl_ts)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from summarise(rows_between(unpack([batch], ROW_EVENT), *span), bounds).to_batches()

        return self.overlapping(span).mapInArrow(run, ddl_of(PARTIAL)).toArrow()

    def rows_in(self, span: Span) -> pa.Table:
        """Collect the row changes in ``span`` (``ROW_EVENT``) on the driver; runs one Spark job."""
        return rows_between(collected(self.overlapping(span))[BlockKind.ROWS], *span)

    def marks(self) -> pa.Table:
        """Collect the row changes of the mark table (``ROW_EVENT``) on the driver; runs one Spark job."""
        return collected(self.frame.filter(F.col("kind") == int(BlockKind.MARKS)))[BlockKind.MARKS]

    def without(self, commit_ts: Collection[int]) -> "KeyedEvents":
        """Return the same without the row changes of these transactions; the summaries stay as they are."""
        gone = self.frame.sparkSession.sparkContext.broadcast(np.fromiter(commit_ts, np.int64, len(commit_ts)))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for block in (batch.slice(place, 1) for batch in batches for place in range(batch.num_rows)):
                if block.column("kind")[0].as_py() != int(BlockKind.ROWS):
                    yield block
                    continue
                rows = unpack([block], KEYED)
                left = rows.filter(pa.array(~np.isin(rows.column("commit_ts").to_numpy(), gone.value)))
                yield from pack(BlockKind.ROWS, block.column("part")[0].as_py(), left)

        return replace(self, frame=self.frame.mapInArrow(run, ddl_of(BLOCK)))

    def overlapping(self, span: Span) -> DataFrame:
        """Choose the blocks of row changes that reach into ``span``."""
        after_ts, upto_ts = span
        kind, first_ts, last_ts = F.col("kind"), F.col("first_ts"), F.col("last_ts")
        return self.frame.filter((kind == int(BlockKind.ROWS)) & (last_ts > after_ts) & (first_ts <= upto_ts))


def keyed(
    transactions: DataFrame,
    history: Broadcast[SchemaHistory],
    parts: int,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> KeyedEvents:
    """``transactions`` (``TRANSACTIONS``) as events, row changes with keys and summaries, without those that are not read, and with the marks apart."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in slices(batches):
            events = explode(piece)
            yield from pack(BlockKind.DDLS, 0, pa.Table.from_batches([events.ddls]))
            yield from pack(BlockKind.CONTROLS, 0, pa.Table.from_batches([events.controls]))
            marks, changes = left_out.marks.apart(left_out.read(pa.Table.from_batches([events.rows])))
            yield from pack(BlockKind.MARKS, 0, marks)
            yield from pack(BlockKind.SUMMARIES, 0, summarise(changes, ()))
            for part, rows in by_part(with_keys(changes, history.value, parts)):
                yield from pack(BlockKind.ROWS, part, rows)

    return KeyedEvents(transactions.mapInArrow(run, ddl_of(BLOCK)).repartitionById(parts, "part"), parts)


def warm_up(spark: SparkSession, parts: int) -> None:
    """Key an empty batch: Spark compiles the plan, and starts its Python workers. Runs two Spark jobs."""
    nothing = F.lit(bytearray(packed(TRANSACTION.empty_table()))).alias("transactions")
    frame = spark.range(0, parts, numPartitions=parts).select(nothing)
    with persisted(keyed(frame, spark.sparkContext.broadcast(SchemaHistory()), parts).frame) as events:
        KeyedEvents(events, parts).except_rows()
        KeyedEvents(events, parts).summaries((0, 1), ())


def with_keys(rows: pa.Table, history: SchemaHistory, parts: int) -> pa.Table:
    """Row changes (``ROW_EVENT``) as ``KEYED``; pure. The identity of a row does not depend on the schema version."""
    versions = rows.column("schema_version").to_numpy()
    table_ids = rows.column("table_id").to_numpy()
    tables: dict[int, TableAt] = {}
    for table_id in np.unique(table_ids).tolist():
        newest = int(versions[table_ids == table_id].max())
        if (table := history.table_at(table_id, newest)) is not None:
            tables[table_id] = table
    known = np.isin(table_ids, list(tables))
    with_key, without = (rows, rows.slice(rows.num_rows)) if known.all() else (rows.filter(pa.array(m)) for m in (known, ~known))
    keys = row_identities(with_key, tables)
    unclustered = [i for i, t in tables.items() if not (t.info.pk_is_handle or t.info.is_common_handle)]
    by_integer = [i for i, t in tables.items() if t.info.pk_is_handle]
    keyless, neighbours = (np.isin(table_ids[known], ids) for ids in (unclustered, by_integer))
    numbers = part_numbers(table_ids[known], keys, keyless, parts, neighbours)
    with_key = with_key.append_column("key", keys).append_column("part", pa.array(numbers))
    nothing = pa.nulls(without.num_rows, pa.binary())
    without = without.append_column("key", nothing).append_column("part", pa.array(np.zeros(without.num_rows, np.int32)))
    return pa.concat_tables([with_key, without]).cast(KEYED)


def by_part(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """``rows`` (``KEYED``) of each part that has any, in their order; pure. They are copied once, however many parts there are."""
    if rows.num_rows == 0:
        return
    numbers = rows.column("part").to_numpy()
    order = np.argsort(numbers.astype(np.min_scalar_type(numbers.max())), kind="stable")
    sorted_rows, numbers = rows.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=True):
        yield int(numbers[start]), sorted_rows.slice(start, end - start)


def collected(blocks: DataFrame) -> Mapping[BlockKind, pa.Table]:
    """The events of ``blocks`` on the driver; runs one Spark job."""
    return unpack_each(blocks.toArrow().to_batches())


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """``frame`` kept on the executors' disks for the time of the block."""
    frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


# Blocks.


def pack(kind: BlockKind, part: int, events: pa.Table) -> Iterator[pa.RecordBatch]:
    """Return ``events`` as one block; no block if there are none."""
    if events.num_rows == 0:
        return
    ends = pc.min_max(events.column("commit_ts")).as_py() if kind is BlockKind.ROWS else {"min": None, "max": None}
    values = [[int(kind)], [part], [ends["min"]], [ends["max"]], [packed(events)]]
    yield pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, BLOCK, strict=True)], schema=BLOCK)


def unpack(blocks: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return all events of ``blocks``, with the columns of ``schema`` only."""
    return unpacked((value for block in blocks for value in block.column("events")), schema)


def unpack_each(blocks: Iterable[pa.RecordBatch]) -> Mapping[BlockKind, pa.Table]:
    """Return all events of ``blocks``, each kind with the columns of its schema."""
    values_of: dict[BlockKind, list[pa.BinaryScalar]] = {kind: [] for kind in FRAMES}
    for block in blocks:
        for kind, value in zip(block.column("kind").to_pylist(), block.column("events"), strict=True):
            values_of[BlockKind(kind)].append(value)
    return {kind: unpacked(values, FRAMES[kind]) for kind, values in values_of.items()}


class RowSpool:
    """Arrow tables of one schema, as one table: rows of a part that may exceed memory. Beyond a limit they are in a temporary file.

    Promises: rows are returned in insertion order until ``close``. A file that is being read has no directory entry.
    The files are where Python's ``tempfile`` puts them (``TMPDIR``).
    """

    def __init__(self, schema: pa.Schema, in_memory: int = IN_MEMORY) -> None:
        self._schema = schema
        self._in_memory = in_memory
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._path = ""
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._map: pa.MemoryMappedFile | None = None

    def extend(self, tables: Iterable[pa.Table]) -> Self:
        """Add rows."""
        for table in tables:
            self._bytes += table.nbytes
            if self._writer is None and self._bytes > self._in_memory:
                self._spill()
            if self._writer is None:
                self._tables.append(table)
            else:
                self._writer.write_table(table)
        return self

    def table(self) -> pa.Table:
        """Return all rows; beyond the limit they stay on disk and are memory-mapped. Nothing may be added afterwards."""
        if self._writer is None:
            return pa.concat_tables([self._schema.empty_table(), *self._tables])
        self._writer.close()
        self._map = pa.memory_map(self._path)
        os.unlink(self._path)
        self._path = ""
        return pa.ipc.open_file(self._map).read_all()

    def close(self) -> None:
        """Release the rows."""
        self._tables = []
        if self._writer is not None:
            self._writer.close()
        if self._map is not None:
            self._map.close()
        if self._path:
            os.unlink(self._path)
            self._path = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _spill(self) -> None:
        handle, self._path = tempfile.mkstemp(prefix="tidb-binlog-rows-")
        os.close(handle)
        self._writer = pa.ipc.new_file(self._path, self._schema)
        for table in self._tables:
            self._writer.write_table(table)
        self._tables = []
