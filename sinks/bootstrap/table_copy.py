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
from pyspark_tidb_binlog.sinks.bootstrap import copy_record
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopiedRange
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import chunk_sql
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, handle_of
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import cells_of, expression, form_of, whole
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name, write_head
from pyspark_tidb_binlog.sinks.mysql.effects import judge, noted
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.leased_target import fenced
from pyspark_tidb_binlog.sinks.mysql.literals import join_cells
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, noted_in
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns
from pyspark_tidb_binlog.sinks.mysql.session import PACKET_TOO_LARGE, KeptSessions, Session, Sessions
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Origin, Phase, RowTexts, Statement

_log = logging.getLogger(__name__)

_FIRST_ROWS, _MOST_ROWS = 500, 20_000
"""Rows of a chunk: the first one, and any."""
_CHUNK_BYTES = 16 * 1024 * 1024
"""About what a chunk has."""
_MOST_CHUNK_BYTES = 2 * _CHUNK_BYTES
"""Bytes after which a chunk ends, when its rows are bigger than those before."""
_DOUBTFUL = frozenset({ColumnType.ENUM})


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

    @property
    def label(self) -> str:
        """Its name upstream."""
        return f"{self.source.schema}.{self.source.name}"


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """The upstream at the snapshot, and the target's settings. Picklable."""

    upstream: SnapshotSource
    ts: int
    apply: ApplyConfig
    lease: Lease
    limits: PlanLimits

    @property
    def record(self) -> tuple[int, str]:
        """Cluster and schema of the record."""
        return self.lease.cluster_id, self.lease.schema


Hidden = Callable[[Columns], frozenset[int]]
"""Given rows with ``CopyPlan.read``, the numbers of the rows that are not replicated."""


def copy_range(
    place: CopyPlace,
    plan: CopyPlan,
    part: CopiedRange,
    sources: KeptSessions,
    sessions: Sessions,
    policy: RetryPolicy,
    hidden: Hidden | None = None,
) -> Iterator[int]:
    """Copy a range, read by ``sources`` at the snapshot, to its end; yields the rows of each chunk once it is committed. ``hidden`` None: all rows are replicated."""
    limit = _FIRST_ROWS
    while True:
        chunk = _Chunk(place, plan, part, limit, hidden, sources)
        for attempt in retrying(policy):
            with attempt, fenced(sessions, place.lease, attempt) as session:
                done = chunk.run(session)
        failpoints.point("after-bootstrap-chunk")
        yield chunk.rows
        if done:
            return
        each = max(chunk.bytes // max(chunk.rows, 1), 1)
        limit = max(min(limit * 8, _MOST_ROWS, _CHUNK_BYTES // each), 1)


class _Chunk:
    """The next rows of a range, in a transaction with the lease checked (``fenced``), which may be tried several times."""

    def __init__(
        self, place: CopyPlace, plan: CopyPlan, part: CopiedRange, limit: int, hidden: Hidden | None, sources: KeptSessions
    ) -> None:
        self._place = place
        self._plan = plan
        self._part = part
        self._limit = limit
        self._hidden = hidden
        self._sources = sources
        self._columns = plan.columns
        self._forms = tuple(map(form_of, self._columns))
        self._taken = tuple(plan.read.index(column) for column in self._columns)
        self.rows = 0
        self.bytes = 0

    def run(self, session: Session) -> bool:
        """Whether the range is copied completely then."""
        self.rows = self.bytes = count = 0
        place = self._place
        part = copy_record.lock_range(session, *place.record, self._part, place.ts)
        if part.done:
            return True
        handle = handle_of(self._plan.source.info.handle_columns())
        asked = [expression(c) for c in self._plan.read]
        sql = chunk_sql(
            table_name(self._plan.source.schema, self._plan.source.name),
            asked,
            handle,
            part.within,
            part.after,
            self._limit,
        )
        last = part.after
        with place.upstream.at(place.ts, self._sources) as source, source.stream(sql) as blocks:
            for block in blocks:
                self._write(session, block[: len(asked)])
                last = tuple(whole(cells)[0] for cells in cells_of(handle.forms, [column[-1:] for column in block[len(asked) :]]))
                count += len(block[-1])
                if self.bytes >= _MOST_CHUNK_BYTES:
                    break
        done = count < self._limit and self.bytes < _MOST_CHUNK_BYTES
        copy_record.advance(session, *place.record, part, last, (self.rows, self.bytes), done=done)
        failpoints.point("before-bootstrap-commit")
        return done

    def _write(self, session: Session, read: Columns) -> None:
        hidden = self._hidden(read) if self._hidden is not None else ()
        values = [read[i] for i in self._taken]
        if hidden:
            shown = pa.array(np.isin(np.arange(len(read[0])), list(hidden), invert=True))
            values = [column.filter(shown) for column in values]
        count = len(values[0])
        if not count:
            return
        cells = cells_of(self._forms, values)
        between = [b","] * (len(cells) - 1)
        texts = join_cells(b"(", cells, between, b"),")
        zeros = [(c.name, _zeros(values[i])) for i, c in enumerate(self._columns) if c.tp in _DOUBTFUL]
        target = self._plan.target
        origin = Origin(table_name(target.schema, target.name), target.version, tuple(c.name for c in self._columns), ())
        shape = Statement(write_head(target.schema, target.name, origin.columns), 0, Phase.WRITE, Effect.ADDS, origin)
        notes = noted_in(zip(self._columns, values, strict=True), session.flavour)
        rows = RowTexts(shape, b"", texts, np.full(count, self._place.ts), self._place.limits.max_rows, zeros, notes)
        for statement in rows.split(self._place.limits.max_bytes):
            self._insert(session, statement)
            self.bytes += len(statement.sql)
        self.rows += count

    def _insert(self, session: Session, statement: Statement) -> None:
        if words := session.too_large(statement.sql):
            raise ApplyError(f"{self._plan.label} cannot be copied: {words}", PACKET_TOO_LARGE)
        try:
            found = judge(statement, session.answer(statement.sql))
        except ApplyError as error:
            raise type(error)(f"{self._plan.label} cannot be copied: {error}", error.errno, error.words, error.where) from error
        if notes := noted(statement):
            _log.warning("%s (%d such rows in one statement)", in_words(notes[0], self._place.apply.log_row_data), len(notes))
        if found:
            raise FindingError(
                f"{self._plan.label} cannot be copied to {statement.origin.table} exactly: {found[0].words}. Compare the definitions of the two tables. Or drop the "
                "target's table and start with --bootstrap-restart, which creates it as it is upstream"
            )


def _zeros(numbers: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found: np.ndarray[Any, np.dtype[np.bool_]] = pc.fill_null(pc.equal(numbers, pa.scalar(b"0", pa.binary())), False).to_numpy(
        zero_copy_only=False
    )
    return found
