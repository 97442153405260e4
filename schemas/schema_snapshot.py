"""The databases and tables of one moment as DDL jobs. A schema history begins with these jobs where the real jobs are not known.

As in the real Drainer (``load-schema-snapshot``, ddl.md 4) the jobs have the versions 1, 2, 3 …, below any version of a row: one job per
database, then one per database with all of its tables. Their ids are negative, so that no binlog names one. Ours differs in two points:

* A table that changed just before the moment is created at the version of that change. Rows of the version before may follow
  (rows.md 8).
* A last job, which changes nothing, has the moment's own schema version, so that ``SchemaHistory.version_at`` finds it.

Promises: pure. ``SnapshotJobs`` is frozen and picklable, and holds nothing but its jobs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pyspark_tidb_binlog.schemas.ddl_jobs import STATE_DONE, DbInfo, Job, JobType
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import INITIAL
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo


@dataclass(frozen=True, slots=True)
class SchemaDiff:
    """What one schema version changed (TiDB ``model.SchemaDiff``)."""

    version: SchemaVersion
    commit_ts: int
    """Of the transaction that made the change."""
    type: int
    """Of the job, as ``JobType``."""
    schema_ids: frozenset[int]
    """Of databases, before or after the change."""
    table_ids: frozenset[int]
    """Of tables, before or after the change."""

    @classmethod
    def from_json(cls, text: bytes, commit_ts: int) -> Self:
        """Read one; ``Corruption`` when it is not one."""
        try:
            parsed: Any = json.loads(text)
            parts = [parsed, *(parsed.get("affected_options") or ())]
            return cls(
                SchemaVersion(parsed["version"]),
                commit_ts,
                parsed["type"],
                frozenset(i for part in parts for name in ("schema_id", "old_schema_id") if (i := part.get(name) or 0)),
                frozenset(i for part in parts for name in ("table_id", "old_table_id") if (i := part.get(name) or 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corruption(f"the changes of a schema version cannot be read: {type(error).__name__} {error}: {text[:200]!r}") from error


@dataclass(frozen=True, slots=True)
class SnapshotJobs:
    """The schema at one ts."""

    jobs: tuple[Job, ...]
    """In the order of their versions; the last one changes nothing."""

    @property
    def ts(self) -> int:
        """The moment: everything committed up to it is in the snapshot."""
        return self.jobs[-1].finished_ts

    @property
    def version(self) -> SchemaVersion:
        """The upstream's schema version at ``ts``."""
        return self.jobs[-1].version

    @property
    def newest_job(self) -> int:
        """The highest id in the upstream's history when the snapshot was taken; 0 = there was none."""
        return self.jobs[-1].table_id

    def continued_by(self, jobs: Iterable[Job]) -> bool:
        """Whether a history still has every job after the snapshot: a history loses its oldest jobs first."""
        return 0 < self.newest_job and any(0 < job.id <= self.newest_job for job in jobs)

    def without_effect(self, job: Job) -> Job:
        """``job``, which changes nothing if the snapshot has its result.

        It can still be found: the binlog of a multi-schema change commits after its last schema version.
        """
        if not 0 < job.version <= self.version or job.id < 0:
            return job
        return replace(job, type=int(JobType.TIFLASH_STATUS), db_info=None, table_info=None, multiple_table_infos=())


def snapshot_of(
    databases: Mapping[int, DbInfo],
    tables: Mapping[int, Sequence[TableInfo]],
    moment: tuple[int, SchemaVersion],
    newest_job: int,
    changed_at: Mapping[int, SchemaVersion],
) -> SnapshotJobs:
    """The snapshot of ``databases`` by id with their ``tables`` at ``moment`` = (ts, schema version).

    ``changed_at``: by table id, the version of a change just before, which rows of an older version may follow.
    """
    ts, version = moment
    jobs = [_job(JobType.CREATE_SCHEMA, i, ts, db_info=databases[i]) for i in sorted(databases)]
    for schema_id in sorted(databases):
        long_made = tuple(info for info in tables.get(schema_id, ()) if info.id not in changed_at)
        if long_made:
            jobs.append(_job(JobType.CREATE_TABLES, schema_id, ts, multiple_table_infos=long_made))
    made = [replace(job, version=SchemaVersion(number)) for number, job in enumerate(jobs, 1)]
    late = sorted(((changed_at[info.id], i, info) for i in databases for info in tables.get(i, ()) if info.id in changed_at), key=_order)
    made += [replace(_job(JobType.CREATE_TABLES, i, ts, multiple_table_infos=(info,)), version=at) for at, i, info in late]
    made.append(replace(_job(JobType.SCHEMA_CHARSET, INITIAL.id, ts, db_info=databases.get(INITIAL.id, INITIAL)), version=version))
    made[-1] = replace(made[-1], table_id=newest_job)
    return SnapshotJobs(tuple(replace(job, id=-number) for number, job in enumerate(made, 1)))


def table_as_job(table: TableAt, history: SchemaHistory) -> Job:
    """A job that makes one table of ``history`` as it is, for a history that does not have the table."""
    database = history.schema_at(table.schema, table.version)
    made = _job(JobType.CREATE_TABLE, database.id if database is not None else 0, 0)
    return replace(
        made,
        id=-table.table_id,
        table_id=table.table_id,
        schema_name=table.schema,
        table_name=table.name,
        version=table.version,
        table_info=table.info,
    )


def _order(late: tuple[SchemaVersion, int, TableInfo]) -> tuple[int, int, int]:
    version, schema_id, info = late
    return version, schema_id, info.id


def _job(kind: JobType, schema_id: int, ts: int, *, db_info: DbInfo | None = None, multiple_table_infos: tuple[TableInfo, ...] = ()) -> Job:
    return Job(
        id=0,
        type=int(kind),
        state=STATE_DONE,
        schema_state=0,
        schema_id=schema_id,
        table_id=0,
        schema_name="",
        table_name="",
        query="",
        version=SchemaVersion(0),
        db_info=db_info,
        table_info=None,
        multiple_table_infos=multiple_table_infos,
        finished_ts=ts,
        start_ts=0,  # unknown: no binlog of it is awaited
    )
