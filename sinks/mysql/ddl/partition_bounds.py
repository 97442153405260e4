"""The rows of some partitions as a condition, for a target whose table does not have these partitions.

    RANGE (`c`), LIST (`c`)                  over a whole number
    RANGE COLUMNS (`c`), LIST COLUMNS (`c`)  over a whole number, a DATE or a DATETIME

Promises: pure. There is no condition for anything else: a hash, several columns, an expression, texts (their order depends on the collation),
a partition of all other values. NULL is in the first partition of RANGE, and in LIST where it is listed.
"""

import re
from collections.abc import Collection, Iterator

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, PartitionDef, PartitionType, TableInfo

_WHOLE = re.compile(r"-?\d+")
_TIME = re.compile(r"'\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?)?'")
_INTEGERS = frozenset({ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.MEDIUMINT, ColumnType.INT, ColumnType.BIGINT})
_TIMES = frozenset({ColumnType.DATE, ColumnType.NEWDATE, ColumnType.DATETIME})
_NO_LIMIT = "MAXVALUE"


def rows_of(info: TableInfo, names: Collection[str]) -> str:
    """The condition for the rows in the partitions ``names`` of ``info``; empty if it cannot be told exactly."""
    column = _column(info)
    wanted = {name.lower() for name in names}
    if column is None or not wanted or not wanted <= {p.name.lower() for p in info.partitions}:
        return ""
    if info.partition_type == PartitionType.RANGE:
        parts = list(_ranges(info.partitions, column, wanted))
    elif info.partition_type == PartitionType.LIST:
        parts = [_listed(p, column) for p in info.partitions if p.name.lower() in wanted]
    else:
        return ""
    return " OR ".join(parts) if all(parts) else ""


def limit_of(info: TableInfo, name: str) -> str:
    """The upper bound of a RANGE partition as each server shows it: a whole number, a DATE or MAXVALUE; empty for all others."""
    column = _column(info)
    if column is None or info.partition_type != PartitionType.RANGE or column.tp == ColumnType.DATETIME:
        return ""
    limits = next(p.less_than for p in info.partitions if p.name == name)
    return limits[0] if len(limits) == 1 and (limits[0] == _NO_LIMIT or _is_value(limits[0], column)) else ""


def _column(info: TableInfo) -> ColumnInfo | None:
    """The one column that decides; None if it is not one alone."""
    if info.partition_columns:
        names = list(info.partition_columns)
    else:
        names = [t.name for t in tokenize(info.partition_expr) if not t.blank]
    if len(names) != 1:
        return None
    column = next((c for c in info.columns if c.name.lower() == names[0].lower()), None)
    return column if column is not None and (column.tp in _INTEGERS or (column.tp in _TIMES and info.partition_columns)) else None


def _ranges(partitions: Collection[PartitionDef], column: ColumnInfo, wanted: set[str]) -> Iterator[str]:
    name, below = quote_name(column.name), ""
    for number, partition in enumerate(partitions):
        limit = partition.less_than[0] if len(partition.less_than) == 1 else ""
        if partition.name.lower() in wanted:
            known = (not number or _is_value(below, column)) and (limit == _NO_LIMIT or _is_value(limit, column))
            bounds = ([f"{name} >= {below}"] if number else []) + ([] if limit == _NO_LIMIT else [f"{name} < {limit}"])
            inside = " AND ".join(bounds) or f"{name} IS NOT NULL"
            yield ("" if not known else f"({inside})" if number else f"({inside} OR {name} IS NULL)")
        below = limit


def _listed(partition: PartitionDef, column: ColumnInfo) -> str:
    name = quote_name(column.name)
    values = [v[0] if len(v) == 1 else "" for v in partition.in_values]
    plain = [v for v in values if v.upper() != "NULL"]
    if not values or not all(_is_value(v, column) for v in plain):
        return ""
    parts = [f"{name} IN ({', '.join(plain)})"] if plain else []
    parts += [f"{name} IS NULL"] if len(plain) < len(values) else []
    return f"({' OR '.join(parts)})"


def _is_value(text: str, column: ColumnInfo) -> bool:
    return bool((_WHOLE if column.tp in _INTEGERS else _TIME).fullmatch(text))
