"""Defaults as literals, so that existing rows get TiDB's ``origin_default`` and not the target's evaluation of a text.

Promises: pure. A new column is added with its origin default, and then gets its declared default in a second statement if the two differ
(``DEFAULT CURRENT_TIMESTAMP`` would fill in the target's current time). A TIMESTAMP's literal is in UTC, as in the table info, like the session.
"""

from collections.abc import Sequence

from pyspark_tidb_binlog.schemas.arrowtypes import missing_value, zero_value
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_definition, is_now
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes

_LOBS = frozenset({ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.JSON})
_AS_WRITTEN = frozenset({ColumnType.BIT, ColumnType.ENUM, ColumnType.SET, ColumnType.JSON, ColumnType.FLOAT, ColumnType.DOUBLE})
"""Types whose default is not compared with the value that TiDB makes of it."""
UTC_SINCE = 1
"""``ColumnInfo.version`` from which the default of a TIMESTAMP is stored in UTC."""


def origin_literal(column: ColumnInfo, flavour: Flavour) -> str:
    """The value of the column in rows written before it existed, as a literal for a DEFAULT clause."""
    origin, tp = column.origin_default, column.tp
    value = missing_value(column, None)
    if value is None:
        return "NULL"
    if tp == ColumnType.BIT:
        return f"b'{int(value):b}'"
    if tp == ColumnType.YEAR:
        return f"'{int(value):04}'"  # '0' is the year 2000
    if tp == ColumnType.SET:
        return quote_string(",".join(word for place, word in enumerate(column.elems) if int(value) >> place & 1))
    if tp == ColumnType.ENUM:
        return quote_string(column.elems[0] if origin is None and column.elems else str(origin))
    if is_bytes(column) and isinstance(value, bytes):
        text = f"x'{value.hex()}'"
    else:
        text = quote_string(value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value))
    return f"({text})" if tp in _LOBS and flavour is Flavour.MYSQL else text


def fills_otherwise(column: ColumnInfo, flavour: Flavour) -> bool:
    """Whether the target, executing the text as it is, might give existing rows another value than the origin default."""
    if column.generated or column.flag & ColumnFlag.AUTO_INCREMENT:
        return False
    declared = column.default is not None or column.default_bit is not None
    if not declared:
        if column.tp in _LOBS and flavour is not Flavour.MARIADB:
            return False  # a literal default is not allowed there, and these servers fill in the same zero value as TiDB
        return column.not_null and (
            column.tp in (ColumnType.TIMESTAMP, ColumnType.JSON) or missing_value(column, None) != zero_value(column)
        )
    return not _declares_origin(column) or _is_cast(column)


def _declares_origin(column: ColumnInfo) -> bool:
    """Whether new rows get the same value as those that were there."""
    if column.tp == ColumnType.TIMESTAMP or column.default_is_expr or is_now(column):
        return False
    return (column.default, column.default_bit) == (column.origin_default, column.origin_default_bit)


def _is_cast(column: ColumnInfo) -> bool:
    """Whether TiDB makes another value of the declared default than its text says; a target may make yet another one."""
    if column.tp in _AS_WRITTEN or is_bytes(column):
        return False
    try:
        value = missing_value(column, None)
    except Corruption:
        return False  # rows that lack the column say so
    return (value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)) != str(column.default)


def declare(name: str, columns: Sequence[ColumnInfo], info: TableInfo, dialect: Dialect) -> str:
    """The statement that sets the declared defaults of columns that were added with ``origin_literal``; empty if these are the same.

    ``name``: the quoted table. The statement is idempotent.
    """
    clauses = []
    for column in columns:
        wanted = declared_literal(column)
        declares = column.default is not None and _declares_origin(column)
        if declares or wanted == origin_literal(column, dialect.flavour):
            continue
        if wanted is None and (column.default is not None or column.default_bit is not None):
            clauses.append(f"MODIFY COLUMN {column_definition(column, info, dialect, explicit=True)}")
        elif wanted is None and column.tp == ColumnType.TIMESTAMP:
            continue  # without a default a server may set the column to the current time
        else:
            clauses.append(set_default(column))
    return f"ALTER TABLE {name} {', '.join(clauses)}" if clauses else ""


def timestamps_in_utc(name: str, info: TableInfo) -> str:
    """The statement that sets the literal defaults of TIMESTAMP columns, which a text may have in another zone; empty if there are none."""
    columns = (c for c in visible(info) if c.tp == ColumnType.TIMESTAMP and c.version >= UTC_SINCE)
    clauses = [set_default(c) for c in columns if declared_literal(c) not in (None, "NULL")]
    return f"ALTER TABLE {name} {', '.join(clauses)}" if clauses else ""


def set_default(column: ColumnInfo) -> str:
    """The clause that gives a column its declared default, which is a literal, or takes its default away."""
    wanted = declared_literal(column)
    return f"ALTER COLUMN {quote_name(column.name)} {'DROP DEFAULT' if wanted is None else f'SET DEFAULT {wanted}'}"


def declared_literal(column: ColumnInfo) -> str | None:
    """The declared default as a literal; None if there is none or it is an expression."""
    if column.default_bit is not None:
        return f"b'{int.from_bytes(column.default_bit, 'big'):b}'"
    if column.default is None and not column.not_null:
        return "NULL"
    if column.default is None or column.default_is_expr or is_now(column):
        return None
    return quote_string(str(column.default))
