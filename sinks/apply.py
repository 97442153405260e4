"""Applies one micro-batch to the target: the ``foreachBatch`` function and the replay of an unfinished span. [spark]

A batch becomes steps: rows between two DDLs, or one DDL. Each step goes to the sink (``sinks.sink``), which records the step with its data.

Promises: the sink's ``commit_ts`` is authoritative. Transactions at or below it are skipped, so a batch may be applied any number of times. A batch
that begins beyond it would leave a gap and is refused. Up to ``atomic-rows`` row events of a step are applied by the driver in one transaction;
bigger steps are applied by the executors in parts. A DDL is a barrier.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, DdlRefused, ReplicationError
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine import keyed
from pyspark_tidb_binlog.sinks.engine.batch import (
    Controls,
    RowSummary,
    controls_of,
    gap_text,
    merge,
    placed,
    rows_between,
    summarise,
    without,
)
from pyspark_tidb_binlog.sinks.engine.batch_report import REFUSED, BatchCounts, BatchReport, DdlNote, Stage, StageClock
from pyspark_tidb_binlog.sinks.engine.blocks import BlockKind
from pyspark_tidb_binlog.sinks.engine.choice import NeverKept, chosen, chosen_setvals, decided, routed
from pyspark_tidb_binlog.sinks.engine.conditions import Condition, Conditions, hidden_events, hidden_rows, require, require_values
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, fitted
from pyspark_tidb_binlog.sinks.engine.history_wait import WaitedFor, complete_history
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, persisted
from pyspark_tidb_binlog.sinks.engine.loopback import MarkTables, looped
from pyspark_tidb_binlog.sinks.engine.segments import (
    AppliedJobs,
    DdlStep,
    RowsStep,
    TableActivity,
    events_by_table,
    plan_steps,
    replay_steps,
)
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.sink import Sink, TargetProgress, UnfinishedSpan

_log = logging.getLogger(__name__)

ATOMIC_BYTES = 64 << 20
"""Bytes of row images up to which a batch is collected on the driver and is one transaction (``atomic-rows`` bounds their number)."""
_BACKLOG_MS = 10_000
"""A target that is further behind than this has a backlog."""
_MAY_STAY = (
    "some sessions still wrote into the partition when rows first needed its DROP PARTITION. The upstream dropped those rows; at the target they may be in "
    "the next partition. Compare the rows of that range with the upstream"
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
        self._required: set[tuple[int, int, str]] = set()
        """Conditions that can be evaluated: table id, schema version, expression."""
        self._channel = config.apply.channel_id if config.apply.loopback_control else None
        """The mark of transactions that came back in a ring; None: there is no ring."""
        self._never_kept: tuple[SchemaHistory, NeverKept] | None = None
        self._checkpoint_dir = config.checkpoint_dir
        self._sink = sink
        self._feed = feed
        self._report = report
        self._note_ddl = note_ddl
        self._applied = AppliedJobs(0)
        self._frozen: FrozenTables = NONE_FROZEN
        self._shipped: tuple[SchemaHistory, Broadcast[SchemaHistory]] | None = None
        self._waited_for = WaitedFor()
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

    @property
    def behind(self) -> bool:
        """Whether the target is so far behind the upstream that there is a backlog, whose batches are big.

        By this machine's clock, which may be ahead, or the upstream may be a recording: batches that were small all the same count for more.
        """
        return self._small_in_a_row < _SMALL_BATCHES and time.time() * 1000 - physical_ms(self._sink.commit_ts) > _BACKLOG_MS

    def open(self, begin: Callable[[str, int | None], int]) -> TargetProgress:
        """Open the sink (``Sink.open``), and load which DDL jobs the target has."""
        opened = self._sink.open(begin, self._feed.snapshot)
        self._applied, self._frozen = opened.applied, opened.frozen
        self._require_routes()
        return opened.progress

    def _require_routes(self) -> None:
        """The routes must be right for the tables that exist already."""
        if self._selection.routes:
            history = self._feed.snapshot()
            routes, live = self._selection.routes, self._selection.live(history, self._applied.version)
            wrong = routes.wrong(live, history)
            if wrong:
                raise ConfigError(f"spark.route: {wrong}")
            for table in live:
                if where := routes.condition_of(table):
                    self._require_condition(table, where)

    def _require_condition(self, table: TableAt, where: str) -> None:
        """It may also be meant for the table as it is after the DDLs that come next."""
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
        self.clock.restart(counts := BatchCounts())
        self.clock.stage = Stage.READ
        history = self._feed.snapshot()
        with self._keyed(transactions, history, span.parts) as events:
            controls = Controls(span.after_ts, span.upto_ts, ())
            found = self._summary(events, events.except_rows()[BlockKind.SUMMARIES], controls)
            with self._all_keyed(events, transactions, found, history) as every:
                complete, found = self._without_loops(every, found, controls)
                ddls, rows = replay_steps((span.after_ts, span.upto_ts), found.tables, self._feed.snapshot(), self._applied)
                for ddl in ddls:
                    self._apply_ddl(ddl, counts)
                self._apply_in_parts(complete, rows, counts)
        self._send(-1, span.after_ts, counts)

    def __call__(self, transactions: DataFrame, batch_id: int) -> None:
        """Apply one micro-batch (schema ``TRANSACTIONS``)."""
        try:
            self._apply_batch(transactions, batch_id)
        except ReplicationError as error:
            self.failure = error
            raise

    def _apply_batch(self, transactions: DataFrame, batch_id: int) -> None:
        self.clock.restart(counts := BatchCounts())
        before, version = self._sink.commit_ts, self._applied.version
        if self._expect_big or self.behind or not self._try_local(transactions, counts):
            self._apply_big(transactions, counts)
        self._expect_big = counts.row_events > self._settings.atomic_rows // 2
        self._small_in_a_row = 0 if self._expect_big else self._small_in_a_row + 1
        if self._applied.version > version:
            losses = self._sink.silent_losses(self._feed.snapshot(), version, self._applied.version)
            counts.findings += [Finding(FindingKind.DDL, words) for words in losses]
        self._send(batch_id, before, counts)

    def _send(self, batch_id: int, after_ts: int, counts: BatchCounts) -> None:
        self.clock.stage = Stage.WAIT
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

    def _try_local(self, transactions: DataFrame, counts: BatchCounts) -> bool:
        """Apply the batch from the driver; False, with nothing applied, when it is too big for that."""
        with self.clock.timed(Stage.READ):
            events = keyed.collected_upto(transactions, self._settings.atomic_rows, ATOMIC_BYTES, self._unread())
        if events is None:
            return False
        controls = self._controls_among(events)
        if controls is not None:
            self._apply_rows(events[BlockKind.ROWS], controls, counts)
        return True

    def _apply_rows(self, rows: pa.Table, controls: Controls, counts: BatchCounts) -> None:
        rows = self._not_looped(self._not_ignored(rows.filter(pc.greater(rows.column("commit_ts"), controls.after_ts))))
        found = merge(summarise(rows, controls.barriers))
        counts.begin(found.transactions, found.events, found.bytes, controls.findings)
        steps = self._steps(controls, found.tables)
        counts.tables = events_by_table(found.tables, steps)
        for step in steps:
            if isinstance(step, DdlStep):
                self._apply_ddl(step, counts)
            else:
                self._apply_atomic(rows_between(rows, step.after_ts, step.upto_ts), step, counts)

    # Big batch: keyed and shuffled once, persisted, and filtered for each step.

    def _apply_big(self, transactions: DataFrame, counts: BatchCounts) -> None:
        history = self._feed.snapshot()
        with self._keyed(transactions, history, self._settings.parts) as events:
            with self.clock.timed(Stage.READ):
                others = events.except_rows()
                controls = self._controls_among(others)
            if controls is None:
                return
            found = self._summary(events, others[BlockKind.SUMMARIES], controls)
            with self._all_keyed(events, transactions, found, history) as every:
                complete, found = self._without_loops(every, found, controls)
                self._apply_steps(complete, controls, found, counts)

    @contextmanager
    def _keyed(self, transactions: DataFrame, history: SchemaHistory, parts: int) -> Iterator[KeyedEvents]:
        events = keyed.keyed(transactions, self._ship(history), parts, self._unread())
        with persisted(events.frame):
            yield events

    @contextmanager
    def _all_keyed(self, events: KeyedEvents, transactions: DataFrame, found: RowSummary, history: SchemaHistory) -> Iterator[KeyedEvents]:
        """``events``, or the same keyed again where ``history`` lacked one of their tables, so that its rows got no keys, or a mark table."""
        self._complete((), found.tables)
        marks_known = self._channel is None or MarkTables.of(history) == MarkTables.of(self._feed.snapshot())
        if marks_known and all(history.table_at(t.table_id, t.schema_version) is not None for t in found.tables):
            yield events
        else:
            with self._keyed(transactions, self._feed.snapshot(), events.parts) as again:
                yield again

    def _apply_steps(self, events: KeyedEvents, controls: Controls, found: RowSummary, counts: BatchCounts) -> None:
        counts.begin(found.transactions, found.events, found.bytes, controls.findings)
        steps = self._steps(controls, found.tables)
        counts.tables = events_by_table(found.tables, steps)
        fetched, fetched_upto = ROW_EVENT.empty_table(), 0
        for place, step in enumerate(steps):
            if isinstance(step, DdlStep):
                self._apply_ddl(step, counts)
            elif not self._fits([step]):
                self._apply_in_parts(events, step, counts)
            else:
                if step.row_events and step.upto_ts > fetched_upto:
                    fetched_upto = self._reach(steps[place:])
                    fetched = self._not_ignored(events.rows_in((step.after_ts, fetched_upto)))
                self._apply_atomic(rows_between(fetched, step.after_ts, step.upto_ts), step, counts)

    def _fits(self, steps: Sequence[RowsStep]) -> bool:
        """Whether the rows of these steps are few and small enough for the driver to hold and apply."""
        rows, size = sum(s.row_events for s in steps), sum(s.row_bytes for s in steps)
        return rows <= self._settings.atomic_rows and size <= ATOMIC_BYTES

    def _reach(self, steps: Sequence[RowsStep | DdlStep]) -> int:
        """The commit_ts up to which rows are fetched at once: that of as many leading steps as fit together."""
        taken: list[RowsStep] = []
        for step in steps:
            if isinstance(step, RowsStep):
                if taken and not self._fits([*taken, step]):
                    break
                taken.append(step)
        return taken[-1].upto_ts

    def _summary(self, events: KeyedEvents, summaries: pa.Table, controls: Controls) -> RowSummary:
        """From ``summaries`` (``ROW_SUMMARY``); the rows are read again only when one of them spans a barrier."""
        ddl_ts = controls.barriers
        found = placed(summaries, controls.after_ts, ddl_ts)
        if found is None:
            found = events.summaries((controls.after_ts, controls.upto_ts), ddl_ts)
        return merge(found)

    # Steps.

    def _controls_among(self, events: Mapping[BlockKind, pa.Table]) -> Controls | None:
        """The part of the batch's span that is not yet in the target; None when all of it is."""
        if not any(frame.num_rows for frame in events.values()):
            # Spark runs a new stream's first batch even if the source returns nothing. A lost batch would show as a gap before the next.
            return None
        controls, commit_ts = controls_of(events[BlockKind.CONTROLS], events[BlockKind.DDLS]), self._sink.commit_ts
        if controls.after_ts > commit_ts:
            raise ApplyError(gap_text(controls.after_ts, commit_ts, self._checkpoint_dir))
        if controls.upto_ts <= commit_ts:
            return None
        return replace(controls, after_ts=commit_ts, ddls=tuple(d for d in controls.ddls if d.commit_ts > commit_ts))

    def _steps(self, controls: Controls, tables: Sequence[TableActivity]) -> tuple[RowsStep | DdlStep, ...]:
        self._complete([d.job_id for d in controls.ddls if not d.is_setval], tables, controls.upto_ts)
        span, known_ts = (controls.after_ts, controls.upto_ts), self._waited_for.known_ts
        return plan_steps(span, controls.ddls, tables, self._feed.snapshot(), self._applied, known_ts)

    def _complete(self, job_ids: Sequence[int], tables: Sequence[TableActivity], upto_ts: int = 0) -> None:
        self.clock.stage = Stage.HISTORY
        complete_history(self._feed, job_ids, tables, self._waited_for, self._selection.keeps, upto_ts)

    def _apply_atomic(self, rows: pa.Table, step: RowsStep, counts: BatchCounts) -> None:
        there = self._fitted(step, counts, rows)
        if conditions := self._conditions(step, there):
            there = replace(there, hidden=hidden_rows(self._spark, rows, conditions))
        self._set_sequences(step, counts)
        counts.add(self._sink.apply(rows, routed(there, self._selection), self.clock))
        self._applied = step.applied

    def _apply_in_parts(self, events: KeyedEvents, step: RowsStep, counts: BatchCounts) -> None:
        skipped = frozenset(self._settings.ignore_txn_commit_ts)
        there = self._fitted(step, counts)
        if conditions := self._conditions(step, there):
            there = replace(there, hidden=hidden_events(events, (step.after_ts, step.upto_ts), conditions))
        self._set_sequences(step, counts)
        counts.add(self._sink.apply_parts(events, routed(there, self._selection), skipped, self.clock))
        self._applied = step.applied

    def _set_sequences(self, step: RowsStep, counts: BatchCounts) -> None:
        """Before the step's end is recorded: after a crash it is done again, which changes nothing."""
        if step.setvals and (setvals := chosen_setvals(step, self._feed.snapshot(), self._selection)):
            counts.findings += self._sink.set_sequences(setvals)

    def _apply_ddl(self, step: DdlStep, counts: BatchCounts) -> None:
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
        counts.findings += [Finding(FindingKind.DDL, words, commit_ts=step.commit_ts) for words in losses]
        self._frozen = {**self._frozen, **done.frozen}
        self._applied = step.applied
        counts.ddls += 1
        unwanted = step.decision.fate in (DdlFate.FILTERED, DdlFate.LEFT_OUT)
        fate = "filtered" if unwanted else done.fate
        self._note_ddl(DdlNote(step.commit_ts, step.restored, fate, "; ".join(losses), step.job.schema_name))

    def _fitted(self, step: RowsStep, counts: BatchCounts, rows: pa.Table | None = None) -> RowsStep:
        """``step`` with its frozen tables as they are on the target. Tables whose rows cannot be written become findings, with the number
        of rows if ``rows`` is given.
        """
        step, unwritable = fitted(chosen(step, self._selection), self._frozen)
        for job in step.lost:
            ddl = DdlStep(step.upto_ts, job, job.query, True, step.applied, step.applied, lost=True)
            losses = decided(ddl, self._feed.snapshot(), self._selection).losses
            counts.findings += [Finding(FindingKind.DDL, words, commit_ts=step.upto_ts) for words in losses]
        for table in step.may_stay:
            counts.findings.append(Finding(FindingKind.DDL, _MAY_STAY, f"{table.schema}.{table.name}", step.upto_ts))
        for lost in unwritable:
            here = -1 if rows is None else int(pc.sum(pc.equal(rows.column("table_id"), lost.table_id)).as_py() or 0)
            counts.findings.append(Finding(FindingKind.DDL, lost.why, lost.table, step.upto_ts, wanted=here, found=0 if here >= 0 else -1))
        return step

    def _conditions(self, step: RowsStep, there: RowsStep) -> Conditions:
        """Those for the tables that are ``there``, where a frozen one still has its former name; over the columns upstream."""
        routes = self._selection.routes
        found = {i: Condition(step.tables[i], where) for i, table in there.tables.items() if (where := routes.condition_of(table))}
        for table_id, condition in found.items():
            require_values(condition)
            known = (table_id, int(condition.table.version), condition.where)
            if known not in self._required:
                require(self._spark, condition)
                self._required.add(known)
        return found

    def _unread(self) -> NeverKept:
        """The tables whose rows need not even be keyed."""
        history = self._feed.snapshot()
        if self._never_kept is None or self._never_kept[0] is not history:
            marks = MarkTables() if self._channel is None else MarkTables.of(history)
            self._never_kept = history, NeverKept.of(history, self._selection, marks)
        return self._never_kept[1]

    # What came back in a ring.

    def _not_looped(self, rows: pa.Table) -> pa.Table:
        """``rows`` without marks, and without the transactions that carry one of our channel."""
        if self._channel is None:
            return rows
        self._complete((), merge(summarise(rows, ())).tables)
        history = self._feed.snapshot()
        marks, rows = self._unread().marks.apart(rows)
        return without(rows, "commit_ts", looped(marks, history, self._channel))

    def _without_loops(self, events: KeyedEvents, found: RowSummary, controls: Controls) -> tuple[KeyedEvents, RowSummary]:
        """The same for rows that the executors hold, and their summary; the whole history must be there."""
        gone = frozenset[int]() if self._channel is None else looped(events.marks(), self._feed.snapshot(), self._channel)
        if not gone:
            return events, found
        left = events.without(gone)
        summaries = left.summaries((controls.after_ts, controls.upto_ts), controls.barriers)
        return left, merge(summaries)

    def _not_ignored(self, rows: pa.Table) -> pa.Table:
        return without(rows, "commit_ts", self._settings.ignore_txn_commit_ts)

    def _ship(self, history: SchemaHistory) -> Broadcast[SchemaHistory]:
        """``history`` for the executors; broadcast again only when it changes."""
        if self._shipped is None or self._shipped[0] is not history:
            if self._shipped is not None:
                self._shipped[1].unpersist()
            self._shipped = history, self._spark.sparkContext.broadcast(history)
        return self._shipped[1]
