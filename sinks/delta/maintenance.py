"""Compaction and vacuum of the Delta tables, between two commits of the background writer. [spark]

Promises: when something is done is decided by ``due`` (pure); what is done changes no row. OPTIMIZE rewrites small files only, in a commit
without new data, so streams that read the table pass over it; VACUUM removes what no version within the retention names, so a reader
may be that late. ``txnAppId`` and ``txnVersion`` live in the table's state, not in its files: they outlive both, and the clean-up of the log.
What fails here is a warning and is tried again later: the rows are in.
"""

import logging
import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sinks.delta.checkpoint_table import SETTINGS, is_table

if TYPE_CHECKING:
    from delta.tables import DeltaTable

_log = logging.getLogger(__name__)


class Operation(StrEnum):
    """What is done to a table, as ``DESCRIBE HISTORY`` names it."""

    OPTIMIZE = "OPTIMIZE"
    VACUUM = "VACUUM"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How often, and what is kept. Seconds."""

    retention: float
    """A file or log entry that no current version needs is kept this long; Delta removes log entries by whole days."""
    commits: int = 100
    """OPTIMIZE after so many."""
    pause: float = 300.0
    """At least between two of the same kind."""
    settle: float = 60.0
    """After the start nothing is done for so long: the stream has other work then."""

    @property
    def vacuum_every(self) -> float:
        """A quarter of the retention, an hour at most."""
        return max(self.pause, min(3600.0, self.retention / 4))

    @property
    def properties(self) -> Mapping[str, str]:
        """The table properties that say the same to Delta and to whoever else runs VACUUM."""
        # Delta refuses to vacuum where the log would be gone before the files.
        kept = f"interval {math.ceil(self.retention)} seconds"
        return {
            "delta.checkpointInterval": SETTINGS["spark.databricks.delta.properties.defaults.checkpointInterval"],
            "delta.deletedFileRetentionDuration": kept,
            "delta.logRetentionDuration": kept,
        }


@dataclass(frozen=True, slots=True)
class Since:
    """What has happened since. Seconds; infinite = not yet in this life of the process."""

    start: float
    optimize: float = math.inf
    vacuum: float = math.inf
    commits: int = 0
    """Since the last OPTIMIZE."""


def due(since: Since, bounds: Bounds) -> tuple[Operation, ...]:
    """What is to be done now, in this order. Pure.

    The first time of a life needs no number of commits: nobody knows how many a life before has left, and one that never lives
    long enough to count to a hundred would leave files for ever.
    """
    if since.start < bounds.settle:
        return ()
    first = math.isinf(since.optimize)
    optimize = first or (since.optimize >= bounds.pause and since.commits >= bounds.commits)
    vacuum = since.vacuum >= bounds.vacuum_every
    return (Operation.OPTIMIZE,) * optimize + (Operation.VACUUM,) * vacuum


class DeltaMaintenance:
    """The tables of one background writer, from whose thread ``look`` is called."""

    def __init__(self, spark: SparkSession, paths: Sequence[str], bounds: Bounds) -> None:
        """Nothing is touched before ``look``. ``paths`` are directories or URIs; a table need not be there yet."""
        self._parent = spark
        self._spark: SparkSession | None = None
        self._paths = paths
        self._bounds = bounds
        self._begun = time.monotonic()
        self._last: dict[Operation, float] = {}
        self._commits = 0
        self._ended = threading.Event()
        self.group = f"delta-maintenance-{uuid.uuid4()}"
        """Spark's job group of all that is done here."""

    def look(self) -> None:
        """Count a commit, and do what is due."""
        self._commits += 1
        now = time.monotonic()
        passed = {operation: now - at for operation, at in self._last.items()}
        since = Since(now - self._begun, commits=self._commits)
        since = replace(
            since,
            optimize=passed.get(Operation.OPTIMIZE, since.optimize),
            vacuum=passed.get(Operation.VACUUM, since.vacuum),
        )
        for operation in due(since, self._bounds):
            self._do(operation)
            self._last[operation] = time.monotonic()
            if operation is Operation.OPTIMIZE:
                self._commits = 0

    def end(self) -> None:
        """Nothing more is done, and what runs is broken off; either is safe at any moment."""
        self._ended.set()
        try:
            self._parent.sparkContext.cancelJobGroup(self.group)
        except (PySparkException, Py4JError, OSError):
            _log.debug("Spark is gone", exc_info=True)

    def _do(self, operation: Operation) -> None:
        for path in self._paths:
            if self._ended.is_set():
                return
            try:
                self._do_to(operation, path)
            except (PySparkException, Py4JError, OSError) as error:
                if not self._ended.is_set():
                    _log.warning("%s of the Delta table %s failed and is tried again later: %s", operation, path, error)

    def _do_to(self, operation: Operation, path: str) -> None:
        from delta.tables import DeltaTable

        spark = self._session()
        if not is_table(spark, path):
            return
        spark.sparkContext.setJobGroup(self.group, f"{operation} {path}", interruptOnCancel=False)
        try:
            table = DeltaTable.forPath(spark, path)
            if operation is Operation.OPTIMIZE:
                self._agree(spark, table)
                table.optimize().executeCompaction()
            else:
                table.vacuum()
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description"):
                spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _agree(self, spark: SparkSession, table: "DeltaTable") -> None:
        """Table properties, where they are not as they must be: the setting was changed, or an earlier release made the table."""
        # Not by the path as it was given: SQL takes a relative one for a table of that name.
        there = table.detail().select("properties", "location").toArrow().to_pylist()[0]
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
    # A file of this size is left alone: to join it with the newest again and again would write the whole table each time.
    "spark.databricks.delta.optimize.minFileSize": str(16 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(64 << 20),
    # VACUUM lists the one directory of a table in so many tasks: 10,000 by default, half a minute of a small machine.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    # As tasks of Spark, which can be broken off.
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}
