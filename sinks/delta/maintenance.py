"""Compaction and vacuum of the Delta tables, between two commits of the background writer. [spark]

Promises: ``due`` (pure) decides when an operation runs; no operation changes a row. OPTIMIZE rewrites small files only, in a commit
without new data, so streams that read the table skip it. VACUUM removes files that no version within the retention refers to, so a reader
may lag by the retention. ``txnAppId`` and ``txnVersion`` are part of the table's state, not of its files: they survive both operations
and the clean-up of the log. A failure is logged as a warning and retried later; rows already written are not affected. An operation, which
costs seconds of CPU, waits for a stream that has little to do, by ``Retention.put_off`` at most.
"""

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.sinks.delta.checkpoint_table import SETTINGS, is_table
from pyspark_tidb_binlog.sinks.engine.spark_jvm import delta_table, frame_of

_log = logging.getLogger(__name__)

_QUIET_SECONDS, _LOOKS = 1.0, 20
"""How long, and at how many moments of it, a stream must be quiet to have little to do."""
_FIRST_SECONDS = 180.0
"""How long the first operations of a run wait for a quiet moment, at most."""


class Operation(StrEnum):
    """An operation on a table, as named by ``DESCRIBE HISTORY``."""

    OPTIMIZE = "OPTIMIZE"
    VACUUM = "VACUUM"


@dataclass(frozen=True, slots=True)
class Retention:
    """Intervals and retention. Times in seconds."""

    retention: float
    """How long a file or log entry is kept that the current version does not need; Delta removes log entries by whole days."""
    commits: int = 100
    """Commits between two OPTIMIZE."""
    pause: float = 300.0
    """Minimum interval between two operations of the same kind."""
    settle: float = 60.0
    """Delay of the first operation after the start, which the stream needs for its own work."""
    put_off: float = 900.0
    """How long an operation that is due waits at most for a stream that has little to do."""

    @property
    def vacuum_every(self) -> float:
        """Interval between two VACUUM: a quarter of the retention, at most an hour, at least ``pause``."""
        return max(self.pause, min(3600.0, self.retention / 4))

    @property
    def properties(self) -> Mapping[str, str]:
        """The table properties that apply the same retention in Delta itself and in a VACUUM run by somebody else."""
        # Delta refuses to vacuum if the log were deleted before the files.
        kept = f"interval {math.ceil(self.retention)} seconds"
        return {
            "delta.checkpointInterval": SETTINGS["spark.databricks.delta.properties.defaults.checkpointInterval"],
            "delta.deletedFileRetentionDuration": kept,
            "delta.logRetentionDuration": kept,
        }


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds since the start and since the last operation of each kind; infinite = not yet in this run of the process."""

    start: float
    optimize: float = math.inf
    vacuum: float = math.inf
    commits: int = 0
    """Commits since the last OPTIMIZE."""


def due(since: Elapsed, bounds: Retention) -> tuple[Operation, ...]:
    """The operations to run now, in this order. Pure.

    The first OPTIMIZE of a run does not depend on the number of commits: how many small files earlier runs left is unknown, and runs too
    short to reach the number would never compact.
    """
    if since.start < bounds.settle:
        return ()
    first = math.isinf(since.optimize)
    optimize = first or (since.optimize >= bounds.pause and since.commits >= bounds.commits)
    vacuum = since.vacuum >= bounds.vacuum_every
    return (Operation.OPTIMIZE,) * optimize + (Operation.VACUUM,) * vacuum


class DeltaMaintenance:
    """Maintains the tables of one background writer, whose thread calls ``look``."""

    def __init__(self, spark: SparkSession, paths: Sequence[str], bounds: Retention, is_quiet: Callable[[], bool] = lambda: True) -> None:
        """Does not access the tables before ``look``.

        Args:
            spark: the session whose JVM works.
            paths: directories or URIs; a table need not exist yet.
            bounds: when, and what is kept.
            is_quiet: whether no batch is being applied and none is behind.
        """
        self._parent = spark
        self._is_quiet = is_quiet
        self._spark: SparkSession | None = None
        self._paths = paths
        self._bounds = bounds
        self._begun = time.monotonic()
        self._last: dict[Operation, float] = {}
        self._commits = 0
        self._due_at = math.inf
        self._ended = threading.Event()
        self.group = f"delta-maintenance-{uuid.uuid4()}"
        """Spark job group of all operations."""

    def look(self) -> None:
        """Count a commit and run the operations that are due."""
        self._commits += 1
        now = time.monotonic()
        passed = {operation: now - at for operation, at in self._last.items()}
        since = Elapsed(now - self._begun, commits=self._commits)
        since = replace(
            since,
            optimize=passed.get(Operation.OPTIMIZE, since.optimize),
            vacuum=passed.get(Operation.VACUUM, since.vacuum),
        )
        operations = due(since, self._bounds)
        if not operations:
            return
        self._due_at = min(self._due_at, now)
        # A run that is always busy may be a short one: its first operation is sooner.
        patience = self._bounds.put_off if self._last else min(self._bounds.put_off, _FIRST_SECONDS)
        if now < self._due_at + patience and not self._stays_quiet():
            return
        self._due_at = math.inf
        for operation in operations:
            self._do(operation)
            self._last[operation] = time.monotonic()
            if operation is Operation.OPTIMIZE:
                self._commits = 0

    def end(self) -> None:
        """Start no more operations and cancel the running one; safe at any time."""
        self._ended.set()
        try:
            self._parent.sparkContext.cancelJobGroup(self.group)
        except (PySparkException, Py4JError, OSError):
            _log.debug("cannot cancel the job group: Spark has stopped", exc_info=True)

    def _stays_quiet(self) -> bool:
        """A stream under load is quiet only for moments between its batches."""
        return all(self._is_quiet() and not self._ended.wait(_QUIET_SECONDS / _LOOKS) for _ in range(_LOOKS))

    def _do(self, operation: Operation) -> None:
        for path in self._paths:
            if self._ended.is_set():
                return
            try:
                self._do_to(operation, path)
            except (PySparkException, Py4JError, OSError) as error:
                if not self._ended.is_set():
                    _log.warning("%s of the Delta table %s failed and will be retried: %s", operation, path, error)

    def _do_to(self, operation: Operation, path: str) -> None:
        spark = self._session()
        if not is_table(spark, path):
            return
        spark.sparkContext.setJobGroup(self.group, f"{operation} {path}", interruptOnCancel=False)
        try:
            table = delta_table(spark, path)
            if operation is Operation.OPTIMIZE:
                self._agree(spark, table)
                table.optimize().executeCompaction()
            else:
                table.vacuum()
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description"):
                spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _agree(self, spark: SparkSession, table: Any) -> None:
        """Set the table properties if they differ: the setting was changed."""
        # Uses the absolute location: SQL takes a relative path for a table name.
        there = frame_of(spark, table.detail()).select("properties", "location").toArrow().to_pylist()[0]
        wanted = self._bounds.properties
        if wanted.items() <= dict(there["properties"]).items():
            return
        said = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
        quoted = there["location"].replace("`", "``")
        spark.sql(f"ALTER TABLE delta.`{quoted}` SET TBLPROPERTIES ({said})")

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = self._parent.newSession()
            for name, value in (SETTINGS | _SETTINGS).items():
                self._spark.conf.set(name, value)
        return self._spark


_SETTINGS = {
    # Files of this size are not compacted again: rewriting them together with each new file would rewrite the whole table every time.
    "spark.databricks.delta.optimize.minFileSize": str(16 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(64 << 20),
    # The number of tasks in which VACUUM lists the table's only directory: the default, 10,000, takes half a minute on a small machine.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    # Deletes in Spark tasks, which can be cancelled.
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}
