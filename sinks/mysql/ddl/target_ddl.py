"""A DDL and what the target has of it: what its plan is made of (``ddl_plan``). [db] for ``ddl_of`` and ``look``, which only read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.history import JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import by_changes
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import ON_PARTITIONS
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import NOTHING_KEPT, SchemaSnapshot, take_names, take_snapshot
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import NO_OUTCOMES, DdlForm, Outcomes, Subject, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, dialect_of, folds_names
from pyspark_tidb_binlog.sinks.mysql.ddl.zone import DdlClock, clock_of
from pyspark_tidb_binlog.sinks.mysql.structure import TableName, TargetTable, read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate
from pyspark_tidb_binlog.sinks.routing.routes import Routes


@dataclass(frozen=True, slots=True)
class TargetDdl:
    """One DDL for one target."""

    step: DdlStep
    subject: Subject
    dialect: Dialect
    history: SchemaHistory
    config: ApplyConfig
    in_doubt: bool = False
    """Another Drainer may have executed it, and later ones, before it crashed."""

    @property
    def withheld(self) -> bool:
        """Whether it is not executed, whatever the target has: a filter refuses it, or it meets a frozen table."""
        return self.step.decision.fate is DdlFate.REFUSED or self.subject.given.form is DdlForm.FROZEN


def ddl_of(
    session: Target,
    step: DdlStep,
    history: SchemaHistory,
    config: ApplyConfig,
    frozen: FrozenTables,
    outcomes: Outcomes = NO_OUTCOMES,
    *,
    in_doubt: bool = False,
) -> TargetDdl:
    """The DDL of ``step`` for the target of ``session``; ``outcomes``: of earlier jobs, for RECOVER TABLE."""
    subject = subject_of(step, history, frozen, Routes.of(config), outcomes)
    dialect = dialect_of(session, config, subject.after)
    if subject.job.kind.effect is JobEffect.RENAMES:
        dialect = replace(dialect, folds_names=folds_names(session))
    return TargetDdl(step, subject, dialect, history, config, in_doubt)


@dataclass(frozen=True, slots=True)
class TargetHere:
    """State of the target that the plan of a DDL needs."""

    clock: DdlClock
    now: SchemaSnapshot = NOTHING_KEPT
    table: TargetTable | None = None
    """The job's own table before the job."""
    after: Mapping[TableName, TargetTable] = field(default_factory=dict)
    """The tables under their names after the job; read where an earlier attempt or another Drainer may have executed the job."""


def look(session: Target, ddl: TargetDdl, *, was_begun: bool) -> TargetHere:
    """Read what the target has; ``was_begun``: an earlier attempt may have executed the DDL."""
    subject = ddl.subject
    if ddl.withheld:
        return TargetHere(DdlClock(subject))
    clock, old = clock_of(session, subject), subject.old
    changes = by_changes(subject, ddl.dialect)
    needed = changes or subject.job.kind.effect in ON_PARTITIONS
    table = read_whole(session, old.schema, old.name) if old is not None and needed else None
    if changes:
        return TargetHere(clock, table=table)
    now = snapshot_of(session, subject)
    return TargetHere(clock, now, table, read_after(session, subject.after) if was_begun or ddl.in_doubt else {})


def read_after(session: Target, tables: tuple[TableAt, ...]) -> dict[TableName, TargetTable]:
    """The structure of those of ``tables`` that the target has."""
    found = {(t.schema, t.name): read_whole(session, t.schema, t.name) for t in tables}
    return {name: table for name, table in found.items() if table is not None}


def snapshot_of(session: Target, subject: Subject) -> SchemaSnapshot:
    """The target's databases and tables that the job affects, as they are; of a database that is dropped only which tables it has."""
    names = {(t.schema, t.name) for t in (*subject.before, *subject.after)}
    if subject.job.type == JobType.DROP_SCHEMA and names:
        tables, database = take_names(session, names), take_snapshot(session, [subject.schema], ())
        return replace(tables, objects={**tables.objects, **database.objects})
    return take_snapshot(session, [] if names else [subject.schema], names)
