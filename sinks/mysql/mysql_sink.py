"""MySQL, MariaDB and TiDB as a target (``sinks.sink``): sessions, transactions, DDLs, and the record of them in the checkpoint schema.

Promises: those of the contract. The target's checkpoint row is the record: it is written in the transaction of its data. Every transaction
first checks the lease of this life (``sinks.mysql.lease``). ``apply`` is ONE transaction of the driver; ``apply_parts`` is one per part and
phase (``sinks.mysql.parallel``), with ``consistent`` false in the meantime. A DDL has its own intent and done rows
(``sinks.mysql.ddl.executor``).
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import wanted
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.choice import schema_of
from pyspark_tidb_binlog.sinks.engine.frozen import RefusedJobs
from pyspark_tidb_binlog.sinks.engine.hidden import marked
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep
from pyspark_tidb_binlog.sinks.mysql import lease, old_layout, parallel, progress
from pyspark_tidb_binlog.sinks.mysql.checked import Effects, checked
from pyspark_tidb_binlog.sinks.mysql.ddl import text
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import (
    DdlOutcome,
    apply_ddl,
    begin_ddl,
    ensure_ddl_table,
    forget_later,
    load_applied,
    load_refused,
)
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.kept_sessions import KeptSessions
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LAYOUT, LeaseGuard, alone
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits, plan_rows
from pyspark_tidb_binlog.sinks.mysql.progress import SyncPoint
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, TransientError
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect, run_retried, run_transaction
from pyspark_tidb_binlog.sinks.mysql.sync_points import SyncPoints
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink, TargetProgress

_log = logging.getLogger(__name__)

T = TypeVar("T")


class MySQLSink(Sink):
    """One target of one stream."""

    def __init__(self, config: DrainerConfig, cluster_id: int, pause: Callable[[float], None] = time.sleep) -> None:
        """``cluster_id`` 0: the only one that the target has a record of. ``pause`` sleeps between retries; it may raise to stop them."""
        self._config = config
        self._settings = config.apply
        self._cluster_id = cluster_id
        self._filters = Selection.of(config.apply).text
        self._limits = PlanLimits()
        self._flavour = Flavour.MARIADB
        self._lease: Lease | None = None
        self._guard: LeaseGuard | None = None
        self._shipped: ShippedTarget | None = None
        self._commit_ts = 0
        self._consistent = True
        """False while a span is only partly in the target."""
        self._together = True
        """Whether Spark runs all parts of a span at the same time, as far as is known."""
        self._waiting_for: TransientError | None = None
        self._sync_points = SyncPoints() if config.apply.db_type == "tidb" else None
        self._sync_point: SyncPoint | None = None
        self._sessions = KeptSessions(self._connect, config.apply.lease_timeout)
        self._ddl_sessions = KeptSessions(self._connect_for_ddls, config.apply.lease_timeout)
        """Sessions of their own, because a DDL chooses a current database, which cannot be undone."""
        self._retry_policy = RetryPolicy(config.apply.retries, config.apply.retry_seconds, pause, self._wait_for)

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Take the lease, create the tables and load the target's progress (``Sink.open``)."""
        schema = self._settings.checkpoint_schema
        run_retried(self._sessions.use, self._get_to_know, self._retry_policy)
        holder = LeaseHolder(self._settings.drainer)
        self._guard = LeaseGuard(self._connect, self._cluster_id, schema, holder, self._settings.lease_timeout, self._retry_policy)
        self._lease = self._guard.take()
        found = run_retried(self._sessions.use, partial(self._stand, history()), self._retry_policy)
        self._sync_point = run_retried(self._sessions.use, self._load_sync_point, self._retry_policy)
        self._commit_ts = begin(self._lease.target, found.commit_ts if found.known else None)
        self._transact(self._forget_beyond)
        version = found.schema_version or history().version_at(self._commit_ts)
        applied, refused = run_retried(self._sessions.use, partial(self._done_and_refused, version), self._retry_policy)
        if not found.known:
            self._transact(partial(self._save_first, applied))
        self._consistent = found.unfinished is None
        return Opened(replace(found, commit_ts=self._commit_ts, schema_version=version), applied, refused)

    def close(self) -> None:
        """Release the lease (``Sink.close``)."""
        self._sessions.close()
        self._ddl_sessions.close()
        if self._guard is not None:
            self._guard.close()

    @property
    def commit_ts(self) -> int:
        """Everything up to and including this commit_ts is in the target."""
        return self._commit_ts

    @property
    def target(self) -> str:
        """The identity of the target; available after ``open``."""
        return self._held.target

    @property
    def lost(self) -> LeaseLost | None:
        """Why nothing more may be written."""
        return self._guard.lost if self._guard is not None else None

    @property
    def waiting_for(self) -> TransientError | None:
        """The target's transient error while it is being retried."""
        return self._waiting_for

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        """What the target cannot hold of jobs without a statement (``Sink.silent_losses``)."""
        return text.silent_losses(history, after_version, upto_version)

    # Opening.

    def _get_to_know(self, session: Session) -> None:
        self._flavour = session.flavour
        # Leaves room for the packet header, and for a server that measures the statement in its own charset.
        self._limits = replace(self._limits, max_bytes=min(self._limits.max_bytes, session.max_allowed_packet * 3 // 4))
        self._cluster_id = self._cluster_id or progress.only_cluster(session, self._settings.checkpoint_schema)

    def _done_and_refused(self, version: int, session: Session) -> tuple[AppliedJobs, RefusedJobs]:
        cluster_id = self._cluster_id
        return load_applied(session, self._settings, cluster_id, version), load_refused(session, self._settings, cluster_id)

    def _stand(self, history: SchemaHistory, session: Session) -> TargetProgress:
        schema = self._settings.checkpoint_schema
        with alone(session, lease.lock_name(LAYOUT, schema, 0), self._retry_policy.pause):
            old_layout.set_aside(session, schema)
            progress.ensure_tables(session, schema)
            ensure_ddl_table(session, self._settings)
            session.commit()
            old_layout.adopt(session, self._held, self._settings.drainer, history)
        # An older release, which does not check the lease, may still have a commit in progress on the server: wait for it before reading.
        progress.lock_checkpoint(session, self._cluster_id, schema)
        return progress.load(session, self._cluster_id, schema)

    def _load_sync_point(self, session: Session) -> SyncPoint | None:
        return progress.load_sync_point(session, self._cluster_id, self._settings.checkpoint_schema)

    def _forget_beyond(self, session: Session) -> None:
        """Delete DDL and part records later than the checkpoint: they are written together with it, so they describe data that is gone."""
        schema = self._settings.checkpoint_schema
        progress.forget_other_spans(session, self._cluster_id, self._commit_ts, schema)
        jobs = forget_later(session, self._settings, self._cluster_id, self._commit_ts)
        if jobs:
            _log.warning(
                "%s.spark_ddl recorded DDL jobs %s as done after the checkpoint %d: the target's data was restored or its checkpoint was set back. Their "
                "records were deleted; the DDLs are executed again",
                schema,
                jobs,
                self._commit_ts,
            )

    def _save_first(self, applied: AppliedJobs, session: Session) -> None:
        self._locked_checkpoint(session, 0, self._commit_ts)
        self._save(session, self._commit_ts, applied, consistent=True)

    # Rows in one transaction.

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Plan and write in one transaction of the driver (``Sink.apply``)."""
        with clock.timed(Stage.PLAN):
            plan = self._plan(rows, step) if rows.num_rows else Plan()
        with clock.timed(Stage.APPLY, "write"):
            findings = self._write_atomic(plan, step)
        failpoints.point("after-downstream-commit")
        self._commit_ts = step.upto_ts
        self._note_sync_point(step.applied)
        return Written(plan.counts.deleted + plan.counts.written, findings)

    def _plan(self, rows: pa.Table, step: RowsStep) -> Plan:
        return plan_rows(marked(wanted(rows, step.gone, step.left_out), step.hidden), step.tables, self._limits, flavour=self._flavour)

    def _write_atomic(self, plan: Plan, step: RowsStep) -> tuple[Finding, ...]:
        """The lease is checked in ``_write_rows``, because ``checked`` may roll back and open another transaction."""

        def work(session: Session) -> tuple[Finding, ...]:
            return checked(session, self._settings, lambda effects: self._write_rows(session, effects, plan, step))[1]

        return run_transaction(self._sessions.use, work, self._retry_policy)

    def _write_rows(self, session: Session, effects: Effects, plan: Plan, step: RowsStep) -> None:
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id
        lease.check(session, self._held)
        if not self._next_is(session, step):
            return
        failpoints.point("before-deletes")
        effects.run(plan.deletes)
        failpoints.point("between-phases")
        effects.run(plan.writes)
        progress.mark_atomic(session, cluster_id, step.after_ts, step.upto_ts, schema)
        self._save(session, step.upto_ts, step.applied, consistent=True)
        failpoints.point("before-downstream-commit")

    # Rows in parts.

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """One transaction for each part and phase, by the executors (``Sink.apply_parts``)."""
        schema, cluster_id, parts = self._settings.checkpoint_schema, self._cluster_id, events.parts

        def begin(session: Session) -> bool:
            if not self._next_is(session, step):
                return False
            progress.begin_span(session, cluster_id, step.after_ts, step.upto_ts, parts, schema, events.numbering, self._filters)
            self._save(session, step.after_ts, step.applied, consistent=False)
            return True

        def finish(session: Session) -> None:
            if self._next_is(session, step):
                progress.finish_span(session, cluster_id, step.after_ts, step.upto_ts, schema)
                self._save(session, step.upto_ts, step.applied, consistent=True)
            failpoints.point("before-downstream-commit")

        if not self._transact(begin):
            self._commit_ts, self._consistent = step.upto_ts, True
            return Written()
        self._consistent = False
        failpoints.point("before-deletes")
        span = (step.after_ts, step.upto_ts)
        skipped = frozenset(ts for ts in skipped_ts if step.after_ts < ts <= step.upto_ts)
        how = parallel.PartPlan(span, dict(step.tables), self._flavour, self._limits, skipped, step.gone, step.left_out, step.hidden)
        to = parallel.PartTarget(self._ship(events), self._settings, self._held, step.after_ts, step.upto_ts, parts)
        done = self._apply_phases(events, how, to, clock)
        self._transact(finish)
        failpoints.point("after-downstream-commit")
        self._commit_ts, self._consistent = step.upto_ts, True
        self._note_sync_point(step.applied)
        return done

    def _apply_phases(self, events: KeyedEvents, how: parallel.PartPlan, to: parallel.PartTarget, clock: StageClock) -> Written:
        """In one Spark job if all parts can run at the same time, else in a second one for those that could not wait for the others."""
        self._together = self._together and events.parts <= events.frame.sparkSession.sparkContext.defaultParallelism
        written = Written()
        for together in (self._together, False):
            with clock.timed(Stage.APPLY, "write"):
                done = parallel.apply_phases(events, how, to, together=together)
            clock.move("write", "plan+delete", done.seconds)
            written = Written(written.rows + done.written.rows, written.findings + done.written.findings)
            if not done.left:
                return written
            self._together = False
        raise ApplyError(
            f"{done.left} of {to.parts} parts of ({to.after_ts}, {to.upto_ts}] are not written: markers of finished deletes are missing in "
            f"{to.apply.checkpoint_schema}.spark_progress. Were rows deleted there? Start the Drainer again, it finishes the span"
        )

    def _ship(self, events: KeyedEvents) -> ShippedTarget:
        """The target for the executors; broadcast once."""
        if self._shipped is None:
            self._shipped = ShippedTarget.of(self._config.target, events.frame.sparkSession.sparkContext.broadcast)
        return self._shipped

    # DDLs.

    def apply_ddl(self, step: DdlStep, history: SchemaHistory, refused: RefusedJobs) -> DdlResult:
        """Reconnects after a lost connection; the executor then determines how much of the DDL the server executed (``Sink.apply_ddl``)."""

        def work(session: Session) -> DdlOutcome:
            return apply_ddl(session, step, history, self._settings, self._held, partial(self._save_ddl, session, step), refused)

        schema = Routes.of(self._settings).database(schema_of(step, history))
        outcome = run_retried(self._ddl_sessions.use, work, self._retry_policy, partial(begin_ddl, schema))
        self._commit_ts = step.commit_ts
        return DdlResult(outcome.losses, outcome.freezes)

    def _save_ddl(self, session: Session, step: DdlStep, _: object) -> None:
        self._locked_checkpoint(session, self._commit_ts, step.commit_ts)
        self._save(session, step.commit_ts, step.applied, consistent=self._consistent)

    # The record.

    def _next_is(self, session: Session, step: RowsStep) -> bool:
        """Lock the checkpoint row and return whether ``step`` is still to be applied; False: a commit whose answer was lost succeeded."""
        stored_ts = self._locked_checkpoint(session, step.after_ts, step.upto_ts)
        return stored_ts == step.after_ts or step.after_ts == step.upto_ts

    def _locked_checkpoint(self, session: Session, after_ts: int, upto_ts: int) -> int:
        """Lock the checkpoint row and return its commitTS: ``after_ts``, or ``upto_ts`` when the answer to that commit was lost."""
        stored_ts = progress.lock_checkpoint(session, self._cluster_id, self._settings.checkpoint_schema)
        if stored_ts not in (after_ts, upto_ts):
            raise ApplyError(
                f"cannot apply ({after_ts}, {upto_ts}]: the target's checkpoint of cluster {self._cluster_id} was moved to {stored_ts} meanwhile. Was it "
                "edited, or the target restored, while the stream was running? Restart the Drainer; it continues from the target's checkpoint"
            )
        return stored_ts

    def _save(self, session: Session, commit_ts: int, applied: AppliedJobs, *, consistent: bool) -> None:
        schema = self._settings.checkpoint_schema
        progress.save_checkpoint(session, self._cluster_id, commit_ts, applied.version, consistent, schema, self._sync_point)

    def _note_sync_point(self, applied: AppliedJobs) -> None:
        """Once in a while, between two steps: what the target holds now is the source at ``commit_ts``, and nobody else writes to it."""
        if self._sync_points is None or not self._consistent:
            return
        secondary_ts = self._sync_points.due(self._sessions.use, self._retry_policy)
        if secondary_ts:
            self._sync_point = SyncPoint(self._commit_ts, secondary_ts)
            self._transact(partial(self._save_sync_point, applied))

    def _save_sync_point(self, applied: AppliedJobs, session: Session) -> None:
        self._locked_checkpoint(session, self._commit_ts, self._commit_ts)
        self._save(session, self._commit_ts, applied, consistent=True)

    def _connect(self) -> Session:
        return connect(self._config.target, self._settings)

    def _connect_for_ddls(self) -> Session:
        """With autocommit on, as DDLs are executed: it need not be switched for each."""
        session = self._connect()
        try:
            session.execute("SET SESSION autocommit = 1")
        except BaseException:
            session.close()
            raise
        session.opened()
        return session

    def _transact(self, work: Callable[[Session], T]) -> T:
        def fenced(session: Session) -> T:
            lease.check(session, self._held)
            return work(session)

        return run_transaction(self._sessions.use, fenced, self._retry_policy)

    @property
    def _held(self) -> Lease:
        if self._lease is None:
            raise ApplyError("the lease is not taken: call open() first")
        return self._lease

    def _wait_for(self, error: TransientError | None) -> None:
        self._waiting_for = error
