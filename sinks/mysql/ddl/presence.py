"""Compares a table of the target with its definition after a job: which of the job's changes it has (``Presence``, ``compared``). Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.table_changes import (
    AddColumn,
    AddForeignKey,
    AddKey,
    AlterOption,
    DropColumn,
    DropForeignKey,
    DropKey,
    ModifyColumn,
    ModifyKey,
    MoveColumn,
    RenameColumn,
    RenameKey,
    TableChange,
)
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
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import AS_UPSTREAM, UNCLEAR, Alteration, OwnColumn, column_of, keys_of
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import off_page_form
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import limit_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type, is_now
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Charset, Dialect, is_text_or_words, spelled
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.exactness import misfit, same_type
from pyspark_tidb_binlog.sinks.mysql.structure import TableName, TargetColumn, TargetKey, TargetTable

_SHOWN = frozenset("id tp flag flen decimal charset collate elems origin_default origin_default_bit state version".split())
"""Fields of a column that ``misfit`` compares, or that no target has."""
_NOT_SHOWN = int(ColumnFlag.AUTO_INCREMENT | ColumnFlag.ON_UPDATE_NOW)


@dataclass(frozen=True, slots=True)
class MissingChange:
    """One change of the job that the target does not have."""

    words: str
    kind: str
    """``table``, ``column``, ``left`` (a column that goes is there), ``order``, ``type``, ``key``, ``option``, ``partition``, ``foreign key``, ``engine``, or ``unseen``: the definition does not show it."""


UNSEEN = MissingChange("not shown by the definition", "unseen")


class Presence:
    """Changes of an ``Alteration`` that a table of the target has."""

    def __init__(self, altered: Alteration, table: TargetTable) -> None:
        self._altered, self._table = altered, table
        self._columns = {c.name.lower(): c for c in table.columns}
        renamed = {c.before.lower(): c.after.lower() for c in altered.changes if isinstance(c, RenameColumn)}
        named = [renamed.get(name, name) for name in self._columns]
        wanted = [name for c in visible(altered.new) if (name := c.name.lower()) in set(named)]
        now = [name for name in named if name in set(wanted)]
        self._places = dict(zip(wanted[1:], wanted, strict=False)), dict(zip(now[1:], now, strict=False))
        """The column before each column."""
        self._had = {c.name.lower() for c in visible(altered.old)}
        # The target cannot make an index over an expression, or somebody has dropped it. A plain one of that name is somebody's own.
        computed = {
            i.name.lower() for i in altered.old.indexes if altered.old.over_expression(i) and altered.dialect.flavour is not Flavour.TIDB
        }
        self._never_made = {name for name in computed if (key := table.key(name)) is None or all(column for column, _ in key.columns)}

    def missing(self) -> tuple[TableChange, ...]:
        """The changes that the target does not have, or that cannot be seen; a foreign key that goes has its name there."""
        left = (change for change in self._altered.changes if self.lack(change) is not None)
        return tuple(
            DropForeignKey(self._foreign_key_name(self._altered.old, c.name)) if isinstance(c, DropForeignKey) else c for c in left
        )

    def _foreign_key_name(self, info: TableInfo, name: str) -> str:
        """The target's name of a foreign key of ``info``: its own, or that of a key over the same columns which is no other key's; empty if it is not there."""
        foreign_keys = self._table.foreign_keys
        own = next((n for n in foreign_keys if n.lower() == name.lower()), "")
        columns = next(tuple(c.lower() for c in key.columns) for key in info.foreign_keys if key.name == name)
        known = {n.lower() for info in (self._altered.old, self._altered.new) for n in info.foreign_key_names}
        return own or next((n for n in sorted(foreign_keys) if foreign_keys[n] == columns and n.lower() not in known), "")

    def own_columns(self) -> dict[str, OwnColumn]:
        """The target's columns by lower-case name, in what they are not as the upstream's were before the job."""
        pairs = {column.name.lower(): pair for pair in self._altered.kept() for column in pair}
        return {name: self._own(found, *pairs[name]) if name in pairs else AS_UPSTREAM for name, found in self._columns.items()}

    def _own(self, found: TargetColumn, was: ColumnInfo, now: ColumnInfo) -> OwnColumn:
        altered = self._altered
        if was.generated or found.generated:
            return AS_UPSTREAM
        type_ = found.type if column_type(was) == column_type(now) and not same_type(found.type, was) else ""
        if type_ and not (found.collation and is_text_or_words(was)):
            return OwnColumn(type_, Charset(found.charset, found.collation))
        if not found.collation or not is_text_or_words(was) or (was.charset, was.collate) != (now.charset, now.collate):
            return OwnColumn(type_)
        known = altered.dialect.column_charset(was, altered.old)
        return OwnColumn(type_, None if spelled(found.collation) == spelled(known.collate) else Charset(found.charset, found.collation))

    def lack(self, change: TableChange) -> MissingChange | None:
        """Return what the target lacks of ``change``; None: nothing."""
        altered, table = self._altered, self._table
        match change:
            case DropKey(name) | ModifyKey(name) | RenameKey(name) if name.lower() in self._never_made:
                return None
            case AddColumn(column):
                return self._added(column)
            case ModifyColumn(name):
                return self._modified(change, column_of(altered.new, name))
            case DropColumn(name):
                has, words, kind = name.lower() not in self._columns, f"column {name} still there", "left"
            case RenameColumn(before, after):
                found = self._columns.get(after.lower())
                has = found is not None and found.name == after and (before.lower() == after.lower() or before.lower() not in self._columns)
                words, kind = f"column {before} is not {after}", "column"
            case MoveColumn(name):
                wanted, now = (places.get(name.lower(), "") for places in self._places)
                has, words, kind = wanted == now, f"column {name} is after {now or 'none'} instead of {wanted or 'none'}", "order"
            case AddKey(key):
                exactly = any(isinstance(c, DropKey) and c.name.lower() == key.name.lower() for c in altered.changes)
                has, words, kind = has_key(key, table, altered.new, exactly=exactly), f"key {key.name} missing or different", "key"
            case DropKey(name):
                # One that comes back under its name, over other parts of its columns, is not dropped again.
                again = [k for k in keys_of(altered.changes) if k.name.lower() == name.lower()]
                has = table.key(name) is None or any(has_key(k, table, altered.new, exactly=True) for k in again)
                words, kind = f"key {name} still there", "key"
            case RenameKey(before, after):
                has, words, kind = table.key(before) is None and table.key(after) is not None, f"key {before} is not {after}", "key"
            case AddForeignKey(foreign):
                named = self._foreign_key_name(altered.new, foreign.name)
                goes = {self._foreign_key_name(altered.old, c.name) for c in altered.changes if isinstance(c, DropForeignKey)}
                has, words, kind = bool(named) and named not in goes, f"foreign key {foreign.name} missing", "foreign key"
            case DropForeignKey(name):
                has, words, kind = not self._foreign_key_name(altered.old, name), f"foreign key {name} still there", "foreign key"
            case AlterOption("comment", value):
                has, words, kind = table.comment == value, "another comment", "option"
            case AlterOption("charset" | "collate"):
                collate = altered.dialect.charset(altered.new.charset, altered.new.collate).collate
                has, words, kind = spelled(table.collation) == spelled(collate), f"{table.collation} instead of {collate}", "option"
            case _:
                return UNSEEN
        return None if has else MissingChange(words, kind)

    def _added(self, column: ColumnInfo) -> MissingChange | None:
        # A column that the table had under this name is not the one that comes.
        found = None if column.name.lower() in self._had else self._columns.get(column.name.lower())
        if found is None:
            return MissingChange(f"column {column.name} missing", "column")
        if found.generated != column.generated and not (column.generated_stored and not found.generated):  # rows write it then
            return MissingChange(f"column {column.name} is of another kind", "type")
        forms = [column, off_page_form(column, self._altered.dialect)] if found.generated == column.generated else [column]
        words = [self._misfit(found, form, None) for form in forms]
        return MissingChange(f"column {column.name} is {words[0]}", "type") if all(words) else None

    def _modified(self, change: ModifyColumn, column: ColumnInfo) -> MissingChange | None:
        was, found = self._altered.former(column), self._columns.get(column.name.lower())
        still_json = column.name.lower() in self._table.json and column.tp != ColumnType.JSON
        words = "missing" if found is None else "still JSON" if still_json else self._misfit(found, column, was)
        if found is None or words:
            return MissingChange(f"column {column.name} is {words}", "type")
        others = {field for field, _ in change.changed} - _SHOWN
        plain = [None] if column.default is None else [str(column.default), quote_string(str(column.default))]
        shown = not others or (others == {"default"} and found.default in plain and not (column.default_is_expr or is_now(column)))
        if not change.changed or not shown or _may_be_former(found, was, column) or (was.flag ^ column.flag) & _NOT_SHOWN:
            return UNSEEN
        return None

    def _misfit(self, found: TargetColumn, column: ColumnInfo, was: ColumnInfo | None) -> str:
        dialect = self._altered.dialect
        wanted = dialect.column_charset(column, self._altered.new)
        return misfit(found, column, was, wanted, replace(dialect, nopad=False).charset(column.charset, column.collate).charset)


def _may_be_former(found: TargetColumn, was: ColumnInfo, column: ColumnInfo) -> bool:
    """Whether the target's column may have its former type still, where that passes for the new one: another width, or a LONGTEXT that becomes JSON."""
    former, wanted, at_target = column_type(was), column_type(column).lower(), found.type.lower()
    alike = former.lower() != wanted and same_type(former, column, was)
    return alike and (at_target == former.lower() or ("(" in wanted and at_target != wanted))


def has_key(index: IndexInfo, table: TargetTable, info: TableInfo, *, exactly: bool = False) -> bool:
    """Whether the target has this key of ``info``; ``exactly``: with its prefixes, also if it is not unique."""
    found: TargetKey | None = table.key(index.name)
    names = ["" if c.hidden else c.name.lower() for c in info.index_columns(index)]
    if found is None or found.unique != (index.unique or index.primary) or [n.lower() for n, _ in found.columns] != names:
        return False
    # The prefix length matters for unique keys only: on the others a different one only affects speed.
    lengths = {c.name.lower(): c.flen for c in info.columns}
    whole, mine = (
        [WHOLE_COLUMN if n == lengths.get(c.lower()) else n for c, n in parts]
        for parts in ([(p.name, p.length) for p in index.columns], found.columns)
    )
    return not (found.unique or exactly) or whole == mine


Tables = Mapping[TableName, TargetTable]
"""What the target has under the names of the tables after the job."""

FREEZES = frozenset({"table", "column"})
"""What rows need: a table that lacks it is frozen. Keys, partitions, types, options and columns that stay are somebody's own."""


def has_all(subject: Subject, dialect: Dialect, after: Tables) -> bool:
    """Whether the job has changes that a definition shows, and the target has all of them."""
    found = tuple(compared(subject, dialect, after))
    return bool(found) and not any(found)


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
    info = table.info
    # The primary key that is the integer handle is not among the indexes of the infos.
    columns = tuple(IndexColumn(c.name, c.offset, WHOLE_COLUMN) for c in info.handle_columns()) if info.pk_is_handle else ()
    handle = (IndexInfo(0, "PRIMARY", columns, True, True, PUBLIC, False, ""),) if columns else ()
    whole = replace(table, info=replace(info, indexes=(*info.indexes, *handle)))
    found = [lack for lack in _table_lacks(subject, dialect, None, whole, there) if lack and lack.kind not in ("column", UNSEEN.kind)]
    label = table.label
    if there is None or info.is_view or info.is_sequence:
        return tuple(found)
    wanted, names = tuple(c.name for c in visible(info)), tuple(c.name for c in there.columns)
    if names != wanted:
        found.insert(0, MissingChange(f"{label}: columns {list(names)} instead of {list(wanted)}", "column"))
    if not there.transactional:
        found.append(MissingChange(f"{label}: engine {there.engine} has no transactions", "engine"))
    known = {index.name.lower() for index in whole.info.indexes}
    more = [key.name for key in there.unique_keys if key.name.lower() not in known]
    return (*found, *(MissingChange(f"{label}: unique key {name} does not exist upstream", "key") for name in more))


def _table_lacks(
    subject: Subject, dialect: Dialect, before: TableAt | None, after: TableAt, there: TargetTable | None
) -> Iterator[MissingChange | None]:
    """Yield a ``MissingChange`` for each change that is missing, None for each one that is present.

    A target may lack indexes over expressions, and those that a foreign key has brought. Foreign keys of a table that comes are not compared. Partitions that the
    job adds must exist, with their bound, because somebody's own may have the name. Those that it removes must not.
    """
    label = after.label
    if before is None or (before.schema, before.name) != (after.schema, after.name):
        yield None if there else MissingChange(f"table {label}", "table")
    if there is None or after.info.is_view or after.info.is_sequence:
        return
    new = after.info if before else replace(after.info, foreign_keys=())
    old = before.info if before else replace(new, columns=(), indexes=())
    altered = Alteration.of(old, new, subject.query or ";", dialect)
    if altered is None:
        yield MissingChange(f"{label}: {UNCLEAR}", "column")
    else:
        presence, brought = Presence(altered, there), {name.lower() for name in (*old.foreign_key_names, *after.info.foreign_key_names)}
        may_lack = {
            i.name.lower() for t in (old, new) for i in t.indexes if t.over_expression(i) or (not i.unique and i.name.lower() in brought)
        }
        for change in altered.changes:
            match change:
                case AddKey(key):
                    names = {key.name.lower()}
                case DropKey(name) | ModifyKey(name):
                    names = {name.lower()}
                case RenameKey(was, now):
                    names = {was.lower(), now.lower()}
                case _:
                    names = set()
            if not names & may_lack:
                lack = presence.lack(change)
                yield lack and replace(lack, words=f"{label}: {lack.words}")
    had, has = ({p.name.lower() for p in info.partitions} for info in (old, after.info))
    bounds = {name.lower(): bound for name, bound in there.partitions.items()}
    for name in sorted(has - had):
        wanted, found = limit_of(after.info, name), bounds.get(name)
        other = f"ends at {found} instead of {wanted}" if wanted and found and wanted.upper() != found.upper() else ""
        words = "missing" if found is None else other
        yield MissingChange(f"{label}: partition {name} {words}", "partition") if words else None
    for name in sorted(had - has):
        yield MissingChange(f"{label}: partition {name} still there", "partition") if name in bounds else None
