"""A mixed, seeded workload for the embedded upstream, for demo, lag benchmark and tests.

The tables have an integer, an unsigned, a composite or a string clustered key, unique keys, a non-clustered key, or no key. The workload writes inserts,
updates (also of keys), deletes, transactions over several tables, rollbacks, and occasionally a DDL.

Promises: the same seed and the same counts give the same content, whatever the timing: each ``WorkloadSession`` draws from its own
generator and changes only its own rows, and DDLs run only between rounds, when every session is idle. No threads and no clock here.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.tablestore import Handle
from pyspark_tidb_binlog.jobs.lab.emulator.txn import Txn, prewrite_together
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.emulator.values import EVERY_TYPE, INT_BITS, Draw, draw_of
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

DATABASE = "demo"
ARCHIVE = "demo_archive"
"""The database into which tables may be renamed."""
PROBE = f"{DATABASE}.probe"
"""The table whose rows measure the lag: no session writes to it."""
ORDERS = f"{DATABASE}.orders"
"""The table that a person looks at: sessions write to it, and no DDL changes it."""

_ID = Column("id", "bigint", not_null=True)
_PAYLOAD = (
    Column("name", "varchar(40)"),
    Column("amount", "decimal(12,2)"),
    Column("created", "datetime(3)"),
    Column("flags", "set('red','green','blue')"),
    Column("body", "varbinary(60)"),
)
_TABLES = (
    Table("account", (_ID, Column("email", "varchar(60)"), *_PAYLOAD, Column("doc", "json")), ("id",), unique=(("email",),)),
    Table("counter", (Column("id", "bigint unsigned", not_null=True), Column("n", "int"), Column("seen", "timestamp(6)")), ("id",)),
    Table("member", (Column("team", "int", not_null=True), Column("login", "varchar(40)", not_null=True), *_PAYLOAD), ("team", "login")),
    Table("word", (Column("word", "varchar(60)", not_null=True), Column("weight", "double"), Column("day", "date")), ("word",)),
    Table("ticket", (_ID, Column("code", "varchar(60)"), Column("state", "enum('open','done')")), ("id",), False, (("code",),)),
    Table("event", (Column("kind", "int"), Column("text", "varchar(20)"))),
    Table(
        "orders",
        (
            _ID,
            Column("customer", "enum('Ada','Bo','Chen','Dora')", not_null=True),
            Column("item", "enum('cake','coffee','soup','tea')", not_null=True),
            Column("status", "enum('new','paid','sent')", not_null=True),
            Column("total", "decimal(8,2) unsigned", not_null=True),
        ),
        ("id",),
    ),
    Table("everything", (_ID, *(Column(f"v{number}", kind) for number, kind in enumerate(EVERY_TYPE))), ("id",)),
)
_PROBE_TABLE = Table("probe", (_ID,), ("id",))
_SCRATCH = (
    Table("", (_ID, Column("v", "varchar(20)"), Column("n", "int")), ("id",)),
    Table("", (Column("k", "varchar(30)", not_null=True), Column("n", "int")), ("k",)),
    Table("", (Column("n", "int"), Column("v", "varchar(20)"))),
)
_ADDED = (
    ("int", 7),
    ("bigint unsigned", None),
    ("varchar(30)", "it's"),
    ("decimal(10,3)", "1.500"),
    ("datetime", "2026-01-02 03:04:05"),
    ("varchar(20)", None),
)
_CROWD = 50
"""Number of values of the first column of a composite key."""


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """What is written, and how fast."""

    seed: int = 1
    rate: float = 200.0
    """Transactions per second over all sessions; 0 = as fast as possible."""
    sessions: int = 8
    """Concurrent transactions."""
    gather: float = 0.005
    """Seconds for which outcomes are gathered to go to a Pump in one call. The Prewrites of all sessions go together."""
    write_timeout: float = 15.0
    """Seconds to wait for a Pump's answer before another one is tried (``PumpClientSettings``)."""
    ddl_every: int = 300
    """Transactions between two DDLs; 0 = no DDL after the first tables."""
    probe_interval: float = 0.1
    """Seconds between two probe rows; 0 = none."""


def create_tables(upstream: Upstream) -> tuple[str, ...]:
    """Create the databases and the tables; the names of the tables that sessions write to."""
    for database in (DATABASE, ARCHIVE):
        upstream.ddl.create_database(database)
    for table in (*_TABLES, _PROBE_TABLE):
        upstream.ddl.create_table(DATABASE, table)
    return tuple(f"{DATABASE}.{table.name}" for table in _TABLES)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a session needs to know about a table to write to it."""

    info: TableInfo
    columns: tuple[tuple[str, Draw], ...]
    keys: tuple[tuple[ColumnInfo, ...], ...]
    plain: tuple[tuple[str, Draw], ...]
    """The columns that are in no key."""
    carried: tuple[str, ...]
    """The columns of unique keys that are not in the handle."""

    @classmethod
    def of(cls, info: TableInfo) -> "_Shape":
        keys = info.unique_keys() or ((),)
        keyed = {column.name for key in keys for column in key}
        handle = {column.name for column in info.handle_columns()}
        columns = tuple((column.name, draw_of(column)) for column in info.public_columns())
        return cls(info, columns, keys, tuple(c for c in columns if c[0] not in keyed), tuple(sorted(keyed - handle)))


@dataclass(slots=True)
class _Draft:
    """A transaction, the rows that it took from its session, and those that exist after its commit."""

    txn: Txn
    kept: bool = True
    """Whether it is committed."""
    taken: list[tuple[str, Handle]] = field(default_factory=list)
    left: list[tuple[str, Handle]] = field(default_factory=list)


class WorkloadSession:
    """One session of the upstream, with rows of its own; used by one thread at a time."""

    def __init__(self, upstream: Upstream, number: int, config: WorkloadConfig, tables: Sequence[str]) -> None:
        """Session ``number`` of the ``config.sessions`` concurrent ones, writing to ``tables``."""
        self._upstream = upstream
        self._random = random.Random(f"{config.seed}/{number}")
        self._number, self._stride = number, config.sessions
        self._drawn = 0
        self._shapes: dict[str, _Shape] = {}
        self._rows: dict[str, list[Handle]] = {table: [] for table in tables}
        self.transactions = self.changes = self.commit_ts = 0

    def transaction(self) -> None:
        """Write one transaction."""
        write_together([self])

    def begun(self) -> _Draft:
        """A transaction with its changes, not written yet."""
        draft = _Draft(self._upstream.begin())
        for _ in range(self._random.choice((1, 1, 2, 3, 5))):
            self._change(draft)
        draft.kept = self._random.random() >= 0.03
        return draft

    def end(self, draft: _Draft) -> None:
        """Commit a transaction whose Prewrite is written; a few are rolled back."""
        if not draft.kept:
            draft.txn.rollback()
            self._give_back(draft.taken)
            return
        self.commit_ts = max(self.commit_ts, draft.txn.commit())
        self._give_back(draft.left)
        self.transactions += 1
        self.changes += draft.txn.row_changes

    def removed(self, table: str, handles: Collection[Handle]) -> None:
        """Somebody else has removed rows."""
        self._rows[table] = [handle for handle in self._rows[table] if handle not in handles]

    def added(self, table: str) -> None:
        """A table was created."""
        self._rows[table] = []

    def dropped(self, table: str) -> None:
        """A table was dropped."""
        del self._rows[table]

    def truncated(self, table: str) -> None:
        """A table was truncated."""
        self._rows[table] = []

    def renamed(self, old: str, new: str) -> None:
        """A table was renamed."""
        self._rows[new] = self._rows.pop(old)

    def _change(self, draft: _Draft) -> None:
        txn = draft.txn
        table = self._random.choice(list(self._rows))
        shape = self._shape(table)
        own, action = self._rows[table], self._random.random()
        if len(own) < 5 or action < 0.42:
            handle = txn.insert(table, self._fresh_row(shape))
            if self._random.random() < 0.05:
                handle = txn.update(table, handle, self._changed(shape))
            draft.left.append((table, handle))
            return
        handle = self._take(own)
        draft.taken.append((table, handle))
        if action < 0.82:
            draft.left.append((table, txn.update(table, handle, self._changed(shape))))
            return
        values = txn_row(self._upstream, table, handle)
        txn.delete(table, handle)
        if action > 0.95:
            # another row takes over the unique keys of the deleted one
            kept = {name: values[name] for name in shape.carried}
            draft.left.append((table, txn.insert(table, self._fresh_row(shape) | kept)))

    def _take(self, own: list[Handle]) -> Handle:
        place = self._random.randrange(len(own))
        own[place], own[-1] = own[-1], own[place]
        return own.pop()

    def _give_back(self, rows: Sequence[tuple[str, Handle]]) -> None:
        for table, handle in rows:
            self._rows[table].append(handle)

    def _shape(self, table: str) -> _Shape:
        with self._upstream.lock:
            info = self._upstream.store.table(table).at(self._upstream.schema_version)
        shape = self._shapes.get(table)
        if shape is None or shape.info is not info:
            shape = self._shapes[table] = _Shape.of(info)
        return shape

    def _fresh_row(self, shape: _Shape) -> dict[str, Any]:
        row = {name: draw(self._random) for name, draw in shape.columns}
        for key in shape.keys:
            row |= self._fresh_key(key)
        return row

    def _changed(self, shape: _Shape) -> dict[str, Any]:
        """New values of some columns that are in no key; sometimes a new key, too."""
        chosen = self._random.sample(shape.plain, self._random.randint(min(1, len(shape.plain)), len(shape.plain)))
        values = {name: draw(self._random) for name, draw in chosen}
        if self._random.random() < 0.15:
            values |= self._fresh_key(self._random.choice(shape.keys))
        return values

    def _fresh_key(self, key: tuple[ColumnInfo, ...]) -> dict[str, Any]:
        """Values that no row has or had."""
        self._drawn += 1
        number = self._drawn * self._stride + self._number
        values: dict[str, Any] = {}
        for place, column in enumerate(key):
            part = number % _CROWD if place == 0 and len(key) > 1 else number
            if column.tp in INT_BITS:
                values[column.name] = part + (1 << 63 if column.unsigned else 0)
            else:
                values[column.name] = f"{column.name}-{part}"
        return values


def write_together(sessions: Sequence[WorkloadSession]) -> None:
    """A transaction of each session, all begun before any is committed. ``PumpUnavailable`` if no Pump took one of them."""
    drafts = [session.begun() for session in sessions]
    refused = prewrite_together([draft.txn for draft in drafts])
    for session, draft in zip(sessions, drafts, strict=True):
        if not draft.txn.over:
            session.end(draft)
    if refused is not None:
        raise refused


def txn_row(upstream: Upstream, table: str, handle: Handle) -> dict[str, Any]:
    """One committed row by column name."""
    with upstream.lock:
        live = upstream.store.table(table)
        row = live.completed(live.rows[handle])
        return {c.name: row[c.id] for c in live.at(upstream.schema_version).public_columns()}


class DdlMix:
    """Draws DDLs and updates the sessions' tables accordingly. Call it only while every session is idle."""

    def __init__(self, upstream: Upstream, sessions: Sequence[WorkloadSession], config: WorkloadConfig, tables: Sequence[str]) -> None:
        """``tables`` but ``ORDERS`` may be altered; those created here may also be truncated, renamed and dropped."""
        self._upstream, self._sessions = upstream, sessions
        self._random = random.Random(f"{config.seed}/ddl")
        self._tables = [table for table in tables if table != ORDERS]
        self._scratch: list[str] = []
        self._extra: dict[str, dict[str, str]] = {}
        """Table -> the columns added here, with their types."""
        self._drawn = 0
        self.done = 0

    def step(self) -> None:
        """Run one DDL."""
        actions: list[Callable[[], None]] = [self._add_column, self._add_column]
        if len(self._scratch) < 4:
            actions += [self._create] * 2
        if self._scratch:
            actions += [self._truncate, self._rename]
        if len(self._scratch) > 2:
            actions.append(self._drop)
        if any(self._extra.values()):
            actions += [self._drop_column, self._modify_column]
        self._random.choice(actions)()
        self.done += 1

    def _number(self) -> int:
        self._drawn += 1
        return self._drawn

    def _create(self) -> None:
        shape = self._random.choice(_SCRATCH)
        name = f"scratch_{self._number()}"
        self._upstream.ddl.create_table(DATABASE, Table(name, shape.columns, shape.primary_key))
        self._scratch.append(f"{DATABASE}.{name}")
        for session in self._sessions:
            session.added(f"{DATABASE}.{name}")

    def _drop(self) -> None:
        table = self._scratch.pop(self._random.randrange(len(self._scratch)))
        self._upstream.ddl.drop_table(table)
        self._extra.pop(table, None)
        for session in self._sessions:
            session.dropped(table)

    def _truncate(self) -> None:
        table = self._random.choice(self._scratch)
        self._upstream.ddl.truncate(table)
        for session in self._sessions:
            session.truncated(table)

    def _rename(self) -> None:
        place = self._random.randrange(len(self._scratch))
        old, new = self._scratch[place], f"{self._random.choice((DATABASE, ARCHIVE))}.renamed_{self._number()}"
        self._upstream.ddl.rename(old, new)
        self._scratch[place] = new
        self._extra[new] = self._extra.pop(old, {})
        for session in self._sessions:
            session.renamed(old, new)

    def _add_column(self) -> None:
        table = self._random.choice([*self._tables, *self._scratch])
        kind, default = self._random.choice(_ADDED)
        name = f"c{self._number()}"
        not_null = default is not None and self._random.random() < 0.5
        self._upstream.ddl.add_column(table, Column(name, kind, not_null, default))
        self._extra.setdefault(table, {})[name] = kind

    def _drop_column(self) -> None:
        table, name = self._some_extra()
        self._upstream.ddl.drop_column(table, name)
        del self._extra[table][name]

    def _modify_column(self) -> None:
        """Widen a text column, or convert a number to text, which changes the data, too."""
        table, name = self._some_extra()
        kind = self._extra[table][name]
        if kind in ("int", "bigint unsigned"):
            self._upstream.ddl.modify_column(table, Column(name, "varchar(40)"), convert=_text_or_none)
            self._extra[table][name] = "varchar(40)"
        elif kind.startswith("varchar"):
            size = int(kind[8:-1]) + 10
            self._upstream.ddl.modify_column(table, Column(name, f"varchar({size})"))
            self._extra[table][name] = f"varchar({size})"
        else:
            self._drop_column()

    def _some_extra(self) -> tuple[str, str]:
        return self._random.choice([(table, name) for table, names in self._extra.items() for name in names])


def _text_or_none(value: int | None) -> str | None:
    return None if value is None else str(value)
