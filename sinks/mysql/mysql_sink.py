"""MySQL, MariaDB and TiDB as a target (``sinks.sink``): sessions, transactions, DDLs, and the record of them in the checkpoint schema.

Promises: those of the contract. The target's checkpoint row is the record: it is written in the transaction of its data. Every transaction
first checks the lease of this life (``sinks.mysql.lease``). ``apply`` is ONE transaction of the driver; ``apply_parts`` is one per part and
phase (``sinks.mysql.parallel``), with ``consistent`` false in the meantime. A DDL has its own intent and done rows
(``sinks.mysql.ddl.executor``).
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost, ReplicationError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import wanted
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.choice import schema_of
from pyspark_tidb_binlog.sinks.engine.frozen import RefusedJobs
from pyspark_tidb_binlog.sinks.engine.hidden import marked
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep
from pyspark_tidb_binlog.sinks.mysql import late_record, lease, old_layout, parallel, progress
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
from pyspark_tidb_binlog.sinks.mysql.elsewhere import (
    Choice,
    RealCheckpoint,
    Trailing,
    choose,
    is_elsewhere,
    real_checkpoint,
    table_in_target,
)
from pyspark_tidb_binlog.sinks.mysql.kept_columns import ensure_kept_table, forget_kept
from pyspark_tidb_binlog.sinks.mysql.kept_sessions import KeptSessions
from pyspark_tidb_binlog.sinks.mysql.late_record import LateRecord, Note
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LAYOUT, LeaseGuard, alone
from pyspark_tidb_binlog.sinks.mysql.opening import Doubt, Recorded, doubt_of, start_of, version_on
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits, plan_rows, planned
from pyspark_tidb_binlog.sinks.mysql.progress import Checkpoint, SyncPoint
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, RetryPolicy, TransientError
from pyspark_tidb_binlog.sinks.mysql.safe_mode import SafeMode, SafeStep
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect, run_retried, run_transaction
from pyspark_tidb_binlog.sinks.mysql.sync_points import SyncPoints
from pyspark_tidb_binlog.sinks.mysql.tables_there import TablesThere
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink, TargetProgress

_log = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSE_SECONDS = 5.0
"""How long ``close`` waits for the last checkpoint."""


Superseded = frozenset[int] | None
"""In safe mode, as ``SafeSpanPlan`` takes it; None: not in safe mode."""


class MySQLSink(Sink):
    """One target of one stream."""

    def __init__(
        self, config: DrainerConfig, cluster_id: int, pause: Callable[[float], None] = time.sleep, now: Callable[[], int] | None = None
    ) -> None:
        """``cluster_id`` 0: the only one that the target has a record of. ``pause`` sleeps between retries; it may raise to stop them.
        ``now``: the upstream's timestamp of now; None: by this machine's clock.
        """
        self._config = config
        self._settings = config.apply
        self._cluster_id = cluster_id
        self._filters = Selection.of(config.apply).text + (f" channel {config.apply.channel_id}" if config.apply.loopback_control else "")
        self._limits = PlanLimits()
        self._flavour = Flavour.MARIADB
        self._lease: Lease | None = None
        self._guard: LeaseGuard | None = None
        self._shipped: ShippedTarget | None = None
        self._commit_ts = 0
        self._now = now or _clock_now
        self._history: Callable[[], SchemaHistory] = SchemaHistory
        self._safe = SafeMode(always=config.apply.safe_mode, partial=config.apply.sync_mode == 2 or not config.apply.sync_ddl)
        self._late = LateRecord()
        self._real: RealCheckpoint | None = None
        """The real Drainer's checkpoint; None: the record in the target is it, or nothing is open."""
        self._trailing: Trailing | None = None
        self._table = table_in_target(config)
        """The table of the record in the target."""
        self._version_saved = 0
        self._opened = False
        self._stopped = False
        """Whether the last checkpoint is being, or is, saved."""
        self._one_at_a_time = threading.RLock()
        """Held by a step, and by whoever saves what was put off."""
        self._saving_later: threading.Timer | None = None
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
        self._tables = TablesThere(config.apply, lambda ask: run_retried(self._sessions.use, ask, self._retry_policy))

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Take the lease, create the tables and load the target's progress (``Sink.open``)."""
        schema = self._settings.checkpoint_schema
        run_retried(self._sessions.use, self._get_to_know, self._retry_policy)
        holder = LeaseHolder(self._settings.drainer)
        self._guard = LeaseGuard(self._connect, self._cluster_id, schema, holder, self._settings.lease_timeout, self._retry_policy)
        self._lease = self._guard.take()
        self._history = history
        found, choice = self._counts(run_retried(self._sessions.use, partial(self._stand, history()), self._retry_policy))
        self._sync_point = run_retried(self._sessions.use, self._load_sync_point, self._retry_policy)
        self._commit_ts = start_of(found, begin(self._lease.target, found.commit_ts if found.known else None))
        doubt = run_retried(self._sessions.use, partial(self._doubt, found), self._retry_policy)
        until_ts = max(self._now() if doubt.crashed else 0, doubt.upto_ts, choice.upto_ts, doubt.beyond if choice.upto_ts else 0)
        version = version_on(found, history(), self._commit_ts, ours=doubt.ours)
        moved = AppliedJobs(version) if found.known and not choice.ours else None
        self._transact(partial(self._forget_beyond, until_ts, moved, found.consistent))
        self._go_on_safely(doubt.why or choice.words)
        if self._settings.loopback_control:
            self._transact(self._remove_stale_marks)
        applied, refused = run_retried(self._sessions.use, partial(self._done_and_refused, version), self._retry_policy)
        if not found.known:
            self._transact(partial(self._save_first, applied))
        self._version_saved = version
        self._late.saved(self._commit_ts if moved or not found.known else found.commit_ts, applied)
        self._catch_up()
        self._follow()
        self._consistent = found.unfinished is None
        self._opened = True
        return Opened(replace(found, commit_ts=self._commit_ts, schema_version=version), applied, refused)

    def defer(self, note: Note) -> None:
        """Save the record of steps in which nothing was applied at most every few seconds (``Sink.defer``)."""
        self._late.note = note

    def close(self) -> None:
        """Save what is put off, then the real checkpoint elsewhere, and release the lease (``Sink.close``)."""
        if (later := self._saving_later) is not None:
            later.cancel()
        self._end_checkpoints()
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
        return text.silent_losses(history, after_version, upto_version) if self._settings.sync_ddl else ()

    # Opening.

    def _get_to_know(self, session: Session) -> None:
        self._flavour = session.flavour
        # Leaves room for the packet header, and for a server that measures the statement in its own charset.
        self._limits = replace(self._limits, max_bytes=min(self._limits.max_bytes, session.max_allowed_packet * 3 // 4))
        self._cluster_id = self._cluster_id or progress.only_cluster(session, self._settings.checkpoint_schema, self._table)

    def _done_and_refused(self, version: int, session: Session) -> tuple[AppliedJobs, RefusedJobs]:
        cluster_id = self._cluster_id
        return load_applied(session, self._settings, cluster_id, version), load_refused(session, self._settings, cluster_id)

    def _stand(self, history: SchemaHistory, session: Session) -> TargetProgress:
        schema = self._settings.checkpoint_schema
        with alone(session, lease.lock_name(LAYOUT, schema, 0), self._retry_policy.pause):
            old_layout.set_aside(session, schema)
            progress.ensure_tables(session, schema, self._table)
            ensure_ddl_table(session, self._settings)
            session.commit()
            old_layout.adopt(session, self._held, self._settings.drainer, history)
        # An older release, which does not check the lease, may still have a commit in progress on the server: wait for it before reading.
        progress.lock_checkpoint(session, self._cluster_id, schema, self._table)
        return progress.load(session, self._cluster_id, schema, self._table)

    def _load_sync_point(self, session: Session) -> SyncPoint | None:
        return progress.load_sync_point(session, self._cluster_id, self._settings.checkpoint_schema, self._table)

    def _doubt(self, found: TargetProgress, session: Session) -> Doubt:
        """What of the spans beyond the checkpoint may be in the target, which is not known exactly."""
        recorded_ts = found.commit_ts if found.known else self._commit_ts
        open_upto = self._open_upto(session)
        marked = progress.is_ours(session, self._cluster_id, recorded_ts, self._settings.checkpoint_schema, consistent=found.consistent)
        beyond, around = (self._recorded_beyond(session, around=around) for around in (False, True))
        return doubt_of(found, Recorded(self._commit_ts, open_upto, marked, beyond, around))

    def _open_upto(self, session: Session) -> int:
        """The end of a span that is open in another way than in parts; 0: there is none."""
        return 0

    def _recorded_beyond(self, session: Session, *, around: bool) -> int:
        """As ``progress.recorded_beyond``."""
        return progress.recorded_beyond(session, self._cluster_id, self._commit_ts, self._settings.checkpoint_schema, around=around)

    def _go_on_safely(self, why: str) -> None:
        """Begin safe mode, or continue that of an earlier life."""
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id
        begin, end = run_retried(self._sessions.use, lambda session: progress.safe_span(session, cluster_id, schema), self._retry_policy)
        if end > self._commit_ts:
            self._safe.begin(begin, end, why or "an earlier life of this Drainer began it")

    def _counts(self, recorded: TargetProgress) -> tuple[TargetProgress, Choice]:
        """What counts at the start: what the target records, or the real checkpoint that is elsewhere."""
        if not is_elsewhere(self._config):
            return recorded, Choice(None, True)
        self._real = real_checkpoint(self._config, self._cluster_id)
        self._real.open()
        real = self._real.read()
        self._trailing = Trailing(self._real)
        self._trailing.begin(real)
        schema, cluster_id, table = self._settings.checkpoint_schema, self._cluster_id, self._table
        ours = run_retried(
            self._sessions.use, lambda session: progress.load_checkpoint(session, cluster_id, schema, table), self._retry_policy
        )
        choice = choose(ours, real, self._real.where)
        if choice.words:
            _log.warning("%s", choice.words)
        if choice.ours or choice.checkpoint is None:
            return recorded, choice
        found = choice.checkpoint
        return TargetProgress(found.commit_ts, found.consistent, found.schema_version, None), choice

    def _follow(self) -> None:
        """The real checkpoint is written after ours."""
        if self._trailing is not None:
            self._trailing.follow(Checkpoint(self._commit_ts, False, self._version_saved, self._sync_point))

    def _save_last(self) -> None:
        """After a clean stop the real checkpoint says that the target is consistent, where it is."""
        trailing = self._trailing
        if trailing is None or not self._opened or self._stopped or self.lost is not None or not trailing.retry(now=True):
            return
        self._stopped = True
        run_transaction(self._sessions.use, self._save_end, FEW)
        consistent = self._consistent and not self._safe.open_at(self._commit_ts)
        trailing.end(Checkpoint(self._commit_ts, consistent, self._version_saved, self._sync_point))

    def _save_end(self, session: Session) -> None:
        lease.check(session, self._held)
        self._locked_checkpoint(session, self._commit_ts, self._commit_ts)
        self._save(session, self._commit_ts, AppliedJobs(self._version_saved), consistent=self._consistent)

    def _forget_beyond(self, safe_until: int, moved: AppliedJobs | None, consistent: bool, session: Session) -> None:
        """Delete DDL and part records later than the checkpoint: they are written together with it, so they describe data that is gone, or that is
        written again in safe mode, up to ``safe_until``. ``moved``: the record in the target is set to the real checkpoint, which counts
        and says ``consistent``.
        """
        schema = self._settings.checkpoint_schema
        if safe_until:
            progress.begin_safe(session, self._cluster_id, self._commit_ts, safe_until, schema)
        progress.forget_other_spans(session, self._cluster_id, self._commit_ts, schema)
        jobs = forget_later(session, self._settings, self._cluster_id, self._commit_ts)
        if moved is not None:
            self._save(session, self._commit_ts, moved, consistent=consistent and not safe_until)
        if jobs:
            _log.warning(
                "%s.spark_ddl recorded DDL jobs %s as done after the checkpoint %d: the target's data was restored or its checkpoint was set back. Their "
                "records were deleted; the DDLs are executed again",
                schema,
                jobs,
                self._commit_ts,
            )

    def _remove_stale_marks(self, session: Session) -> None:
        if session.mark is not None:
            session.mark.remove_stale(session)

    def _save_first(self, applied: AppliedJobs, session: Session) -> None:
        self._locked_checkpoint(session, 0, self._commit_ts)
        self._save(session, self._commit_ts, applied, consistent=True)

    # Rows in one transaction.

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Plan and write in one transaction of the driver (``Sink.apply``)."""
        with self._one_at_a_time:
            return self._as_they_are(step, rows, lambda there, later: self._apply_at_once(rows, there, later, clock))

    def _as_they_are(self, step: RowsStep, rows: pa.Table | None, work: Callable[[RowsStep, Superseded], Written]) -> Written:
        """``work`` with ``step`` for the target's tables as they are; where safe mode is on, tables that are later already are left out before."""
        safe = self._in_safe_mode(step)
        here, later = (safe.step, safe.superseded) if safe else (step, None)
        return self._tables.as_they_are(here, rows, lambda there: work(there, later))

    def _apply_at_once(self, rows: pa.Table, step: RowsStep, later: Superseded, clock: StageClock) -> Written:
        with clock.timed(Stage.PLAN):
            plan = self._plan(rows, step, later) if rows.num_rows else Plan()
        if not (plan.deletes or plan.moves or plan.writes) and self._put_off(step):
            return Written()
        with clock.timed(Stage.APPLY, "write"):
            findings = self._write_atomic(plan, step)
        failpoints.point("after-downstream-commit")
        self._stands_at(step.upto_ts, step.applied)
        self._note_sync_point(step.applied)
        return Written(plan.counts.deleted + plan.counts.written, findings)

    def _plan(self, rows: pa.Table, step: RowsStep, later: Superseded) -> Plan:
        events = marked(wanted(rows, step.gone, step.left_out), step.hidden)
        if later is not None:
            return planned(SafeSpanPlan(events, step.tables, self._limits, flavour=self._flavour, superseded=later))
        return plan_rows(events, step.tables, self._limits, flavour=self._flavour)

    def _in_safe_mode(self, step: RowsStep) -> SafeStep | None:
        """``step`` as it is applied in safe mode; None: it is not."""
        if not self._safe.applies(step.after_ts):
            return None
        return run_retried(self._sessions.use, lambda session: self._safe.prepared(session, step, self._history()), self._retry_policy)

    def _reached(self, commit_ts: int) -> None:
        self._commit_ts = commit_ts
        self._safe.reached(commit_ts)
        self._follow()

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
        effects.move(plan.moves)
        effects.run(plan.writes)
        progress.mark_atomic(session, cluster_id, step.after_ts, step.upto_ts, schema)
        self._save(session, step.upto_ts, step.applied, consistent=True)
        failpoints.point("before-downstream-commit")

    # Rows in parts.

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """One transaction for each part and phase, by the executors (``Sink.apply_parts``)."""
        with self._one_at_a_time:
            if not self._consistent:
                # Said before anything about the target's tables, which may be those of the other filters.
                self._transact(partial(self._require_same_filters, step))
            return self._as_they_are(step, None, lambda there, later: self._apply_in_parts(events, there, later, skipped_ts, clock))

    def _require_same_filters(self, step: RowsStep, session: Session) -> None:
        progress.require_same_filters(
            session, self._cluster_id, step.after_ts, step.upto_ts, self._settings.checkpoint_schema, self._filters
        )

    def _apply_in_parts(
        self, events: KeyedEvents, step: RowsStep, later: Superseded, skipped_ts: frozenset[int], clock: StageClock
    ) -> Written:
        schema, cluster_id, parts = self._settings.checkpoint_schema, self._cluster_id, events.parts

        keeping = any(table.others for table in step.tables.values())
        if keeping:
            run_retried(self._sessions.use, lambda session: ensure_kept_table(session, schema), self._retry_policy)

        def begin(session: Session) -> bool:
            if not self._next_is(session, step):
                return False
            progress.begin_span(session, cluster_id, step.after_ts, step.upto_ts, parts, schema, events.numbering, self._filters)
            if later is not None and not self._safe.open_at(step.after_ts):
                # What it deletes is written by safe mode alone: a later life must go on so, whatever its setting is.
                progress.begin_safe(session, cluster_id, step.after_ts, step.upto_ts, schema)
            self._save(session, step.after_ts, step.applied, consistent=False)
            return True

        def finish(session: Session) -> None:
            if self._next_is(session, step):
                progress.mark_atomic(session, cluster_id, step.after_ts, step.upto_ts, schema)
                if keeping:
                    forget_kept(session, cluster_id, step.upto_ts, schema)
                self._save(session, step.upto_ts, step.applied, consistent=True)
            failpoints.point("before-downstream-commit")

        self._catch_up()
        if not self._transact(begin):
            self._stands_at(step.upto_ts, step.applied)
            self._consistent = True
            return Written()
        self._consistent = False
        failpoints.point("before-deletes")
        span = (step.after_ts, step.upto_ts)
        skipped = frozenset(ts for ts in skipped_ts if step.after_ts < ts <= step.upto_ts)
        how = parallel.PartPlan(
            span,
            dict(step.tables),
            self._flavour,
            self._limits,
            skipped,
            step.gone,
            step.left_out,
            step.hidden,
            later is not None,
            later or frozenset(),
        )
        to = parallel.PartTarget(self._ship(events), self._settings, self._held, step.after_ts, step.upto_ts, parts)
        done = self._apply_phases(events, how, to, clock)
        self._transact(finish)
        failpoints.point("after-downstream-commit")
        self._stands_at(step.upto_ts, step.applied)
        self._consistent = True
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
            save, begun = partial(self._save_ddl, session, step), self._safe.begun_before(step.commit_ts)
            return apply_ddl(session, step, history, self._settings, self._held, save, refused, safe_from=begun)

        schema = Routes.of(self._settings).database(schema_of(step, history))
        with self._one_at_a_time:
            self._catch_up()
            self._tables.forget()
            outcome = run_retried(self._ddl_sessions.use, work, self._retry_policy, partial(begin_ddl, schema))
            self._stands_at(step.commit_ts, step.applied)
        return DdlResult(outcome.losses, outcome.freezes)

    def _save_ddl(self, session: Session, step: DdlStep, _: object) -> None:
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id
        self._locked_checkpoint(session, self._commit_ts, step.commit_ts)
        progress.mark_atomic(session, cluster_id, self._commit_ts, step.commit_ts, schema)
        self._save(session, step.commit_ts, step.applied, consistent=self._consistent)

    # The record.

    def _next_is(self, session: Session, step: RowsStep) -> bool:
        """Lock the checkpoint row and return whether ``step`` is still to be applied; False: a commit whose answer was lost succeeded."""
        stored_ts = self._locked_checkpoint(session, step.after_ts, step.upto_ts)
        return stored_ts == step.after_ts or step.after_ts == step.upto_ts

    def _locked_checkpoint(self, session: Session, after_ts: int, upto_ts: int) -> int:
        """Lock the checkpoint row and return its commitTS: ``after_ts``, or ``upto_ts`` when the answer to that commit was lost. A row that says
        what is behind ``after_ts`` by steps that were put off says ``after_ts``.
        """
        stored_ts = progress.lock_checkpoint(session, self._cluster_id, self._settings.checkpoint_schema, self._table)
        if stored_ts == self._late.recorded_ts and after_ts == self._commit_ts:
            return after_ts
        if stored_ts not in (after_ts, upto_ts):
            raise ApplyError(
                f"cannot apply ({after_ts}, {upto_ts}]: the target's checkpoint of cluster {self._cluster_id} was moved to {stored_ts} meanwhile. Was it "
                "edited, or the target restored, while the stream was running? Restart the Drainer; it continues from the target's checkpoint"
            )
        return stored_ts

    def _save(self, session: Session, commit_ts: int, applied: AppliedJobs, *, consistent: bool) -> None:
        named = self._trailing.named(commit_ts, now=self._stopped) if self._trailing is not None else ()
        whole = consistent and not self._safe.open_at(commit_ts)
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id
        progress.save_checkpoint(session, cluster_id, commit_ts, applied.version, whole, schema, self._sync_point, self._table, named)
        self._version_saved = applied.version

    def _stands_at(self, commit_ts: int, applied: AppliedJobs) -> None:
        """The target's record says so."""
        self._late.saved(commit_ts, applied)
        self._reached(commit_ts)

    def _put_off(self, step: RowsStep) -> bool:
        """Move on without a transaction, because nothing is applied in ``step``; False: its end is to be saved now."""
        if self.lost is not None:
            raise self.lost
        if not self._consistent or step.after_ts != self._commit_ts or not self._late.put_off(step):
            return False
        self._reached(step.upto_ts)
        if self._saving_later is None:
            # The next batch may be long in coming.
            self._saving_later = threading.Timer(late_record.SECONDS, self._catch_up_in_time)
            self._saving_later.daemon = True
            self._saving_later.start()
        failpoints.point("after-record-put-off")
        self._note_sync_point(step.applied)
        return True

    def _catch_up(self) -> None:
        """Save what was put off."""
        late = self._late

        def save(session: Session) -> None:
            if progress.lock_checkpoint(session, self._cluster_id, self._settings.checkpoint_schema, self._table) == late.recorded_ts:
                progress.mark_atomic(session, self._cluster_id, late.recorded_ts, self._commit_ts, self._settings.checkpoint_schema)
                self._save(session, self._commit_ts, late.applied, consistent=True)

        with self._one_at_a_time:
            if late.recorded_ts < self._commit_ts:
                self._transact(save)
                late.saved(self._commit_ts, late.applied)
                self._follow()

    def _catch_up_in_time(self) -> None:
        with self._one_at_a_time:
            self._saving_later = None
            self._catch_up_at_last()

    def _end_checkpoints(self) -> None:
        """If the target does not answer, what was noted is enough, and the real checkpoint stays behind ours."""
        if self._late.recorded_ts < self._commit_ts and self.lost is None:
            saving = threading.Thread(target=self._catch_up_at_last, name="the last checkpoint", daemon=True)
            saving.start()
            saving.join(_CLOSE_SECONDS)
        # A step that is not over yet, or the timer, may be writing either of them.
        if self._one_at_a_time.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._save_last()
            except ReplicationError as error:
                _log.warning("the checkpoint %s is not that of a clean stop: %s", self._real.where if self._real else "", error)
            finally:
                self._one_at_a_time.release()
        if self._real is not None:
            self._real.close()

    def _catch_up_at_last(self) -> None:
        try:
            self._catch_up()
        except ReplicationError as error:
            _log.warning(
                "the checkpoint stays at %d, although nothing was to be applied up to %d: %s",
                self._late.recorded_ts,
                self._commit_ts,
                error,
            )

    def _note_sync_point(self, applied: AppliedJobs) -> None:
        """Once in a while, between two steps: what the target holds now is the source at ``commit_ts``, and nobody else writes to it."""
        if self._sync_points is None or not self._consistent or self._safe.open_at(self._commit_ts):
            return
        secondary_ts = self._sync_points.due(self._sessions.use, self._retry_policy)
        if secondary_ts:
            self._catch_up()
            self._sync_point = SyncPoint(self._commit_ts, secondary_ts)
            self._transact(partial(self._save_sync_point, applied))
            self._stands_at(self._commit_ts, applied)

    def _save_sync_point(self, applied: AppliedJobs, session: Session) -> None:
        self._locked_checkpoint(session, self._commit_ts, self._commit_ts)
        self._save(session, self._commit_ts, applied, consistent=True)

    def _connect(self) -> Session:
        return connect(self._config.target, self._settings)

    def _connect_for_ddls(self) -> Session:
        """With autocommit on, as DDLs are executed: it need not be switched for each."""
        session = connect(self._config.target, self._settings, for_ddls=True)
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
        self._tables.forget()


def _clock_now() -> int:
    """A timestamp of now by this machine's clock, which may be behind."""
    return tso(int(time.time() * 1000) + 60_000)
