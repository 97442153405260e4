"""MySQL, MariaDB and TiDB as a target (``sinks.sink``): opens it, chooses the way in which a step is applied, and executes DDLs.

    few rows                       one transaction of the driver (``row_target``)
    many rows                      one transaction per part and phase, by the executors (``in_parts``)
    net-change = false             every row operation, on several connections (``rows.in_lanes``)
    a span that a life has begun   as it was begun

Promises: those of the contract. The target's checkpoint row is the record (``sinks.mysql.target_record``): the transaction of the data writes it.
Every transaction first checks the lease of this life (``sinks.mysql.lease_guard``). Parts and lanes are applied with ``consistent`` false. A DDL has its
own intent and done rows (``sinks.mysql.ddl.executor``).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, without
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.choice import schema_of
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.late_record import Note
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep, SetVal
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checked import CheckedWriter
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint, only_cluster
from pyspark_tidb_binlog.sinks.mysql.ddl import sql_kinds
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import applied_at, begin_record, ensure_ddl_table, forget_later, load_frozen
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.in_parts import InParts
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL, METADATA_LOCK, LeasedTarget, doing_of
from pyspark_tidb_binlog.sinks.mysql.opening import Opening, opening_of
from pyspark_tidb_binlog.sinks.mysql.own_tables import require_sound
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.retry_policy import TransientError, patient, retrying
from pyspark_tidb_binlog.sinks.mysql.row_target import RowTarget
from pyspark_tidb_binlog.sinks.mysql.rows.in_lanes import InLanes
from pyspark_tidb_binlog.sinks.mysql.safe_mode import SafeMode
from pyspark_tidb_binlog.sinks.mysql.sequences import set_sequences
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, begin_ddl, connect, session_for
from pyspark_tidb_binlog.sinks.mysql.state_table import SafeBounds, State
from pyspark_tidb_binlog.sinks.mysql.tables_there import TablesThere
from pyspark_tidb_binlog.sinks.mysql.target_record import TargetRecord
from pyspark_tidb_binlog.sinks.routing.routes import Routes
from pyspark_tidb_binlog.sinks.routing.table_filter import MARK_SCHEMA, MARK_TABLE
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink, TargetProgress, UnfinishedSpan

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""How often it is looked who keeps a DDL from a metadata lock."""
_MOMENT = 1.0


class MySQLSink(Sink):
    """One target of one stream."""

    def __init__(
        self,
        config: DrainerConfig,
        cluster_id: int,
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], int] | None = None,
        *,
        logged: bool = False,
    ) -> None:
        """``cluster_id`` 0: the only one that the target has a record of. ``pause`` sleeps between retries; it may raise to stop them.
        ``now``: the upstream's timestamp of now; None: by this machine's clock. ``logged``: there is a relay log of all that a Drainer had begun.
        """
        self._logged = logged
        self._config = config
        self._settings = config.apply
        self._cluster_id = cluster_id
        self._now = now or _clock_now
        self._safe = SafeMode(partial=config.apply.partial_columns)
        self._waiting_for: TransientError | None = None
        self._retry_policy = patient(config.apply.retry_seconds, pause, self._wait_for)
        self._leased = LeasedTarget(self._connect, config.apply, self._retry_policy)
        self._record = TargetRecord(config, self._leased, self._safe)
        self._ddl_sessions = KeptSessions(self._connect_for_ddls, config.apply.lease_timeout)
        """Sessions of their own, because a DDL chooses a current database, which cannot be undone."""
        self._tables = TablesThere(config.apply)
        self.row_target = RowTarget(config.apply, self._leased, self._record, self._safe, self._tables)
        self._parts = InParts(self.row_target, config)
        self._begun_in_parts = (0, 0)
        """The span that an earlier life has begun in parts."""
        self._lanes = InLanes(self.row_target, self._connect)
        self._way: RowTarget | InLanes = self.row_target if config.apply.net_change else self._lanes
        """How a step of few rows is applied unless it was begun otherwise."""
        self._unset: set[str] = set()
        """Sequences that are findings already."""

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Take the lease, create the tables and load the target's progress (``Sink.open``)."""
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                self._get_to_know(session)
        held, record = self._leased.take(self._cluster_id), self._record
        self.row_target.history = history
        self.row_target.writer = CheckedWriter(held, self._settings, self._leased.sessions.use, self._retry_policy)
        record.move_here()
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                recorded, state = self._read_record(session)
        found = record.found(recorded, state)
        known = found.progress.known
        answer = begin(held.target, found.progress.commit_ts if known else None)
        opening = opening_of(found, answer, history(), self._now, logged=self._logged)
        record.commit_ts = opening.commit_ts
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self._forget_beyond(session, opening, consistent=found.progress.consistent)
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self._remove_stale_marks(session)
                kept = record.state.read(session)
                applied = applied_at(session, self._settings, self._cluster_id, (opening.commit_ts, opening.version), history())
                frozen = load_frozen(session, self._settings, self._cluster_id)
        bounds, self._lanes.open_span = kept.safe_bounds(opening.commit_ts), kept.lanes_at(opening.commit_ts)
        if bounds.end_ts:
            self._safe.begin(bounds, opening.why or "an earlier life of this Drainer began it")
        if not known:
            # Filled by a dump or a copy, with what was visible then.
            applied = applied.covering(opening.commit_ts, history())
            record.save_first(applied)
        record.consistent = found.progress.unfinished is None and self._lanes.open_span is None
        record.begin(found.progress.commit_ts if known and not opening.moved else opening.commit_ts, applied)
        unfinished = self._unfinished(found.progress, kept)
        progress = replace(found.progress, commit_ts=opening.commit_ts, schema_version=opening.version, unfinished=unfinished)
        return Opened(progress, applied, frozen)

    def _unfinished(self, found: TargetProgress, state: State) -> UnfinishedSpan | None:
        """The span that is read again exactly, whatever the source would make the next batch of: begun in parts, in lanes, or from a relay log."""
        if found.unfinished is not None:
            self._begun_in_parts = (found.unfinished.after_ts, found.unfinished.upto_ts)
            return found.unfinished
        left = self._lanes.open_span
        upto_ts = left.upto_ts if left is not None else state.relayed_upto(self.commit_ts)
        return UnfinishedSpan(self.commit_ts, upto_ts, self._settings.parts, frozenset(), relayed=left is None) if upto_ts else None

    def defer(self, note: Note) -> None:
        """Save the record of steps in which nothing was applied at most every few seconds (``Sink.defer``)."""
        self._record.defer(note)

    def close(self) -> None:
        """Save what is put off, then the real checkpoint elsewhere, and release the lease (``Sink.close``)."""
        self._lanes.close()
        self._record.close()
        self._ddl_sessions.close()
        self._leased.close()

    @property
    def commit_ts(self) -> int:
        """Everything up to and including this commit_ts is in the target."""
        return self._record.commit_ts

    @property
    def lease(self) -> Lease:
        """The right to write that this life holds; from ``begin`` of ``open`` on."""
        return self._leased.lease

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
        return self._waiting_for or self._lanes.waiting_for

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        """What the target cannot hold of jobs without a statement (``Sink.silent_losses``)."""
        return sql_kinds.silent_losses(history, after_version, upto_version) if self._settings.sync_ddl else ()

    # Opening.

    def _get_to_know(self, session: Session) -> None:
        self.row_target.flavour = session.flavour
        self.row_target.limits = PlanLimits().within(session.max_allowed_packet)
        self._cluster_id = self._cluster_id or only_cluster(session, self._settings.checkpoint_schema, self._record.table)

    def _read_record(self, session: Session) -> tuple[Checkpoint | None, State]:
        """The checkpoint row, and all that is recorded beside it."""
        self._record.checkpoint.create(session)
        self._record.state.create(session)
        ensure_ddl_table(session, self._settings)
        session.commit()
        # A real Drainer, which does not check the lease, may still have a commit in progress on the server: the lock waits for it.
        recorded = self._record.checkpoint.load(session, lock=True)
        return recorded, self._record.state.read(session)

    def _forget_beyond(self, session: Session, opening: Opening, *, consistent: bool) -> None:
        """Delete the records of DDLs and parts after the checkpoint. They are written together with it, so they describe data that is gone, or that is
        written again in safe mode. ``consistent``: what the checkpoint elsewhere says, to which the target's record may be set.
        """
        if opening.safe_until:
            self._record.state.begin_safe(session, SafeBounds(opening.commit_ts, opening.safe_until))
        self._record.state.forget_beyond(session, opening.commit_ts)
        begin_record(session, self._settings, self._cluster_id, opening.commit_ts, afresh=opening.afresh)
        jobs = forget_later(session, self._settings, self._cluster_id, self._record.commit_ts)
        if opening.moved:
            self._record.save(session, opening.commit_ts, AppliedJobs(opening.version), consistent=consistent and not opening.safe_until)
        if jobs:
            _log.warning(
                "%s.spark_ddl recorded DDL jobs %s as done after the checkpoint %d. The target's data was restored, or its checkpoint was set back. These "
                "records are deleted, and the DDLs are executed again",
                self._settings.checkpoint_schema,
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
        if self.row_target.flavour is Flavour.MYSQL or not self._settings.sync_ddl:
            return ()
        with self._record.one_at_a_time:
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    found = set_sequences(session, setvals)
        new = [one for one in found if one.table not in self._unset]
        self._unset |= {one.table for one in new}
        return new

    # Rows: the way is chosen here.

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """The net changes in one transaction of the driver, or all operations in lanes (``Sink.apply``)."""
        with self._record.one_at_a_time:
            if self._lanes.interrupted:
                self._lanes.refresh()
            if self._lanes.open_span is None:
                written = self._way.apply(rows, step, clock)
            else:
                written = self._apply_cut(rows, step, clock)
            if self._settings.db_type == "tidb":
                self._record.note_sync_point(step.applied)
            return written

    def _apply_cut(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Finish the span that was begun row by row, and what ``step`` has behind it in the usual way."""
        written = Written()
        for here in self._lanes.cut(step):
            way = self._lanes if self._lanes.is_open(here) else self._way
            written = written.plus(way.apply(rows_between(rows, here.after_ts, here.upto_ts), here, clock))
        return written

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """The net changes in parts, by the executors, or all operations in pieces, from the driver (``Sink.apply_parts``).

        A span that was begun in parts, or in lanes, is finished so.
        """
        with self._record.one_at_a_time:
            if self._lanes.interrupted:
                self._lanes.refresh()
            folds = self._way is self.row_target and not self._lanes.is_open(step)
            if folds or (step.after_ts, step.upto_ts) == self._begun_in_parts:
                return self._parts.apply(events, step, skipped_ts, clock)
            written = Written()
            for span in self._lanes.spans(events, step):
                with clock.timed(Stage.READ):
                    rows = without(events.rows_in(span), "commit_ts", skipped_ts)
                written = written.plus(self.apply(rows, replace(step, after_ts=span[0], upto_ts=span[1]), clock))
            return written

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
            record.moved_to(step.commit_ts, step.applied)
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
