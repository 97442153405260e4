"""Reads a slice of a batch on an executor: Pumps -> transactions in order -> events -> decoded changes. Shell.

Promises: a slice that is read again gives the same rows. The schema is read from the DDL history only if there is something to decode. Rows
of tables and operations that are not wanted are dropped before they are decoded.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions, SchemaEvolution
from pyspark_tidb_binlog.binlog_source.changes.change_partition import ChangePartition
from pyspark_tidb_binlog.binlog_source.changes.change_rows import Commits, change_rows, database_of, heartbeat_row
from pyspark_tidb_binlog.binlog_source.changes.known_history import KnownHistory, known_history
from pyspark_tidb_binlog.binlog_source.changes.merged_pumps import merged
from pyspark_tidb_binlog.binlog_source.changes.row_choice import DdlBinlog, chosen_rows, effective_versions, version_after
from pyspark_tidb_binlog.binlog_source.changes.table_rows import table_heartbeat, table_rows
from pyspark_tidb_binlog.binlog_source.changes.table_shape import TableShape
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.source.partition_rows import raw_rows_of
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import DELETE_ONLY, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import is_setval
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.stages import TRANSACTION


@dataclass(frozen=True, slots=True)
class ChangeReading:
    """How the slices of a query are read."""

    source: SourceConfig
    extra: StreamOptions
    options: ChangeOptions
    shape: TableShape | None = None
    """The columns of the one table that is read; None: all tables."""

    def heartbeat(self, upto_ts: int) -> pa.RecordBatch:
        """The row after everything up to ``upto_ts``."""
        return heartbeat_row(upto_ts) if self.shape is None else table_heartbeat(self.shape, upto_ts)

    def wants(self, table: TableAt) -> bool:
        """Whether changes of a table are given."""
        if self.options.table is not None:
            return self.options.table.is_of(table.schema, table.name)
        return self.options.tables.choose(table.schema, table.name)


def changes_in(part: ChangePartition, reading: ChangeReading) -> Iterator[pa.RecordBatch]:
    """The changes of a slice, in order.

    Raises:
        SchemaMismatch: a DDL changed the one table that is read and schemaEvolution is fail; or a table is not in the DDL history.
    """
    slice_ = _Slice(reading, part.after_ts)
    for transactions in merged([_commits(raw_rows_of(pump, reading.source, reading.extra)) for pump in part.pumps]):
        if (rows := slice_.changes_of(transactions)) is not None and len(rows):
            yield rows
    if part.heartbeat:
        yield reading.heartbeat(part.upto_ts)


def _commits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Without the control rows: what was lost is in the log."""
    for batch in batches:
        control = batch.column("control")
        yield batch if control.null_count == len(batch) else batch.filter(control.is_null())


class _Slice:
    """The state of reading one slice: the schema version that its DDL binlogs have reached."""

    def __init__(self, reading: ChangeReading, after_ts: int) -> None:
        self._reading, self._after_ts = reading, after_ts
        self._known: KnownHistory | None = None
        self._version = 0

    def changes_of(self, transactions: pa.RecordBatch) -> pa.RecordBatch | None:
        """The changes of ``transactions`` (``stages.RAW``), which follow those before."""
        reading, options = self._reading, self._reading.options
        events = explode(transactions.select(TRANSACTION.names))
        known = self._history()
        ddls = self._ddls(events.ddls, known)
        rows = events.rows
        effective = effective_versions(rows, ddls, self._version)
        versions = pc.unique(rows.column("schema_version")).to_pylist()
        history = known.covering(versions, pc.unique(rows.column("table_id")).to_pylist(), options)
        self._version = version_after(self._version, ddls)
        if reading.shape is not None:
            self._require_shape(ddls, history, reading.shape)
            found = chosen_rows(rows, effective, history, reading.wants, options.ops)
            return table_rows(reading.shape, rows, found)
        found = chosen_rows(rows, effective, history, reading.wants, options.ops)
        told = [ddl for ddl in ddls if self._is_told(ddl, history)] if "ddl" in options.ops else []
        return change_rows(Commits.of(transactions), rows, found, told)

    def _history(self) -> KnownHistory:
        if self._known is None:
            reading = self._reading
            self._known = known_history(reading.source, reading.options.ddl_history)
            self._version = self._known.version_at(reading.source, self._after_ts, reading.options.history_timeout)
        return self._known

    def _ddls(self, frame: pa.RecordBatch, known: KnownHistory) -> list[DdlBinlog]:
        """The DDL binlogs (``DDL_EVENT``) that have an effect, in order."""
        found = []
        for ddl in frame.to_pylist():
            query = ddl["query"].decode("utf-8", "replace")
            if is_setval(query):
                continue
            job = known.job(ddl["job_id"], self._reading.options.history_timeout)
            if job.effective and not (job.type == JobType.DROP_COLUMN and ddl["schema_state"] == DELETE_ONLY):
                found.append(DdlBinlog(ddl["commit_ts"], job, query))
        return found

    def _is_told(self, ddl: DdlBinlog, history: SchemaHistory) -> bool:
        """Whether a DDL is of a table, or a database, that is wanted."""
        tables = history.tables_of_job(ddl.job)
        versions = (ddl.job.version - 1, ddl.job.version)
        both = [table for i in tables for version in versions if (table := history.table_at(i, version)) is not None]
        if both:
            return any(self._reading.wants(table) for table in both)
        return self._reading.options.tables.choose_database(database_of(ddl.job))

    def _require_shape(self, ddls: list[DdlBinlog], history: SchemaHistory, shape: TableShape) -> None:
        if self._reading.options.evolution is not SchemaEvolution.FAIL:
            return
        for ddl in ddls:
            if shape.changed_by(ddl.job, history):
                raise SchemaMismatch(
                    f"DDL job {ddl.job.id} at commit_ts {ddl.commit_ts} ({as_time(ddl.commit_ts)}) changed {shape.name}, whose columns are "
                    f"read as of schema version {shape.version}: {ddl.query[:300]} -- to go on with the table as it is afterwards, start the "
                    f'query again with option("schemaCommitTs", "{max(ddl.commit_ts, ddl.job.finished_ts)}") on the same checkpoint; to keep the '
                    'columns, with option("schemaEvolution", "ignore")'
                )
