"""A checkpoint of raw delivery goes on with the pairing buckets that its state was made with, over a real stream into a real MariaDB."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.jobs.stream.spark_checkpoint import SparkCheckpoint
from pyspark_tidb_binlog.schemas.errors import ConfigError
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def arena(fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[Arena]:
    """Cut so that many transactions wait in the pairing state between two batches."""
    with Arena(load(GOLDEN / "txn"), fresh_mariadb, tmp_path / "arena", "raw", Cut(step_bytes=200, max_bytes=1000)) as arena:
        arena.write()
        yield arena


def run(spark: SparkSession, arena: Arena, batches: int = 1 << 30) -> None:
    """To the end, or until that many batches are in."""
    with Replication(spark, arena.settings()) as replication:
        replicated(replication, arena.case.end_ts, batches)


MADE_WITH = {"version": 3, "delivery": "raw", "pairing_buckets": 8, "bucket_ids": [*range(8)], "target": "t"}


def kept(arena: Arena) -> Path:
    """What the checkpoint was made with."""
    return arena.spark_dir / "tidb-binlog.json"


def test_state_partitions_have_two_buckets_each_and_keep_them(spark: SparkSession, arena: Arena) -> None:
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
    run(spark, arena, batches=2)
    made_with = json.loads(kept(arena).read_text())
    assert made_with["version"] == 3 and len(made_with["bucket_ids"]) == made_with["pairing_buckets"] == 2 * partitions
    placed = spark.createDataFrame([(n,) for n in made_with["bucket_ids"]], "bucket int").selectExpr(
        f"pmod(hash(bucket), {partitions}) AS at"
    )
    assert sorted(row["count"] for row in placed.groupBy("at").count().collect()) == [2] * partitions
    run(spark, arena)
    assert json.loads(kept(arena).read_text()) == made_with
    arena.assert_equal()


def test_a_checkpoint_keeps_its_buckets(spark: SparkSession, arena: Arena) -> None:
    arena.spark_dir.mkdir(parents=True)
    kept(arena).write_text(json.dumps(MADE_WITH))
    assert SparkCheckpoint(spark, arena.settings()).bucket_ids == tuple(range(8))


@pytest.mark.parametrize("delivery", ["raw", "sorted"])
def test_another_format_is_refused(spark: SparkSession, arena: Arena, delivery: str) -> None:
    arena.spark_dir.mkdir(parents=True)
    kept(arena).write_text(json.dumps(MADE_WITH | {"version": 2, "delivery": delivery}))
    with pytest.raises(ConfigError, match=f"{arena.spark_dir} has format 2, but this release supports format 3: delete the directory"):
        SparkCheckpoint(spark, arena.settings())
