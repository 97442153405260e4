"""Checks whether the changes of a job are present on the target. [db]

Promises: reads only. Compares the target with the table infos only in what the job changes: names, types, charsets and order of columns,
keys, partitions, foreign keys, table names. Other differences on the target are ignored. Defaults and generation expressions are not
compared, since each server formats them differently: ``unseen`` returns the columns in which a job changes them. Comments are ignored.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.history import TableAt
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
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.ddl.fit import Shown, differs, misfit, spelled
from pyspark_tidb_binlog.sinks.mysql.ddl.foreign_keys import ForeignKeys
from pyspark_tidb_binlog.sinks.mysql.ddl.partition_bounds import limit_of
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names, partition_bounds
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text


@dataclass(frozen=True, slots=True)
class MissingChange:
    """One change of the job that the target does not have."""

    words: str
    kind: str
    """``table``, ``column``, ``type``, ``key``, ``partition``, ``foreign key`` or ``engine``."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A column in which a job changes something that ``lacks`` does not compare."""

    table: str
    """``schema.table``."""
    before: str
    after: str
    """The column's names before and after the job."""


def lacks(session: Target, subject: Subject, dialect: Dialect) -> tuple[MissingChange, ...] | None:
    """The job's changes that the target lacks; None if the job changes nothing that is compared."""
    before = {t.table_id: t for t in subject.before}
    if subject.job.kind.new_table_id and subject.old is not None and subject.new is not None:
        before[subject.new.table_id] = subject.old
    found: list[MissingChange] = []
    looked = False
    for after in subject.after:
        for lack in _table_lacks(session, subject, dialect, before.get(after.table_id), after):
            looked = True
            found += [lack] if lack else []
    return tuple(found) if looked else None


def unlike(session: Target, subject: Subject, dialect: Dialect, table: TableAt) -> tuple[MissingChange, ...]:
    """How an existing table differs from the one of the same name that the job creates."""
    found = [lack for lack in _table_lacks(session, subject, dialect, None, table) if lack]
    there = read_tables(session, [(table.schema, table.name)]).get((table.schema, table.name))
    if there is not None and not there.transactional:
        found.append(MissingChange(f"{table.schema}.{table.name}: engine {there.engine} has no transactions", "engine"))
    known = {index.name.lower() for index in (*table.info.indexes, *_handle_key(table.info))}
    more = [name for name, (unique, _) in read_keys(session, table).items() if unique and name not in known]
    return (*found, *(MissingChange(f"{table.schema}.{table.name}: unique key {name} does not exist upstream", "key") for name in more))


def unseen(subject: Subject) -> tuple[Unseen, ...]:
    """The columns whose default or generation expression the job changes."""
    before = {t.table_id: t for t in subject.before}
    found = []
    for after in subject.after:
        old = before.get(after.table_id)
        pairs = pair_columns(subject.job, subject.query, old.info, after.info) or {} if old else {}
        for column in visible(after.info):
            was = pairs.get(column.name.lower())
            if was is not None and _written(was) != _written(column):
                found.append(Unseen(f"{after.schema}.{after.name}", was.name, column.name))
    return tuple(found)


def _written(column: ColumnInfo) -> tuple[object, ...]:
    renews = bool(column.flag & ColumnFlag.ON_UPDATE_NOW)
    default = (column.default, column.default_bit, column.default_is_expr, renews)
    return (*default, column.generated_expr, column.generated_stored)


def _table_lacks(
    session: Target, subject: Subject, dialect: Dialect, before: TableAt | None, after: TableAt
) -> Iterator[MissingChange | None]:
    """Yields a ``MissingChange`` for each change that is missing, None for each one that is present."""
    label = f"{after.schema}.{after.name}"
    there = column_names(session, after.schema, after.name)
    if before is None or (before.schema, before.name) != (after.schema, after.name):
        yield None if there else MissingChange(f"table {label}", "table")
    if not there or after.info.is_view or after.info.is_sequence:
        return
    old = before.info if before else None
    yield from _column_lacks(session, subject, dialect, old, after, there)
    yield from _key_lacks(session, old, after)
    if old is None:
        return
    was, now = [p.name for p in old.partitions], [p.name for p in after.info.partitions]
    if set(was) != set(now):
        bounds = partition_bounds(session, after.schema, after.name)
        yield from _name_lacks("partition", label, was, now, bounds)
        yield from _bound_lacks(label, set(now) - set(was), after.info, bounds)
    if set(old.foreign_key_names) != set(after.info.foreign_key_names):
        yield from _foreign_key_lacks(session, label, old, after)


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


def _column_lacks(
    session: Target, subject: Subject, dialect: Dialect, old: TableInfo | None, after: TableAt, there: tuple[str, ...]
) -> Iterator[MissingChange | None]:
    label = f"{after.schema}.{after.name}"
    wanted = tuple(c.name for c in visible(after.info))
    known = pair_columns(subject.job, subject.query, old, after.info) if old else {}
    if old is None or [(c.id, c.name) for c in visible(old)] != [(c.id, c.name) for c in visible(after.info)]:
        fits = there == wanted if old is None else columns_fit(there, old, after.info, known)
        yield None if fits else MissingChange(f"{label}: columns {list(there)} instead of {list(wanted)}", "column")
    pairs = known or {}
    changed = [c for c in visible(after.info) if differs(pairs.get(c.name.lower()), c)]
    if not changed:
        return
    shown = _shown(session, after)
    for column in changed:
        name = column.name.lower()
        words = misfit(shown.get(name), column, pairs.get(name), *accepted_charsets(dialect, column, after.info, pairs.get(name)))
        words = words or _still_json(session, dialect, after, column, pairs.get(name))
        yield MissingChange(f"{label}: column {column.name} is {words}", "type") if words else None


def columns_fit(there: Sequence[str], old: TableInfo, new: TableInfo, pairs: Mapping[str, ColumnInfo] | None) -> bool:
    """Whether the target's columns are as the job leaves them.

    A table may have columns of its own, lack some of the upstream's (``sync-mode = 2``), or have them in another order. So the target must have the columns
    that the job adds, and must not have those that it removes. The order must be the upstream's only if the job does nothing but move columns, or gives a
    column the name of another. ``pairs``: from ``pair_columns``.
    """
    was, now = [c.name for c in visible(old)], [c.name for c in visible(new)]
    found = {name.lower() for name in there}
    added, gone = set(now) - set(was), {name.lower() for name in was} - {name.lower() for name in now}
    if added - set(there) or gone & found:
        return False
    if pairs is None:
        return True  # it renames columns, and which is which does not matter
    stay = {c.name for c in pairs.values()}
    swapped = {name for name, column in pairs.items() if column.name.lower() != name} & {name.lower() for name in was}
    moved = [n for n in was if n in stay] != [pairs[n.lower()].name for n in now if n.lower() in pairs]
    if not swapped and (added or gone or not moved):
        return True
    ordered = [name.lower() for name in now if name.lower() in found]
    return [name.lower() for name in there if name.lower() in ordered] == ordered


def _still_json(session: Target, dialect: Dialect, table: TableAt, column: ColumnInfo, was: ColumnInfo | None) -> str:
    """MariaDB's JSON is a LONGTEXT with a CHECK, which alone distinguishes it from other LONGTEXTs. In words what is still JSON; empty if nothing is."""
    if dialect.flavour is not Flavour.MARIADB or was is None or was.tp != ColumnType.JSON or column.tp == ColumnType.JSON:
        return ""
    return "still JSON" if column.name.lower() in json_columns(session, table) else ""


def json_columns(session: Target, table: TableAt) -> frozenset[str]:
    """Lower-case names of the columns of a MariaDB that are JSON; none at other servers, which show the type."""
    if session.flavour is not Flavour.MARIADB:
        return frozenset()
    sql = (
        "SELECT constraint_name FROM information_schema.check_constraints "
        "WHERE constraint_schema = %s AND table_name = %s AND check_clause LIKE 'json_valid%%'"
    )
    return frozenset(as_text(name).lower() for (name,) in session.query(sql, [table.schema, table.name]))


def accepted_charsets(dialect: Dialect, column: ColumnInfo, info: TableInfo, was: ColumnInfo | None) -> tuple[Charset, ...]:
    """The charsets that the target's column may have; the first is the charset that is written.

    A table that was created under another ``spark.upstream-new-collations`` is the same table, and a job that was executed under it is done. Only
    the job's own change shows that. So if the column had one of the two charsets before, or is MariaDB's JSON, which is ``utf8mb4_bin`` there, the name must
    be the one that is written.
    """
    wanted = dialect.column_charset(column, info)
    others = tuple(other.charset(column.charset, column.collate) for other in dialect.others())
    if was is not None and (was.tp == ColumnType.JSON or dialect.charset(was.charset, was.collate) in (wanted, *others)):
        return (wanted,)
    return wanted, *others


def keeping_padding(session: Target, dialect: Dialect, tables: Sequence[TableAt]) -> Dialect:
    """``dialect``, or the dialect with which one of ``tables`` was created if that keeps more values apart: its next DDL does not convert such a table."""
    stricter = [other for other in dialect.others() if other.nopad >= dialect.nopad and other.binary >= dialect.binary]
    if not stricter or dialect.flavour is Flavour.TIDB:
        return dialect
    for table in tables:
        shown: dict[str, Shown] = {}
        for column in visible(table.info):
            own = dialect.charset(column.charset, column.collate)
            unlike_own = [other for other in stricter if other.charset(column.charset, column.collate) != own]
            if is_text_or_words(column) and unlike_own:
                shown = shown or _shown(session, table)
                there = shown.get(column.name.lower())
                found = [
                    o for o in unlike_own if there and spelled(o.charset(column.charset, column.collate).collate) == spelled(there.collate)
                ]
                if found:
                    # The least strict of those that the column shows: another column may show more.
                    return keeping_padding(session, found[-1], tables)
    return dialect


def _shown(session: Target, table: TableAt) -> dict[str, Shown]:
    rows = session.query(
        "SELECT column_name, column_type, is_nullable, character_set_name, collation_name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s",
        [table.schema, table.name],
    )
    return {
        as_text(name).lower(): Shown(as_text(kind), as_text(nullable) == "YES", as_text(charset or ""), as_text(collate or ""))
        for name, kind, nullable, charset, collate in rows
    }


def _plain_keys(info: TableInfo) -> dict[str, IndexInfo]:
    """Keys by lower-case name, except those that the target may lack: expression indexes and implicit indexes of foreign keys."""
    brought = {name.lower() for name in info.foreign_key_names}
    public = [i for i in info.indexes if i.state == PUBLIC and (i.unique or i.name.lower() not in brought)]
    plain = [i for i in public if not info.over_expression(i)]
    return {i.name.lower(): i for i in (*plain, *_handle_key(info))}


def _handle_key(info: TableInfo) -> tuple[IndexInfo, ...]:
    """The primary key that is the integer handle, which is not among the indexes of the infos."""
    if not info.pk_is_handle:
        return ()
    columns = tuple(IndexColumn(c.name, c.offset, WHOLE_COLUMN) for c in info.handle_columns())
    return (IndexInfo(0, "PRIMARY", columns, True, True, PUBLIC, False, ""),) if columns else ()


def _key_lacks(session: Target, old: TableInfo | None, after: TableAt) -> Iterator[MissingChange | None]:
    was, now = _plain_keys(old) if old else {}, _plain_keys(after.info)
    made = [i for name, i in now.items() if name not in was or _shape(was[name]) != _shape(i)]
    gone = [i for name, i in was.items() if name not in now]
    if not made and not gone:
        return
    there = read_keys(session, after)
    label = f"{after.schema}.{after.name}"
    for index in made:
        yield None if has_key(index, there, after.info) else MissingChange(f"{label}: key {index.name} missing or different", "key")
    for index in gone:
        yield MissingChange(f"{label}: key {index.name} still there", "key") if index.name.lower() in there else None


def _shape(index: IndexInfo) -> tuple[object, ...]:
    return index.unique, index.primary, tuple((c.name.lower(), c.length) for c in index.columns)


FoundKey = tuple[bool, tuple[tuple[str, int | None], ...]]
"""(unique, (column, prefix) in order)."""


def read_keys(session: Target, table: TableAt) -> dict[str, FoundKey]:
    """The target's keys by lower-case name."""
    rows = session.query(
        "SELECT index_name, non_unique, column_name, sub_part FROM information_schema.statistics "
        "WHERE table_schema = %s AND table_name = %s ORDER BY index_name, seq_in_index",
        [table.schema, table.name],
    )
    found: dict[str, FoundKey] = {}
    for name, non_unique, column, prefix in rows:
        key = as_text(name).lower()
        parts = found[key][1] if key in found else ()
        found[key] = (not int(non_unique), (*parts, (as_text(column or "").lower(), None if prefix is None else int(prefix))))
    return found


def has_key(index: IndexInfo, there: Mapping[str, FoundKey], info: TableInfo, *, exactly: bool = False) -> bool:
    """Whether one of the target's keys is this one; ``info``: its table; ``exactly``: with its prefixes, also if it is not unique."""
    unique, parts = there.get(index.name.lower(), (False, ()))
    if unique != (index.unique or index.primary) or tuple(n for n, _ in parts) != tuple(
        "" if c.hidden else c.name.lower() for c in info.index_columns(index)
    ):
        return False
    # The prefix length matters for unique keys only: on the others a different one only affects speed.
    lengths = {c.name.lower(): c.flen for c in info.columns}
    whole = [None if c.length in (WHOLE_COLUMN, lengths.get(c.name.lower())) else c.length for c in index.columns]
    return not (unique or exactly) or [None if p == lengths.get(n) else p for n, p in parts] == whole


def _foreign_key_lacks(session: Target, label: str, old: TableInfo, after: TableAt) -> Iterator[MissingChange | None]:
    there = ForeignKeys.of(session, after)
    for name in sorted(set(after.info.foreign_key_names) - set(old.foreign_key_names)):
        yield MissingChange(f"{label}: foreign key {name} missing", "foreign key") if there.lacks(after.info, name) else None
    for name in sorted(set(old.foreign_key_names) - set(after.info.foreign_key_names)):
        yield MissingChange(f"{label}: foreign key {name} still there", "foreign key") if there.left(old, after.info, name) else None
