"""Safe mode for net changes through the real stream, over recorded cases of a real TiDB: nothing differs, and nothing is found."""

import dataclasses
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
CUTS = {"driver": Cut(step_bytes=500, max_bytes=3000), "parts": Cut(step_bytes=1000, max_bytes=20_000, atomic_rows=20)}


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("types", "parts"),
        *(
            pytest.param(name, cut, marks=pytest.mark.slow)
            for name in ("keys", "ddl", "txn", "types")
            for cut in CUTS
            if (name, cut) != ("types", "parts")
        ),
    ],
)
def test_nothing_differs(name: str, cut: str, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / name), mariadb, tmp_path, "sorted", CUTS[cut]) as arena:
        settings = arena.settings()
        settings = dataclasses.replace(settings, apply=dataclasses.replace(settings.apply, safe_mode=True))
        prepare_target(mariadb.target(), settings, arena.case.databases, drop=True)
        arena.write()
        for batches in (2, 1 << 30):
            with Replication(spark, settings) as replication:
                replicated(replication, arena.case.end_ts, batches)
        arena.assert_equal()
