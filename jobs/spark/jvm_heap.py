"""Gives back the JVM's memory after big batches. Spark shell.

Promises: after a big batch, the first small batch makes the JVM collect once. So a backlog of big batches costs one collection, and a stream without big
batches none. Without the collection the JVM keeps its largest heap for hours, because small batches never fill it.
"""

import logging
from collections.abc import Callable

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from pyspark_tidb_binlog.sinks.engine.spark_jvm import jvm_of

_log = logging.getLogger(__name__)


class HeapAfterBigBatches:
    """Knows whether a collection is due. For one thread."""

    def __init__(self, collect: Callable[[], None], big_bytes: int) -> None:
        """``collect`` makes the JVM collect; a batch with row images of more than ``big_bytes`` bytes is a big one."""
        self._collect = collect
        self._big_bytes = big_bytes
        self._due = False

    @classmethod
    def of(cls, spark: SparkSession, big_bytes: int) -> "HeapAfterBigBatches":
        """For the driver's JVM, which is the executors' as well with a local master."""
        jvm = jvm_of(spark)
        runtime = jvm.java.lang.Runtime.getRuntime()

        def collect() -> None:
            before = runtime.totalMemory()
            jvm.java.lang.System.gc()
            after = runtime.totalMemory()
            used = after - runtime.freeMemory()
            _log.info("the JVM's heap behind a big batch: %d MiB, %d of them used; before %d MiB", after >> 20, used >> 20, before >> 20)

        return cls(collect, big_bytes)

    def note(self, report: BatchReport) -> None:
        """A batch is applied."""
        if report.row_bytes > self._big_bytes:
            self._due = True
        elif self._due:
            self._due = False
            self._collect()
