"""The target as rows are written to it: what the ways to write them share (``at_once``, ``in_parts``, ``rows.in_lanes``). [db]"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.leased_target import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.safe_mode import SafeMode
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan
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

    def fitted(self, step: RowsStep, rows: pa.Table | None, *, by_rows: bool = False) -> tuple[FittedStep, SafeSpan | None]:
        """``step`` for the target's tables as they are. In safe mode, tables that already have a later structure are left out first.

        ``by_rows``: it is written row by row. Row by row, the target's unique keys are needed only in safe mode. For net changes it is the reverse.
        """
        here, how, concerned, safely = step, None, concerned_by(step, rows), self.safe.applies(step.after_ts)
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
