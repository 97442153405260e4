"""Applies one micro-batch to the target: ``foreachBatch``'s function and the replay of an unfinished span. [spark]

The walk: controls -> steps (rows between barriers, DDLs) -> for each step plan, execute, checkpoint in the data's own transaction.

Promises: the target's checkpoint row is the truth. Transactions with ``commit_ts`` at or below its commitTS are passed over, so a
batch may come any number of times; a batch that begins beyond it would leave a hole and is refused. Every transaction first proves the lease of this life (``sinks.mysql.lease``). Rows of at most ``atomic-rows`` events
are ONE transaction from the driver together with the checkpoint row; more are applied in parts (``sinks.mysql.parallel``), with
``consistent`` false in between. A DDL is a barrier with its own intent and done rows (``sinks.mysql.ddl.executor``).
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from conf import faults
from conf.model import ApplyConfig, DrainerConfig
from schemas.errors import ApplyError, LeaseLost, ReplicationError
from schemas.findings import Finding, FindingKind, in_words
from schemas.history import SchemaHistory
from schemas.stages import ROW_EVENT
from sinks.engine.batch import (
    Controls,
    RowSummary,
    control_mask,
    controls_of,
    count_transactions,
    merge,
    rows_between,
    summarise,
    summary_of,
    without,
)
from sinks.engine.frozen import RefusedJobs, fitted
from sinks.engine.history_feed import HistoryFeed
from sinks.engine.history_wait import complete_history
from sinks.engine.segments import AppliedJobs, DdlStep, RowsStep, Touch, plan_steps, replay_steps
from sinks.mysql import lease, old_layout, parallel, progress
from sinks.mysql.checked import Effects, checked
from sinks.mysql.ddl.executor import DdlOutcome, apply_ddl, ensure_ddl_table, forget_later, load_applied, load_refused
from sinks.mysql.ddl.text import silent_losses
from sinks.mysql.dialect import Flavour
from sinks.mysql.lease import Holder, Lease
from sinks.mysql.lease_guard import LAYOUT, LeaseGuard, alone
from sinks.mysql.password import ShippedTarget
from sinks.mysql.patience import Patience, Waited
from sinks.mysql.plan import Plan, PlanLimits, plan_rows
from sinks.mysql.session import Session, connect, run_retried, run_transaction
from sinks.routing.route import Route

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did; for progress, the summary and the Delta checkpoint."""

    batch_id: int
    from_ts: int
    to_ts: int
    schema_version: int
    transactions: int
    row_events: int
    row_bytes: int
    """Of their images."""
    rows_written: int
    ddls: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage: ``read`` (source to row events), ``plan`` (in parts ``plan+delete``), ``write``, ``ddl``."""
    findings: tuple[Finding, ...] = ()
    """What is not as the binlogs say it must be."""


@dataclass(slots=True)
class _Tally:
    """One batch's counts while it runs."""

    transactions: int = 0
    row_events: int = 0
    row_bytes: int = 0
    rows_written: int = 0
    ddls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def count(self, transactions: int, found: RowSummary) -> None:
        self.transactions += transactions
        self.row_events += found.events
        self.row_bytes += found.bytes

    def add(self, done: parallel.Written) -> None:
        self.rows_written += done.rows
        self.findings += done.findings

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begun


class BatchApplier:
    """The sink of the stream; one instance per query, called by one thread at a time."""

    def __init__(
        self,
        spark: SparkSession,
        config: DrainerConfig,
        cluster_id: int,
        feed: HistoryFeed,
        report: Callable[[BatchReport], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``report`` is called after each batch, in the batch's path: it must not block. ``pause`` waits between two tries and may raise to end them."""
        self._spark = spark
        self._config = config
        self._apply: ApplyConfig = config.apply
        self._cluster_id = cluster_id
        self._feed = feed
        self._report = report
        self._route = Route.of(config.apply)
        self._limits = PlanLimits()
        self._flavour = Flavour.MARIADB
        self._applied = AppliedJobs(0)
        self._refused: RefusedJobs = frozenset()
        self._shipped: tuple[SchemaHistory, Broadcast[SchemaHistory]] | None = None
        self._shipped_target: ShippedTarget | None = None
        self._in_a_span = False
        """Parts of a span are in, others are not."""
        self._waited_for: set[int] = set()
        self._lease: Lease | None = None
        self._guard: LeaseGuard | None = None
        self._expect_big = True
        self.commit_ts = 0
        """Everything up to here is in the target."""
        self.failure: ReplicationError | None = None
        """The error that ended the stream, as it was before Spark wrapped it."""
        self.stage = "start"
        """What the applier is doing now, in a word."""
        self.waited: Waited | None = None
        """What is wrong with the target while an error that may pass is waited out."""
        self._patience = Patience(config.apply.retries, config.apply.retry_seconds, pause, self._wait_for)

    def open(self, begin: Callable[[str, int | None], int]) -> progress.Progress:
        """Take the lease, make the tables and load where the target stands.

        Args:
            begin: is given the target's identity and the commitTS of its checkpoint row (None = there is none) and says where the stream
                begins; where there is no row, that is kept there.

        Raises:
            LeaseHeld: another Drainer, alive, writes for this cluster.
        """
        schema = self._apply.checkpoint_schema
        run_retried(self._connect, self._get_to_know, self._patience)
        holder = Holder(self._apply.drainer)
        self._guard = LeaseGuard(self._connect, self._cluster_id, schema, holder, self._apply.lease_timeout, self._patience)
        self._lease = self._guard.take()
        history = self._feed.snapshot()
        found = run_retried(self._connect, partial(self._stand, history), self._patience)
        self.commit_ts = begin(self._lease.target, found.commit_ts if found.known else None)
        self._transact(self._forget_beyond)
        version = found.schema_version or history.version_at(self.commit_ts)
        self._applied, self._refused = run_retried(self._connect, partial(self._done_and_refused, version), self._patience)
        if not found.known:
            self._transact(self._save_first)
        return replace(found, commit_ts=self.commit_ts, schema_version=version)

    def close(self) -> None:
        """Give the lease back: nothing is applied any more. Safe to call twice."""
        if self._guard is not None:
            self._guard.close()

    @property
    def target(self) -> str:
        """The identity of the target, known once it is open."""
        return self._held.target

    @property
    def lost(self) -> LeaseLost | None:
        """Why nothing may be written any more, also when no batch has met it yet."""
        return self._guard.lost if self._guard is not None else None

    def _get_to_know(self, session: Session) -> None:
        self._flavour = session.flavour
        # The packet has a header too, and the server may count in its own charset.
        self._limits = replace(self._limits, max_bytes=min(self._limits.max_bytes, session.max_allowed_packet * 3 // 4))
        self._cluster_id = self._cluster_id or progress.only_cluster(session, self._apply.checkpoint_schema)

    def _done_and_refused(self, version: int, session: Session) -> tuple[AppliedJobs, RefusedJobs]:
        cluster_id = self._cluster_id
        return load_applied(session, self._apply, cluster_id, version), load_refused(session, self._apply, cluster_id)

    def _stand(self, history: SchemaHistory, session: Session) -> progress.Progress:
        schema = self._apply.checkpoint_schema
        with alone(session, lease.lock_name(LAYOUT, schema, 0)):
            old_layout.set_aside(session, schema)
            progress.ensure_tables(session, schema)
            ensure_ddl_table(session, self._apply)
            session.commit()
            old_layout.adopt(session, self._held, self._apply.drainer, history)
        # A commit of an older release, which knows no lease, may still be under way on the server: wait for it, then look.
        progress.lock_checkpoint(session, self._cluster_id, schema)
        return progress.load(session, self._cluster_id, schema)

    def _forget_beyond(self, session: Session) -> None:
        """What is recorded of DDLs and parts is written with the checkpoint; what is beyond it is of data that is not there any more."""
        schema = self._apply.checkpoint_schema
        progress.forget_other_spans(session, self._cluster_id, self.commit_ts, schema)
        jobs = forget_later(session, self._apply, self._cluster_id, self.commit_ts)
        if jobs:
            _log.warning(
                "%s.spark_ddl held DDL jobs %s as done, of a time after the checkpoint %d: the target's data was restored or its checkpoint set. They are "
                "forgotten and executed again",
                schema,
                jobs,
                self.commit_ts,
            )

    def _save_first(self, session: Session) -> None:
        self._standing(session, 0, self.commit_ts)
        self._save(session, self.commit_ts, self._applied, consistent=True)

    def replay(self, span: progress.UnfinishedSpan, transactions: DataFrame) -> None:
        """Apply exactly the unfinished ``span`` with its own number of parts, from a batch read of it."""
        tally = _Tally()
        history = self._feed.snapshot()
        with self._persisted(parallel.keyed(transactions, self._ship(history), span.parts)) as events:
            found = self._summary(events, parallel.controls(events), Controls(span.from_ts, span.to_ts, ()))
            with self._all_keyed(events, transactions, found, history, span.parts) as keyed:
                ddls, rows = replay_steps((span.from_ts, span.to_ts), found.touches, self._feed.snapshot(), self._applied)
                self._in_a_span = True
                for ddl in ddls:
                    self._apply_ddl(ddl, tally)
                self._in_a_span = False
                self._apply_in_parts(keyed, rows, span.parts, tally)
        self._send(-1, span.from_ts, tally)

    def __call__(self, transactions: DataFrame, batch_id: int) -> None:
        """Apply one micro-batch (schema ``TRANSACTIONS``)."""
        try:
            self._apply_batch(transactions, batch_id)
        except ReplicationError as error:
            self.failure = error
            raise

    def _apply_batch(self, transactions: DataFrame, batch_id: int) -> None:
        tally = _Tally()
        before, version = self.commit_ts, self._applied.version
        if self._expect_big or not self._try_local(transactions, tally):
            self._apply_big(transactions, tally)
        self._expect_big = tally.row_events > self._apply.atomic_rows // 2
        if self._applied.version > version:
            tally.findings += [Finding(FindingKind.DDL, w) for w in silent_losses(self._feed.snapshot(), version, self._applied.version)]
        self._send(batch_id, before, tally)

    def _send(self, batch_id: int, from_ts: int, tally: _Tally) -> None:
        self.stage = "wait"
        report = BatchReport(
            batch_id,
            from_ts,
            self.commit_ts,
            self._applied.version,
            tally.transactions,
            tally.row_events,
            tally.row_bytes,
            tally.rows_written,
            tally.ddls,
            tally.seconds,
            tuple(tally.findings),
        )
        for finding in report.findings:
            _log.warning("finding: %s", in_words(finding, self._apply.log_row_data))
        self._report(report)

    # The small batch: one Spark action brings its row events to the driver.

    def _try_local(self, transactions: DataFrame, tally: _Tally) -> bool:
        """Apply the batch from the driver; False, with nothing done, when it proves too big for that."""
        self.stage = "read"
        with tally.timed("read"):
            events = parallel.collected(parallel.exploded_upto(transactions, self._apply.atomic_rows, self._apply.atomic_bytes))
        if events.num_rows > self._apply.atomic_rows or events.nbytes > self._apply.atomic_bytes:
            return False
        controls = self._controls_among(events)
        if controls is not None:
            tally.findings += controls.findings
            self._apply_events(events, controls, tally)
        return True

    def _apply_events(self, events: pa.Table, controls: Controls, tally: _Tally) -> None:
        events = self._not_ignored(events.filter(pc.greater(events.column("commit_ts"), controls.from_ts)))
        found = merge(summarise(events, [d.commit_ts for d in controls.ddls]))
        tally.count(count_transactions(events), found)
        for step in self._steps(controls, found.touches):
            if isinstance(step, DdlStep):
                self._apply_ddl(step, tally)
            else:
                self._apply_atomic(rows_between(events, step.after_ts, step.upto_ts), step, tally)

    # The big batch: keyed and shuffled once, kept, and each step taken from it.

    def _apply_big(self, transactions: DataFrame, tally: _Tally) -> None:
        history = self._feed.snapshot()
        parts = self._apply.parts
        with self._persisted(parallel.keyed(transactions, self._ship(history), parts)) as events:
            self.stage = "read"
            with tally.timed("read"):
                marks = parallel.controls(events)
                controls = self._controls_among(marks)
            if controls is None:
                return
            tally.findings += controls.findings
            found = self._summary(events, marks, controls)
            with self._all_keyed(events, transactions, found, history, parts) as keyed:
                self._apply_steps(keyed, controls, found, tally)

    @contextmanager
    def _all_keyed(
        self, events: DataFrame, transactions: DataFrame, found: RowSummary, history: SchemaHistory, parts: int
    ) -> Iterator[DataFrame]:
        """``events``; or made once more, when ``history`` did not know a table of theirs and left its rows without keys."""
        self._complete((), found.touches)
        if all(history.table_at(t.table_id, t.schema_version) is not None for t in found.touches):
            yield events
        else:
            with self._persisted(parallel.keyed(transactions, self._ship(self._feed.snapshot()), parts)) as keyed:
                yield keyed

    def _apply_steps(self, events: DataFrame, controls: Controls, found: RowSummary, tally: _Tally) -> None:
        tally.count(found.transactions, found)
        steps = self._steps(controls, found.touches)
        fetched, fetched_upto = ROW_EVENT.empty_table(), 0
        for place, step in enumerate(steps):
            if isinstance(step, DdlStep):
                self._apply_ddl(step, tally)
            elif not self._fits([step]):
                self._apply_in_parts(events, step, self._apply.parts, tally)
            else:
                if step.row_events and step.upto_ts > fetched_upto:
                    fetched_upto = self._reach(steps[place:])
                    fetched = self._not_ignored(parallel.rows_in(events, (step.after_ts, fetched_upto)))
                self._apply_atomic(rows_between(fetched, step.after_ts, step.upto_ts), step, tally)

    def _fits(self, steps: Sequence[RowsStep]) -> bool:
        """Whether these steps' rows may be held and applied by the driver."""
        rows, size = sum(s.row_events for s in steps), sum(s.row_bytes for s in steps)
        return rows <= self._apply.atomic_rows and size <= self._apply.atomic_bytes

    def _reach(self, steps: Sequence[RowsStep | DdlStep]) -> int:
        """Up to where rows are fetched in one go: as many of the first steps as fit together."""
        taken: list[RowsStep] = []
        for step in steps:
            if isinstance(step, RowsStep):
                if taken and not self._fits([*taken, step]):
                    break
                taken.append(step)
        return taken[-1].upto_ts

    def _summary(self, events: DataFrame, marks: pa.Table, controls: Controls) -> RowSummary:
        """From the summaries that came along; the rows are looked at again only where one of those lies across a barrier."""
        ddl_ts = [d.commit_ts for d in controls.ddls]
        found = summary_of(marks, controls.from_ts, ddl_ts)
        if found is None:
            found = merge(parallel.summaries(events, (controls.from_ts, controls.to_ts), ddl_ts))
        return found

    # Steps.

    def _controls_among(self, events: pa.Table) -> Controls | None:
        """The part of the batch's span that is not in the target yet; None when all of it is."""
        if not events.num_rows:
            # Spark runs a new stream's first batch even when the source has nothing to give. Anything that got lost would be missed by the next one.
            return None
        controls = controls_of(events)
        if controls.from_ts > self.commit_ts:
            raise ApplyError(progress.words_of_a_gap(controls.from_ts, self.commit_ts, self._config.checkpoint_dir))
        if controls.to_ts <= self.commit_ts:
            return None
        return replace(controls, from_ts=self.commit_ts, ddls=tuple(d for d in controls.ddls if d.commit_ts > self.commit_ts))

    def _steps(self, controls: Controls, touches: Sequence[Touch]) -> tuple[RowsStep | DdlStep, ...]:
        self._complete([d.job_id for d in controls.ddls if not d.is_setval], touches)
        return plan_steps((controls.from_ts, controls.to_ts), controls.ddls, touches, self._feed.snapshot(), self._applied)

    def _complete(self, job_ids: Sequence[int], touches: Sequence[Touch]) -> None:
        self.stage = "history"
        complete_history(self._feed, job_ids, touches, self._waited_for, self._apply)

    def _apply_atomic(self, rows: pa.Table, step: RowsStep, tally: _Tally) -> None:
        step = self._fitted(step, tally, rows)
        self.stage = "plan"
        with tally.timed("plan"):
            plan = self._plan(rows, step) if rows.num_rows else Plan()
        self.stage = "apply"
        with tally.timed("write"):
            tally.findings += self._write_atomic(plan, step)
        faults.point("after-downstream-commit")
        self.commit_ts, self._applied = step.upto_ts, step.applied
        tally.rows_written += plan.counts.deleted + plan.counts.written

    def _fitted(self, step: RowsStep, tally: _Tally, rows: pa.Table | None = None) -> RowsStep:
        """``step`` with its frozen tables as the target has them; rows that have nowhere to go are told of, and counted where they are here."""
        step, stranded = fitted(step, self._feed.snapshot(), self._refused)
        for lost in stranded:
            here = -1 if rows is None else int(pc.sum(pc.equal(rows.column("table_id"), lost.table_id)).as_py() or 0)
            tally.findings.append(Finding(FindingKind.DDL, lost.why, lost.table, step.upto_ts, wanted=here, found=0 if here >= 0 else -1))
        return step

    def _plan(self, rows: pa.Table, step: RowsStep) -> Plan:
        return plan_rows(without(rows, "table_id", step.gone), step.tables, self._limits, flavour=self._flavour, route=self._route)

    def _write_atomic(self, plan: Plan, step: RowsStep) -> tuple[Finding, ...]:
        """The lease is proved inside: looking closer takes another transaction."""

        def work(session: Session) -> tuple[Finding, ...]:
            return checked(session, self._apply, lambda effects: self._write_rows(session, effects, plan, step))[1]

        return run_transaction(self._connect, work, self._patience)

    def _write_rows(self, session: Session, effects: Effects, plan: Plan, step: RowsStep) -> None:
        schema, cluster_id = self._apply.checkpoint_schema, self._cluster_id
        lease.check(session, self._held)
        if not self._next_is(session, step):
            return
        faults.point("before-deletes")
        effects.run(plan.deletes)
        faults.point("between-phases")
        effects.run(plan.writes)
        progress.mark_atomic(session, cluster_id, step.after_ts, step.upto_ts, schema)
        self._save(session, step.upto_ts, step.applied, consistent=True)
        faults.point("before-downstream-commit")

    def _next_is(self, session: Session, step: RowsStep) -> bool:
        """Lock the checkpoint row and see whether ``step`` is still to be done; False: the commit whose answer was lost did happen."""
        standing = self._standing(session, step.after_ts, step.upto_ts)
        return standing == step.after_ts or step.after_ts == step.upto_ts

    def _standing(self, session: Session, after_ts: int, upto_ts: int) -> int:
        """Lock the checkpoint row: it says ``after_ts``, or ``upto_ts`` when the answer to that commit was lost."""
        standing = progress.lock_checkpoint(session, self._cluster_id, self._apply.checkpoint_schema)
        if standing not in (after_ts, upto_ts):
            raise ApplyError(
                f"({after_ts}, {upto_ts}] is next, but the target's checkpoint of cluster {self._cluster_id} was moved to {standing} meanwhile: was it "
                "edited, or the target restored, under the running stream? Start the Drainer again, it goes on from the target's checkpoint"
            )
        return standing

    def _apply_in_parts(self, events: DataFrame, step: RowsStep, parts: int, tally: _Tally) -> None:
        schema, cluster_id = self._apply.checkpoint_schema, self._cluster_id
        step = self._fitted(step, tally)

        def begin(session: Session) -> None:
            if self._next_is(session, step):
                progress.begin_span(session, cluster_id, step.after_ts, step.upto_ts, parts, schema)
                self._save(session, step.after_ts, step.applied, consistent=False)

        def finish(session: Session) -> None:
            if self._next_is(session, step):
                progress.finish_span(session, cluster_id, step.after_ts, step.upto_ts, schema)
                self._save(session, step.upto_ts, step.applied, consistent=True)
            faults.point("before-downstream-commit")

        self._transact(begin)
        faults.point("before-deletes")
        skipped = frozenset(self._apply.ignore_txn_commit_ts)
        span = (step.after_ts, step.upto_ts)
        how = parallel.PartPlan(span, dict(step.tables), self._flavour, self._route, self._limits, skipped, step.gone)
        to = parallel.PartTarget(self._ship_target(), self._apply, self._held, step.after_ts, step.upto_ts, parts)
        with self._persisted(parallel.planned(events, how, to)) as plans:
            self.stage = "plan"
            with tally.timed("plan+delete"):
                tally.add(parallel.delete(plans))
            faults.point("between-phases")
            self.stage = "apply"
            with tally.timed("write"):
                tally.add(parallel.write(plans, to))
        self._transact(finish)
        faults.point("after-downstream-commit")
        self.commit_ts, self._applied = step.upto_ts, step.applied

    def _apply_ddl(self, step: DdlStep, tally: _Tally) -> None:
        self.stage = "ddl"
        with tally.timed("ddl"):
            outcome = self._retried_ddl(step)
        tally.findings += [Finding(FindingKind.DDL, words, commit_ts=step.commit_ts) for words in outcome.losses]
        if outcome.freezes:
            self._refused |= {step.job.id}
        self.commit_ts, self._applied = step.commit_ts, step.applied
        tally.ddls += 1

    def _retried_ddl(self, step: DdlStep) -> DdlOutcome:
        """A lost connection is opened again; what the server did of the DDL before is found out by ``apply_ddl``."""

        def work(session: Session) -> DdlOutcome:
            return apply_ddl(
                session, step, self._feed.snapshot(), self._apply, self._held, partial(self._save_ddl, session, step), self._refused
            )

        return run_retried(self._connect, work, self._patience)

    def _save_ddl(self, session: Session, step: DdlStep, _: object) -> None:
        self._standing(session, self.commit_ts, step.commit_ts)
        self._save(session, step.commit_ts, step.applied, consistent=not self._in_a_span)

    def _save(self, session: Session, commit_ts: int, applied: AppliedJobs, *, consistent: bool) -> None:
        progress.save_checkpoint(session, self._cluster_id, commit_ts, applied.version, consistent, self._apply.checkpoint_schema)

    # Shells.

    def _not_ignored(self, events: pa.Table) -> pa.Table:
        ignored = self._apply.ignore_txn_commit_ts
        if not ignored:
            return events
        hit = np.isin(events.column("commit_ts").to_numpy(), ignored) & ~control_mask(events).to_numpy()
        return events.filter(pa.array(~hit))

    def _connect(self) -> Session:
        return connect(self._config.target, self._apply)

    def _transact(self, work: Callable[[Session], None]) -> None:
        def fenced(session: Session) -> None:
            lease.check(session, self._held)
            work(session)

        run_transaction(self._connect, fenced, self._patience)

    @property
    def _held(self) -> Lease:
        if self._lease is None:
            raise ApplyError("the lease is not taken: call open() first")
        return self._lease

    def _wait_for(self, waited: Waited | None) -> None:
        self.waited = waited

    def _ship(self, history: SchemaHistory) -> Broadcast[SchemaHistory]:
        """``history`` for the executors, sent once as long as it is the same."""
        if self._shipped is None or self._shipped[0] is not history:
            if self._shipped is not None:
                self._shipped[1].unpersist()
            self._shipped = history, self._spark.sparkContext.broadcast(history)
        return self._shipped[1]

    def _ship_target(self) -> ShippedTarget:
        """The target for the executors, sent once."""
        if self._shipped_target is None:
            self._shipped_target = ShippedTarget.of(self._config.target, self._spark.sparkContext.broadcast)
        return self._shipped_target

    @contextmanager
    def _persisted(self, frame: DataFrame) -> Iterator[DataFrame]:
        frame.persist(StorageLevel.DISK_ONLY)
        try:
            yield frame
        finally:
            frame.unpersist()
