"""The Delta table ``checkpoint`` with a real Spark: contents, restarts, and the exactly-once of its rows."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import FILLED_UP, CheckpointRow, DeltaCheckpoint, latest, places
from pyspark_tidb_binlog.sinks.delta.findings_table import DeltaFindings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TARGET = "target-1"


def row(batch_id: int) -> CheckpointRow:
    return CheckpointRow(batch_id, tso(1000 + batch_id - 1), tso(1000 + batch_id), 48, True, 10, 2, 0, 99, {"read": 0.5}, ("a loss",))


def ids(spark: "SparkSession", path: str) -> list[tuple[str, int]]:
    table = spark.read.format("delta").load(path).select("app_id", "batch_id").toArrow().to_pylist()
    return sorted((r["app_id"], r["batch_id"]) for r in table)


@pytest.mark.shows("spark.delta-dir")
def test_the_table_over_restarts(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert latest(spark, path) is None
    first = DeltaCheckpoint(spark, path, "query-1", TARGET, interval=3600)
    for i in range(3):
        first.record(row(i))
    first.flush()
    first.record(row(3))
    first.close()
    assert latest(spark, path) == row_without_clock(spark, path, 3)
    commits = sorted((tmp_path / "checkpoint" / "_delta_log").glob("*.json"))
    assert len(commits) == 2, "three batches shared a commit"

    # The same query again: Spark replays a batch, and the target is ahead of what the table knows.
    second = DeltaCheckpoint(spark, path, "query-1", TARGET, interval=3600)
    second.fill_up(tso(1003), 48)
    second.record(row(3))
    second.record(row(4))
    second.close()
    assert ids(spark, path) == [("query-1", i) for i in range(5)]

    # A new checkpoint directory: another query whose batches begin at 0.
    third = DeltaCheckpoint(spark, path, "query-2", TARGET, interval=3600)
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
    one, two = (DeltaCheckpoint(spark, path, "query", TARGET, interval=3600) for _ in range(2))
    one.record(row(0))
    one.flush()
    two.record(row(0))
    two.record(row(1))
    two.close()
    one.record(row(2))
    one.close()
    assert ids(spark, path) == [("query", 0), ("query", 1), ("query", 2)]


def test_findings_of_each_batch_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Over a restart of the query, a batch that Spark replays, and a span that is finished at start twice."""
    path, beside = str(tmp_path / "checkpoint"), str(tmp_path / "checkpoint-findings")
    missing = Finding(FindingKind.ROWS, "a row was not there", "`d`.`t`", tso(1001), "id='it''s'", 1, 0)
    cut = Finding(FindingKind.VALUE, "warning 1366: Incorrect string value", "`d`.`t`", tso(1002))
    with_two = dataclasses.replace(row(1), findings=(missing, cut))
    finished = dataclasses.replace(row(0), batch_id=FILLED_UP, resolved_ts=tso(900), findings=(missing,))
    for _ in range(2):
        writer = DeltaCheckpoint(spark, path, "query-1", TARGET, interval=3600, findings=DeltaFindings(spark, beside, "query-1"))
        for each in (finished, row(0), with_two, row(2)):
            writer.record(each)
        writer.close()
    found = spark.read.format("delta").load(beside).toArrow().to_pylist()
    assert sorted((f["batch_id"], f["kind"], f["key"], f["wanted"], f["found"]) for f in found) == [
        (FILLED_UP, "rows", "id='it''s'", 1, 0),
        (1, "rows", "id='it''s'", 1, 0),
        (1, "value", None, None, None),
    ]
    assert ids(spark, path) == [("query-1", FILLED_UP), ("query-1", 0), ("query-1", 1), ("query-1", 2)]


def test_a_target_that_was_restored_is_where_its_own_row_says(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert places(spark, path, TARGET) == (None, None)
    for app_id, commit_ts in (("query-1", tso(5000)), ("query-2", tso(3000))):
        writer = DeltaCheckpoint(spark, path, app_id, TARGET, interval=3600)
        writer.fill_up(commit_ts, 48)
        writer.close()
        assert places(spark, path, TARGET) == (commit_ts, None)
    assert places(spark, path, "target-2") == (None, tso(3000))
