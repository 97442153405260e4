"""Transactions as changes: explode -> a table for each row -> decode. Pure, except for the history that it asks.

Promises: rows of unwanted tables and operations are dropped before they are decoded. The changes of a transaction do not depend on the transactions given
with it, if earlier ones were given before. A record batch has about ten megabytes, or one row, even if rows are much longer than their binlogs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions, SchemaEvolution
from pyspark_tidb_binlog.schemas.changes.change_rows import CHANGE, Commits, change_rows, database_of, heartbeat_row
from pyspark_tidb_binlog.schemas.changes.row_choice import DdlBinlog, chosen_rows, effective_versions, output_bounds, version_after, within
from pyspark_tidb_binlog.schemas.changes.table_rows import table_heartbeat, table_rows
from pyspark_tidb_binlog.schemas.changes.table_shape import TableShape
from pyspark_tidb_binlog.schemas.ddl_jobs import DELETE_ONLY, Job, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import is_setval
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.stages import TRANSACTION

_MOST_BYTES = 32 << 20
"""About what a record batch has: a row may be decoded to a thousand times its binlog."""


class AskedHistory(Protocol):
    """A DDL history that waits until it has what a caller asks for."""

    def job(self, job_id: int) -> Job:
        """The job of a DDL binlog."""

    def covering(self, versions: Iterable[int], tables: Mapping[int, int], options: ChangeOptions) -> SchemaHistory:
        """The history with these schema versions and, if asked for, these tables; ``tables``: by id, the newest version of their rows."""


@dataclass(frozen=True, slots=True)
class DecodedAs:
    """Which changes are given, and in which columns."""

    options: ChangeOptions = field(default_factory=ChangeOptions)
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


class ChangeDecoder:
    """Decodes transactions that are given in order; its state is the schema version that the DDL binlogs have reached."""

    def __init__(self, decoded_as: DecodedAs, known: AskedHistory, version: int) -> None:
        """``version``: that of the newest DDL whose binlog precedes the first transaction."""
        self._as, self._known, self._version = decoded_as, known, version
        self._begun = False

    def changes_of(self, transactions: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The changes of ``transactions`` (``stages.RAW``, without control rows), which follow those before; they are decoded as they are asked for."""
        shape, options = self._as.shape, self._as.options
        events = explode(transactions.select(TRANSACTION.names))
        ddls = self._ddls(events.ddls)
        rows = events.rows
        effective = effective_versions(rows, ddls, self._version)
        versions = pc.unique(rows.column("schema_version")).to_pylist()
        newest = pa.table(rows.select(["table_id", "schema_version"])).group_by("table_id").aggregate([("schema_version", "max")])
        tables = dict(zip(*(newest.column(name).to_pylist() for name in ("table_id", "schema_version_max")), strict=True))
        history = self._known.covering(versions, tables, options)
        if shape is not None:
            self._require_shape(ddls, history, shape)
        self._version = version_after(self._version, ddls)
        found = list(chosen_rows(rows, effective, history, self._as.wants, options.ops))
        bounds = output_bounds(rows.num_rows, found, _MOST_BYTES)
        if shape is not None:
            return _given(table_rows(shape, history, rows, within(found, *span)) for span in pairwise(bounds))
        told = [ddl for ddl in ddls if self._is_told(ddl, history)] if "ddl" in options.ops else []
        # a DDL is a transaction of its own: it comes before the rows behind it
        at = np.searchsorted(rows.column("commit_ts").to_numpy()[bounds[1:-1]], [ddl.commit_ts for ddl in told])
        parts = [[ddl for ddl, place in zip(told, at.tolist(), strict=True) if place == number] for number in range(len(bounds) - 1)]
        commits = Commits.of(transactions)
        keyed = _given(change_rows(commits, rows, within(found, *span), of) for span, of in zip(pairwise(bounds), parts, strict=True))
        return (rows.select(CHANGE.names) for rows in keyed)

    def _ddls(self, frame: pa.RecordBatch) -> list[DdlBinlog]:
        """The DDL binlogs (``DDL_EVENT``) that have an effect, in order."""
        found = []
        for ddl in frame.to_pylist():
            query = ddl["query"].decode("utf-8", "replace")
            if is_setval(query):
                continue
            job = self._known.job(ddl["job_id"])
            if job.effective and not (job.type == JobType.DROP_COLUMN and ddl["schema_state"] == DELETE_ONLY):
                found.append(DdlBinlog(ddl["commit_ts"], job, query))
        return found

    def _is_told(self, ddl: DdlBinlog, history: SchemaHistory) -> bool:
        """Whether a DDL is of a table, or a database, that is wanted."""
        tables = history.tables_of_job(ddl.job)
        versions = (ddl.job.version - 1, ddl.job.version)
        both = [table for i in tables for version in versions if (table := history.table_at(i, version)) is not None]
        if both:
            return any(self._as.wants(table) for table in both)
        # a job without a database, as FLASHBACK CLUSTER, is about all of them
        database = database_of(ddl.job)
        return not database or self._as.options.tables.choose_database(database)

    def _require_shape(self, ddls: list[DdlBinlog], history: SchemaHistory, shape: TableShape) -> None:
        """Refuse a DDL that changed the table, among ``ddls`` or before the first transaction."""
        if self._as.options.evolution is not SchemaEvolution.FAIL:
            return
        if not self._begun:
            # the columns were taken when the query was described, which may be long before it starts
            for job in history.jobs_between(shape.version, self._version):
                if shape.changed_by(job, history):
                    raise _changed(shape, job, "finished at", job.finished_ts, job.query)
        self._begun = True
        for ddl in ddls:
            if shape.changed_by(ddl.job, history):
                raise _changed(shape, ddl.job, "at commit_ts", ddl.commit_ts, ddl.query)


def _given(pieces: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
    return (piece for piece in pieces if piece is not None and len(piece))


def _changed(shape: TableShape, job: Job, when: str, ts: int, query: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"DDL job {job.id} {when} {ts} ({as_time(ts)}) changed {shape.name}, whose columns are read as of schema version "
        f"{shape.version}: {query[:300]} -- to go on with the table as it is afterwards, start the query again with "
        f'option("schemaCommitTs", "{max(ts, job.finished_ts)}") (a stream on the same checkpoint), '
        f'or end a batch before it with option("endingCommitTs", "{ts - 1}"); to keep the columns, with option("schemaEvolution", "ignore")'
    )
