"""Blocks of many row events per Spark row, so that Spark shuffles and stores a few blobs instead of hundreds of thousands of rows. Pure.

Promises: ``unpack`` reverses ``pack``. A block carries its first and last commit_ts, so that whole blocks can be skipped. Format of
``events``: ``schemas.packed``.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from schemas.packed import packed, unpacked
from schemas.stages import TRANSACTION

BLOCK = pa.schema(
    [
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("first_ts", pa.int64(), nullable=False),
        pa.field("last_ts", pa.int64(), nullable=False),
        pa.field("events", pa.binary(), nullable=False),
    ]
)

ROWS, CONTROLS = 0, 1
"""``kind``: row changes, or DDLs, punctuation and summaries."""

_SLICE = 2000
"""Transactions exploded into blocks at a time: a few megabytes."""


def slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``batches`` (``stages.TRANSACTIONS``) as batches of ``TRANSACTION`` that are small enough for one round of blocks."""
    for batch in batches:
        for value in batch.column("transactions"):
            yield from unpacked([value], TRANSACTION).to_batches(max_chunksize=_SLICE)


def pack(kind: int, part: int, events: pa.Table) -> Iterator[pa.RecordBatch]:
    """``events`` (with a ``commit_ts`` column) as one block; no block if there are none."""
    if events.num_rows == 0:
        return
    ends = pc.min_max(events.column("commit_ts")).as_py()
    values = [[kind], [part], [ends["min"]], [ends["max"]], [packed(events)]]
    yield pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, BLOCK, strict=True)], schema=BLOCK)


def unpack(blocks: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """All events of ``blocks``, with the columns of ``schema`` only."""
    return unpacked((value for block in blocks for value in block.column("events")), schema)
