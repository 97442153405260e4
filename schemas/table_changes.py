"""What became of a table between two of its definitions, as a list of changes. Pure.

    diff(orders before, orders after `ADD COLUMN note TEXT AFTER id, DROP KEY by_day`)
        == (DropKey("by_day"), AddColumn(<note>, after="id"))

Algebra, for definitions of one table, ``None`` being no table:

    diff(a, a) == ()
    applied(a, diff(a, b)) == b      (``applied``: tests/support/applied_changes.py)

* Changes are listed in the order in which they can be made: keys and columns go, columns are renamed, changed, added or moved, keys come,
  partitions, then the table itself. All renames of columns happen at once, so two may swap their names; so do those of keys. Later changes use the new names.
* Columns are paired by id, then by name, then by CHANGE in the text (``column_pairs``). A pair that stays unclear is refused: a column that was
  renamed is never a dropped and an added one.
* A change names only what differs. That other columns move up, and keys name a renamed column by its new name, is no change.
* The order of keys and of foreign keys counts for nothing. A foreign key's target is renamed by a DDL of the other table, which is no change of this one.
* A definition does not say what became of rows: TRUNCATE and PARTITION BY both give the table another id.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, TypeAlias

from pyspark_tidb_binlog.schemas.column_pairs import paired
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ForeignKey, IndexInfo, PartitionDef, TableInfo

Changed: TypeAlias = tuple[tuple[str, Any], ...]
"""(field, new value) of what differs, in the order of the fields."""


@dataclass(frozen=True, slots=True)
class CreateTable:
    """There was no table."""

    table: TableInfo


@dataclass(frozen=True, slots=True)
class DropTable:
    """There is no table any more."""


@dataclass(frozen=True, slots=True)
class DropKey:
    """An index, or a primary key that is not the integer handle, goes."""

    name: str


@dataclass(frozen=True, slots=True)
class DropForeignKey:
    """A foreign key goes."""

    name: str


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column goes."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A column gets another name."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ModifyColumn:
    """A column's type, default, comment or state changes; ``id`` is among the fields where TiDB converted the data."""

    name: str
    changed: Changed


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column comes."""

    column: ColumnInfo
    after: str
    """The column before it; empty = it is the first."""


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """A column gets another place."""

    name: str
    after: str
    """The column before it; empty = it is the first."""


@dataclass(frozen=True, slots=True)
class RenameKey:
    """An index gets another name."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ModifyKey:
    """An index over the same columns changes: its visibility, comment, state, or its id, where TiDB built it again."""

    name: str
    changed: Changed


@dataclass(frozen=True, slots=True)
class AddKey:
    """An index comes."""

    key: IndexInfo


@dataclass(frozen=True, slots=True)
class AddForeignKey:
    """A foreign key comes."""

    key: ForeignKey


@dataclass(frozen=True, slots=True)
class DropPartition:
    """A partition goes."""

    name: str


@dataclass(frozen=True, slots=True)
class AddPartition:
    """A partition comes."""

    partition: PartitionDef
    after: str
    """The partition before it; empty = it is the first."""


@dataclass(frozen=True, slots=True)
class ModifyPartition:
    """A partition gets another id (it was truncated or exchanged) or other bounds."""

    name: str
    changed: Changed


@dataclass(frozen=True, slots=True)
class Repartition:
    """Rows are distributed in another way, or are no longer (``type`` 0)."""

    type: int
    expr: str
    columns: tuple[str, ...]
    partitions: tuple[PartitionDef, ...]


@dataclass(frozen=True, slots=True)
class AlterOption:
    """A field of the table itself changes: ``name``, ``id``, ``comment``, ``charset`` …"""

    name: str
    value: Any


TableChange: TypeAlias = (
    CreateTable
    | DropTable
    | DropKey
    | DropForeignKey
    | DropColumn
    | RenameColumn
    | ModifyColumn
    | AddColumn
    | MoveColumn
    | RenameKey
    | ModifyKey
    | AddKey
    | AddForeignKey
    | DropPartition
    | AddPartition
    | ModifyPartition
    | Repartition
    | AlterOption
)

_PARTS = frozenset(
    "columns indexes foreign_keys partitions partition_num partition_enabled partition_type partition_expr partition_columns".split()
)
"""The fields of a table that changes of their own describe."""


def diff(before: TableInfo | None, after: TableInfo | None, query: str = "") -> tuple[TableChange, ...]:
    """What turns ``before`` into ``after``; ``query``: the text of the DDL, which decides where a column has a new id and a new name.

    Raises:
        SchemaMismatch: a column that is gone may be one that came, and the text does not say so.
    """
    if before is None or after is None:
        return (CreateTable(after),) if after is not None else (DropTable(),) if before is not None else ()
    pairs = paired(query, before.columns, after.columns)
    if pairs is None:
        raise SchemaMismatch(
            f"table {after.name} (id {after.id}): a column that is gone may be one that came under another name, and the DDL does not say which: "
            f"{query[:300] or 'its text is unknown'}"
        )
    names = {pairs[c.name.lower()].id: c.name for c in after.columns if c.name.lower() in pairs}
    keys = _Keys(before, after, names)
    return (
        *keys.gone(),
        *_columns(before.columns, after.columns, pairs),
        *keys.left(),
        *_partitions(before, after, {c.name: names[c.id] for c in before.columns if c.id in names}),
        *(AlterOption(name, value) for name, value in _changed(before, after, _PARTS)),
    )


def _columns(before: Sequence[ColumnInfo], after: Sequence[ColumnInfo], pairs: Mapping[str, ColumnInfo]) -> Iterator[TableChange]:
    kept = {column.id for column in pairs.values()}
    yield from (DropColumn(c.name) for c in before if c.id not in kept)
    both = [(pairs[c.name.lower()], c) for c in after if c.name.lower() in pairs]
    yield from (RenameColumn(old.name, new.name) for old, new in both if old.name != new.name)
    for old, new in both:
        if changed := _changed(old, new, {"name", "offset"}):
            yield ModifyColumn(new.name, changed)
    staying = _staying([old.offset for old, _ in both])
    moved = {new.name for place, (_, new) in enumerate(both) if place not in staying}
    for last, column in zip(["", *(c.name for c in after)], after, strict=False):
        if column.name.lower() not in pairs:
            yield AddColumn(column, last)
        elif column.name in moved:
            yield MoveColumn(column.name, last)


def _staying(places: Sequence[int]) -> frozenset[int]:
    """The positions of as many of ``places`` as ascend: the fewest others are moved."""
    if all(one < other for one, other in pairwise(places)):
        return frozenset(range(len(places)))
    best: list[tuple[int, ...]] = [()]
    for at, place in enumerate(places):
        before = max((run for run in reversed(best) if not run or places[run[-1]] < place), key=len)
        best.append((*before, at))
    longest = max(reversed(best), key=len)  # of two that change places, the later one moves up
    return frozenset(longest)


class _Keys:
    """The indexes and foreign keys of both definitions."""

    def __init__(self, before: TableInfo, after: TableInfo, names: Mapping[int, str]) -> None:
        """``names``: the new name of each old column that stays, by its old id."""
        self._old, self._new = before.indexes, after.indexes
        of_old = {k.id: _meaning(before, k, lambda c: names.get(c.id)) for k in before.indexes}
        of_new = {k.id: _meaning(after, k, lambda c: c.name) for k in after.indexes}
        by_id, by_name = {k.id: k for k in self._old}, {k.name.lower(): k for k in self._old}
        self._pairs: dict[int, IndexInfo] = {}
        """By new id, of the indexes that stay."""
        finds: tuple[Callable[[IndexInfo], IndexInfo | None], ...] = (lambda k: by_id.get(k.id), lambda k: by_name.get(k.name.lower()))
        for find in finds:
            taken = {k.id for k in self._pairs.values()}
            for key in self._new:
                old = find(key)
                if key.id not in self._pairs and old is not None and old.id not in taken and of_old[old.id] == of_new[key.id]:
                    self._pairs[key.id] = old
        renamed = {c.name: names[c.id] for c in before.columns if c.id in names}
        self._old_foreign = {k.name: replace(k, columns=tuple(renamed.get(c, "") for c in k.columns)) for k in before.foreign_keys}
        self._new_foreign = {k.name: k for k in after.foreign_keys}

    def gone(self) -> Iterator[TableChange]:
        kept = {k.id for k in self._pairs.values()}
        yield from (DropKey(k.name) for k in self._old if k.id not in kept)
        yield from (DropForeignKey(n) for n, key in self._old_foreign.items() if _unlike(self._new_foreign.get(n), key))

    def left(self) -> Iterator[TableChange]:
        both = [(self._pairs[k.id], k) for k in self._new if k.id in self._pairs]
        yield from (RenameKey(old.name, new.name) for old, new in both if old.name != new.name)
        for old, new in both:
            if changed := _changed(old, new, {"name", "columns"}):
                yield ModifyKey(new.name, changed)
        yield from (AddKey(k) for k in self._new if k.id not in self._pairs)
        yield from (AddForeignKey(key) for n, key in self._new_foreign.items() if _unlike(self._old_foreign.get(n), key))


def _unlike(one: ForeignKey | None, key: ForeignKey) -> bool:
    """Whether ``key`` is another foreign key; that what it refers to was renamed, is no change of this table."""
    return one is None or (one.columns, one.on_delete, one.on_update) != (key.columns, key.on_delete, key.on_update)


def _meaning(info: TableInfo, key: IndexInfo, named: Callable[[ColumnInfo], str | None]) -> object:
    """What makes an index another one."""
    lengths = [c.length for c in key.columns]
    return key.unique, key.primary, [(named(c), length) for c, length in zip(info.index_columns(key), lengths, strict=True)]


def _partitions(before: TableInfo, after: TableInfo, renamed: Mapping[str, str]) -> Iterator[TableChange]:
    """``renamed``: the new name of each column that stays, by its old one."""
    old, new = before.partitions, after.partitions
    scheme = before.partition_type, before.partition_expr, tuple(renamed.get(c, "") for c in before.partition_columns)
    there = {p.name for p in new}
    kept = [p.name for p in old if p.name in there]
    if scheme != (after.partition_type, after.partition_expr, after.partition_columns) or kept != _common(new, old):
        yield Repartition(after.partition_type, after.partition_expr, after.partition_columns, new)
        return
    by_name = {p.name: p for p in old}
    yield from (DropPartition(p.name) for p in old if p.name not in there)
    for last, partition in zip(["", *(p.name for p in new)], new, strict=False):
        was = by_name.get(partition.name)
        if was is None:
            yield AddPartition(partition, last)
        elif changed := _changed(was, partition, {"name"}):
            yield ModifyPartition(partition.name, changed)


def _common(parts: Iterable[PartitionDef], others: Iterable[PartitionDef]) -> list[str]:
    """The names of those of ``parts`` that are among the ``others``, in their order."""
    names = {p.name for p in others}
    return [p.name for p in parts if p.name in names]


def _changed(before: Any, after: Any, apart: Iterable[str]) -> Changed:
    """The fields of two values of one class that differ, without those ``apart``."""
    if before == after:
        return ()
    both = ((f.name, getattr(before, f.name), getattr(after, f.name)) for f in fields(after) if f.name not in set(apart))
    return tuple((name, new) for name, old, new in both if old != new)
