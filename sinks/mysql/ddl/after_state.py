"""Decides whether the target has the after-state of a DDL: its tables, columns, keys, options and partitions as they are after the job. Pure.

After a crash, ``has_run`` compares the target with the record of the earlier attempt:

* a DROP has run if nothing is left
* a RENAME is recognised by the names that are there
* where tables change places, as in an EXCHANGE, the server's table ids show it; if they are inconclusive, a person must decide
* for all others the target must have the job's changes (``compared``): columns, keys and options as ``Presence`` says, partitions, names of tables

Any other difference from the earlier state is ignored.

A real Drainer records no intent. If it crashed, it may have executed a DDL behind its checkpoint (``shown``):

    EXCHANGE PARTITION        undecided: executed again it would put the rows back
    RENAME                    executed if only the new names are there, to be executed if only the old names are there; otherwise undecided
    RECOVER TABLE             executed if the table is there; otherwise undecided: the span may have dropped another table, which the target would restore
    all others                executed if the target has all their changes
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddKey, DropKey, ModifyKey, RenameKey, TableChange
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import UNCLEAR, UNSEEN, Alteration, MissingChange, Presence, has_key
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedTry, table_of
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import emptied, limit_of
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, same_name, sql_kind
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_ddl import TargetDdl, TargetHere
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.structure import TableName, TargetTable

Tables = Mapping[TableName, TargetTable]
"""What the target has under the names of the tables after the job."""

FREEZES = frozenset({"table", "column"})
"""What rows need: a table that lacks it is frozen. Keys, partitions, types, options and columns that stay are somebody's own."""


_IN_DEFINITION = frozenset({Judged.CHANGES, Judged.DIVIDED})
"""The definition after it shows that it was executed."""


def has_all(subject: Subject, dialect: Dialect, after: Tables) -> bool:
    """Whether the job has changes that a definition shows, and the target has all of them."""
    found = tuple(compared(subject, dialect, after))
    return bool(found) and not any(found)


def shown(ddl: TargetDdl, here: TargetHere) -> bool | None:
    """Whether the target shows that another Drainer has executed the DDL; None: only a person can tell."""
    subject = ddl.subject
    match subject.job.kind.effect:
        case JobEffect.EXCHANGES:
            return None
        case JobEffect.RENAMES:
            return renamed(subject, ddl.dialect, here.now)
        case JobEffect.RESTORES:
            return True if subject.new and here.now.holds(subject.new.schema, subject.new.name) else None
    return sql_kind(subject.job).judged in _IN_DEFINITION and has_all(subject, ddl.dialect, here.after)


def has_run(ddl: TargetDdl, earlier: RecordedTry, here: TargetHere) -> bool:
    """Whether the job's effect is on the target, so that its statement must not run (again).

    Raises:
        ApplyError: it cannot be determined.
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
        case Judged.RESTORED if not earlier.was_refused_before:
            # With the columns that the target had. After a refusal a person may have made it: then it must have the upstream's.
            return any(not before.holds(t.schema, t.name) and now.holds(t.schema, t.name) for t in subject.after)
    # A table of a name that the job creates must be compared even if the target has changed otherwise.
    was_there = subject.job.kind.makes_tables and any(before.holds(t.schema, t.name) for t in subject.after)
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
    subject, before = ddl.subject, earlier.snapshot
    exchanges = subject.job.kind.effect is JobEffect.EXCHANGES
    if not exchanges and (named := renamed(subject, ddl.dialect, now)) is not None:
        # A table of the new name was there before: the old one was missing then, too.
        return named and not before.same_as(now)
    comparable = before.ids_comparable(now)
    if before.same_as(now) and (earlier.refused or comparable):
        return False
    names = _exchanging(subject, before, now) if exchanges else ()
    if comparable and (_exchanged(before, now, *names) if names else not exchanges and _swapped(ddl, before, now)):
        return True
    # Only if it is the same server, or this one has refused it, an id that stays says that nothing was exchanged: an exchange gives both tables another
    # one. The other table was made anew, by an ALTER TABLE of an operator.
    same_server = comparable and (earlier.refused or before.surely_of_the_server(now))
    if same_server and any(_which(now, name) == _which(before, name) != frozenset() for name in names):
        return False
    if comparable:
        why = "the target changed, but not as this DDL changes it"
    elif before.of_another_server(now):
        why = "only the server's table ids would show its effect, and the target is no longer the server where it was begun. Decide by hand"
    else:
        why = (
            "only the server's table ids would show its effect, and they cannot be read. Grant PROCESS to the target's user if it lacks it"
        )
    step = ddl.step
    raise ApplyError(
        f"an earlier attempt of the DDL of job {step.job.id} on {subject.label} at commit_ts {step.commit_ts} ({step.query}) has "
        f"an unknown outcome: {why}. Or check whether it ran. If it ran, skip it with syncer.ignore-txn-commit-ts = [{step.skip_ts}]. If "
        f"not, delete its row from {table_of(ddl.config)}."
    )


def _swapped(ddl: TargetDdl, before: SchemaSnapshot, now: SchemaSnapshot) -> bool:
    """Whether each renamed table has its id under its new name."""
    pairs = [(old.label, new.label) for old, new in _renames(ddl.subject, ddl.dialect)]
    return bool(pairs) and all(_which(now, to) == _which(before, of) != frozenset() for of, to in pairs)


def _exchanged(before: SchemaSnapshot, now: SchemaSnapshot, plain: str, parent: str) -> bool:
    """Whether the unpartitioned table and one of the partitions have exchanged their ids."""
    had, has = before.objects[plain].ids.get(""), now.objects[plain].ids.get("")
    return had != has and has in before.objects[parent].ids.values() and had in now.objects[parent].ids.values()


def _exchanging(subject: Subject, before: SchemaSnapshot, now: SchemaSnapshot) -> tuple[str, ...]:
    """The names of the unpartitioned table and of the partitioned one; empty if one of them is not in both snapshots."""
    plain = next((t.label for t in subject.before if t.table_id == subject.job.table_id), "")
    parent = subject.old.label if subject.old else ""
    return (plain, parent) if {plain, parent} <= now.objects.keys() & before.objects.keys() else ()


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


def renamed(subject: Subject, dialect: Dialect, now: SchemaSnapshot) -> bool | None:
    """Whether a RENAME was executed, by the names that are there; None: they do not show it, as where two tables change places."""
    pairs = _renames(subject, dialect)
    old, new = {a.label for a, _ in pairs}, {b.label for _, b in pairs}
    gone, made = old - new, new - old
    there = {name for name in gone | made if now.objects[name].create}
    return {frozenset(gone): False, frozenset(made): True}.get(frozenset(there)) if gone or made else None


def _which(snapshot: SchemaSnapshot, name: str) -> frozenset[int]:
    found = snapshot.objects.get(name)
    return found.which if found else frozenset()


def compared(subject: Subject, dialect: Dialect, after: Tables) -> Iterator[MissingChange | None]:
    """Yield what the target lacks of each of the job's changes; None: the target has the change."""
    before = {t.table_id: t for t in subject.before}
    if subject.job.kind.new_table_id and subject.old is not None and subject.new is not None:
        before[subject.new.table_id] = subject.old
    for table in subject.after:
        yield from _table_lacks(subject, dialect, before.get(table.table_id), table, after.get((table.schema, table.name)))


def lacks(subject: Subject, dialect: Dialect, after: Tables) -> tuple[MissingChange, ...]:
    """The job's changes that the target, whose tables are ``after``, lacks, or that cannot be seen."""
    return tuple(lack for lack in compared(subject, dialect, after) if lack)


def unlike(subject: Subject, dialect: Dialect, table: TableAt, there: TargetTable | None) -> tuple[MissingChange, ...]:
    """Differences between an existing table and the one of the same name that the job creates."""
    found = [lack for lack in _table_lacks(subject, dialect, None, table, there) if lack and lack.kind not in ("column", UNSEEN.kind)]
    label = table.label
    if there is None or table.info.is_view or table.info.is_sequence:
        return tuple(found)
    wanted, names = tuple(c.name for c in visible(table.info)), tuple(c.name for c in there.columns)
    if names != wanted:
        found.insert(0, MissingChange(f"{label}: columns {list(names)} instead of {list(wanted)}", "column"))
    if not there.transactional:
        found.append(MissingChange(f"{label}: engine {there.engine} has no transactions", "engine"))
    handle = _handle_key(table.info)
    found += [
        MissingChange(f"{label}: key {key.name} missing or different", "key") for key in handle if not has_key(key, there, table.info)
    ]
    known = {index.name.lower() for index in (*table.info.indexes, *handle)}
    more = [key.name for key in there.unique_keys if key.name.lower() not in known]
    return (*found, *(MissingChange(f"{label}: unique key {name} does not exist upstream", "key") for name in more))


def _handle_key(info: TableInfo) -> tuple[IndexInfo, ...]:
    """The primary key that is the integer handle, which is not among the indexes of the infos."""
    if not info.pk_is_handle:
        return ()
    columns = tuple(IndexColumn(c.name, c.offset, WHOLE_COLUMN) for c in info.handle_columns())
    return (IndexInfo(0, "PRIMARY", columns, True, True, PUBLIC, False, ""),) if columns else ()


def _table_lacks(
    subject: Subject, dialect: Dialect, before: TableAt | None, after: TableAt, there: TargetTable | None
) -> Iterator[MissingChange | None]:
    """Yields a ``MissingChange`` for each change that is missing, None for each one that is present."""
    label = after.label
    if before is None or (before.schema, before.name) != (after.schema, after.name):
        yield None if there else MissingChange(f"table {label}", "table")
    if there is None or after.info.is_view or after.info.is_sequence:
        return
    # Foreign keys of a table that comes are not compared.
    new = after.info if before else replace(after.info, foreign_keys=())
    old = before.info if before else replace(new, columns=(), indexes=())
    yield from _definition_lacks(subject, dialect, label, old, new, after.info, there)
    yield from _partition_lacks(label, old, after.info, there.partitions)


def _definition_lacks(
    subject: Subject, dialect: Dialect, label: str, old: TableInfo, new: TableInfo, whole: TableInfo, there: TargetTable
) -> Iterator[MissingChange | None]:
    """Columns, keys and options. A target may lack indexes over expressions, and those that a foreign key has brought."""
    altered = Alteration.of(old, new, subject.query or ";", dialect)
    if altered is None:
        yield MissingChange(f"{label}: {UNCLEAR}", "column")
        return
    brought = {name.lower() for name in (*old.foreign_key_names, *whole.foreign_key_names)}
    may_lack = {
        i.name.lower() for t in (old, new) for i in t.indexes if t.over_expression(i) or (not i.unique and i.name.lower() in brought)
    }
    presence = Presence(altered, there)
    for change in altered.changes:
        if not _key_names(change) & may_lack:
            lack = presence.lack(change)
            yield lack and replace(lack, words=f"{label}: {lack.words}")


def _key_names(change: TableChange) -> set[str]:
    match change:
        case AddKey(key):
            return {key.name.lower()}
        case DropKey(name) | ModifyKey(name):
            return {name.lower()}
        case RenameKey(before, after):
            return {before.lower(), after.lower()}
    return set()


def _partition_lacks(label: str, old: TableInfo, new: TableInfo, there: Mapping[str, str]) -> Iterator[MissingChange | None]:
    """Partitions that the job adds must exist, with their bound, because somebody's own may have the name. Those that it removes must not."""
    before, after = ({p.name.lower() for p in info.partitions} for info in (old, new))
    bounds = {name.lower(): bound for name, bound in there.items()}
    for name in sorted(after - before):
        wanted, found = limit_of(new, name), bounds.get(name)
        other = f"ends at {found} instead of {wanted}" if wanted and found and wanted.upper() != found.upper() else ""
        words = "missing" if found is None else other
        yield MissingChange(f"{label}: partition {name} {words}", "partition") if words else None
    for name in sorted(before - after):
        yield MissingChange(f"{label}: partition {name} still there", "partition") if name in bounds else None
