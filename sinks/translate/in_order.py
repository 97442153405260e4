"""The messages of a step whose rows the executors hold: the executors translate them, the driver receives them in the order of commit_ts. [spark]

Promises: the same messages as ``Translation.messages`` of the same rows. The driver holds a few megabytes at a time. An executor holds the rows of
its range of commit_ts as Spark sorts them, and the rows of one transaction as Python values.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pyspark_tidb_binlog.schemas.packed import packed, unpacked
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, unpack
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.translate.translation import Message, Translation, wanted

MESSAGE = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
        pa.field("events", pa.int64(), nullable=False),
    ]
)
_VALUES = pa.schema([pa.field("messages", pa.binary(), nullable=False)])
_VALUE_BYTES = 4 << 20
_ROWS = 65_536
"""Row events per Arrow batch that goes to Spark."""


def messages_in_order(events: KeyedEvents, step: RowsStep, translation: Translation, skipped_ts: frozenset[int]) -> Iterator[Message]:
    """The messages of ``step`` but for the transactions ``skipped_ts``; runs several Spark jobs."""
    span = (step.after_ts, step.upto_ts)

    def unpacked_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = wanted(rows_between(unpack([batch], ROW_EVENT), *span), translation, skipped_ts)
            yield from rows.to_batches(max_chunksize=_ROWS)

    def translated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for value in _values(translation.of_sorted(batches)):
            yield pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], schema=_VALUES)

    rows = events.overlapping(span).mapInArrow(unpacked_rows, ddl_of(ROW_EVENT))
    ranges = rows.repartitionByRange(events.parts, "commit_ts").sortWithinPartitions("commit_ts", "seq")
    for row in ranges.mapInArrow(translated, ddl_of(_VALUES)).toLocalIterator():
        table = unpacked([pa.scalar(bytes(row["messages"]), pa.binary())], MESSAGE)
        for commit_ts, payload, count in zip(*(table.column(name).to_pylist() for name in MESSAGE.names), strict=True):
            yield Message(commit_ts, payload, count)


def _values(messages: Iterable[Message]) -> Iterator[bytes]:
    """Runs of messages of about ``_VALUE_BYTES``."""
    held: list[Message] = []
    size = 0
    for message in messages:
        held.append(message)
        size += len(message.payload)
        if size >= _VALUE_BYTES:
            yield _packed(held)
            held, size = [], 0
    if held:
        yield _packed(held)


def _packed(messages: list[Message]) -> bytes:
    columns = [[m.commit_ts for m in messages], [m.payload for m in messages], [m.events for m in messages]]
    return packed(pa.table([pa.array(c, f.type) for c, f in zip(columns, MESSAGE, strict=True)], schema=MESSAGE))
