"""What a table is like at the target, and which changes of a job it has already. [db] for ``read_definition``, the rest is pure.

A change that is there is not made again: it was made before a crash, by another Drainer, or by a person. A change that the definition does not show is made again,
which is harmless: a default, an expression, a comment, whether an index is visible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.table_changes import (
    AddColumn,
    AddKey,
    AlterOption,
    DropColumn,
    DropKey,
    ModifyColumn,
    MoveColumn,
    RenameColumn,
    RenameKey,
    TableChange,
)
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import AS_UPSTREAM, Alteration, OwnColumn, column_of, keys_of
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.ddl.column_sql import column_type, is_now
from pyspark_tidb_binlog.sinks.mysql.ddl.fit import Shown, misfit, same_type, spelled
from pyspark_tidb_binlog.sinks.mysql.ddl.wanted import FoundKey, accepted_charsets, has_key, json_columns, read_keys
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, read_tables
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

_SHOWN = frozenset("id tp flag flen decimal charset collate elems origin_default origin_default_bit state version".split())
"""Fields of a column that ``misfit`` compares, or that no target has."""
_NOT_SHOWN = int(ColumnFlag.AUTO_INCREMENT | ColumnFlag.ON_UPDATE_NOW)


@dataclass(frozen=True, slots=True)
class Definition:
    """A table of the target."""

    columns: Mapping[str, TargetColumn]
    """By lower-case name, in the table's order."""
    keys: Mapping[str, FoundKey]
    """By lower-case name."""
    comment: str
    collation: str
    """Of new columns that have none of their own."""
    json: frozenset[str]
    """Lower-case names of the columns of a MariaDB that are JSON: a LONGTEXT with a CHECK."""


def read_definition(session: Target, table: TableAt) -> Definition | None:
    """The target's table of this name; None if it has none."""
    place = table.schema, table.name
    found = read_tables(session, [place]).get(place)
    if found is None:
        return None
    # By the name that the server has: it may have another table that differs only in case.
    place = found.schema, found.name
    table = replace(table, schema=found.schema, name=found.name)
    options = "SELECT table_comment, table_collation FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    (comment, collation), *_ = session.query(options, place)
    columns = {c.name.lower(): c for c in found.columns}
    return Definition(columns, read_keys(session, table), as_text(comment), as_text(collation or ""), json_columns(session, table))


def missing(altered: Alteration, there: Definition) -> tuple[TableChange, ...]:
    """The changes that the target does not have."""
    return tuple(change for change in altered.changes if not _is_there(change, altered, there))


def own_columns(altered: Alteration, there: Definition) -> dict[str, OwnColumn]:
    """The target's columns by lower-case name, in what they are not as the upstream's were before the job."""
    pairs = {column.name.lower(): pair for pair in altered.kept() for column in pair}
    return {name: _own(found, *pairs[name], altered) for name, found in there.columns.items() if name in pairs}


def _own(found: TargetColumn, was: ColumnInfo, now: ColumnInfo, altered: Alteration) -> OwnColumn:
    if was.generated or found.generated:
        return AS_UPSTREAM
    type_ = found.type if column_type(was) == column_type(now) and not same_type(found.type, was) else ""
    if type_ and not (found.collation and is_text_or_words(was)):
        return OwnColumn(type_, Charset(found.charset, found.collation))
    if not found.collation or not is_text_or_words(was) or (was.charset, was.collate) != (now.charset, now.collate):
        return OwnColumn(type_)
    known = {spelled(c.collate) for c in accepted_charsets(altered.dialect, was, altered.old, None)}
    return OwnColumn(type_, None if spelled(found.collation) in known else Charset(found.charset, found.collation))


def _is_there(change: TableChange, altered: Alteration, there: Definition) -> bool:
    columns, keys = there.columns, there.keys
    match change:
        case AddColumn(column):
            # A column that the table had under this name, as a frozen one may have, is not the one that comes.
            had = any(c.name.lower() == column.name.lower() for c in visible(altered.old))
            found = None if had else columns.get(column.name.lower())
            return found is not None and found.generated == column.generated and not _misfit(found, column, None, altered)
        case DropColumn(name):
            return name.lower() not in columns
        case RenameColumn(before, after):
            found = columns.get(after.lower())
            return found is not None and found.name == after and (before.lower() == after.lower() or before.lower() not in columns)
        case MoveColumn(name):
            renamed = {c.before.lower(): c.after.lower() for c in altered.changes if isinstance(c, RenameColumn)}
            named = [renamed.get(c, c) for c in columns]
            wanted = [c.name.lower() for c in visible(altered.new) if c.name.lower() in named]
            return _before(name.lower(), wanted) == _before(name.lower(), [c for c in named if c in wanted])
        case ModifyColumn(name, changed):
            column = column_of(altered.new, name)
            was, found = altered.former(column), columns.get(name.lower())
            still_json = name.lower() in there.json and column.tp != ColumnType.JSON
            if found is None or not changed or still_json or _may_be_former(found, was, column) or (was.flag ^ column.flag) & _NOT_SHOWN:
                return False
            others = {field for field, _ in changed} - _SHOWN
            return (not others or (others == {"default"} and _has_default(found, column))) and not _misfit(found, column, was, altered)
        case AddKey(key):
            return has_key(
                key, keys, altered.new, exactly=any(isinstance(c, DropKey) and c.name.lower() == key.name.lower() for c in altered.changes)
            )
        case DropKey(name):
            # One that comes back under its name, over other parts of its columns, is not dropped again.
            again = [k for k in keys_of(altered.changes) if k.name.lower() == name.lower()]
            return name.lower() not in keys or any(has_key(k, keys, altered.new, exactly=True) for k in again)
        case RenameKey(before, after):
            return before.lower() not in keys and after.lower() in keys
        case AlterOption("comment", value):
            return bool(there.comment == value)
        case AlterOption("charset" | "collate"):
            return spelled(there.collation) == spelled(altered.dialect.charset(altered.new.charset, altered.new.collate).collate)
    return False


def _may_be_former(found: TargetColumn, was: ColumnInfo, column: ColumnInfo) -> bool:
    """Whether the target's column may have its former type still, where that passes for the new one: another width, or a LONGTEXT that becomes JSON."""
    former, wanted, there = column_type(was), column_type(column).lower(), found.type.lower()
    alike = former.lower() != wanted and same_type(former, column, was)
    return alike and (there == former.lower() or ("(" in wanted and there != wanted))


def _has_default(found: TargetColumn, column: ColumnInfo) -> bool:
    """Whether the target's column has the same plain default; False if that cannot be told."""
    if column.default_is_expr or is_now(column):
        return False
    return found.default in ((None,) if column.default is None else (str(column.default), quote_string(str(column.default))))


def _misfit(found: TargetColumn, column: ColumnInfo, was: ColumnInfo | None, altered: Alteration) -> str:
    shown = Shown(found.type, found.nullable, found.charset, found.collation)
    return misfit(shown, column, was, *accepted_charsets(altered.dialect, column, altered.new, was))


def _before(name: str, order: Sequence[str]) -> str:
    """The column before ``name``; empty if it is the first, or is not there."""
    return "".join(order[: order.index(name)][-1:]) if name in order else ""
