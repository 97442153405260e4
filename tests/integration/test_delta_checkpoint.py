"""The Delta table ``checkpoint`` with a real Spark: contents, restarts, and the exactly-once of its rows."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from schemas.events import tso
from sinks.delta_checkpoint import FILLED_UP, CheckpointRow, DeltaCheckpoint, latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def row(batch_id: int) -> CheckpointRow:
    return CheckpointRow(batch_id, tso(1000 + batch_id - 1), tso(1000 + batch_id), 48, True, 10, 2, 0, 99, {"read": 0.5}, ("a loss",))


def ids(spark: "SparkSession", path: str) -> list[tuple[str, int]]:
    table = spark.read.format("delta").load(path).select("app_id", "batch_id").toArrow().to_pylist()
    return sorted((r["app_id"], r["batch_id"]) for r in table)


def test_the_table_over_restarts(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert latest(spark, path) is None
    first = DeltaCheckpoint(spark, path, "query-1", interval=3600)
    for i in range(3):
        first.record(row(i))
    first.flush()
    first.record(row(3))
    first.close()
    assert latest(spark, path) == row_without_clock(spark, path, 3)
    commits = sorted((tmp_path / "checkpoint" / "_delta_log").glob("*.json"))
    assert len(commits) == 2, "three batches shared a commit"

    # The same query again: Spark replays a batch, and the target is ahead of what the table knows.
    second = DeltaCheckpoint(spark, path, "query-1", interval=3600)
    second.fill_up(tso(1003), 48)
    second.record(row(3))
    second.record(row(4))
    second.close()
    assert ids(spark, path) == [("query-1", i) for i in range(5)]

    # A new checkpoint directory: another query whose batches begin at 0.
    third = DeltaCheckpoint(spark, path, "query-2", interval=3600)
    third.fill_up(tso(2000), 50)
    third.close()
    newest = latest(spark, path)
    assert newest is not None
    assert (newest.batch_id, newest.resolved_ts, newest.schema_version) == (FILLED_UP, tso(2000), 50)


def row_without_clock(spark: "SparkSession", path: str, batch_id: int) -> CheckpointRow:
    """The row that was recorded, with the time at which it was."""
    found = latest(spark, path)
    assert found is not None
    return dataclasses.replace(row(batch_id), recorded_at=found.recorded_at)


def test_two_writers_of_one_query_lose_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    one, two = (DeltaCheckpoint(spark, path, "query", interval=3600) for _ in range(2))
    one.record(row(0))
    one.flush()
    two.record(row(0))
    two.record(row(1))
    two.close()
    one.record(row(2))
    one.close()
    assert ids(spark, path) == [("query", 0), ("query", 1), ("query", 2)]
