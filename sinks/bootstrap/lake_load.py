"""Reads whole tables of the upstream at one moment into files of a lake's mirrors. [db, spark]

Promises: reads only, and writes only files that no commit knows. A value is what the ledger's decoder makes of the same value in a row image
(``schemas.changes.typed_cells``): TiDB's text of it is the image's. GC stays behind the moment while tables are read, if PD is the registry.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException

from pyspark_tidb_binlog.schemas.changes.json_texts import documents_as
from pyspark_tidb_binlog.schemas.errors import ApplyError, BootstrapRefused, ConfigError, RetryableApplyError, SnapshotCollected, Stopped
from pyspark_tidb_binlog.schemas.events import as_time, physical_ms
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.stages import ddl_of
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import unless_stopped
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import KeyRange
from pyspark_tidb_binlog.sinks.bootstrap.mirror_rows import mirror_rows, ranges_of
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SchemaMoves, SnapshotSource
from pyspark_tidb_binlog.sinks.engine.spark_jvm import SPARK_FAULTS, has_ended
from pyspark_tidb_binlog.sinks.lake.lake_table import FULL, PARTS, WrittenPart, parts_in, row_of, written_files
from pyspark_tidb_binlog.sinks.lake.mirror_round import LoadLater
from pyspark_tidb_binlog.sinks.lake.mirrors import TablesThen
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, Attempt, RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, session_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_FRESH_MS = 60_000
"""The age of a moment up to which it is not the stream that is late."""
_SLICE = 0.1


@dataclass(frozen=True, slots=True)
class LakeLoad:
    """The upstream of a lake's tables."""

    source: Callable[[], SnapshotSource]
    """Raises an error if the settings name none, or that of another cluster."""
    held: Callable[[int], AbstractContextManager[object]]
    """Keeps GC behind a ts."""
    spark: "SparkSession | None" = None
    """By whose executors big tables are read; None: none."""

    @contextmanager
    def at(self, ts: int, stopped: Callable[[], bool]) -> Iterator[TablesThen]:
        """The tables at ``ts``; ``stopped``: whether the read is to end.

        Raises:
            LoadLater: there is no upstream, or it cannot be read at ``ts``.
        """
        try:
            source = self.source()
        except (ConfigError, BootstrapRefused, ApplyError) as error:
            raise LoadLater(str(error)) from error
        with self.held(ts), closing(source.sessions_at(ts)) as sessions:
            try:
                with source.at(ts, sessions) as session:
                    ids = source.table_ids(session)
            except SnapshotCollected as error:
                raise _collected(ts) from error
            except (BootstrapRefused, ApplyError) as error:
                raise LoadLater(str(error)) from error
            yield _UpstreamThen(source, ts, sessions, ids, stopped, self.spark)


class _UpstreamThen:
    def __init__(
        self,
        source: SnapshotSource,
        ts: int,
        sessions: KeptSessions,
        ids: dict[tuple[str, str], int],
        stopped: Callable[[], bool],
        spark: "SparkSession | None",
    ) -> None:
        self._source, self._ts, self._sessions, self._ids, self._stopped, self._spark = source, ts, sessions, ids, stopped, spark
        self._fresh = time.time() * 1000 - physical_ms(ts) < _FRESH_MS
        """Whether the moment is near the present, and no table was read at it before."""

    def files_of(self, table: TableAt, uri: str, stored: pa.Schema) -> Sequence[WrittenPart]:
        """All rows of ``table`` (``TablesThen.files_of``)."""
        fresh, self._fresh = self._fresh, False
        mirror = _Mirror(table, uri, stored)
        try:
            for attempt in self._retrying():
                with attempt, self._at(attempt) as session:
                    ranges = ranges_of(self._source, session, table, self._ids)
            tasks = self._spark.sparkContext.defaultParallelism // 2 if self._spark is not None else 0
            # One region gives two ranges. The other half of the slots is left to the stream.
            if len(ranges) > 2 and tasks:
                return self._by_executors(mirror, [ranges[task::tasks] for task in range(min(tasks, len(ranges)))])
            return [part for within in ranges for part in self._read(mirror, within)]
        except (SchemaMoves, RetryableApplyError) as error:
            raise LoadLater(str(error)) from error
        except SPARK_FAULTS as error:
            if self._spark is None or not has_ended(self._spark):
                raise
            raise LoadLater("Spark has ended; the next start loads it") from error
        except SnapshotCollected as error:
            if not fresh:
                raise _collected(self._ts) from error
            raise BootstrapRefused(
                "GC of the upstream passed the moment while the table was read: raise tidb_gc_life_time, and have it loaded again"
            ) from error

    def _read(self, mirror: "_Mirror", within: KeyRange) -> list[WrittenPart]:
        for attempt in self._retrying():
            with attempt, self._at(attempt) as session:
                written = list(mirror.written(session, within, self._stopped))
        return written

    def _by_executors(self, mirror: "_Mirror", tasks: Sequence[Sequence[KeyRange]]) -> list[WrittenPart]:
        assert self._spark is not None
        source, ts = self._source, self._ts

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            sessions = source.sessions_of_process(ts)
            for batch in batches:
                for within in (one for number in batch.column(0).to_pylist() for one in tasks[number]):
                    for attempt in retrying(FEW):
                        with attempt, session_for(partial(source.at, ts, sessions), attempt) as session:
                            written = list(mirror.written(session, within, lambda: False))
                    yield from map(row_of, written)

        frame = self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, ddl_of(PARTS))
        try:
            return parts_in(unless_stopped(self._spark, self._stopped, frame.toArrow))
        except PySparkException as error:
            if self._stopped():
                raise _stop() from error
            # An executor's error comes as text.
            known = next((kind for kind in (SnapshotCollected, RetryableApplyError) if kind.__name__ in str(error)), None)
            if known is not None:
                raise known(f"the executors could not read {mirror.table.schema}.{mirror.table.name} at {ts}") from error
            raise

    def _retrying(self) -> Iterator[Attempt]:
        return retrying(RetryPolicy(pause=self._pause))

    def _at(self, attempt: Attempt) -> AbstractContextManager[Session]:
        return session_for(partial(self._source.at, self._ts, self._sessions), attempt)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._stopped():
                raise _stop()
            time.sleep(min(_SLICE, left))


@dataclass(frozen=True, slots=True)
class _Mirror:
    """The mirror that a table goes to; picklable."""

    table: TableAt
    uri: str
    stored: pa.Schema

    def written(self, session: Session, within: KeyRange, stopped: Callable[[], bool]) -> Iterator[WrittenPart]:
        """The rows of a range, in files."""
        return written_files(self.uri, self.stored, self._rows(session, within, stopped), FULL)

    def _rows(self, session: Session, within: KeyRange, stopped: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        for rows in mirror_rows(session, self.table, within):
            if stopped():
                raise _stop()
            cells = [documents_as(found, field.type) for found, field in zip(rows.columns, self.stored, strict=True)]
            yield pa.RecordBatch.from_arrays(cells, schema=self.stored)


def _collected(ts: int) -> LoadLater:
    return LoadLater(f"GC of the upstream has passed the moment ({as_time(ts)}): a later one is tried")


def _stop() -> Stopped:
    return Stopped("stopped while tables were being loaded; the next start loads them from their beginnings")
