"""The record of a copy at the target: the table ``spark_bootstrap`` in the checkpoint schema. [db]

Promises: the record has one row for the whole copy (``CopyHead``), one for each table, and one for each range of a table that is being copied. The row
of a range changes in the transaction of its table rows. So a later life continues exactly after them, even in a table without a key.
"""

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Key, KeyRange, key_from_json, key_to_json
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT, TableName

TABLE = "spark_bootstrap"
_BAR = 24
_WHOLE = -1
"""``unit`` of the rows that are about a table, or everything."""
_HEAD = ("", "")
"""In place of a table's name: the whole copy."""
_LOST = (
    "the target has lost transactions that it had committed. It crashed before it had written them to disk, or a replica that was behind has taken its "
    "place. Start again: the copy continues from what the target has"
)


class CopyKind(enum.StrEnum):
    """The extent of a copy."""

    FIRST = "first"
    """Everything that is replicated, into a target that has no checkpoint yet."""
    TABLES = "tables"
    """Tables of a stream, at its checkpoint."""


class CopyState(enum.StrEnum):
    """The state of a table, or of the whole."""

    PLANNED = "planned"
    """No row was copied."""
    MADE = "made"
    """A view or sequence that this copy makes."""
    EMPTY = "empty"
    """The table is there without rows, and its ranges are recorded."""
    DONE = "done"
    """All rows are there."""
    JOINED = "joined"
    """Of the whole: the stream has begun there."""


@dataclass(frozen=True, slots=True)
class CopyHead:
    """The copy that runs, or was the last."""

    kind: CopyKind
    ts: int
    """The snapshot, and where the stream begins."""
    state: CopyState = CopyState.PLANNED


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table of it, under its name upstream."""

    schema: str
    name: str
    state: CopyState = CopyState.PLANNED
    rows: int = 0
    """About how many rows it has, until it is done; then how many were copied."""
    to: str = ""
    """Which table of the target, columns and rows it is copied to."""
    made: bool = False
    """Whether a copy has made it at the target, where nothing of the name was."""
    given_up: bool = False
    """Whether the target has it, or rows of it, by a copy that is not continued. They are removed before the table is copied."""
    copied: int = 0
    """How many rows of it are at the target, as far as ``CopyRecord.load`` knows."""

    @property
    def key(self) -> TableName:
        """Its database and name upstream."""
        return self.schema, self.name

    @property
    def place(self) -> TableName:
        """Its database and name at the target."""
        schema, name, *_ = json.loads(self.to)
        return schema, name

    @property
    def touched(self) -> bool:
        """Whether the target has something of it by a copy."""
        return self.state is not CopyState.PLANNED or self.made or self.given_up

    def as_given_up(self) -> "CopiedTable":
        """The table of a copy that is not continued; one that the target has nothing of is planned as before."""
        return replace(self, given_up=self.touched, state=CopyState.MADE if self.state is CopyState.MADE else CopyState.PLANNED)


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """A range of a table and how far it is."""

    table: TableName
    """Its database and name upstream."""
    unit: int
    within: KeyRange
    after: Key = ()
    """The last key that is in the target."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class RecordedCopy:
    """Everything that is recorded for one cluster."""

    head: CopyHead
    tables: tuple[CopiedTable, ...]
    others: tuple[CopiedTable, ...] = ()
    """Views and sequences."""

    @property
    def unfinished(self) -> tuple[CopiedTable, ...]:
        """The tables that are not copied completely."""
        return tuple(t for t in self.tables if t.state is not CopyState.DONE)

    @property
    def copied(self) -> int:
        """The rows that are copied."""
        return sum(t.copied for t in self.tables)

    @property
    def begun(self) -> bool:
        """Whether something of it is still to be done: the stream may not begin without it."""
        return self.head.state is CopyState.PLANNED

    @property
    def joined(self) -> bool:
        """Whether the stream has begun there."""
        return self.head.state is CopyState.JOINED

    def goes_on_at(self, head: CopyHead) -> bool:
        """Whether this is the copy ``head``, and continues. A first load that is done but not joined adds tables that filters have let in since."""
        unjoined = self.begun or (head.kind is CopyKind.FIRST and not self.joined)
        return unjoined and (self.head.kind, self.head.ts) == (head.kind, head.ts)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The state of a copy at one moment."""

    tables: int
    tables_done: int
    rows: int
    """Copied, earlier lives included."""
    expected: int
    """About how many rows there are altogether, as the upstream estimates; 0 = unknown."""
    rows_per_second: float
    """Of this life."""

    @property
    def share(self) -> float:
        """The copied share, from 0 to 1: by rows where their number is known, and never 1 before the last table."""
        by_tables = self.tables_done / self.tables if self.tables else 1.0
        if not self.expected or self.tables_done == self.tables:
            return by_tables
        return min(self.rows / self.expected, 0.99)

    def words(self) -> str:
        """One line: a bar, tables, rows, rate and the time that is left."""
        filled = int(self.share * _BAR)
        bar = f"copying [{'#' * filled}{'.' * (_BAR - filled)}] {self.share:4.0%}"
        return " | ".join([bar, f"{self.tables_done:,} of {self.tables:,} tables", *self.row_words])

    @property
    def row_words(self) -> tuple[str, ...]:
        """Rows, rate and, if it is known, the time that is left."""
        rows = f"{self.rows:,} rows" + (f" of about {self.expected:,}" if self.expected else "")
        left = self.expected - self.rows
        ends = left > 0 and self.rows_per_second > 0 and self.tables_done < self.tables
        end = (f"about {_time(left / self.rows_per_second)} left",) if ends else ()
        return (rows, f"{self.rows_per_second:,.0f} rows/s", *end)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class CopyRecord:
    """The record of one cluster, over one session. What writes is part of the caller's transaction, which has checked the lease."""

    def __init__(self, session: Session, cluster_id: int, schema: str) -> None:
        """``schema``: of the checkpoint."""
        self.session = session
        self._cluster_id = cluster_id
        self._schema = schema
        self._table = f"{quote_name(schema)}.{quote_name(TABLE)}"

    def ensure(self) -> None:
        """Create the table if missing. DDL: must not be called inside a transaction."""
        self.session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (cluster_id BIGINT UNSIGNED NOT NULL, table_schema VARCHAR(64) NOT NULL, "
            "table_name VARCHAR(64) NOT NULL, unit INT NOT NULL, state VARCHAR(16) NOT NULL, kind VARCHAR(16) NOT NULL, snapshot_ts BIGINT UNSIGNED NOT NULL, "
            "bounds LONGTEXT, after_key LONGTEXT, copied BIGINT NOT NULL, changed_at TIMESTAMP(3) NULL, made TINYINT NOT NULL, "
            f"PRIMARY KEY (cluster_id, table_schema, table_name, unit)) {made_with(TABLE, ' DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin')}"
        )
        require_sound(self.session, self._schema, TABLE)

    def load(self) -> RecordedCopy | None:
        """What is recorded; None: nothing was ever copied for this cluster.

        Raises:
            ApplyError: the table has another layout.
        """
        require_sound(self.session, self._schema, TABLE)
        try:
            rows = self.session.query(
                f"SELECT table_schema, table_name, kind, snapshot_ts, {_OF_TABLE} FROM {self._table} WHERE cluster_id = %s AND unit = %s "
                "ORDER BY table_schema, table_name",
                [self._cluster_id, _WHOLE],
            )
        except ApplyError as error:
            if error.errno in ABSENT:
                return None
            raise
        sql = f"SELECT table_schema, table_name, SUM(copied) FROM {self._table} WHERE cluster_id = %s AND unit >= 0 GROUP BY table_schema, table_name"
        copied = {(database, name): int(count) for database, name, count in self.session.query(sql, [self._cluster_id])}
        heads = [CopyHead(CopyKind(kind), int(ts), CopyState(state)) for db, name, kind, ts, state, *_ in rows if (db, name) == _HEAD]
        found = [_table((db, name), ts, *row) for db, name, _, ts, *row in rows if (db, name) != _HEAD]
        found = [replace(t, copied=t.rows if t.state is CopyState.DONE else copied.get(t.key, 0)) for t in found]
        others = tuple(t for t in found if t.state is CopyState.MADE)
        return RecordedCopy(heads[0], tuple(t for t in found if t not in others), others) if heads else None

    def begin(self, head: CopyHead, tables: Iterable[CopiedTable]) -> None:
        """Replace whatever is recorded by a new beginning; what is not to be forgotten of it is among ``tables``."""
        self.session.execute(f"DELETE FROM {self._table} WHERE cluster_id = %s", [self._cluster_id])
        self._insert(head, _HEAD, _WHOLE, str(head.state), None, 0, 0)
        self.add(head, tables)

    def add(self, head: CopyHead, tables: Iterable[CopiedTable]) -> None:
        """Record more tables that are to be copied at the same snapshot."""
        for table in tables:
            since = CopyHead(head.kind, 0) if table.given_up else head
            self._insert(since, table.key, _WHOLE, str(table.state), table.to or None, table.rows, int(table.made))
        self._set_head(CopyState.PLANNED)

    def save(self, head: CopyHead, table: CopiedTable) -> None:
        """Record the state of a table that is recorded already."""
        changed = self.session.execute(
            f"UPDATE {self._table} SET state = %s, copied = %s, made = %s, snapshot_ts = %s, changed_at = NOW(3) WHERE {_ONE}",
            [str(table.state), table.rows, int(table.made), 0 if table.given_up else head.ts, self._cluster_id, *table.key, _WHOLE],
        )
        if changed != 1:
            self.locked(table.key)

    def note_empty(self, head: CopyHead, table: CopiedTable, ranges: Sequence[KeyRange]) -> None:
        """Record that the table is at the target without a row, and is copied in these ranges.

        Raises:
            ApplyError: its row does not say what ``table`` does, because the target has lost what it had committed.
        """
        if (state := self.locked(table.key).state) not in (table.state, CopyState.EMPTY):
            raise lost(f"{table.schema}.{table.name}: its state in {self._schema}.{TABLE} is {state}, although it was {table.state}")
        self._forget_ranges(table)
        for unit, within in enumerate(ranges):
            self._insert(head, table.key, unit, "open", within.to_json(), 0, 0)
        self.save(head, replace(table, state=CopyState.EMPTY))

    def forget(self, table: TableName) -> None:
        """Remove a table, view or sequence from the record."""
        self.session.execute(f"DELETE FROM {self._table} WHERE {_ONE}", [self._cluster_id, *table, _WHOLE])

    def ranges(self, table: CopiedTable) -> tuple[CopiedRange, ...]:
        """The ranges of a table."""
        sql = f"SELECT unit, bounds, after_key, state FROM {self._table} WHERE {_RANGES} ORDER BY unit"
        return tuple(_range(table.key, *row) for row in self.session.query(sql, [self._cluster_id, *table.key]))

    def locked_range(self, part: CopiedRange, ts: int) -> CopiedRange:
        """The range as it is, its row locked until this transaction ends.

        Raises:
            ApplyError: it is not recorded: another life has begun anew.
        """
        rows = self.session.query(
            f"SELECT unit, bounds, after_key, state FROM {self._table} WHERE {_ONE} AND snapshot_ts = %s FOR UPDATE",
            [self._cluster_id, *part.table, part.unit, ts],
        )
        if not rows:
            raise ApplyError(
                f"{'.'.join(part.table)}: {self._schema}.{TABLE} has no range {part.unit} of the snapshot {ts}. Was the target restored, or the row deleted, "
                "during the copy? Start with --bootstrap-restart"
            )
        return _range(part.table, *rows[0])

    def advance(self, part: CopiedRange, after: Key, rows: int, *, done: bool) -> None:
        """Record that everything of the range up to ``after`` is in the target with this transaction, which adds ``rows``."""
        changed = self.session.execute(
            f"UPDATE {self._table} SET after_key = %s, state = %s, copied = copied + %s, changed_at = NOW(3) WHERE {_ONE} AND state = 'open'",
            [key_to_json(after) if after else None, "done" if done else "open", rows, self._cluster_id, *part.table, part.unit],
        )
        if changed != 1:
            raise ApplyError(f"{'.'.join(part.table)}: somebody else changed range {part.unit} in {self._schema}.{TABLE}. Start again")

    def note_done(self, head: CopyHead, table: CopiedTable) -> int:
        """Record that all ranges of the table are copied; the number of rows.

        Raises:
            ApplyError: the record does not say so, because the target has lost what it had committed.
        """
        found = self.locked(table.key)
        if (state := found.state) is CopyState.DONE:
            return found.rows  # by a transaction whose answer was lost
        sql = f"SELECT COALESCE(SUM(copied), 0), COALESCE(SUM(state <> 'done'), 0) FROM {self._table} WHERE {_RANGES}"
        ((count, left),) = self.session.query(sql, [self._cluster_id, *table.key])
        if int(left) or state is not CopyState.EMPTY:
            what = f"{left} ranges are not copied" if state is CopyState.EMPTY else f"its state is {state}"
            raise lost(f"{table.schema}.{table.name}: {what} in {self._schema}.{TABLE}, although all was copied")
        self._forget_ranges(table)
        self.save(head, replace(found, state=CopyState.DONE, rows=int(count)))
        return int(count)

    def note_all_done(self, tables: Iterable[TableName]) -> None:
        """Record that everything, ``tables`` among it, is copied.

        Raises:
            ApplyError: the record does not say so of each of them.
        """
        found = self.session.query(
            f"SELECT table_schema, table_name FROM {self._table} WHERE cluster_id = %s AND unit = %s AND state = %s FOR UPDATE",
            [self._cluster_id, _WHOLE, str(CopyState.DONE)],
        )
        if left := sorted(set(tables) - set(found)):
            shown = ", ".join(map(".".join, left[:5]))
            raise lost(f"{shown}: {self._schema}.{TABLE} does not record this table as copied, although the copy has recorded it")
        self._set_head(CopyState.DONE)

    def note_joined(self) -> None:
        """Record that the stream begins behind the copy.

        Raises:
            ApplyError: it is not recorded as done.
        """
        if self.locked(_HEAD).state not in (CopyState.DONE, CopyState.JOINED):
            raise lost(f"{self._schema}.{TABLE} does not record the copy as done, although the copy has recorded it")
        self._set_head(CopyState.JOINED)

    def locked(self, table: TableName) -> CopiedTable:
        """A table as it is recorded; its row is locked until this transaction ends.

        Raises:
            ApplyError: there is no such row.
        """
        found = self.session.query(
            f"SELECT snapshot_ts, {_OF_TABLE} FROM {self._table} WHERE {_ONE} FOR UPDATE", [self._cluster_id, *table, _WHOLE]
        )
        if not found:
            raise ApplyError(f"{'.'.join(table)}: its row in {self._schema}.{TABLE} is gone. Start with --bootstrap-restart")
        return _table(table, *found[0])

    def _set_head(self, state: CopyState) -> None:
        values = [str(state), self._cluster_id, *_HEAD, _WHOLE]
        if self.session.execute(f"UPDATE {self._table} SET state = %s, changed_at = NOW(3) WHERE {_ONE}", values) != 1:
            self.locked(_HEAD)

    def _forget_ranges(self, table: CopiedTable) -> None:
        self.session.execute(f"DELETE FROM {self._table} WHERE {_RANGES}", [self._cluster_id, *table.key])

    def _insert(self, head: CopyHead, table: TableName, unit: int, *row: str | int | None) -> None:
        """Write a row; ``row``: state, bounds, copied, made."""
        columns = "(cluster_id, table_schema, table_name, unit, kind, snapshot_ts, state, bounds, copied, made, changed_at)"
        values = [self._cluster_id, *table, unit, str(head.kind), head.ts, *row]
        self.session.execute(f"REPLACE INTO {self._table} {columns} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, NOW(3))", values)


def lost(words: str) -> ApplyError:
    """The error for a target that lacks what it has answered; ``words``: what it lacks."""
    return ApplyError(f"{words}: {_LOST}")


_OF_TABLE = "state, copied, bounds, made"
_RANGES = "cluster_id = %s AND table_schema = %s AND table_name = %s AND unit >= 0"
_ONE = "cluster_id = %s AND table_schema = %s AND table_name = %s AND unit = %s"


def _table(table: TableName, ts: Any, state: str, rows: Any, to: str | None, made: Any) -> CopiedTable:
    return CopiedTable(*table, CopyState(state), int(rows), to or "", bool(made), given_up=not int(ts))


def _range(table: TableName, unit: Any, bounds: str, after: str | None, state: str) -> CopiedRange:
    return CopiedRange(table, int(unit), KeyRange.from_json(bounds), key_from_json(after), state == "done")
