"""The target as rows are written to it: a step fitted to its tables, and transactions of the driver with the record of what they write. [db]

The ways with several transactions (``in_parts``, ``rows.in_lanes``) share it. Replays of files use ``CheckedWriter``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import wanted
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.fold import marked
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.checked import CheckedWriter, Phases
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, SpanPlan
from pyspark_tidb_binlog.sinks.mysql.safe_mode import SafeMode
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.statements import Statement
from pyspark_tidb_binlog.sinks.mysql.tables_there import FittedStep, TablesThere, concerned_by
from pyspark_tidb_binlog.sinks.mysql.target_record import TargetRecord


@dataclass(slots=True)
class RowTarget:
    """One target of one stream."""

    settings: ApplyConfig
    leased: LeasedTarget
    record: TargetRecord
    safe: SafeMode
    tables: TablesThere
    flavour: Flavour = Flavour.MARIADB
    """This and the following are known once the target is open."""
    limits: PlanLimits = field(default_factory=PlanLimits)
    history: Callable[[], SchemaHistory] = SchemaHistory
    writer: CheckedWriter = field(init=False)

    def fitted(self, step: RowsStep, rows: pa.Table | None, *, by_rows: bool = False) -> tuple[FittedStep, SafeSpan | None]:
        """``step`` for the target's tables as they are. In safe mode, tables that already have a later structure are left out first.

        ``by_rows``: it is written row by row. Row by row, the target's unique keys are needed only in safe mode. For net changes it is the reverse.
        """
        here, how, concerned = step, None, concerned_by(step, rows)
        safely = self.settings.safe_mode or step.after_ts < self.safe.bounds.end_ts
        known = None if safely else self.tables.kept(concerned)
        for attempt in self.leased.retrying() if known is None else ():
            with attempt, self.leased.session(attempt) as session:
                if safely:
                    here, how = self.safe.prepared(session, step, self.history())
                    concerned = concerned_by(here, rows)
                known = self.tables.kept(concerned)
                if known is None:
                    known = self.tables.read(session, concerned)
        assert known is not None
        fitted = self.tables.fit(here, concerned, known, how.superseded if how else (), keyed=by_rows == safely)
        if safely:
            self.safe.name_reset(fitted.step.tables.values())
        return fitted, how

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Fit, plan and write the net changes of ``step``, in one transaction."""
        written, deletes, writes = Written(), tuple[Statement, ...](), tuple[Statement, ...]()
        for attempt in self.tables.fitting():
            with attempt:
                fitted, safe = self.fitted(step, rows)
                if rows.num_rows:
                    with clock.timed(Stage.PLAN):
                        span = self._span(rows, fitted.step, safe)
                        deletes, writes = span.deletes, tuple(span.writes())
                if not (deletes or writes) and self.record.put_off(fitted.step):
                    continue
                with clock.timed(Stage.APPLY, "write"):
                    findings = self.write((("before-deletes", deletes), ("between-phases", writes)), fitted.step, savepoints=True)
                failpoints.point("after-downstream-commit")
                self.record.moved_to(step.upto_ts, step.applied)
                written = Written(sum(statement.rows for statement in (*deletes, *writes)), findings)
        return self.tables.settled(fitted, written)

    def _span(self, rows: pa.Table, step: RowsStep, safe: SafeSpan | None) -> SpanPlan:
        events = wanted(rows, step.gone, step.left_out)
        if step.hidden is not None:
            events = marked(events, step.hidden)
        # The tables of which row changes of the step may have been left out.
        gapped = frozenset(table_id for table_id, _ in step.left_out)
        if self.settings.loopback_control or any(step.after_ts < ts <= step.upto_ts for ts in self.settings.ignore_txn_commit_ts):
            gapped = frozenset(step.tables)
        if safe is not None:
            return SafeSpanPlan(events, step.tables, self.limits, flavour=self.flavour, gapped=gapped, how=safe)
        return SpanPlan(events, step.tables, self.limits, flavour=self.flavour, gapped=gapped)

    def write(self, phases: Phases, step: RowsStep, *, savepoints: bool) -> tuple[Finding, ...]:
        """Run the statements and save the end of ``step`` in one transaction; nothing, if the target has the step. Returns the findings."""
        return tuple(self.writer.write(partial(self._claim, step), (*phases, ("before-downstream-commit", ())), savepoints=savepoints))

    def _claim(self, step: RowsStep, session: Session) -> bool:
        """Save the end of ``step``; False: the target has it."""
        if not self.record.next_is(session, step):
            return False
        self.record.save_end(session, step.after_ts, step.upto_ts, step.applied)
        return True
