"""Row events as messages: one per transaction, in the order of commit_ts. Pure.

Promises: the messages depend only on the transactions: not on the order of the events, nor on how they were cut into batches or duplicated.
Rows of databases that are not replicated are left out, and so are transactions without any other row.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.batch import wanted as applied
from pyspark_tidb_binlog.sinks.engine.batch import without
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, by_table

_ORDER = (("commit_ts", "ascending"), ("seq", "ascending"))
_COLUMNS = ("commit_ts", "seq", "table_id", "schema_version", "op", "row")
_SLICE = 16_384
"""Rows that are held as Python values at a time."""

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
    """How the rows of one step become messages; picklable."""

    tables: Mapping[int, TableAt]
    format: BinlogFormat
    unwanted: frozenset[int]
    """Ids of tables whose rows are left out: dropped by then, or not replicated."""
    left_out: frozenset[tuple[int, int]] = frozenset()
    """(table id, operation) of row changes that are left out."""

    @classmethod
    def of(cls, step: RowsStep, form: BinlogFormat) -> "Translation":
        """That of a step."""
        return cls(step.tables, form, step.gone, step.left_out)

    def messages(self, rows: pa.Table) -> Iterator[Message]:
        """The transactions of ``rows`` (``ROW_EVENT``, in any order), which must be whole."""
        return self.of_sorted([applied(rows, self.unwanted, self.left_out).sort_by(list(_ORDER))])

    def of_sorted(self, parts: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[Message]:
        """The same for rows that come in order and without unwanted rows; a transaction may continue in the next part."""
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


def wanted(rows: pa.Table, translation: Translation, skipped_ts: Collection[int]) -> pa.Table:
    """The rows of which messages are made."""
    return without(applied(rows, translation.unwanted, translation.left_out), "commit_ts", skipped_ts)


def _events(parts: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[Event]:
    for part in parts:
        for begin in range(0, part.num_rows, _SLICE):
            piece = part.slice(begin, _SLICE)
            yield from zip(*(piece.column(name).to_pylist() for name in _COLUMNS), strict=True)
