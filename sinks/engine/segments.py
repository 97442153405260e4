"""Splits a span of transactions at its DDLs: which rows precede which job, and the table definitions they are written with.

Promises: pure. The steps, in order, cover (after_ts, upto_ts] without a gap; after each one everything with
``commit_ts <= `` its ``commit_ts`` (``upto_ts``) is in the target. Rules:

* A DDL binlog is a barrier: rows with a lower commit_ts are applied before it.
* ``SELECT SETVAL`` has no job and is no barrier: a RowsStep names those of its span, also if it has no rows.
* No step for the delete-only binlog of a DROP COLUMN (it marks the table as dropping), jobs that were cancelled,
  rolled back or changed nothing, job types that no target supports, and jobs already applied.
* The binlog of a job may come after binlogs of higher versions. The job is executed with its own binlog, whatever version was read before; until
  then its tables are those before it (``behind``).
* If a row's schema_version includes a job of its table whose binlog was not read yet, that job, and the unread jobs that it depends on, are
  executed before the first such row (``early``). The job's own binlog is then a no-op, which ``AppliedJobs`` records. The same
  applies to a job that rows need although their schema_version is lower (``sinks.engine.early``).
* A binlog commits before its job's FinishedTS. If everything up to FinishedTS is known and the binlog has not come, it is lost: a TiDB skipped it. All lost
  jobs that ended before it are executed before the binlog of a DDL, before ``SELECT SETVAL`` and before rows that need an early job; else at their
  FinishedTS if everything is known up to ``GRACE`` after that. A lost job then counts as read. Jobs that began before the stream (``since``)
  are not lost: their binlogs may precede it.
* The tables of a RowsStep are those on the target at that point: per table the newer of the version of the DDL binlogs read and of its
  early jobs.
"""

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from pyspark_tidb_binlog.conf.entry import comparing
from pyspark_tidb_binlog.schemas.ddl_jobs import DELETE_ONLY, Job, JobType, On
from pyspark_tidb_binlog.schemas.ddl_tokens import is_setval, read_setval, with_plain_strings
from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable
from pyspark_tidb_binlog.schemas.events import SchemaVersion, as_time
from pyspark_tidb_binlog.schemas.history import GRACE, SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.early import may_be_stranded, needed_early
from pyspark_tidb_binlog.sinks.engine.fold import HiddenRows
from pyspark_tidb_binlog.sinks.routing.replicated import APPLIED, DdlDecision


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """One DDL binlog."""

    commit_ts: int
    job_id: int
    query: str
    schema_state: int

    @property
    def is_setval(self) -> bool:
        """Whether it has a DDL text but no job (``schemas.ddl_tokens``)."""
        return is_setval(self.query)


@dataclass(frozen=True, slots=True)
class SetVal:
    """``SELECT SETVAL``: the numbers of a sequence up to ``value`` are given, or in a server's cache."""

    schema: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class TableActivity:
    """Row events of one table and one schema version in the batch."""

    table_id: int
    schema_version: int
    first_commit_ts: int
    events: int
    last_commit_ts: int = 0
    """0 = unknown: the events may extend to the end of the span, so every later step counts them too."""
    bytes: int = 0
    """Size of the row images."""

    def joined(self, other: "TableActivity") -> "TableActivity":
        """Both together: row events of the same table and schema version; both ends are known."""
        return replace(
            self,
            first_commit_ts=min(self.first_commit_ts, other.first_commit_ts),
            events=self.events + other.events,
            last_commit_ts=max(self.last_commit_ts, other.last_commit_ts),
            bytes=self.bytes + other.bytes,
        )


@dataclass(frozen=True, slots=True)
class AppliedJobs:
    """The jobs executed on the target: all up to ``version`` without those that are ``behind``, and those in ``early``."""

    version: int
    early: frozenset[int] = frozenset()
    """Ids of executed jobs that ``version`` does not cover: jobs executed before their binlog was read, and those that ``SchemaHistory.behind``
    would name.
    """
    dropping: frozenset[int] = frozenset()
    """Table ids between the two binlogs of a DROP COLUMN."""
    behind: frozenset[int] = frozenset()
    """Ids of jobs up to ``version`` that are not executed: their binlogs are still to come, or lost."""
    since: int = field(default=sys.maxsize, compare=False)
    """The commit_ts at which this program began on the target: ``version`` covers jobs that began before, because nobody recorded which were executed."""
    settled_ts: int = field(default=0, compare=False)
    """Jobs that ended ``GRACE`` before it were all known, and are executed; 0 = not known in this life, so those above ``version`` are looked for."""
    unread: frozenset[int] = field(default=frozenset(), compare=False)
    """The jobs of ``early`` whose binlogs have not come, as far as this life knows."""

    def __contains__(self, job: Job) -> bool:
        """Whether the job was already executed on the target."""
        return job.id in self.early or (job.version <= self.version and job.id not in self.behind)

    def at(self, commit_ts: int, history: SchemaHistory) -> "AppliedJobs":
        """Return the same where the binlogs up to ``commit_ts`` are read, as far as ``history`` shows the jobs behind ``version``."""
        coming = {job.id for job in history.behind(self.version, commit_ts, self.since)}
        known = frozenset(i for i in self.early if i in coming or (job := history.job(i)) is None or job.version > self.version)
        return replace(self, early=known, behind=(self.behind | coming) - self.early)

    def covering(self, commit_ts: int, history: SchemaHistory) -> "AppliedJobs":
        """Return the same for a target that has every job up to ``version``, also those whose binlogs follow ``commit_ts``."""
        return replace(self, early=self.early | {job.id for job in history.behind(self.version, commit_ts, self.since)}, behind=frozenset())

    def settled_version(self, history: SchemaHistory) -> int:
        """Return the version up to which every job is executed."""
        held = (job.version for i in self.behind if (job := history.job(i)) is not None)
        return min((int(version) - 1 for version in held), default=self.version)

    def version_of(self, table_id: int, history: SchemaHistory) -> int:
        """The schema version of this table on the target."""
        if not self.early and not self.behind:
            return self.version
        # The DDLs of one table are executed one after the other, so nothing of it is between a job that is behind and ``version``.
        first = next((j for j in history.jobs_of_table(table_id, 0, self.version) if j.id in self.behind), None) if self.behind else None
        own = int(first.version) - 1 if first is not None else self.version
        newer = (j.version for j in history.jobs_of_table(table_id, own, history.newest_version) if j.id in self.early)
        return max(newer, default=SchemaVersion(own))

    def table(self, table_id: int, history: SchemaHistory) -> TableAt | None:
        """The table as it is on the target."""
        return history.table_at(table_id, self.version_of(table_id, history), dropping=table_id in self.dropping)

    def with_early(self, job: Job) -> "AppliedJobs":
        """The state after ``job`` was executed ahead of its binlog."""
        done = self.early | {job.id}
        return replace(self, early=done, dropping=self.dropping - {job.table_id}, behind=self.behind - done, unread=self.unread | {job.id})

    def with_binlog(self, job: Job, history: SchemaHistory, settled_ts: int = 0) -> "AppliedJobs":
        """The state after the binlog of ``job`` was read, or is known to be lost, and the job, if necessary, executed. What needs not be remembered
        with ``settled_ts`` is forgotten: each state of a batch is a copy.
        """
        version = max(self.version, job.version)
        passed = {j.id for j in history.jobs_between(self.version, version) if self._awaited(j)}
        early = self.early | {job.id} if self._awaited(job) else self.early - {job.id}
        behind = (self.behind | passed) - early - {job.id}
        known = ((i, history.job(i)) for i in early)
        early = frozenset(i for i, j in known if j is None or j.version > version or j.finished_ts > settled_ts - GRACE)
        dropping, unread, settled_ts = self.dropping - {job.table_id}, self.unread - {job.id}, max(self.settled_ts, settled_ts)
        return replace(self, version=version, early=early, dropping=dropping, behind=behind, unread=unread, settled_ts=settled_ts)

    def _awaited(self, job: Job) -> bool:
        return job.type == JobType.MULTI_SCHEMA_CHANGE or job.start_ts > self.since

    def with_dropping(self, table_id: int) -> "AppliedJobs":
        """The state after the delete-only binlog of a DROP COLUMN was read."""
        return replace(self, dropping=self.dropping | {table_id})


@dataclass(frozen=True, slots=True)
class RowsStep:
    """Rows with ``after_ts < commit_ts <= upto_ts``; the last step of a span may have none."""

    after_ts: int
    upto_ts: int
    row_events: int
    """Exact unless a ``TableActivity`` spans a step boundary, then an upper bound; 0 = certainly none."""
    tables: Mapping[int, TableAt]
    row_bytes: int = 0
    """Size of the row images; exact or an upper bound like ``row_events``."""
    gone: frozenset[int] = frozenset()
    """Ids of tables with rows in this step that are already dropped or truncated: their rows are not written."""
    applied: AppliedJobs = field(default=AppliedJobs(0))
    """The jobs executed on the target, the same before and after this step."""
    left_out: frozenset[tuple[int, int]] = frozenset()
    """(table id, operation) of row changes that are not written."""
    stranded: tuple[TableAt, ...] = ()
    """Tables with a partition that was dropped early, and with rows in this step that may belong to it (``sinks.engine.early``)."""
    hidden: HiddenRows | None = None
    """The images that conditions hide; None: no table of the step has one."""
    setvals: tuple[SetVal, ...] = ()
    """The sequences' numbers, in the order of commit_ts."""
    lost: tuple[Job, ...] = ()
    """Jobs executed early, in this step or before, whose binlogs are lost, as is known now."""


@dataclass(frozen=True, slots=True)
class DdlStep:
    """One DDL job to execute on the target."""

    commit_ts: int
    """Everything up to here is in the target after the step; for an early job one less than the commit_ts of the row that needs it."""
    job: Job
    query: str
    """TiDB's rewritten text from the binlog; for an early job the user's text from the history."""
    early: bool
    before: AppliedJobs = field(default=AppliedJobs(0))
    applied: AppliedJobs = field(default=AppliedJobs(0))
    """The jobs executed on the target after this step."""
    decision: DdlDecision = APPLIED
    """The decision of the filters."""
    lost: bool = False
    """Whether its binlog is lost."""

    @property
    def losses(self) -> tuple[str, ...]:
        """Words that people must read, whatever the target makes of the DDL."""
        return (lost_words(self.job),) if self.lost and not self.decision.unwanted else ()

    @property
    def restored(self) -> str:
        """The text as a binlog has it: TiDB's parser writes strings without escapes, which a user's text may have."""
        return with_plain_strings(self.query) if self.early else self.query

    @property
    def skip_ts(self) -> int:
        """The DDL's timestamp in ``ignore-txn-commit-ts``.

        Early jobs may share their ``commit_ts`` with each other and with a transaction; a job's FinishedTS is unique.
        """
        return self.job.finished_ts or self.commit_ts if self.early else self.commit_ts


def lost_words(job: Job) -> str:
    """Return words: the binlog of ``job`` is lost, and what was done."""
    return (
        f"the binlog of DDL job {job.id} ({job.type_name}: {' '.join(job.query.split())[:200]}) never came, although the DDL ended at "
        f"{as_time(job.finished_ts)}. It was executed from the DDL history. Did a TiDB server run without binlog, or skip binlogs (binlog.ignore-error)? "
        f"Then rows may be missing, too: compare the tables with the upstream by {comparing()}"
    )


def plan_steps(
    span: tuple[int, int],
    ddls: Sequence[DdlEvent],
    tables: Sequence[TableActivity],
    history: SchemaHistory,
    applied: AppliedJobs,
    known_ts: int | None = None,
) -> tuple[RowsStep | DdlStep, ...]:
    """The steps of ``span`` = (after_ts, upto_ts]; ``ddls`` and ``tables`` may be in any order.

    ``known_ts``: ``history`` has every job that ended some seconds before it; None: up to the end of the span.

    Raises:
        HistoryUnavailable: a DDL binlog refers to a job that ``history`` lacks; wait for it and plan again.
    """
    events = [d for d in ddls if span[0] < d.commit_ts <= span[1]]
    planner = _Planner(span, history, applied, events, known_ts)
    rows = [t for t in tables if t.first_commit_ts <= span[1]]
    tagged: list[tuple[int, int, DdlEvent | TableActivity | Job]] = [(d.commit_ts, 0, d) for d in events]
    tagged += [(t.first_commit_ts, 1, t) for t in rows]
    tagged += [(job.finished_ts, 2, job) for job in planner.overdue]
    for _, _, event in sorted(tagged, key=itemgetter(0, 1)):
        if isinstance(event, DdlEvent):
            planner.read_ddl(event)
        elif isinstance(event, TableActivity):
            planner.read_rows(event)
        else:
            planner.miss_ddl(event)
    return planner.finish()


def events_by_table(tables: Sequence[TableActivity], steps: Sequence[RowsStep | DdlStep]) -> dict[str, int]:
    """Row events of the tables that ``steps`` write, as ``DB.TABLE`` upstream."""
    names = {i: f"{table.schema}.{table.name}" for step in steps if isinstance(step, RowsStep) for i, table in step.tables.items()}
    counts: dict[str, int] = {}
    for activity in tables:
        if name := names.get(activity.table_id):
            counts[name] = counts.get(name, 0) + activity.events
    return counts


def replay_steps(
    span: tuple[int, int], tables: Sequence[TableActivity], history: SchemaHistory, applied: AppliedJobs
) -> tuple[tuple[DdlStep, ...], RowsStep]:
    """The rows of an unfinished span as one step, and the DDLs that must be executed before it.

    Every job that its rows need was executed before the span was begun, except those that were not yet in the history at that time.
    """
    planner = _Planner(span, history, applied, (), span[0])
    for table in sorted(tables, key=lambda t: t.first_commit_ts):
        planner.read_begun_rows(table)
    *ddls, rows = planner.finish()
    assert isinstance(rows, RowsStep)
    unsettled = replace(rows.applied, settled_ts=applied.settled_ts)
    return tuple(d for d in ddls if isinstance(d, DdlStep)), replace(rows, applied=unsettled)


class _Planner:
    def __init__(
        self,
        span: tuple[int, int],
        history: SchemaHistory,
        applied: AppliedJobs,
        events: Sequence[DdlEvent] = (),
        known_ts: int | None = None,
    ) -> None:
        self._after, self._to = span
        self._history = history
        self._applied = applied.at(applied.settled_ts or span[0], history)
        self._settled = max(applied.settled_ts or span[0], self._to if known_ts is None else min(known_ts, self._to))
        self._coming = {e.job_id for e in events if not self._is_twin(e, history.job(e.job_id))}
        """The jobs whose binlogs are in the span."""
        ended = history.ended_between(applied.settled_ts - GRACE if applied.settled_ts else applied.since, self._to)
        self._lost = deque(job for job in ended if job not in self._applied and self._is_lost(job))
        """Jobs to execute, ascending by FinishedTS."""
        self.overdue = tuple(job for job in self._lost if job.finished_ts <= self._to - GRACE)
        """Jobs whose binlogs are awaited no longer."""
        known = (history.job(i) for i in self._applied.early)
        self._early_drops = [(span[0], job) for job in known if job is not None and job.type == JobType.DROP_PARTITION]
        """DROP PARTITIONs that are executed before their binlogs, and after which commit_ts."""
        self._rows: list[TableActivity] = []
        self._setvals: list[SetVal] = []
        """The numbers of sequences since the last step."""
        self._steps: list[RowsStep | DdlStep] = []

    def read_ddl(self, event: DdlEvent) -> None:
        if event.is_setval:
            self._bring(self._take_lost(event.commit_ts), max(event.commit_ts - 1, self._after))
            sequence, value = read_setval(event.query)
            self._setvals.append(SetVal(sequence.schema, sequence.name, value))
            return
        job = self._history.job(event.job_id)
        if job is None:
            raise HistoryUnavailable(
                f"DDL job {event.job_id} (commit_ts {event.commit_ts}: {event.query[:200]}) is not in the DDL history yet; wait for it"
            )
        if self._is_twin(event, job):
            if job.effective and job not in self._applied:
                self._applied = self._applied.with_dropping(job.table_id)
            return
        if job.effective and job not in self._applied:
            self._bring(self._take_lost(event.commit_ts), max(event.commit_ts - 1, self._after))
        before = self._applied
        after = before.with_binlog(job, self._history, min(event.commit_ts, self._settled))
        if job.effective and job not in before:
            self._close_rows(event.commit_ts - 1)
            self._steps.append(DdlStep(event.commit_ts, job, event.query, False, before, after))
            self._after = event.commit_ts
        self._applied = after

    @staticmethod
    def _is_twin(event: DdlEvent, job: Job | None) -> bool:
        return event.schema_state == DELETE_ONLY and job is not None and job.type == JobType.DROP_COLUMN

    def read_rows(self, touch: TableActivity) -> None:
        if needed := self._unread_jobs(touch):
            self._bring((*self._take_lost(touch.first_commit_ts), *needed), max(touch.first_commit_ts - 1, self._after))
        self._rows.append(touch)

    def miss_ddl(self, job: Job) -> None:
        self._bring(self._take_lost(job.finished_ts), max(job.finished_ts, self._after))

    def _is_lost(self, job: Job) -> bool:
        return job.start_ts > self._applied.since and 0 < job.finished_ts <= self._to and job.id not in self._coming

    def _take_lost(self, upto: int) -> tuple[Job, ...]:
        """Return the lost jobs that ended up to there; they are not returned again."""
        taken = []
        while self._lost and self._lost[0].finished_ts <= upto:
            taken.append(self._lost.popleft())
        return tuple(job for job in taken if job not in self._applied)

    def _bring(self, jobs: Sequence[Job], upto: int) -> None:
        if jobs:
            self._close_rows(upto)
            self._after = upto
            self._execute_early(sorted({job.id: job for job in jobs}.values(), key=lambda job: job.version))

    def read_begun_rows(self, touch: TableActivity) -> None:
        self._execute_early(self._unread_jobs(touch))
        self._rows.append(touch)

    def _execute_early(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            lost = self._is_lost(job)
            before = self._applied
            settled = min(job.finished_ts, self._after, self._settled)
            self._applied = before.with_binlog(job, self._history, settled) if lost else before.with_early(job)
            if job.type == JobType.DROP_PARTITION:
                self._early_drops.append((self._after, job))
            self._steps.append(DdlStep(self._after, job, job.query, True, before, self._applied, lost=lost))

    def finish(self) -> tuple[RowsStep | DdlStep, ...]:
        if self._after < self._to or not self._steps:
            early = (job for i in sorted(self._applied.unread) if (job := self._history.job(i)) is not None)
            lost = tuple(job for job in early if self._is_lost(job))
            for job in lost:
                self._applied = self._applied.with_binlog(job, self._history)
            self._applied = replace(self._applied.at(self._settled, self._history), settled_ts=self._settled)
            self._close_rows(self._to, last=True, lost=lost)
        return tuple(self._steps)

    def _close_rows(self, upto: int, *, last: bool = False, lost: tuple[Job, ...] = ()) -> None:
        if upto <= self._after and not last:
            return
        here = [t for t in self._rows if t.first_commit_ts <= upto]
        ids = sorted({t.table_id for t in here})
        if ids or last or self._setvals:
            known = {i: self._table(i) for i in ids}
            tables = {i: t for i, t in known.items() if t is not None}
            gone = frozenset(i for i in ids if i not in tables and i in self._history.tracks)
            events, size = sum(t.events for t in here), sum(t.bytes for t in here)
            stranded = {t.table_id for t in here if self._may_be_stranded(t, upto)} if self._early_drops else ()
            rows = RowsStep(self._after, upto, events, tables, size, gone, self._applied, setvals=tuple(self._setvals), lost=lost)
            self._steps.append(replace(rows, stranded=tuple(tables[i] for i in sorted(stranded) if i in tables)))
        self._after, self._setvals = upto, []
        self._rows = [t for t in self._rows if t.last_commit_ts > upto or t.last_commit_ts == 0]

    def _may_be_stranded(self, touch: TableActivity, upto: int) -> bool:
        last = min(touch.last_commit_ts or upto, upto)
        return any(
            last > after and may_be_stranded(job, touch.schema_version) and touch.table_id in self._history.tables_of_job(job)
            for after, job in self._early_drops
        )

    def _table(self, table_id: int) -> TableAt | None:
        table = self._applied.table(table_id, self._history)
        if table is None:
            return None
        following = self._history.jobs_of_table(table_id, table.version, self._history.newest_version)
        if not following:
            # The rows may be from states of a job that is not yet in the history.
            newest = max(t.schema_version for t in self._rows if t.table_id == table_id)
            return replace(table, dropping=table.dropping or newest > table.version)
        # Does not rely on the delete-only binlog: a multi-schema change has none, and it is not remembered across restarts.
        after = self._history.table_at(table_id, following[0].version)
        left = after.info.public_columns() if after else table.info.public_columns()
        ids, names = {c.id for c in left}, {c.name for c in left}
        gone = [c for c in table.info.public_columns() if c.id not in ids]
        leaving = frozenset(c.id for c in gone if c.name not in names)
        return replace(table, dropping=table.dropping or bool(gone), leaving=leaving)

    def _unread_jobs(self, touch: TableActivity) -> tuple[Job, ...]:
        """Return the jobs that these rows need and the target lacks: also the table's first job beyond their version, if they need it nevertheless."""
        history, table_id, version = self._history, touch.table_id, touch.schema_version
        settled = self._applied.settled_version(history)
        needed = [j for j in history.jobs_of_table(table_id, settled, version) if j not in self._applied]
        newer = max(version, self._applied.version_of(table_id, history))
        for job in history.jobs_of_table(table_id, newer, history.newest_version)[:1]:
            before, after = history.table_at(table_id, job.version - 1), history.table_at(table_id, job.version)
            rows = version, touch.last_commit_ts
            if before is not None and after is not None and job not in self._applied and needed_early(job, before, after, rows, history):
                needed.append(job)
        if not needed:
            return ()
        unread = history.jobs_between(settled, needed[-1].version)
        return _with_foundations(needed, [j for j in unread if j not in self._applied], history)


def _with_foundations(needed: Iterable[Job], unread: Sequence[Job], history: SchemaHistory) -> tuple[Job, ...]:
    """``needed`` and all jobs of ``unread`` (ascending) that they depend on: those on the same tables, names or databases."""
    ids = {j.id for j in needed}
    subjects: set[object] = set()
    chosen: list[Job] = []
    for job in reversed(unread):
        own = _subjects(job, history)
        if job.id in ids or own & subjects:
            chosen.append(job)
            subjects |= own | {("schema", job.schema_id)}
    return tuple(reversed(chosen))


def _subjects(job: Job, history: SchemaHistory) -> set[object]:
    subjects: set[object] = set()
    if job.kind.on is On.DATABASE:
        subjects = {("schema", job.schema_id), ("schema", job.schema_name.lower())}
    for table_id in history.tables_of_job(job):
        subjects.add(table_id)
        for version in (job.version - 1, job.version):
            table = history.table_at(table_id, version)
            if table is not None:
                subjects.add((table.schema.lower(), table.name.lower()))
    return subjects
