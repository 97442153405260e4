"""Chooses what of a step is replicated: decides once per table and schema version, before any row is decoded. Finds what came back in a ring. Pure.

Promises: every target gets the same decision. Filters see the upstream's table names, at the schema version that the target has.

In a ring, transactions that carry a mark of our channel came back (drainer.md 7). One image of the mark table with our channel is enough, whatever the
operation. Pieces of a transaction are joined by commit_ts, because only one piece has the mark. The mark table is found by its name in the DDL history,
without regard to case and at the schema version of each row, because it may have been created again.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep, RowsStep, SetVal
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes, column_names
from pyspark_tidb_binlog.sinks.routing.table_filter import MARK_SCHEMA, MARK_TABLE

_CHANNEL = "channel_id"


@dataclass(frozen=True, slots=True)
class MarkTables:
    """The mark tables of an upstream. Picklable."""

    spans: tuple[tuple[int, int, int], ...] = ()
    """(table id, first schema version, the first one at which it has another name)."""

    @classmethod
    def of(cls, history: SchemaHistory) -> Self:
        """Find the mark tables of ``history``."""
        spans: list[tuple[int, int, int]] = []
        for table_id, track in history.tracks.items():
            ends = [entry.version for entry in track.entries[1:]] + [1 << 62]
            for entry, end in zip(track.entries, ends, strict=True):
                if isinstance(entry, TableSnapshot) and (entry.schema.lower(), entry.name.lower()) == (MARK_SCHEMA, MARK_TABLE):
                    spans.append((table_id, entry.version, end))
        return cls(tuple(spans))

    @property
    def table_ids(self) -> frozenset[int]:
        """The ids of the mark tables."""
        return frozenset(table_id for table_id, _, _ in self.spans)

    def apart(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Split off the marks among ``rows`` (``ROW_EVENT``), and the others."""
        if not self.spans or not rows.num_rows:
            return rows.slice(0, 0), rows
        table_ids, versions = rows.column("table_id").to_numpy(), rows.column("schema_version").to_numpy()
        marks = np.zeros(rows.num_rows, np.bool_)
        for table_id, begin, end in self.spans:
            marks |= (table_ids == table_id) & (versions >= begin) & (versions < end)
        if not marks.any():
            return rows.slice(0, 0), rows  # without a copy
        return rows.filter(pa.array(marks)), rows.filter(pa.array(~marks))


_NO_MARKS = MarkTables()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is not replicated of the tables that a history knows. Picklable."""

    unread: frozenset[int] = frozenset()
    """Tables that are not replicated under any name: their rows are dropped unread."""
    upto_version: int = 0
    """Rows of a newer schema version are kept: the history may lack the job that renames their table."""
    marks: MarkTables = _NO_MARKS
    """Tables that are not replicated, but read."""
    concerned: frozenset[int] = frozenset()
    """All tables of which something is not replicated: their rows under some name, or some kind of row change. ``chosen`` changes no step of others."""

    @classmethod
    def of(cls, history: SchemaHistory, selection: Selection, marks: MarkTables = _NO_MARKS) -> "LeftOut":
        """Decide about all tables of ``history``; ``marks`` are read."""
        unread, concerned, rules = set(), set(), selection.rules
        for table_id, track in history.tracks.items():
            known = [entry for entry in track.entries if isinstance(entry, TableSnapshot)]
            kept = [selection.keeps(entry) for entry in known]
            if known and not any(kept):
                unread.add(table_id)
            if not all(kept) or any(rules.ignored_rows(entry.schema, entry.name) for entry in known if rules.rules):
                concerned.add(table_id)
        return cls(frozenset(unread) - marks.table_ids, history.newest_version, marks, frozenset(concerned))

    def read(self, rows: pa.Table) -> pa.Table:
        """Return ``rows`` (``ROW_EVENT``) without those of tables ``unread``."""
        dropped = np.isin(rows.column("table_id").to_numpy(), list(self.unread))
        if not dropped.any():
            return rows  # without a copy
        return rows.filter(pa.array(~(dropped & (rows.column("schema_version").to_numpy() <= self.upto_version))))


NOTHING_LEFT_OUT = LeftOut()


def chosen(step: RowsStep, selection: Selection) -> RowsStep:
    """Return ``step`` without the tables that are not replicated, and with the operations that rules leave out."""
    tables = {i: table for i, table in step.tables.items() if selection.tables.keeps(table.schema, table.name)}
    gone, rules = step.gone | (step.tables.keys() - tables.keys()), selection.rules
    left_out = {(i, int(op)) for i, t in tables.items() for op in rules.ignored_rows(t.schema, t.name)} if rules.rules else ()
    return replace(step, tables=tables, gone=gone, left_out=frozenset(left_out))


def routed(step: RowsStep, routes: Routes) -> RowsStep:
    """Return ``step`` with its tables, which have the upstream's names, under those that they have at the target."""
    return replace(step, tables={i: routes.moved(table) for i, table in step.tables.items()})


def chosen_setvals(step: RowsStep, history: SchemaHistory, selection: Selection) -> tuple[SetVal, ...]:
    """Return those of ``step`` whose sequences are replicated, under the target's names. TiDB writes names in lower case, however a sequence was created."""
    known = {(s.schema, s.name): history.find(s.schema, s.name, step.applied.version) for s in step.setvals}
    named = ((at.schema, at.name, s.value) if (at := known[s.schema, s.name]) else (s.schema, s.name, s.value) for s in step.setvals)
    kept = ((selection.routes.target(schema, name), value) for schema, name, value in named if selection.tables.keeps(schema, name))
    return tuple(SetVal(to.schema, to.name, value) for to, value in kept)


def decided(step: DdlStep, history: SchemaHistory, selection: Selection) -> DdlStep:
    """Return ``step`` with what the filters make of it."""
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
    """Return the database of the job; empty if it has none."""
    job = step.job
    if job.db_info is not None and job.db_info.name:
        return job.db_info.name
    database = history.schema_at(job.schema_id, job.version) or history.schema_at(job.schema_id, step.before.version)
    return database.name if database else job.schema_name


def looped(marks: pa.Table, history: SchemaHistory, channel_id: int) -> frozenset[int]:
    """Return the commit_ts of the transactions with one of these ``marks`` (``ROW_EVENT``) that is of channel ``channel_id``."""
    commit_ts: set[int] = set()
    for table_id in pc.unique(marks.column("table_id")).to_pylist():
        of_table = marks.filter(pc.equal(marks.column("table_id"), table_id))
        for version in pc.unique(of_table.column("schema_version")).to_pylist():
            table = history.table_at(table_id, version)
            if table is not None:
                commit_ts |= _of_channel(of_table.filter(pc.equal(of_table.column("schema_version"), version)), table, channel_id)
    return frozenset(commit_ts)


def _of_channel(marks: pa.Table, table: TableAt, channel_id: int) -> set[int]:
    name = next((c.name for c in table.info.target_columns() if c.name.lower() == _CHANNEL), None)
    if name is None:
        return set()
    ops, raw, versions = marks.column("op").to_numpy(), marks.column("row").combine_chunks(), marks.column("schema_version").to_numpy()
    commit_ts: set[int] = set()
    for kinds, decode in (((Op.UPDATE, Op.DELETE), decoder.old_images), ((Op.INSERT, Op.UPDATE), decoder.new_images)):
        places = np.flatnonzero(np.isin(ops, kinds))
        images = decode(table, ops[places], raw.take(pa.array(places)), versions[places])
        ours = pc.fill_null(pc.equal(pc.cast(images.column(name), pa.int64()), channel_id), False)
        commit_ts |= set(marks.column("commit_ts").take(pa.array(places)).filter(ours).to_pylist())
    return commit_ts
