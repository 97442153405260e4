"""DDL jobs of the embedded upstream: what they change, the binlogs they write, their entries in the history.

Promises: a job changes the tables, an ALTER state by state (``online``), and is *emitted*: its binlogs go through the Pumps like any transaction. With
``emit=False`` the caller emits, so that rows of the new version can precede the binlog. The history shows a job ``History.lag`` seconds after its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_tidb_binlog.jobs.lab.emulator import online, schema
from pyspark_tidb_binlog.jobs.lab.emulator.meta import MetaChange
from pyspark_tidb_binlog.jobs.lab.emulator.online import Change, Step
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Json, Table
from pyspark_tidb_binlog.jobs.lab.emulator.tablestore import LiveTable
from pyspark_tidb_binlog.jobs.lab.emulator.upstream_state import UpstreamState
from pyspark_tidb_binlog.schemas.ddl_jobs import STATE_SYNCED, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC

STATE_ROLLBACK_DONE = 3


@dataclass(frozen=True, slots=True)
class JobStage:
    """One schema version of a job."""

    apply: Callable[[], Json]
    """Prepares the rows and returns the table's next info."""
    live: LiveTable
    binlog: int | None
    """Schema state of the binlog written with this stage; None = no binlog."""
    changes: tuple[int, ...]
    """The numbers of the statement's changes that take a step."""


@dataclass(slots=True)
class Ddl:
    """One job, with the schema states and the binlogs that are still to come."""

    upstream: UpstreamState
    job: Json
    text: str
    """``ddl_query`` of its binlogs."""
    states: list[int]
    """Schema states of the binlogs that are due."""
    stages: list[JobStage] = field(default_factory=list)
    """Schema versions to come."""
    versions: list[int] = field(default_factory=list)
    """Schema versions so far, one for each state."""
    unwritten: list[MetaChange] = field(default_factory=list)
    """Schema versions that commit with the next binlog."""

    @property
    def version(self) -> int:
        """The schema version at which the result is visible; 0 = the job failed, or is not done."""
        return int(self.job["binlog"]["SchemaVersion"])

    @property
    def done(self) -> bool:
        """Whether the job has passed every state."""
        return not self.stages

    def advance(self, *, emit: bool = True) -> int:
        """Go to the next schema state and return its version. The history shows the job after the last state."""
        stage = self.stages.pop(0)
        with self.upstream.lock:
            store = self.upstream.store
            live, schema_id = stage.live, store.databases[stage.live.db]
            live.alter(stage.apply(), version := store.new_version())
            self.versions.append(version)
            self.unwritten.append(MetaChange(version, self.job["type"], schema_id, live.id, tables={(schema_id, live.id): live.info}))
            for place, number in enumerate(stage.changes if "multi_schema_info" in self.job else ()):
                self.job["multi_schema_info"]["sub_jobs"][number]["schema_version"] = 0 if place else version
            if self.done:
                self.job["binlog"] |= {"SchemaVersion": version, "TableInfo": stage.live.info, "FinishedTS": self.upstream.oracle.next()}
        if stage.binlog is not None:
            self.states.append(stage.binlog)
            self.job["schema_state"] = stage.binlog
        else:
            self._write_schema(self.upstream.oracle.next(), self.upstream.oracle.next())
        if emit:
            self.emit()
        if self.done:
            with self.upstream.lock:
                self.upstream.history.add(self.job)
        return version

    def _write_schema(self, start_ts: int, commit_ts: int) -> None:
        self.upstream.write_schema(self.unwritten, start_ts, commit_ts)
        self.unwritten.clear()

    def emit(self) -> "Ddl":
        """Write the remaining binlogs."""
        while self.states:
            self.emit_next()
        return self

    def emit_next(self, *, rolled_back: bool = False) -> int:
        """Write the next binlog and return its commit_ts. ``rolled_back``: its transaction fails after the Prewrite; it is then retried."""
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
            upstream.pumps.outcome(binlog.start_ts, binlog.SerializeToString())
        else:
            binlog.tp, binlog.commit_ts = binlog_pb2.Commit, upstream.oracle.next()
            self.job["binlog"]["FinishedTS"] = binlog.commit_ts
            self._write_schema(binlog.start_ts, binlog.commit_ts)
            upstream.mvcc.commit(binlog.prewrite_key, binlog.start_ts, binlog.commit_ts)
            upstream.pumps.outcome(binlog.start_ts, binlog.SerializeToString())
        return binlog.commit_ts


def _stages(live: LiveTable, changes: Sequence[Change]) -> list[JobStage]:
    """The stages of a job: what can be rolled back, change by change; what cannot, all at once; then the rest."""

    def stage(steps: Sequence[tuple[int, Step]], binlog: int | None, backfill: bool = False) -> JobStage:
        def apply() -> Json:
            info = live.info
            for number, step in steps:
                conversion = changes[number].convert
                if backfill and conversion is not None:
                    live.backfill(_id_of(info, conversion.temporary))
                info = step(info)
                if conversion is not None and not backfill:
                    live.conversions[_id_of(info, conversion.temporary)] = (_id_of(info, conversion.column), conversion.of)
            return info

        return JobStage(apply, live, binlog, tuple(number for number, _ in steps))

    steps = [stage([(n, step)], None) for n, change in enumerate(changes) for step in change.prepare]
    steps.append(stage([(n, change.switch) for n, change in enumerate(changes)], None, backfill=True))
    steps += [stage([(n, step)], None) for n, change in enumerate(changes) for step in change.finish]
    binlogs = changes[0].binlog_states if len(changes) == 1 else {len(steps) - 1: 0}
    return [replace(s, binlog=binlogs.get(number)) for number, s in enumerate(steps)]


def _id_of(info: Json, name: str) -> int:
    return next(int(c["id"]) for c in info["cols"] if c["name"]["O"] == name)


class DdlRunner:
    """The DDL statements of an upstream. Every method returns the job; with ``emit=False`` its binlogs are still to be written."""

    def __init__(self, upstream: UpstreamState) -> None:
        self._upstream = upstream

    def create_database(self, name: str, *, emit: bool = True) -> Ddl:
        """CREATE DATABASE."""
        with self._upstream.lock:
            schema_id = self._store.databases[name] = self._store.new_id()
            info = schema.database_json(name, schema_id)
            version = self._store.new_version()
            job = self._job(JobType.CREATE_SCHEMA, name, version, f"create database {name}", db_info=info)
            change = MetaChange(version, JobType.CREATE_SCHEMA, schema_id, databases={schema_id: info})
        return self._finish(job, f"CREATE DATABASE {quote_name(name)};", emit, change)

    def drop_database(self, name: str, *, emit: bool = True) -> Ddl:
        """DROP DATABASE, with its tables, which only the job's arguments name."""
        with self._upstream.lock:
            fallen = [table.id for table in self._store.tables.values() if table.db == name]
            version, schema_id = self._store.new_version(), self._store.databases[name]
            job = self._job(JobType.DROP_SCHEMA, name, version, f"drop database {name}") | {"raw_args": [fallen]}
            del self._store.databases[name]
            for table_id in fallen:
                del self._store.tables[table_id]
            change = MetaChange(
                version, JobType.DROP_SCHEMA, schema_id, databases={schema_id: None}, tables={(schema_id, i): None for i in fallen}
            )
        return self._finish(job, f"DROP DATABASE {quote_name(name)};", emit, change, state=0)

    def create_table(self, db: str, table: Table, *, emit: bool = True) -> Ddl:
        """CREATE TABLE."""
        with self._upstream.lock:
            version = self._store.new_version()
            live = self._store.add_table(db, schema.table_json(table, self._store.new_id()), version)
            job = self._job(JobType.CREATE_TABLE, db, version, table.text(), live)
            schema_id = self._store.databases[db]
            change = MetaChange(version, JobType.CREATE_TABLE, schema_id, live.id, tables={(schema_id, live.id): live.info})
        return self._finish(job, table.text(), emit, change)

    def drop_table(self, qualified: str, *, emit: bool = True) -> Ddl:
        """DROP TABLE."""
        with self._upstream.lock:
            live = self._store.table(qualified)
            del self._store.tables[live.id]
            version, schema_id = self._store.new_version(), self._store.databases[live.db]
            job = self._job(JobType.DROP_TABLE, live.db, version, f"drop table {live.name}", live)
            change = MetaChange(version, JobType.DROP_TABLE, schema_id, live.id, tables={(schema_id, live.id): None})
        return self._finish(job, f"DROP TABLE {quote_name(live.name)};", emit, change, state=0)

    def truncate(self, qualified: str, *, emit: bool = True) -> Ddl:
        """TRUNCATE TABLE: the table gets a new id."""
        with self._upstream.lock:
            old = self._store.table(qualified)
            del self._store.tables[old.id]
            version = self._store.new_version()
            live = self._store.add_table(old.db, {**old.info, "id": self._store.new_id()}, version)
            job = self._job(JobType.TRUNCATE_TABLE, old.db, version, f"truncate table {old.name}", live) | {"table_id": old.id}
            schema_id = self._store.databases[old.db]
            tables = {(schema_id, old.id): None, (schema_id, live.id): live.info}
            change = MetaChange(version, JobType.TRUNCATE_TABLE, schema_id, live.id, old.id, tables=tables)
        return self._finish(job, f"TRUNCATE TABLE {quote_name(old.name)};", emit, change)

    def rename(self, qualified: str, new: str, *, emit: bool = True) -> Ddl:
        """RENAME TABLE to ``db.table``."""
        new_db, _, new_name = new.partition(".")
        with self._upstream.lock:
            live = self._store.table(qualified)
            old_db, old_name = live.db, live.name
            live.db = new_db
            version = self._store.new_version()
            live.alter({**live.info, "name": schema.name_json(new_name)}, version)
            job = self._job(JobType.RENAME_TABLE, new_db, version, f"rename table {qualified} to {new}", live) | {"table_name": old_name}
            old_id, schema_id = self._store.databases[old_db], self._store.databases[new_db]
            tables = {(old_id, live.id): None, (schema_id, live.id): live.info}
            change = MetaChange(version, JobType.RENAME_TABLE, schema_id, live.id, old_schema_id=old_id, tables=tables)
        q = quote_name
        return self._finish(job, f"RENAME TABLE {q(old_db)}.{q(old_name)} TO {q(new_db)}.{q(new_name)};", emit, change)

    def add_column(self, qualified: str, column: Column, *, emit: bool = True) -> Ddl:
        """ALTER TABLE … ADD COLUMN, as the last column."""
        return self.alter(qualified, online.add_column(column), emit=emit)

    def modify_column(self, qualified: str, column: Column, *, convert: Callable[[Any], Any] | None = None, emit: bool = True) -> Ddl:
        """ALTER TABLE … MODIFY COLUMN. With ``convert`` the data change and the column gets a new id, else only its type changes."""
        return self.alter(qualified, online.modify_column(column, convert), emit=emit)

    def drop_column(self, qualified: str, name: str, *, emit: bool = True) -> Ddl:
        """ALTER TABLE … DROP COLUMN: two binlogs, the first with schema state delete-only."""
        return self.alter(qualified, online.drop_column(name), emit=emit)

    def alter(self, qualified: str, *changes: Change, emit: bool = True) -> Ddl:
        """ALTER TABLE; several changes are one multi-schema change."""
        ddl = self.start(qualified, *changes)
        while not ddl.done:
            ddl.advance(emit=emit)
        return ddl

    def start(self, qualified: str, *changes: Change) -> Ddl:
        """Like ``alter``, but ``Ddl.advance`` takes the job from state to state."""
        with self._upstream.lock:
            live = self._store.table(qualified)
            type_ = changes[0].type if len(changes) == 1 else JobType.MULTI_SCHEMA_CHANGE
            text = f"ALTER TABLE {quote_name(live.name)} {', '.join(c.text for c in changes)};"
            job = self._job(type_, live.db, 0, text, live)
            if len(changes) > 1:
                job["multi_schema_info"] = {"sub_jobs": [{"type": int(c.type), "schema_version": 0} for c in changes], "revertible": False}
        return Ddl(self._upstream, job, text, [], _stages(live, changes))

    def failed(self, qualified: str, type_: int, query: str, *, state: int = STATE_ROLLBACK_DONE, emit: bool = True) -> Ddl:
        """A job that changed nothing (rolled back or cancelled): schema version 0, but with a binlog."""
        with self._upstream.lock:
            live = self._store.table(qualified)
            job = self._job(type_, live.db, 0, query, live) | {"state": state}
        return self._finish(job, query, emit, None, state=0)

    def _finish(self, job: Json, text: str, emit: bool, change: MetaChange | None, *, state: int = PUBLIC) -> Ddl:
        ddl = Ddl(self._upstream, job, text, [state], unwritten=[change] if change is not None else [])
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
            "start_ts": self._upstream.oracle.next(),
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
