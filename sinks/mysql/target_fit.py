"""Decides how rows are written to a table as it is at the target, where its columns are not exactly the upstream's. Pure.

    an additional column                       not written; it keeps its value (``TableAt.others``)
    a plain column, stored upstream            written with the value that the upstream has computed
    a missing or computed column               left out of every statement where that is allowed (``partial``), otherwise a ``Misfit``
    a missing column of the key of rows        a ``Misfit``
    ENUM or SET with other words               a ``Misfit``: values are written as numbers
    no unique key over the upstream's key      a ``Misfit``: a changed row would be added; a frozen table is changed without the key
    a unique key of its own                    written, and named (``TableAt.own_keys``)
    a text in another charset                  written, and named (``TableAt.recoded``)
    an engine without transactions             a ``Misfit``: a rollback would leave rows

Promises: a table whose columns are the upstream's is returned as the same object. Columns are matched by name, without regard to case. A column that differs
only in its type is written: the server converts, and warns where a value changes, which is a finding. Where it would not warn, ``exactness`` reports the column.

A key that contains an upstream key which the target also has, or longer prefixes of it, is no key of its own: it never makes two rows of the upstream equal.
Neither is a key with a column that rows never write: the column stays NULL or is AUTO_INCREMENT.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.mysql.dialect import is_recoded, table_name
from pyspark_tidb_binlog.sinks.mysql.exactness import as_shown
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable, with_transactions
from pyspark_tidb_binlog.sinks.routing.routes import narrowed


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why rows cannot be written to a table as it is."""

    table_id: int
    table: str
    """`` `db`.`table` `` at the target."""
    why: str
    """What differs, and what to do."""


def as_found(table: TableAt, there: TargetTable, *, partial: bool, keyed: bool = True) -> TableAt | Misfit:
    """``table`` as its rows are written to ``there``.

    Args:
        table: under its name at the target.
        there: the target's table.
        partial: whether columns that the target lacks may be left out.
        keyed: whether rows are changed by a unique key of the target; in safe mode they are deleted first instead.
    """
    columns = {c.name.lower(): c for c in there.columns}
    table = with_stored(table, there)
    if table.frozen:
        nulls = {name for name, c in columns.items() if c.nullable}
        narrow = frozenset(c.id for c in table.info.columns if not c.not_null and c.name.lower() not in nulls)
        table = replace(table, info=with_keys_there(table.info, there), narrow=narrow)
    wanted = table.info.target_columns()
    lacking = [c.name for c in wanted if (found := columns.get(c.name.lower())) is None or found.generated]
    label = table_name(table.schema, table.name)
    why = without_transactions(label, there) or _misfit(table, lacking, columns, partial=partial)
    if why:
        return Misfit(table.table_id, label, why)
    names = {c.name.lower() for c in wanted}
    others = tuple(c.name for c in there.columns if not c.generated and c.name.lower() not in names)
    left = {name.lower() for name in lacking}
    info = narrowed(table.info, frozenset(c.name.lower() for c in table.info.columns) - left) if lacking else table.info
    if keyed and (statement := needed_key(info, there, label)):
        why = f"it lacks the unique key that identifies rows upstream, so a changed row would be there twice. Execute {statement}, and start again"
        return Misfit(table.table_id, label, why)
    keys = tuple(key.name for key in own_keys(table.info, there))
    recoded = frozenset(c.name for c in wanted if c.name.lower() in columns and is_recoded(c, columns[c.name.lower()].charset))
    if not lacking and (others, keys, recoded) == (table.others, table.own_keys, table.recoded):
        return table
    return replace(table, info=info, others=others, own_keys=keys, recoded=recoded)


def with_stored(table: TableAt, there: TargetTable) -> TableAt:
    """``table`` with those of its STORED generated columns as plain ones that are so at the target: rows have their values."""
    plain = {c.name.lower() for c in there.columns if not c.generated}
    stored = {c.id for c in table.info.columns if c.generated_stored and c.name.lower() in plain}
    if not stored:
        return table
    columns = tuple(replace(c, generated_expr="", generated_stored=False) if c.id in stored else c for c in table.info.columns)
    return replace(table, info=replace(table.info, columns=columns))


def without_transactions(label: str, there: TargetTable) -> str:
    """Why a table may not be written to in a transaction, and what to do; empty if it may. ``label``: its name, quoted."""
    if there.transactional:
        return ""
    return (
        f"it is in engine {there.engine}, which has no transactions: rows of a transaction that is rolled back and retried would be there twice. "
        f"Execute {with_transactions(label)}, and start again"
    )


def left_out(table: TableAt, found: TableAt) -> tuple[str, ...]:
    """The columns of ``table`` that ``as_found`` has left out."""
    return tuple(c.name for c in table.info.target_columns() if c.id not in {f.id for f in found.info.target_columns()})


def _misfit(table: TableAt, lacking: list[str], columns: dict[str, TargetColumn], *, partial: bool) -> str:
    shown = ", ".join(lacking)
    key = [c.name for c in table.info.handle_columns() if c.name in lacking]
    if key:
        return f"it lacks column {', '.join(key)} of the primary key that identifies rows. Add the column there"
    if lacking and len(lacking) == len(table.info.target_columns()):
        return f"it has none of the columns that rows write ({shown}). Is it another table of the same name?"
    if lacking and not partial:
        return (
            f"it has no column {shown}, which rows write. Add it there as it is upstream, or set syncer.to.sync-mode = 2, which leaves it "
            "out from then on"
        )
    strange = [c for c in table.info.target_columns() if c.name not in lacking and other_words(c, columns[c.name.lower()])]
    if strange:
        names = ", ".join(c.name for c in strange)
        return (
            f"the ENUM or SET words of {names} differ from the upstream's, but values are written as numbers. Give it the upstream's words in the same order (more "
            "may follow), or leave it out with columns in [[spark.route]]"
        )
    return ""


def other_words(column: ColumnInfo, there: TargetColumn) -> bool:
    """Whether a number of an ENUM or SET would mean another word there."""
    if column.tp not in (ColumnType.ENUM, ColumnType.SET):
        return False
    shorter = min(len(there.words), len(column.elems))
    kind = "enum" if column.tp == ColumnType.ENUM else "set"
    return there.kind != kind or any(as_shown(a) != as_shown(b) for a, b in zip(there.words[:shorter], column.elems[:shorter], strict=True))


_Key = dict[str, int]
"""Length of the prefix by column, in lower case."""


def needed_key(info: TableInfo, there: TargetTable, label: str) -> str:
    """The statement that adds a key that the target needs to change rows; empty: it has one. ``label``: the table's name, quoted.

    One key that identifies every row is enough; if each key may be NULL, all keys are needed. A key over some of the columns, or over more, is enough too: rows
    are then deleted and inserted instead of changed in place (``own_keys``).
    """
    missing = _missing(info, there)
    if not missing or any(key.names < _names(missing[0]) or key.names > _names(missing[0]) for key in there.unique_keys):
        return ""
    first, primary = missing[0], _primary(info)
    lengths = next((key for key in _upstream(info) if key.keys() == _names(first)), {})
    parts = (quote_name(c.name) + (f"({n})" if (n := lengths.get(c.name.lower(), WHOLE_COLUMN)) != WHOLE_COLUMN else "") for c in first)
    taken = any(key.name.upper() == "PRIMARY" for key in there.unique_keys)
    return f"ALTER TABLE {label} ADD {'PRIMARY' if _names(first) == primary and not taken else 'UNIQUE'} KEY ({', '.join(parts)})"


def with_keys_there(info: TableInfo, there: TargetTable) -> TableInfo:
    """``info`` without the unique keys that the target lacks: they find no row, and need not be made. The key that images are read by stays."""
    found = {key.names for key in there.unique_keys}
    free = (i for i in info.indexes if (i.unique or i.primary) and not (i.primary and info.is_common_handle))
    lacking = {i.id for i in free if frozenset(c.name.lower() for c in i.columns) not in found}
    return replace(info, indexes=tuple(i for i in info.indexes if i.id not in lacking))


def _missing(info: TableInfo, there: TargetTable) -> list[tuple[ColumnInfo, ...]]:
    """The upstream's keys if the target needs one of them and has none."""
    keys = info.unique_keys()
    if not keys or not there.engine:
        return []
    found, primary = {key.names for key in there.unique_keys}, _primary(info)
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
        key for key in there.unique_keys if any(key.names > one for one in missing) or not _harmless(key, upstream, written, info, there)
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


def _names(key: tuple[ColumnInfo, ...]) -> frozenset[str]:
    return frozenset(c.name.lower() for c in key)


def _primary(info: TableInfo) -> frozenset[str]:
    index = None if info.pk_is_handle else info.primary_index()
    return _names(info.index_columns(index)) if index is not None else _names(info.handle_columns())
