"""Copies one range of a table in chunks: reads a chunk at the snapshot and writes it to the target. [db]

Promises: a chunk is ONE transaction of the target, with a check of the lease and the record of how far the range is copied. So each row is written
exactly once, however often the process is killed. Rows are written with a plain INSERT into a table that was empty. If the server refuses, skips or
changes a row, an error names the table. Memory holds one statement (about 1 MiB, or one row) at a time.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError
from pyspark_tidb_binlog.schemas.findings import in_words
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopiedRange, CopyRecord
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import chunk_sql
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, handle_of
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import cells_of, expression, form_of, whole
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name, write_head
from pyspark_tidb_binlog.sinks.mysql.effects import judge, noted
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.lease_guard import fenced
from pyspark_tidb_binlog.sinks.mysql.literals import join_cells
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, noted_in
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, Sessions
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Origin, Phase, RowTexts, Statement

_log = logging.getLogger(__name__)

_FIRST_ROWS, _MOST_ROWS = 500, 20_000
"""Rows of a chunk: the first one, and any."""
_CHUNK_BYTES = 16 * 1024 * 1024
"""About what a chunk has."""
_MOST_CHUNK_BYTES = 2 * _CHUNK_BYTES
"""Bytes after which a chunk ends, when its rows are bigger than those before."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One table that is copied. Picklable."""

    source: TableAt
    """As it is upstream."""
    target: TableAt
    """Under its name at the target, with the columns that are written there."""
    where: str = ""
    """Which rows are replicated, as Spark SQL; empty = all."""

    @property
    def columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that are copied, as they are upstream."""
        wanted = {c.name.lower() for c in self.target.info.target_columns()}
        return tuple(c for c in self.source.info.target_columns() if c.name.lower() in wanted)

    @property
    def read(self) -> tuple[ColumnInfo, ...]:
        """The columns that are read: a condition may need others than are written."""
        return self.source.info.target_columns() if self.where else self.columns


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """The upstream at the snapshot, and the target's settings. Picklable."""

    upstream: SnapshotSource
    ts: int
    apply: ApplyConfig
    lease: Lease
    limits: PlanLimits


Hidden = Callable[[Columns], frozenset[int]]
"""Given rows with ``CopyPlan.read``, the numbers of the rows that are not replicated."""


@dataclass(frozen=True, slots=True)
class RangeCopy:
    """Copies ranges of one table, read by ``sources`` at the snapshot."""

    place: CopyPlace
    plan: CopyPlan
    sources: KeptSessions
    hidden: Hidden | None = None
    """None: all rows are replicated."""

    def run(self, part: CopiedRange, sessions: Sessions, policy: RetryPolicy) -> Iterator[int]:
        """Copy a range to its end; yields the rows of each chunk once it is committed."""
        limit = _FIRST_ROWS
        while True:
            for attempt in retrying(policy):
                with attempt, fenced(sessions, self.place.lease, attempt) as session:
                    rows, size, done = self._chunk(session, part, limit)
            failpoints.point("after-bootstrap-chunk")
            yield rows
            if done:
                return
            limit = max(min(limit * 8, _MOST_ROWS, _CHUNK_BYTES // max(size // max(rows, 1), 1)), 1)

    def _chunk(self, session: Session, part: CopiedRange, limit: int) -> tuple[int, int, bool]:
        """Copy the next rows of a range, at most ``limit``, in the caller's transaction: rows, bytes, and whether the range is copied completely then."""
        record = CopyRecord(session, self.place.lease.cluster_id, self.place.lease.schema)
        part = record.locked_range(part, self.place.ts)
        if part.done:
            return 0, 0, True
        source_table, handle = self.plan.source, handle_of(self.plan.source.info.handle_columns())
        asked = [expression(c) for c in self.plan.read]
        sql = chunk_sql(table_name(source_table.schema, source_table.name), asked, handle, part.within, part.after, limit)
        last, read, rows, size = part.after, 0, 0, 0
        with self.place.upstream.at(self.place.ts, self.sources) as source, source.stream(sql) as blocks:
            for block in blocks:
                for statement in self._statements(session, block[: len(asked)]):
                    self._insert(session, statement)
                    rows += statement.rows
                    size += len(statement.sql)
                last = tuple(whole(cells)[0] for cells in cells_of(handle.forms, [column[-1:] for column in block[len(asked) :]]))
                read += len(block[-1])
                if size >= _MOST_CHUNK_BYTES:
                    break
        done = read < limit and size < _MOST_CHUNK_BYTES
        record.advance(part, last, rows, done=done)
        failpoints.point("before-bootstrap-commit")
        return rows, size, done

    def _statements(self, session: Session, read: Columns) -> Iterator[Statement]:
        """The INSERTs of the rows that are replicated."""
        columns, places = self.plan.columns, {c.id: place for place, c in enumerate(self.plan.read)}
        values = [read[places[c.id]] for c in columns]
        if self.hidden is not None and (hidden := self.hidden(read)):
            shown = pa.array(np.isin(np.arange(len(read[0])), list(hidden), invert=True))
            values = [column.filter(shown) for column in values]
        count = len(values[0])
        if not count:
            return
        cells = cells_of(tuple(map(form_of, columns)), values)
        texts = join_cells(b"(", cells, [b","] * (len(cells) - 1), b"),")
        zeros = [(c.name, _zeros(values[i])) for i, c in enumerate(columns) if c.tp == ColumnType.ENUM]
        target, limits = self.plan.target, self.place.limits
        origin = Origin(table_name(target.schema, target.name), target.version, tuple(c.name for c in columns), ())
        shape = Statement(write_head(target.schema, target.name, origin.columns), 0, Phase.WRITE, Effect.ADDS, origin)
        notes = noted_in(zip(columns, values, strict=True), session.flavour)
        yield from RowTexts(shape, b"", texts, np.full(count, self.place.ts), limits.max_rows, zeros, notes).split(limits.max_bytes)

    def _insert(self, session: Session, statement: Statement) -> None:
        label = self.plan.source.label
        try:
            found = judge(statement, session.answer(statement.sql))
        except ApplyError as error:
            raise type(error)(f"{label} cannot be copied: {error}", error.errno, error.words, error.where) from error
        if notes := noted(statement):
            _log.warning("%s (%d such rows in one statement)", in_words(notes[0], self.place.apply.log_row_data), len(notes))
        if found:
            raise FindingError(
                f"{label} cannot be copied to {statement.origin.table} exactly: {found[0].words}. Compare the definitions of the two tables. Or drop the "
                "target's table and start with --bootstrap-restart, which creates it as it is upstream"
            )


def _zeros(numbers: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found: np.ndarray[Any, np.dtype[np.bool_]] = pc.fill_null(pc.equal(numbers, pa.scalar(b"0", pa.binary())), False).to_numpy(
        zero_copy_only=False
    )
    return found
