"""The mirrors of a lake, as Spark reads them, are the recorded tables: in both deliveries, over restarts, with Spark's renames and without."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.lake import mirror_table
from tests.integration.test_lake import DRIVER, LARGE, PARTS, to_lake
from tests.support.arena import Arena, counted, numbered
from tests.support.bank_states import TOTAL
from tests.support.golden_case import GOLDEN
from tests.support.mirror_rows import assert_mirrored, by_spark, totals
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DEADLY = {
    "after-mirror-merge": (2, 5),
    "after-mirror-ddl": (1, 3),
    "before-publication": (1, 4),
    "after-publication": (1, 3),
    "before-downstream-commit": (3,),
}


def every_way() -> list[Any]:
    """Each case, in one of the ways; in `make test` one of each kind."""
    quick = {("ddl", "sorted", 0.0), ("types", "raw", 30.0)}
    ways = [(name, delivery, interval) for name in CUTS for delivery in ("sorted", "raw") for interval in (0.0, 30.0)]
    return [pytest.param(*way, id="-".join(map(str, way)), marks=() if way in quick else pytest.mark.slow) for way in ways]


CUTS = {"types": DRIVER, "keys": PARTS, "ddl": DRIVER, "txn": PARTS, "beyond_mysql": DRIVER, "bank": LARGE, "online": LARGE}


@pytest.mark.shows("spark.mirror-interval")
@pytest.mark.parametrize(("name", "delivery", "interval"), every_way())
def test_mirrors_are_what_the_upstream_had(name: str, delivery: str, interval: float, spark: SparkSession, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / name), None, tmp_path, delivery, CUTS[name]) as arena:
        arena.write()
        settings = to_lake(arena)
        settings = dataclasses.replace(settings, apply=dataclasses.replace(settings.apply, mirror_interval=interval))
        for batches in (2, 1 << 30):
            with Replication(spark, settings) as replication:
                replicated(replication, arena.case.end_ts, batches)
    lake = tmp_path / "lake"
    assert_mirrored(name, lake, by_spark(spark))
    if name == "bank":
        assert set(totals(lake)) - {0} == {TOTAL}


@pytest.mark.slow
def test_files_of_wide_rows_are_written_again_after_renames(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark renames columns, so that files have other names of them than the table."""
    monkeypatch.setattr(mirror_table, "_WIDE", -1)
    test_mirrors_are_what_the_upstream_had("ddl", "sorted", 0.0, spark, tmp_path)


@pytest.mark.parametrize(
    ("name", "deadly"),
    [
        pytest.param("ddl", {"after-mirror-ddl": (2,), "after-publication": (2,)}, id="ddl"),
        *(pytest.param(name, DEADLY, id=f"{name}-everywhere", marks=pytest.mark.slow) for name in ("ddl", "bank")),
    ],
)
def test_the_job_dies_and_the_mirrors_are_the_same(
    name: str, deadly: dict[str, tuple[int, ...]], spark: SparkSession, tmp_path: Path
) -> None:
    if name == "bank":
        deadly = {point: passes for point, passes in deadly.items() if point != "after-mirror-ddl"}
    more = {"syncer.db-type": "lake", "syncer.to.dir": tmp_path / "lake", "spark.mirror-interval": 0}
    with Arena(load(GOLDEN / name), None, tmp_path, "raw", CUTS[name], more) as arena:
        arena.write()
        deaths = arena.live_and_die(numbered(deadly), spark=spark)
        assert (deaths, arena.deaths()) == (sum(map(len, deadly.values())), counted(deadly))
    assert_mirrored(name, tmp_path / "lake", by_spark(spark))
    if name == "bank":
        assert set(totals(tmp_path / "lake")) - {0} == {TOTAL}
