"""SQL fragments that differ by server or need quoting: names, statement heads, exact conditions.

Promises: pure; texts are made from table infos, for UTF-8 connections and sessions of ``sinks.mysql.session``.
"""

import enum
from collections.abc import Collection, Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo


class Flavour(enum.StrEnum):
    """Which server product the target is."""

    MARIADB = "mariadb"
    MYSQL = "mysql"
    TIDB = "tidb"


def flavour_of(version: str) -> Flavour:
    """The flavour from the result of ``SELECT VERSION()``."""
    text = version.lower()
    if "tidb" in text:
        return Flavour.TIDB
    return Flavour.MARIADB if "mariadb" in text else Flavour.MYSQL


def table_name(schema: str, table: str) -> str:
    """A table name qualified with its database, quoted."""
    return f"{quote_name(schema)}.{quote_name(table)}"


def account_name(user: str, host: str) -> str:
    """An account, quoted."""
    return f"{quote_name(user)}@{quote_name(host)}"


def write_head(schema: str, table: str, columns: Sequence[str]) -> bytes:
    """Everything before the first row of a multi-row INSERT."""
    names = ",".join(quote_name(c) for c in columns)
    return f"INSERT INTO {table_name(schema, table)} ({names}) VALUES ".encode()


def change_tail(columns: Sequence[str]) -> bytes:
    """The text after the last row of an INSERT whose rows exist already.

    Its count of affected rows distinguishes missing rows from unchanged rows (``sinks.mysql.effects``); the count of a REPLACE does not. And on
    a table with several unique keys MariaDB needs half the time of a REPLACE, because no row is deleted.
    """
    return b" ON DUPLICATE KEY UPDATE " + ",".join(f"{n}=VALUES({n})" for n in map(quote_name, columns)).encode()


def delete_head(schema: str, table: str) -> bytes:
    """Everything before the condition of a DELETE."""
    return f"DELETE FROM {table_name(schema, table)} WHERE ".encode()


def key_head(schema: str, table: str, key: Sequence[str]) -> bytes:
    """Everything before the first key of a multi-row DELETE.

    For several columns it is a row constructor, which MariaDB 10.11 and MySQL 8 evaluate as index ranges. MariaDB is then three times as
    fast as with an OR of ANDs for 1,000 rows, and forty times as fast for 5,000.
    """
    names = ",".join(quote_name(c) for c in key)
    return delete_head(schema, table) + (f"({names})" if len(key) > 1 else names).encode() + b" IN ("


def listed(key: Sequence[ColumnInfo], flavour: Flavour, recoded: Collection[str] = ()) -> bool:
    """Whether the server finds several rows in a list of their keys (``key_head``); if not, each row has its own condition.

    In a list of row constructors MySQL 9.7 finds no row at all if one of the columns is an ENUM or a SET. MariaDB 10.11 finds no row whose text has
    characters that its charset encodes otherwise than the statement. ``recoded``: see ``TableAt.recoded``.
    """
    if any(taken_for_double(c, flavour) for c in key):
        return False
    if len(key) == 1 or flavour is Flavour.TIDB:
        return True
    if flavour is Flavour.MYSQL:
        return not any(c.tp in (ColumnType.ENUM, ColumnType.SET) for c in key)
    return not any(is_text(c) and (c.charset not in _LIKE_THE_STATEMENT or c.name in recoded) for c in key)


def is_recoded(column: ColumnInfo, charset: str) -> bool:
    """Whether a target that has ``column`` in ``charset`` (empty: in none) writes its characters otherwise than the statement, unlike the upstream's."""
    return is_text(column) and column.charset in _LIKE_THE_STATEMENT and bool(charset) and charset not in _LIKE_THE_STATEMENT


def key_condition(column: ColumnInfo, flavour: Flavour) -> tuple[bytes, ...]:
    """The texts of a condition that is true for one value of a column of a unique key, and uses the key; the literal goes between each two."""
    name = quote_name(column.name)
    exact = (f" AND CAST({name} AS SIGNED)=".encode(), b"") if taken_for_double(column, flavour) else (b"",)
    return f"{name}=".encode(), *exact


def match_condition(column: ColumnInfo, flavour: Flavour, indexed: bool) -> tuple[bytes, ...]:
    """The texts of a condition that is true for exactly one value; a literal goes between each two of them.

    Text is compared as bytes, because a collation may treat 'a' and 'A', or 'a' and 'a ', as equal. On an indexed column the collation's comparison
    comes first, so that the index is used.
    """
    name = quote_name(column.name)
    if column.tp == ColumnType.JSON and flavour is not Flavour.MARIADB:
        return f"{name} <=> CAST(".encode(), b" AS JSON)"
    if column.tp == ColumnType.JSON or is_text(column):
        exact = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY) <=> "
    elif taken_for_double(column, flavour):
        exact = f"CAST({name} AS SIGNED) <=> "
    else:
        return f"{name} <=> ".encode(), b""
    return (f"{name} <=> ".encode(), f" AND {exact}".encode(), b"") if indexed else (exact.encode(), b"")


def has_signed_sets(flavour: Flavour) -> bool:
    """Whether the server compares a SET with a number as signed: then only a negative literal finds a SET that has its 64th word."""
    return flavour is not Flavour.TIDB


def likeness_condition(column: ColumnInfo) -> tuple[bytes, bytes]:
    """The texts around a literal of another type in a condition that is true where ``column`` has the same text; fails for no value."""
    name = quote_name(column.name)
    shown = f"CONVERT({name} USING utf8mb4)" if is_text(column) else name
    return f"CAST({shown} AS BINARY) <=> CAST(".encode(), b" AS BINARY)"


def is_text(column: ColumnInfo) -> bool:
    """Whether the column holds characters, not raw bytes, numbers or times."""
    return column.tp in _STRING_TYPES and not column.is_binary


def is_bytes(column: ColumnInfo) -> bool:
    """Whether the column is a BINARY, VARBINARY or blob."""
    return column.tp in _STRING_TYPES and column.is_binary


def taken_for_double(column: ColumnInfo, flavour: Flavour) -> bool:
    """Whether the server takes the column's values for others near them: MySQL compares a SET with a number as DOUBLE."""
    return flavour is Flavour.MYSQL and column.tp == ColumnType.SET and len(column.elems) > _DOUBLE_BITS


def indexed_columns(info: TableInfo) -> frozenset[str]:
    """Columns that are the first column of an index."""
    return frozenset(i.columns[0].name for i in info.indexes if i.columns)


JSON_DEPTH = {Flavour.MARIADB: 31, Flavour.MYSQL: 100}
"""How deep a JSON document may be nested. A MariaDB holds a deeper one, but the CHECK of a JSON column refuses it; a MySQL holds none."""
_DOUBLE_BITS = 53
_LIKE_THE_STATEMENT = frozenset({"utf8mb4", "utf8", "utf8mb3", "ascii"})
"""Charsets in which a text is the bytes that it is in a statement."""

_STRING_TYPES = frozenset(
    {
        ColumnType.VARCHAR,
        ColumnType.TINYBLOB,
        ColumnType.MEDIUMBLOB,
        ColumnType.LONGBLOB,
        ColumnType.BLOB,
        ColumnType.VAR_STRING,
        ColumnType.STRING,
        ColumnType.GEOMETRY,
    }
)
