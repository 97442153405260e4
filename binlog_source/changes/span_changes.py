"""Reads a slice of a batch on an executor: Pumps -> transactions in order -> decoded changes (``change_decoder``). Shell.

Promises: a slice that is read again gives the same rows. The DDL history is read only if there is something to decode.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tidb_binlog.binlog_source.changes.change_decoder import ChangeDecoder, DecodedAs
from pyspark_tidb_binlog.binlog_source.changes.change_partition import ChangePartition
from pyspark_tidb_binlog.binlog_source.changes.known_history import known_history
from pyspark_tidb_binlog.binlog_source.changes.merged_pumps import merged
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.source.partition_rows import raw_rows_of
from pyspark_tidb_binlog.conf.model import SourceConfig


@dataclass(frozen=True, slots=True)
class ChangeReading:
    """How the slices of a query are read."""

    source: SourceConfig
    extra: StreamOptions
    decoded_as: DecodedAs


def changes_in(part: ChangePartition, reading: ChangeReading) -> Iterator[pa.RecordBatch]:
    """The changes of a slice, in order.

    Raises:
        SchemaMismatch: a DDL changed the one table that is read and schemaEvolution is fail; or a table is not in the DDL history.
    """
    decoder: ChangeDecoder | None = None
    for transactions in merged([_commits(raw_rows_of(pump, reading.source, reading.extra)) for pump in part.pumps]):
        decoder = decoder or _decoder(part, reading)
        yield from decoder.changes_of(transactions)
    if part.heartbeat:
        yield reading.decoded_as.heartbeat(part.upto_ts)


def _decoder(part: ChangePartition, reading: ChangeReading) -> ChangeDecoder:
    known = known_history(reading.source, reading.decoded_as.options)
    return ChangeDecoder(reading.decoded_as, known, known.version_at(reading.source, part.after_ts))


def _commits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Without the control rows: what was lost is in the log."""
    for batch in batches:
        control = batch.column("control")
        yield batch if control.null_count == len(batch) else batch.filter(control.is_null())
