"""The model of ``schemas.table_changes``: what a list of changes makes of a definition."""

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from itertools import groupby
from typing import Any

from pyspark_tidb_binlog.schemas import table_changes as to
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, IndexInfo, TableInfo


def applied(before: TableInfo | None, changes: Sequence[to.TableChange]) -> TableInfo | None:
    """``before`` after ``changes``, which come in their order; its keys ascend by name."""
    match changes:
        case [to.CreateTable(table)]:
            assert before is None
            return tidy(table)
        case [to.DropTable()]:
            assert before is not None
            return None
    info = before
    for kind, run in groupby(changes, type):
        assert info is not None
        if kind is to.RenameColumn:
            info = renamed(info, {c.before: c.after for c in run})
        elif kind is to.RenameKey:
            names = {c.before: c.after for c in run}
            info = replace(info, indexes=tuple(replace(k, name=names.get(k.name, k.name)) for k in info.indexes))
        else:
            for change in run:
                info = changed(change, info)
    return None if info is None else tidy(info)


def tidy(info: TableInfo) -> TableInfo:
    """Offsets from 0 on, keys of which each knows those of its columns, and all keys in the order of their names."""
    columns = tuple(replace(c, offset=place) for place, c in enumerate(info.columns))
    place = {c.name: c.offset for c in columns}
    keys = [replace(k, columns=tuple(replace(c, offset=place[c.name]) for c in k.columns)) for k in info.indexes]
    foreign = sorted(info.foreign_keys, key=lambda k: k.name)
    return replace(
        info,
        columns=columns,
        indexes=tuple(sorted(keys, key=lambda k: k.name)),
        foreign_keys=tuple(foreign),
    )


def renamed(info: TableInfo, names: dict[str, str]) -> TableInfo:
    def new(name: str) -> str:
        return names.get(name, name)

    return replace(
        info,
        columns=tuple(replace(c, name=new(c.name)) for c in info.columns),
        indexes=tuple(replace(k, columns=tuple(replace(c, name=new(c.name)) for c in k.columns)) for k in info.indexes),
        partition_columns=tuple(map(new, info.partition_columns)),
        foreign_keys=tuple(replace(k, columns=tuple(map(new, k.columns))) for k in info.foreign_keys),
    )


@singledispatch
def changed(change: Any, info: TableInfo) -> TableInfo:
    raise AssertionError(f"{change} of {info.name}")


@changed.register
def _(change: to.DropKey, info: TableInfo) -> TableInfo:
    return replace(info, indexes=without(info.indexes, change.name))


@changed.register
def _(change: to.AddKey, info: TableInfo) -> TableInfo:
    assert change.key.name not in names(info.indexes)
    return replace(info, indexes=(*info.indexes, change.key))


@changed.register
def _(change: to.ModifyKey, info: TableInfo) -> TableInfo:
    return replace(info, indexes=amended(info.indexes, change.name, **dict(change.changed)))


@changed.register
def _(change: to.DropForeignKey, info: TableInfo) -> TableInfo:
    return replace(info, foreign_keys=without(info.foreign_keys, change.name))


@changed.register
def _(change: to.AddForeignKey, info: TableInfo) -> TableInfo:
    assert change.key.name not in info.foreign_key_names
    return replace(info, foreign_keys=(*info.foreign_keys, change.key))


@changed.register
def _(change: to.DropColumn, info: TableInfo) -> TableInfo:
    assert all(change.name not in names(k.columns) for k in info.indexes)
    return replace(info, columns=without(info.columns, change.name))


@changed.register
def _(change: to.ModifyColumn, info: TableInfo) -> TableInfo:
    return replace(info, columns=amended(info.columns, change.name, **dict(change.changed)))


@changed.register
def _(change: to.AddColumn, info: TableInfo) -> TableInfo:
    assert change.column.name not in names(info.columns)
    return replace(info, columns=placed(info.columns, change.column, change.after))


@changed.register
def _(change: to.MoveColumn, info: TableInfo) -> TableInfo:
    (column,) = (c for c in info.columns if c.name == change.name)
    return replace(info, columns=placed(without(info.columns, change.name), column, change.after))


@changed.register
def _(change: to.DropPartition, info: TableInfo) -> TableInfo:
    return replace(info, partitions=without(info.partitions, change.name))


@changed.register
def _(change: to.AddPartition, info: TableInfo) -> TableInfo:
    assert change.partition.name not in names(info.partitions)
    return replace(info, partitions=placed(info.partitions, change.partition, change.after))


@changed.register
def _(change: to.ModifyPartition, info: TableInfo) -> TableInfo:
    return replace(info, partitions=amended(info.partitions, change.name, **dict(change.changed)))


@changed.register
def _(change: to.Repartition, info: TableInfo) -> TableInfo:
    return replace(
        info,
        partition_type=change.type,
        partition_expr=change.expr,
        partition_columns=change.columns,
        partitions=change.partitions,
    )


@changed.register
def _(change: to.AlterOption, info: TableInfo) -> TableInfo:
    return replace(info, **{change.name: change.value})


def names(parts: Sequence[Any]) -> list[str]:
    return [part.name for part in parts]


def without(parts: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    assert names(parts).count(name) == 1, name
    return tuple(part for part in parts if part.name != name)


def amended(parts: tuple[Any, ...], name: str, **more: Any) -> tuple[Any, ...]:
    assert names(parts).count(name) == 1, name
    return tuple(replace(part, **more) if part.name == name else part for part in parts)


def placed(parts: tuple[Any, ...], part: ColumnInfo | IndexInfo | Any, after: str) -> tuple[Any, ...]:
    at = names(parts).index(after) + 1 if after else 0
    return (*parts[:at], part, *parts[at:])
