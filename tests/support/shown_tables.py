"""A table as a TiDB's information_schema shows it, made of its info: for definitions that are compared."""

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable


def as_tidb_shows(table: TableAt) -> TargetTable:
    """The table with columns and keys."""
    info = table.info
    keys = [TargetKey("PRIMARY", tuple((c.name, WHOLE_COLUMN) for c in info.handle_columns()))] if info.pk_is_handle else []
    for index in info.indexes:
        if index.state == PUBLIC:
            parts = zip(index.columns, info.index_columns(index), strict=True)
            shown = tuple(("" if c.hidden else c.name, part.length) for part, c in parts)
            keys.append(TargetKey(index.name, shown, index.unique or index.primary))
    columns = tuple(map(_shown, visible(info)))
    unique, others = (tuple(k for k in keys if k.unique is wanted) for wanted in (True, False))
    return TargetTable(table.schema, table.name, columns, unique, collation=info.collate, other_keys=others)


def _shown(column: ColumnInfo) -> TargetColumn:
    words = column_type(column)
    kind = words if column.tp in (ColumnType.ENUM, ColumnType.SET) else words.lower()
    default = None if column.default is None else str(column.default)
    if column.default_bit is not None:
        default = f"b'{int.from_bytes(column.default_bit, 'big'):b}'"
    counts = bool(column.flag & ColumnFlag.AUTO_INCREMENT)
    return TargetColumn(
        column.name, kind, not column.not_null, default, column.generated, counts, column.collate if is_text_or_words(column) else ""
    )
