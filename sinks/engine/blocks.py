"""Blocks of many events per Spark row, so that Spark shuffles and stores a few blobs instead of hundreds of thousands of rows. Pure.

Promises: ``unpack`` reverses ``pack``. A block holds events of one kind. One of row changes carries its first and last commit_ts, so that
whole blocks can be skipped. Format of ``events``: ``schemas.packed``.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.packed import gathered, packed, unpacked
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT, ROW_EVENT, ROW_SUMMARY, TRANSACTION

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
    """What a block's events are."""

    ROWS = 0
    DDLS = 1
    CONTROLS = 2
    SUMMARIES = 3
    MARKS = 4
    """Row changes of the mark table (``sinks.engine.loopback``)."""


FRAMES: Mapping[BlockKind, pa.Schema] = {
    BlockKind.ROWS: ROW_EVENT,
    BlockKind.DDLS: DDL_EVENT,
    BlockKind.CONTROLS: CONTROL,
    BlockKind.SUMMARIES: ROW_SUMMARY,
    BlockKind.MARKS: ROW_EVENT,
}
"""The schema of each kind; row changes may have further columns."""

_SLICE = 2000
"""Transactions exploded into blocks at a time: a few megabytes."""


def slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``batches`` (``stages.TRANSACTIONS``) as batches of ``TRANSACTION`` that are small enough for one round of blocks.

    Small values come together: those of a live stream have a hundred transactions each, and a round costs milliseconds.
    """
    values = chain.from_iterable(batch.column("transactions") for batch in batches)
    for few in gathered((unpacked([value], TRANSACTION) for value in values), most_rows=_SLICE):
        yield from pa.concat_tables(few).combine_chunks().to_batches(max_chunksize=_SLICE)


def pack(kind: BlockKind, part: int, events: pa.Table) -> Iterator[pa.RecordBatch]:
    """``events`` as one block; no block if there are none."""
    if events.num_rows == 0:
        return
    ends = pc.min_max(events.column("commit_ts")).as_py() if kind is BlockKind.ROWS else {"min": None, "max": None}
    values = [[int(kind)], [part], [ends["min"]], [ends["max"]], [packed(events)]]
    yield pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, BLOCK, strict=True)], schema=BLOCK)


def unpack(blocks: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """All events of ``blocks``, with the columns of ``schema`` only."""
    return unpacked((value for block in blocks for value in block.column("events")), schema)


def unpack_each(blocks: Iterable[pa.RecordBatch]) -> Mapping[BlockKind, pa.Table]:
    """All events of ``blocks``, each kind with the columns of its schema."""
    found: dict[BlockKind, list[pa.BinaryScalar]] = {kind: [] for kind in FRAMES}
    for block in blocks:
        for kind, value in zip(block.column("kind").to_pylist(), block.column("events"), strict=True):
            found[BlockKind(kind)].append(value)
    return {kind: unpacked(values, FRAMES[kind]) for kind, values in found.items()}
