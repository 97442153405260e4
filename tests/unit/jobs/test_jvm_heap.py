"""When the JVM is asked to give its memory back."""

import pytest

from pyspark_tidb_binlog.jobs.spark.jvm_heap import HeapAfterBigBatches
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport


@pytest.mark.shows("known wrong: memory")
def test_once_behind_a_run_of_big_batches() -> None:
    collected: list[int] = []
    sizes = [1, 5, 101, 200, 100, 3, 0, 900, 100, 4]
    place = 0
    heap = HeapAfterBigBatches(lambda: collected.append(place), 100)
    for place, size in enumerate(sizes):
        heap.note(BatchReport(place, 0, place, 1, 1, 1, size, 1, 0))
    assert collected == [4, 8]
