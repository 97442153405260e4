"""Decides what becomes of a DDL at the target, from the DDL, what the target has (``target_here``), and an earlier attempt of unknown outcome. Pure.

    Changes      an ALTER: the changes that the target lacks; done if it lacks none
    Statements   any other DDL: statements made of the table infos, at a TiDB its text; done if their effect is there
    Refused      nothing is executed: ``ddl-policy`` decides

The executor executes the plan, ``--check`` reports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, tokenize
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, ModifyColumn, TableChange
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import UNCLEAR, Alteration, OwnColumn, altered_by, as_at_target, by_changes, by_text
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedTry, table_of
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import may_overflow
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import emptied, scattered
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import UNSEEN, Presence, compared, has_all
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import FORCE
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, same_name, sql_kind, statements_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import DdlStatement, Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import SchemaSnapshot, TargetDdl, TargetHere
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection


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
        return "; ".join(text.sql for text in self.texts if text.sql)

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
        altered = here.altered or altered_by(here.clock.subject, ddl.dialect)
        if altered is None:
            return _hindrance(ddl, here) or Refused("changes", UNCLEAR)
        return _hindrance(ddl, here) or changes_left(ddl, here.clock.subject, here.table, altered)
    plan = Statements(statements(ddl, here.clock.subject))
    if plan.texts and not plan.sql and given.form is not DdlForm.REFUSED:
        return plan
    if elsewhere := scattered(subject, ddl.dialect.flavour, here.table):
        return Refused("partition", elsewhere, plan.sql)
    executed = is_there(ddl, here, earlier)
    if executed is None:
        return Refused("safe mode", _UNDECIDED.get(subject.job.kind.effect, _TAKEN_OVER), plan.sql)
    if executed:
        return replace(plan, done=True)
    if hindrance := _hindrance(ddl, here):
        return replace(hindrance, sql=plan.sql)
    if given.form is DdlForm.INFOS and not all(text.by_infos for text in plan.texts):
        return Refused("policy", given.why, plan.sql)
    return plan


_WAY_OUT = "check the target, execute the DDL by hand if it was not executed, and then skip it"
_UNDECIDED = {
    JobEffect.EXCHANGES: f"another Drainer may have executed it before it crashed, and executing it again would put the rows back: {_WAY_OUT}",
    JobEffect.RENAMES: f"another Drainer may have executed it before it crashed, and the names on the target do not show it: {_WAY_OUT}",
}


_TAKEN_OVER = (
    "another Drainer may have executed it before it crashed, and a later RENAME or EXCHANGE has given the rows of another table to this name: executed again it "
    f"would take those rows: {_WAY_OUT}"
)


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
    """Why a job that restores rows cannot be replicated; empty for all others."""
    if ddl.subject.job.kind.effect is not JobEffect.RESTORES:
        return ""
    why = "it restores rows that neither the target nor any binlog has"
    if ddl.subject.job.type == JobType.RECOVER_TABLE and ddl.dialect.flavour is Flavour.TIDB:
        why = "the target may restore another table of that name. Execute RECOVER TABLE there by hand, and start again"
    return f"{ddl.subject.job.type_name} cannot be replicated: {why}"


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
        return replace(plan, text=Statements(statements(ddl, subject)).sql, own=None)
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


def is_there(ddl: TargetDdl, here: TargetHere, earlier: RecordedTry | None) -> bool | None:
    """Whether the job's effect is on the target, so that its statement must not run (again); None: only a person can tell.

    Made by ``earlier``, an attempt of ours; or, where the DDL is in doubt, by another Drainer, of which nothing is recorded:

        EXCHANGE PARTITION    undecided: executed again it would put the rows back
        RENAME                executed if only the new names are there, to be executed if only the old names are there; otherwise undecided
        all others            executed if the target has all their changes

    Raises:
        ApplyError: nobody can tell what became of ``earlier``.
    """
    subject = ddl.subject
    if earlier is not None and _has_run(ddl, earlier, here):
        return True
    begun_here = earlier is not None and not earlier.refused and not earlier.was_refused_before
    if not ddl.in_doubt or begun_here or why_not_restored(ddl):
        return False
    match subject.job.kind.effect:
        case JobEffect.EXCHANGES:
            return None
        case JobEffect.RENAMES:
            return _renamed(subject, ddl.dialect, here.now)
        case JobEffect.DROPS | JobEffect.EMPTIES | JobEffect.DROPS_PARTITION | JobEffect.EMPTIES_PARTITION if _taken_over(ddl):
            return None
    return sql_kind(subject.job).judged in (Judged.CHANGES, Judged.DIVIDED) and has_all(subject, ddl.dialect, here.after)


def _taken_over(ddl: TargetDdl) -> bool:
    """Whether a later job gives the rows of another table to the name, or the partition, whose rows this one takes."""
    job, history = ddl.step.job, ddl.history
    return any(history.taken_over(table_id, job.version - 1) is not None for table_id in history.tables_of_job(job))


def _has_run(ddl: TargetDdl, earlier: RecordedTry, here: TargetHere) -> bool:
    """Compare the target with the record of an earlier attempt.

    * a DROP has run if nothing is left
    * a RENAME is recognised by the names that are there
    * where tables change places, as in an EXCHANGE, the server's table ids show it; if they are inconclusive, a person must decide
    * for all others the target must have the job's changes (``compared``): columns, keys and options as ``Presence`` says, partitions, names of tables

    Any other difference from the earlier state is ignored.
    """
    subject, before, now = ddl.subject, earlier.snapshot, here.now
    judged = sql_kind(subject.job).judged
    match judged:
        case Judged.AGAIN:
            return False
        case Judged.GONE:
            # A server killed in DROP DATABASE may have dropped only (some of) its tables.
            return not any(t.create for t in now.objects.values())
        case Judged.MOVED:
            return _has_moved(ddl, earlier, now)
    # A table of a name that the job creates must be compared even if the target has changed otherwise.
    was_there = subject.job.kind.makes_tables and any(map(before.holds, subject.after))
    if before.same_as(now) or (judged is Judged.MADE and (earlier.was_refused_before or was_there)):
        return False
    if judged is Judged.PARTITIONS_GONE:
        # Of a table that never had them the rows may still be there.
        names, label = emptied(subject), subject.old.label if subject.old else ""
        return bool(names) and all(_has_partition(before, label, n) and not _has_partition(now, label, n) for n in names)
    found = [lack for lack in compared(subject, ddl.dialect, here.after) if lack is None or lack.kind != UNSEEN.kind]
    if not found:
        # After a refusal an operator may have changed anything, and running this again is harmless.
        return judged is not Judged.DIVIDED and not earlier.was_refused_before
    return not any(found)


def _has_moved(ddl: TargetDdl, earlier: RecordedTry, now: SchemaSnapshot) -> bool:
    """Judge a job that gives tables other names, or the rows of each other."""
    subject, before, step = ddl.subject, earlier.snapshot, ddl.step
    exchanges = subject.job.kind.effect is JobEffect.EXCHANGES
    if not exchanges and (named := _renamed(subject, ddl.dialect, now)) is not None:
        # A table of the new name was there before: the old one was missing then, too.
        return named and not before.same_as(now)
    comparable = before.ids_comparable(now)
    if before.same_as(now) and (earlier.refused or comparable):
        return False
    pairs = [(old.label, new.label) for old, new in _renames(subject, ddl.dialect)]
    swapped = bool(pairs) and all(now.which(to) == before.which(of) != frozenset() for of, to in pairs)
    if comparable and (_exchanged(subject, before, now) if exchanges else swapped):
        return True
    # An exchange gives both tables another id. If one stays, the other table was made anew, by an ALTER TABLE of an operator who was asked for it.
    stays = any(now.which(t.label) == before.which(t.label) != frozenset() for t in subject.before)
    if exchanges and comparable and earlier.refused and stays:
        return False
    if comparable:
        why = "the target changed, but not as this DDL changes it"
    elif before.of_another_server(now):
        why = "only the server's table ids would show its effect, and the target is no longer the server where it was begun. Decide by hand"
    else:
        why = (
            "only the server's table ids would show its effect, and they cannot be read. Grant PROCESS to the target's user if it lacks it"
        )
    raise ApplyError(
        f"an earlier attempt of the DDL of job {step.job.id} on {subject.label} at commit_ts {step.commit_ts} ({step.query}) has "
        f"an unknown outcome: {why}. Or check whether it ran. If it ran, skip it with syncer.ignore-txn-commit-ts = [{step.skip_ts}]. If "
        f"not, delete its row from {table_of(ddl.config)}."
    )


def _exchanged(subject: Subject, before: SchemaSnapshot, now: SchemaSnapshot) -> bool:
    """Whether the unpartitioned table and one of the partitions have exchanged their ids."""
    plain = next((t.label for t in subject.before if t.table_id == subject.job.table_id), "")
    parent, had, has = subject.old.label if subject.old else "", before.which(plain), now.which(plain)
    return frozenset() != had != has != frozenset() and has <= before.which(parent) and had <= now.which(parent)


def _has_partition(snapshot: SchemaSnapshot, table: str, name: str) -> bool:
    """Whether the server's SHOW CREATE TABLE has the partition; MySQL does not quote plain names, and a MariaDB shows ``p1 DEFAULT``."""
    found = snapshot.objects.get(table)
    text = found.create.lower() if found else ""
    return any(f"partition {word.lower()} {how}" in text for word in (name, quote_name(name)) for how in ("values", "default"))


def _renames(subject: Subject, dialect: Dialect) -> list[tuple[TableAt, TableAt]]:
    """The tables to which the job gives another name, before and after it."""
    old = {t.table_id: t for t in subject.before}
    pairs = [(old[t.table_id], t) for t in subject.after if t.table_id in old]
    return [(a, b) for a, b in pairs if not same_name(a.label, b.label, dialect)]


def _renamed(subject: Subject, dialect: Dialect, now: SchemaSnapshot) -> bool | None:
    """Whether a RENAME was executed, by the names that are there; None: they do not show it, as where two tables change places."""
    pairs = _renames(subject, dialect)
    old, new = {a.label for a, _ in pairs}, {b.label for _, b in pairs}
    gone, made = old - new, new - old
    there = {name for name in gone | made if now.objects[name].create}
    return {frozenset(gone): False, frozenset(made): True}.get(frozenset(there)) if gone or made else None


def out_of_place(subject: Subject, history: SchemaHistory, config: ApplyConfig) -> str:
    """Why a view that the job makes would not read at the target what it reads upstream; empty if it would, or the job makes none."""
    if subject.job.type != JobType.CREATE_VIEW or subject.info is None or subject.info.view is None:
        return ""
    select, selection = subject.info.view.select, Selection.of(config)
    if routed := selection.routed_name(select):
        return f"it names {routed}, which has another name at the target"
    tokens = [t for t in tokenize(select, backslash_escapes=False) if not t.blank]
    names = {(a.name, b.name) for a, dot, b in zip(tokens, tokens[1:], tokens[2:], strict=False) if dot.text == "."}
    tables = (history.find(*name, subject.job.version) for name in sorted(names))
    strange = next((t for t in tables if t is not None and not selection.keeps(t)), None)
    return f"it names {strange.label}, which is not replicated" if strange else ""
