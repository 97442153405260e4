"""What a job changes in a table's definition, as one ALTER TABLE, and which of these changes the target's table has already. Pure.

    DropKey, RenameKey, ModifyKey, AddKey      DROP, RENAME, ALTER INDEX, ADD KEY; an index over an expression is left out, a loss
    DropColumn, AddColumn                      DROP, ADD COLUMN, filled with TiDB's value for older rows; the declared default follows in a second statement
    RenameColumn, ModifyColumn, MoveColumn     one CHANGE or MODIFY for each column, with its whole definition; FIRST or AFTER only where the place is not the end
    DropForeignKey, AddForeignKey              DROP, ADD FOREIGN KEY
    AlterOption                                charset, comment and where AUTO_INCREMENT begins; the others are TiDB's own, losses

Promises: nothing is guessed. If a column that is gone may be one that came (``SchemaMismatch``), there is no statement. A change that is there is not made again: it was
made before a crash, by another Drainer, or by a person. A change that the definition does not show is made again, which is harmless.

A server names a foreign key that has no name: TiDB ``fk_1``, InnoDB ``t_ibfk_1``. So if the target lacks TiDB's name, the key is found by its columns.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import KINDS, JobEffect, JobType, On, kind_of
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
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
    diff,
)
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnInfo, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import bare, plainly, without_columns
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import (
    charset_option,
    column_definition,
    counter_option,
    fills_otherwise,
    foreign_key_definition,
    index_definition,
    is_now,
    left_out,
    origin_literal,
    recoded_words,
    set_default,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Charset, Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.exactness import differs
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable

_NO_DEFAULT = 1 << 12
"""TiDB's flag of a NOT NULL column without a default."""
_DEFAULT = frozenset({"default", "default_bit", "default_is_expr"})

UNCLEAR = "a column that is gone may be one that came under another name, and the text of the DDL does not say which; or a column gets the name of another one"
"""Why there is no ``Alteration``."""


def by_changes(subject: Subject, dialect: Dialect) -> bool:
    """Whether the job is executed change by change: no type of a later release, and at a TiDB, which is given its own text, not what only the text says."""
    job, kind = subject.job, subject.job.kind
    if subject.old is None or subject.new is None:
        return False
    if dialect.flavour is Flavour.TIDB and subject.given.form is DdlForm.TEXT:
        types = job.sub_jobs if job.type == JobType.MULTI_SCHEMA_CHANGE else (job.type,)
        there = {c.id for c in subject.old.info.columns}
        # Where it is unclear which column came, older rows must not get another value of an added column from the text.
        adds = any(c.id not in there and fills_otherwise(c, dialect.flavour) for c in visible(subject.new.info))
        shown = bool(types) and all(kind_of(t).effect is JobEffect.ALTERS for t in types)
        return shown and (adds or altered_by(subject, dialect) is not None)
    return kind.effect is JobEffect.ALTERS or (kind.effect is JobEffect.SETS and kind.on is On.TABLE and job.type in KINDS)


def altered_by(subject: Subject, dialect: Dialect) -> "Alteration | None":
    """Changes that the job makes in its table; None: ``UNCLEAR``."""
    if subject.old is None or subject.new is None:
        return None
    return Alteration.of(subject.old.info, subject.new.info, subject.query, dialect, subject.new.schema)


def by_text(altered: "Alteration", subject: Subject) -> bool:
    """Whether the target, a TiDB, is given TiDB's own text: but for defaults, which another session and another zone may read otherwise."""
    added = [c.column for c in altered.changes if isinstance(c, AddColumn) and not c.column.generated]
    sets = any(c.default is not None or c.default_bit is not None or fills_otherwise(c, Flavour.TIDB) for c in added)
    sets = sets or any(_DEFAULT & {field for field, _ in c.changed} for c in altered.changes if isinstance(c, ModifyColumn))
    return altered.dialect.flavour is Flavour.TIDB and subject.given.form is DdlForm.TEXT and not sets


class OwnColumn(NamedTuple):
    """Difference of a column of the target because of a person, or of another ``spark.upstream-new-collations``: a change of something else leaves it so."""

    type: str = ""
    """The whole type; empty: it is the upstream's."""
    charset: Charset | None = None
    """None: it is the upstream's; without a name: the type has none."""


AS_UPSTREAM = OwnColumn()


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes that a job makes in one table."""

    old: TableInfo
    new: TableInfo
    changes: tuple[TableChange, ...]
    dialect: Dialect
    schema: str = ""
    """The table's database at the target."""

    @classmethod
    def of(cls, old: TableInfo, new: TableInfo, query: str, dialect: Dialect, schema: str = "") -> "Alteration | None":
        """Compare the definitions before and after; ``query``: the job's text. None if it is not certain which column became which.

        A column is modified if its definition at the target changes: by the job, or because it counts, which needs a key there.
        """
        # Without what a DDL is in progress on.
        old, new = (
            replace(i, columns=tuple(c for c in i.columns if c.public), indexes=tuple(k for k in i.indexes if k.state == PUBLIC))
            for i in (old, new)
        )
        try:
            whole = cls(old, new, tuple(diff(old, new, query)), dialect, schema)
        except SchemaMismatch:
            return None
        names = {c.name.lower() for c in visible(old)}
        if any(after.lower() in names and after.lower() != before.lower() for after, before in whole._renamed.items()):
            return None  # after a crash nobody could tell whether they have changed their names; TiDB has no such job
        changed = {c.name: c for c in whole.changes if isinstance(c, ModifyColumn)}
        # What a definition depends on beside the columns.
        around = [(i.charset, i.collate, i.pk_is_handle, i.is_common_handle, i.indexes) for i in (old, new)]
        same = not changed and around[0] == around[1]
        modified = [
            changed.get(c.name, ModifyColumn(c.name, ())) for was, c in whole.kept() if not (same and was == c) and whole._differs(was, c)
        ]
        others = (c for c in whole.changes if not isinstance(c, ModifyColumn) and not whole._has_no_form(c))
        return replace(whole, changes=(*others, *modified))

    @property
    def _renamed(self) -> dict[str, str]:
        """The former names of renamed columns, by the new ones."""
        return {c.after: c.before for c in self.changes if isinstance(c, RenameColumn)}

    @property
    def refused_twice(self) -> bool:
        """Whether a server refuses each of the changes that it has already, and none of their clauses needs the target's columns. A DROP INDEX is none: an
        index that was left out may have left its name to a person's.
        """
        return all(isinstance(c, AddColumn | DropColumn | AddKey) for c in self.changes)

    def clauses(self, left: Collection[TableChange] | None = None, own_columns: Mapping[str, OwnColumn] | None = None) -> list[str]:
        """The clauses in an order in which a server can execute them.

        ``left``: those of ``changes`` that are to be made; None: all. ``own_columns``: the target's columns by lower-case name; None: those of ``old``.
        """
        return [clause for group in self._groups(self.changes if left is None else left, own_columns) for clause in group]

    def statements(
        self, table: TableAt, left: Collection[TableChange] | None = None, own_columns: Mapping[str, OwnColumn] | None = None
    ) -> list[str]:
        """``clauses`` as ALTERs of ``table``, to be executed in this order: one or none; at a TiDB several, where one is refused."""
        groups = self._groups(self.changes if left is None else left, own_columns)
        return [f"ALTER TABLE {table_name(table.schema, table.name)} {', '.join(group)}" for group in groups if group]

    def _groups(self, left: Collection[TableChange], own_columns: Mapping[str, OwnColumn] | None) -> list[list[str]]:
        """A TiDB looks for the column of AFTER in the table as it is before the statement: what the statement brings or renames is not there (1054)."""
        found: list[list[str]] = [
            [
                *(f"DROP FOREIGN KEY {quote_name(c.name)}" for c in left if isinstance(c, DropForeignKey)),
                *(self._key_clause(c) for c in left if isinstance(c, DropKey)),
                *(f"DROP COLUMN {quote_name(c.name)}" for c in left if isinstance(c, DropColumn)),
            ]
        ]
        brought = set[str]()
        for text, after, brings in self._column_clauses(left, own_columns):
            if self.dialect.flavour is Flavour.TIDB and after and after in brought:
                found.append([])
                brought.clear()
            found[-1].append(text)
            brought.add(brings)
        found[-1] += [
            *(self._key_clause(c) for c in left if isinstance(c, RenameKey | ModifyKey | AddKey)),
            *(f"ADD {foreign_key_definition(c.key, self.schema)}" for c in left if isinstance(c, AddForeignKey)),
            *self._options(left),
        ]
        return [[clause for clause in group if clause] for group in found]

    def losses(self) -> Iterator[str]:
        """Yield what the clauses leave out."""
        yield from (f"expression index {key.name} left out" for key in keys_of(self.changes) if not self._can_make(key))
        if self.dialect.flavour is Flavour.TIDB:
            return  # it is given its own text
        now = {before: after for after, before in self._renamed.items()}
        was = replace(self.old, columns=tuple(replace(c, name=now.get(c.name, c.name)) for c in self.old.columns))
        kept = {column.name for former, column in self.kept() if self._held_charset(former, column)}
        for column in visible(self.new):
            if column.name not in kept and (words := recoded_words(column, self.new, self.dialect)):
                yield words
        before = set(left_out(was, self.dialect))
        yield from (loss for loss in left_out(self.new, self.dialect) if loss not in before)

    def filled(self) -> list[ColumnInfo]:
        """The added columns whose default is not the value that older rows get."""
        added = (c.column for c in self.changes if isinstance(c, AddColumn))
        return [column for column in added if fills_otherwise(column, self.dialect.flavour)]

    def kept(self) -> list[tuple[ColumnInfo, ColumnInfo]]:
        """Each column that stays, before and after."""
        added = {c.column.name for c in self.changes if isinstance(c, AddColumn)}
        return [(self.former(c), c) for c in visible(self.new) if c.name not in added]

    def changed_column(self, change: TableChange) -> str:
        """The former name of the column that ``change`` drops, renames, modifies or moves; empty: it does not."""
        match change:
            case DropColumn(name) | RenameColumn(name):
                return name
            case ModifyColumn(name) | MoveColumn(name):
                return self.former(column_of(self.new, name)).name
        return ""

    def former(self, column: ColumnInfo) -> ColumnInfo:
        """The old column of a new one that was not added."""
        return column_of(self.old, self._renamed.get(column.name, column.name))

    def _key_clause(self, change: DropKey | RenameKey | ModifyKey | AddKey) -> str:
        match change:
            case DropKey(name):
                return f"DROP INDEX {quote_name(name)}"
            case RenameKey(before, after):
                return f"RENAME INDEX {quote_name(before)} TO {quote_name(after)}"
            case ModifyKey(name, changed):
                seen, unseen = ("NOT IGNORED", "IGNORED") if self.dialect.flavour is Flavour.MARIADB else ("VISIBLE", "INVISIBLE")
                return f"ALTER INDEX {quote_name(name)} {unseen if dict(changed)['invisible'] else seen}"
            case AddKey(key) if self._can_make(key):
                return "ADD " + index_definition(key, self.dialect, self.new)
        return ""

    def _can_make(self, key: IndexInfo) -> bool:
        return self.dialect.flavour is not Flavour.MARIADB or not self.new.over_expression(key)

    def is_needed(self, change: TableChange) -> bool:
        """Whether rows cannot be held, found or written as upstream without ``change``."""
        needed = bare(self.new)
        match change:
            case AddColumn(column):
                return column.id in {c.id for c in needed.columns}
            case ModifyColumn(name):
                return name in {c.name for c in needed.columns}
            case AddKey(key):
                return key.id in {i.id for i in needed.indexes}
            case DropKey(name):
                return any(k.unique or k.primary for k in self.old.indexes if k.name == name)
        return isinstance(change, DropColumn | RenameColumn)

    def _column_clauses(self, left: Collection[TableChange], own_columns: Mapping[str, OwnColumn] | None) -> Iterator[tuple[str, str, str]]:
        """Yield each clause, the column that the clause names in AFTER, and the name that is there only from now on; empty: none."""
        added = {c.column.name for c in left if isinstance(c, AddColumn)}
        at_end = {c.name for c in takewhile(lambda c: c.name in added, reversed(visible(self.new)))}
        renamed = {c.after: c.before for c in left if isinstance(c, RenameColumn)}
        placed = (added - at_end) | {c.name for c in left if isinstance(c, MoveColumn)}
        modified = {c.name: c for c in left if isinstance(c, ModifyColumn)}
        before = ""
        for column in visible(self.new):
            name = column.name
            after = before if name in placed else ""
            place = "" if name not in placed else f" AFTER {quote_name(after)}" if after else " FIRST"
            if name in added:
                filled = origin_literal(column, self.dialect.flavour) if fills_otherwise(column, self.dialect.flavour) else None
                yield f"ADD COLUMN {column_definition(column, self.new, self.dialect, explicit=True, default=filled)}{place}", after, name
            elif name in modified and name not in renamed and not place and self._only_default(modified[name]):
                yield set_default(column), "", ""
            elif place or name in renamed or name in modified:
                own = own_columns.get(renamed.get(name, name).lower(), AS_UPSTREAM) if own_columns else AS_UPSTREAM
                charset = own.charset or self._held_charset(self.former(column), column)
                text = column_definition(column, self.new, self.dialect, explicit=True, type_=own.type, charset=charset)
                verb = f"CHANGE COLUMN {quote_name(renamed[name])}" if name in renamed else "MODIFY COLUMN"
                yield f"{verb} {text}{place}", after, name if name in renamed else ""
            if own_columns is None or name in added or name in renamed or name.lower() in own_columns:
                before = name

    def _only_default(self, change: ModifyColumn) -> bool:
        """Whether nothing but a plain default changes, or goes."""
        column = column_of(self.new, change.name)
        fields = {field for field, _ in change.changed}
        flags = (self.former(column).flag ^ column.flag) & ~_NO_DEFAULT
        return bool(fields & _DEFAULT) and fields - {"flag"} <= _DEFAULT and not (flags or column.default_is_expr or is_now(column))

    def _options(self, left: Collection[TableChange]) -> Iterator[str]:
        changed = {c.name for c in left if isinstance(c, AlterOption)}
        if changed & {"charset", "collate"}:
            yield charset_option(self.new, self.dialect)
        if "comment" in changed:
            yield f"COMMENT = {quote_string(self.new.comment)}"
        if "auto_increment" in changed:
            yield counter_option(self.new, self.dialect)

    def _differs(self, was: ColumnInfo, column: ColumnInfo) -> bool:
        """Whether a column of the target that has the new name already needs another definition."""
        held, was = self._held_charset(was, column), replace(was, name=column.name)
        before = column_definition(was, self.old, self.dialect, explicit=True, charset=held)
        # Where TiDB has a TEXT(50), the target may have chosen a smaller type.
        after = column_definition(column, self.new, self.dialect, explicit=True, charset=held)
        return before != after or differs(was, column)

    def _held_charset(self, was: ColumnInfo, column: ColumnInfo) -> Charset | None:
        """The charset that a column has and keeps, whatever keys come and go; None: it gets one now, or has none."""
        kept = is_text_or_words(was) and is_text_or_words(column) and (was.charset, was.collate) == (column.charset, column.collate)
        return self.dialect.column_charset(was, self.old) if kept else None

    def _has_no_form(self, change: TableChange) -> bool:
        """Whether no clause makes the change: the hidden column of an index over an expression, an option or an id of TiDB; or not made here."""
        match change:
            case AddColumn(column):
                return column.hidden
            case DropColumn(name) | RenameColumn(name):
                return column_of(self.old, name).hidden
            case MoveColumn(name):
                return column_of(self.new, name).hidden
            case ModifyKey(_, changed):
                return "invisible" not in dict(changed)
            case AlterOption(name):
                return name not in ("charset", "collate", "comment", "auto_increment")
        return not isinstance(change, DropKey | RenameKey | AddKey | DropForeignKey | AddForeignKey)


def as_at_target(subject: Subject, table: TargetTable) -> tuple[Subject, tuple[str, ...]]:
    """``subject`` with its table as an earlier DDL has left it at the target, and what cannot be made of what it lacks.

    A VIRTUAL column may have been left out, and a STORED one made plain. One that the job defines anew is tried again.
    """
    old, new = subject.old, subject.new
    if old is None or new is None:
        return subject, ()
    columns = {c.name.lower(): c for c in table.columns}
    computed = [c for c in visible(old.info) if c.generated]
    absent = {c.id for c in computed if not c.generated_stored and c.name.lower() not in columns}
    plain = {c.id for c in computed if c.generated_stored and (found := columns.get(c.name.lower())) and not found.generated}
    if not absent | plain:
        return subject, ()
    same = {replace(c, name="", offset=0, state=PUBLIC) for c in computed}
    still = {c.id for c in new.info.columns if c.id in absent and replace(c, name="", offset=0, state=PUBLIC) in same}
    before = without_columns(plainly(old.info, plain), absent)
    after = without_columns(plainly(new.info, plain), still)
    swapped = {id(old): replace(old, info=before.info), id(new): replace(new, info=after.info)}
    fitted = replace(
        subject,
        before=tuple(swapped.get(id(t), t) for t in subject.before),
        after=tuple(swapped.get(id(t), t) for t in subject.after),
    )
    return fitted, tuple(loss for loss in after.losses if loss not in before.losses)


def keys_of(changes: Collection[TableChange]) -> list[IndexInfo]:
    """The keys that come."""
    return [c.key for c in changes if isinstance(c, AddKey)]


def column_of(info: TableInfo, name: str) -> ColumnInfo:
    """The column of exactly this name, which must be there."""
    return next(c for c in info.columns if c.name == name)
