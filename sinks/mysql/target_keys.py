"""Compares the unique keys of a table at the target with the upstream's: missing keys, and keys of the target's own. Pure.

    the target has no unique key over an upstream key that identifies rows   a changed row is added beside the former row
    the target has a key that the upstream does not have                     a row of the upstream is refused, or removes another row

Promises: names are compared without regard to case. A key that contains an upstream key which the target also has, or longer prefixes of it, is no key of
its own: it never makes two rows of the upstream equal. Neither is a key with a column that rows never write: the column stays NULL or is AUTO_INCREMENT.
"""

from collections.abc import Iterator
from dataclasses import replace

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.structure import TargetKey, TargetTable

_Key = dict[str, int]
"""Length of the prefix by column, in lower case."""


def needed_key(info: TableInfo, there: TargetTable, label: str) -> str:
    """The statement that adds a key that the target needs to change rows; empty: it has one. ``label``: the table's name, quoted.

    One key that identifies every row is enough; if each key may be NULL, all keys are needed. A key over some of the columns, or over more, is enough too: rows
    are then deleted and inserted instead of changed in place (``own_keys``).
    """
    missing = _missing(info, there)
    if not missing or any(_columns(key) < _names(missing[0]) or _columns(key) > _names(missing[0]) for key in there.unique_keys):
        return ""
    first, primary = missing[0], _primary(info)
    lengths = next((key for key in _upstream(info) if key.keys() == _names(first)), {})
    parts = (quote_name(c.name) + (f"({n})" if (n := lengths.get(c.name.lower(), WHOLE_COLUMN)) != WHOLE_COLUMN else "") for c in first)
    taken = any(key.name.upper() == "PRIMARY" for key in there.unique_keys)
    return f"ALTER TABLE {label} ADD {'PRIMARY' if _names(first) == primary and not taken else 'UNIQUE'} KEY ({', '.join(parts)})"


def with_keys_there(info: TableInfo, there: TargetTable) -> TableInfo:
    """``info`` without the unique keys that the target lacks: they find no row, and need not be made. The key that images are read by stays."""
    found = {_columns(key) for key in there.unique_keys}
    free = (i for i in info.indexes if (i.unique or i.primary) and not (i.primary and info.is_common_handle))
    lacking = {i.id for i in free if frozenset(c.name.lower() for c in i.columns) not in found}
    return replace(info, indexes=tuple(i for i in info.indexes if i.id not in lacking))


def _missing(info: TableInfo, there: TargetTable) -> list[tuple[ColumnInfo, ...]]:
    """The upstream's keys if the target needs one of them and has none."""
    keys = info.unique_keys()
    if not keys or not there.engine:
        return []
    found, primary = {_columns(key) for key in there.unique_keys}, _primary(info)
    certain = [key for key in keys if _names(key) == primary or all(c.not_null for c in key)]
    missing = [key for key in (certain or keys) if _names(key) not in found]
    return [] if certain and len(missing) < len(certain) else missing


def own_keys(info: TableInfo, there: TargetTable) -> tuple[TargetKey, ...]:
    """The unique keys by which the target may treat two rows of the upstream as equal. In a table without the key that is needed also keys by which it may
    keep one row twice, as in a partitioned table whose key includes the column of the partition.
    """
    upstream, written = list(_upstream(info)), {c.name.lower() for c in info.target_columns()}
    missing = [_names(key) for key in _missing(info, there)]
    return tuple(
        key
        for key in there.unique_keys
        if any(_columns(key) > one for one in missing) or not _harmless(key, upstream, written, info, there)
    )


def _harmless(key: TargetKey, upstream: list[_Key], written: set[str], info: TableInfo, there: TargetTable) -> bool:
    parts = {name.lower(): length for name, length in key.columns}
    if "" in parts:
        return info.has_computed_key
    for name in parts.keys() - written:
        column = there.column(name)
        if column is not None and not column.generated and (column.auto_increment or (column.nullable and column.default is None)):
            return True
    return any(all(name in parts and _holds(parts[name], length) for name, length in one.items()) for one in upstream)


def _holds(there: int, length: int) -> bool:
    """Whether a prefix there is as long as the upstream's."""
    return there == WHOLE_COLUMN or (length != WHOLE_COLUMN and there >= length)


def _upstream(info: TableInfo) -> Iterator[_Key]:
    if info.pk_is_handle:
        yield {c.name.lower(): WHOLE_COLUMN for c in info.handle_columns()}
    for index in info.indexes:
        if (index.unique or index.primary) and index.state == PUBLIC:
            yield {c.name.lower(): c.length for c in index.columns}


def _columns(key: TargetKey) -> frozenset[str]:
    return frozenset(name.lower() for name, _ in key.columns)


def _names(key: tuple[ColumnInfo, ...]) -> frozenset[str]:
    return frozenset(c.name.lower() for c in key)


def _primary(info: TableInfo) -> frozenset[str]:
    index = None if info.pk_is_handle else info.primary_index()
    return _names(info.index_columns(index)) if index is not None else _names(info.handle_columns())
