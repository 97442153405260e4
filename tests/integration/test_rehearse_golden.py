"""Every recorded case but ``bench`` through real Pumps, Spark and MariaDB: nothing differs. In ``make test`` each once, here or in a file that ``ELSEWHERE``
names, and each delivery; the rest in ``make slow``.

In raw each Prewrite comes a random distance earlier than recorded, batches are cut fine, and the stream is stopped and started again on its
way: at least 25 % of the pairs must straddle two batches, and 1 % a restart. One Spark session serves all of it.
"""

import bisect
import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.source.loss import LossPolicy
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_raw
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import schedule
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import main, prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import BinlogType
from pyspark_tidb_binlog.sinks.mysql.lease import lock_name
from tests.support.arena import Arena, Cut
from tests.support.drainer_process import RUN_SECONDS
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.spark_queries import replicated
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SMALL = Cut(step_bytes=500, max_bytes=3000)
LARGE = Cut(step_bytes=8_000, max_bytes=60_000)
TINY = Cut(step_bytes=200, max_bytes=1000)
CASES = {
    "keys": SMALL,
    "ddl": SMALL,
    "txn": TINY,
    "beyond_mysql": TINY,
    "reports": replace(SMALL, on_finding="record"),
    "types": LARGE,
    "bank": LARGE,
    "online": LARGE,
}
IN_RAW = ("txn",)
"""Those that ``make test`` replicates in raw here; after pairing, transactions are the same in both deliveries."""
ELSEWHERE = {"bank": "test_bank_looks.py", "ddl": "test_migration.py", "online": "test_a_target_that_takes_only_short_statements"}
"""Where ``make test`` replicates the others by net changes and compares them."""
SLOW = pytest.mark.slow


@dataclass(slots=True)
class Pairs:
    """How many pairs there were, and how many straddled."""

    all: int = 0
    over_batches: int = 0
    over_restarts: int = 0

    def __str__(self) -> str:
        return f"{self.all} pairs, {self.over_batches} over two batches or more, {self.over_restarts} over a restart"


def replicate(spark: SparkSession, arena: Arena, restart_after: int) -> list[int]:
    """Run to the end; stopped and started again once, after ``restart_after`` batches. The batch ids that began a life."""
    begun = []
    for life in (0, 1):
        with Replication(spark, arena.settings()) as replication:
            done = replicated(replication, arena.case.end_ts, restart_after if life == 0 else 1 << 30)
        begun.append(len(list((arena.spark_dir / "commits").glob("[0-9]*"))))
        if done:
            break
    return begun[:-1]


def count_pairs(arena: Arena, restarts: list[int]) -> Pairs:
    """Read the Pumps' logs again and hold them against the offsets that Spark kept."""
    offsets = sorted((arena.spark_dir / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ends: dict[str, list[Position]] = {}
    for path in offsets:
        for pump, mark in from_json(json.loads(path.read_text().splitlines()[-1])).pumps.items():
            ends.setdefault(pump, []).append(mark.position)
    found = Pairs()
    for number, address in enumerate(arena.addresses, 1):
        bounds = ends[next(pump for pump in ends if pump in (address, f"pump-{number}"))]
        opened: dict[int, int] = {}
        for records in read_raw(
            Endpoint(address, address, arena.case.cluster_id, by_address=True),
            Position(0, 0),
            bounds[-1],
            0,
            ReadTerms(30.0, LossPolicy(fail=True).lost),
        ):
            for i in range(len(records)):
                at = Position(int(records.suffixes[i]), int(records.offsets[i]))
                batch = bisect.bisect_left(bounds, at) + len(offsets) - len(bounds)
                start_ts = int(records.start_ts[i])
                if records.types[i] == BinlogType.PREWRITE:
                    opened[start_ts] = batch
                elif start_ts in opened:
                    first = opened.pop(start_ts)
                    found.all += 1
                    found.over_batches += first != batch
                    found.over_restarts += any(first < restart <= batch for restart in restarts)
    return found


def test_the_target_of_a_stream_is_refused_whatever_may_be_dropped(mariadb: PrivateMariaDB) -> None:
    to, case = mariadb.target(), load(GOLDEN / "txn")
    argv = ["txn", "--to", f"mysql://{to.user}:{to.password}@127.0.0.1:{mariadb.port}", "--drop"]
    prepare_target(to, DrainerConfig(), (), drop=True)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE tidb_binlog")
        cursor.execute("CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)")
        cursor.execute(f"INSERT INTO tidb_binlog.checkpoint VALUES ({case.cluster_id}, '{{}}'), (18446744073709551615, '{{}}')")
        connection.commit()
        with pytest.raises(
            ConfigError, match="holds the checkpoint of cluster 18446744073709551615 .*name a target without a stream"
        ) as caught:
            main(argv)
        assert "--drop" not in str(caught.value)
        cursor.execute(f"DELETE FROM tidb_binlog.checkpoint WHERE clusterID <> {case.cluster_id}")
        connection.commit()
        cursor.execute("SELECT GET_LOCK(%s, 0)", [lock_name("lease", "tidb_binlog", case.cluster_id)])
        with pytest.raises(ConfigError, match="is being written to by a Drainer"):
            main(argv)
        cursor.execute("DROP DATABASE tidb_binlog")


@pytest.mark.shows("known wrong: key changes only in case")
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name in (*IN_RAW, *ELSEWHERE) else ()) for name in CASES])
def test_sorted(name: str, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / name), mariadb, tmp_path, "sorted", replace(CASES[name], max_bytes=256 << 20, step_bytes=1 << 20)) as arena:
        prepare_target(mariadb.target(), arena.settings(), arena.case.databases, drop=True)
        arena.write()
        replicate(spark, arena, restart_after=1 << 30)
        arena.assert_equal()


def test_a_target_that_takes_only_short_statements(spark: SparkSession, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """``online`` in sorted delivery, as in ``make slow`` with statements of any length."""
    with Arena(load(GOLDEN / "online"), fresh_mariadb, tmp_path, "sorted", Cut(max_bytes=256 << 20, step_bytes=1 << 20)) as arena:
        run_sql(fresh_mariadb, "SET GLOBAL max_allowed_packet = 4096")
        arena.write()
        replicate(spark, arena, restart_after=1 << 30)
        arena.assert_equal()


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in IN_RAW else SLOW) for name in CASES])
def test_raw_with_straddling_pairs(name: str, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / name), mariadb, tmp_path, "raw", CASES[name]) as arena:
        prepare_target(mariadb.target(), arena.settings(), arena.case.databases, drop=True)
        arena.write(schedule(arena.case, move_back_seed=1, move_back_most=400 if CASES[name] is LARGE else 20))
        restarts = replicate(spark, arena, restart_after=2)
        arena.assert_equal()
        pairs = count_pairs(arena, restarts)
        print(f"{name}: {pairs}")
        assert pairs.over_batches >= 0.25 * pairs.all
        assert pairs.over_restarts >= 0.01 * pairs.all


@pytest.mark.parametrize("delivery", ["sorted", pytest.param("raw", marks=SLOW)])
def test_a_stream_begins_before_its_pumps_have_anything_and_ends_when_they_have_nothing_left(
    delivery: str, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    """Spark runs a new stream's first batch even when the source has nothing to give."""
    with Arena(load(GOLDEN / "txn"), mariadb, tmp_path, delivery, TINY) as arena:
        prepare_target(mariadb.target(), arena.settings(), arena.case.databases, drop=True)
        with Replication(spark, arena.settings()) as replication:
            eventually(lambda: replication.check() or (arena.spark_dir / "commits" / "0").exists(), seconds=RUN_SECONDS)
            arena.write()
            assert replicated(replication, arena.case.end_ts)
        arena.assert_equal()
        replication = Replication(spark, arena.settings()).start()
        assert replication.reached(arena.case.end_ts)
        ending = threading.Thread(target=replication.close, daemon=True)
        ending.start()
        ending.join(60)
        assert not ending.is_alive()
        replication.close()
