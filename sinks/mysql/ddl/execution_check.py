"""Decides whether a DDL already ran, or was executed by an operator, from the record of an earlier attempt and the target's state. [db]

Promises: reads only. A DROP has run if nothing is left. A RENAME is recognised by the names that are there. Where tables change places, as in an EXCHANGE,
the server's table ids show it; if these are inconclusive, an operator must decide. For all others the target must have the job's changes (``compared``): columns,
keys and options as ``Presence`` says, partitions, names of tables. Any other difference from the earlier state is ignored.

A column that a job adds, and that somebody added before, counts as the upstream's if every row holds the upstream's value of rows older than the column, or cannot be
compared. ``other_values`` names the others, with an UPDATE, which is right as long as no later row change is applied.

A real Drainer records no intent. After a crash it executes the DDLs behind its checkpoint again and ignores certain errors by number (drainer.md 5.6). In a span of which
such a Drainer may have applied a part (``HandedOver``), this DDL and later ones may have been executed, and these numbers are accepted:

    EXCHANGE PARTITION        cannot be decided: executed again it would put the rows back
    RENAME                    executed if only the new names are there, to be executed if only the old names are there; otherwise undecided. If this
                              span has just made the old tables again, they are dropped and the RENAME counts as executed
    RECOVER TABLE             executed if the table is there; otherwise undecided: the span may have dropped another table, which the target would restore
    ADD INDEX, FOREIGN KEY    executed if the table has it: without a name, a second index would be made
    CREATE TABLE              an existing table is accepted if it is equal, or if a later DDL of the history explains the difference
    DROP, CHANGE, MODIFY      not of a column that a later DDL has given this name
    all others                executed; an error that says "already so" is accepted
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddKey, DropKey, ModifyKey, RenameKey, TableChange
from pyspark_tidb_binlog.schemas.tableinfo import (
    PUBLIC,
    WHOLE_COLUMN,
    ColumnFlag,
    ColumnInfo,
    ColumnType,
    IndexColumn,
    IndexInfo,
    TableInfo,
)
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import UNCLEAR, UNSEEN, Alteration, MissingChange, Presence, filling, has_key
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedTry
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import emptied, limit_of
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import EXISTS_TABLE
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot, column_names, take_names, take_snapshot
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import Judged, same_name, sql_kind
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import origin_literal
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_text, match_condition, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target

FREEZES = frozenset({"table", "column"})
"""What rows need: a table that lacks it is frozen. Keys, partitions, types, options and columns that stay are somebody's own."""


NOTHING_KEPT = SchemaSnapshot({}, ids_known=False)
"""What an intent records of the target before a DROP: the texts of all tables of a database may be too long for one statement."""


def snapshot_of(session: Target, subject: Subject) -> SchemaSnapshot:
    """The target's databases and tables that the job affects, as they are; of a database that is dropped only which tables it has."""
    names = {(t.schema, t.name) for t in (*subject.before, *subject.after)}
    if subject.job.type == JobType.DROP_SCHEMA and names:
        return take_names(session, names)
    return take_snapshot(session, [] if names else [subject.schema], names)


def shows(session: Target, subject: Subject, dialect: Dialect) -> bool:
    """Whether the target already has all changes of the job, whatever the reason for which it refused the statement."""
    if sql_kind(subject.job).judged is not Judged.CHANGES:
        return False
    found = tuple(compared(session, subject, dialect))
    return bool(found) and not any(found)


class ExecutionCheck:
    """Checks whether one DDL ran."""

    def __init__(self, session: Target, step: DdlStep, subject: Subject, dialect: Dialect, marks: str) -> None:
        """``marks``: name of the table of DDL records, for messages."""
        self._session = session
        self._step = step
        self._subject = subject
        self._dialect = dialect
        self._marks = marks

    def has_run(self, earlier: RecordedTry, now: SchemaSnapshot) -> bool:
        """Whether the job's effect is on the target, so that its statement must not run (again).

        Raises:
            ApplyError: it cannot be determined.
        """
        judged, before = sql_kind(self._subject.job).judged, earlier.snapshot
        match judged:
            case Judged.AGAIN:
                return False
            case Judged.GONE:
                return self._gone(now)
            case Judged.MOVED:
                return self._moved(earlier, now)
            case Judged.RESTORED if not earlier.was_refused_before:
                # With the columns that the target had. After a refusal a person may have made it: then it must have the upstream's.
                return any(not before.holds(t.schema, t.name) and now.holds(t.schema, t.name) for t in self._subject.after)
        if before.same_as(now) or (judged is Judged.MADE and (earlier.was_refused_before or self._stood(before))):
            return False
        if judged is Judged.PARTITIONS_GONE:
            return self._dropped(before, now)
        found = [lack for lack in compared(self._session, self._subject, self._dialect) if lack is None or lack.kind != UNSEEN.kind]
        if not found:
            # After a refusal an operator may have changed anything, and running this again is harmless.
            return judged is not Judged.DIVIDED and not earlier.was_refused_before
        return not any(found)

    def _gone(self, now: SchemaSnapshot) -> bool:
        """Whether nothing of the dropped object is left. A server killed in DROP DATABASE may have dropped only (some of) its tables."""
        subject = self._subject
        if subject.job.type == JobType.DROP_SCHEMA and any(
            t.create for t in take_snapshot(self._session, [subject.schema], ()).objects.values()
        ):
            return False
        return not any(t.create for t in now.objects.values())

    def _stood(self, before: SchemaSnapshot) -> bool:
        """Whether a table of a name that the job creates existed before: it must be compared even if the target has changed otherwise."""
        return self._subject.job.kind.makes_tables and any(before.holds(t.schema, t.name) for t in self._subject.after)

    def _dropped(self, before: SchemaSnapshot, now: SchemaSnapshot) -> bool:
        """Whether the partitions that the job drops were there and are gone. Of a table that never had them the rows may still be there."""
        names, old = emptied(self._subject), self._subject.old
        where = f"{old.schema}.{old.name}" if old else ""
        return bool(names) and all(_has_partition(before, where, n) and not _has_partition(now, where, n) for n in names)

    def _moved(self, earlier: RecordedTry, now: SchemaSnapshot) -> bool:
        """Judge a job that gives tables other names, or the rows of each other."""
        before, exchanges = earlier.snapshot, self._subject.job.kind.effect is JobEffect.EXCHANGES
        if not exchanges:
            named = renamed(self._subject, self._dialect, lambda table: bool(now.objects[_label(table)].create))
            if named is not None:
                # A table of the new name was there before: the old one was missing then, too.
                return named and not before.same_as(now)
        comparable = before.ids_comparable(now)
        if before.same_as(now) and (earlier.refused or comparable):
            return False
        if comparable and (self._exchanged(before, now) if exchanges else self._swapped(before, now)):
            return True
        # Only if it is the same server, or this one has refused it, an id that stays says that nothing was exchanged.
        if comparable and exchanges and (earlier.refused or before.surely_of_the_server(now)) and self._in_place(before, now):
            return False
        if comparable:
            raise self._undecided("the target changed, but not as this DDL changes it")
        raise self._undecided(
            "only the server's table ids would show its effect, and the target is no longer the server where it was begun. Decide by hand"
            if before.of_another_server(now)
            else "only the server's table ids would show its effect, and they cannot be read. Grant PROCESS to the target's user if it lacks it"
        )

    def _swapped(self, before: SchemaSnapshot, now: SchemaSnapshot) -> bool:
        """Whether each renamed table has its id under its new name."""
        moves = [(_label(old), _label(new)) for old, new in _renames(self._subject, self._dialect)]
        return bool(moves) and all(_which(now, to) == _which(before, of) != frozenset() for of, to in moves)

    def _exchanged(self, before: SchemaSnapshot, now: SchemaSnapshot) -> bool:
        """Whether the unpartitioned table and one of the partitions have exchanged their ids."""
        if not (names := self._exchanging(before, now)):
            return False
        plain, parent = names
        had, has = before.objects[plain].ids.get(""), now.objects[plain].ids.get("")
        return had != has and has in before.objects[parent].ids.values() and had in now.objects[parent].ids.values()

    def _in_place(self, before: SchemaSnapshot, now: SchemaSnapshot) -> bool:
        """Whether one of the two has the ids that it had: an exchange gives both another one. The other was made anew, by an ALTER TABLE of an operator."""
        return any(_which(now, name) == _which(before, name) != frozenset() for name in self._exchanging(before, now))

    def _exchanging(self, before: SchemaSnapshot, now: SchemaSnapshot) -> tuple[str, ...]:
        """The names of the unpartitioned table and of the partitioned one; empty if one of them is not in both snapshots."""
        subject = self._subject
        plain = next((f"{t.schema}.{t.name}" for t in subject.before if t.table_id == subject.job.table_id), "")
        parent = f"{subject.old.schema}.{subject.old.name}" if subject.old else ""
        return (plain, parent) if {plain, parent} <= now.objects.keys() & before.objects.keys() else ()

    def _undecided(self, why: str) -> ApplyError:
        step = self._step
        return ApplyError(
            f"an earlier attempt of the DDL of job {step.job.id} on {self._subject.label} at commit_ts {step.commit_ts} ({step.query}) has "
            f"an unknown outcome: {why}. Or check whether it ran. If it ran, skip it with syncer.ignore-txn-commit-ts = [{step.skip_ts}]. If "
            f"not, delete its row from {self._marks}."
        )


def _has_partition(snapshot: SchemaSnapshot, table: str, name: str) -> bool:
    """Whether the server's SHOW CREATE TABLE has the partition; MySQL does not quote plain names, and a MariaDB shows ``p1 DEFAULT``."""
    found = snapshot.objects.get(table)
    text = found.create.lower() if found else ""
    return any(f"partition {word.lower()} {how}" in text for word in (name, quote_name(name)) for how in ("values", "default"))


def _renames(subject: Subject, dialect: Dialect) -> list[tuple[TableAt, TableAt]]:
    """The tables to which the job gives another name, before and after it."""
    old = {t.table_id: t for t in subject.before}
    pairs = [(old[t.table_id], t) for t in subject.after if t.table_id in old]
    return [(a, b) for a, b in pairs if not same_name(_label(a), _label(b), dialect)]


def renamed(subject: Subject, dialect: Dialect, there: Callable[[TableAt], bool]) -> bool | None:
    """Whether a RENAME was executed, by the names that are there; None: they do not show it, as where two tables change places."""
    pairs = _renames(subject, dialect)
    old, new = ({_label(t): t for t in tables} for tables in ([a for a, _ in pairs], [b for _, b in pairs]))
    gone, made = old.keys() - new.keys(), new.keys() - old.keys()
    found = {name for name in gone | made if there((old | new)[name])}
    return {frozenset(gone): False, frozenset(made): True}.get(frozenset(found)) if gone or made else None


def _label(table: TableAt) -> str:
    return f"{table.schema}.{table.name}"


def _which(snapshot: SchemaSnapshot, name: str) -> frozenset[int]:
    found = snapshot.objects.get(name)
    return found.which if found else frozenset()


def compared(session: Target, subject: Subject, dialect: Dialect) -> Iterator[MissingChange | None]:
    """What the target lacks of each of the job's changes; None: the target has the change."""
    before = {t.table_id: t for t in subject.before}
    if subject.job.kind.new_table_id and subject.old is not None and subject.new is not None:
        before[subject.new.table_id] = subject.old
    for after in subject.after:
        yield from _table_lacks(session, subject, dialect, before.get(after.table_id), after)


def lacks(session: Target, subject: Subject, dialect: Dialect) -> tuple[MissingChange, ...]:
    """The job's changes that the target lacks, or that cannot be seen."""
    return tuple(lack for lack in compared(session, subject, dialect) if lack)


def unlike(session: Target, subject: Subject, dialect: Dialect, table: TableAt) -> tuple[MissingChange, ...]:
    """How an existing table differs from the one of the same name that the job creates."""
    found = [lack for lack in _table_lacks(session, subject, dialect, None, table) if lack and lack.kind not in ("column", UNSEEN.kind)]
    there, label = read_whole(session, table.schema, table.name), f"{table.schema}.{table.name}"
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
    session: Target, subject: Subject, dialect: Dialect, before: TableAt | None, after: TableAt
) -> Iterator[MissingChange | None]:
    """Yields a ``MissingChange`` for each change that is missing, None for each one that is present."""
    label = f"{after.schema}.{after.name}"
    there = read_whole(session, after.schema, after.name)
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


_FLOAT_DIGITS = 1e-6
"""A FLOAT is compared with this relative difference: it is not the number that its literal is."""


def other_values(session: Target, subject: Subject) -> tuple[str, ...]:
    """The difference, and what to do, for each column that the job adds and whose rows at the target have another value than upstream."""
    found = []
    for table, column in _added(subject):
        name, value = table_name(table.schema, table.name), origin_literal(column, session.flavour)
        same = _holds(column, _stored(column, value), session.flavour)
        try:
            if not session.query(f"SELECT 1 FROM {name} WHERE NOT ({same}) LIMIT 1"):
                continue
        except ServerRefused:
            continue
        update = filling(table, column, value, f"NOT ({same})")
        found.append(
            f"{table.schema}.{table.name} already has the column {column.name}, and rows that are there hold another value than upstream, where it is "
            f"{value}. If somebody made the column for another use, rename it and start again. Otherwise, before any later row is written, execute {update}"
        )
    return tuple(found)


def _added(subject: Subject) -> Iterator[tuple[TableAt, ColumnInfo]]:
    before = {t.table_id: t for t in subject.before}
    for after in subject.after:
        old = before.get(after.table_id)
        pairs = pair_columns(subject.job, subject.query, old.info, after.info) if old else None
        if pairs is not None:
            fresh = (c for c in visible(after.info) if c.name.lower() not in pairs)
            yield from ((after, c) for c in fresh if not c.generated and not c.flag & ColumnFlag.AUTO_INCREMENT)


def _stored(column: ColumnInfo, literal: str) -> str:
    """``literal`` as a row of the target shows it: a CHAR has no blanks at its end."""
    if column.tp != ColumnType.STRING or not is_text(column) or not literal.endswith(" '"):
        return literal
    return f"{literal[:-1].rstrip(' ')}'"


def _holds(column: ColumnInfo, literal: str, flavour: Flavour) -> str:
    """The condition that the column is ``literal``."""
    shown = quote_name(column.name)
    if literal == "NULL":
        return f"{shown} IS NULL"
    if column.tp in (ColumnType.FLOAT, ColumnType.DOUBLE) and column.decimal >= 0:
        return f"{shown} IS NOT NULL AND ABS({shown} - {literal}) <= {0.5 * 10.0**-column.decimal!r} + ABS({literal}) * {_FLOAT_DIGITS}"
    if column.tp == ColumnType.FLOAT:
        return f"{shown} IS NOT NULL AND ABS({shown} - {literal}) <= ABS({literal}) * {_FLOAT_DIGITS}"
    if column.tp == ColumnType.SET:
        return f"{shown} <=> {literal}"  # a text
    first, *others = (text.decode() for text in match_condition(column, flavour, indexed=False))
    return f"{first}{literal}{literal.join(others)}"


_ALREADY_SO = frozenset({1007, 1008, 1049, 1050, 1051, 1054, 1060, 1061, 1091, 1146, 1176, 1493, 1507, 1517, 4091, 4092})
"""It exists, or does not exist any more: database, table, column, key, partition, sequence, view."""
_TWICE = frozenset({JobType.ADD_INDEX, JobType.ADD_FOREIGN_KEY, JobType.MULTI_SCHEMA_CHANGE})
"""These may succeed a second time, and make something twice."""


class HandedOver:
    """One DDL of that span."""

    def __init__(self, session: Target, subject: Subject, dialect: Dialect, history: SchemaHistory) -> None:
        self._session = session
        self._subject = subject
        self._dialect = dialect
        self._history = history

    def made_again(self, made_since: Callable[[int], bool]) -> bool:
        """Whether a RENAME was executed, and then this program created its old names again, for a CREATE TABLE before it in the
        span. Then the renamed tables have all their rows. ``made_since``: whether this program has executed the job of this id there.
        """
        subject = self._subject
        if subject.job.kind.effect is not JobEffect.RENAMES or self._renamed() is not None:
            return False
        made = [self._history.jobs_of_table(t.table_id, 0, self._history.newest_version)[:1] for t in subject.before]
        old, new = {(t.schema, t.name) for t in subject.before}, {(t.schema, t.name) for t in subject.after}
        fresh = all(jobs and jobs[0].kind.makes_tables and made_since(jobs[0].id) for jobs in made)
        return fresh and not old & new and all(column_names(self._session, *name) for name in new)

    def undecided(self) -> str:
        """Why a person must say whether the DDL was executed; empty if that can be told."""
        job = self._subject.job
        way_out = "check the target, execute the DDL by hand if it was not executed, and then skip it"
        if job.kind.effect is JobEffect.EXCHANGES:
            return f"another Drainer may have executed it before it crashed, and executing it again would put the rows back: {way_out}"
        if job.kind.effect is JobEffect.RENAMES and self._renamed() is None:
            return f"another Drainer may have executed it before it crashed, and the names on the target do not show it: {way_out}"
        if job.kind.effect is JobEffect.RESTORES and not self._restored():
            return f"another Drainer may have dropped or truncated a later table of that name, and the target may then restore other rows: {way_out}"
        return ""

    def executed(self) -> bool:
        """Whether the target shows that it was executed."""
        job = self._subject.job
        if job.kind.effect is JobEffect.RENAMES:
            return bool(self._renamed())
        if job.kind.effect is JobEffect.RESTORES:
            return self._restored()
        return job.type in _TWICE and shows(self._session, self._subject, self._dialect)

    def already_so(self, error: ApplyError, made: TableAt | None) -> bool:
        """Whether the target refuses the DDL, which makes the table ``made``, because it, or a later one, was executed."""
        kind = self._subject.job.kind
        if kind.makes_tables and error.errno == EXISTS_TABLE:
            return made is not None and self._stands(made)
        return kind.effect is not JobEffect.RENAMES and error.errno in _ALREADY_SO

    def another_by_now(self, name: str, there: Collection[str]) -> bool:
        """Whether the target's column of this name, which the DDL changes, is another one, under the name that a later DDL has given it.

        ``there``: lower-case names of the target's columns.
        """
        old, new = self._subject.old, self._subject.new
        if old is None or new is None:
            return False
        gone = {c.id for c in visible(new.info) if c.name.lower() not in there} & {c.id for c in visible(old.info)}
        later = self._history.jobs_of_table(new.table_id, self._subject.job.version, self._history.newest_version) if gone else ()
        tables = (table for job in later if (table := self._history.table_at(new.table_id, job.version)) is not None)
        return any(c.id in gone and c.name.lower() == name.lower() for table in tables for c in visible(table.info))

    def _stands(self, table: TableAt) -> bool:
        """Whether the existing table is the table that the DDL creates, or what later DDLs have made of it."""
        if self._history.jobs_of_table(table.table_id, self._subject.job.version, self._history.newest_version):
            return True
        return not unlike(self._session, self._subject, self._dialect, table)

    def _restored(self) -> bool:
        new = self._subject.new
        return new is not None and bool(column_names(self._session, new.schema, new.name))

    def _renamed(self) -> bool | None:
        """Whether the tables have their new names; None: some have, or old and new names are the same ones."""
        return renamed(self._subject, self._dialect, lambda table: bool(column_names(self._session, table.schema, table.name)))
