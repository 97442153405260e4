"""A MariaDB that holds, at every timestamp, what the embedded upstream holds: it stands for TiDB's SQL port and its ``tidb_snapshot``.

Its tables are system-versioned. Transaction number n of the upstream is written as of second n, and ``mirror.commits`` says which commit_ts that is; so
a session that reads as of a second sees exactly one commit_ts, on any connection, in any process, as often as it likes.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.txn import Txn
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.bootstrap import snapshot_source as bootstrap
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Handle, Key
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import WantedTable, making
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES
from tests.support.eventually import eventually

EPOCH = "2001-01-01 00:00:00"
RANGE_ROWS = 7
"""Rows of a range, about."""
_GONE = "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 8055, MESSAGE_TEXT = 'snapshot is older than GC safe point'"


class MariaSnapshots(bootstrap.SnapshotSource):
    """Reads the mirror as ``SnapshotSource`` reads TiDB: only how a snapshot is taken, and how the schema at it is told, differ."""

    def servers(self) -> tuple[bootstrap.TidbServer, ...]:
        """One; a MariaDB that was dropped has none."""
        with self._connect() as session:
            return tuple(bootstrap.TidbServer(uuid, "10.0.0.1:4000", "On") for (uuid,) in session.query("SELECT id FROM mirror.server"))

    def tables(self, session: Session) -> tuple[tuple[str, str], ...]:
        """Those of the shapes that were there then."""
        found = session.query("SELECT table_schema, table_name, create_text FROM mirror.shapes WHERE commit_ts <= @ts ORDER BY commit_ts")
        last = {(schema, name): text for schema, name, text in found}
        return tuple(name for name, text in last.items() if text)

    def table_ids(self, session: Session) -> dict[tuple[str, str], int]:
        """Those of the shapes."""
        found = session.query("SELECT table_schema, table_name, table_id FROM mirror.shapes WHERE commit_ts <= @ts ORDER BY commit_ts")
        return {(schema.lower(), name.lower()): int(number) for schema, name, number in found}

    def columns(self, session: Session, table: TableAt) -> tuple[tuple[str, str], ...] | None:
        """As they were then."""
        found = self._shape(session, table)
        return tuple((name, kind) for name, kind in json.loads(found[0])) if found and found[1] else None

    def create_text(self, session: Session, table: TableAt) -> str:
        """TiDB's text."""
        found = self._shape(session, table)
        assert found is not None
        return found[1]

    @staticmethod
    def _shape(session: Session, table: TableAt) -> tuple[str, str] | None:
        rows = session.query(
            "SELECT columns_json, create_text FROM mirror.shapes WHERE table_schema = %s AND table_name = %s AND commit_ts <= @ts "
            "ORDER BY commit_ts DESC LIMIT 1",
            [table.schema, table.name],
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def _newest(self, session: Session) -> int:
        return int(session.query("SELECT ts FROM mirror.clock")[0][0])

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")
        eventually(lambda: self._newest(session) >= ts, seconds=60, what="the mirror at the snapshot")
        ((safe_point,),) = session.query("SELECT safe_point FROM mirror.clock")
        if safe_point > ts:
            session.execute(_GONE)
        ((number,),) = session.query("SELECT COALESCE(MAX(n), 0) FROM mirror.commits WHERE commit_ts <= %s", [ts])
        session.execute(f"SET @ts = {ts}")
        moment = datetime.fromisoformat(EPOCH) + timedelta(seconds=int(number), milliseconds=500)
        session.execute(f"SET SESSION system_versioning_asof = TIMESTAMP'{moment:%Y-%m-%d %H:%M:%S.%f}'")

    def _boundaries(self, session: Session, table: TableAt, handle: Handle, partition: str) -> list[Key]:
        asked, names = ", ".join(handle.expressions), ", ".join(handle.names)
        return self._keys(session, f"SELECT {asked} FROM {quote_name(table.schema)}.{quote_name(table.name)} ORDER BY {names}", handle)[
            ::RANGE_ROWS
        ]


class MirroredUpstream:
    """An embedded upstream and its MariaDB; every transaction goes to both, one after the other."""

    def __init__(self, upstream: Upstream, server: PrivateMariaDB) -> None:
        self.upstream = upstream
        self._connection = server.connect()
        self.server = server
        self.account = server.target()
        self._lock = threading.RLock()
        self._count = 0
        for statement in (
            "DROP DATABASE IF EXISTS mirror",
            "CREATE DATABASE mirror CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            "CREATE TABLE mirror.commits (commit_ts BIGINT PRIMARY KEY, n BIGINT NOT NULL)",
            "CREATE TABLE mirror.clock (ts BIGINT NOT NULL, safe_point BIGINT NOT NULL)",
            "CREATE TABLE mirror.shapes (commit_ts BIGINT, table_schema VARCHAR(64), table_name VARCHAR(64), columns_json TEXT, create_text TEXT, table_id BIGINT)",
            "INSERT INTO mirror.clock VALUES (0, 0)",
            "CREATE TABLE mirror.server (id VARCHAR(64)) AS SELECT 'the-mirror' AS id",
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'",
            "SET SESSION system_versioning_alter_history = KEEP",
        ):
            self.sql(statement)
        self._databases: set[str] = set()

    def close(self) -> None:
        """Drop its databases."""
        for name in (*self._databases, "mirror"):
            self.sql(f"DROP DATABASE IF EXISTS {name}")
        self._connection.close()

    def reader(self, broadcast: Callable[[bytes], Any]) -> MariaSnapshots:
        """What a bootstrap reads."""
        return MariaSnapshots(ShippedTarget.of(self.account, broadcast))

    def sql(self, statement: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement on the mirror."""
        with self._lock, self._connection.cursor() as cursor:
            cursor.execute(statement, args)
            return list(cursor.fetchall())

    def create_database(self, name: str) -> None:
        """In both."""
        with self._lock:
            self.upstream.ddl.create_database(name)
            self.sql(f"DROP DATABASE IF EXISTS {name}")
            self.sql(f"CREATE DATABASE {name}")
            self._databases.add(name)
            self.tick()

    def create_table(self, schema: str, table: Table) -> None:
        """In both; without a clustered key the mirror has an invisible ``_tidb_rowid``."""
        with self._lock:
            self.upstream.ddl.create_table(schema, table)
            history = self._history()
            found = history.find(schema, table.name, history.newest_version)
            assert found is not None
            wanted = WantedTable(found, found, table.text(), None)
            self.sql(f"USE {schema}")
            name = f"{schema}.{table.name}"
            self.sql(f"DROP TABLE IF EXISTS {name}")
            self.sql(rewrite(making(wanted, NO_ROUTES), Dialect(Flavour.MARIADB), restored=False).sql)
            if not found.info.handle_columns():
                self.sql(f"ALTER TABLE {name} ADD COLUMN {bootstrap.ROWID} BIGINT NULL INVISIBLE, ADD KEY ({bootstrap.ROWID})")
            self.sql(f"ALTER TABLE {name} ADD SYSTEM VERSIONING")
            self._note_shape(found, table.text())

    def add_column(self, table: str, column: Column) -> None:
        """In both."""
        with self._lock:
            self.upstream.ddl.add_column(table, column)
            self.alter(table, f"ADD COLUMN {column.text()}")

    def alter(self, table: str, clauses: str) -> None:
        """The mirror only, after the upstream."""
        with self._lock:
            self.sql(f"ALTER TABLE {table} {clauses}")
            schema, name = table.split(".")
            history = self._history()
            found = history.find(schema, name, history.newest_version)
            assert found is not None
            self._note_shape(found, "altered")

    def drop_table(self, table: str) -> None:
        """In both; the mirror keeps what was there."""
        with self._lock:
            self.upstream.ddl.drop_table(table)
            self.note_dropped(table)

    def note_dropped(self, table: str) -> None:
        """There is no such table from now on."""
        schema, name = table.split(".")
        ts = self.upstream.oracle.next()
        self.sql("INSERT INTO mirror.shapes VALUES (%s, %s, %s, '[]', '', 0)", [ts, schema, name])
        self.tick()

    def _note_shape(self, table: TableAt, text: str) -> None:
        columns = [(c.name, column_type(c).lower()) for c in table.info.public_columns() if not c.hidden]
        ts = self.upstream.oracle.next()
        self.sql(
            "INSERT INTO mirror.shapes VALUES (%s, %s, %s, %s, %s, %s)",
            [ts, table.schema, table.name, json.dumps(columns), text, table.table_id],
        )
        self.tick()

    def _history(self) -> SchemaHistory:
        return SchemaHistory.of(JobReader().read(self.upstream.jobs()))

    def tick(self) -> int:
        """The clock goes on."""
        with self._lock:
            ts = self.upstream.oracle.next()
            self.sql("UPDATE mirror.clock SET ts = %s", [ts])
            return ts

    def collect(self, safe_point: int) -> None:
        """GC passes ``safe_point``."""
        self.sql("UPDATE mirror.clock SET safe_point = %s", [safe_point])

    def change(self, work: Callable[[Txn], object]) -> int:
        """One transaction in both; its commit_ts."""
        with self._lock:
            txn = self.upstream.begin()
            work(txn)
            changed = list(txn._changes)
            names = {live.id: f"{live.db}.{live.name}" for live in self.upstream.store.tables.values()}
            ts = txn.commit()
            with self._as_of_next(ts):
                for table_id, handle in changed:
                    self._put(names[table_id], handle)
            return ts

    @contextmanager
    def _as_of_next(self, ts: int) -> Iterator[None]:
        self._count += 1
        self.sql(f"SET @@timestamp = UNIX_TIMESTAMP('{EPOCH}') + {self._count}")
        self.sql("BEGIN")
        yield
        self.sql("INSERT INTO mirror.commits VALUES (%s, %s)", [ts, self._count])
        self.sql("UPDATE mirror.clock SET ts = %s", [ts])
        self.sql("COMMIT")
        self.sql("SET @@timestamp = DEFAULT")

    def _put(self, name: str, handle: Any) -> None:
        history = self._history()
        found = history.find(*name.split("."), history.newest_version)
        assert found is not None
        columns = found.info.handle_columns()
        keys = [quote_name(c.name) for c in columns] or [bootstrap.ROWID]
        values = list(handle) if isinstance(handle, tuple) else [handle]
        self.sql(f"DELETE FROM {name} WHERE " + " AND ".join(f"{key} = %s" for key in keys), values)
        row = self.upstream.rows(name).get(handle)
        if row is None:
            return
        cells = {quote_name(c): json.dumps(v) if isinstance(v, dict | list) else v for c, v in row.items()}
        if not columns:
            cells[bootstrap.ROWID] = handle
        self.sql(f"INSERT INTO {name} ({', '.join(cells)}) VALUES ({', '.join(['%s'] * len(cells))})", list(cells.values()))
