"""Uses each feature of Spark that jobs need, so that the JVM can archive the loaded classes; ``class_archive`` runs it once. [spark]

Promises: leaves nothing behind, except the archive that the JVM writes. Its success also shows that Spark, Delta and Python workers run.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.jobs.spark.pyspark_insides import end_jvm
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session

_ARCHIVE_SECONDS = 300.0


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, unchanged."""
    yield from batches


def warm(spark: SparkSession, scratch: Path) -> int:
    """Run a stateful stream through a Python worker into Delta; returns the number of rows that arrived."""
    table = str(scratch / "table")

    def append(batch: DataFrame, number: int) -> None:
        rows = batch.toArrow().num_rows
        batch.sparkSession.createDataFrame([(number, rows)], "batch LONG, rows LONG").write.format("delta").mode("append").save(table)

    spark.range(100).write.parquet(str(scratch / "input"))
    numbers = spark.readStream.schema("id LONG").parquet(str(scratch / "input"))
    query = (
        numbers.mapInArrow(same, "id LONG")
        .dropDuplicates(["id"])
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    total: int = spark.read.format("delta").load(table).selectExpr("sum(rows)").collect()[0][0]
    return total


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tbs-warm-") as scratch:
        session = build_session("warm-up", master="local[2]")
        arrived = warm(session, Path(scratch))
        session.stop()
        # The JVM writes its archive when it exits.
        end_jvm(_ARCHIVE_SECONDS)
    sys.exit(arrived != 100)
