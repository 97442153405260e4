"""A span of ``d.t`` that is applied in parts without Spark: what its tasks do, one after the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.identity import row_identities
from pyspark_tidb_binlog.sinks.mysql.parallel import PartTarget, apply_part
from pyspark_tidb_binlog.sinks.mysql.part_plans import PartPlan
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.leases import take_lease
from tests.support.plan_samples import TABLE_ID
from tests.support.recorded import begun

SCHEMA = "parts_marks"
SPAN = (0, 10**9)
LIMITS = PlanLimits()


@dataclass(frozen=True)
class OneSpan:
    """The span, and the lease of one life of the Drainer."""

    session: Session
    to: PartTarget

    def part(
        self,
        number: int,
        events: pa.Table,
        at: TableAt,
        skipped: frozenset[int] = frozenset(),
        limits: PlanLimits = LIMITS,
        *,
        safe: bool = False,
    ) -> list[dict[str, Any]]:
        """Apply a part as a task does; its ``DONE`` rows. Rows of another table than ``at`` are of one that nobody knows."""
        safely = SafeSpan() if safe else None
        how = PartPlan(SPAN, {TABLE_ID: at}, self.session.flavour, limits, skipped, frozenset(), safe=safely)
        keys = row_identities(events, dict.fromkeys((TABLE_ID, *events.column("table_id").to_pylist()), at))
        known = pc.if_else(pc.equal(events.column("table_id"), TABLE_ID), keys, pa.scalar(None, pa.binary()))
        rows = how.chosen(events.append_column("key", known))
        return [row for batch in apply_part(number, rows, how, self.to, 0.0) for row in batch.to_pylist()]

    def rows(self) -> list[tuple[Any, ...]]:
        """What the table holds."""
        found = self.session.query("SELECT * FROM d.t ORDER BY 1, 2")
        self.session.commit()
        return found


Begin = Callable[..., OneSpan]


@contextmanager
def spans_at(target: TargetConfig) -> Iterator[Begin]:
    """Begins a span: statements that make the database ``d``, the number of parts, the tasks' target, and settings of ``[syncer]``."""
    with connect(target, ApplyConfig(lease_timeout=3600.0)) as session:

        def drop() -> None:
            session.rollback()
            for name in ("d", SCHEMA):
                session.execute(f"DROP DATABASE IF EXISTS {name}")

        def made(*statements: str, parts: int = 1, to: TargetConfig = target, **settings: Any) -> OneSpan:
            drop()
            for sql in ("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", *statements):
                session.execute(sql)
            held = take_lease(session, schema=SCHEMA)
            begun(session, SPAN, parts, SCHEMA)
            session.commit()
            apply = ApplyConfig(checkpoint_schema=SCHEMA, **{"retry_seconds": 0.0, **settings})
            return OneSpan(session, PartTarget(ShippedTarget.of(to, Here), apply, held, *SPAN, parts))

        yield made
        drop()
