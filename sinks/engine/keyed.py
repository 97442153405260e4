"""Events of a batch in Spark: exploded, keyed, and shuffled so that all events of a row lie in one part. [spark]

Promises: the part of a row is a fixed function of its table and key, so a replay with the same number of parts finds the same rows in the
same part. Rows of clustered tables are distributed over the parts by key. All rows of a table with ``_tidb_rowid`` as its handle are in one
part, because the table may have no key in the target, and two connections deleting from it would block each other. Rows whose handle is an
integer are distributed by blocks of neighbours (``fold.part_numbers``).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_tidb_binlog.schemas.explode import Exploded, explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.packed import packed
from pyspark_tidb_binlog.schemas.stages import COLLECTS, ROW_EVENT, TRANSACTION, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import PARTIAL, rows_between, summarise
from pyspark_tidb_binlog.sinks.engine.blocks import BLOCK, FRAMES, BlockKind, pack, slices, unpack, unpack_each
from pyspark_tidb_binlog.sinks.engine.choice import ALL_KEPT, NeverKept
from pyspark_tidb_binlog.sinks.engine.fold import part_numbers
from pyspark_tidb_binlog.sinks.engine.identity import row_identities

KEYED = ROW_EVENT.append(pa.field("key", pa.binary())).append(pa.field("part", pa.int32(), nullable=False))
"""A row event with its row's identity and its part. ``key`` is null if the table is not in the history."""

Span = tuple[int, int]
"""(after_ts exclusive, upto_ts inclusive)."""


@dataclass(frozen=True, slots=True)
class KeyedEvents:
    """The events of a batch, held by the executors: ``frame`` has the schema ``BLOCK``, each part in the Spark partition of its number."""

    frame: DataFrame
    parts: int

    def except_rows(self) -> Mapping[BlockKind, pa.Table]:
        """The DDLs, the control rows and the summaries, on the driver; runs one Spark job."""
        return collected(self.frame.filter(F.col("kind") != int(BlockKind.ROWS)))

    def summaries(self, span: Span, ddl_ts: Sequence[int]) -> pa.Table:
        """The partial summaries of the row changes in ``span``; runs one Spark job."""
        bounds = list(ddl_ts)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from summarise(rows_between(unpack([batch], ROW_EVENT), *span), bounds).to_batches()

        return self.overlapping(span).mapInArrow(run, ddl_of(PARTIAL)).toArrow()

    def rows_in(self, span: Span) -> pa.Table:
        """The row changes in ``span`` (``ROW_EVENT``) on the driver; runs one Spark job."""
        return rows_between(collected(self.overlapping(span))[BlockKind.ROWS], *span)

    def marks(self) -> pa.Table:
        """The row changes of the mark table (``ROW_EVENT``), on the driver; runs one Spark job."""
        return collected(self.frame.filter(F.col("kind") == int(BlockKind.MARKS)))[BlockKind.MARKS]

    def without(self, commit_ts: Collection[int]) -> "KeyedEvents":
        """The same without the row changes of these transactions; the summaries stay as they are."""
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
        """The blocks of row changes that reach into ``span``."""
        after_ts, upto_ts = span
        kind, first_ts, last_ts = F.col("kind"), F.col("first_ts"), F.col("last_ts")
        return self.frame.filter((kind == int(BlockKind.ROWS)) & (last_ts > after_ts) & (first_ts <= upto_ts))


def keyed(
    transactions: DataFrame,
    history: Broadcast[SchemaHistory],
    parts: int,
    never_kept: NeverKept = ALL_KEPT,
) -> KeyedEvents:
    """``transactions`` (``TRANSACTIONS``) as events, row changes with keys and summaries, without those ``never_kept``, and with the marks apart."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in slices(batches):
            events = explode(piece)
            yield from _pack_except_rows(events)
            marks, changes = never_kept.marks.apart(never_kept.dropped(pa.Table.from_batches([events.rows])))
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
        if (found := history.table_at(table_id, newest)) is not None:
            tables[table_id] = found
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


def collected_upto(
    transactions: DataFrame, events: int, size: int, never_kept: NeverKept = ALL_KEPT
) -> Mapping[BlockKind, pa.Table] | None:
    """The events of ``transactions`` but those ``never_kept``, on the driver if they are at most ``events`` and ``size`` bytes, else None; runs
    one Spark job.
    """
    context = transactions.sparkSession.sparkContext
    context.setLocalProperty(COLLECTS, str(size))
    try:
        values = transactions.toArrow()
    finally:
        context.setLocalProperty(COLLECTS, None)  # type: ignore[arg-type]
    return exploded_upto(values, events, size, never_kept)


def exploded_upto(values: pa.Table, events: int, size: int, never_kept: NeverKept = ALL_KEPT) -> Mapping[BlockKind, pa.Table] | None:
    """The row changes, DDLs and controls of ``values`` (``TRANSACTIONS``); None if a value is empty, or they are more than one of the limits. Pure."""
    if pc.min(pc.binary_length(values.column("transactions"))).as_py() == 0:
        return None
    found: dict[BlockKind, list[pa.Table]] = {
        kind: [FRAMES[kind].empty_table()] for kind in (BlockKind.ROWS, BlockKind.DDLS, BlockKind.CONTROLS)
    }
    count = held = 0
    for piece in slices(values.to_batches()):
        exploded = explode(piece)
        rows, ddls, controls = (pa.Table.from_batches([frame]) for frame in (exploded.rows, exploded.ddls, exploded.controls))
        for kind, frame in zip(found, (never_kept.dropped(rows), ddls, controls), strict=True):
            found[kind].append(frame)
            count, held = count + frame.num_rows, held + frame.nbytes
        if count > events or held > size:
            return None
    return {kind: pa.concat_tables(frames) for kind, frames in found.items()}


def _pack_except_rows(events: Exploded) -> Iterator[pa.RecordBatch]:
    yield from pack(BlockKind.DDLS, 0, pa.Table.from_batches([events.ddls]))
    yield from pack(BlockKind.CONTROLS, 0, pa.Table.from_batches([events.controls]))


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
