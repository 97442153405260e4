"""The target's record of how far a stream is: when it is saved, and what follows it. [db]

    a step with data, a DDL         -> saved in their transaction
    a step that applied nothing     -> put off (``late_record``), saved by what comes next, by a timer, or at the end
    the target's own timestamp      -> read between two steps, saved at once (``SyncPoints``)
    the real checkpoint elsewhere   -> written after each of these (``elsewhere``)

Promises: each transaction that moves the record first locks and compares it, so a record that somebody else has moved is noticed and not
overwritten. The record says ``consistent`` only where nothing is half applied and no safe mode is open. This module knows no rows and DDLs: the sink gives
``commit_ts`` and ``consistent``.
"""

import logging
import threading
import time

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, ReplicationError, RetryableApplyError
from pyspark_tidb_binlog.sinks.engine import late_record
from pyspark_tidb_binlog.sinks.engine.late_record import LateRecord, Note
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint, SyncPoint, TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.elsewhere import (
    Choice,
    RealCheckpoint,
    Trailing,
    choose,
    is_elsewhere,
    real_checkpoint,
    table_in_target,
)
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.moved_record import carry_out, move_of
from pyspark_tidb_binlog.sinks.mysql.opening import Found
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.safe_mode import SafeMode
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import State, StateTable
from pyspark_tidb_binlog.sinks.sink import TargetProgress

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
"""How long ``close`` waits for the last checkpoint."""
_SYNC_SECONDS = 60.0
"""Least time between two questions of ``SyncPoints``."""
_ASK = "SHOW MASTER STATUS"


class SyncPoints:
    """Asks a TiDB target, at most once a minute, for its present timestamp: the ``secondary-ts`` of a checkpoint (drainer.md 5.7).

    It is taken between two steps, so the target at that timestamp equals the source at the checkpoint's commitTS.
    """

    def __init__(self) -> None:
        """The first answer is due at once."""
        self._next_at = 0.0
        self._told = False

    def due(self, target: LeasedTarget) -> int:
        """The target's timestamp; 0: it is not due, or the target has none."""
        if time.monotonic() < self._next_at:
            return 0
        self._next_at = time.monotonic() + _SYNC_SECONDS
        why = f"{_ASK} shows none"
        try:
            for attempt in target.retrying():
                with attempt, target.session(attempt) as session:
                    found = _position(session)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            found, why = 0, str(error)
        if not found and not self._told:
            self._told = True
            _log.warning("the target gives no timestamp to record, so the checkpoint's ts-map does not change: %s", why)
        return found


def _position(session: Session) -> int:
    rows = session.query(_ASK)
    return int(rows[0][1]) if rows and str(rows[0][1]).isdecimal() else 0


class TargetRecord:
    """The record of one stream in its target."""

    def __init__(self, config: DrainerConfig, leased: LeasedTarget, safe: SafeMode) -> None:
        """Accesses nothing before ``move_here``. ``safe``: the safe mode of the sink."""
        self._config = config
        self._leased = leased
        self._safe = safe
        self.table = table_in_target(config)
        """The table of the record in the target."""
        self.checkpoint, self.state = (
            TargetCheckpoint(0, config.apply.checkpoint_schema, self.table),
            StateTable(config.apply.checkpoint_schema, 0),
        )
        """The checkpoint, and what is recorded beside it; those of the cluster from ``move_here`` on."""
        self.commit_ts = 0
        """Everything up to and including it is in the target."""
        self.consistent = True
        """False while a span is only partly in the target."""
        self.one_at_a_time = threading.RLock()
        """Held by a step, and by whoever saves what was put off."""
        self._late = LateRecord()
        self._saving_later: threading.Timer | None = None
        self._version_saved = 0
        self._sync_points = SyncPoints()
        self._sync_point: SyncPoint | None = None
        self._real: RealCheckpoint | None = None
        """The real Drainer's checkpoint; None: the record in the target is it, or nothing is open."""
        self._found_real: Checkpoint | None = None
        """As it was at the start."""
        self._trailing: Trailing | None = None
        self._beside: int | None = None
        """See ``Checkpoint.beside``."""
        self._opened = False
        self._stopped = False
        """Whether the last checkpoint is being, or is, saved."""

    # At the start.

    def move_here(self) -> None:
        """Before anything is read: where the settings have put the record into another place than in the life before, the newest one counts.

        Raises:
            ConfigError: an operator must choose.
        """
        config, held = self._config, self._leased.lease
        self.checkpoint, self.state = TargetCheckpoint(held.cluster_id, held.schema, self.table), StateTable(held.schema, held.cluster_id)
        if is_elsewhere(config):
            self._real = real_checkpoint(config, held.cluster_id)
            self._real.open()
            self._found_real = self._real.read()
            self._trailing = Trailing(self._real)
            self._beside = 0
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                move = move_of(session, config, held.cluster_id, self._found_real)
        if move.words:
            _log.warning("%s", move.words)
            for attempt in self._leased.retrying():
                with attempt, self._leased.session(attempt) as session:
                    self.checkpoint.create(session)
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    carry_out(session, move, config, held)
        self._beside = move.beside or self._beside

    def defer(self, note: Note) -> None:
        """Save the record of steps in which nothing was applied at most every few seconds (``Sink.defer``)."""
        self._late.note = note

    def found(self, ours: Checkpoint | None, state: State) -> Found:
        """What is recorded at the start. The target's record counts (the row ``ours``, and ``state`` beside it), or the real checkpoint elsewhere."""
        found = state.progress(ours)
        self._sync_point = ours.sync_point if ours else None
        if not is_elsewhere(self._config):
            return Found(found, Choice(None, True), state)
        assert self._real is not None and self._trailing is not None
        choice = choose(ours, self._found_real, self._real.where, self._leased.lease.target)
        self._trailing.begin(self._found_real, (*ours.elsewhere, ours.commit_ts) if ours is not None and choice.ours else ())
        if choice.words:
            _log.warning("%s", choice.words)
        if choice.ours or choice.checkpoint is None:
            return Found(found, choice, state)
        other = choice.checkpoint
        return Found(TargetProgress(other.commit_ts, other.consistent, other.schema_version, None), choice, state)

    def save_first(self, applied: AppliedJobs) -> None:
        """The target has no record: make one."""
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self.locked_ts(session, 0, self.commit_ts)
                self.save(session, self.commit_ts, applied, consistent=True)

    def begin(self, recorded_ts: int, applied: AppliedJobs) -> None:
        """The row says ``recorded_ts`` and ``applied``; the stream begins at ``commit_ts``, which becomes the record."""
        self._version_saved = applied.version
        self._late.found(recorded_ts, applied)
        self.catch_up()
        # What was caught up with are steps of the life before.
        self._late.found(self._late.recorded_ts, applied)
        self._reached(self.commit_ts)
        self._opened = True

    # Within a transaction of the sink.

    def next_is(self, session: Session, step: RowsStep) -> bool:
        """Lock the checkpoint row and return whether ``step`` is still to be applied; False: a commit whose answer was lost succeeded."""
        stored_ts = self.locked_ts(session, step.after_ts, step.upto_ts)
        return stored_ts == step.after_ts or step.after_ts == step.upto_ts

    def locked_ts(self, session: Session, after_ts: int, upto_ts: int) -> int:
        """Lock the checkpoint row and return its commitTS: ``after_ts``, or ``upto_ts`` when the answer to that commit was lost. A row that says
        what is behind ``after_ts`` by steps that were put off says ``after_ts``.
        """
        found = self.checkpoint.load(session, lock=True)
        stored_ts = found.commit_ts if found is not None else 0
        if stored_ts == self._late.recorded_ts and after_ts == self.commit_ts:
            return after_ts
        if stored_ts not in (after_ts, upto_ts):
            cluster_id = self._leased.lease.cluster_id
            raise ApplyError(
                f"cannot apply ({after_ts}, {upto_ts}]: the target's checkpoint of cluster {cluster_id} was moved to {stored_ts}. Was it "
                "edited, or the target restored, while the stream was running? Restart the Drainer: it continues from the target's checkpoint"
            )
        return stored_ts

    def save(self, session: Session, commit_ts: int, applied: AppliedJobs, *, consistent: bool) -> None:
        """Write the row."""
        named = self._trailing.named(commit_ts, now=self._stopped) if self._trailing is not None else ()
        whole = consistent and commit_ts >= self._safe.bounds.end_ts
        row = Checkpoint(commit_ts, whole, applied.version, self._sync_point, named, self._beside)
        self.checkpoint.write(session, row)

    def save_end(self, session: Session, after_ts: int, upto_ts: int, applied: AppliedJobs, *, consistent: bool = True) -> None:
        """Write the row, and that (after_ts, upto_ts] is in the target."""
        self.state.end(session, after_ts, upto_ts)
        self.save(session, upto_ts, applied, consistent=consistent)

    # Between two transactions.

    def moved_to(self, commit_ts: int, applied: AppliedJobs) -> None:
        """The target's record says so."""
        self._version_saved = applied.version
        self._late.saved(commit_ts, applied)
        self._reached(commit_ts)

    def put_off(self, step: RowsStep) -> bool:
        """Move on without a transaction, because nothing is applied in ``step``; False: its end is to be saved now."""
        if self._leased.lost is not None:
            raise self._leased.lost
        if not self.consistent or step.after_ts != self.commit_ts or not self._late.put_off(step):
            return False
        self._reached(step.upto_ts)
        if self._saving_later is None:
            # The next batch may be long in coming.
            self._saving_later = threading.Timer(late_record.SECONDS, self._catch_up_in_time)
            self._saving_later.daemon = True
            self._saving_later.start()
        failpoints.point("after-record-put-off")
        return True

    def catch_up(self) -> None:
        """Save what was put off."""
        late = self._late
        with self.one_at_a_time:
            if late.recorded_ts >= self.commit_ts:
                return
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    found = self.checkpoint.load(session, lock=True)
                    if late.recorded_ts == (found.commit_ts if found is not None else 0):
                        self.save_end(session, late.recorded_ts, self.commit_ts, late.applied)
            late.saved(self.commit_ts, late.applied)
            self._reached(self.commit_ts)

    def note_sync_point(self, applied: AppliedJobs) -> None:
        """Of a TiDB, once in a while, between two steps: what it holds now is the source at ``commit_ts``, and nobody else writes to it."""
        if not self.consistent or self._safe.open_at(self.commit_ts):
            return
        secondary_ts = self._sync_points.due(self._leased)
        if secondary_ts:
            self.catch_up()
            self._sync_point = SyncPoint(self.commit_ts, secondary_ts)
            self._save_again(applied, self._leased.retry_policy)
            self.moved_to(self.commit_ts, applied)

    def _save_again(self, applied: AppliedJobs, policy: RetryPolicy) -> None:
        for attempt in retrying(policy):
            with attempt, self._leased.fenced(attempt) as session:
                self.locked_ts(session, self.commit_ts, self.commit_ts)
                self.save(session, self.commit_ts, applied, consistent=self.consistent)

    def _reached(self, commit_ts: int) -> None:
        self.commit_ts = commit_ts
        if self._safe.bounds.end_ts:
            self._safe.reached(commit_ts)
        # The real checkpoint is written after ours.
        if self._trailing is not None:
            self._trailing.follow(self._real_now(consistent=False))

    def _catch_up_in_time(self) -> None:
        with self.one_at_a_time:
            self._saving_later = None
            self._catch_up_at_last()

    # At the end.

    def close(self) -> None:
        """Save what is put off, then the real checkpoint elsewhere. If the target does not answer, what was noted is enough, and the real checkpoint
        stays behind ours. Safe to call twice.
        """
        if (later := self._saving_later) is not None:
            later.cancel()
        if self._late.recorded_ts < self.commit_ts and self._leased.lost is None:
            saving = threading.Thread(target=self._catch_up_at_last, name="the last checkpoint", daemon=True)
            saving.start()
            saving.join(_CLOSE_SECONDS)
        # A step that is not over yet, or the timer, may be writing either of them.
        if self.one_at_a_time.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._save_last()
            except ReplicationError as error:
                _log.warning("the checkpoint %s does not record a clean stop: %s", self._real.where if self._real else "", error)
            finally:
                self.one_at_a_time.release()
        if self._real is not None:
            self._real.close()

    def _catch_up_at_last(self) -> None:
        try:
            self.catch_up()
        except ReplicationError as error:
            _log.warning(
                "the checkpoint stays at %d, although there was nothing to apply up to %d: %s",
                self._late.recorded_ts,
                self.commit_ts,
                error,
            )

    def _save_last(self) -> None:
        """After a clean stop the real checkpoint says that the target is consistent, where it is."""
        trailing = self._trailing
        if trailing is None or not self._opened or self._stopped or self._leased.lost is not None or not trailing.retry(now=True):
            return
        self._stopped = True
        self._save_again(AppliedJobs(self._version_saved), FEW)
        consistent = self.consistent and not self._safe.open_at(self.commit_ts)
        trailing.end(self._real_now(consistent=consistent))

    def _real_now(self, *, consistent: bool) -> Checkpoint:
        target = self._leased.lease.target
        return Checkpoint(self.commit_ts, consistent, self._version_saved, self._sync_point, written_for=target)
