"""The readers of ``format("tidb_binlog")`` that give changes: a stream, and a batch of a span of timestamps. Spark shell.

They read as those of the protocol do (``source.readers``), sorted delivery, and turn each batch's binlogs into changes on the executors
(``span_changes``). Offsets are those of the source, so a batch that is read again gives the same rows.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_tidb_binlog.binlog_source.changes.change_decoder import DecodedAs
from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions, change_options_of, reading_options
from pyspark_tidb_binlog.binlog_source.changes.change_partition import ChangePartition, change_partitions
from pyspark_tidb_binlog.binlog_source.changes.known_history import known_history
from pyspark_tidb_binlog.binlog_source.changes.span_changes import ChangeReading, changes_in
from pyspark_tidb_binlog.binlog_source.changes.table_shape import TableShape, shape_of
from pyspark_tidb_binlog.binlog_source.cluster.discovery import discovery_of
from pyspark_tidb_binlog.binlog_source.source.options import source_of, stream_options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogReader, BinlogStreamReader
from pyspark_tidb_binlog.conf.model import SourceConfig


def change_reading(options: Mapping[str, str], shape: TableShape | None) -> ChangeReading:
    """How ``options`` have changes read; ``shape``: of the one table that they name.

    Raises:
        ConfigError: an option is wrong, or nothing says where the DDL history is.
    """
    reading = reading_options(options)
    asked = change_options_of(options)
    known_history(source_of(reading), asked.ddl_history)
    return ChangeReading(source_of(reading), stream_options_of(reading), DecodedAs(asked, shape))


def asked_shape(options: Mapping[str, str]) -> TableShape | None:
    """The columns of the one table that ``options`` name, by the DDL history; None: they name none.

    Raises:
        ConfigError: there is no such table.
    """
    asked = change_options_of(options)
    if asked.table is None:
        return None
    source = source_of(reading_options(options))
    known = known_history(source, asked.ddl_history)
    version = _schema_version(asked, source)
    history = known.fresh(asked.history_timeout)
    shape = shape_of(asked.table, history, int(history.newest_version) if version is None else version, asked.invalid_dates)
    return shape if version is None else replace(shape, agreed=shape.version)


def _schema_version(asked: ChangeOptions, source: SourceConfig) -> int | None:
    """That of option schemaCommitTs, else of the start; None: the newest."""
    ts = asked.schema_ts if asked.schema_ts >= 0 else source.starting_commit_ts
    return None if ts < 0 else known_history(source, asked.ddl_history).version_at(source, ts, asked.history_timeout)


class ChangeStreamReader(BinlogStreamReader):
    """``readStream``."""

    def __init__(self, options: Mapping[str, str], shape: TableShape | None) -> None:
        super().__init__(reading_options(options))
        self._reading = change_reading(options, shape)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ChangePartition]:  # type: ignore[override]
        """The slices of the batch."""
        asked = self._reading.decoded_as.options
        return change_partitions(super().partitions(start, end), asked.read_partitions, heartbeat=asked.heartbeats)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a slice."""
        assert isinstance(partition, ChangePartition)
        return changes_in(partition, self._reading)


class ChangeReader(DataSourceReader):
    """Batch ``read`` of (startingCommitTs, endingCommitTs]; without an end up to the present."""

    def __init__(self, options: Mapping[str, str], shape: TableShape | None) -> None:
        self._options = reading_options(options)
        self._reading = change_reading(options, shape)

    def partitions(self) -> list[ChangePartition]:
        """The slices of the span."""
        options = dict(self._options)
        if not self._reading.source.ending_commit_ts:
            with closing(discovery_of(self._reading.source)) as discovery:
                options["endingcommitts"] = str(discovery.now())
        return change_partitions(BinlogReader(options).partitions(), self._reading.decoded_as.options.read_partitions, heartbeat=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a slice."""
        if not isinstance(partition, ChangePartition):
            return iter(())  # Spark's stand-in for no partitions
        return changes_in(partition, self._reading)
