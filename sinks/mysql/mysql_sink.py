"""MySQL, MariaDB and TiDB as a target (``sinks.sink``): applies a step in one transaction, in parts, or as a DDL.

Promises: those of the contract. The target's checkpoint row is the record (``sinks.mysql.target_record``): the transaction of the data writes it.
Every transaction first checks the lease of this life (``sinks.mysql.leased_target``). ``apply`` is ONE transaction of the driver. ``apply_parts`` is one
transaction per part and phase (``sinks.mysql.parallel``), with ``consistent`` false in the meantime. A DDL has its own intent and done rows
(``sinks.mysql.ddl.executor``).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import wanted
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.choice import schema_of
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.hidden import marked
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.late_record import Note
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep, SetVal
from pyspark_tidb_binlog.sinks.mysql import lease, parallel, progress
from pyspark_tidb_binlog.sinks.mysql.checked import checked
from pyspark_tidb_binlog.sinks.mysql.ddl import sql_kinds
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import applied_at, begin_record, ensure_ddl_table, forget_later, load_frozen
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.kept_sessions import KeptSessions
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL, METADATA_LOCK, doing_of
from pyspark_tidb_binlog.sinks.mysql.leased_target import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.opening import Doubt, Recorded, doubt_of, safe_until, start_of, version_on
from pyspark_tidb_binlog.sinks.mysql.own_tables import require_sound
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits, plan_rows, planned
from pyspark_tidb_binlog.sinks.mysql.progress import Checkpoint
from pyspark_tidb_binlog.sinks.mysql.retry_policy import TransientError, patient, retrying
from pyspark_tidb_binlog.sinks.mysql.safe_mode import SafeMode
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.sequences import set_sequences
from pyspark_tidb_binlog.sinks.mysql.session import Session, begin_ddl, connect, session_for, transaction
from pyspark_tidb_binlog.sinks.mysql.structure import PartsOutdated
from pyspark_tidb_binlog.sinks.mysql.tables_there import FittedStep, TablesThere, concerned_by
from pyspark_tidb_binlog.sinks.mysql.target_record import TargetRecord
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes
from pyspark_tidb_binlog.sinks.routing.table_filter import MARK_SCHEMA, MARK_TABLE
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink, TargetProgress

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""How often it is looked who keeps a DDL from a metadata lock."""
_MOMENT = 1.0


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
        self._shipped: ShippedTarget | None = None
        self._now = now or _clock_now
        self._history: Callable[[], SchemaHistory] = SchemaHistory
        self._safe = SafeMode(always=config.apply.safe_mode, partial=config.apply.partial_columns)
        self._together = True
        """Whether Spark runs all parts of a span at the same time, as far as is known."""
        self._waiting_for: TransientError | None = None
        self._retry_policy = patient(config.apply.retry_seconds, pause, self._wait_for)
        self._leased = LeasedTarget(self._connect, config.apply, self._retry_policy)
        self._record = TargetRecord(config, self._leased, self._safe)
        self._ddl_sessions = KeptSessions(self._connect_for_ddls, config.apply.lease_timeout)
        """Sessions of their own, because a DDL chooses a current database, which cannot be undone."""
        self._tables = TablesThere(config.apply)
        self._unset: set[str] = set()
        """Sequences that are findings already."""

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Take the lease, create the tables and load the target's progress (``Sink.open``)."""
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                self._get_to_know(session)
        identity = self._leased.take(self._cluster_id).target
        self._history, record = history, self._record
        record.move_here()
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                found, choice = record.counts(*self._read_record(session))
                open_upto = self._open_upto(session, found.commit_ts) if found.known else 0
        record.commit_ts = start_of(found, open_upto, begin(identity, found.commit_ts if found.known else None))
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                doubt = self._doubt(session, found)
        crashed_until = safe_until(doubt, record.commit_ts, self._now()) if doubt.crashed else doubt.upto_ts
        until_ts = max(crashed_until, choice.upto_ts, doubt.beyond if choice.upto_ts else 0)
        version = version_on(found, history(), record.commit_ts, ours=doubt.ours)
        moved = AppliedJobs(version) if found.known and not choice.ours else None
        begins = not found.known or moved is not None or not doubt.ours
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self._forget_beyond(session, until_ts, moved, consistent=found.consistent, begins=begins)
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self._remove_stale_marks(session)
                bounds = progress.safe_bounds(session, self._cluster_id, record.commit_ts, self._settings.checkpoint_schema)
                applied = applied_at(session, self._settings, self._cluster_id, (record.commit_ts, version), history())
                frozen = load_frozen(session, self._settings, self._cluster_id)
        if bounds.end_ts:
            self._safe.begin(bounds, doubt.why or choice.words or "an earlier life of this Drainer began it")
        if not found.known:
            # Filled by a dump or a copy, with what was visible then.
            applied = applied.covering(record.commit_ts, history())
            record.save_first(applied)
        record.consistent = found.unfinished is None
        record.begin(record.commit_ts if moved or not found.known else found.commit_ts, applied)
        return Opened(replace(found, commit_ts=record.commit_ts, schema_version=version), applied, frozen)

    def defer(self, note: Note) -> None:
        """Save the record of steps in which nothing was applied at most every few seconds (``Sink.defer``)."""
        self._record.defer(note)

    def close(self) -> None:
        """Save what is put off, then the real checkpoint elsewhere, and release the lease (``Sink.close``)."""
        self._record.close()
        self._ddl_sessions.close()
        self._leased.close()

    @property
    def commit_ts(self) -> int:
        """Everything up to and including this commit_ts is in the target."""
        return self._record.commit_ts

    @property
    def target(self) -> str:
        """The identity of the target; available after ``open``."""
        return self._leased.lease.target

    @property
    def lost(self) -> LeaseLost | None:
        """Why nothing more may be written."""
        return self._leased.lost

    @property
    def waiting_for(self) -> TransientError | None:
        """The target's transient error while it is being retried."""
        return self._waiting_for

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        """What the target cannot hold of jobs without a statement (``Sink.silent_losses``)."""
        return sql_kinds.silent_losses(history, after_version, upto_version) if self._settings.sync_ddl else ()

    # Opening.

    def _get_to_know(self, session: Session) -> None:
        self._flavour = session.flavour
        self._limits = self._limits.within(session.max_allowed_packet)
        self._cluster_id = self._cluster_id or progress.only_cluster(session, self._settings.checkpoint_schema, self._record.table)

    def _read_record(self, session: Session) -> tuple[Checkpoint | None, TargetProgress]:
        """The row of the record, and all that is recorded."""
        schema, cluster_id, table = self._settings.checkpoint_schema, self._cluster_id, self._record.table
        progress.ensure_tables(session, schema, table)
        ensure_ddl_table(session, self._settings)
        session.commit()
        # A real Drainer, which does not check the lease, may still have a commit in progress on the server: the lock waits for it.
        recorded = progress.load_checkpoint(session, cluster_id, schema, table, lock=True)
        return recorded, progress.progress_at(session, cluster_id, recorded, schema)

    def _doubt(self, session: Session, found: TargetProgress) -> Doubt:
        """What of the spans beyond the checkpoint may be in the target, which is not known exactly."""
        recorded_ts = found.commit_ts if found.known else self._record.commit_ts
        open_upto = self._open_upto(session, self._record.commit_ts)
        marked = progress.is_ours(session, self._cluster_id, recorded_ts, self._settings.checkpoint_schema, consistent=found.consistent)
        beyond, around = (self._recorded_beyond(session, around=around) for around in (False, True))
        return doubt_of(found, Recorded(self._record.commit_ts, open_upto, marked, beyond, around))

    def _open_upto(self, session: Session, commit_ts: int) -> int:
        """The end of a span that is open at ``commit_ts`` in another way than in parts; 0: there is none."""
        return 0

    def _recorded_beyond(self, session: Session, *, around: bool) -> int:
        """The end of what is recorded beyond the checkpoint (``progress.recorded_beyond``)."""
        return progress.recorded_beyond(session, self._cluster_id, self._record.commit_ts, self._settings.checkpoint_schema, around=around)

    def _forget_beyond(self, session: Session, safe_until: int, moved: AppliedJobs | None, *, consistent: bool, begins: bool) -> None:
        """Delete the records of DDLs and parts after the checkpoint. They are written together with it, so they describe data that is gone, or that is
        written again in safe mode, up to ``safe_until``. ``moved``: the record in the target is set to the real checkpoint, which counts
        and says ``consistent``. ``begins``: another program's work, or none, is in the target.
        """
        schema = self._settings.checkpoint_schema
        if safe_until:
            progress.begin_safe(session, self._cluster_id, progress.SafeBounds(self._record.commit_ts, safe_until), schema)
        progress.forget_other_spans(session, self._cluster_id, self._record.commit_ts, schema)
        begin_record(session, self._settings, self._cluster_id, self._record.commit_ts, afresh=begins)
        jobs = forget_later(session, self._settings, self._cluster_id, self._record.commit_ts)
        if moved is not None:
            self._record.save(session, self._record.commit_ts, moved, consistent=consistent and not safe_until)
        if jobs:
            _log.warning(
                "%s.spark_ddl recorded DDL jobs %s as done after the checkpoint %d. The target's data was restored, or its checkpoint was set back. These "
                "records are deleted, and the DDLs are executed again",
                schema,
                jobs,
                self._record.commit_ts,
            )

    @staticmethod
    def _remove_stale_marks(session: Session) -> None:
        if session.mark is not None:
            require_sound(session, MARK_SCHEMA, MARK_TABLE)
            session.mark.remove_stale(session)

    def set_sequences(self, setvals: Sequence[SetVal]) -> Sequence[Finding]:
        """Set the sequences in a transaction that checks the lease, although no rollback takes a SETVAL back (``Sink.set_sequences``)."""
        if self._flavour is Flavour.MYSQL or not self._settings.sync_ddl:
            return ()
        with self._record.one_at_a_time:
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    found = set_sequences(session, setvals)
        new = [one for one in found if one.table not in self._unset]
        self._unset |= {one.table for one in new}
        return new

    # Rows in one transaction.

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Plan and write in one transaction of the driver (``Sink.apply``)."""
        with self._record.one_at_a_time:
            for attempt in self._tables.fitting():
                with attempt:
                    fitted, safe = self._fitted(step, rows)
                    written = self._apply_at_once(rows, fitted.step, safe, clock)
            self._record.note_sync_point(step.applied)
            return self._tables.settled(fitted, written)

    def _fitted(self, step: RowsStep, rows: pa.Table | None, *, by_rows: bool = False) -> tuple[FittedStep, SafeSpan | None]:
        """``step`` for the target's tables as they are. In safe mode, tables that already have a later structure are left out first.

        ``by_rows``: it is written row by row. Row by row, the target's unique keys are needed only in safe mode. For net changes it is the reverse.
        """
        here, how, concerned, safely = step, None, concerned_by(step, rows), self._safe.applies(step.after_ts)
        known = None if safely else self._tables.kept(concerned)
        for attempt in self._leased.retrying() if known is None else ():
            with attempt, self._leased.session(attempt) as session:
                if safely:
                    here, how = self._safe.prepared(session, step, self._history())
                    concerned = concerned_by(here, rows)
                known = self._tables.kept(concerned)
                if known is None:
                    known = self._tables.read(session, concerned)
        assert known is not None
        fitted = self._tables.fit(here, concerned, known, how.superseded if how else (), keyed=by_rows == safely)
        if safely:
            self._safe.name_reset(fitted.step.tables.values())
        return fitted, how

    def _apply_at_once(self, rows: pa.Table, step: RowsStep, safe: SafeSpan | None, clock: StageClock) -> Written:
        with clock.timed(Stage.PLAN):
            plan = self._plan(rows, step, safe) if rows.num_rows else Plan()
        if not (plan.deletes or plan.writes) and self._record.put_off(step):
            return Written()
        with clock.timed(Stage.APPLY, "write"):
            for attempt in self._leased.retrying():
                with attempt, transaction(self._leased.sessions.use, attempt) as session:
                    findings = self._write_rows(session, plan, step)
        failpoints.point("after-downstream-commit")
        self._record.stands_at(step.upto_ts, step.applied)
        return Written(plan.counts.deleted + plan.counts.written, findings)

    def _plan(self, rows: pa.Table, step: RowsStep, safe: SafeSpan | None) -> Plan:
        events = marked(wanted(rows, step.gone, step.left_out), step.hidden)
        gapped = self._gapped(step)
        if safe is not None:
            return planned(SafeSpanPlan(events, step.tables, self._limits, flavour=self._flavour, gapped=gapped, how=safe))
        return plan_rows(events, step.tables, self._limits, flavour=self._flavour, gapped=gapped)

    def _gapped(self, step: RowsStep) -> frozenset[int]:
        """Ids of the tables of which row changes of ``step`` may have been left out."""
        skipped = any(step.after_ts < ts <= step.upto_ts for ts in self._settings.ignore_txn_commit_ts)
        if skipped or self._settings.loopback_control:
            return frozenset(step.tables)
        return frozenset(table_id for table_id, _ in step.left_out)

    def _write_rows(self, session: Session, plan: Plan, step: RowsStep) -> tuple[Finding, ...]:
        """All that belongs to the transaction. The lease is checked here, because ``checked`` may roll back and open another transaction."""
        for effects in checked(session, self._settings):
            lease.check(session, self._leased.lease)
            if not self._record.next_is(session, step):
                break
            failpoints.point("before-deletes")
            effects.run(plan.deletes)
            failpoints.point("between-phases")
            effects.run(plan.writes)
            self._record.save_end(session, step.after_ts, step.upto_ts, step.applied)
            failpoints.point("before-downstream-commit")
        return tuple(effects.findings)

    # Rows in parts.

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """One transaction for each part and phase, by the executors (``Sink.apply_parts``)."""
        with self._record.one_at_a_time:
            if not self._record.consistent:
                # Said before anything about the target's tables, which may be those of the other filters.
                for attempt in self._leased.retrying():
                    with attempt, self._leased.fenced(attempt) as session:
                        span, schema = (step.after_ts, step.upto_ts), self._settings.checkpoint_schema
                        progress.require_same_filters(session, self._cluster_id, *span, schema, self._filters)
            for attempt in self._tables.fitting():
                with attempt:
                    before = attempt.refused.written if isinstance(attempt.refused, PartsOutdated) else Written()
                    written = before.plus(self._apply_in_parts(events, step, skipped_ts, clock))
            return written

    def _apply_in_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        self._record.catch_up()
        fitted, safe = self._fitted(step, None)
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                begun = self._begin_span(session, fitted.step, events.parts, safe)
        written = Written()
        if begun:
            self._record.consistent = False
            failpoints.point("before-deletes")
            written = self._write_span(events, fitted.step, safe, skipped_ts, clock)
            failpoints.point("after-downstream-commit")
        self._record.stands_at(step.upto_ts, step.applied)
        self._record.consistent = True
        self._record.note_sync_point(step.applied)
        return self._tables.settled(fitted, written)

    def _begin_span(self, session: Session, step: RowsStep, parts: int, safe: SafeSpan | None) -> bool:
        """Record that ``step`` is applied in parts from now on; False: it is in the target already."""
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id
        if not self._record.next_is(session, step):
            return False
        progress.begin_span(session, cluster_id, step.after_ts, step.upto_ts, parts, schema, self._filters)
        if safe is not None and not self._safe.open_at(step.after_ts):
            # What it deletes is written by safe mode alone: a later life must go on so, whatever its setting is.
            progress.begin_safe(session, cluster_id, progress.SafeBounds(step.after_ts, step.upto_ts, progress.Reason.PARTS), schema)
        self._record.save(session, step.after_ts, step.applied, consistent=False)
        return True

    def _write_span(
        self, events: KeyedEvents, step: RowsStep, safe: SafeSpan | None, skipped_ts: frozenset[int], clock: StageClock
    ) -> Written:
        """Apply all parts, and end the span when the target has all that it has answered: parts that it has lost since are applied again."""
        how = parallel.PartPlan(
            (step.after_ts, step.upto_ts),
            dict(step.tables),
            self._flavour,
            self._limits,
            frozenset(ts for ts in skipped_ts if step.after_ts < ts <= step.upto_ts),
            step.gone,
            step.left_out,
            step.hidden,
            safe,
            self._settings.loopback_control,
        )
        to = parallel.PartTarget(self._ship(events), self._settings, self._leased.lease, step.after_ts, step.upto_ts, events.parts)
        written = Written()
        while True:
            done = self._apply_phases(events, how, to, clock)
            written = written.plus(done.written)
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    lost = self._end_span(session, step, to.parts, done.phases)
            if not lost:
                return written
            _log.warning(
                "the target has lost %d parts of (%d, %d] that it had committed; they are applied again. Did the server crash with "
                "innodb_flush_log_at_trx_commit other than 1, or has a replica that was behind taken its place?",
                lost,
                *how.span,
            )

    def _end_span(self, session: Session, step: RowsStep, parts: int, answered: frozenset[tuple[int, str]]) -> int:
        """How many parts the target lacks that it has answered; if none, the span is closed."""
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id
        if self._record.next_is(session, step):
            lost = len(answered - progress.parts_done(session, cluster_id, step.after_ts, step.upto_ts, parts, schema))
            if lost:
                return lost
            self._record.save_end(session, step.after_ts, step.upto_ts, step.applied)
        failpoints.point("before-downstream-commit")
        return 0

    def _apply_phases(self, events: KeyedEvents, how: parallel.PartPlan, to: parallel.PartTarget, clock: StageClock) -> parallel.PartsDone:
        """Apply all parts in one Spark job if they can run at the same time, else in a second one those that could not wait for the others; in a third one
        where the target lost deletes meanwhile, which the second has repeated.
        """
        self._together = self._together and events.parts <= events.frame.sparkSession.sparkContext.defaultParallelism
        written, answered = Written(), frozenset[tuple[int, str]]()
        for together in (self._together, False, False):
            with clock.timed(Stage.APPLY, "write"):
                try:
                    done = parallel.apply_phases(events, how, to, together=together)
                except PartsOutdated as error:
                    raise PartsOutdated(error, written.plus(error.written)) from error
            clock.move("write", "plan+delete", done.seconds)
            written, answered = written.plus(done.written), answered | done.phases
            if not done.left:
                return replace(done, written=written, phases=answered)
            self._together = False
        raise ApplyError(
            f"{done.left} of {to.parts} parts of ({to.after_ts}, {to.upto_ts}] are not written, because markers of finished deletes are missing in "
            f"{to.apply.checkpoint_schema}.spark_progress. Were rows deleted there? Start the Drainer again: the start finishes the span"
        )

    def _ship(self, events: KeyedEvents) -> ShippedTarget:
        """The target for the executors; broadcast once."""
        if self._shipped is None:
            self._shipped = ShippedTarget.of(self._config.target, events.frame.sparkSession.sparkContext.broadcast)
        return self._shipped

    # DDLs.

    def apply_ddl(self, step: DdlStep, history: SchemaHistory, frozen: FrozenTables) -> DdlResult:
        """Reconnects after a lost connection; the executor then determines how much of the DDL the server executed (``Sink.apply_ddl``)."""
        record, policy = self._record, self._retry_policy
        schema = Routes.of(self._settings).database(schema_of(step, history))
        with record.one_at_a_time:
            record.catch_up()
            self._tables.forget()
            with self._watched():
                for attempt in retrying(policy):
                    with attempt, session_for(self._ddl_sessions.use, attempt, partial(begin_ddl, schema)) as session:
                        # Before anything is executed: a server that lost its last transactions lacks the rows that come before this DDL.
                        record.locked_ts(session, record.commit_ts, step.commit_ts)
                        save, in_doubt = partial(self._save_ddl, session, step), self._safe.open_at(step.commit_ts - 1)
                        outcome = apply_ddl(
                            session, step, history, self._settings, self._leased.lease, save, frozen, in_doubt=in_doubt, policy=policy
                        )
            record.stands_at(step.commit_ts, step.applied)
        return DdlResult(outcome.losses, outcome.frozen, outcome.fate)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Report who keeps a DDL of the block from a metadata lock: its own connection only says that there is no answer."""
        name, over = lease.lock_name(DDL, self._leased.lease.schema, self._cluster_id), threading.Event()

        def watch() -> None:
            since = time.time()
            while not over.wait(_LOOK_SECONDS):
                with suppress(ApplyError), self._connect() as session:
                    words = doing_of(session, name)
                    if METADATA_LOCK in words and not over.is_set():
                        self._waiting_for = TransientError(f"the lock {name} on the target: {words}", since)

        watching = threading.Thread(target=watch, name="metadata lock", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join(_MOMENT)  # it may be connecting
            self._waiting_for = None

    def _save_ddl(self, session: Session, step: DdlStep, _: object) -> None:
        record = self._record
        record.locked_ts(session, record.commit_ts, step.commit_ts)
        record.save_end(session, record.commit_ts, step.commit_ts, step.applied, consistent=record.consistent)

    # Sessions.

    def _connect(self) -> Session:
        return connect(self._config.target, self._settings)

    def _connect_for_ddls(self) -> Session:
        """Open a session with autocommit on, as DDLs are executed: it need not be switched for each."""
        session = connect(self._config.target, self._settings, for_ddls=True)
        try:
            session.execute("SET SESSION autocommit = 1")
        except BaseException:
            session.close()
            raise
        session.opened()
        return session

    def _wait_for(self, error: TransientError | None) -> None:
        self._waiting_for = error
        self._tables.forget()


def _clock_now() -> int:
    """A timestamp of now by this machine's clock, which may be behind."""
    return tso(int(time.time() * 1000) + 60_000)
