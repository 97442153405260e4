"""Files stay bounded: Spark purges its own directories. The Delta tables: ``test_delta_checkpoint.py`` and ``unit/sinks/test_appended_table.py``."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


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
