"""Checks whether the changes of a job are present on the target. [db]

Promises: reads only. Compares the target with the table infos only in what the job changes: columns, keys and options as ``present`` does, partitions, foreign
keys, table names. Other differences on the target are ignored.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddKey, DropKey, ModifyKey, RenameKey, TableChange
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import UNCLEAR, Alteration
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.partition_bounds import limit_of
from pyspark_tidb_binlog.sinks.mysql.ddl.present import UNSEEN, MissingChange, Presence, has_key
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import partition_bounds
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target

STRUCTURE = frozenset({"table", "column", "key", "partition", "foreign key"})
"""What a table must have to count as changed; its types and options may be somebody's own."""


def compared(session: Target, subject: Subject, dialect: Dialect) -> Iterator[MissingChange | None]:
    """For each of the job's changes what the target lacks, or None: it has it."""
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
    was, now = [p.name for p in old.partitions], [p.name for p in after.info.partitions]
    if set(was) != set(now):
        bounds = partition_bounds(session, after.schema, after.name)
        yield from _name_lacks("partition", label, was, now, bounds)
        yield from _bound_lacks(label, set(now) - set(was), after.info, bounds)


def _definition_lacks(
    subject: Subject, dialect: Dialect, label: str, old: TableInfo, new: TableInfo, whole: TableInfo, there: TargetTable
) -> Iterator[MissingChange | None]:
    """Columns, keys and options. A target may lack indexes over expressions, and those that a foreign key has brought."""
    altered = Alteration.of(old, new, subject.query or ";", dialect, subject.lacking)
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


def _name_lacks(kind: str, label: str, was: Iterable[str], now: Iterable[str], there: Iterable[str]) -> Iterator[MissingChange | None]:
    """Names that the job adds must exist, and those that it removes must not."""
    before, after, found = ({n.lower() for n in names} for names in (was, now, there))
    for name in sorted(after - before):
        yield None if name in found else MissingChange(f"{label}: {kind} {name} missing", kind)
    for name in sorted(before - after):
        yield MissingChange(f"{label}: {kind} {name} still there", kind) if name in found else None


def _bound_lacks(label: str, added: Collection[str], info: TableInfo, bounds: Mapping[str, str]) -> Iterator[MissingChange | None]:
    """A partition of somebody's own may have the name of one that the job adds."""
    there = {name.lower(): bound for name, bound in bounds.items()}
    for name in sorted(added):
        wanted, found = limit_of(info, name), there.get(name.lower(), "")
        if wanted and found and wanted.upper() != found.upper():
            yield MissingChange(f"{label}: partition {name} ends at {found} instead of {wanted}", "partition")
