"""The schema at the ts where a stream begins, for a DDL history that does not reach back to that ts (``syncer.load-schema-snapshot``, ddl.md 4).

The real Drainer lists the schema in TiKV at that ts. A status port lists only the current schema. So a table without a schema version since the ts is
taken as it is now. A table that was changed since, or shortly before (a TiDB server may be behind by a schema lease), is read from its key at the ts, also
if it was dropped, truncated, renamed or exchanged. The schema versions name these tables; for a DROP DATABASE its job does.

Promises: the snapshot is exactly the schema at the ts. Otherwise ``HistoryUnavailable`` says what is missing and what to do: GC has passed the ts and a
table was changed since, or the history lacks jobs after the ts. A later start uses the snapshot kept beside the checkpoint, as long as the history
continues it: frozen tables need the older schema, and GC does not matter.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.cluster.schema_reader import SchemaReader
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import LEAST_GC_LIFE_MS
from pyspark_tidb_binlog.binlog_source.source.mid_history import SYNC_SECONDS
from pyspark_tidb_binlog.schemas.backoff import Retries, steady
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo, Job, JobType, On, kind_of
from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable
from pyspark_tidb_binlog.schemas.events import SchemaVersion, as_time, physical_ms, tso
from pyspark_tidb_binlog.schemas.history_cache import HistoryCache
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.schema_snapshot import SchemaDiff, SnapshotJobs, snapshot_of
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, TableInfo

_POLL = steady(0.2)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Touched:
    """The databases and tables that were changed since a ts, or shortly before it. Pure."""

    version: SchemaVersion
    """The schema version at the ts."""
    after: tuple[SchemaDiff, ...]
    """The changes after the ts, newest first."""
    schema_ids: frozenset[int]
    """Databases to be read at the ts."""
    places: frozenset[tuple[int, int]]
    """Databases and tables in them to be read at the ts."""
    changed_at: Mapping[int, SchemaVersion]
    """By table id, the version of the last change of a table shortly before."""

    @classmethod
    def of(cls, changes: Sequence[SchemaDiff], ts: int) -> "Touched":
        """``changes``: newest first; the last one may be older than the time that matters."""
        before = [change for change in changes if change.commit_ts <= ts]
        late = [change for change in changes if change.commit_ts > _since(ts)]
        recent = [change for change in reversed(late) if change.commit_ts <= ts]
        return cls(
            before[0].version if before else SchemaVersion(0),
            tuple(change for change in changes if change.commit_ts > ts),
            frozenset(i for change in late for i in change.schema_ids if kind_of(change.type).on is On.DATABASE or not change.table_ids),
            frozenset((schema_id, table_id) for change in late for schema_id in change.schema_ids for table_id in change.table_ids),
            {table_id: change.version for change in recent for table_id in change.table_ids},
        )

    @property
    def table_ids(self) -> frozenset[int]:
        """The tables that may differ from their current definition."""
        return frozenset(table_id for _, table_id in self.places)


def _since(ts: int) -> int:
    return tso(max(physical_ms(ts) - SYNC_SECONDS * 1000, 0))


@dataclass(frozen=True, slots=True)
class SnapshotTaker:
    """Takes, and keeps, the snapshots of one Drainer."""

    reader: SchemaReader
    feed: HistoryFeed
    kept: HistoryCache | None
    safe_point: Callable[[], int | None]
    """Up to which ts MVCC data may be collected; None = unknown."""
    timeout: float
    """Seconds for a job to appear."""
    pause: Callable[[float], object]

    def at(self, ts: int, *, again: bool) -> SnapshotJobs:
        """The snapshot with which the history begins so that it holds the schema at ``ts``.

        ``again``: the stream has run before, so the target has what a kept snapshot and the jobs after it lead to.

        Raises:
            HistoryUnavailable: the schema at ``ts`` can no longer be told, or the status ports do not answer.
        """
        kept = self.kept.load() if again and self.kept is not None else []
        if kept:
            snapshot = SnapshotJobs(tuple(kept))
            if snapshot.ts <= ts and self._is_continued(snapshot):
                _log.info("the schema history begins with the kept snapshot of ts %d (%s)", snapshot.ts, as_time(snapshot.ts))
                return snapshot
            _log.warning(
                "the kept schema snapshot of ts %d is not used for ts %d: it is later, or the DDL history no longer continues it",
                snapshot.ts,
                ts,
            )
        snapshot = self._taken(ts)
        if self.kept is not None:
            self.kept.store(snapshot.jobs)
        return snapshot

    def _is_continued(self, snapshot: SnapshotJobs) -> bool:
        """Whether the history has every job after the snapshot. If the job ids do not show it, the schema versions do: GC does not remove them."""
        jobs = list(self.feed.snapshot().jobs.values())
        if snapshot.continued_by(jobs):
            return True
        return not _lost(Touched.of(self.reader.changes(snapshot.ts, snapshot.ts), snapshot.ts), jobs)

    def _taken(self, ts: int) -> SnapshotJobs:
        listing = self.reader.listing()
        # After the listing: what it shows beyond the ts is among them.
        touched = Touched.of(self.reader.changes(ts, _since(ts)), ts)
        jobs = [job for job in self.feed.refresh().jobs.values() if job.id > 0]
        _require_continued(ts, touched, jobs)
        if any(change.type == JobType.FLASHBACK_CLUSTER for change in touched.after):
            raise HistoryUnavailable(
                f"{_at(ts)}: FLASHBACK CLUSTER was executed since, which no Drainer can replicate: begin with a new dump"
            )
        places = touched.places | self._dropped_with_databases(touched)
        databases = {d.id: d for d in listing if d.id not in touched.schema_ids}
        databases |= {i: found for i in touched.schema_ids if (found := self.reader.database(i, ts)) is not None}
        changed = frozenset(table_id for _, table_id in places)
        tables = {d.id: [info for info in infos if info.id not in changed] for d, infos in listing.items()}
        for schema_id, table_id in sorted(places):
            info = self.reader.table(schema_id, table_id, ts)
            if info is not None:
                tables.setdefault(schema_id, []).append(info)
        self._require_not_collected(ts, touched)
        _tell(ts, databases, tables)
        settled = _settled(ts, touched.version, jobs)
        changed_at = {table_id: version for table_id, version in touched.changed_at.items() if version <= settled}
        return snapshot_of(databases, tables, (ts, touched.version), max((job.id for job in jobs), default=0), changed_at)

    def _dropped_with_databases(self, touched: Touched) -> frozenset[tuple[int, int]]:
        """The tables dropped with their databases. Only the job names them, and it appears when it is done."""
        drops: dict[int, SchemaVersion] = {}
        for change in touched.after:
            if change.type == JobType.DROP_SCHEMA:
                drops |= {i: max(drops.get(i, SchemaVersion(0)), change.version) for i in change.schema_ids}
        found: set[tuple[int, int]] = set()
        for schema_id, version in drops.items():
            job = self._drop_of(schema_id, version)
            found |= {(schema_id, table_id) for table_id in self.reader.tables_dropped_by(job.id)}
        return frozenset(found)

    def _drop_of(self, schema_id: int, version: int) -> Job:
        retries = Retries(_POLL, self.timeout, sleep=self.pause)
        while True:
            for job in self.feed.refresh().jobs.values():
                if job.effective and job.type == JobType.DROP_SCHEMA and job.schema_id == schema_id and job.version >= version:
                    return job
            if retries.over:
                raise HistoryUnavailable(
                    f"database id {schema_id} was dropped at schema version {version}, but the DDL history lacks "
                    f"its job, which names its tables, after {self.timeout:g} s: wait until the DROP DATABASE has ended (ADMIN SHOW DDL JOBS), then start again"
                )
            retries.pause_in_time()

    def _require_not_collected(self, ts: int, touched: Touched) -> None:
        """Asked after everything was read."""
        if not touched.after:
            return
        safe_point = self.safe_point()
        # A clock that is far behind ts is wrong, and says nothing.
        unknown = safe_point is None and abs(time.time() * 1000 - physical_ms(ts)) >= LEAST_GC_LIFE_MS
        if unknown or (safe_point is not None and safe_point > ts):
            passed = (
                "may have passed it (the safe point is not known)"
                if safe_point is None
                else f"has passed it (safe point {as_time(safe_point)})"
            )
            raise HistoryUnavailable(
                f"{_at(ts)}: TiKV's GC {passed}, and schema versions {touched.after[-1].version} to {touched.after[0].version} were made since. "
                "Begin with a newer dump: set initial-commit-ts to its ts. To keep GC back while a dump is taken and loaded, raise tidb_gc_life_time"
            )


def _require_continued(ts: int, touched: Touched, jobs: Sequence[Job]) -> None:
    lost, oldest = _lost(touched, jobs), _oldest(jobs)
    if lost:
        first = (
            f"its oldest job, {oldest.id}, began at {_begun(oldest)} ({as_time(_begun(oldest))})" if oldest is not None else "it is empty"
        )
        raise HistoryUnavailable(
            f"{_at(ts)}: the DDL history was cut after it: {first}, but schema versions {lost[-1]} to {lost[0]} were made since. If their DDLs "
            "still run, wait until they have ended (ADMIN SHOW DDL JOBS); else begin with a newer dump: set initial-commit-ts to its ts"
        )


def _lost(touched: Touched, jobs: Sequence[Job]) -> list[SchemaVersion]:
    """The versions after the ts, newest first, whose jobs are gone: a history loses its oldest jobs first, so they were made before the oldest
    job began.
    """
    oldest = _oldest(jobs)
    return [change.version for change in touched.after if oldest is None or change.commit_ts < _begun(oldest)]


def _oldest(jobs: Sequence[Job]) -> Job | None:
    return min(jobs, key=lambda job: job.id, default=None)


def _begun(job: Job) -> int:
    return job.start_ts or job.finished_ts


def _settled(ts: int, version: int, jobs: Iterable[Job]) -> SchemaVersion:
    """The newest version whose job's binlog has certainly committed up to ``ts``: a checkpoint's schema-version is not below it.

    A multi-schema change writes its binlog after its last schema version.
    """
    done = (
        j.version for j in jobs if j.effective and j.version <= version and (j.type != JobType.MULTI_SCHEMA_CHANGE or j.finished_ts <= ts)
    )
    return max(done, default=SchemaVersion(0))


def _tell(ts: int, databases: Mapping[int, DbInfo], tables: Mapping[int, Sequence[TableInfo]]) -> None:
    count = sum(len(infos) for schema_id, infos in tables.items() if schema_id in databases)
    _log.info("the schema at ts %d (%s) has %d databases with %d tables", ts, as_time(ts), len(databases), count)
    halfway = [
        f"{databases[i].name}.{info.name}"
        for i in databases
        for info in tables.get(i, ())
        if any(column.state != PUBLIC for column in info.columns) or any(index.state != PUBLIC for index in info.indexes)
    ]
    if halfway:
        _log.warning(
            "at ts %d a DDL was in progress on %s: if it drops a column, the stream assumes a target without that column, like a dump",
            ts,
            ", ".join(halfway),
        )


def _at(ts: int) -> str:
    return f"load-schema-snapshot cannot read the schema at ts {ts} ({as_time(ts)})"
