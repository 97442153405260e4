"""A span that stopped between its parts' transactions, on a real MariaDB, without Spark: mended by a real Drainer's safe mode, and by ours."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.engine.fold import part_numbers
from pyspark_tidb_binlog.sinks.engine.identity import row_identities
from pyspark_tidb_binlog.sinks.mysql import part_plans
from pyspark_tidb_binlog.sinks.mysql.parallel import PartTarget, apply_part
from pyspark_tidb_binlog.sinks.mysql.part_plans import PartPlan
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.ddl_target import dying
from tests.support.leases import take_lease
from tests.support.plan_samples import INT_PK, TABLE_ID, Events, column, index, table
from tests.support.real_safe_mode import PlainTable, RowChange, replay
from tests.support.recorded import begun, record_in

pytestmark = pytest.mark.mysql

SCHEMA = "half_marks"
SPAN = (0, 10**9)
AT = table([column("id", flag=INT_PK), column("u"), column("v")], [index("u", ("u", -1))], handle="int")
PLAIN = PlainTable("d.t", ("id", "u", "v"), (("id",), ("u",)))


class Half:
    """A history over ``d.t``, and its span in two parts."""

    def __init__(self, session: Session, server: PrivateMariaDB, seed: int) -> None:
        self.session = session
        rng = random.Random(f"half {seed}")
        self.state: dict[int, tuple[Any, ...]] = {n: (n, n, 0) for n in range(8)}
        for row in self.state.values():
            session.execute("INSERT INTO d.t VALUES (%s, %s, %s)", row)
        session.commit()
        self.changes: list[RowChange] = []
        self.events = Events(AT)
        for _ in range(30):
            self.changes.append(self._change(rng))
        begun(session, SPAN, 2, SCHEMA)
        held = take_lease(session, schema=SCHEMA)
        session.commit()
        apply = ApplyConfig(checkpoint_schema=SCHEMA, retry_seconds=0.0, on_finding="stop")
        self.to = PartTarget(ShippedTarget.of(server.target(), Here), apply, held, *SPAN, 2)

    def _change(self, rng: random.Random) -> RowChange:
        free = [u for u in range(16) if u not in {row[1] for row in self.state.values()}]
        number = rng.randint(0, 11)
        old, new = self.state.get(number), (number, rng.choice(free), rng.randint(0, 99))
        if old is None:
            self.events.insert(*new)
        elif rng.random() < 0.3:
            self.events.delete(*old)
            del self.state[number]
            return RowChange(old, None)
        else:
            self.events.update(old, new)
        self.state[number] = new
        return RowChange(old, new)

    def part(self, number: int, skipped: frozenset[int] = frozenset(), *, safe: bool = False) -> None:
        """What a task does for it."""
        how = PartPlan(SPAN, {TABLE_ID: AT}, self.session.flavour, PlanLimits(), skipped, frozenset(), safe=SafeSpan() if safe else None)
        rows = self.events.table()
        rows = rows.append_column("key", row_identities(rows, {TABLE_ID: AT}))
        keys = rows.column("key").combine_chunks()
        parts = part_numbers(rows.column("table_id").to_numpy(), keys, np.zeros(len(keys), np.bool_), 2)
        for _ in apply_part(number, how.chosen(rows.filter(parts == number)), how, self.to, 0.0):
            pass

    def rows(self) -> list[tuple[Any, ...]]:
        """What the table holds."""
        found = self.session.query("SELECT * FROM d.t ORDER BY id")
        self.session.commit()
        return found

    def wanted(self) -> list[tuple[Any, ...]]:
        """What it must hold in the end."""
        return sorted(self.state.values())


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig(lease_timeout=3600.0)) as session:
        session.execute("CREATE DATABASE d")
        session.execute("CREATE TABLE d.t (id bigint primary key, u bigint, v bigint, UNIQUE KEY u (u))")
        record_in(session, SCHEMA)
        yield session
        session.rollback()
        for name in ("d", SCHEMA):
            session.execute(f"DROP DATABASE IF EXISTS {name}")


def stopped(half: Half, where: str, *, safe: bool = False) -> None:
    """The span stops after the deletes of one part, of both, or after the writes of one."""
    half.part(0, safe=safe)
    if where == "both deleted":
        with dying("between-phases"):
            half.part(1, safe=safe)
    elif where == "one written":
        half.part(1, safe=safe)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("where", ["one deleted", "both deleted", "one written"])
def test_a_real_ones_safe_mode_mends_what_ours_has_left(where: str, seed: int, session: Session, mariadb: PrivateMariaDB) -> None:
    half = Half(session, mariadb, seed)
    stopped(half, where)
    assert half.rows() != half.wanted()
    replay(session, PLAIN, half.changes)
    assert half.rows() == half.wanted()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("where", ["one deleted", "both deleted", "one written"])
def test_ours_in_safe_mode_is_finished_from_wherever_it_stopped(
    where: str, seed: int, session: Session, mariadb: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a real one had applied a part of it, and in subsets smaller than a row's history."""
    monkeypatch.setattr(part_plans, "IN_MEMORY", 300)
    half = Half(session, mariadb, seed)
    replay(session, PLAIN, half.changes[: 5 * seed])
    stopped(half, where, safe=True)
    for part in (0, 1, 0):
        half.part(part, safe=True)
    assert half.rows() == half.wanted()


def test_other_transactions_cannot_be_skipped_within_a_span_of_safe_mode(session: Session, mariadb: PrivateMariaDB) -> None:
    half = Half(session, mariadb, 0)
    stopped(half, "one deleted", safe=True)
    with pytest.raises(ApplyError, match=r"was begun in safe mode with syncer.ignore-txn-commit-ts = \[\]"):
        half.part(0, frozenset({1001}), safe=True)
    half.part(1, safe=True)
    half.part(0, safe=True)
    assert half.rows() == half.wanted()
