"""Gives back the JVM's memory after big batches. Spark shell.

Promises: a JVM that has grown for a big batch is asked to collect once, after the first small batch behind it; so a backlog, which is big batch
after big batch, costs one collection, and a stream without big batches none. Without that the JVM keeps its largest heap for hours, because
small batches never fill it.
"""

from collections.abc import Callable

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport


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
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        return cls(lambda: jvm.java.lang.System.gc(), big_bytes)

    def note(self, report: BatchReport) -> None:
        """A batch is applied."""
        if report.row_bytes > self._big_bytes:
            self._due = True
        elif self._due:
            self._due = False
            self._collect()
