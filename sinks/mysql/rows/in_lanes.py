"""Applies every row operation of a step (``net-change = false``). [db]

    step -> RowBatch -> keys -> lanes and rounds -> transactions of at most ``txn-batch`` operations on ``worker-count`` connections

With ``enable-dispatch = false`` each upstream transaction is one transaction with its checkpoint, and so is a step of at most ``txn-batch`` operations. Other
steps begin with ``consistent`` false at the step's beginning and a record of the lanes (``StateTable.begin_lanes``), and end with ``consistent`` true and
without that record. Promises:

* Exactly once, keyless rows included: if the same operations come again, each lane of an open step continues where it was, whatever the settings.
* If other operations come (other filters, another history, another cut of the span), the lanes are given up: safe mode is recorded from the checkpoint to
  the end of the span. Afterwards every row that has a unique key without NULL is as upstream. Other tables are findings: an INSERT may be applied twice,
  a DELETE may delete another equal row. The same holds where a Drainer without this record finishes the span.
* With ``on-finding = stop`` the lanes without a finding may be ahead; the restart continues as after a crash.

The driver fetches a step applied in parts in pieces of about ``atomic-rows``, each recorded by itself. An upstream transaction is one piece.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.entry import comparing
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, wanted
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.causality import Conflict, keys_of
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, Span, unpack
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch, operations_of
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.retry_policy import TransientError
from pyspark_tidb_binlog.sinks.mysql.row_target import RowTarget
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.rows.row_lanes import LanePlan, Lanes, LaneWork
from pyspark_tidb_binlog.sinks.mysql.safe_plan import cannot_tell_apart
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenLanes
from pyspark_tidb_binlog.sinks.mysql.tables_there import FittedStep


class InLanes:
    """The lanes of one target's spans."""

    def __init__(self, target: RowTarget, connect: Callable[[], Session]) -> None:
        """Accesses nothing. ``connect`` opens a session."""
        self._target = target
        self._lanes = Lanes(target.leased, target.settings, connect)
        self.open_span: OpenLanes | None = None
        """The span that is in the target in part."""
        self.interrupted = False
        """Whether the lanes ended with an error: where they are is in the target."""
        self._found: list[Finding] = []
        """Findings of transactions that are committed, until their step has ended."""

    @property
    def waiting_for(self) -> TransientError | None:
        """The target's transient error while it is being retried."""
        return self._lanes.waiting_for

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._lanes.close()

    # The open span.

    def refresh(self) -> None:
        """Read where each lane is."""
        for attempt in self._target.leased.retrying():
            with attempt, self._target.leased.session(attempt) as session:
                self.open_span = self._target.record.state.read(session).lanes_at(self._target.record.commit_ts)
        self.interrupted = False

    def is_open(self, step: RowsStep) -> bool:
        """Whether ``step`` begins within the open span."""
        return self.open_span is not None and step.after_ts < self.open_span.upto_ts

    def cut(self, step: RowsStep) -> Iterator[RowsStep]:
        """``step``, in two where the open span ends within it."""
        span = self.open_span
        if span is not None and step.after_ts < (end := span.upto_ts) < step.upto_ts:
            yield replace(step, upto_ts=end)
            step = replace(step, after_ts=end)
        yield step

    def spans(self, events: KeyedEvents, step: RowsStep) -> Iterator[Span]:
        """The spans of ``step`` that are fetched one after the other: the open one as it was begun."""
        for here in self.cut(step):
            if self.is_open(here):
                yield here.after_ts, here.upto_ts
            else:
                yield from _pieces(events, here, self._target.settings.atomic_rows)

    # One step, either within the open span or outside.

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """All operations of ``step``; in one transaction if they are few."""
        target, here, rows_written = self._target, step, 0
        for attempt in target.tables.fitting():
            with attempt:
                self.refresh()
                if attempt.refused is not None:
                    # Without dispatch, transactions of the step may have been committed before one was refused.
                    here = replace(step, after_ts=target.record.commit_ts)
                    rows = rows_between(rows, here.after_ts, here.upto_ts)
                work = self._planned(rows, here, clock)
                if work.lanes is None:
                    self._give_up(here, work.batch)
                    work = self._planned(rows, here, clock)
                rows_written = self._apply(work, clock)
        findings, self._found = tuple(self._found), []
        return target.tables.settled(work.fitted, Written(rows_written, findings))

    def _planned(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> "_Work":
        target, settings, left = self._target, self._target.settings, self.open_span
        fitted, safe = target.fitted(step, rows, by_rows=True)
        with clock.timed(Stage.PLAN):
            batch = _operations(rows, fitted.step)
            keys = keys_of(batch)
            plan = OpPlan(batch, keys, target.limits, target.flavour, safe=safe is not None)
            if left is None or not self.is_open(step):
                conflict = Conflict.GROUPS if settings.enable_detect else Conflict.OFF
                lanes = settings.worker_count if settings.enable_dispatch else 1
                return _Work(fitted, batch, plan, LanePlan.of(batch, keys, lanes, conflict, settings.txn_batch))
            whole = (step.after_ts, step.upto_ts) == (left.after_ts, left.upto_ts)
            return _Work(fitted, batch, plan, LanePlan.again(batch, keys, left) if whole else None)

    def _give_up(self, step: RowsStep, batch: RowBatch) -> None:
        """The open span was begun with other operations, so what the lanes have done says nothing: up to its end all is in safe mode from now on. Tables of
        ``batch`` of which the rows cannot be told apart are findings.
        """
        left, target, record = self.open_span, self._target, self._target.record
        assert left is not None
        for attempt in target.leased.retrying():
            with attempt, target.leased.fenced(attempt) as session:
                at = record.locked_ts(session, step.after_ts, step.upto_ts)
                record.state.give_up_lanes(session, at, left.upto_ts)
                bounds = record.state.read(session).safe_bounds(at)
        self.open_span = None
        loose = {table_name(p.table.schema, p.table.name) for p in batch.pieces if cannot_tell_apart(p.table.info)}
        self._found += [Finding(FindingKind.ROWS, _LOOSE + comparing(name), name, step.upto_ts) for name in sorted(loose)]
        target.safe.begin(
            bounds,
            f"the operations of the span ({left.after_ts}, {left.upto_ts}], which was begun row by row, have changed since it was begun",
        )

    def _apply(self, work: "_Work", clock: StageClock) -> int:
        """Write it; returns the number of rows."""
        record, step, count = self._target.record, work.fitted.step, len(work.batch)
        if not count and not self.is_open(step) and record.put_off(step):
            return 0
        with clock.timed(Stage.APPLY, "write"):
            self._write(work, step)
        failpoints.point("after-downstream-commit")
        record.moved_to(step.upto_ts, step.applied)
        record.consistent = True
        return count

    def _write(self, work: "_Work", step: RowsStep) -> None:
        settings, count = self._target.settings, len(work.batch)
        if not self.is_open(step) and not settings.enable_dispatch:
            self._write_transactions(work, step)
        elif not self.is_open(step) and count <= settings.txn_batch:
            self._write_at_once(range(count), work.plan, step)
        else:
            self._write_lanes(work, step)

    # One connection.

    def _write_transactions(self, work: "_Work", step: RowsStep) -> None:
        """Each upstream transaction with the checkpoint of its commit_ts; the last one with that of the step's end."""
        count, commit_ts = len(work.batch), work.batch.commit_ts
        begins = [*work.batch.transactions.tolist(), count] if count else [0, 0]
        after_ts = step.after_ts
        for begin, end in zip(begins, begins[1:], strict=False):
            upto_ts = step.upto_ts if end == count else int(commit_ts[begin])
            self._write_at_once(range(begin, end), work.plan, replace(step, after_ts=after_ts, upto_ts=upto_ts))
            after_ts = upto_ts
            self._target.record.moved_to(upto_ts, step.applied)

    def _write_at_once(self, places: Sequence[int], plan: OpPlan, step: RowsStep) -> None:
        phases = (("before-row-operations", plan.statements(places)), ("before-rows-commit", ()))
        self._found += self._target.write(phases, step, savepoints=False)
        failpoints.point("after-rows-commit")

    # Lanes.

    def _write_lanes(self, work: "_Work", step: RowsStep) -> None:
        target, lanes, span, begun = self._target, work.lanes, self.open_span, True
        assert lanes is not None
        if span is None or not self.is_open(step):
            span = OpenLanes(step.after_ts, step.upto_ts, lanes.text, (0,) * lanes.lanes)
            for attempt in target.leased.retrying():
                with attempt, target.leased.fenced(attempt) as session:
                    begun = self._begin(session, span, step)
        if begun:
            target.record.consistent, self.open_span, self.interrupted = False, span, True
            self._lanes.run(LaneWork(work.plan, span, target.record.state, self._found), lanes.rounds())
            for attempt in target.leased.retrying():
                with attempt, target.leased.fenced(attempt) as session:
                    self._end(session, span, lanes, step)
        self.interrupted, self.open_span = False, None

    def _begin(self, session: Session, span: OpenLanes, step: RowsStep) -> bool:
        """Record that ``step`` is applied in lanes from now on; False: it is in the target already."""
        record = self._target.record
        if not record.next_is(session, step):
            return False
        record.state.begin_lanes(session, span)
        record.save(session, step.after_ts, step.applied, consistent=False)
        return True

    def _end(self, session: Session, span: OpenLanes, lanes: LanePlan, step: RowsStep) -> None:
        record = self._target.record
        if record.next_is(session, step):
            record.state.require_done(session, span, lanes.ends())
            record.save_end(session, step.after_ts, step.upto_ts, step.applied)
        failpoints.point("before-downstream-commit")


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What is to be done for a step."""

    fitted: FittedStep
    batch: RowBatch
    plan: OpPlan
    lanes: LanePlan | None
    """None: the open span was begun with other operations."""


_LOOSE = (
    "other operations came than those with which a span was begun row by row, such as without a transaction that is skipped. The table has no unique key "
    "without NULL, so rows may be there twice, or be missing. Compare the table with the upstream by "
)


def _operations(rows: pa.Table, step: RowsStep) -> RowBatch:
    if step.hidden is not None:
        raise ApplyError(
            "a span that was begun row by row is still open, but spark.route now has a condition for rows. Start without where until the checkpoint "
            "has passed the span"
        )
    return operations_of(wanted(rows, step.gone, step.left_out), step.tables)


def _pieces(events: KeyedEvents, step: RowsStep, most: int) -> Iterator[Span]:
    """Spans of ``step`` with about ``most`` rows each, or one transaction."""
    after_ts, held = step.after_ts, 0
    counts = _counted(events, (step.after_ts, step.upto_ts))
    for place, (_, count) in enumerate(counts):
        if held and held + count > most:
            yield after_ts, counts[place - 1][0]
            after_ts, held = counts[place - 1][0], 0
        held += count
    yield after_ts, step.upto_ts


_COUNTS = pa.schema([pa.field("commit_ts", pa.int64(), nullable=False), pa.field("count", pa.int64(), nullable=False)])


def _counted(events: KeyedEvents, span: Span) -> list[tuple[int, int]]:
    """Each commit_ts in ``span`` with its number of rows, ascending; runs one Spark job."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            commit_ts = rows_between(unpack([batch], ROW_EVENT), *span).column("commit_ts").to_numpy()
            values, counts = np.unique(commit_ts, return_counts=True)
            yield pa.RecordBatch.from_arrays([pa.array(values, pa.int64()), pa.array(counts, pa.int64())], schema=_COUNTS)

    found: dict[int, int] = {}
    for row in events.overlapping(span).mapInArrow(run, ddl_of(_COUNTS)).toArrow().to_pylist():
        found[row["commit_ts"]] = found.get(row["commit_ts"], 0) + row["count"]
    return sorted(found.items())
