"""Targets that were rebuilt, restored or swapped under Spark's and Delta's checkpoints, with a real stream into a real MariaDB."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, ReplicationError
from tests.support.arena import Arena, Cut
from tests.support.drainer_process import RUN_SECONDS
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.spark_queries import replicated
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

FINE = Cut(step_bytes=200, max_bytes=1000)
"""Many batches."""


@pytest.fixture
def arena(fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[Arena]:
    with Arena(load(GOLDEN / "txn"), fresh_mariadb, tmp_path / "arena", "sorted", FINE) as arena:
        arena.write()
        yield arena


def run(spark: SparkSession, arena: Arena, batches: int = 1 << 30) -> None:
    """To the end, or until that many batches are in."""
    with Replication(spark, arena.settings()) as replication:
        replicated(replication, arena.case.end_ts, batches)


def execute(arena: Arena, *statements: str) -> None:
    run_sql(arena.target, *statements)


def copy(source: Path, destination: Path) -> None:
    """With their owner: a server that root starts is not root."""
    subprocess.run(["cp", "-a", str(source), str(destination)], check=True)


def back_up(arena: Arena, backup: Path) -> None:
    """Everything, our tables with it."""
    arena.target.kill()
    copy(arena.target.data_dir, backup)
    arena.target.restart()


def restore(arena: Arena, backup: Path) -> None:
    """Bring all of the target's files to that state."""
    arena.target.kill()
    shutil.rmtree(arena.target.data_dir)
    copy(backup, arena.target.data_dir)
    arena.target.restart()


def test_a_target_that_was_rebuilt_is_not_taken_for_caught_up(spark: SparkSession, arena: Arena) -> None:
    run(spark, arena)
    execute(arena, *(f"DROP DATABASE {name}" for name in (*arena.case.databases, "tidb_binlog")))
    with pytest.raises(
        ConfigError,
        match=r"no checkpoint of cluster .* was rebuilt or emptied.*\(1\).*delete .*spark and set initial-commit-ts.*\(2\)",
    ):
        run(spark, arena)
    row = json.dumps({"consistent": True, "commitTS": arena.case.start_ts})
    execute(arena, f"INSERT INTO tidb_binlog.checkpoint VALUES ({arena.case.cluster_id}, '{row}')")
    with pytest.raises(ConfigError, match="belongs to another target than .* delete the directory"):
        run(spark, arena)
    execute(arena, "DELETE FROM tidb_binlog.checkpoint")
    arena.forget(delta=False)
    run(spark, arena)
    arena.assert_equal()


def test_a_target_that_was_restored_reads_again_or_passes_over(spark: SparkSession, arena: Arena, tmp_path: Path) -> None:
    run(spark, arena, batches=1)
    back_up(arena, tmp_path / "backup")
    shutil.copytree(arena.spark_dir, tmp_path / "spark-of-then")
    run(spark, arena)
    arena.assert_equal()

    # Older than Spark's place: refused, and what the message says works.
    restore(arena, tmp_path / "backup")
    with pytest.raises(
        ReplicationError, match=f"would be lost. Was the target restored.* delete Spark's checkpoint directory {arena.spark_dir}"
    ):
        run(spark, arena)
    arena.forget(delta=False)
    run(spark, arena)
    arena.assert_equal()

    # Newer than Spark's place: what is read again is passed over.
    arena.forget(delta=False)
    shutil.copytree(tmp_path / "spark-of-then", arena.spark_dir)
    run(spark, arena)
    arena.assert_equal()


def test_a_target_restored_under_the_stream_ends_it(spark: SparkSession, arena: Arena, tmp_path: Path) -> None:
    run(spark, arena, batches=1)
    back_up(arena, tmp_path / "backup")
    with (
        pytest.raises(ApplyError, match="stops writing.*restored or rebuilt while the stream was running"),
        Replication(spark, arena.settings()) as replication,
    ):
        restore(arena, tmp_path / "backup")
        eventually(replication.check, seconds=RUN_SECONDS, what="the end of the stream")
