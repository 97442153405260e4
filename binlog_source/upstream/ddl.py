"""DDL jobs of the embedded upstream: what they change, the binlogs they write, what the history says of them.

Promises: a job changes the tables at once and is then *emitted*: its binlogs go through the Pumps like any transaction. ``emit=False`` leaves
that to the caller, so that rows of the new version can precede the binlog. The history shows a job ``history_lag`` seconds after.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from binlog_source.upstream import schema
from binlog_source.upstream.schema import Column, Json, Table
from binlog_source.upstream.tablestore import LiveTable
from schemas.ddl_tokens import quote_name
from schemas.jobs import DELETE_ONLY, STATE_SYNCED, JobType
from schemas.proto import binlog_pb2
from schemas.tableinfo import PUBLIC

if TYPE_CHECKING:
    from binlog_source.upstream.cluster import Upstream

STATE_ROLLBACK_DONE = 3
STATE_CANCELLED = 5


@dataclass(slots=True)
class Ddl:
    """One job and the binlogs it has still to write, by schema state."""

    upstream: "Upstream"
    job: Json
    text: str
    """``ddl_query`` of its binlogs."""
    states: list[int]

    @property
    def version(self) -> int:
        """The schema version at which the result is visible; 0 = the job failed."""
        return int(self.job["binlog"]["SchemaVersion"])

    def emit(self) -> "Ddl":
        """Write the binlogs that are left."""
        while self.states:
            self.emit_next()
        return self

    def emit_next(self, *, rolled_back: bool = False) -> int:
        """Write the next binlog; its commit_ts. ``rolled_back``: its transaction fails after the Prewrite, and the binlog is written again later."""
        state = self.states[0] if rolled_back else self.states.pop(0)
        upstream = self.upstream
        binlog = binlog_pb2.Binlog(
            tp=binlog_pb2.Prewrite, start_ts=upstream.oracle.next(), commit_ts=0, prewrite_key=b"mDDLJobList\x00%d" % self.job["id"]
        )
        binlog.ddl_query, binlog.ddl_job_id, binlog.ddl_schema_state = self.text.encode(), self.job["id"], state
        upstream.mvcc.lock(binlog.prewrite_key, binlog.start_ts)
        upstream.pumps.prewrite(binlog.start_ts, binlog.SerializeToString())
        if rolled_back:
            binlog.tp = binlog_pb2.Rollback
            upstream.mvcc.roll_back(binlog.prewrite_key, binlog.start_ts)
            upstream.pumps.roll_back(binlog.start_ts, binlog.SerializeToString())
        else:
            binlog.tp, binlog.commit_ts = binlog_pb2.Commit, upstream.oracle.next()
            self.job["binlog"]["FinishedTS"] = binlog.commit_ts
            upstream.mvcc.commit(binlog.prewrite_key, binlog.start_ts, binlog.commit_ts)
            upstream.pumps.commit(binlog.start_ts, binlog.SerializeToString())
        return binlog.commit_ts


class History:
    """The jobs that ``/ddl/history`` shows."""

    def __init__(self, lag: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lag = lag
        self._clock = clock
        self._jobs: list[tuple[float, Json]] = []

    def add(self, job: Json) -> None:
        """A job is finished; it shows after the lag."""
        self._jobs.append((self._clock() + self.lag, job))

    def visible(self) -> list[Json]:
        """The jobs that show now."""
        now = self._clock()
        return [job for since, job in self._jobs if since <= now]


class DdlRunner:
    """The DDL statements of an upstream. Every method returns the job; with ``emit=False`` its binlogs are still to be written."""

    def __init__(self, upstream: "Upstream") -> None:
        self._upstream = upstream

    def create_database(self, name: str, *, emit: bool = True) -> Ddl:
        """CREATE DATABASE."""
        with self._upstream.lock:
            schema_id = self._store.databases[name] = self._store.new_id()
            info = {
                "id": schema_id,
                "db_name": schema.name_json(name),
                "charset": schema.CHARSET,
                "collate": schema.COLLATION,
                "state": PUBLIC,
            }
            job = self._job(JobType.CREATE_SCHEMA, name, self._store.new_version(), f"create database {name}", db_info=info)
        return self._finish(job, f"CREATE DATABASE {quote_name(name)};", emit)

    def create_table(self, db: str, table: Table, *, emit: bool = True) -> Ddl:
        """CREATE TABLE."""
        with self._upstream.lock:
            version = self._store.new_version()
            live = self._store.add_table(db, schema.table_json(table, self._store.new_id()), version)
            job = self._job(JobType.CREATE_TABLE, db, version, table.text(), live)
        return self._finish(job, table.text(), emit)

    def drop_table(self, qualified: str, *, emit: bool = True) -> Ddl:
        """DROP TABLE."""
        with self._upstream.lock:
            live = self._store.table(qualified)
            del self._store.tables[live.id]
            job = self._job(JobType.DROP_TABLE, live.db, self._store.new_version(), f"drop table {live.name}", live)
        return self._finish(job, f"DROP TABLE {quote_name(live.name)};", emit, state=0)

    def truncate(self, qualified: str, *, emit: bool = True) -> Ddl:
        """TRUNCATE TABLE: the table gets a new id."""
        with self._upstream.lock:
            old = self._store.table(qualified)
            del self._store.tables[old.id]
            version = self._store.new_version()
            live = self._store.add_table(old.db, {**old.info, "id": self._store.new_id()}, version)
            job = self._job(JobType.TRUNCATE_TABLE, old.db, version, f"truncate table {old.name}", live) | {"table_id": old.id}
        return self._finish(job, f"TRUNCATE TABLE {quote_name(old.name)};", emit)

    def rename(self, qualified: str, new: str, *, emit: bool = True) -> Ddl:
        """RENAME TABLE to ``db.table``."""
        new_db, _, new_name = new.partition(".")
        with self._upstream.lock:
            live = self._store.table(qualified)
            old_db, old_name = live.db, live.name
            live.db = new_db
            version = self._store.new_version()
            self._store.alter(live, {**live.info, "name": schema.name_json(new_name)}, version)
            job = self._job(JobType.RENAME_TABLE, new_db, version, f"rename table {qualified} to {new}", live) | {"table_name": old_name}
        q = quote_name
        return self._finish(job, f"RENAME TABLE {q(old_db)}.{q(old_name)} TO {q(new_db)}.{q(new_name)};", emit)

    def add_column(self, qualified: str, column: Column, *, emit: bool = True) -> Ddl:
        """ALTER TABLE … ADD COLUMN, as the last one."""

        def change(live: LiveTable) -> Json:
            columns = live.info["cols"]
            fresh = schema.column_json(column, live.info["max_col_id"] + 1, len(columns), added=True)
            return schema.with_columns(live.info, [*columns, fresh])

        return self._alter(qualified, JobType.ADD_COLUMN, f"ADD COLUMN {column.text()}", change, emit)

    def modify_column(self, qualified: str, column: Column, *, convert: Callable[[Any], Any] | None = None, emit: bool = True) -> Ddl:
        """ALTER TABLE … MODIFY COLUMN. With ``convert`` the data change and the column gets a new id, else only its type changes."""

        def change(live: LiveTable) -> Json:
            columns = list(live.info["cols"])
            place = next(i for i, old in enumerate(columns) if old["name"]["O"] == column.name)
            old_id = columns[place]["id"]
            new_id = old_id if convert is None else live.info["max_col_id"] + 1
            fresh = schema.column_json(column, new_id, place)
            fresh["origin_default"] = columns[place]["origin_default"]
            fresh["type"]["Flag"] |= columns[place]["type"]["Flag"] & 2
            columns[place] = fresh
            if convert is not None:
                self._store.convert(live, old_id, new_id, convert)
            return schema.with_columns(live.info, columns)

        return self._alter(qualified, JobType.MODIFY_COLUMN, f"MODIFY COLUMN {column.text()}", change, emit)

    def drop_column(self, qualified: str, name: str, *, emit: bool = True) -> Ddl:
        """ALTER TABLE … DROP COLUMN: two schema versions and two binlogs, the first with schema state delete-only."""

        def hide(live: LiveTable) -> Json:
            kept = [c for c in live.info["cols"] if c["name"]["O"] != name]
            gone = [{**c, "state": DELETE_ONLY} for c in live.info["cols"] if c["name"]["O"] == name]
            return schema.with_columns(live.info, kept + gone)

        def drop(live: LiveTable) -> Json:
            return schema.with_columns(live.info, [c for c in live.info["cols"] if c["name"]["O"] != name])

        with self._upstream.lock:
            live = self._store.table(qualified)
            self._store.alter(live, hide(live), self._store.new_version())
        return self._alter(qualified, JobType.DROP_COLUMN, f"DROP COLUMN {quote_name(name)}", drop, emit, states=[DELETE_ONLY, 0])

    def failed(self, qualified: str, type_: int, query: str, *, state: int = STATE_ROLLBACK_DONE, emit: bool = True) -> Ddl:
        """A job that changed nothing (rolled back or cancelled): schema version 0, but with a binlog."""
        with self._upstream.lock:
            live = self._store.table(qualified)
            job = self._job(type_, live.db, 0, query, live) | {"state": state}
        return self._finish(job, query, emit, state=0)

    def _alter(
        self, qualified: str, type_: int, clause: str, change: Callable[[LiveTable], Json], emit: bool, states: list[int] | None = None
    ) -> Ddl:
        with self._upstream.lock:
            live = self._store.table(qualified)
            version = self._store.new_version()
            self._store.alter(live, change(live), version)
            text = f"ALTER TABLE {quote_name(live.name)} {clause};"
            job = self._job(type_, live.db, version, text, live)
        return self._finish(job, text, emit, states=states)

    def _finish(self, job: Json, text: str, emit: bool, *, state: int = PUBLIC, states: list[int] | None = None) -> Ddl:
        ddl = Ddl(self._upstream, job, text, states or [state])
        job["schema_state"] = ddl.states[-1]
        if emit:
            ddl.emit()
        with self._upstream.lock:
            self._upstream.history.add(job)
        return ddl

    def _job(self, type_: int, db: str, version: int, query: str, live: LiveTable | None = None, db_info: Json | None = None) -> Json:
        return {
            "id": self._store.new_id(),
            "type": int(type_),
            "schema_id": self._store.databases[db],
            "table_id": live.id if live is not None else 0,
            "schema_name": db,
            "table_name": live.name if live is not None else "",
            "state": STATE_SYNCED,
            "err": None,
            "err_count": 0,
            "row_count": 0,
            "raw_args": None,
            "schema_state": PUBLIC,
            "query": query,
            "binlog": {
                "SchemaVersion": version,
                "DBInfo": db_info,
                "TableInfo": live.info if live is not None else None,
                "FinishedTS": self._upstream.oracle.next(),
                "MultipleTableInfos": None,
            },
            "version": 1,
        }

    @property
    def _store(self) -> Any:
        return self._upstream.store
