"""Files stay bounded with a real Spark: the Delta tables are compacted and vacuumed, Spark purges its own directories."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import CheckpointRow, DeltaCheckpoint, DeltaTable
from pyspark_tidb_binlog.sinks.delta.findings_table import DeltaFindings
from pyspark_tidb_binlog.sinks.delta.maintenance import DeltaMaintenance, Operation, Retention
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TARGET = "target-1"
COMMITS = 3
QUICK = Retention(retention=1.0, commits=1, pause=0.0, settle=0.0)
LONGEST = 600.0
"""A commit may take so long on a loaded machine."""


def row(batch_id: int) -> CheckpointRow:
    finding = Finding(FindingKind.ROWS, "a row was not there", "`d`.`t`", tso(1000 + batch_id))
    return CheckpointRow(batch_id, tso(999 + batch_id), tso(1000 + batch_id), findings=(finding,))


def batches(spark: "SparkSession", path: str) -> list[int]:
    return sorted(r.batch_id for r in spark.read.format("delta").load(path).select("batch_id").collect())


def properties(spark: "SparkSession", path: str) -> dict[str, str]:
    return {r.key: r.value for r in spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()}


def most_tasks(spark: "SparkSession", group: str) -> int:
    """Of a stage of a job group, among those that Spark remembers."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return max(stage.numTasks for stage in stages if stage is not None)


@pytest.mark.shows("spark.delta-retention")
@pytest.mark.parametrize("with_findings", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_files_stay_bounded_and_every_batch_is_there_once(spark: "SparkSession", tmp_path: Path, with_findings: bool) -> None:
    """Over a table without its properties, a stream that reads it meanwhile, and a batch that is written again."""
    path, beside = str(tmp_path / "delta"), str(tmp_path / "delta-findings")
    relative = os.path.relpath(path)
    DeltaTable(spark, path, "query", TARGET).append([row(0)])
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES IF EXISTS ('delta.checkpointInterval')")
    reader = (
        spark.readStream.format("delta")
        .load(path)
        .writeStream.format("memory")
        .queryName("delta_reader")
        .option("checkpointLocation", str(tmp_path / "reader"))
        .trigger(processingTime="2 seconds")
        .start()
    )
    maintenance = DeltaMaintenance(spark, (relative, beside, str(tmp_path / "never made")), QUICK)
    findings = DeltaFindings(spark, beside, "query") if with_findings else None
    writer = DeltaCheckpoint(spark, relative, "query", TARGET, interval=0.0, findings=findings)
    for batch_id in range(1, COMMITS):
        writer.record(row(batch_id))
        writer.flush(LONGEST)
        if batch_id == 1:
            maintenance.look()
    writer.close(LONGEST)
    reader.processAllAvailable()
    seen = sorted(r.batch_id for r in spark.sql("SELECT batch_id FROM delta_reader").collect())
    reader.stop()
    maintenance._do(Operation.OPTIMIZE)
    time.sleep(QUICK.retention + 0.1)
    maintenance._do(Operation.VACUUM)
    for each in (path, beside) if with_findings else (path,):
        left = list(Path(each).glob("*.parquet"))
        assert len(left) == 1, "OPTIMIZE has joined them and VACUUM removed what it joined"
        assert properties(spark, each).items() >= QUICK.properties.items()
    everything = list(range(COMMITS))
    assert (batches(spark, path), seen) == (everything, everything)
    assert not with_findings or batches(spark, beside) == everything[1:]
    assert most_tasks(spark, maintenance.group) <= 10, "it runs beside the batches, on the same cores"
    DeltaTable(spark, path, "query", TARGET).append([row(COMMITS - 1)])
    assert batches(spark, path) == everything, "the table knows its txnVersion still"


def test_spark_keeps_few_batches(spark: "SparkSession", tmp_path: Path) -> None:
    """Offsets and commits; state is purged by the same number, once a minute. Fewer here than in a job, which needs fewer batches to show it."""
    kept_by = "spark.sql.streaming.minBatchesToRetain"
    assert spark.conf.get(kept_by) == "20"
    own = spark.newSession()
    own.conf.set(kept_by, "3")
    query = (
        own.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 1000)
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="0 seconds")
        .foreachBatch(lambda frame, batch_id: None)
        .start()
    )
    eventually(
        lambda: not query.isActive or (query.lastProgress or {}).get("batchId", 0) >= 9, seconds=400, seen=lambda: query.lastProgress
    )
    query.stop()
    for kept in ("offsets", "commits"):
        assert len([file for file in (tmp_path / kept).iterdir() if file.name.isdigit()]) <= 6


def test_delta_removes_its_old_log_files(spark: "SparkSession", tmp_path: Path) -> None:
    """By whole days, at a checkpoint that a later one follows: so the files are made old here, one after another, as days of running make them."""
    path = str(tmp_path / "delta")
    log = Path(path) / "_delta_log"
    table = DeltaTable(spark, path, "query", TARGET)
    table.append([row(0)])
    said = ", ".join(f"'{name}' = '{value}'" for name, value in (QUICK.properties | {"delta.checkpointInterval": "2"}).items())
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({said})")
    for batch_id in range(1, 5):
        table.append([row(batch_id)])
        if batch_id == 2:
            long_ago = time.time() - 4 * 86_400
            for age, file in enumerate(sorted(log.iterdir())):
                os.utime(file, (long_ago + age, long_ago + age))
    checkpoints = sorted(int(file.name.split(".")[0]) for file in log.glob("*.checkpoint.parquet"))
    assert min(int(file.name.split(".")[0]) for file in log.glob("*.json")) == checkpoints[0] > 0
    everything = list(range(5))
    assert batches(spark, path) == everything
    table.append([row(1)])
    assert batches(spark, path) == everything, "the table knows its txnVersion still"
