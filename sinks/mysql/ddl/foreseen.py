"""Predicts before a stream starts which of the waiting DDLs the target will refuse, and what became of those that were begun: for ``drainer --check``. [db]

Promises: nothing of the target changes. A table is made as a temporary one, in the form that the target takes (``ladder.rehearsed``). Any other statement is given
to PREPARE, which parses it and executes nothing. Tables that it needs, or that are in its way, are looked up as the DDLs before it will leave them. What only execution
shows is not predicted: rows that do not fit, a full server. The text is the user's own, because TiDB's text is only in the binlog. A DDL that was begun is judged by its row in ``spark_ddl`` and the target.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import On
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import Job, JobType, SchemaHistory
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import UNCLEAR, Presence, altered_by, by_changes
from pyspark_tidb_binlog.sinks.mysql.ddl.attempt import why_not_restored
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import INTENT, RECORDED, REFUSED, RecordedTry
from pyspark_tidb_binlog.sinks.mysql.ddl.execution_check import ExecutionCheck, snapshot_of, unlike
from pyspark_tidb_binlog.sinks.mysql.ddl.ladder import Rehearsed, rehearsed
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import scattered
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import is_empty
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, sql_kind, statements_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Outcomes, Subject, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, dialect_of
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Rewritten
from pyspark_tidb_binlog.sinks.mysql.ddl.views import out_of_place, view_waits
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import clock_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes

_NAME = "tidb_binlog_check"
_READ_ONLY_TRANSACTION = 1792
"""MariaDB's answer to a DDL that it has parsed without an error, in the caller's transaction."""
_SAYS_NOTHING = frozenset({1044, 1046, 1049, 1142, 1143, 1146, 1227, 1295, 1356, 1461, 4031, _READ_ONLY_TRANSACTION})
"""Rights are judged elsewhere, names change until then, and some statements cannot be prepared."""
_NEEDS_NOTHING = frozenset({Judged.MADE, Judged.GONE, Judged.RESTORED})
"""Their tables need not be there."""

Place = tuple[str, str]
"""Database and table, in lower case."""


@dataclass(frozen=True, slots=True)
class WaitingDdls:
    """The jobs between the target's version and the upstream's, and what is known of them."""

    after_ts: int
    history: SchemaHistory
    applied: AppliedJobs
    frozen: FrozenTables = field(default_factory=dict)
    outcomes: Outcomes = field(default_factory=dict)
    """Of earlier DDLs."""

    def steps(self) -> tuple[DdlStep, ...]:
        """The DDLs between the checkpoint and now; the binlogs' commit_ts are not known, so they have the jobs' FinishedTS."""
        applied = self.applied.at(self.after_ts, self.history)
        jobs = [job for job in self.history.ordered if job not in applied]
        events = []
        at = self.after_ts
        for job in jobs:
            at = max(at + 1, job.finished_ts)
            events.append(DdlEvent(at, job.id, job.query, 5))
        return tuple(
            step for step in plan_steps((self.after_ts, at + 1), events, (), self.history, self.applied) if isinstance(step, DdlStep)
        )


def foreseen(
    session: Target, waiting: WaitingDdls, config: ApplyConfig, tables: Iterable[Place], databases: Iterable[str]
) -> Iterator[Remark]:
    """Remarks about the waiting DDLs, in their order.

    Args:
        session: of the target; its current database changes.
        waiting: the DDLs.
        config: filters, routes and the upstream's default charset.
        tables: the target's present tables.
        databases: likewise, in lower case.
    """
    selection, seen = Selection.of(config), _Seen(set(tables), set(databases), set(), dict(waiting.outcomes), frozenset(databases))
    for step in waiting.steps():
        step = decided(step, waiting.history, selection)
        if step.decision.fate is DdlFate.FILTERED:
            seen.outcomes[step.job.id] = "filtered"
            continue
        if step.decision.fate is DdlFate.LEFT_OUT or step.skip_ts in config.ignore_txn_commit_ts:
            continue
        subject = subject_of(step, waiting.history, waiting.frozen, Routes.of(config), seen.outcomes)
        elsewhere = out_of_place(subject, waiting.history, config)
        dialect = dialect_of(session, config, subject.after)
        yield from _Look(session, step, subject, dialect, seen).remarks(elsewhere)
        seen.after(subject)


_OF_SERVERS = ("information_schema", "performance_schema", "sys")


def forms(session: Target, subject: Subject, dialect: Dialect, databases: Collection[str]) -> Iterator[Rehearsed]:
    """What the target will lack of each table after the job, and why it will take no form of it, as far as the account can find out.

    Args:
        session: of the target, in a transaction that only reads.
        subject: the tables are its ``after``.
        dialect: of the target; a TiDB takes the upstream's definitions.
        databases: those that the target has, in lower case: a temporary table is made in one of them.
    """
    for table in subject.after if dialect.flavour is not Flavour.TIDB else ():
        places = sorted(set(databases) - set(_OF_SERVERS), key=lambda name: (name != table.schema.lower(), name == "mysql", name))
        tried = (rehearsed(session, place, subject, table, dialect) for place in places)
        yield next((found for found in tried if found is not None), Rehearsed())


@dataclass(slots=True)
class _Seen:
    """What the target will have when the next DDL is executed."""

    tables: set[Place]
    databases: set[str]
    made: set[Place]
    """Of ``tables``, those that a waiting DDL makes."""
    outcomes: dict[int, str]
    """Outcomes of the DDLs before, for RECOVER TABLE: a DDL that finds its tables counts as executed."""
    present: frozenset[str]
    """The target's databases now."""
    losses: set[str] = field(default_factory=set)

    def after(self, subject: Subject) -> None:
        gone = {(t.schema.lower(), t.name.lower()) for t in subject.before}
        come = {(t.schema.lower(), t.name.lower()) for t in subject.after}
        self.outcomes[subject.job.id] = "text" if gone and gone <= self.tables else "nothing"
        self.tables = (self.tables - gone) | come
        self.made = (self.made - gone) | (come - (gone - self.made))
        name = subject.schema.lower()
        if subject.job.type == JobType.CREATE_SCHEMA:
            self.databases.add(name)
        elif subject.job.type == JobType.DROP_SCHEMA:
            self.databases.discard(name)


class _Look:
    """One DDL."""

    def __init__(self, session: Target, step: DdlStep, subject: Subject, dialect: Dialect, seen: _Seen) -> None:
        self._session = session
        self._step = step
        self._subject = subject
        self._dialect = dialect
        self._seen = seen

    def remarks(self, elsewhere: str) -> Iterator[Remark]:
        """``elsewhere``: why it is a view of what the target does not have by its name."""
        subject = self._subject
        if subject.given.form is DdlForm.NOTHING:
            return
        why = elsewhere or self._why_not_sent() or self._why_not_here() or clock_of(self._session, subject).why_not
        if why:
            yield self._refused(why)
            return
        if by_changes(subject, self._dialect):
            yield from self._changes()
            return
        texts = statements_of(subject, self._dialect, restored=False)
        if subject.given.form is DdlForm.INFOS and not all(text.by_infos for text in texts):
            yield self._refused(subject.given.why)
        else:
            for text in texts:
                yield from self._statement(text)
            if subject.job.kind.makes_tables:
                yield from self._forms()

    def _why_not_sent(self) -> str:
        step, subject = self._step, self._subject
        if step.decision.fate is DdlFate.REFUSED:
            return step.decision.why
        if why := why_not_restored(step.job, self._dialect.flavour):
            return why
        if subject.given.form in (DdlForm.FROZEN, DdlForm.REFUSED):
            return subject.given.why
        return scattered(self._session, subject)

    def _why_not_here(self) -> str:
        """What the target lacks for it, or has in its way."""
        subject, seen = self._subject, self._seen
        if subject.schema and subject.job.kind.on is not On.DATABASE and subject.schema.lower() not in seen.databases:
            return f"the target has no database {subject.schema}"
        if subject.job.kind.on is not On.DATABASE and sql_kind(subject.job).judged not in _NEEDS_NOTHING:
            lacking = [t for t in subject.before if (t.schema.lower(), t.name.lower()) not in seen.tables]
            return f"the target has no table {lacking[0].schema}.{lacking[0].name}" if lacking else ""
        if subject.job.type == JobType.RECOVER_TABLE and any((t.schema.lower(), t.name.lower()) in seen.tables for t in subject.after):
            return f"the target has a table {subject.label}"
        if not subject.job.kind.makes_tables:
            return ""
        for table in subject.after:
            place = table.schema.lower(), table.name.lower()
            if place not in seen.tables or place in seen.made:
                continue
            differing = unlike(self._session, subject, self._dialect, table)
            if differing:
                return f"the target has another table of this name: {'; '.join(lack.words for lack in differing)}"
            if not is_empty(self._session, table.schema, table.name):
                return "the target has this table already, with rows"
        return ""

    def _changes(self) -> Iterator[Remark]:
        altered = altered_by(self._subject, self._dialect)
        if altered is None:
            yield self._refused(UNCLEAR)
            return
        yield from self._losses(f"{self._subject.label}: {loss}" for loss in altered.losses())
        yield from self._forms()

    def _statement(self, text: Rewritten) -> Iterator[Remark]:
        yield from self._losses(text.losses)
        if self._subject.job.kind.makes_tables:
            return
        said = self._said(text.sql) if text.sql and not text.may_fail else ""
        if said:
            yield self._refused(said)

    def _forms(self) -> Iterator[Remark]:
        """The form in which the target will take each table as the job leaves the table."""
        for losses, refused in forms(self._session, self._subject, self._dialect, self._seen.present):
            if refused:
                yield self._refused(refused)
            yield from self._losses(losses)

    def _losses(self, losses: Iterable[str]) -> Iterator[Remark]:
        """The losses that no DDL before had."""
        for loss in losses:
            if loss not in self._seen.losses:
                self._seen.losses.add(loss)
                yield note(self._where, f"the target cannot hold: {loss}")

    def _said(self, sql: str) -> str:
        """What the server says against the statement; empty if nothing. TiDB is given its own text."""
        if self._dialect.flavour is Flavour.TIDB:
            return ""
        try:
            self._session.use(self._subject.schema or "information_schema")
        except ServerRefused:
            self._session.use("information_schema")  # a waiting DDL makes the database
        try:
            self._session.execute(f"PREPARE {_NAME} FROM %s", [sql])
        except ApplyError as error:
            if isinstance(error, RetryableApplyError) and error.errno != _READ_ONLY_TRANSACTION:
                raise
            return "" if error.errno in _SAYS_NOTHING else f"error {error.errno}, {error.words}"
        self._session.execute(f"DEALLOCATE PREPARE {_NAME}")
        return ""

    @property
    def _where(self) -> str:
        job = self._step.job
        return f"DDL of job {job.id} on {self._subject.label} ({_short(job)})"

    def _refused(self, why: str) -> Remark:
        if self._subject.of_views:
            return note(self._where, view_waits(self._subject.label, why))
        todo = (
            f"repair the target. Or skip the DDL with syncer.ignore-txn-commit-ts: the error that stops the stream names the commit_ts, which is just below "
            f"{self._step.job.finished_ts}. Or set spark.ddl-policy to skip or quarantine"
        )
        return hinders(self._where, f"will be refused: {why}", todo)


def _short(job: Job) -> str:
    text = " ".join(job.query.split())
    return text if len(text) <= 100 else text[:99] + "…"


def begun(session: Target, waiting: WaitingDdls, config: ApplyConfig, cluster_id: int) -> Iterator[tuple[Job, Remark]]:
    """The jobs that a start will not execute: their effect is in the target, or nobody can tell.

    Raises:
        ApplyError: ``spark_ddl`` cannot be read.
    """
    marks = f"{quote_name(config.checkpoint_schema)}.spark_ddl"
    rows = session.query(
        f"SELECT job_id, early, {RECORDED} FROM {marks} WHERE cluster_id = %s AND state IN (%s, %s) AND picture IS NOT NULL",
        [cluster_id, INTENT, REFUSED],
    )
    records = {int(row[0]): row[1:] for row in rows}
    for step in waiting.steps() if records else ():
        if step.job.id not in records:
            continue
        early, *row = records[step.job.id]
        earlier = RecordedTry(*row)
        step = decided(replace(step, commit_ts=int(earlier.commit_ts), early=bool(early)), waiting.history, Selection.of(config))
        if step.decision.fate is not DdlFate.APPLIED or step.skip_ts in config.ignore_txn_commit_ts:
            continue
        subject = subject_of(step, waiting.history, waiting.frozen, Routes.of(config))
        dialect = dialect_of(session, config, subject.after)
        if subject.given.form in (DdlForm.NOTHING, DdlForm.FROZEN) or scattered(session, subject):
            continue
        where = f"DDL of job {step.job.id} on {subject.label}"
        try:
            if _has_run(session, step, subject, dialect, earlier, marks):
                yield step.job, note(where, "an earlier life began it, and the target shows its effect: it is not executed again")
        except RetryableApplyError:
            raise
        except ApplyError as error:
            yield step.job, hinders(where, str(error), "decide this before you start the stream")


def _has_run(session: Target, step: DdlStep, subject: Subject, dialect: Dialect, earlier: RecordedTry, marks: str) -> bool:
    if not by_changes(subject, dialect):
        return ExecutionCheck(session, step, subject, dialect, marks).has_run(earlier, snapshot_of(session, subject))
    altered, old = altered_by(subject, dialect), subject.old
    there = read_whole(session, old.schema, old.name) if old else None
    return altered is not None and there is not None and not altered.clauses(Presence(altered, there).missing())
