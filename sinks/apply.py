"""Applies one micro-batch to the target: the ``foreachBatch`` function and the replay of an unfinished span. [spark]

A batch becomes steps: rows between two DDLs, or one DDL. Each step goes to the sink (``sinks.sink``), which records the step with its data.

Promises: the sink's ``commit_ts`` is authoritative. Transactions at or below it are skipped, so a batch may be applied any number of times. A batch
that begins beyond it would leave a gap and is refused. Up to ``atomic-rows`` row events of a step are applied by the driver in one transaction;
bigger steps are applied by the executors in parts. A DDL is a barrier.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.conf.entry import comparing
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, DdlRefused, ReplicationError
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.stages import COLLECTS, ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch import (
    Collected,
    Controls,
    RowSummary,
    controls_of,
    exploded_upto,
    gap_text,
    merge,
    placed,
    rows_between,
    summarise,
    without,
)
from pyspark_tidb_binlog.sinks.engine.batch_report import REFUSED, BatchReport, DdlNote, Stage, StageClock
from pyspark_tidb_binlog.sinks.engine.choice import NOTHING_LEFT_OUT, LeftOut, MarkTables, chosen, chosen_setvals, decided, looped, routed
from pyspark_tidb_binlog.sinks.engine.conditions import Condition, Conditions, hidden_events, hidden_rows, require, require_values
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, UnwritableTable, fitted
from pyspark_tidb_binlog.sinks.engine.history_wait import HistoryWait
from pyspark_tidb_binlog.sinks.engine.keyed import BlockKind, KeyedEvents, keyed, persisted
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep, events_by_table, plan_steps, replay_steps
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.sink import Sink, TargetProgress, UnfinishedSpan

_log = logging.getLogger(__name__)

ATOMIC_BYTES = 64 << 20
"""Bytes of row images up to which a batch is collected on the driver and is one transaction (``atomic-rows`` bounds their number)."""
_BACKLOG_MS = 10_000
"""A target that is further behind than this has a backlog."""
_STRANDED = (
    "some sessions still wrote into the partition when rows first needed its DROP PARTITION. The upstream dropped those rows; at the target they may be in "
    "the next partition. Compare the table with the upstream by "
)
_SMALL_BATCHES = 3
"""After so many small batches in a row there is none. A backlog may begin with a small one."""


class BatchApplier:
    """The function of ``foreachBatch``; one instance per query, called by one thread at a time."""

    def __init__(
        self,
        spark: SparkSession,
        config: DrainerConfig,
        sink: Sink,
        feed: HistoryFeed,
        report: Callable[[BatchReport], None],
        note_ddl: Callable[[DdlNote], None] = lambda note: None,
    ) -> None:
        """``report`` is called synchronously after each batch, ``note_ddl`` after each DDL; they must not block."""
        self._spark = spark
        self._settings = config.apply
        self._selection = Selection.of(config.apply)
        self._renames = bool(self._selection.routes)
        """Whether any table has another name, or fewer rows or columns, at the target."""
        self._required: set[tuple[int, int, str]] = set()
        """Conditions that can be evaluated: table id, schema version, expression."""
        self._channel = config.apply.channel_id if config.apply.loopback_control else None
        """The mark of transactions that came back in a ring; None: there is no ring."""
        self._left_out_of: tuple[SchemaHistory, LeftOut] | None = None
        self._checkpoint_dir = config.checkpoint_dir
        self._sink = sink
        self._feed = feed
        self._wait = HistoryWait(feed, self._selection.keeps)
        self._report = report
        self._note_ddl = note_ddl
        self._applied = AppliedJobs(0)
        self._frozen: FrozenTables = NONE_FROZEN
        self._shipped: tuple[SchemaHistory, Broadcast[SchemaHistory]] | None = None
        self._expect_big = False
        """Whether the next batch is probably too big for the driver."""
        self._small_in_a_row = 0
        self.clock = StageClock()
        """The current activity."""
        self.failure: ReplicationError | None = None
        """The error that ended the stream, before Spark wrapped it."""

    @property
    def frozen(self) -> FrozenTables:
        """The tables of which a DDL was not executed on the target."""
        return self._frozen

    @property
    def version(self) -> int:
        """The schema version of the target."""
        return self._applied.version

    def open(self, begin: Callable[[str, int | None], int]) -> TargetProgress:
        """Open the sink (``Sink.open``), load which DDL jobs the target has, and check that the routes are right for the tables that exist."""
        opened = self._sink.open(begin, self._feed.snapshot)
        self._applied, self._frozen = opened.applied, opened.frozen
        if routes := self._selection.routes:
            history = self._feed.snapshot()
            live = self._selection.live(history, self._applied.version)
            if wrong := routes.wrong(live, history):
                raise ConfigError(f"spark.route: {wrong}")
            for table in live:
                if where := routes.condition_of(table):
                    self._require_condition(table, where)
        return opened.progress

    def _require_condition(self, table: TableAt, where: str) -> None:
        """Check a condition, which may also be meant for the table as it is after the DDLs that come next."""
        try:
            require(self._spark, Condition(table, where))
        except ConfigError:
            history = self._feed.snapshot()
            later = history.table_at(table.table_id, history.newest_version)
            if later is None or later.version == table.version:
                raise
            require(self._spark, Condition(later, where))

    def replay(self, span: UnfinishedSpan, transactions: DataFrame) -> None:
        """Apply exactly the unfinished ``span``, with the number of parts it was begun with; ``transactions`` is a batch read of it."""
        self.clock.restart()
        self.clock.stage = Stage.READ
        history = self._feed.snapshot()
        with self._keyed(transactions, history, span.parts) as events:
            controls = Controls(span.after_ts, span.upto_ts, ())
            summary = self._summary(events, events.except_rows()[BlockKind.SUMMARIES], controls)
            with self._all_keyed(events, transactions, summary, history) as every:
                complete, summary = self._without_loops(every, summary, controls)
                ddls, rows = replay_steps((span.after_ts, span.upto_ts), summary.tables, self._feed.snapshot(), self._applied)
                for ddl in ddls:
                    self._apply_ddl(ddl)
                self._apply_in_parts(complete, rows)
        self._settle(-1, span.after_ts)

    def __call__(self, transactions: DataFrame, batch_id: int) -> None:
        """Apply one micro-batch (schema ``TRANSACTIONS``)."""
        self.clock.restart()
        after_ts, version, counts = self._sink.commit_ts, self._applied.version, self.clock.counts
        try:
            big = self._expect_big or (self._small_in_a_row < _SMALL_BATCHES and self._has_backlog())
            small = None if big else self._small(transactions)
            if small is None:
                self._apply_big(transactions)
            else:
                self._apply_steps(*small)
            self._expect_big = counts.row_events > self._settings.atomic_rows // 2
            self._small_in_a_row = 0 if self._expect_big else self._small_in_a_row + 1
            if self._applied.version > version:
                losses = self._sink.silent_losses(self._feed.snapshot(), version, self._applied.version)
                counts.findings += [Finding(FindingKind.DDL, words) for words in losses]
            self._settle(batch_id, after_ts)
        except ReplicationError as error:
            self.failure = error
            raise

    def _has_backlog(self) -> bool:
        """Whether the target is so far behind the upstream that the batches are probably big.

        By this machine's clock, which may be ahead, or the upstream may be a recording: batches that were small all the same count for more.
        """
        return time.time() * 1000 - physical_ms(self._sink.commit_ts) > _BACKLOG_MS

    def _settle(self, batch_id: int, after_ts: int) -> None:
        """Report what the batch did."""
        self.clock.stage = Stage.WAIT
        counts = self.clock.counts
        report = BatchReport(
            batch_id,
            after_ts,
            self._sink.commit_ts,
            self._applied.version,
            counts.transactions,
            counts.row_events,
            counts.row_bytes,
            counts.rows_written,
            counts.ddls,
            self.clock.seconds,
            tuple(counts.findings),
            counts.tables,
        )
        for finding in report.findings:
            _log.warning("finding: %s", in_words(finding, self._settings.log_row_data))
        self._report(report)

    # Small batch: one Spark action collects its row events on the driver.

    def _small(self, transactions: DataFrame) -> tuple[Sequence[RowsStep | DdlStep], pa.Table] | None:
        """Return the steps of the batch and the row events to apply; None: it is too big for the driver."""
        with self.clock.timed(Stage.READ):
            events = collected_upto(transactions, self._settings.atomic_rows, ATOMIC_BYTES, self._left_out())
        if events is None:
            return None
        rows, controls = events.rows, self._beyond(events.controls, events.ddls, events.rows)
        if controls is None:
            return (), rows
        rows = rows.filter(pc.greater(rows.column("commit_ts"), controls.after_ts))
        rows = without(rows, "commit_ts", self._settings.ignore_txn_commit_ts)
        if self._channel is not None:
            rows = self._not_looped(rows, self._channel)
        return self._steps(controls, merge(summarise(rows, controls.barriers))), rows

    # Big batch: keyed and shuffled once, persisted, and filtered for each step.

    def _apply_big(self, transactions: DataFrame) -> None:
        history = self._feed.snapshot()
        with self._keyed(transactions, history, self._settings.parts) as events:
            with self.clock.timed(Stage.READ):
                others = events.except_rows()
                controls = self._beyond(others[BlockKind.CONTROLS], others[BlockKind.DDLS], *others.values())
            if controls is None:
                return
            summary = self._summary(events, others[BlockKind.SUMMARIES], controls)
            with self._all_keyed(events, transactions, summary, history) as every:
                complete, summary = self._without_loops(every, summary, controls)
                self._apply_steps(self._steps(controls, summary), complete)

    @contextmanager
    def _keyed(self, transactions: DataFrame, history: SchemaHistory, parts: int) -> Iterator[KeyedEvents]:
        events = keyed(transactions, self._ship(history), parts, self._left_out())
        with persisted(events.frame):
            yield events

    @contextmanager
    def _all_keyed(
        self, events: KeyedEvents, transactions: DataFrame, summary: RowSummary, history: SchemaHistory
    ) -> Iterator[KeyedEvents]:
        """``events``, or the same keyed again where ``history`` lacked one of their tables, so that its rows got no keys, or a mark table."""
        self.clock.stage = Stage.HISTORY
        complete = self._wait.ready((), summary.tables)
        marks_known = self._channel is None or MarkTables.of(history) == MarkTables.of(complete)
        if marks_known and all(history.table_at(t.table_id, t.schema_version) is not None for t in summary.tables):
            yield events
        else:
            with self._keyed(transactions, complete, events.parts) as again:
                yield again

    def _apply_steps(self, steps: Sequence[RowsStep | DdlStep], events: pa.Table | KeyedEvents) -> None:
        """Apply the steps in order. Of events that the executors hold, those of a small step are fetched, with those of the small steps after it."""
        held, upto = (ROW_EVENT.empty_table(), 0) if isinstance(events, KeyedEvents) else (events, sys.maxsize)
        for place, step in enumerate(steps):
            if isinstance(step, DdlStep):
                self._apply_ddl(step)
                continue
            if isinstance(events, KeyedEvents):
                if not self._fits([step]):
                    self._apply_in_parts(events, step)
                    continue
                if step.row_events and step.upto_ts > upto:
                    upto = self._reach(steps[place:])
                    held = without(events.rows_in((step.after_ts, upto)), "commit_ts", self._settings.ignore_txn_commit_ts)
            rows = rows_between(held, step.after_ts, step.upto_ts)
            self.clock.counts.add(self._sink.apply(rows, self._at_target(step, rows), self.clock))
            self._applied = step.applied

    def _fits(self, steps: Sequence[RowsStep]) -> bool:
        """Whether the rows of these steps are few and small enough for the driver to hold and apply."""
        rows, size = sum(s.row_events for s in steps), sum(s.row_bytes for s in steps)
        return rows <= self._settings.atomic_rows and size <= ATOMIC_BYTES

    def _reach(self, steps: Sequence[RowsStep | DdlStep]) -> int:
        """Return the commit_ts up to which rows are fetched at once: that of as many leading steps as fit together."""
        taken: list[RowsStep] = []
        for step in steps:
            if isinstance(step, RowsStep):
                if taken and not self._fits([*taken, step]):
                    break
                taken.append(step)
        return taken[-1].upto_ts

    def _summary(self, events: KeyedEvents, summaries: pa.Table, controls: Controls) -> RowSummary:
        """Merge ``summaries`` (``ROW_SUMMARY``); the rows are read again only when one of them spans a barrier."""
        partials = placed(summaries, controls.after_ts, controls.barriers)
        if partials is None:
            partials = events.summaries((controls.after_ts, controls.upto_ts), controls.barriers)
        return merge(partials)

    # Steps.

    def _beyond(self, punctuation: pa.Table, ddls: pa.Table, *events: pa.Table) -> Controls | None:
        """Return the part of the batch's span that is not yet in the target; None when all of it is. ``events``: whatever else there is."""
        if not any(frame.num_rows for frame in (punctuation, ddls, *events)):
            # Spark runs a new stream's first batch even if the source returns nothing. A lost batch would show as a gap before the next.
            return None
        controls, commit_ts = controls_of(punctuation, ddls), self._sink.commit_ts
        if controls.after_ts > commit_ts:
            raise ApplyError(gap_text(controls.after_ts, commit_ts, self._checkpoint_dir))
        if controls.upto_ts <= commit_ts:
            return None
        return replace(controls, after_ts=commit_ts, ddls=tuple(d for d in controls.ddls if d.commit_ts > commit_ts))

    def _steps(self, controls: Controls, summary: RowSummary) -> tuple[RowsStep | DdlStep, ...]:
        """Count what the batch brings, and cut it into steps when the history holds what it needs."""
        counts, tables = self.clock.counts, summary.tables
        counts.transactions += summary.transactions
        counts.row_events += summary.events
        counts.row_bytes += summary.bytes
        counts.findings += controls.findings
        self.clock.stage = Stage.HISTORY
        history = self._wait.ready([d.job_id for d in controls.ddls if not d.is_setval], tables, controls.upto_ts)
        steps = plan_steps((controls.after_ts, controls.upto_ts), controls.ddls, tables, history, self._applied, self._wait.known_ts)
        counts.tables = events_by_table(tables, steps)
        return steps

    def _apply_in_parts(self, events: KeyedEvents, step: RowsStep) -> None:
        skipped_ts = frozenset(self._settings.ignore_txn_commit_ts)
        self.clock.counts.add(self._sink.apply_parts(events, self._at_target(step, events), skipped_ts, self.clock))
        self._applied = step.applied

    def _at_target(self, step: RowsStep, rows: pa.Table | KeyedEvents) -> RowsStep:
        """Return ``step`` with the tables that are replicated, as they are on the target, and with the images that conditions hide."""
        target = step if self._left_out().concerned.isdisjoint(step.tables) else chosen(step, self._selection)
        unwritable: tuple[UnwritableTable, ...] = ()
        if self._frozen:
            target, unwritable = fitted(target, self._frozen)
        if unwritable or step.lost or step.stranded:
            self._note(step, unwritable, rows)
        if self._selection.routes.conditions and (conditions := self._conditions(step, target)):
            span = (step.after_ts, step.upto_ts)
            hidden = hidden_rows(self._spark, rows, conditions) if isinstance(rows, pa.Table) else hidden_events(rows, span, conditions)
            target = replace(target, hidden=hidden)
        # Before the step's end is recorded: after a crash it is done again, which changes nothing.
        if step.setvals and (setvals := chosen_setvals(step, self._feed.snapshot(), self._selection)):
            self.clock.counts.findings += self._sink.set_sequences(setvals)
        return routed(target, self._selection.routes) if self._renames else target

    def _note(self, step: RowsStep, unwritable: Sequence[UnwritableTable], rows: pa.Table | KeyedEvents) -> None:
        """Record what of ``step`` the target lacks or may lack as findings; with the number of rows if the driver holds them."""
        findings = self.clock.counts.findings
        for job in step.lost:
            ddl = DdlStep(step.upto_ts, job, job.query, True, step.applied, step.applied, lost=True)
            losses = decided(ddl, self._feed.snapshot(), self._selection).losses
            findings += [Finding(FindingKind.DDL, words, commit_ts=step.upto_ts) for words in losses]
        for label in (f"{table.schema}.{table.name}" for table in step.stranded):
            findings.append(Finding(FindingKind.DDL, _STRANDED + comparing(label), label, step.upto_ts))
        for lost in unwritable:
            count = int(pc.sum(pc.equal(rows["table_id"], lost.table_id)).as_py() or 0) if isinstance(rows, pa.Table) else -1
            findings.append(Finding(FindingKind.DDL, lost.why, lost.table, step.upto_ts, wanted=count, found=0 if count >= 0 else -1))

    def _conditions(self, step: RowsStep, target: RowsStep) -> Conditions:
        """Return those of the tables of ``target``, where a frozen table still has its former name; over the columns upstream."""
        routes = self._selection.routes
        conditions = {i: Condition(step.tables[i], where) for i, table in target.tables.items() if (where := routes.condition_of(table))}
        for table_id, condition in conditions.items():
            require_values(condition)
            known = (table_id, int(condition.table.version), condition.where)
            if known not in self._required:
                require(self._spark, condition)
                self._required.add(known)
        return conditions

    def _apply_ddl(self, step: DdlStep) -> None:
        with self.clock.timed(Stage.DDL):
            history = self._feed.snapshot()
            step = decided(step, history, self._selection)
            try:
                done = self._sink.apply_ddl(step, history, self._frozen)
            except DdlRefused as error:
                words = "; ".join((str(error), *step.losses))
                self._note_ddl(DdlNote(step.commit_ts, step.restored, REFUSED, words, step.job.schema_name))
                raise
        losses = tuple(dict.fromkeys((*step.losses, *done.losses)))
        self.clock.counts.findings += [Finding(FindingKind.DDL, words, commit_ts=step.commit_ts) for words in losses]
        self._frozen = {**self._frozen, **done.frozen}
        self._applied = step.applied
        self.clock.counts.ddls += 1
        fate = "filtered" if step.decision.unwanted else done.fate
        self._note_ddl(DdlNote(step.commit_ts, step.restored, fate, "; ".join(losses), step.job.schema_name))

    def _left_out(self) -> LeftOut:
        """Return what is not replicated of the tables that are known now."""
        history = self._feed.snapshot()
        if self._left_out_of is None or self._left_out_of[0] is not history:
            marks = MarkTables() if self._channel is None else MarkTables.of(history)
            self._left_out_of = history, LeftOut.of(history, self._selection, marks)
        return self._left_out_of[1]

    # What came back in a ring.

    def _not_looped(self, rows: pa.Table, channel: int) -> pa.Table:
        """Return ``rows`` without marks, and without the transactions that carry one of our channel."""
        self.clock.stage = Stage.HISTORY
        history = self._wait.ready((), merge(summarise(rows, ())).tables)
        marks, rows = self._left_out().marks.apart(rows)
        return without(rows, "commit_ts", looped(marks, history, channel))

    def _without_loops(self, events: KeyedEvents, summary: RowSummary, controls: Controls) -> tuple[KeyedEvents, RowSummary]:
        """Do the same for rows that the executors hold, and their summary; the whole history must be known."""
        gone = frozenset[int]() if self._channel is None else looped(events.marks(), self._feed.snapshot(), self._channel)
        if not gone:
            return events, summary
        left = events.without(gone)
        return left, merge(left.summaries((controls.after_ts, controls.upto_ts), controls.barriers))

    def _ship(self, history: SchemaHistory) -> Broadcast[SchemaHistory]:
        """Return ``history`` for the executors; it is broadcast again only when it changes."""
        if self._shipped is None or self._shipped[0] is not history:
            if self._shipped is not None:
                self._shipped[1].unpersist()
            self._shipped = history, self._spark.sparkContext.broadcast(history)
        return self._shipped[1]


def collected_upto(transactions: DataFrame, events: int, size: int, left_out: LeftOut = NOTHING_LEFT_OUT) -> Collected | None:
    """The events of ``transactions`` but those that are not read, on the driver if they are at most ``events`` and ``size`` bytes, else None; runs
    one Spark job.
    """
    context = transactions.sparkSession.sparkContext
    context.setLocalProperty(COLLECTS, str(size))
    try:
        values = transactions.toArrow()
    finally:
        context.setLocalProperty(COLLECTS, None)  # type: ignore[arg-type]
    return exploded_upto(values, events, size, left_out)
