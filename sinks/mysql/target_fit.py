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
"""

from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.dialect import is_recoded, table_name
from pyspark_tidb_binlog.sinks.mysql.exactness import as_shown
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetTable, with_transactions
from pyspark_tidb_binlog.sinks.mysql.target_keys import needed_key, own_keys, with_keys_there
from pyspark_tidb_binlog.sinks.routing.routes import narrowed


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why rows cannot be written to a table as it is."""

    table_id: int
    table: str
    """`` `db`.`table` `` at the target."""
    why: str
    """What differs, and what to do."""


def holds_rows(table: TableAt) -> bool:
    """Whether rows of it are written: views, sequences and temporary tables have none at the target."""
    info = table.info
    return not (info.is_view or info.is_sequence or info.temp_table_type)


def as_found(table: TableAt, there: TargetTable, *, partial: bool, keyed: bool = True) -> TableAt | Misfit:
    """``table`` as its rows are written to ``there``.

    Args:
        table: under its name at the target.
        there: the target's table.
        partial: whether columns that the target lacks may be left out.
        keyed: whether rows are changed by a unique key of the target; in safe mode they are deleted first instead.
    """
    columns = {c.name.lower(): c for c in there.columns}
    table = _with_stored(table, frozenset(name for name, c in columns.items() if not c.generated))
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


def _with_stored(table: TableAt, plain: frozenset[str]) -> TableAt:
    """``table`` with those of its STORED generated columns as plain ones that are so at the target: rows have their values."""
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
