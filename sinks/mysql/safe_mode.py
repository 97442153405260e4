"""Decides which steps are applied in safe mode, and which of their tables are left alone. [db]

Safe mode is on for every step with ``syncer.safe-mode``. It is also on up to a bound where the target may already have a part of what comes next: another
Drainer has crashed, or the checkpoint was moved. Nothing records how far that part reaches. So the bound is a timestamp taken at the
start: the other Drainer did everything before it. The bound is stored with the progress, so a later life continues in safe mode.

A real Drainer executes a DDL after all rows before it and before any later row. So if the target shows that a DDL of the open span
was executed, the target already has the rows before that DDL, and the table is left alone up to the DDL. The target shows it by a table or column that
these rows need and that is gone, or by an ENUM with the words of a later version.

Promises: the log says when and why safe mode begins, when it ends, and once for each table without a key that its rows cannot be told apart.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

from pyspark_tidb_binlog.conf.entry import comparing
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, cannot_tell_apart
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import Reason, SafeBounds
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import other_words

_log = logging.getLogger(__name__)


class SafeMode:
    """The safe mode of one sink."""

    def __init__(self, *, partial: bool = False) -> None:
        """``partial``: the target may lack columns, which then says nothing about DDLs."""
        self._partial = partial
        self.bounds = SafeBounds()
        """What is recorded."""
        self._named: set[str] = set()
        self._reset: set[str] = set()

    @property
    def until_ts(self) -> int:
        """Steps that begin below it may be in the target in part; 0: none."""
        return self.bounds.end_ts

    def begin(self, bounds: SafeBounds, why: str) -> None:
        """Steps that begin below the end of ``bounds`` are applied in safe mode; the first life that did so began at their begin."""
        self.bounds = bounds
        _log.warning(
            "safe mode from %d until %d (%s): %s. Rows are replaced. A delete that matches no row is no finding. A DDL that was executed before is accepted",
            bounds.begin_ts,
            bounds.end_ts,
            as_time(bounds.end_ts),
            why,
        )

    def open_at(self, commit_ts: int) -> bool:
        """Whether the target may hold a part of what comes after ``commit_ts``."""
        return commit_ts < self.bounds.end_ts

    def reached(self, commit_ts: int) -> None:
        """Everything up to ``commit_ts`` is in the target."""
        if not self.open_at(commit_ts):
            _log.warning("safe mode ends at %d: the checkpoint has passed the span that was open until %d", commit_ts, self.bounds.end_ts)
            self.bounds = SafeBounds()

    def prepared(self, session: Session, step: RowsStep, history: SchemaHistory) -> tuple[RowsStep, SafeSpan]:
        """``step`` without the tables that have a later structure already, and how it is applied; reads the target's tables where a later DDL is known.

        A step that an earlier life began in parts, because of its setting, is never in doubt: the record says what of it is applied.
        """
        if not self.open_at(step.after_ts):
            return step, SafeSpan(in_doubt=False)
        bounds = self.bounds
        # Equal bounds alone say nothing: a step also ends before a DDL, and there the one in doubt may end, too.
        in_doubt = bounds.reason is not Reason.PARTS or (step.after_ts, step.upto_ts) != (bounds.begin_ts, bounds.end_ts)
        tables = {i: at for i, at in step.tables.items() if i not in step.gone and not at.info.is_view}
        for at in tables.values() if in_doubt else ():
            self._name(at)
        if bounds.reason is Reason.LANES:
            return step, SafeSpan()
        for table_id, at in tables.items() if in_doubt else ():
            if (job := history.taken_over(table_id, at.version)) is not None:
                raise DdlRefused(_taken_over(at, job, step))
        later = frozenset(i for i, at in tables.items() if history.jobs_of_table(i, at.version, history.newest_version))
        past = frozenset(i for i in later if _is_past(session, tables[i], history, partial=self._partial))
        if past:
            names = ", ".join(sorted(f"{tables[i].schema}.{tables[i].name}" for i in past))
            _log.warning(
                "safe mode: rows up to %d are left out of %s, because a later DDL that was executed before took away a table, a column or an ENUM or SET word "
                "that these rows need",
                step.upto_ts,
                names,
            )
        return replace(step, gone=step.gone | past), SafeSpan(later - past, in_doubt)

    def name_reset(self, tables: Iterable[TableAt]) -> None:
        """Say of each of ``tables``, as they are at the target, what replacing its rows does to columns that the upstream lacks."""
        for at in tables:
            name = f"{at.schema}.{at.name}"
            if at.others and name not in self._reset:
                self._reset.add(name)
                _log.warning(
                    "safe mode: rows of %s are replaced, so its columns %s, which only the target has, get their defaults in these rows",
                    name,
                    ", ".join(at.others),
                )

    def _name(self, at: TableAt) -> None:
        name = f"{at.schema}.{at.name}"
        if name not in self._named and cannot_tell_apart(at.info):
            self._named.add(name)
            _log.warning(
                "safe mode: %s has no unique key without NULL, so equal rows cannot be told apart. Compare the table with the upstream afterwards: %s",
                name,
                comparing(name),
            )


def _taken_over(at: TableAt, job: Job, step: RowsStep) -> str:
    query = " ".join(job.query.split())[:200]
    return (
        f"rows of {at.schema}.{at.name} after {step.after_ts} would go to another table, if the Drainer that crashed has executed a later DDL, job {job.id} ({query}). "
        "Nothing of these rows is written. If the DDL was executed at the target, undo it there by hand (rename back, or exchange again). Then set "
        '"consistent":true in the checkpoint and spark.on-finding = record, and start again: rows that are there already become findings'
    )


def _is_past(session: Session, at: TableAt, history: SchemaHistory, *, partial: bool) -> bool:
    """Whether the target lacks the table, or a column that its rows need, or has other ENUM words, as a later version of the table does. ``partial``: rows
    need no column. If no DDL takes away what is missing, the write of the rows fails.
    """
    there = _lower(column_names(session, at.schema, at.name))
    missing = frozenset() if there and partial else _lower(c.name for c in at.info.target_columns()) - there
    if not there or missing:
        return _is_without(history, at, missing, gone=not there)
    return _has_later_words(session, at, history)


def _is_without(history: SchemaHistory, at: TableAt, missing: frozenset[str], *, gone: bool) -> bool:
    """Whether a later version of the table has none of the ``missing`` columns; ``gone``: whether there is no table of its name."""
    own = history.table_at(at.table_id, at.version)
    for job in history.jobs_of_table(at.table_id, at.version, history.newest_version):
        later = history.table_at(at.table_id, job.version)
        if later is None or own is None or (later.schema, later.name) != (own.schema, own.name):
            return True
        if not gone and not missing & _lower(c.name for c in later.info.target_columns()):
            return True
    return False


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _has_later_words(session: Session, at: TableAt, history: SchemaHistory) -> bool:
    """Whether an ENUM or SET has the words of a later version, with which the numbers of the rows before it mean others."""
    worded = [c for c in at.info.target_columns() if c.elems]
    newest = history.table_at(at.table_id, history.newest_version) if worded else None
    if newest is None:
        return False
    found = read_tables(session, [(at.schema, at.name)]).get((at.schema, at.name))
    if found is None:
        return False
    later = [c for s in newest.snapshots if s.version > at.version for c in s.info.target_columns() if c.elems]
    for column in worded:
        there = found.column(column.name)
        if there is not None and other_words(column, there):
            return any(c.name.lower() == column.name.lower() and not other_words(c, there) for c in later)
    return False
