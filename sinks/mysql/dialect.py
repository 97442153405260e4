"""The words of SQL that differ by server or need quoting: names, statement heads, exact conditions.

Promises: pure text from table infos. Literals are written for UTF-8 connections and the session of ``sinks.mysql.session``.
"""

import enum
from collections.abc import Sequence

from schemas.ddl_tokens import quote_name
from schemas.tableinfo import ColumnInfo, ColumnType, TableInfo


class Flavour(enum.StrEnum):
    """Whose MySQL the target is."""

    MARIADB = "mariadb"
    MYSQL = "mysql"
    TIDB = "tidb"


def flavour_of(version: str) -> Flavour:
    """The flavour from what ``SELECT VERSION()`` says."""
    text = version.lower()
    if "tidb" in text:
        return Flavour.TIDB
    return Flavour.MARIADB if "mariadb" in text else Flavour.MYSQL


def table_name(schema: str, table: str) -> str:
    """A table with its database, quoted."""
    return f"{quote_name(schema)}.{quote_name(table)}"


def write_head(schema: str, table: str, columns: Sequence[str]) -> bytes:
    """Everything before the first row of a multi-row INSERT."""
    names = ",".join(quote_name(c) for c in columns)
    return f"INSERT INTO {table_name(schema, table)} ({names}) VALUES ".encode()


def change_tail(columns: Sequence[str]) -> bytes:
    """What follows the last row of an INSERT whose rows are there already.

    It counts rows that were missing apart from rows that are the same (``sinks.mysql.effects``), which REPLACE does not; and where a table has
    several unique keys MariaDB takes half the time, because nothing is deleted.
    """
    return b" ON DUPLICATE KEY UPDATE " + ",".join(f"{n}=VALUES({n})" for n in map(quote_name, columns)).encode()


def delete_head(schema: str, table: str) -> bytes:
    """Everything before the condition of a DELETE."""
    return f"DELETE FROM {table_name(schema, table)} WHERE ".encode()


def key_head(schema: str, table: str, key: Sequence[str]) -> bytes:
    """Everything before the first key of a multi-row DELETE.

    Of several columns it is a row constructor: MariaDB 10.11 and MySQL 8 read it as index ranges, MariaDB three times as fast as
    an OR of ANDs of 1,000 rows and forty times of 5,000.
    """
    names = ",".join(quote_name(c) for c in key)
    return delete_head(schema, table) + (f"({names})" if len(key) > 1 else names).encode() + b" IN ("


def match_condition(column: ColumnInfo, flavour: Flavour, indexed: bool) -> tuple[bytes, ...]:
    """Texts around the literal in a condition that holds for exactly this value; the literal stands between each two of them.

    Text is compared as bytes: a collation would take 'a' for 'A' and 'a' for 'a '. Where an index can find it, the collation's own
    comparison stands in front, for speed.
    """
    name = quote_name(column.name)
    if column.tp == ColumnType.JSON and flavour is not Flavour.MARIADB:
        return f"{name} <=> CAST(".encode(), b" AS JSON)"
    if column.tp == ColumnType.JSON or is_text(column):
        exact = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY) <=> "
        return (f"{name} <=> ".encode(), f" AND {exact}".encode(), b"") if indexed else (exact.encode(), b"")
    return f"{name} <=> ".encode(), b""


def likeness_condition(column: ColumnInfo) -> tuple[bytes, bytes]:
    """Texts around a literal of another type in a condition that holds where ``column`` shows the same text; no value makes it fail."""
    name = quote_name(column.name)
    shown = f"CONVERT({name} USING utf8mb4)" if is_text(column) else name
    return f"CAST({shown} AS BINARY) <=> CAST(".encode(), b" AS BINARY)"


def is_text(column: ColumnInfo) -> bool:
    """Characters and not raw bytes, numbers or times."""
    return column.tp in _STRING_TYPES and not column.is_binary


def is_bytes(column: ColumnInfo) -> bool:
    """BINARY, VARBINARY and the blobs."""
    return column.tp in _STRING_TYPES and column.is_binary


def indexed_columns(info: TableInfo) -> frozenset[str]:
    """Columns that some public index begins with."""
    return frozenset(i.columns[0].name for i in info.indexes if i.columns)


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
