"""Row events packed many to a Spark row: Spark then moves, shuffles and keeps a few blobs instead of hundreds of thousands of rows. Pure.

Promises: ``unpack`` of what ``pack`` made is equal to it. A block knows its first and last commit_ts, so that whole blocks can be
passed over. Format of ``events``: one Arrow IPC stream, compressed; never persisted beyond a query's life.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

BLOCK = pa.schema(
    [
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("first_ts", pa.int64(), nullable=False),
        pa.field("last_ts", pa.int64(), nullable=False),
        pa.field("events", pa.binary(), nullable=False),
    ]
)

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
"""A block crosses the JVM several times: a quarter of the bytes for a tenth of a second per 60 MB."""

ROWS, CONTROLS = 0, 1
"""``kind``: row changes, or DDLs, punctuation and summaries."""

_SLICE = 2000
"""Transactions that are exploded into one round of blocks: some megabytes."""


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """``batch`` in pieces of which each makes blocks of a good size."""
    for start in range(0, batch.num_rows, _SLICE):
        yield batch.slice(start, _SLICE)


def pack(kind: int, part: int, events: pa.Table) -> Iterator[pa.RecordBatch]:
    """``events`` (they have a ``commit_ts``) as one block; nothing for none."""
    if events.num_rows == 0:
        return
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, events.schema, options=_COMPRESSED) as stream:
        stream.write_table(events)
    ends = pc.min_max(events.column("commit_ts")).as_py()
    values = [[kind], [part], [ends["min"]], [ends["max"]], [sink.getvalue().to_pybytes()]]
    yield pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, BLOCK, strict=True)], schema=BLOCK)


def unpack(blocks: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """All events of ``blocks``, cut to the columns of ``schema``."""
    tables = [pa.ipc.open_stream(value.as_buffer()).read_all().select(schema.names) for block in blocks for value in block.column("events")]
    return pa.concat_tables(tables).cast(schema) if tables else schema.empty_table()
