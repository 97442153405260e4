"""An upstream with DDLs whose tables can be read at every commit_ts: the emulator's history, and a MariaDB that holds the versions that are asked for.

``MirroredUpstream`` does not version DDLs. Here each version of a table is a table of its own, made when a snapshot needs it, and a session at S reads
``db.name`` as the version of S.
"""

import json
import pickle
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.emulator.online import add_column, add_index, drop_column, drop_index
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.emulator.workload import ARCHIVE, DATABASE, DdlMix, WorkloadConfig, WorkloadSession, create_tables
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import TableName, TargetTable, read_tables
from tests.support.fakes.written import Written

VERSIONS = "versions"
"""The database of all versions."""
DATABASES = (DATABASE, ARCHIVE)


@dataclass(frozen=True)
class Version:
    """A table between two changes."""

    number: int
    table_id: int
    info: TableInfo
    rows: tuple[Mapping[str, Any], ...]


class Ddls(DdlMix):
    """DDLs of more kinds, some of them with transactions between their states."""

    def __init__(
        self, history: "VersionedHistory", sessions: list[WorkloadSession], config: WorkloadConfig, tables: tuple[str, ...]
    ) -> None:
        super().__init__(history.upstream, sessions, config, tables)
        self._history = history
        self._keys: list[tuple[str, str]] = []

    def step(self) -> None:
        """Run one DDL."""
        more: list[Callable[[], None]] = [self._key, self._slow_column]
        if self._keys:
            more.append(self._drop_key)
        if self._scratch:
            more += [self._again, self._swap]
        if self._random.random() < 0.5:
            self._random.choice(more)()
        else:
            super().step()
        self._keys = [(table, key) for table, key in self._keys if table in (*self._tables, *self._scratch)]

    def _key(self) -> None:
        table = self._random.choice(self._tables)
        (column, *_) = self._plain(table)
        self._keys.append((table, name := f"k{self._number()}"))
        self._slowly(table, add_index(name, column))

    def _drop_key(self) -> None:
        table, name = self._keys.pop(self._random.randrange(len(self._keys)))
        self._slowly(table, drop_index(name))

    def _slow_column(self) -> None:
        table, name = self._random.choice(self._tables), f"c{self._number()}"
        self._slowly(table, add_column(Column(name, "int", default=5), self._random.choice([None, ""])))
        if self._random.random() < 0.5:
            self._slowly(table, drop_column(name))
        else:
            self._extra.setdefault(table, {})[name] = "int"

    def _plain(self, table: str) -> list[str]:
        live = self._upstream.store.table(table)
        names = [c.name for c in live.at(self._upstream.schema_version).public_columns()]
        return self._random.sample([n for n in names if n in ("name", "n", "weight", "state", "kind", "id", "word")] or names[:1], 1)

    def _slowly(self, table: str, change: Any) -> None:
        ddl = self._upstream.ddl.start(table, change)
        while not ddl.done:
            ddl.advance()
            self._history.note()
            if not ddl.done and self._random.random() < 0.7:
                self._history.transaction()

    def _again(self) -> None:
        """The same name, with other columns."""
        table = self._random.choice(self._scratch)
        self._upstream.ddl.drop_table(table)
        self._history.note()
        self._extra.pop(table, None)
        database, _, name = table.partition(".")
        self._upstream.ddl.create_table(database, Table(name, (Column("id", "bigint", not_null=True), Column("z", "varchar(9)")), ("id",)))
        for session in self._sessions:
            session.truncated(table)

    def _swap(self) -> None:
        """Two tables swap their names."""
        if len(self._scratch) < 2:
            return
        one, other = self._random.sample(self._scratch, 2)
        way = f"{DATABASE}.way_{self._number()}"
        for old, new in ((one, way), (other, one), (way, other)):
            self._upstream.ddl.rename(old, new)
            self._history.note()
            for session in self._sessions:
                session.renamed(old, new)
            self._extra[new] = self._extra.pop(old, {})


class VersionedHistory:
    """A random history, of which each state is known."""

    def __init__(self, seed: str) -> None:
        self.written = Written()
        self.upstream = Upstream(self.written)
        self.after_ts = self.upstream.oracle.next()
        self.states: list[tuple[int, Mapping[TableName, Version]]] = [(self.after_ts, {})]
        self.ddls = self.transactions = 0
        self._seen = self._made = 0
        self._chance = random.Random(seed)
        config = WorkloadConfig(seed=self._chance.getrandbits(30), sessions=2)
        tables = create_tables(self.upstream)
        self._sessions = [WorkloadSession(self.upstream, n, config, tables) for n in range(config.sessions)]
        self._ddls = Ddls(self, self._sessions, config, tables)
        self.note()
        self.ends = [self.upstream.oracle.next()]
        """Of batches."""

    def extend(self, batches: int) -> None:
        """So many batches more."""
        for _ in range(batches):
            for _ in range(self._chance.choice((1, 2, 3, 5, 8))):
                if self._chance.random() < 0.12:
                    self._ddls.step()
                    self.note()
                    self.ddls += 1
                else:
                    self.transaction()
            self.ends.append(self.upstream.oracle.next())

    def transaction(self) -> None:
        self._chance.choice(self._sessions).transaction()
        self.transactions += 1
        self.note()

    def note(self) -> None:
        """The upstream is as it is since the last binlog that was committed."""
        fresh = [binlog_pb2.Binlog.FromString(payload) for payload in self.written.payloads[self._seen :]]
        self._seen = len(self.written.payloads)
        ts = max((one.commit_ts for one in fresh if one.tp == binlog_pb2.Commit), default=0) or self.upstream.oracle.next()
        before = {version.table_id: version for version in self.states[-1][1].values()}
        state = dict[TableName, Version]()
        for live in self.upstream.store.tables.values():
            info, rows = live.at(self.upstream.schema_version), tuple(self.upstream.rows(f"{live.db}.{live.name}").values())
            known = before.get(live.id)
            if known is None or known.info is not info or known.rows != rows:
                self._made += 1
                known = Version(self._made, live.id, info, rows)
            state[live.db, live.name] = known
        self.states.append((ts, state))

    def at(self, ts: int) -> Mapping[TableName, Version]:
        """What there was at ``ts``."""
        return next(state for since, state in reversed(self.states) if since <= ts)

    def written_to(self, file: Path) -> None:
        """All there is for a process that applies it."""
        jobs = file.with_suffix(".jobs.tmp")
        jobs.write_text(json.dumps(self.upstream.jobs()))
        jobs.rename(file.with_suffix(".jobs"))
        commits = [(b.start_ts, b.commit_ts, b.SerializeToString()) for b in self.written.commits()]
        file.write_bytes(pickle.dumps((self.after_ts, commits, self.ends)))


class VersionSession(Session):
    """Reads each table as one of its versions."""

    names: Mapping[bytes, bytes]
    there: Mapping[TableName, Version]

    def _as_then(self, sql: bytes | str) -> bytes | str:
        text = sql if isinstance(sql, bytes) else sql.encode()
        found = re.sub(rb"FROM (`\w+`\.`\w+`)", lambda m: b"FROM " + self.names.get(m[1], m[1]), text)
        return found if isinstance(sql, bytes) else found.decode()

    def query(self, sql: str | bytes, args: Any = None) -> list[tuple[Any, ...]]:
        return super().query(self._as_then(sql), args)

    def stream(self, sql: bytes | str) -> AbstractContextManager[Iterator[Any]]:
        return super().stream(self._as_then(sql))


@dataclass
class VersionedSnapshots(SnapshotSource):
    """The snapshots of a history."""

    server: PrivateMariaDB
    history: VersionedHistory
    _made: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        SnapshotSource.__init__(self, ShippedTarget.of(self.server.target(), Here))
        self._connection = self.server.connect()
        self._session = connect(self.server.target(), ApplyConfig())
        for sql in (
            f"CREATE OR REPLACE DATABASE {VERSIONS}",
            f"USE {VERSIONS}",
            "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'",
        ):
            self._sql(sql)
        self._sql("SET SESSION time_zone = '+00:00', foreign_key_checks = 0")

    def _sql(self, sql: str, rows: list[list[Any]] | None = None) -> None:
        with self._connection.cursor() as cursor:
            if rows is None:
                cursor.execute(sql)
            else:
                cursor.executemany(sql, rows)

    def table_ids(self, session: Session) -> dict[tuple[str, str], int]:
        assert isinstance(session, VersionSession)
        return {(db.lower(), name.lower()): version.table_id for (db, name), version in session.there.items()}

    def _open_at(self, ts: int) -> Session:
        there = self.history.at(ts)
        for version in there.values():
            self._make(version)
        session = self._connect()
        session.__class__ = VersionSession
        assert isinstance(session, VersionSession)
        session.execute("SET SESSION autocommit = 1")
        session.there = there
        session.names = {table_name(*name).encode(): table_name(VERSIONS, f"v{version.number}").encode() for name, version in there.items()}
        return session

    def _make(self, version: Version) -> None:
        if version.number in self._made:
            return
        info = replace(version.info, name=f"v{version.number}")
        self._sql(create_table(VERSIONS, info, dialect_of(self._session, ApplyConfig())).sql)
        names = [c.name for c in info.target_columns()]
        if version.rows:
            places = ", ".join(["%s"] * len(names))
            cells = [[json.dumps(v) if isinstance(v := row[name], dict | list) else v for name in names] for row in version.rows]
            self._sql("BEGIN")
            self._sql(f"INSERT INTO {quote_name(info.name)} ({', '.join(map(quote_name, names))}) VALUES ({places})", cells)
            self._sql("COMMIT")
        self._made.add(version.number)


def names_then(session: Session, filters: Any) -> dict[TableName, int]:
    """In place of ``verification.upstream_names``."""
    assert isinstance(session, VersionSession)
    return {name: len(version.rows) for name, version in sorted(session.there.items())}


def tables_then(session: Session, names: Any) -> dict[TableName, TargetTable]:
    """In place of ``verification.read_tables``."""
    if not isinstance(session, VersionSession):
        return read_tables(session, names)
    there = {(VERSIONS, f"v{session.there[name].number}"): name for name in names if name in session.there}
    found = read_tables(session, list(there))
    return {there[key]: replace(table, schema=there[key][0], name=there[key][1]) for key, table in found.items()}
