"""One ALTER TABLE from the changes that a job makes to a table's definition. Pure.

    DropKey, RenameKey, ModifyKey, AddKey      DROP, RENAME, ALTER INDEX, ADD KEY; an index over an expression is left out, a loss
    DropColumn, AddColumn                      DROP, ADD COLUMN, filled with TiDB's value for older rows; the declared default follows in a second statement
    RenameColumn, ModifyColumn, MoveColumn     one CHANGE or MODIFY for each column, with its whole definition
    AlterOption                                charset and comment; the other options are TiDB's own

Promises: nothing is guessed. If a column that is gone may be one that came (``SchemaMismatch``), there is no statement.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.table_changes import (
    AddColumn,
    AddForeignKey,
    AddKey,
    AlterOption,
    DropColumn,
    DropKey,
    ModifyColumn,
    ModifyKey,
    MoveColumn,
    RenameColumn,
    RenameKey,
    TableChange,
    diff,
)
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnInfo, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.column_sql import column_definition, index_definition, lacks_counter
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import fills_otherwise, origin_literal
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour


@dataclass(frozen=True, slots=True)
class Alteration:
    """What a job changes in one table."""

    old: TableInfo
    new: TableInfo
    changes: tuple[TableChange, ...]
    dialect: Dialect
    lacking: frozenset[str]
    """Lower-case names of the expression indexes that the target's table is known to lack."""

    @classmethod
    def of(cls, old: TableInfo, new: TableInfo, query: str, dialect: Dialect, lacking: frozenset[str]) -> "Alteration | None":
        """From the definitions before and after; ``query``: the job's text. None if it is not certain which column became which."""
        old, new = _public(old), _public(new)
        try:
            return cls(old, new, tuple(diff(old, new, query)), dialect, lacking)
        except SchemaMismatch:
            return None

    def clauses(self) -> list[str]:
        """In an order in which a server can execute them."""
        keys = [self._key_clause(c) for c in self.changes if isinstance(c, RenameKey | ModifyKey | AddKey)]
        found = [
            *(self._key_clause(c) for c in self.changes if isinstance(c, DropKey)),
            *(f"DROP COLUMN {quote_name(c.name)}" for c in self.changes if isinstance(c, DropColumn) and not self._hides(self.old, c.name)),
            *self._column_clauses(),
            *keys,
            *self._options(),
        ]
        return [clause for clause in found if clause]

    def losses(self) -> Iterator[str]:
        """What the clauses leave out."""
        for change in self.changes:
            match change:
                case AddForeignKey(name):
                    yield f"foreign key {name} left out"
                case AddKey(key) if self.new.over_expression(key):
                    yield f"expression index {key.name} left out"
                case AddColumn(column) if lacks_counter(column, self.dialect):
                    yield no_counter(column)
                case ModifyColumn(name) if lacks_counter(now := self._column(self.new, name), self.dialect):
                    if not lacks_counter(self._former(now), self.dialect):
                        yield no_counter(now)

    def filled(self) -> list[ColumnInfo]:
        """The added columns whose default is not the value that older rows get."""
        added = (c.column for c in self.changes if isinstance(c, AddColumn) and not c.column.hidden)
        return [column for column in added if fills_otherwise(column, self.dialect.flavour)]

    def only_expression_indexes(self) -> bool:
        """Whether it adds indexes over expressions, and does nothing else."""
        return bool(self.changes) and all(
            self.new.over_expression(c.key) if isinstance(c, AddKey) else isinstance(c, AddColumn) and c.column.hidden for c in self.changes
        )

    def _key_clause(self, change: DropKey | RenameKey | ModifyKey | AddKey) -> str:
        match change:
            case DropKey(name) if self._made(name):
                return f"DROP INDEX {quote_name(name)}"
            case RenameKey(before, after) if self._made(before):
                return f"RENAME INDEX {quote_name(before)} TO {quote_name(after)}"
            case ModifyKey(name, changed) if "invisible" in dict(changed) and self._made(name):
                seen, unseen = ("NOT IGNORED", "IGNORED") if self.dialect.flavour is Flavour.MARIADB else ("VISIBLE", "INVISIBLE")
                return f"ALTER INDEX {quote_name(name)} {unseen if dict(changed)['invisible'] else seen}"
            case AddKey(key) if not self.new.over_expression(key):
                return "ADD " + index_definition(key, self.dialect)
        return ""

    def _made(self, name: str) -> bool:
        """Whether the target has the old table's index of this name: one over an expression may have been left out."""
        key = next((i for i in self.old.indexes if i.name.lower() == name.lower()), None)
        left_out = self.dialect.flavour is Flavour.MARIADB or name.lower() in self.lacking
        return key is None or not (self.old.over_expression(key) and left_out)

    def _column_clauses(self) -> Iterator[str]:
        added = {c.column.name for c in self.changes if isinstance(c, AddColumn)}
        moved = {c.name for c in self.changes if isinstance(c, MoveColumn)}
        position = "FIRST"
        for column in visible(self.new):
            text = column_definition(column, self.new, self.dialect, explicit=True)
            if column.name in added:
                yield f"ADD COLUMN {self._added(column)} {position}"
            else:
                was, place = self._former(column), f" {position}" if column.name in moved else ""
                if was.name != column.name:
                    yield f"CHANGE COLUMN {quote_name(was.name)} {text}{place}"
                elif place or column_definition(was, self.old, self.dialect, explicit=True) != text:
                    yield f"MODIFY COLUMN {text}{place}"
            position = f"AFTER {quote_name(column.name)}"

    def _added(self, column: ColumnInfo) -> str:
        filled = origin_literal(column, self.dialect.flavour) if fills_otherwise(column, self.dialect.flavour) else None
        return column_definition(column, self.new, self.dialect, explicit=True, default=filled)

    def _options(self) -> Iterator[str]:
        changed = {c.name: c.value for c in self.changes if isinstance(c, AlterOption)}
        if changed.keys() & {"charset", "collate"}:
            found = self.dialect.charset(self.new.charset, self.new.collate)
            yield f"DEFAULT CHARACTER SET = {found.charset} COLLATE = {found.collate}"
        if "comment" in changed:
            yield f"COMMENT = {quote_string(self.new.comment)}"

    def _former(self, column: ColumnInfo) -> ColumnInfo:
        """The old column of a new one that was not added."""
        renamed = {c.after: c.before for c in self.changes if isinstance(c, RenameColumn)}
        return self._column(self.old, renamed.get(column.name, column.name))

    @staticmethod
    def _column(info: TableInfo, name: str) -> ColumnInfo:
        return next(c for c in info.columns if c.name == name)

    @classmethod
    def _hides(cls, info: TableInfo, name: str) -> bool:
        return cls._column(info, name).hidden


def no_counter(column: ColumnInfo) -> str:
    """The loss of a column whose values the target does not count up."""
    return f"column {column.name}: AUTO_INCREMENT left out"


def _public(info: TableInfo) -> TableInfo:
    """``info`` without the columns and keys on which a DDL is in progress."""
    keys: tuple[IndexInfo, ...] = tuple(i for i in info.indexes if i.state == PUBLIC)
    return replace(info, columns=tuple(c for c in info.columns if c.public), indexes=keys)
