"""MySQL, MariaDB and TiDB as a target to which every upstream row operation is sent (``net-change = false``).

    step -> RowBatch -> keys -> lanes and rounds -> transactions of at most ``txn-batch`` operations on ``worker-count`` connections

With ``dispatch`` off each upstream transaction is one transaction with its checkpoint, and so is a step of at most ``txn-batch`` operations. Other
steps begin with ``consistent`` false at the step's beginning and a record of the lanes (``Record.begin_lanes``), and end with ``consistent`` true and
without that record. Promises, besides those of ``MySQLSink``:

* Exactly once, keyless rows included: if the same operations come again, each lane of an open step continues where it was, whatever the settings.
* If other operations come (other filters, another history, another cut of the span), the open span is applied again in safe mode from the
  checkpoint. Afterwards every row that has a unique key without NULL is as upstream. Other tables are named: an INSERT may be applied twice,
  a DELETE may delete another equal row. The same holds in safe mode, and where a Drainer without this record finishes the span.
* With ``on-finding = stop`` the lanes without a finding may be ahead; the restart continues as after a crash.

The driver fetches a step applied in parts in pieces of about ``atomic-rows``, each recorded by itself. An upstream transaction is one piece.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, wanted, without
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.causality import Conflict, OpKeys, keys_of
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, unpack
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch, operations_of
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.record import OpenLanes
from pyspark_tidb_binlog.sinks.mysql.retry_policy import TransientError
from pyspark_tidb_binlog.sinks.mysql.rows.lane_plan import LanePlan, identifies_rows
from pyspark_tidb_binlog.sinks.mysql.rows.row_lanes import LaneRecord, Lanes, RowWriter, TransactionSize
from pyspark_tidb_binlog.sinks.mysql.rows.row_sql import OpStatements
from pyspark_tidb_binlog.sinks.mysql.session import Session, transaction
from pyspark_tidb_binlog.sinks.sink import Opened, UnfinishedSpan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowSettings:
    """How row operations are applied."""

    net_change: bool = False
    """True: only a span that was begun row by row is finished so; everything else is applied as net changes."""
    worker_count: int = 16
    """Connections."""
    txn_batch: int = 20
    """Operations of one transaction, at most."""
    txn_seconds: float = math.inf
    """About how long a transaction may take: a lane whose last transaction took longer has fewer operations in the next."""
    conflict: Conflict = Conflict.GROUPS
    dispatch: bool = True
    """False: one connection, and the transactions of the upstream."""
    safe_mode: bool = False
    safe_until_ts: int = 0
    """Steps that begin below this commit_ts are applied in safe mode: another Drainer may have applied a part of them."""

    def __post_init__(self) -> None:
        for name, value in (("worker-count", self.worker_count), ("txn-batch", self.txn_batch)):
            if value < 1:
                raise ConfigError(f"syncer.{name} must be at least 1")
        if self.worker_count > 1024:
            raise ConfigError("syncer.worker-count must be at most 1024")
        if self.txn_seconds <= 0:
            raise ConfigError("spark.txn-batch-time must be more than 0")


class RowSink(MySQLSink):
    """One target of one stream, to which every row operation is sent."""

    def __init__(
        self,
        config: DrainerConfig,
        cluster_id: int,
        settings: RowSettings,
        pause: Callable[[float], None] | None = None,
        now: Callable[[], int] | None = None,
    ) -> None:
        """``pause`` and ``now`` as for ``MySQLSink``."""
        super().__init__(config, cluster_id, pause or time.sleep, now)
        self._rows = settings
        self._open_lanes: OpenLanes | None = None
        self._begun_in_parts = (0, 0)
        self._interrupted = False
        """Whether the lanes ended with an error: where they are is in the target."""
        size = TransactionSize(settings.txn_batch, settings.txn_seconds)
        self._lanes = Lanes(self._connect, config.apply.lease_timeout, self._retry_policy, size)

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Open the target (``Sink.open``); a span that was begun row by row is unfinished, too."""
        opened = super().open(begin, history)
        self._open_lanes = self._load_lanes()
        if opened.progress.unfinished is not None:
            # Begun by net changes: it is finished by them.
            self._begun_in_parts = (opened.progress.unfinished.after_ts, opened.progress.unfinished.upto_ts)
        left = self._open_lanes
        if left is None:
            return opened
        self._record.consistent = False
        # So that exactly this span is read again, whatever the source would make the next batch of.
        unfinished = opened.progress.unfinished or UnfinishedSpan(
            self.commit_ts, left.upto_ts, self._settings.parts, frozenset(), relayed=left.relayed
        )
        return replace(opened, progress=replace(opened.progress, unfinished=unfinished))

    def close(self) -> None:
        """Release the lease (``Sink.close``)."""
        self._lanes.close()
        super().close()

    @property
    def lease(self) -> Lease:
        """The right to write that this life holds; from ``begin`` of ``open`` on."""
        return self._leased.lease

    @property
    def waiting_for(self) -> TransientError | None:
        """The target's transient error while it is being retried."""
        return super().waiting_for or self._lanes.waiting_for

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """All operations of ``step``; in one transaction if they are few (``Sink.apply``)."""
        if self._rows.net_change and self._open_lanes is None and not self._interrupted:
            return super().apply(rows, step, clock)
        with self._record.one_at_a_time:
            self._look_again()
            written = Written()
            for here in self._cut_at_open_span(step):
                done = self._apply(rows_between(rows, here.after_ts, here.upto_ts), here, clock)
                written = written.plus(done)
            self._record.note_sync_point(step.applied)
            return written

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """The operations of ``step`` in pieces, from the driver (``Sink.apply_parts``); a span that was begun in parts is finished so."""
        self._look_again()
        in_parts = self._rows.net_change and not self._is_open(step)
        if in_parts or (step.after_ts, step.upto_ts) == self._begun_in_parts:
            return super().apply_parts(events, step, skipped_ts, clock)
        written = Written()
        for span in self._spans(events, step):
            with clock.timed(Stage.READ):
                rows = without(events.rows_in(span), "commit_ts", skipped_ts)
            done = self.apply(rows, replace(step, after_ts=span[0], upto_ts=span[1]), clock)
            written = written.plus(done)
        return written

    def _look_again(self) -> None:
        """Read again where each lane is, after an error of the lanes: the step is applied again from there."""
        if self._interrupted:
            self._open_lanes = self._load_lanes()
            self._interrupted = False

    def _spans(self, events: KeyedEvents, step: RowsStep) -> Iterator[tuple[int, int]]:
        """The spans of ``step`` that are applied one after the other: the open one as it was begun."""
        if self._is_open(step) and self._open_lanes is not None:
            end = min(self._open_lanes.upto_ts, step.upto_ts)
            yield step.after_ts, end
            step = replace(step, after_ts=end)
        if step.after_ts < step.upto_ts:
            yield from _pieces(events, step, self._settings.atomic_rows)

    # One step, either within the open span or outside.

    def _is_open(self, step: RowsStep) -> bool:
        return self._open_lanes is not None and step.after_ts < self._open_lanes.upto_ts

    def _cut_at_open_span(self, step: RowsStep) -> Iterator[RowsStep]:
        """``step``, in two where the open span ends within it."""
        if self._is_open(step) and self._open_lanes is not None and (end := self._open_lanes.upto_ts) < step.upto_ts:
            yield replace(step, upto_ts=end)
            yield replace(step, after_ts=end)
        else:
            yield step

    def _apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        if self._rows.net_change and not self._is_open(step):
            return super().apply(rows, step, clock)
        for attempt in self._tables.fitting():
            with attempt:
                # Without dispatch, transactions of the step may have been committed before one was refused.
                here = replace(step, after_ts=self._record.commit_ts) if attempt.refused is not None else step
                rows = rows_between(rows, here.after_ts, here.upto_ts) if here is not step else rows
                fitted, _ = self._fitted(here, rows, by_rows=True)
                self._look_again()
                written = self._apply_operations(rows, fitted.step, clock)
        return self._tables.settled(fitted, written)

    def _apply_operations(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        with clock.timed(Stage.PLAN):
            batch = self._operations(rows, step)
            keys = keys_of(batch)
            if not len(batch) and not self._is_open(step) and self._record.put_off(step):
                return Written()
            how = self._how(batch, keys, step)
            writer = self._writer(batch, keys, safe=how.safe)
        with clock.timed(Stage.APPLY, "write"):
            findings = self._run(batch, writer, how, step)
        failpoints.point("after-downstream-commit")
        self._record.stands_at(step.upto_ts, step.applied)
        self._record.consistent = self._open_lanes is None
        return Written(len(batch), findings)

    def _operations(self, rows: pa.Table, step: RowsStep) -> RowBatch:
        if step.hidden is not None:
            raise ApplyError(
                "a span that was begun row by row is still open, but spark.route now has a condition for rows. Start without where until the checkpoint "
                "has passed the span"
            )
        return operations_of(wanted(rows, step.gone, step.left_out), step.tables)

    def _writer(self, batch: RowBatch, keys: OpKeys, *, safe: bool) -> RowWriter:
        return RowWriter(OpStatements(batch, self._limits, self._flavour, safe=safe), keys.lists(), self._settings, self._leased.lease)

    def _how(self, batch: RowBatch, keys: OpKeys, step: RowsStep) -> LanePlan:
        settings, left = self._rows, self._open_lanes if self._is_open(step) else None
        lanes = settings.worker_count if settings.dispatch else 1
        safe = settings.safe_mode or step.after_ts < settings.safe_until_ts or self._safe.applies(step.after_ts)
        if left is None:
            return LanePlan.of(batch, keys, lanes, settings.conflict, settings.txn_batch, safe=safe)
        plan = LanePlan.again(batch, keys, left)
        if plan is not None and (step.after_ts, step.upto_ts) == (left.after_ts, left.upto_ts):
            return replace(plan, safe=safe or left.safe)
        _log.warning(
            "the operations of the span (%d, %d], which was begun row by row, have changed since it was begun. It is applied again in safe mode. %s",
            left.after_ts,
            left.upto_ts,
            _inexact(batch),
        )
        return LanePlan.of(batch, keys, lanes, settings.conflict, settings.txn_batch, safe=True)

    def _run(self, batch: RowBatch, writer: RowWriter, how: LanePlan, step: RowsStep) -> tuple[Finding, ...]:
        if how.done is None and not self._is_open(step):
            if not len(batch) or (self._rows.dispatch and len(batch) <= self._rows.txn_batch):
                return self._write_atomic_rows(range(len(batch)), writer, step)
            if not self._rows.dispatch:
                return self._write_transactions(batch, writer, step)
        return self._write_lanes(writer, how, step)

    # One connection.

    def _write_transactions(self, batch: RowBatch, writer: RowWriter, step: RowsStep) -> tuple[Finding, ...]:
        """Each upstream transaction with the checkpoint of its commit_ts; the last one with that of the step's end."""
        begins = [*batch.transactions.tolist(), len(batch)]
        findings: tuple[Finding, ...] = ()
        after_ts = step.after_ts
        for begin, end in zip(begins, begins[1:], strict=False):
            upto_ts = step.upto_ts if end == len(batch) else int(batch.commit_ts[begin])
            findings += self._write_atomic_rows(range(begin, end), writer, replace(step, after_ts=after_ts, upto_ts=upto_ts))
            after_ts = upto_ts
            self._record.stands_at(upto_ts, step.applied)
        return findings

    def _write_atomic_rows(self, places: Sequence[int], writer: RowWriter, step: RowsStep) -> tuple[Finding, ...]:
        statements = writer.joined(places)
        for attempt in self._leased.retrying():
            with attempt, transaction(self._leased.sessions.use, attempt) as session:
                for run in writer.runs(session, places, statements):
                    lease.check(session, self._leased.lease)
                    if not self._record.next_is(session, step):
                        break
                    if run.execute():
                        self._record.save_end(session, step.after_ts, step.upto_ts, step.applied)
                        failpoints.point("before-downstream-commit")
                        failpoints.point("before-rows-commit")
        failpoints.point("after-rows-commit")
        return run.findings

    # Lanes.

    def _write_lanes(self, writer: RowWriter, how: LanePlan, step: RowsStep) -> tuple[Finding, ...]:
        left = self._open_lanes if self._is_open(step) else None
        span = OpenLanes(step.after_ts, max(step.upto_ts, left.upto_ts if left else 0), how.text, how.safe, (0,) * how.lanes)
        if how.done is not None and left is not None:
            span = left
        record = LaneRecord(self._record.rows, span)
        begun = how.done is not None
        if not begun:
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    begun = self._begin_lanes(session, span, step)
        findings: tuple[Finding, ...] = ()
        if begun:
            self._record.consistent, self._interrupted = False, True
            findings = self._lanes.run(writer, how.rounds(), how.done or span.done, record)
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    self._end_lanes(session, record, how, step)
        self._interrupted = False
        self._open_lanes = _rest(span, step)
        return findings

    def _begin_lanes(self, session: Session, span: OpenLanes, step: RowsStep) -> bool:
        """Record that ``step`` is applied in lanes from now on; False: it is in the target already."""
        if not self._record.next_is(session, step):
            return False
        self._record.rows.begin_lanes(session, span)
        self._record.save(session, step.after_ts, step.applied, consistent=False)
        return True

    def _end_lanes(self, session: Session, record: LaneRecord, how: LanePlan, step: RowsStep) -> None:
        if self._record.next_is(session, step):
            record.require_done(session, how.ends())
            rest = _rest(record.lanes, step)
            if rest is not None:
                self._record.rows.begin_lanes(session, rest)
            self._record.save_end(session, step.after_ts, step.upto_ts, step.applied, consistent=rest is None)
        failpoints.point("before-downstream-commit")

    def _load_lanes(self) -> OpenLanes | None:
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                found = self._record.rows.read(session).lanes_at(self.commit_ts)
        return found


def _rest(span: OpenLanes, step: RowsStep) -> OpenLanes | None:
    """The rest of the open span behind ``step``: it comes with a later step, and must be in safe mode even after a crash before that."""
    return OpenLanes(step.upto_ts, span.upto_ts, "", True, (0,)) if span.upto_ts > step.upto_ts else None


def _inexact(batch: RowBatch) -> str:
    """The tables that may have rows which safe mode cannot tell apart, in words."""
    tables = {f"{p.table.schema}.{p.table.name}" for p in batch.pieces if not identifies_rows(p.table.info)}
    if not tables:
        return "All its tables have a unique key without NULL, so the rows are exact afterwards"
    return f"Equal rows without a unique key cannot be told apart. Compare these tables with the upstream afterwards: {', '.join(sorted(tables))}"


def _pieces(events: KeyedEvents, step: RowsStep, most: int) -> Iterator[tuple[int, int]]:
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


def _counted(events: KeyedEvents, span: tuple[int, int]) -> list[tuple[int, int]]:
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
