"""Decides what becomes of a DDL at the target, from the DDL, what the target has (``target_ddl``), and an earlier attempt of unknown outcome. Pure.

    Changes      an ALTER: the changes that the target lacks; done if it lacks none
    Statements   any other DDL: statements made of the table infos, at a TiDB its text; done if their effect is there
    Refused      nothing is executed: ``ddl-policy`` decides

The executor executes the plan, ``--check`` reports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.history import JobType, TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, ModifyColumn, TableChange
from pyspark_tidb_binlog.sinks.mysql.ddl.after_state import has_run, shown
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import (
    UNCLEAR,
    Alteration,
    OwnColumn,
    Presence,
    altered_by,
    as_at_target,
    by_changes,
    by_text,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedTry
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import may_overflow
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import scattered
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import FORCE
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import joined, statements_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_ddl import TargetDdl, TargetHere
from pyspark_tidb_binlog.sinks.mysql.ddl.text import DdlStatement
from pyspark_tidb_binlog.sinks.mysql.ddl.views import out_of_place
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is executed."""

    step: str
    """What ``tries`` calls it."""
    why: str
    sql: str = ""
    """What would have been executed."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of a DDL that is no ALTER."""

    texts: tuple[DdlStatement, ...]
    done: bool = False
    """Their effect is there: an earlier attempt, another Drainer or a person has executed them."""

    @property
    def sql(self) -> str:
        """All statements, for records; empty if there is nothing to execute."""
        return joined(self.texts)

    @property
    def losses(self) -> tuple[str, ...]:
        """Losses of all statements."""
        return tuple(loss for text in self.texts for loss in text.losses)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of an ALTER that are left to be made."""

    altered: Alteration
    """All changes of the job."""
    left: tuple[TableChange, ...]
    """Those that are to be made."""
    table: TableAt
    subject: Subject
    """Its tables are as an earlier DDL has left them at the target."""
    own: Mapping[str, OwnColumn] | None = None
    """The target's columns; None: they are as the upstream's."""
    text: str = ""
    """A statement in place of the one for ``left``."""
    losses: tuple[str, ...] = ()
    bare: bool = False
    """Only what rows need is left."""

    @property
    def statements(self) -> list[str]:
        """The statements in their order; none if nothing is left."""
        if self.text:
            return [self.text]
        found, dialect = self.altered.statements(self.table, self.left, self.own), self.altered.dialect
        grows = dialect.flavour is Flavour.MARIADB and any(isinstance(c, AddColumn | ModifyColumn) for c in self.left)
        return [sql + FORCE for sql in found] if grows and may_overflow(self.altered.new, dialect) else found

    @property
    def sql(self) -> str:
        """All statements, for records."""
        return "; ".join(self.statements)

    @property
    def done(self) -> bool:
        """Whether nothing is left to execute."""
        return not self.sql

    @property
    def needed(self) -> "Changes":
        """Changes that rows need."""
        return replace(self, left=tuple(c for c in self.left if self.altered.is_needed(c)), text="", bare=True)


DdlPlan = Refused | Changes | Statements


def passed_by(ddl: TargetDdl) -> str:
    """``DdlOutcome.how`` of a DDL that is not for the target, or needs no statement there; empty: it is planned."""
    fate = ddl.step.decision.fate
    if fate is DdlFate.FILTERED:
        return "filtered"
    if not ddl.config.sync_ddl:
        return "sync-ddl"
    if fate is DdlFate.LEFT_OUT or ddl.step.skip_ts in ddl.config.ignore_txn_commit_ts:
        return "ignored"
    return "nothing" if ddl.subject.given.form is DdlForm.NOTHING else ""


def planned(ddl: TargetDdl, here: TargetHere, earlier: RecordedTry | None = None) -> DdlPlan:
    """Decide what becomes of ``ddl``; ``earlier``: an attempt that was begun or refused.

    Raises:
        ApplyError: nobody can tell whether the earlier attempt has executed it.
    """
    subject, given = ddl.subject, ddl.subject.given
    if ddl.withheld:
        # Never taken for done because the target looks like it: rows may still be being copied.
        return Refused("frozen" if given.form is DdlForm.FROZEN else "filter", given.why)
    if by_changes(subject, ddl.dialect):
        altered = altered_by(here.clock.subject, ddl.dialect)
        if altered is None:
            return _hindrance(ddl, here) or Refused("changes", UNCLEAR)
        return _hindrance(ddl, here) or changes_left(ddl, here.clock.subject, here.table, altered)
    plan = Statements(statements(ddl, here.clock.subject))
    if plan.texts and not plan.sql and given.form is not DdlForm.REFUSED:
        return plan
    elsewhere = scattered(subject, ddl.dialect.flavour, here.table)
    if earlier is not None and not elsewhere and has_run(ddl, earlier, here):
        return replace(plan, done=True)
    begun_here = earlier is not None and not earlier.refused and not earlier.was_refused_before
    if ddl.in_doubt and plan.texts and not begun_here:
        executed = shown(ddl, here)
        if executed is None:
            return Refused("safe mode", _UNDECIDED[subject.job.kind.effect], plan.sql)
        if executed:
            return replace(plan, done=True)
    if elsewhere:
        return Refused("partition", elsewhere, plan.sql)
    if hindrance := _hindrance(ddl, here):
        return replace(hindrance, sql=plan.sql)
    if given.form is DdlForm.INFOS and not all(text.by_infos for text in plan.texts):
        return Refused("policy", given.why, plan.sql)
    return plan


_WAY_OUT = "check the target, execute the DDL by hand if it was not executed, and then skip it"
_UNDECIDED = {
    JobEffect.EXCHANGES: f"another Drainer may have executed it before it crashed, and executing it again would put the rows back: {_WAY_OUT}",
    JobEffect.RENAMES: f"another Drainer may have executed it before it crashed, and the names on the target do not show it: {_WAY_OUT}",
    JobEffect.RESTORES: f"another Drainer may have dropped or truncated a later table of that name, and the target may then restore other rows: {_WAY_OUT}",
}


def _hindrance(ddl: TargetDdl, here: TargetHere) -> Refused | None:
    """Why the target cannot execute the DDL as the upstream did."""
    given = ddl.subject.given
    if why := why_not_restored(ddl):
        return Refused("policy", why)
    if here.clock.why_not:
        return Refused("time zone", here.clock.why_not)
    if given.form is DdlForm.REFUSED:
        return Refused("policy", given.why)
    if why := out_of_place(ddl.subject, ddl.history, ddl.config):
        return Refused("view", why)
    return None


def why_not_restored(ddl: TargetDdl) -> str:
    """Why a job that restores rows cannot be replicated; empty for all others, and where the target is a TiDB, which keeps dropped tables for a while."""
    job = ddl.subject.job
    if job.kind.effect is not JobEffect.RESTORES or (job.type == JobType.RECOVER_TABLE and ddl.dialect.flavour is Flavour.TIDB):
        return ""
    return f"{job.type_name} cannot be replicated: it restores rows that neither the target nor any binlog has"


def statements(ddl: TargetDdl, subject: Subject) -> tuple[DdlStatement, ...]:
    """The job's statements, made of the definitions of ``subject``; none of a job that cannot be replicated."""
    restored = not ddl.step.early and ddl.step.query != subject.job.query
    return () if why_not_restored(ddl) else statements_of(subject, ddl.dialect, restored=restored)


def changes_left(ddl: TargetDdl, subject: Subject, there: TargetTable | None, altered: Alteration) -> Changes:
    """The changes of ``subject`` that the target's table lacks; all of ``altered`` if its table is not known."""
    assert ddl.subject.old is not None
    plan = Changes(altered, altered.changes, ddl.subject.old, subject)
    if there is None and ddl.in_doubt:
        return replace(plan, left=())  # a later DDL has taken it away
    if there is not None:
        subject, lost = as_at_target(subject, there)
        altered = altered_by(subject, ddl.dialect) or altered
        presence = Presence(altered, there)
        left = presence.missing()
        if ddl.in_doubt:
            left = tuple(c for c in left if not _is_another_by_now(ddl, altered.changed_column(c), there))
        losses = tuple(f"{subject.label}: {loss}" for loss in lost)
        plan = Changes(altered, left, ddl.subject.old, subject, presence.own_columns(), losses=losses)
    if plan.left == altered.changes and by_text(altered, subject):
        return replace(plan, text=joined(statements(ddl, subject)), own=None)
    return plan


def _is_another_by_now(ddl: TargetDdl, name: str, there: TargetTable) -> bool:
    """Whether the column of this name, which the DDL changes, is gone from the target, or is another one: by a later DDL that another Drainer has executed."""
    old, new, history = ddl.subject.old, ddl.subject.new, ddl.history
    if not name or old is None or new is None:
        return False
    names = {c.name.lower() for c in there.columns}
    was = {c.id: c.name.lower() for c in visible(old.info)}
    gone = was.keys() & {c.id for c in visible(new.info) if c.name.lower() not in names}
    if name.lower() not in names:
        return any(was[i] == name.lower() for i in gone)
    later = history.jobs_of_table(new.table_id, ddl.subject.job.version, history.newest_version) if gone else ()
    tables = (table for job in later if (table := history.table_at(new.table_id, job.version)) is not None)
    return any(c.id in gone and c.name.lower() == name.lower() for table in tables for c in visible(table.info))
