"""Applies a step in one transaction of the driver, with the record of its end: its net changes, or statements that were planned otherwise. [db]"""

from collections.abc import Sequence

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.sinks.engine.batch import wanted
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.fold import marked
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checked import checked
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, SpanPlan, planned
from pyspark_tidb_binlog.sinks.mysql.row_target import RowTarget
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.session import transaction
from pyspark_tidb_binlog.sinks.mysql.statements import Statement


def apply_at_once(target: RowTarget, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
    """Fit, plan and write the net changes of ``step``."""
    for attempt in target.tables.fitting():
        with attempt:
            fitted, safe = target.fitted(step, rows)
            written = _apply(target, rows, fitted.step, safe, clock)
    return target.tables.settled(fitted, written)


def _apply(target: RowTarget, rows: pa.Table, step: RowsStep, safe: SafeSpan | None, clock: StageClock) -> Written:
    with clock.timed(Stage.PLAN):
        plan = _plan(target, rows, step, safe) if rows.num_rows else Plan()
    if not (plan.deletes or plan.writes) and target.record.put_off(step):
        return Written()
    with clock.timed(Stage.APPLY, "write"):
        findings = write_at_once(target, (("before-deletes", plan.deletes), ("between-phases", plan.writes)), step)
    failpoints.point("after-downstream-commit")
    target.record.stands_at(step.upto_ts, step.applied)
    return Written(plan.counts.deleted + plan.counts.written, findings)


def _plan(target: RowTarget, rows: pa.Table, step: RowsStep, safe: SafeSpan | None) -> Plan:
    events = marked(wanted(rows, step.gone, step.left_out), step.hidden)
    gapped = _gapped(target, step)
    if safe is not None:
        return planned(SafeSpanPlan(events, step.tables, target.limits, flavour=target.flavour, gapped=gapped, how=safe))
    return planned(SpanPlan(events, step.tables, target.limits, flavour=target.flavour, gapped=gapped))


def _gapped(target: RowTarget, step: RowsStep) -> frozenset[int]:
    """Ids of the tables of which row changes of ``step`` may have been left out."""
    skipped = any(step.after_ts < ts <= step.upto_ts for ts in target.settings.ignore_txn_commit_ts)
    if skipped or target.settings.loopback_control:
        return frozenset(step.tables)
    return frozenset(table_id for table_id, _ in step.left_out)


def write_at_once(
    target: RowTarget, phases: Sequence[tuple[str, Sequence[Statement]]], step: RowsStep, *, savepoints: bool = True
) -> tuple[Finding, ...]:
    """Run the statements and save the end of ``step`` in one transaction; nothing, if the target has the step. Returns the findings.

    Args:
        target: where.
        phases: statements, each with the failpoint before them.
        step: what they are of.
        savepoints: as for ``checked``.
    """
    for attempt in target.leased.retrying():
        with attempt, transaction(target.leased.sessions.use, attempt) as session:
            # The lease is checked here, because ``checked`` may roll back and open another transaction.
            for effects in checked(session, target.settings, savepoints=savepoints):
                lease.check(session, target.leased.lease)
                if not target.record.next_is(session, step):
                    break
                for point, statements in phases:
                    failpoints.point(point)
                    effects.run(statements)
                target.record.save_end(session, step.after_ts, step.upto_ts, step.applied)
                failpoints.point("before-downstream-commit")
    return tuple(effects.findings)
