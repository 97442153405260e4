"""Applies a step in parts, by the executors (``parallel``): begins its span with ``consistent`` false, and ends it when the target has all of them. [db]"""

import logging
from dataclasses import replace

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql import parallel
from pyspark_tidb_binlog.sinks.mysql.part_plans import PartPlan
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.row_target import RowTarget
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenParts, Reason, SafeBounds, commits_lost
from pyspark_tidb_binlog.sinks.mysql.structure import PartsOutdated
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

_log = logging.getLogger(__name__)


class InParts:
    """The parts of one target's spans."""

    def __init__(self, target: RowTarget, config: DrainerConfig) -> None:
        """Accesses nothing."""
        self._target = target
        self._config = config
        self._filters = Selection.of(config.apply).text + (f" channel {config.apply.channel_id}" if config.apply.loopback_control else "")
        self._together = True
        """Whether Spark runs all parts of a span at the same time, as far as is known."""
        self._shipped: ShippedTarget | None = None

    def apply(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """One transaction for each part and phase of ``step`` (``Sink.apply_parts``)."""
        target = self._target
        if not target.record.consistent:
            # Said before anything about the target's tables, which may be those of the other filters.
            for attempt in target.leased.retrying():
                with attempt, target.leased.fenced(attempt) as session:
                    target.record.state.require_same(session, OpenParts(step.after_ts, step.upto_ts, events.parts, self._filters))
        for attempt in target.tables.fitting():
            with attempt:
                before = attempt.refused.written if isinstance(attempt.refused, PartsOutdated) else Written()
                written = before.plus(self._apply(events, step, skipped_ts, clock))
        return written

    def _apply(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        target, record = self._target, self._target.record
        record.catch_up()
        fitted, safe = target.fitted(step, None)
        for attempt in target.leased.retrying():
            with attempt, target.leased.fenced(attempt) as session:
                begun = self._begin(session, fitted.step, events.parts, safe)
        written = Written()
        if begun:
            record.consistent = False
            failpoints.point("before-deletes")
            written = self._write(events, fitted.step, safe, skipped_ts, clock)
            failpoints.point("after-downstream-commit")
        record.moved_to(step.upto_ts, step.applied)
        record.consistent = True
        if target.settings.db_type == "tidb":
            record.note_sync_point(step.applied)
        return target.tables.settled(fitted, written)

    def _begin(self, session: Session, step: RowsStep, parts: int, safe: SafeSpan | None) -> bool:
        """Record that ``step`` is applied in parts from now on; False: it is in the target already."""
        record = self._target.record
        if not record.next_is(session, step):
            return False
        record.state.begin_parts(session, OpenParts(step.after_ts, step.upto_ts, parts, self._filters))
        if safe is not None and not self._target.safe.open_at(step.after_ts):
            # What it deletes is written by safe mode alone: a later life must go on so, whatever its setting is.
            record.state.begin_safe(session, SafeBounds(step.after_ts, step.upto_ts, Reason.PARTS))
        record.save(session, step.after_ts, step.applied, consistent=False)
        return True

    def _write(self, events: KeyedEvents, step: RowsStep, safe: SafeSpan | None, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """Apply all parts, and end the span when the target has all that it has answered: parts that it has lost since are applied again."""
        target = self._target
        how = PartPlan(
            (step.after_ts, step.upto_ts),
            dict(step.tables),
            target.flavour,
            target.limits,
            frozenset(ts for ts in skipped_ts if step.after_ts < ts <= step.upto_ts),
            step.gone,
            step.left_out,
            step.hidden,
            safe,
            target.settings.loopback_control,
        )
        to = parallel.PartTarget(self._ship(events), target.settings, target.leased.lease, step.after_ts, step.upto_ts, events.parts)
        written = Written()
        while True:
            done = self._apply_phases(events, how, to, clock)
            written = written.plus(done.written)
            for attempt in target.leased.retrying():
                with attempt, target.leased.fenced(attempt) as session:
                    lost = self._end(session, step, to.parts, done.phases)
            if not lost:
                return written
            _log.warning("%s", commits_lost(f"{lost} parts of ({step.after_ts}, {step.upto_ts}]", "They are applied again"))

    def _end(self, session: Session, step: RowsStep, parts: int, answered: frozenset[tuple[int, str]]) -> int:
        """How many parts the target lacks that it has answered; if none, the span is closed."""
        record = self._target.record
        if record.next_is(session, step):
            lost = len(answered - record.state.read(session).parts_done(step.after_ts, step.upto_ts, parts))
            if lost:
                return lost
            record.save_end(session, step.after_ts, step.upto_ts, step.applied)
        failpoints.point("before-downstream-commit")
        return 0

    def _apply_phases(self, events: KeyedEvents, how: PartPlan, to: parallel.PartTarget, clock: StageClock) -> parallel.PartsDone:
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
            f"{done.left} of {to.parts} parts of ({to.after_ts}, {to.upto_ts}] are not written, because {to.apply.checkpoint_schema}.spark_state "
            "does not say that all deletes of the span are done. Were rows deleted there? Start the Drainer again: the start finishes the span"
        )

    def _ship(self, events: KeyedEvents) -> ShippedTarget:
        """The target for the executors; broadcast once."""
        if self._shipped is None:
            self._shipped = ShippedTarget.of(self._config.target, events.frame.sparkSession.sparkContext.broadcast)
        return self._shipped
