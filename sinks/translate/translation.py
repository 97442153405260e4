"""Row events as messages: one per transaction, in the order of commit_ts. Pure, except for ``messages_in_order``.

Promises: the messages depend only on the transactions: not on the order of the events, nor on how they were cut into batches or duplicated.
Rows of databases that are not replicated are left out, and so are transactions without any other row.

``messages_in_order``: rows that the executors hold are translated there, and the driver receives the same messages in the order of commit_ts, a few
megabytes at a time. An executor holds the rows of its range of commit_ts as Spark sorts them, and the rows of one transaction as Python values. [spark]
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.packed import packed, unpacked
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, wanted, without
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, unpack
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, by_table

_ORDER = (("commit_ts", "ascending"), ("seq", "ascending"))
_COLUMNS = ("commit_ts", "seq", "table_id", "schema_version", "op", "row")
_SLICE = 16_384
"""Rows that are held as Python values at a time."""

MESSAGE = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
        pa.field("events", pa.int64(), nullable=False),
    ]
)
_VALUES = pa.schema([pa.field("messages", pa.binary(), nullable=False)])
_VALUE_BYTES = 4 << 20
_BATCH_ROWS = 65_536
"""Row events per Arrow batch that goes to Spark."""

Event = tuple[int, int, int, int, int, bytes]
"""The values of ``_COLUMNS``."""


@dataclass(frozen=True, slots=True)
class Message:
    """One transaction or DDL, translated."""

    commit_ts: int
    payload: bytes
    events: int
    """Row changes in it."""


@dataclass(frozen=True, slots=True)
class Translation:
    """Makes messages of the rows of one step; picklable."""

    tables: Mapping[int, TableAt]
    format: BinlogFormat
    unwanted: frozenset[int]
    """Ids of tables whose rows are left out: dropped by then, or not replicated."""
    left_out: frozenset[tuple[int, int]] = frozenset()
    """(table id, operation) of row changes that are left out."""

    @classmethod
    def of(cls, step: RowsStep, form: BinlogFormat) -> "Translation":
        """Return the translation of a step."""
        return cls(step.tables, form, step.gone, step.left_out)

    def messages(self, rows: pa.Table) -> Iterator[Message]:
        """The transactions of ``rows`` (``ROW_EVENT``, in any order), which must be whole."""
        return self.of_sorted([wanted(rows, self.unwanted, self.left_out).sort_by(list(_ORDER))])

    def of_sorted(self, parts: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[Message]:
        """Do the same for rows that come in order and without unwanted rows; a transaction may continue in the next part."""
        held: list[Event] = []
        for event in _events(parts):
            if held and held[-1][0] != event[0]:
                yield self._message(held)
                held = []
            if not held or held[-1][1] != event[1]:
                held.append(event)
        if held:
            yield self._message(held)

    def _message(self, events: Sequence[Event]) -> Message:
        commit_ts = events[0][0]
        unknown = {e[2] for e in events} - self.tables.keys()
        if unknown:
            raise SchemaMismatch(
                f"the transaction of commit_ts {commit_ts} has rows of tables {sorted(unknown)}, but the DDL history has no such tables. If the history "
                "does not reach back to their CREATE TABLE, set syncer.load-schema-snapshot = true"
            )
        runs = list(by_table(((e[2], e[3], e[4], e[5]) for e in events), self.tables))
        return Message(commit_ts, self.format.transaction(commit_ts, runs), len(events))


def _events(parts: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[Event]:
    for part in parts:
        for begin in range(0, part.num_rows, _SLICE):
            piece = part.slice(begin, _SLICE)
            yield from zip(*(piece.column(name).to_pylist() for name in _COLUMNS), strict=True)


def messages_in_order(events: KeyedEvents, step: RowsStep, translation: Translation, skipped_ts: frozenset[int]) -> Iterator[Message]:
    """The messages of ``step`` but for the transactions ``skipped_ts``; runs several Spark jobs."""
    span = (step.after_ts, step.upto_ts)

    def unpacked_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = wanted(rows_between(unpack([batch], ROW_EVENT), *span), translation.unwanted, translation.left_out)
            yield from without(rows, "commit_ts", skipped_ts).to_batches(max_chunksize=_BATCH_ROWS)

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
