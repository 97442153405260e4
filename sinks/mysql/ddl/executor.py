"""Executes one DDL on the target exactly once: intent recorded before, done recorded after; after a crash the target is read first. [db]

Promises: the intent row (``spark_ddl``: text and ``SchemaSnapshot`` of the affected tables) is committed before the statement runs. The done state is committed
together with what ``on_done`` writes, the checkpoint. A call that finds an earlier attempt first determines from the target whether its effect is there and never
applies it a second time. Nothing is dropped silently: what the target cannot hold is in ``DdlOutcome.losses`` and in the row, and ``tries`` keeps every refusal:
time, statement, and the server's message. ``ddl_plan`` decides, ``attempt`` executes; what the target refuses goes down the ladder of ``attempt``.
A view that the target refuses is left out (``LEFT_OUT``), because it holds no rows, and tried again before a DDL that may make what it lacks is recorded as done. It is
recorded with that DDL: after a crash both are made again, and a view that stands counts as made.

    no row --intent--> INTENT --executed, or its effect found--> DONE
                          |--refused, policy skip / quarantine--> SKIPPED / QUARANTINED
          |  with sync-ddl = false--> NOT_SYNCED, nothing is executed: rows go on by the target's own tables
                          `--refused, policy stop--> REFUSED and DdlRefused
    REFUSED --next start, effect found (made by an operator)--> DONE
       `--next start, effect not found--> INTENT, with a new snapshot of the target
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, JobType
from pyspark_tidb_binlog.schemas.errors import ApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.schema_snapshot import table_as_job
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, frozen_by, unwritten
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.attempt import DdlAttempt, frozen_words, has_view, make
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_plan import Changes, Refused, Statements, out_of_place, passed_by, planned
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DONE, LEFT_OUT, NOT_SYNCED, SKIPPED, DdlOutcome, DdlRecord, RecordedTry, table_of
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import FREEZES, lacks
from pyspark_tidb_binlog.sinks.mysql.ddl.row_values import converted_otherwise, other_values
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import EXISTS_TABLE, SentDdl, execute
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, sql_kind
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import NOTHING_KEPT, SchemaSnapshot, TargetDdl, ddl_of, look, read_after
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, check, lock_name
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL, alone
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.transactions import in_transaction, with_autocommit
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes

_log = logging.getLogger(__name__)

_EXECUTED = frozenset({"text", "changes", "derived", "found"})
"""``DdlOutcome.how``."""
_MAY_HELP = (JobEffect.MAKES, JobEffect.RENAMES, JobEffect.RESTORES)


def apply_ddl(
    session: Target,
    step: DdlStep,
    history: SchemaHistory,
    config: ApplyConfig,
    lease: Lease,
    on_done: Callable[[Target], None],
    frozen: FrozenTables = NONE_FROZEN,
    *,
    in_doubt: bool = False,
    policy: RetryPolicy = FEW,
) -> DdlOutcome:
    """Complete ``step`` on the target, however much of it a crashed predecessor has done.

    Args:
        session: no transaction may be open on it, and no database but the DDL's may be current (``session.begin_ddl``).
        step: from ``segments.plan_steps``.
        history: the one ``step`` was planned with.
        config: policy, filters and the schema of the table of DDL records.
        lease: checked before everything that is written or executed; its cluster is the one of the DDL.
        on_done: writes the checkpoint; runs in the transaction that records the DDL as done, before its commit.
        frozen: the tables of which a DDL was not executed on the target.
        in_doubt: another Drainer may have executed this DDL, and later ones (``ddl_plan.is_there``).
        policy: hears what is waited for while a statement of a predecessor is still running; its ``pause`` may raise to end the wait.

    Raises:
        DdlRefused: the target refused every form and the policy is ``stop``.
        LeaseLost: another Drainer has the lease; nothing was executed.
        RetryableApplyError: the connection was lost; call again with a new session.
        ApplyError: after a crash it cannot be determined whether the statement ran.
    """
    ddl = ddl_of(session, step, history, config, frozen, in_doubt=in_doubt)
    return _Run(session, ddl, lease, on_done, frozen).run(policy)


class _Run:
    def __init__(self, session: Target, ddl: TargetDdl, lease: Lease, on_done: Callable[[Target], None], frozen: FrozenTables) -> None:
        self._session, self._ddl, self._lease, self._on_done, self._frozen = session, ddl, lease, on_done, frozen
        self._step, self._subject = ddl.step, ddl.subject
        self._row = DdlRecord(session, ddl.step, ddl.config, lease)

    def run(self, policy: RetryPolicy) -> DdlOutcome:
        if how := passed_by(self._ddl):
            if (ended := self._row.ended(self._row.read())) is not None:
                return ended
            if how == "ignored":
                return self._finish(self._ignored())
            _log.info("DDL at commit_ts %d is not for the target (%s): %s", self._step.commit_ts, how, self._step.query)
            return self._finish(DdlOutcome(NOT_SYNCED if how == "sync-ddl" else DONE, how, ""))
        # MariaDB 10.11 blocks itself in EXCHANGE PARTITION without autocommit. No other process can take the lease while this one has the DDL lock. If
        # this process is suspended, the server closes its connection, which releases the lock, before another process can continue. So no statement is
        # executed late.
        with alone(self._session, lock_name(DDL, self._lease.schema, self._lease.cluster_id), policy), with_autocommit(self._session):
            check(self._session, self._lease)
            return self._run_locked()

    def _ignored(self) -> DdlOutcome:
        """The DDL is listed in ``ignore-txn-commit-ts``, or a rule leaves it out: if rows need what the target lacks then, the table is frozen from here on."""
        subject, lacking = self._subject, self._subject.given.form is DdlForm.FROZEN
        if not lacking:
            after = read_after(self._session, subject.after)
            lacking = any(lack.kind in FREEZES for lack in lacks(subject, self._ddl.dialect, after))
        if lacking:
            return DdlOutcome(SKIPPED, "ignored", self._step.query, (frozen_words(self._ddl, SKIPPED, self._step.query),))
        return DdlOutcome(DONE, "ignored", self._step.query, () if self._ddl.in_doubt else other_values(self._session, subject))

    def _run_locked(self) -> DdlOutcome:
        record = self._row.read()
        if (ended := self._row.ended(record)) is not None:
            return ended
        earlier = record if record is not None and record.unfinished else None
        here = look(self._session, self._ddl, was_begun=earlier is not None)
        plan = planned(self._ddl, here, earlier)
        attempt = DdlAttempt(self._session, self._row, self._ddl, here)
        match plan:
            case Refused():
                query = self._step.query
                self._row.note_try(plan.step, query, ApplyError(plan.why))  # in the intent, too: it is none to be executed
                if earlier is None or earlier.refused:
                    self._write_intent(plan.sql or query, here.now)
                outcome = attempt.by_policy(query, plan.why)
            case Changes():
                outcome = self._change(attempt, plan, earlier)
            case Statements(done=True):
                _log.warning("the DDL at commit_ts %d was executed already: %s", self._step.commit_ts, plan.sql)
                outcome = attempt.complete(plan, earlier.executed if earlier else plan.sql)
            case _ if not plan.sql:
                _log.info("DDL at commit_ts %d needs no statement at the target", self._step.commit_ts)
                outcome = DdlOutcome(DONE, "nothing", "", plan.losses)
            case _:
                now = here.now
                if earlier is None or earlier.refused:
                    now = attempt.rebuilt(now)
                    self._write_intent(plan.sql, now)
                else:
                    attempt.unfinished = earlier.snapshot
                self._point("after-ddl-intent")
                outcome = attempt.execute(plan, now)
                self._point("after-ddl")
        return self._finish(outcome)

    def _change(self, attempt: DdlAttempt, plan: Changes, earlier: RecordedTry | None) -> DdlOutcome:
        """Make the changes that the target does not have; after a crash the same again."""
        if earlier is None or earlier.refused:
            self._write_intent(plan.sql or self._step.query, NOTHING_KEPT)
        self._point("after-ddl-intent")
        outcome = attempt.make(plan, "nothing" if earlier is None else "found")
        self._point("after-ddl")
        if outcome.freezes:
            return outcome
        losses = tuple(f"{self._subject.label}: {loss}" for loss in plan.altered.losses())
        return replace(outcome, losses=(*outcome.losses, *losses, *converted_otherwise(self._subject, self._ddl.dialect.flavour)))

    def _point(self, name: str) -> None:
        """A failpoint, and one for this type of DDL: ``after-ddl`` and ``after-ddl-exchange-partition``."""
        failpoints.point(name)
        failpoints.point(f"{name}-{self._subject.job.type_name.replace(' ', '-')}")

    def _write_intent(self, sql: str, snapshot: SchemaSnapshot) -> None:
        kept = NOTHING_KEPT if sql_kind(self._subject.job).judged is Judged.GONE else snapshot
        self._row.write_intent(sql, kept.to_json())

    def _finish(self, outcome: DdlOutcome) -> DdlOutcome:
        """Record the outcome, the tables that it freezes, and the checkpoint in one transaction."""
        outcome = replace(outcome, losses=tuple(dict.fromkeys((*self._row.losses, *outcome.losses))))
        if outcome.freezes:
            frozen = frozen_by(self._step.job, self._ddl.history, self._frozen, Selection.of(self._ddl.config).keeps)
            outcome = replace(outcome, frozen=frozen, losses=(*outcome.losses, *self._left_columns({**self._frozen, **frozen})))
        made = _made_by_now(self._session, self._ddl, self._lease.cluster_id) if outcome.how in _EXECUTED else {}
        with in_transaction(self._session):
            self._row.write_done(outcome)
            self._row.note_made(made)
            self._on_done(self._session)
            self._point("before-ddl-done")
        return outcome

    def _left_columns(self, frozen: FrozenTables) -> Iterator[str]:
        """The columns that rows have from here on, and that are not written, in words."""
        history, job = self._ddl.history, self._step.job
        for table_id in history.tables_of_job(job):
            table, at = history.table_at(table_id, job.version), frozen.get(table_id)
            if table is not None and at is not None and at.columns is not None and (names := unwritten(table, at)):
                yield f"{at.schema}.{at.name}: columns not written from here on: {', '.join(names)}"


def _made_by_now(session: Target, ddl: TargetDdl, cluster_id: int) -> Mapping[int, tuple[str, ...]]:
    """Make the left-out views that the target takes now, after ``ddl``; the losses of each, by the job that was left out."""
    if ddl.subject.job.kind.effect not in _MAY_HELP:
        return {}
    waiting, made = _waiting(session, ddl, cluster_id), dict[int, tuple[str, ...]]()
    while taken := {i: losses for i, view in waiting.items() if (losses := _made(session, view, ddl.dialect)) is not None}:
        made |= taken
        waiting = {i: view for i, view in waiting.items() if i not in taken}  # a view may need another
    return made


def _waiting(session: Target, ddl: TargetDdl, cluster_id: int) -> dict[int, Subject]:
    """The left-out views that are there upstream after ``ddl``, as they are then, by the job that was left out."""
    config, history, job = ddl.config, ddl.history, ddl.subject.job
    sql = f"SELECT job_id FROM {table_of(config)} WHERE cluster_id = %s AND state = %s AND note = %s ORDER BY version"
    views = dict[int, Subject]()
    for (job_id,) in session.query(sql, [cluster_id, DONE, LEFT_OUT]):
        for table_id in history.touched.get(int(job_id), ()) if job_id > 0 else (-int(job_id),):
            view = history.table_at(table_id, job.version)
            if job_id == job.id or view is None or not view.info.is_view:
                continue
            made = replace(table_as_job(view, history), type=int(JobType.CREATE_VIEW), version=job.version)
            at_target = Routes.of(config).moved(view)
            subject = Subject(made, "", at_target.schema, at_target.name, (), (at_target,))
            if not out_of_place(subject, history, config):
                views[int(job_id)] = subject
    return views


def _made(session: Target, subject: Subject, dialect: Dialect) -> tuple[str, ...] | None:
    """Make the view unless it is there; its losses; None: the target still refuses it."""
    try:
        session.use(subject.schema)
        losses = make(SentDdl(session, subject, dialect), execute)
    except ServerRefused as error:
        if error.errno != EXISTS_TABLE or not has_view(session, subject.after[0]):
            return None
        losses = ()
    _log.info("%s is made: the target takes it now", subject.label)
    return losses
