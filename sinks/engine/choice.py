"""Applies the filters to steps: decides once per table and schema version, before any row is decoded. Pure.

Promises: every target gets the same decision. Filters see the upstream's table names, at the schema version that the target has.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.loopback import MarkTables
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep, RowsStep, SetVal
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import column_names

_NO_MARKS = MarkTables()


@dataclass(frozen=True, slots=True)
class NeverKept:
    """Tables that are not replicated under any name that a history knows: their rows are dropped unread. Picklable."""

    table_ids: frozenset[int] = frozenset()
    upto_version: int = 0
    """Rows of a newer schema version are kept: the history may lack the job that renames their table."""
    marks: MarkTables = _NO_MARKS
    """Tables that are not replicated, but read."""

    @classmethod
    def of(cls, history: SchemaHistory, selection: Selection, marks: MarkTables = _NO_MARKS) -> "NeverKept":
        """Those of ``history``, but for ``marks``."""
        return cls(selection.never_kept(history) - marks.table_ids, history.newest_version, marks)

    def dropped(self, rows: pa.Table) -> pa.Table:
        """``rows`` (``ROW_EVENT``) without theirs."""
        if not self.table_ids or not rows.num_rows:
            return rows
        theirs = np.isin(rows.column("table_id").to_numpy(), list(self.table_ids))
        if not theirs.any():
            return rows  # without a copy
        return rows.filter(pa.array(~(theirs & (rows.column("schema_version").to_numpy() <= self.upto_version))))


ALL_KEPT = NeverKept()


def chosen(step: RowsStep, selection: Selection) -> RowsStep:
    """``step`` without the tables that are not replicated, and with the operations that rules leave out."""
    tables = {i: table for i, table in step.tables.items() if selection.keeps(table)}
    gone = step.gone | (step.tables.keys() - tables.keys())
    return replace(step, tables=tables, gone=gone, left_out=selection.ignored_rows(tables.values()))


def routed(step: RowsStep, selection: Selection) -> RowsStep:
    """``step`` with its tables, which have the upstream's names, under those that they have at the target."""
    return replace(step, tables=selection.routes.all_moved(step.tables))


def chosen_setvals(step: RowsStep, history: SchemaHistory, selection: Selection) -> tuple[SetVal, ...]:
    """Those of ``step`` whose sequences are replicated, under the target's names. TiDB writes names in lower case, however a sequence was created."""
    known = {(s.schema, s.name): history.find(s.schema, s.name, step.applied.version) for s in step.setvals}
    named = ((at.schema, at.name, s.value) if (at := known[s.schema, s.name]) else (s.schema, s.name, s.value) for s in step.setvals)
    kept = ((selection.routes.target(schema, name), value) for schema, name, value in named if selection.tables.keeps(schema, name))
    return tuple(SetVal(to.schema, to.name, value) for to, value in kept)


def decided(step: DdlStep, history: SchemaHistory, selection: Selection) -> DdlStep:
    """``step`` with what the filters make of it."""
    job = step.job
    ids = history.tables_of_job(job)
    before = [t for i in ids if (t := step.before.table(i, history)) is not None]
    after = [t for i in ids if (t := history.table_at(i, job.version)) is not None]
    if (restored := history.restored_by(job)) is not None:
        before = [restored[0]]
    others: tuple[TableAt, ...] = ()
    if selection.routes:
        others = tuple(
            t for i in sorted(history.tracks) if i not in ids and (t := step.before.table(i, history)) is not None and selection.keeps(t)
        )
    known = {t.table_id: column_names(history, t) for t in after if selection.routes.columns_of(t)}
    return replace(step, decision=selection.decide(job, schema_of(step, history), before, after, others, known))


def schema_of(step: DdlStep, history: SchemaHistory) -> str:
    """The database of the job; empty if it has none."""
    job = step.job
    if job.db_info is not None and job.db_info.name:
        return job.db_info.name
    found = history.schema_at(job.schema_id, job.version) or history.schema_at(job.schema_id, step.before.version)
    return found.name if found else job.schema_name
