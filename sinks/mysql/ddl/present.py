"""Which changes of a job the target's table has already. Pure.

A change that is there is not made again: it was made before a crash, by another Drainer, or by a person. A change that the definition does not show is made again,
which is harmless: a default, an expression, a comment, whether an index is visible.

A server names a foreign key that has no name: TiDB ``fk_1``, InnoDB ``t_ibfk_1``. TiDB's name cannot be used at the target: there it must be unique in the database. So
if the target lacks the name, the key is found by its columns: it is a key over the same columns with a name that a server has made (``ForeignKeys``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
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
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN, ColumnFlag, ColumnInfo, ColumnType, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import AS_UPSTREAM, Alteration, OwnColumn, column_of, keys_of
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type, is_now
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Charset, Dialect, is_text_or_words, spelled
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.exactness import misfit, same_type
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable

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
    """What of an ``Alteration`` is in a table of the target."""

    def __init__(self, altered: Alteration, there: TargetTable) -> None:
        self._altered, self._there = altered, there
        self._columns = {c.name.lower(): c for c in there.columns}
        renamed = {c.before.lower(): c.after.lower() for c in altered.changes if isinstance(c, RenameColumn)}
        named = [renamed.get(name, name) for name in self._columns]
        wanted = [name for c in visible(altered.new) if (name := c.name.lower()) in set(named)]
        self._places = _before(wanted), _before([name for name in named if name in set(wanted)])
        self._foreign = ForeignKeys(there.foreign_keys)
        self._had = {c.name.lower() for c in visible(altered.old)}
        # The target cannot make an index over an expression, or somebody has dropped it. A plain one of that name is somebody's own.
        computed = {
            i.name.lower() for i in altered.old.indexes if altered.old.over_expression(i) and altered.dialect.flavour is not Flavour.TIDB
        }
        self._never_made = {name for name in computed if (key := there.key(name)) is None or all(column for column, _ in key.columns)}

    def missing(self) -> tuple[TableChange, ...]:
        """The changes that the target does not have, or that cannot be seen; a foreign key that goes has its name there."""
        left = (change for change in self._altered.changes if self.lack(change) is not None)
        return tuple(DropForeignKey(self._there_as(c.name)) if isinstance(c, DropForeignKey) else c for c in left)

    def _there_as(self, name: str) -> str:
        """The target's name of a foreign key that goes; empty if it is gone."""
        return self._foreign.left(self._altered.old, self._altered.new, name)

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
        known = {spelled(c.collate) for c in accepted_charsets(altered.dialect, was, altered.old, None)}
        return OwnColumn(type_, None if spelled(found.collation) in known else Charset(found.charset, found.collation))

    def lack(self, change: TableChange) -> MissingChange | None:
        """What of ``change`` the target lacks; None: it has it."""
        altered, there = self._altered, self._there
        match change:
            case AddColumn(column):
                # A column that the table had under this name is not the one that comes.
                found = None if column.name.lower() in self._had else self._columns.get(column.name.lower())
                if found is None:
                    return MissingChange(f"column {column.name} missing", "column")
                plain = column.generated_stored and not found.generated  # rows write it
                words = "of another kind" if found.generated != column.generated and not plain else self._misfit(found, column, None)
                return MissingChange(f"column {column.name} is {words}", "type") if words else None
            case DropColumn(name):
                return MissingChange(f"column {name} still there", "left") if name.lower() in self._columns else None
            case RenameColumn(before, after):
                found = self._columns.get(after.lower())
                done = (
                    found is not None and found.name == after and (before.lower() == after.lower() or before.lower() not in self._columns)
                )
                return None if done else MissingChange(f"column {before} is not {after}", "column")
            case MoveColumn(name):
                wanted, now = (places.get(name.lower(), "") for places in self._places)
                return (
                    None
                    if wanted == now
                    else MissingChange(f"column {name} is after {now or 'none'} instead of {wanted or 'none'}", "order")
                )
            case ModifyColumn(name):
                return self._modified(change, column_of(altered.new, name))
            case DropKey(name) | ModifyKey(name) | RenameKey(name) if name.lower() in self._never_made:
                return None
            case AddKey(key):
                exactly = any(isinstance(c, DropKey) and c.name.lower() == key.name.lower() for c in altered.changes)
                has = has_key(key, there, altered.new, exactly=exactly)
                return None if has else MissingChange(f"key {key.name} missing or different", "key")
            case DropKey(name):
                # One that comes back under its name, over other parts of its columns, is not dropped again.
                again = [k for k in keys_of(altered.changes) if k.name.lower() == name.lower()]
                gone = there.key(name) is None or any(has_key(k, there, altered.new, exactly=True) for k in again)
                return None if gone else MissingChange(f"key {name} still there", "key")
            case AddForeignKey(foreign):
                lacks = self._foreign.lacks(altered.new, foreign.name)
                return MissingChange(f"foreign key {foreign.name} missing", "foreign key") if lacks else None
            case DropForeignKey(name):
                return MissingChange(f"foreign key {name} still there", "foreign key") if self._there_as(name) else None
            case RenameKey(before, after):
                done = there.key(before) is None and there.key(after) is not None
                return None if done else MissingChange(f"key {before} is not {after}", "key")
            case AlterOption("comment", value):
                return None if there.comment == value else MissingChange("another comment", "option")
            case AlterOption("charset" | "collate"):
                wanted = altered.dialect.charset(altered.new.charset, altered.new.collate).collate
                same = spelled(there.collation) == spelled(wanted)
                return None if same else MissingChange(f"{there.collation} instead of {wanted}", "option")
        return UNSEEN

    def _modified(self, change: ModifyColumn, column: ColumnInfo) -> MissingChange | None:
        was, found = self._altered.former(column), self._columns.get(column.name.lower())
        still_json = column.name.lower() in self._there.json and column.tp != ColumnType.JSON
        words = "missing" if found is None else "still JSON" if still_json else self._misfit(found, column, was)
        if found is None or words:
            return MissingChange(f"column {column.name} is {words}", "type")
        others = {field for field, _ in change.changed} - _SHOWN
        shown = not others or (others == {"default"} and _has_default(found, column))
        if not change.changed or not shown or _may_be_former(found, was, column) or (was.flag ^ column.flag) & _NOT_SHOWN:
            return UNSEEN
        return None

    def _misfit(self, found: TargetColumn, column: ColumnInfo, was: ColumnInfo | None) -> str:
        return misfit(found, column, was, *accepted_charsets(self._altered.dialect, column, self._altered.new, was))


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


def _before(order: Sequence[str]) -> dict[str, str]:
    """By column, the one before it."""
    return dict(zip(order[1:], order, strict=False))


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


def has_key(index: IndexInfo, there: TargetTable, info: TableInfo, *, exactly: bool = False) -> bool:
    """Whether the target has this key of ``info``; ``exactly``: with its prefixes, also if it is not unique."""
    found: TargetKey | None = there.key(index.name)
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


_Columns = tuple[str, ...]
_MADE = re.compile(r"(.*_ibfk_|fk_)?\d+")
"""What servers call a foreign key without a name."""


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """The foreign keys of one table at the target."""

    there: Mapping[str, _Columns]
    """The columns, in lower case, by the key's name."""

    def lacks(self, info: TableInfo, name: str) -> bool:
        """Whether the key ``name`` of ``info`` is missing."""
        if self._has(name):
            return False
        columns = _upstream(info)[name]
        return not columns or len(self._unnamed(info, columns)) < len(self._sought(info, columns))

    def left(self, old: TableInfo, new: TableInfo, name: str) -> str:
        """The target's name of the key ``name`` of ``old``, which ``new`` does not have; empty if it is gone."""
        if self._has(name):
            return next(n for n in self.there if n.lower() == name.lower())
        columns = _upstream(old)[name]
        unnamed = self._unnamed(old, columns) if columns else []
        return unnamed[0] if len(unnamed) > len(self._sought(new, columns)) else ""

    def _has(self, name: str) -> bool:
        return name.lower() in {n.lower() for n in self.there}

    def _unnamed(self, info: TableInfo, columns: _Columns) -> list[str]:
        """Those over these columns that a server has named, and otherwise than any of ``info``."""
        known = {n.lower() for n in info.foreign_key_names}
        return sorted(n for n, found in self.there.items() if found == columns and _MADE.fullmatch(n) and n.lower() not in known)

    def _sought(self, info: TableInfo, columns: _Columns) -> list[str]:
        """Those of ``info`` over these columns that are not there by name."""
        return [n for n, own in _upstream(info).items() if own == columns and not self._has(n)]


def _upstream(info: TableInfo) -> dict[str, _Columns]:
    return {key.name: tuple(c.lower() for c in key.columns) for key in info.foreign_keys}
