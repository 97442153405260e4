"""Predicts before a stream starts which of the waiting DDLs the target will refuse, and what became of those that were begun: for ``drainer --check``. [db]

Promises: nothing of the target changes. A table is made as a temporary one, in the form that the target takes (``attempt.make``). Any other statement is given
to PREPARE, which parses it and executes nothing. Tables that it needs, or that are in its way, are looked up as the DDLs before it will leave them. What only execution
shows is not predicted: rows that do not fit, a full server. The text is the user's own, because TiDB's text is only in the binlog. A DDL that was begun is judged by its row in ``spark_ddl`` and the target.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType, On
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.attempt import make, view_waits
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_plan import Changes, Refused, passed_by, planned
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import INTENT, RECORDED, REFUSED, RecordedTry, table_of
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import ON_PARTITIONS
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import unlike
from pyspark_tidb_binlog.sinks.mysql.ddl.row_values import DdlClock, clock_of
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import SentDdl
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, sql_kind
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlDelivery, DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import TargetDdl, TargetHere, ddl_of, is_empty, look
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

_NAME = "tidb_binlog_check"
_READ_ONLY_TRANSACTION = 1792
"""MariaDB's answer to a DDL that it has parsed without an error, in the caller's transaction."""
_SAYS_NOTHING = frozenset({1044, 1046, 1049, 1142, 1143, 1146, 1227, 1295, 1356, 1461, 4031, _READ_ONLY_TRANSACTION})
"""Rights are judged elsewhere, names change until then, and some statements cannot be prepared."""
_CANNOT_TRY = frozenset({1044, 1046, 1049, 1142, 1227, 1290})
"""No database, or no right to make a temporary table in it."""
_NEEDS_NOTHING = frozenset({Judged.MADE, Judged.GONE})
"""Their tables need not be there."""
_OF_SERVERS = ("information_schema", "performance_schema", "sys")

Place = tuple[str, str]
"""Database and table, in lower case."""


@dataclass(frozen=True, slots=True)
class WaitingDdls:
    """The jobs between the target's version and the upstream's, and what is known of them."""

    after_ts: int
    history: SchemaHistory
    applied: AppliedJobs
    frozen: FrozenTables = field(default_factory=dict)

    def steps(self) -> tuple[DdlStep, ...]:
        """The DDLs between the checkpoint and now; the binlogs' commit_ts are not known, so they have the jobs' FinishedTS."""
        applied = self.applied.at(self.after_ts, self.history)
        events, at = [], self.after_ts
        for job in (job for job in self.history.ordered if job not in applied):
            at = max(at + 1, job.finished_ts)
            events.append(DdlEvent(at, job.id, job.query, 5))
        return tuple(
            step for step in plan_steps((self.after_ts, at + 1), events, (), self.history, self.applied) if isinstance(step, DdlStep)
        )


class Rehearsed(NamedTuple):
    """Result of making a table on trial."""

    losses: tuple[str, ...] = ()
    refused: str = ""
    """Why the server takes no form of it; empty: it takes one."""


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
        tried = (_rehearsed(session, place, subject, table, dialect) for place in places)
        yield next((found for found in tried if found is not None), Rehearsed())


def _rehearsed(session: Target, database: str, subject: Subject, table: TableAt, dialect: Dialect) -> Rehearsed | None:
    """Make ``table`` as a temporary one; None: the account may not make one in ``database``.

    Foreign keys and partitions, which such a table cannot have, and sequences, which a DDL before may make, are left out of it.
    """
    columns = tuple(
        replace(c, default=None, default_is_expr=False) if "nextval(" in str(c.default).lower() else c for c in table.info.columns
    )
    info = replace(table.info.without_partitions(), foreign_keys=(), columns=columns)
    job = replace(subject.job, type=JobType.CREATE_TABLE, table_info=info)
    as_made = replace(subject, job=job, before=(), after=(replace(table, info=info),), given=DdlDelivery(DdlForm.INFOS))
    own, temporary = table_name(table.schema, table.name), table_name(database, _NAME)

    def send(ddl: SentDdl) -> None:
        sql = ddl.sql.replace(own, temporary, 1)
        session.execute(sql.replace("CREATE TABLE", "CREATE TEMPORARY TABLE", 1) if sql.startswith("CREATE TABLE") else sql)

    session.rollback()  # the caller's transaction only reads, and may not make even a temporary table
    try:
        return Rehearsed(make(SentDdl(session, as_made, dialect, number=0), send))
    except ServerRefused as error:
        return None if error.errno in _CANNOT_TRY else Rehearsed(refused=error.said)
    finally:
        with contextlib.suppress(ApplyError):
            session.execute(f"DROP TEMPORARY TABLE IF EXISTS {temporary}")
            session.execute("START TRANSACTION READ ONLY")


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
    selection, seen = Selection.of(config), _Foresight(session, set(tables), set(databases))
    for step in waiting.steps():
        step = decided(step, waiting.history, selection)
        ddl = ddl_of(session, step, waiting.history, config, waiting.frozen)
        how = passed_by(ddl)
        if how in ("filtered", "ignored"):
            continue
        if not how:
            yield from seen.remarks(ddl)
        seen.passed(ddl.subject)


class _Foresight:
    """The tables and databases that the target will have when the next DDL is executed, and what it will say to that DDL."""

    def __init__(self, session: Target, tables: set[Place], databases: set[str]) -> None:
        self._session, self._tables, self._databases, self._present = session, tables, databases, frozenset(databases)
        self._made = set[Place]()
        """Of the tables, those that a waiting DDL makes."""
        self._losses = set[str]()

    def passed(self, subject: Subject) -> None:
        gone, come = ({(t.schema.lower(), t.name.lower()) for t in tables} for tables in (subject.before, subject.after))
        self._tables = (self._tables - gone) | come
        self._made = (self._made - gone) | (come - (gone - self._made))
        if subject.job.type == JobType.CREATE_SCHEMA:
            self._databases.add(subject.schema.lower())
        elif subject.job.type == JobType.DROP_SCHEMA:
            self._databases.discard(subject.schema.lower())

    def remarks(self, ddl: TargetDdl) -> Iterator[Remark]:
        subject, old, text = ddl.subject, ddl.subject.old, " ".join(ddl.step.job.query.split())
        where = f"DDL of job {ddl.step.job.id} on {subject.label} ({text if len(text) <= 100 else text[:99] + '…'})"
        # How rows are distributed over partitions is read now. Of anything else, a waiting DDL may change the table first.
        divided = old is not None and subject.job.kind.effect in ON_PARTITIONS
        table = read_whole(self._session, old.schema, old.name) if old is not None and divided else None
        plan = planned(ddl, TargetHere(DdlClock(subject), table=table))
        refused, losses = list[str](), list[str]()
        if isinstance(plan, Refused):
            refused.append(plan.why)
        elif why := self._why_not_here(ddl) or clock_of(self._session, subject).why_not:
            refused.append(why)
        else:
            losses += (f"{subject.label}: {loss}" for loss in plan.altered.losses()) if isinstance(plan, Changes) else plan.losses
            if isinstance(plan, Changes) or subject.job.kind.makes_tables:
                for form in forms(self._session, subject, ddl.dialect, self._present):
                    refused.append(form.refused)
                    losses += form.losses
            else:
                refused += (self._said(ddl, text.sql) for text in plan.texts if text.sql and not text.may_fail)
        for why in filter(None, refused):
            yield self._refused(ddl, where, why)
        for loss in dict.fromkeys(losses):
            if loss not in self._losses:  # no DDL before had it
                self._losses.add(loss)
                yield note(where, f"the target cannot hold: {loss}")

    def _why_not_here(self, ddl: TargetDdl) -> str:
        """Return what the target lacks for the DDL, or has in its way."""
        subject, kind = ddl.subject, ddl.subject.job.kind
        if subject.schema and kind.on is not On.DATABASE and subject.schema.lower() not in self._databases:
            return f"the target has no database {subject.schema}"
        if kind.on is not On.DATABASE and sql_kind(subject.job).judged not in _NEEDS_NOTHING:
            lacking = [t for t in subject.before if (t.schema.lower(), t.name.lower()) not in self._tables]
            return f"the target has no table {lacking[0].label}" if lacking else ""
        there = [t for t in subject.after if (t.schema.lower(), t.name.lower()) in self._tables]
        for table in there if kind.makes_tables else ():
            if (table.schema.lower(), table.name.lower()) in self._made:
                continue
            differing = unlike(subject, ddl.dialect, table, read_whole(self._session, table.schema, table.name))
            if differing:
                return f"the target has another table of this name: {'; '.join(lack.words for lack in differing)}"
            if not is_empty(self._session, table.schema, table.name):
                return "the target has this table already, with rows"
        return ""

    def _said(self, ddl: TargetDdl, sql: str) -> str:
        """Ask the server what it has against the statement; empty if nothing. TiDB is given its own text."""
        if ddl.dialect.flavour is Flavour.TIDB:
            return ""
        try:
            self._session.use(ddl.subject.schema or "information_schema")
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

    def _refused(self, ddl: TargetDdl, where: str, why: str) -> Remark:
        if ddl.subject.of_views:
            return note(where, view_waits(ddl.subject.label, why))
        todo = (
            f"repair the target. Or skip the DDL with syncer.ignore-txn-commit-ts: the error that stops the stream names the commit_ts, which is just below "
            f"{ddl.step.job.finished_ts}. Or set spark.ddl-policy to skip or quarantine"
        )
        return hinders(where, f"will be refused: {why}", todo)


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
