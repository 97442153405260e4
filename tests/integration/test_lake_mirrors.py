"""The lake as the target of the real stream: what Spark reads in its ledger and its mirrors is what TiDB had.

In both deliveries, from the driver and in parts, over restarts and ``kill -9``, with the Spark checkpoint lost.
"""

import dataclasses
import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.lake.moments import MirrorState
from tests.support.arena import Arena, counted, numbered
from tests.support.bank_states import TOTAL
from tests.support.golden_case import GOLDEN
from tests.support.lake_target import DRIVER, LARGE, PARTS, WIDE, assert_ledger, to_lake
from tests.support.mirror_rows import Read, assert_mirrored, by_delta, by_spark, totals
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DEADLY = {
    "before-deletes": (1,),
    "after-part-write": (2,),
    "before-downstream-commit": (3, 6),
    "after-downstream-commit": (2, 5),
    "after-spark-commit": (3,),
    "after-mirror-merge": (2, 5),
    "before-publication": (1, 4),
    "after-publication": (1, 3),
}
"""Points, and the passes that kill."""
CHANGED = {("ddl", "t"), ("ddl", "moved"), ("ddl", "p")}
"""Columns were renamed, dropped and added; a partition went."""
CUTS = {"driver": DRIVER, "parts": PARTS, "large": LARGE, "wide": WIDE}


def every_way() -> list[Any]:
    """Each case in each delivery and each cut; in `make test` three of them: `types`, of many small tables, in few batches."""
    quick = {
        ("bank", "raw", "wide", 30.0),
        ("types", "raw", "large", 30.0),
        ("ddl", "sorted", "driver", 0.0),
    }
    small, big = ("types", "keys", "ddl", "txn", "beyond_mysql"), ("bank", "online")
    cuts = [*itertools.product(small, ("driver", "parts")), *itertools.product(big, ("large",))]
    ways = {(case, delivery, cut, interval) for case, cut in cuts for delivery in ("sorted", "raw") for interval in (0.0, 30.0)} | quick
    return [pytest.param(*way, id="-".join(map(str, way)), marks=() if way in quick else pytest.mark.slow) for way in sorted(ways)]


@pytest.mark.shows("spark.mirror-interval")
@pytest.mark.parametrize(("name", "delivery", "cut", "interval"), every_way())
def test_ledger_and_mirrors_are_what_the_upstream_had(
    name: str, delivery: str, cut: str, interval: float, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In raw delivery the second life goes on from the lake alone. In `make test` Spark reads a few of the mirrors; of others ``test_lake_reader.py`` has
    what it reads.
    """
    slow = request.node.get_closest_marker("slow") is not None

    def read(lake: Path | str, state: MirrorState) -> list[dict[str, Any]]:
        return (by_spark(spark) if slow or (name, state.table) in CHANGED else by_delta)(lake, state)

    with Arena(load(GOLDEN / name), None, tmp_path, delivery, CUTS[cut]) as arena:
        arena.write()
        settings = to_lake(arena)
        settings = dataclasses.replace(settings, apply=dataclasses.replace(settings.apply, mirror_interval=interval))
        for batches in (2, 1 << 30):
            with Replication(spark, settings) as replication:
                replicated(replication, arena.case.end_ts, batches)
            if delivery == "raw" and batches == 2:
                arena.forget(delta=True)
        assert_lake(spark, name, tmp_path / "lake", read)
        if delivery == "raw":
            shutil.rmtree(tmp_path / "lake")
            with pytest.raises(ConfigError, match=r"the target .*lake has no checkpoint .*a lake takes no record by hand"):
                Replication(spark, settings).start()


@pytest.mark.shows("spark.lake-interval")
def test_a_batch_waits_for_the_next_interval(spark: SparkSession, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / "keys"), None, tmp_path, "sorted", DRIVER) as arena:
        arena.write()
        settings = to_lake(arena)
        settings = dataclasses.replace(settings, apply=dataclasses.replace(settings.apply, lake_interval=86_400.0))
        with Replication(spark, settings) as replication:
            assert not replicated(replication, arena.case.end_ts, 1)
            time.sleep(2.0)
            assert len(replication.reports) == 1


def assert_lake(spark: SparkSession, name: str, lake: Path, read: Read) -> None:
    assert_ledger(spark, name, lake)
    assert_mirrored(name, lake, read)
    if name == "bank":
        assert set(totals(lake)) - {0} == {TOTAL}


@pytest.mark.parametrize(
    ("name", "deadly"),
    [
        pytest.param("ddl", {"after-part-write": (2,)}, id="ddl"),
        pytest.param("ddl", DEADLY | {"after-mirror-ddl": (1, 3)}, id="ddl-everywhere", marks=pytest.mark.slow),
        pytest.param("bank", DEADLY, id="bank-everywhere", marks=pytest.mark.slow),
    ],
)
def test_the_job_dies_and_the_lake_is_the_same(name: str, deadly: dict[str, tuple[int, ...]], spark: SparkSession, tmp_path: Path) -> None:
    """At one of the deaths Spark's directory goes, too: the lake alone says where to go on. ``tests/unit/sinks/test_lake_mirrors.py`` kills at the other points."""
    more = {"syncer.db-type": "lake", "syncer.to.dir": tmp_path / "lake", "spark.lake-interval": 0, "spark.mirror-interval": 0}
    with Arena(load(GOLDEN / name), None, tmp_path, "raw", PARTS if name == "ddl" else LARGE, more) as arena:
        arena.write()
        deaths = arena.live_and_die(
            numbered(deadly), lambda deaths: arena.forget(delta=False) if deaths == len(deadly) else None, spark=spark
        )
        assert (deaths, arena.deaths()) == (sum(map(len, deadly.values())), counted(deadly))
    assert_lake(spark, name, tmp_path / "lake", by_delta)
