"""The record of a copy at the target: the table ``spark_bootstrap`` in the checkpoint schema. [db]

Promises: the record has one row for the whole copy (``CopyHead``), one for each table, and one for each range of a table that is being copied. The row
of a range changes in the transaction of its table rows. So a later life continues exactly after them, even in a table without a key. Functions write
only in the caller's transaction, which has checked the lease.
"""

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Key, KeyRange, key_from_json, key_to_json
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT

TABLE = "spark_bootstrap"
_BAR = 24
_WHOLE = -1
"""``unit`` of the rows that are about a table, or everything."""
WHOLE = ("", "")
"""In place of a table's name."""
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
    """Nothing was changed at the target."""
    AGAIN = "again"
    """The same, but the target has rows of a copy that was given up."""
    STALE = "stale"
    """Created by a copy that was given up, and no longer wanted: a view, a sequence, or a table that the upstream no longer has."""
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
    state: CopyState


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table of it, under its name upstream."""

    schema: str
    name: str
    state: CopyState
    rows: int = 0
    """About how many rows it has, until it is done; then how many were copied."""
    to: str = ""
    """Which table of the target, columns and rows it is copied to."""
    made: bool = False
    """Whether a copy has made it at the target, where nothing of the name was."""

    @property
    def place(self) -> tuple[str, str]:
        """Its database and name at the target."""
        schema, name, *_ = json.loads(self.to)
        return schema, name


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """A range of a table and how far it is."""

    schema: str
    name: str
    unit: int
    within: KeyRange
    after: Key = ()
    """The last key that is in the target."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """Everything that is recorded for one cluster."""

    head: CopyHead
    tables: tuple[CopiedTable, ...]
    others: tuple[CopiedTable, ...] = ()
    """Views and sequences that were made, and whatever is ``STALE``."""

    @property
    def unfinished(self) -> tuple[CopiedTable, ...]:
        """The tables that are not copied completely."""
        return tuple(t for t in self.tables if t.state is not CopyState.DONE)

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


def ensure_table(session: Session, schema: str) -> None:
    """Create the table if missing. DDL: must not be called inside a transaction."""
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {_table(schema)} (cluster_id BIGINT UNSIGNED NOT NULL, table_schema VARCHAR(64) NOT NULL, "
        "table_name VARCHAR(64) NOT NULL, unit INT NOT NULL, state VARCHAR(16) NOT NULL, kind VARCHAR(16) NOT NULL, snapshot_ts BIGINT UNSIGNED NOT NULL, "
        "bounds LONGTEXT, after_key LONGTEXT, copied BIGINT NOT NULL, bytes BIGINT NOT NULL, changed_at TIMESTAMP(3) NULL, made TINYINT NOT NULL, "
        f"PRIMARY KEY (cluster_id, table_schema, table_name, unit)) {made_with(TABLE, ' DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin')}"
    )
    require_sound(session, schema, TABLE)


def load(session: Session, cluster_id: int, schema: str) -> CopyRecord | None:
    """The record; None: nothing was ever copied for this cluster.

    Raises:
        ApplyError: the table has another layout.
    """
    require_sound(session, schema, TABLE)
    try:
        rows = session.query(
            f"SELECT table_schema, table_name, state, kind, snapshot_ts, copied, bounds, made FROM {_table(schema)} WHERE cluster_id = %s AND unit = %s "
            "ORDER BY table_schema, table_name",
            [cluster_id, _WHOLE],
        )
    except ApplyError as error:
        if error.errno in ABSENT:
            return None
        raise
    heads = [CopyHead(CopyKind(kind), int(ts), CopyState(state)) for db, name, state, kind, ts, *_ in rows if not db and not name]
    found = [CopiedTable(db, name, CopyState(state), int(n), to or "", bool(made)) for db, name, state, _, _, n, to, made in rows if db]
    others = tuple(t for t in found if t.state in (CopyState.STALE, CopyState.MADE))
    return CopyRecord(heads[0], tuple(t for t in found if t not in others), others) if heads else None


def begin(session: Session, cluster_id: int, schema: str, head: CopyHead, tables: Iterable[CopiedTable]) -> None:
    """Replace whatever is recorded by a new beginning; what is not to be forgotten of it is among ``tables``."""
    session.execute(f"DELETE FROM {_table(schema)} WHERE cluster_id = %s", [cluster_id])
    add_tables(session, cluster_id, schema, head, (CopiedTable("", "", head.state), *tables))


def add_tables(session: Session, cluster_id: int, schema: str, head: CopyHead, tables: Iterable[CopiedTable]) -> None:
    """More tables are to be copied at the same snapshot."""
    for table in tables:
        state, to = (str(table.state), str(head.kind), head.ts), table.to or None
        _insert(session, schema, [cluster_id, table.schema, table.name, _WHOLE, *state, to, None, table.rows, int(table.made)])


def give_up(session: Session, cluster_id: int, schema: str) -> None:
    """The copy is not continued at its snapshot; the tables that it left undone stay recorded as such, until the next one begins."""
    session.execute(f"UPDATE {_table(schema)} SET snapshot_ts = 0, changed_at = NOW(3) WHERE {_ONE}", [cluster_id, "", "", _WHOLE])


def note_empty(
    session: Session, cluster_id: int, schema: str, table: CopiedTable, ts: int, kind: CopyKind, ranges: Sequence[KeyRange]
) -> None:
    """The table is at the target without a row, and is copied in these ranges; its row says what ``table`` does, if the target has not lost that.

    Raises:
        ApplyError: it has.
    """
    state = lock_table(session, cluster_id, schema, (table.schema, table.name)).state
    if state not in (table.state, CopyState.EMPTY):
        raise lost(f"{table.schema}.{table.name}: its state in {schema}.{TABLE} is {state}, although it was {table.state}")
    set_made(session, cluster_id, schema, table, made=table.made)
    _forget_ranges(session, cluster_id, schema, table)
    for unit, within in enumerate(ranges):
        _insert(session, schema, [cluster_id, table.schema, table.name, unit, "open", str(kind), ts, within.to_json(), None, 0, 0])
    set_state(session, cluster_id, schema, (table.schema, table.name), CopyState.EMPTY)


def forget(session: Session, cluster_id: int, schema: str, name: tuple[str, str]) -> None:
    """Remove a table, view or sequence from the record."""
    session.execute(f"DELETE FROM {_table(schema)} WHERE {_ONE}", [cluster_id, *name, _WHOLE])


def load_ranges(session: Session, cluster_id: int, schema: str, table: CopiedTable) -> tuple[CopiedRange, ...]:
    """The ranges of a table."""
    rows = session.query(
        f"SELECT unit, bounds, after_key, state FROM {_table(schema)} WHERE cluster_id = %s AND table_schema = %s AND table_name = %s AND unit >= 0 "
        "ORDER BY unit",
        [cluster_id, table.schema, table.name],
    )
    return tuple(
        CopiedRange(table.schema, table.name, int(unit), KeyRange.from_json(bounds), key_from_json(after), state == "done")
        for unit, bounds, after, state in rows
    )


def lock_range(session: Session, cluster_id: int, schema: str, place: CopiedRange, ts: int) -> CopiedRange:
    """The range as it is, its row locked until this transaction ends.

    Raises:
        ApplyError: it is not recorded: another life has begun anew.
    """
    rows = session.query(
        f"SELECT bounds, after_key, state FROM {_table(schema)} WHERE {_ONE} AND snapshot_ts = %s FOR UPDATE",
        [cluster_id, place.schema, place.name, place.unit, ts],
    )
    if not rows:
        raise ApplyError(
            f"{place.schema}.{place.name}: {schema}.{TABLE} has no range {place.unit} of the snapshot {ts}. Was the target restored, or the row deleted, during the "
            "copy? Start with --bootstrap-restart"
        )
    bounds, after, state = rows[0]
    return CopiedRange(place.schema, place.name, place.unit, KeyRange.from_json(bounds), key_from_json(after), state == "done")


def advance(session: Session, cluster_id: int, schema: str, place: CopiedRange, after: Key, counts: tuple[int, int], *, done: bool) -> None:
    """Everything of the range up to ``after`` is in the target with this transaction; ``counts``: its rows and bytes."""
    changed = session.execute(
        f"UPDATE {_table(schema)} SET after_key = %s, state = %s, copied = copied + %s, bytes = bytes + %s, changed_at = NOW(3) WHERE {_ONE} AND state = 'open'",
        [key_to_json(after) if after else None, "done" if done else "open", *counts, cluster_id, place.schema, place.name, place.unit],
    )
    if changed != 1:
        raise ApplyError(f"{place.schema}.{place.name}: somebody else changed range {place.unit} in {schema}.{TABLE}. Start again")


def note_done(session: Session, cluster_id: int, schema: str, table: CopiedTable) -> int:
    """All ranges of the table are copied; the number of rows.

    Raises:
        ApplyError: the record does not say so, because the target has lost what it had committed.
    """
    found = lock_table(session, cluster_id, schema, (table.schema, table.name))
    if (state := found.state) is CopyState.DONE:
        return found.rows  # by a transaction whose answer was lost
    where = f"FROM {_table(schema)} WHERE cluster_id = %s AND table_schema = %s AND table_name = %s AND unit >= 0"
    values = [cluster_id, table.schema, table.name]
    ((count, left),) = session.query(f"SELECT COALESCE(SUM(copied), 0), COALESCE(SUM(state <> 'done'), 0) {where}", values)
    if int(left) or state is not CopyState.EMPTY:
        what = f"{left} ranges are not copied" if state is CopyState.EMPTY else f"its state is {state}"
        raise lost(f"{table.schema}.{table.name}: {what} in {schema}.{TABLE}, although all was copied")
    _forget_ranges(session, cluster_id, schema, table)
    set_state(session, cluster_id, schema, (table.schema, table.name), CopyState.DONE, int(count))
    return int(count)


def note_all_done(session: Session, cluster_id: int, schema: str, tables: Iterable[CopiedTable]) -> None:
    """Everything, ``tables`` among it, is copied.

    Raises:
        ApplyError: the record does not say so of each of them.
    """
    found = session.query(
        f"SELECT table_schema, table_name FROM {_table(schema)} WHERE cluster_id = %s AND unit = %s AND state = %s FOR UPDATE",
        [cluster_id, _WHOLE, str(CopyState.DONE)],
    )
    left = sorted({(t.schema, t.name) for t in tables} - set(found))
    if left:
        shown = ", ".join(f"{database}.{name}" for database, name in left[:5])
        raise lost(f"{shown}: {schema}.{TABLE} does not record this table as copied, although the copy has recorded it")
    set_state(session, cluster_id, schema, WHOLE, CopyState.DONE)


def note_joined(session: Session, cluster_id: int, schema: str) -> None:
    """The stream begins behind the copy.

    Raises:
        ApplyError: it is not recorded as done.
    """
    if lock_table(session, cluster_id, schema, WHOLE).state not in (CopyState.DONE, CopyState.JOINED):
        raise lost(f"{schema}.{TABLE} does not record the copy as done, although the copy has recorded it")
    set_state(session, cluster_id, schema, WHOLE, CopyState.JOINED)


def lost(words: str) -> ApplyError:
    """The error for a target that lacks what it has answered; ``words``: what it lacks."""
    return ApplyError(f"{words}: {_LOST}")


def counted_by_table(session: Session, cluster_id: int, schema: str) -> dict[tuple[str, str], int]:
    """The rows that are copied of each table that is not done yet."""
    sql = f"SELECT table_schema, table_name, SUM(copied) FROM {_table(schema)} WHERE cluster_id = %s AND unit >= 0 GROUP BY table_schema, table_name"
    return {(database, name): int(rows) for database, name, rows in session.query(sql, [cluster_id])}


def lock_table(session: Session, cluster_id: int, schema: str, name: tuple[str, str]) -> CopiedTable:
    """A table, or the ``WHOLE``, as it is recorded; its row is locked until this transaction ends."""
    found = session.query(f"SELECT state, copied, bounds, made FROM {_table(schema)} WHERE {_ONE} FOR UPDATE", [cluster_id, *name, _WHOLE])
    if not found:
        raise _gone(schema, name)
    ((state, rows, to, made),) = found
    return CopiedTable(*name, CopyState(state), int(rows), to or "", bool(made))


def _gone(schema: str, name: tuple[str, str]) -> ApplyError:
    return ApplyError(f"{'.'.join(name)}: its row in {schema}.{TABLE} is gone. Start with --bootstrap-restart")


def set_state(session: Session, cluster_id: int, schema: str, name: tuple[str, str], state: CopyState, rows: int | None = None) -> None:
    """Record how far a table, or the ``WHOLE``, is; ``rows``: how many were copied."""
    count = "" if rows is None else f", copied = {rows}"
    changed = session.execute(
        f"UPDATE {_table(schema)} SET state = %s, changed_at = NOW(6){count} WHERE {_ONE}", [str(state), cluster_id, *name, _WHOLE]
    )
    if changed != 1 and not session.query(f"SELECT 1 FROM {_table(schema)} WHERE {_ONE}", [cluster_id, *name, _WHOLE]):
        raise _gone(schema, name)


def set_made(session: Session, cluster_id: int, schema: str, table: CopiedTable, *, made: bool) -> None:
    """Record whether the copy makes the table: it is about to, or the target has refused it."""
    values = [int(made), cluster_id, table.schema, table.name, _WHOLE]
    session.execute(f"UPDATE {_table(schema)} SET made = %s, changed_at = NOW(3) WHERE {_ONE}", values)


def _forget_ranges(session: Session, cluster_id: int, schema: str, table: CopiedTable) -> None:
    where = "cluster_id = %s AND table_schema = %s AND table_name = %s AND unit >= 0"
    session.execute(f"DELETE FROM {_table(schema)} WHERE {where}", [cluster_id, table.schema, table.name])


def _insert(session: Session, schema: str, values: Sequence[Any]) -> None:
    columns = "(cluster_id, table_schema, table_name, unit, state, kind, snapshot_ts, bounds, after_key, copied, made, bytes, changed_at)"
    session.execute(f"INSERT INTO {_table(schema)} {columns} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 0, NOW(3))", values)


def _table(schema: str) -> str:
    return f"{quote_name(schema)}.{quote_name(TABLE)}"


_ONE = "cluster_id = %s AND table_schema = %s AND table_name = %s AND unit = %s"
