"""Row by row (``net-change = false``) through the real stream: Pumps, Spark and MariaDB, in both deliveries, and ``kill -9`` on the way.

Lives with net changes and lives row by row follow one another on the same target: each finishes what the one before has left.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from tests.support.arena import Arena, Cut, counted, numbered
from tests.support.golden_case import GOLDEN
from tests.support.keyless_case import keyless_case
from tests.support.spark_queries import replicated
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DRIVER = Cut(step_bytes=500, max_bytes=3000)
PARTS = Cut(step_bytes=1000, max_bytes=20_000, atomic_rows=20)
BANK = Cut(step_bytes=2000, max_bytes=30_000, atomic_rows=20)
ONCE = Cut(step_bytes=1 << 20, max_bytes=256 << 20, atomic_rows=20)
"""All of a case in one batch."""
KEYLESS = Cut(step_bytes=300, max_bytes=2000, atomic_rows=20)
ROWS = {"spark.net-change": "false", "syncer.worker-count": 4, "syncer.txn-batch": 3}
NET = {"spark.net-change": "true"}
MODES: dict[str, dict[str, Any]] = {
    "one transaction each": {"enable_dispatch": False},
    "safe": {"safe_mode": True, "txn_batch_time": 0.001},
}
DEATHS = {"before-rows-commit": (2, 12), "after-rows-commit": (9,), "between-phases": (2, 4)}
"""Points of a lane's transactions and of net changes, and the passes that kill."""
MORE_DEATHS = {"before-rows-commit": (2, 12, 25), "after-rows-commit": (9, 35), "between-phases": (2, 4, 6, 8)}
_SLOW = pytest.mark.slow


def by_row(arena: Arena, **how: Any) -> DrainerConfig:
    """The arena's settings, row by row."""
    settings = arena.settings()
    apply = dataclasses.replace(settings.apply, net_change=False, worker_count=4, txn_batch=3)
    return dataclasses.replace(settings, apply=dataclasses.replace(apply, **how))


def assert_equal(arena: Arena) -> None:
    """The target is what the case says, and no lane is left."""
    arena.assert_equal()
    assert run_sql(arena.target, "SELECT COUNT(*) FROM tidb_binlog.spark_state WHERE name LIKE 'lane%'") == [(0,)]


CUTS = {"driver": DRIVER, "parts": PARTS}
QUICK = {("txn", "raw", "parts"), ("ddl", "sorted", "driver"), ("types", "sorted", "parts")}
"""Each delivery and each cut once, and each case: ``keys`` is that of ``MODES``. The sink gets the same transactions in both deliveries."""


@pytest.mark.shows("spark.net-change", "drainer gotcha 3")
@pytest.mark.parametrize(
    ("name", "delivery", "cut"),
    [
        pytest.param(name, delivery, cut, id=f"{name}-{delivery}-{how}", marks=() if (name, delivery, how) in QUICK else _SLOW)
        for name in ("keys", "ddl", "txn", "types")
        for delivery in ("sorted", "raw")
        for how, cut in CUTS.items()
    ],
)
def test_nothing_differs(name: str, delivery: str, cut: Cut, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / name), mariadb, tmp_path, delivery, cut) as arena:
        prepare_target(mariadb.target(), arena.settings(), arena.case.databases, drop=True)
        arena.write()
        for batches in (2, 1 << 30):
            with Replication(spark, by_row(arena)) as replication:
                replicated(replication, arena.case.end_ts, batches)
        assert_equal(arena)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_differs_however_it_is_applied(mode: str, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / "keys"), mariadb, tmp_path, "sorted", ONCE) as arena:
        prepare_target(mariadb.target(), arena.settings(), arena.case.databases, drop=True)
        arena.write()
        with Replication(spark, by_row(arena, **MODES[mode])) as replication:
            assert replicated(replication, arena.case.end_ts)
        assert_equal(arena)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "delivery", "deadly"),
    [
        pytest.param("bank", "raw", DEATHS, id="bank-raw"),
        pytest.param("keyless", "sorted", DEATHS, id="keyless-sorted"),
        pytest.param("bank", "sorted", MORE_DEATHS, id="bank-sorted-more"),
        pytest.param("keyless", "raw", MORE_DEATHS, id="keyless-raw-more"),
    ],
)
def test_deaths_within_the_lanes(
    name: str, delivery: str, deadly: dict[str, tuple[int, ...]], fresh_mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    """After each death of a lane a life applies net changes: it finishes the open span row by row, and dies too. Spark's directory is lost at the third death.

    Each point kills without Spark in ``test_in_lanes.py`` and ``test_skipped_in_parts.py``, too.

    ``bank`` has conflicts all the time; in the other case, which has no key, an operation that runs twice is seen.
    """
    case = load(GOLDEN / "bank") if name == "bank" else keyless_case(tmp_path / "case", 600)

    def flags(deaths: int) -> list[str]:
        net = arena.deaths()["between-phases"]
        return [f"--{name}={value}" for name, value in (ROWS | (NET if net < deaths - net else {})).items()]

    with Arena(case, fresh_mariadb, tmp_path / "arena", delivery, BANK if name == "bank" else KEYLESS) as arena:
        arena.write()
        died = arena.live_and_die(numbered(deadly), lambda deaths: arena.forget(delta=False) if deaths == 3 else None, flags)
        print(f"{name} {delivery}: {died} deaths, {dict(arena.deaths())}")
        assert arena.deaths() == counted(deadly)
        assert_equal(arena)
