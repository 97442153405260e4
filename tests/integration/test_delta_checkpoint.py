"""The Delta table ``checkpoint`` as Spark reads it, and as an earlier release has left it, whom Spark wrote: contents, restarts, each row once."""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta import appended_table
from pyspark_tidb_binlog.sinks.delta.appended_table import properties
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import (
    FILLED_UP,
    CheckpointRow,
    DeltaCheckpoint,
    DeltaFindings,
    DeltaRows,
    as_table,
    places,
)
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TARGET = "target-1"
WEEK = 7 * 86_400.0


def row(batch_id: int) -> CheckpointRow:
    return CheckpointRow(batch_id, tso(1000 + batch_id - 1), tso(1000 + batch_id), 48, True, 10, 2, 0, 99, {"read": 0.5}, ("a loss",))


def read(spark: "SparkSession", path: str) -> list[dict[str, Any]]:
    return spark.read.format("delta").load(path).orderBy("recorded_at").toArrow().to_pylist()


def ids(spark: "SparkSession", path: str) -> list[tuple[str, int]]:
    return sorted((r["app_id"], r["batch_id"]) for r in read(spark, path))


def writer_of(path: str, app_id: str = "query-1", findings: str = "", retention: float = WEEK) -> DeltaCheckpoint:
    beside = DeltaFindings(findings, app_id, retention) if findings else None
    return DeltaCheckpoint(DeltaRows(path, app_id, TARGET, retention), beside, interval=3600)


def by_spark(spark: "SparkSession", path: str, batch_id: int) -> None:
    """What an earlier release has done."""
    frame = spark.createDataFrame(as_table([row(batch_id)], "query-1", TARGET))
    writer = frame.coalesce(1).write.format("delta").mode("append").option("txnAppId", "query-1").option("txnVersion", str(batch_id))
    writer.save(path)


@pytest.mark.shows("spark.delta-dir")
def test_the_table_over_restarts(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    first = writer_of(path)
    for i in range(3):
        first.record(row(i))
    first.flush()
    first.record(row(3))
    first.close()
    *_, last = read(spark, path)
    assert last.pop("recorded_at") is not None
    assert last == {name: value for name, value in as_table([row(3)], "query-1", TARGET).to_pylist()[0].items() if name != "recorded_at"}
    commits = sorted((tmp_path / "checkpoint" / "_delta_log").glob("*.json"))
    assert len(commits) == 3, "the table is made, then three batches share a commit"

    # The same query again: Spark replays a batch, and the target is ahead of what the table knows.
    second = writer_of(path)
    second.fill_up(tso(1003), 48)
    second.record(row(3))
    second.record(row(4))
    second.close()
    assert ids(spark, path) == [("query-1", i) for i in range(5)]

    # A new checkpoint directory: another query whose batches begin at 0.
    third = writer_of(path, "query-2")
    third.fill_up(tso(2000), 50)
    third.close()
    *_, newest = read(spark, path)
    assert (newest["batch_id"], newest["resolved_ts"], newest["schema_version"]) == (FILLED_UP, tso(2000), 50)


@pytest.mark.shows("spark.delta-retention")
def test_a_table_that_spark_has_made_goes_on(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its txn, its properties and its protocol count; a stream that reads it sees each batch once, over a compaction, a VACUUM and a checkpoint of the log."""
    monkeypatch.setattr(appended_table, "MOST_FILES", 3)
    path = str(tmp_path / "checkpoint")
    for i in range(2):
        by_spark(spark, path, i)
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.logRetentionDuration' = 'interval 8 days')"
    )
    by_spark(spark, path, 2)
    reader = (
        spark.readStream.format("delta")
        .load(path)
        .writeStream.format("memory")
        .queryName("delta_reader")
        .trigger(processingTime="1 second")
    )
    with contextlib.closing(writer_of(os.path.relpath(path))) as writer:
        stream = reader.option("checkpointLocation", str(tmp_path / "reader")).start()
        try:
            for i in (2, 3, 4):
                writer.record(row(i))
                writer.flush()
            eventually(lambda: properties(WEEK).items() <= shown(spark, path).items())
            stream.processAllAvailable()
            seen = sorted(r.batch_id for r in spark.sql("SELECT batch_id FROM delta_reader").collect())
        finally:
            stream.stop()
    everything = [("query-1", i) for i in range(5)]
    assert (ids(spark, path), seen) == (everything, [i for _, i in everything])
    done = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("operation").toArrow()["operation"].to_pylist()
    assert "OPTIMIZE" in done and not list(Path(path).rglob(".*.crc"))
    by_spark(spark, path, 4)
    by_spark(spark, path, 5)
    assert ids(spark, path) == [*everything, ("query-1", 5)], "the earlier release goes on with it, too"
    assert places(path, TARGET) == (tso(1005), None)


def shown(spark: "SparkSession", path: str) -> dict[str, str]:
    return {r.key: r.value for r in spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()}


def test_two_writers_of_one_query_lose_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    one, two = (writer_of(path, "query") for _ in range(2))
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
        writer = writer_of(path, findings=beside)
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


def test_a_target_that_was_restored_is_where_its_own_row_says(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert places(path, TARGET) == (None, None)
    for app_id, commit_ts in (("query-1", tso(5000)), ("query-2", tso(3000))):
        writer = writer_of(path, app_id)
        writer.fill_up(commit_ts, 48)
        writer.close()
        assert places(path, TARGET) == (commit_ts, None)
    assert places(path, "target-2") == (None, tso(3000))
