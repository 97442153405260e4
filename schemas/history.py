"""The schema history: every table at every schema version. DDL jobs are folded in the order of ``SchemaVersion``.

Promises: immutable, picklable, no IO.

* All versions of a table id are kept, across drop and recovery. A look-up names its version, so jobs of the future do no harm.
* A job without effect changes nothing: cancelled, rolled back, version 0, or of a type that no target can hold.
* A job that names an unknown table or database is accepted, because a recorded history may begin in the middle.

Facts behind RENAME TABLES and EXCHANGE PARTITION: golden/README.md, ddl.md 4.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, Self

from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo, Job, JobEffect, JobType
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import SchemaVersion, tso
from pyspark_tidb_binlog.schemas.history_fold import Dropped, Fold, TableSnapshot, Track, extended
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ColumnInfo, TableInfo

GRACE = tso(60_000)
"""How long after a job's FinishedTS its binlog is awaited."""
_MEANT = int(ColumnFlag.NOT_NULL | ColumnFlag.UNSIGNED)
_VERSION, _FINISHED_TS = attrgetter("version"), attrgetter("finished_ts")


@dataclass(frozen=True, slots=True)
class FoldedKeys:
    """Unique keys of a target's table that treat, or may treat, rows as equal that the upstream keeps apart."""

    keys: tuple[str, ...]
    """Their names."""
    what: str
    """The values that they treat as equal, in words without a value."""
    todo: str
    known: bool
    """Whether the upstream surely keeps those rows apart."""

    @property
    def words(self) -> str:
        """What is wrong, and what to do."""
        return f"{self.what}; {self.todo}"


@dataclass(frozen=True, slots=True)
class TableAt:
    """One table as it is on the target at a point of the stream."""

    table_id: int
    schema: str
    name: str
    info: TableInfo
    version: SchemaVersion
    """Version of the last DDL of this table that is applied."""
    snapshots: tuple[TableSnapshot, ...]
    """Snapshots since the table was created or recovered, ascending; the last one holds ``info``."""
    dropping: bool
    """A column of ``info`` may be about to be dropped: rows may already lack it."""
    leaving: frozenset[int] = frozenset()
    """Ids of the columns that the table's next DDL removes, as far as the history shows it."""
    frozen: bool = False
    """One of its DDLs was not executed on the target: ``info`` is what both sides have in common, under the target's names."""
    narrow: frozenset[int] = frozenset()
    """Of a frozen table: ids of the columns that are nullable upstream but not at the target. A NULL becomes the type's zero value."""
    others: tuple[str, ...] = ()
    """Names of the columns that only the target has, as far as its structure was read. A row keeps their values as long as it keeps its unique keys."""
    own_keys: tuple[str, ...] = ()
    """Names of the unique keys by which the target may take two rows of the upstream for one, as far as its structure was read."""
    folded: FoldedKeys | None = None
    """What its unique keys take for one beyond the upstream's, as far as its structure was read."""
    recoded: frozenset[str] = frozenset()
    """Names of the text columns that are UTF-8 upstream and in another charset at the target, as far as its structure was read."""

    @property
    def label(self) -> str:
        """``schema.table`` for messages."""
        return f"{self.schema}.{self.name}"

    @property
    def has_rows(self) -> bool:
        """Whether rows of it are written: views, sequences and temporary tables have none at a target."""
        return not (self.info.is_view or self.info.is_sequence or self.info.temp_table_type)

    def default_info(self, row_version: int) -> TableInfo | None:
        """The info whose defaults complete a row of this version: the first snapshot not older than the row (rows.md 8, ``pinfo``)."""
        at = bisect_left(self.snapshots, row_version, key=_VERSION)
        return self.snapshots[at].info if at < len(self.snapshots) else None

    def written_as(self, row_version: int) -> TableInfo:
        """The info that a writer of this version used: the last snapshot not newer than the row, or the first one if all are newer."""
        at = bisect_right(self.snapshots, row_version, key=_VERSION)
        return self.snapshots[max(at - 1, 0)].info

    def can_append_default(self, row_version: int) -> bool:
        """True when an update of this version may lack a column of ``info`` (rows.md 8)."""
        return self.dropping or row_version < self.version


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """All jobs and, folded from them, all tables and databases by version. Build it with ``of``."""

    jobs: Mapping[int, Job] = field(default_factory=dict)
    """By id; where an id occurs twice, the job with effect wins."""
    ordered: tuple[Job, ...] = field(default=(), repr=False)
    """The jobs with effect, ascending by version."""
    tracks: Mapping[int, Track] = field(default_factory=dict, repr=False)
    schemas: Mapping[int, tuple[tuple[SchemaVersion, DbInfo | None], ...]] = field(default_factory=dict, repr=False)
    touched: Mapping[int, tuple[int, ...]] = field(default_factory=dict, repr=False)
    """Table ids that a job (by id) changed."""
    passed_over: tuple[Job, ...] = field(default=(), repr=False)
    """The jobs with a version and without effect, ascending by version."""
    by_end: tuple[Job, ...] = field(default=(), repr=False)
    """The jobs with effect, ascending by FinishedTS."""
    ends: tuple[int, ...] = field(default=(), repr=False)
    """The highest FinishedTS of the jobs ``ordered`` up to each of them."""
    _fold: Fold | None = field(default=None, repr=False, compare=False)
    """The fold to which later jobs can be added, unless another history has already added jobs to it."""
    _folded: int = field(default=0, repr=False, compare=False)

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> Self:
        """Fold ``jobs``, given in any order."""
        by_id: dict[int, Job] = {}
        for job in jobs:
            known = by_id.get(job.id)
            if known is None or job.effective or not known.effective:
                by_id[job.id] = job
        return cls()._with(by_id, list(by_id.values()), Fold())

    def _with(self, by_id: Mapping[int, Job], new: Iterable[Job], fold: Fold) -> Self:
        """A history with the ``new`` jobs folded in, all of which must be later than those of this one."""
        effective = sorted((j for j in new if j.effective), key=_VERSION)
        passed = sorted((j for j in new if j.version > 0 and not j.effective), key=_VERSION)
        for job in effective:
            fold.apply(job)
        passed_over = tuple(sorted((*self.passed_over, *passed), key=_VERSION)) if passed else self.passed_over
        ordered = (*self.ordered, *effective)
        by_end = tuple(sorted((*self.by_end, *effective), key=_FINISHED_TS))
        ends = (*self.ends, *accumulate((max(0, j.finished_ts, *self.ends[-1:]) for j in effective), max))
        return type(self)(by_id, ordered, fold.tracks(), fold.schemas(), fold.touched(), passed_over, by_end, ends, fold, fold.count)

    def __getstate__(self) -> tuple[object, ...]:
        """Without the fold, which only ``merged`` uses."""
        return (self.jobs, self.ordered, self.tracks, self.schemas, self.touched, self.passed_over, self.by_end, self.ends)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        """Inverse of ``__getstate__``."""
        names = ("jobs", "ordered", "tracks", "schemas", "touched", "passed_over", "by_end", "ends")
        for name, value in (*zip(names, state, strict=True), ("_fold", None), ("_folded", 0)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.jobs)

    def job(self, job_id: int) -> Job | None:
        """The job that a DDL binlog names."""
        return self.jobs.get(job_id)

    def merged(self, jobs: Iterable[Job]) -> "SchemaHistory":
        """A history with ``jobs`` folded in; the same object when none of them is new."""
        new = list({j.id: j for j in jobs if self.jobs.get(j.id) != j}.values())
        if not new:
            return self
        fold = self._fold
        later = all(j.id not in self.jobs and (not j.effective or j.version > self.newest_version) for j in new)
        if fold is not None and fold.count == self._folded and later:
            return self._with(extended(self.jobs, {j.id: j for j in new}), new, fold)
        return SchemaHistory.of([*self.jobs.values(), *new])

    def only(self, table_ids: Iterable[int]) -> "SchemaHistory":
        """The tracks of these tables and nothing else: small enough to ship to executors."""
        wanted = set(table_ids)
        return SchemaHistory({}, (), {i: t for i, t in self.tracks.items() if i in wanted}, {})

    @property
    def newest_version(self) -> SchemaVersion:
        """The highest version of any job with effect."""
        return self.ordered[-1].version if self.ordered else SchemaVersion(0)

    def jobs_between(self, after: int, upto: int) -> tuple[Job, ...]:
        """The jobs with effect and ``after < version <= upto``, ascending."""
        begin = bisect_right(self.ordered, after, key=_VERSION)
        return self.ordered[begin : bisect_right(self.ordered, upto, key=_VERSION)]

    def passed_between(self, after: int, upto: int) -> tuple[Job, ...]:
        """The jobs without effect and ``after < version <= upto``, ascending."""
        begin = bisect_right(self.passed_over, after, key=_VERSION)
        return self.passed_over[begin : bisect_right(self.passed_over, upto, key=_VERSION)]

    def ended_between(self, after: int, upto: int) -> tuple[Job, ...]:
        """The jobs with effect and ``after < FinishedTS <= upto``, ascending by it."""
        begin = bisect_right(self.by_end, after, key=_FINISHED_TS)
        return self.by_end[begin : bisect_right(self.by_end, upto, key=_FINISHED_TS)]

    def behind(self, version: int, commit_ts: int, since: int) -> tuple[Job, ...]:
        """The jobs up to ``version`` that need not be executed where the binlogs up to ``commit_ts`` are read: those that began after ``since`` and ended
        less than ``GRACE`` before ``commit_ts``, or later; and the multi-schema changes that ended after ``commit_ts``. The binlog of a multi-schema
        change commits after its last version, in a transaction of its own: those of other jobs with a higher version may come first.
        """
        end = bisect_right(self.ordered, version, key=_VERSION)
        late = self.ordered[bisect_right(self.ends, commit_ts - GRACE, hi=end) : end]
        return tuple(
            job
            for job in late
            if (job.finished_ts > commit_ts - GRACE and job.start_ts > since)
            or (job.finished_ts > commit_ts and job.type == JobType.MULTI_SCHEMA_CHANGE)
        )

    def version_at(self, commit_ts: int) -> SchemaVersion:
        """The newest version that was certainly visible at ``commit_ts``, by the jobs' FinishedTS.

        FinishedTS is taken shortly after the DDL binlog's commit_ts, so a job whose binlog was written just before ``commit_ts`` is
        missed; a schema version stored with a checkpoint is the better source.
        """
        done = (j.version for j in self.ordered if 0 < j.finished_ts <= commit_ts)
        return max(done, default=SchemaVersion(0))

    def table_at(self, table_id: int, version: int, *, dropping: bool = False) -> TableAt | None:
        """The table after all jobs with version <= ``version``; None when it is unknown or dropped by then."""
        track = self.tracks.get(table_id)
        if track is None:
            return None
        end = bisect_right(track.entries, version, key=_VERSION)
        begin = end
        while begin > 0 and not isinstance(track.entries[begin - 1], Dropped):
            begin -= 1
        snapshots = tuple(e for e in track.entries[begin:end] if isinstance(e, TableSnapshot))
        if not snapshots:
            return None
        last = snapshots[-1]
        return TableAt(table_id, last.schema, last.name, last.info, last.version, snapshots, dropping)

    def jobs_of_table(self, table_id: int, after: int, upto: int) -> tuple[Job, ...]:
        """The jobs that changed (made, dropped, renamed) that table with ``after < version <= upto``, ascending."""
        track = self.tracks.get(table_id)
        if track is None:
            return ()
        begin = bisect_right(track.versions, after)
        end = bisect_right(track.versions, upto)
        return tuple(job for i in track.job_ids[begin:end] if (job := self.jobs.get(i)) is not None)

    def restored_by(self, job: Job) -> tuple[TableAt, Job] | None:
        """The table that a RECOVER TABLE restores, as it was when it was dropped (or truncated), and the job that did so.

        None for a job of another type, or if the history does not hold the drop.
        """
        for table_id in self.tables_of_job(job) if job.type == JobType.RECOVER_TABLE else ():
            earlier = self.jobs_of_table(table_id, -1, job.version - 1)[-1:]
            was = self.table_at(table_id, earlier[0].version - 1) if earlier else None
            if was is not None:
                return was, earlier[0]
        return None

    def taken_over(self, table_id: int, version: int) -> Job | None:
        """The first job after ``version`` by which another table that there was gets the name of this one, or the rows of it: a RENAME, an EXCHANGE."""
        own = self.table_at(table_id, version)
        if own is None:
            return None
        name = own.schema.lower(), own.name.lower()
        for job in self.jobs_between(version, self.newest_version):
            ids = self.tables_of_job(job)
            if job.kind.effect is JobEffect.EXCHANGES and table_id in ids:
                return job
            if job.kind.effect in (JobEffect.RENAMES, JobEffect.EXCHANGES):
                others = (self.table_at(other, job.version) for other in ids if other != table_id)
                if any(now is not None and (now.schema.lower(), now.name.lower()) == name for now in others):
                    return job
        return None

    def tables_of_job(self, job: Job) -> tuple[int, ...]:
        """The table ids that this job changed: for DROP DATABASE all of its tables."""
        return self.touched.get(job.id, ())

    def schema_at(self, schema: int | str, version: int) -> DbInfo | None:
        """The database of this id or name at ``version``; None when there was none."""
        ids = [schema] if isinstance(schema, int) else list(self.schemas)
        for schema_id in ids:
            entries = self.schemas.get(schema_id, ())
            at = bisect_right(entries, version, key=itemgetter(0))
            info = entries[at - 1][1] if at else None
            if info is not None and (isinstance(schema, int) or info.name.lower() == schema.lower()):
                return info
        return None

    def tables_in(self, schema: str, version: int) -> tuple[TableAt, ...]:
        """All tables of a database at ``version``, by id."""
        found = (self.table_at(i, version) for i in sorted(self.tracks))
        return tuple(t for t in found if t is not None and t.schema.lower() == schema.lower())

    def find(self, schema: str, name: str, version: int) -> TableAt | None:
        """The table of this name at ``version``; names are case-insensitive, as in TiDB."""
        return next((t for t in self.tables_in(schema, version) if t.name.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class TableNow:
    """One table as a TiDB server knows it: the server shows what a running DDL has changed, but the DDL history does not yet.

    Example: a multi-schema change adds column c. Rows have c as soon as TiDB makes c public. The job enters the history later, when no
    transaction is open at an older schema version (metadata lock). In between, columns of an ADD or MODIFY are visible, and a unique key
    that is being dropped is no longer checked. To write such rows to a target, the Drainer needs the job, and waits for it.
    """

    version: int
    """The schema version of the server; a table that is gone has none."""
    info: TableInfo | None
    """None: the server has no such table."""

    @classmethod
    def from_json(cls, json: Any) -> Self:
        """Read the answer of ``/db-table/ID``; ``Corruption`` when it is not one."""
        try:
            return cls(int(json["schema_version"]), TableInfo.from_json(json["table_info"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Corruption(f"the answer of TiDB's status port to /db-table cannot be read: {type(error).__name__} {error}") from error

    def is_ahead_of(self, known: TableInfo) -> bool:
        """Whether rows may be written that do not fit ``known``, the newest that the history shows of it.

        False if the table only loses columns, or gets indexes: its rows fit the table before. The hidden column of an expression index is
        ignored, because it is public while the index is still filled. True if it loses partitions: rows of those ranges go to others.
        """
        if self.info is None:
            return False
        shown = {_meaning(column) for column in known.public_columns()}
        changed = any(_meaning(column) not in shown for column in self.info.public_columns() if not column.hidden)
        return changed or bool(_keys(known) - _keys(self.info)) or _partitions(self.info) < _partitions(known)


def _meaning(column: ColumnInfo) -> tuple[object, ...]:
    """The attributes that decide a column's values. Not its charset: a TiDB server may show another than is stored (old utf8 as utf8mb4)."""
    return column.id, column.name, column.tp, column.flag & _MEANT, column.flen, column.decimal, column.elems


def _partitions(info: TableInfo) -> frozenset[int]:
    return frozenset(partition.id for partition in info.partitions)


def _keys(info: TableInfo) -> frozenset[int]:
    """The ids of the unique indexes that are checked for every row."""
    return frozenset(index.id for index in info.indexes if index.unique and index.state == PUBLIC)
