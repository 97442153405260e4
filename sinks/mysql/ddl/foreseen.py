"""Predicts before a stream starts which of the waiting DDLs the target will refuse, and what became of those that were begun: for ``drainer --check``. [db]

Promises: nothing of the target changes. A table is made as a temporary one, in the form that the target takes (``ladder.rehearsed``). Any other statement is given
to PREPARE, which parses it and executes nothing. Tables that it needs, or that are in its way, are looked up as the DDLs before it will leave them. What only execution
shows is not predicted: rows that do not fit, a full server. The text is the user's own, because TiDB's text is only in the binlog. A DDL that was begun is judged by its row in ``spark_ddl`` and the target.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import On
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import Job, JobType, SchemaHistory
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.after_state import unlike
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_plan import Changes, Refused, passed_by, planned
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import INTENT, RECORDED, REFUSED, RecordedTry, table_of
from pyspark_tidb_binlog.sinks.mysql.ddl.ladder import Rehearsed, rehearsed
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import ON_PARTITIONS
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import is_empty
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, sql_kind
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Outcomes, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_ddl import TargetDdl, TargetHere, ddl_of, look
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.views import view_waits
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import DdlClock, clock_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

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
        ddl = ddl_of(session, step, waiting.history, config, waiting.frozen, seen.outcomes)
        how = passed_by(ddl)
        if how == "filtered":
            seen.outcomes[step.job.id] = how
        if how in ("filtered", "ignored"):
            continue
        if not how:
            yield from _Look(session, ddl, seen).remarks()
        seen.after(ddl.subject)


_OF_SERVERS = ("information_schema", "performance_schema", "sys")


def forms(session: Target, subject: Subject, dialect: Dialect, databases: Collection[str]) -> Iterator[Rehearsed]:
    """Find out, as far as the account can, what the target will lack of each table after the job, and why it will take no form of it.

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
    """Tables and databases that the target will have when the next DDL is executed."""

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

    def __init__(self, session: Target, ddl: TargetDdl, seen: _Seen) -> None:
        self._session = session
        self._ddl = ddl
        self._subject = ddl.subject
        self._seen = seen

    def remarks(self) -> Iterator[Remark]:
        subject, old = self._subject, self._subject.old
        # How rows are distributed over partitions is read now. Of anything else, a waiting DDL may change the table first.
        divided = old is not None and subject.job.kind.effect in ON_PARTITIONS
        table = read_whole(self._session, old.schema, old.name) if old is not None and divided else None
        plan = planned(self._ddl, TargetHere(DdlClock(subject), table=table))
        if isinstance(plan, Refused):
            yield self._refused(plan.why)
        elif why := self._why_not_here() or clock_of(self._session, subject).why_not:
            yield self._refused(why)
        elif isinstance(plan, Changes):
            yield from self._losses(f"{subject.label}: {loss}" for loss in plan.altered.losses())
            yield from self._forms()
        else:
            yield from self._losses(plan.losses)
            if subject.job.kind.makes_tables:
                yield from self._forms()
                return
            said = (self._said(text.sql) for text in plan.texts if text.sql and not text.may_fail)
            yield from (self._refused(words) for words in said if words)

    def _why_not_here(self) -> str:
        """Return what the target lacks for the DDL, or has in its way."""
        subject, seen = self._subject, self._seen
        if subject.schema and subject.job.kind.on is not On.DATABASE and subject.schema.lower() not in seen.databases:
            return f"the target has no database {subject.schema}"
        if subject.job.kind.on is not On.DATABASE and sql_kind(subject.job).judged not in _NEEDS_NOTHING:
            lacking = [t for t in subject.before if (t.schema.lower(), t.name.lower()) not in seen.tables]
            return f"the target has no table {lacking[0].label}" if lacking else ""
        if subject.job.type == JobType.RECOVER_TABLE and any((t.schema.lower(), t.name.lower()) in seen.tables for t in subject.after):
            return f"the target has a table {subject.label}"
        if not subject.job.kind.makes_tables:
            return ""
        for table in subject.after:
            place = table.schema.lower(), table.name.lower()
            if place not in seen.tables or place in seen.made:
                continue
            differing = unlike(subject, self._ddl.dialect, table, read_whole(self._session, table.schema, table.name))
            if differing:
                return f"the target has another table of this name: {'; '.join(lack.words for lack in differing)}"
            if not is_empty(self._session, table.schema, table.name):
                return "the target has this table already, with rows"
        return ""

    def _forms(self) -> Iterator[Remark]:
        """The form in which the target will take each table as the job leaves the table."""
        for losses, refused in forms(self._session, self._subject, self._ddl.dialect, self._seen.present):
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
        """Ask the server what it has against the statement; empty if nothing. TiDB is given its own text."""
        if self._ddl.dialect.flavour is Flavour.TIDB:
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
        job = self._ddl.step.job
        text = " ".join(job.query.split())
        return f"DDL of job {job.id} on {self._subject.label} ({text if len(text) <= 100 else text[:99] + '…'})"

    def _refused(self, why: str) -> Remark:
        if self._subject.of_views:
            return note(self._where, view_waits(self._subject.label, why))
        todo = (
            f"repair the target. Or skip the DDL with syncer.ignore-txn-commit-ts: the error that stops the stream names the commit_ts, which is just below "
            f"{self._ddl.step.job.finished_ts}. Or set spark.ddl-policy to skip or quarantine"
        )
        return hinders(self._where, f"will be refused: {why}", todo)


def begun(session: Target, waiting: WaitingDdls, config: ApplyConfig, cluster_id: int) -> Iterator[tuple[Job, Remark]]:
    """The jobs that a start will not execute: their effect is in the target, or nobody can tell.

    Raises:
        ApplyError: ``spark_ddl`` cannot be read.
    """
    rows = session.query(
        f"SELECT job_id, early, {RECORDED} FROM {table_of(config)} WHERE cluster_id = %s AND state IN (%s, %s) AND picture IS NOT NULL",
        [cluster_id, INTENT, REFUSED],
    )
    records = {int(row[0]): row[1:] for row in rows}
    for step in waiting.steps() if records else ():
        if step.job.id not in records:
            continue
        early, *row = records[step.job.id]
        earlier = RecordedTry(*row)
        step = decided(replace(step, commit_ts=int(earlier.commit_ts), early=bool(early)), waiting.history, Selection.of(config))
        ddl = ddl_of(session, step, waiting.history, config, waiting.frozen)
        if passed_by(ddl):
            continue
        where = f"DDL of job {step.job.id} on {ddl.subject.label}"
        try:
            plan = planned(ddl, look(session, ddl, was_begun=True), earlier)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            yield step.job, hinders(where, str(error), "decide this before you start the stream")
        else:
            if not isinstance(plan, Refused) and plan.done:
                yield step.job, note(where, "an earlier life began it, and the target shows its effect: it is not executed again")
