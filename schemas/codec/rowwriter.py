"""Rows as TiDB writes them into a binlog (rows.md 4 and 6), from plain Python values: for the embedded upstream and for tests.

A row is ``Mapping[column id, value]``; a missing column is NULL. Values:

    integers, YEAR, BIT         int
    FLOAT, DOUBLE               float
    DECIMAL                     decimal.Decimal, or its text
    text, blobs                 str (written as UTF-8) or bytes
    DATE, DATETIME, TIMESTAMP   text "YYYY-MM-DD[ hh:mm:ss[.f]]", TIMESTAMP in UTC
    TIME                        text "[-]hh:mm:ss[.f]"
    ENUM                        the member, or its number from 1 (0 = the error value)
    SET                         members joined by commas, or the bit mask
    JSON                        a plain Python value; JSON null is ``json_binary.JsonNull()``

Promises: pure; a value that no row can hold raises ``ValueError``. New collations are assumed to be enabled, TiDB's default.
"""

import decimal
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyspark_tidb_binlog.schemas.codec import datum
from pyspark_tidb_binlog.schemas.codec.number import round_to_float32, to_signed
from pyspark_tidb_binlog.schemas.codec.temporal import pack_datetime, parse_time
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, ColumnType, IndexColumn, TableInfo

Row: TypeAlias = Mapping[int, Any]

ROWID = -1
"""Column id of ``_tidb_rowid``."""
EMPTY_ROW = datum.NULL
_WRITABLE_STATES = frozenset({PUBLIC, 2, 3})
"""Public, write-only and write-reorganisation."""
_TEMPORAL = frozenset({ColumnType.DATE, ColumnType.NEWDATE, ColumnType.DATETIME, ColumnType.TIMESTAMP})
_VARCHAR = frozenset({ColumnType.VARCHAR, ColumnType.VAR_STRING})
_TEXT = _VARCHAR | {ColumnType.STRING, ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB}


def encode_insert(info: TableInfo, row: Row, rowid: int | None = None) -> bytes:
    """An element of ``inserted_rows``; ``rowid`` is the handle of a table without a clustered primary key."""
    pairs = b"".join(_pair(c, row.get(c.id)) for c in info.columns if c.state in _WRITABLE_STATES and not _omitted(info, c, row.get(c.id)))
    return _handle(info, row, rowid) + (pairs or EMPTY_ROW)


def encode_update(info: TableInfo, old: Row, new: Row, rowid: int | None = None) -> bytes:
    """An element of ``updated_rows``; the handle must be the same in both rows."""
    return _whole_row(info, old, rowid, deleting=False) + _whole_row(info, new, rowid, deleting=False)


def encode_delete(info: TableInfo, row: Row, rowid: int | None = None) -> bytes:
    """An element of ``deleted_rows``."""
    return _whole_row(info, row, rowid, deleting=True)


def encode_value(column: ColumnInfo, value: Any) -> bytes:
    """One value as the datum that a row holds for this column."""
    if value is None:
        return datum.NULL
    match column.tp:
        case ColumnType.FLOAT:
            return datum.encode_float(round_to_float32(value))
        case ColumnType.DOUBLE:
            return datum.encode_float(value)
        case ColumnType.DECIMAL:
            return datum.encode_decimal(decimal.Decimal(value), column.flen, column.decimal)
        case ColumnType.JSON:
            return datum.encode_json(value)
        case ColumnType.TIME:
            return datum.encode_int(parse_time(value))
        case tp if tp in _TEMPORAL:
            return datum.encode_uint(pack_datetime(value))
        case ColumnType.ENUM | ColumnType.SET | ColumnType.BIT:
            return datum.encode_uint(value if isinstance(value, int) else column.number_of(value))
        case tp if tp in _TEXT:
            return datum.encode_bytes(_padded(column, value.encode() if isinstance(value, str) else value))
        case ColumnType.YEAR:
            return datum.encode_int(value)
        case _:
            return datum.encode_uint(value) if column.unsigned else datum.encode_int(value)


def _padded(column: ColumnInfo, raw: bytes) -> bytes:
    if column.tp != ColumnType.STRING:
        return raw
    return raw.ljust(max(column.flen, 0), b"\x00") if column.is_binary else raw.rstrip(b" ")


def _pair(column: ColumnInfo, value: Any) -> bytes:
    return datum.encode_int(column.id) + encode_value(column, value)


def _whole_row(info: TableInfo, row: Row, rowid: int | None, *, deleting: bool) -> bytes:
    columns = info.public_columns() if deleting else tuple(c for c in info.columns if c.state in _WRITABLE_STATES and not _virtual(c))
    pairs = b"".join(_pair(c, row.get(c.id)) for c in columns)
    if not (info.pk_is_handle or info.is_common_handle):
        pairs += datum.encode_int(ROWID) + datum.encode_int(_given(info, rowid))
    return pairs


def _omitted(info: TableInfo, column: ColumnInfo, value: Any) -> bool:
    if info.pk_is_handle and column in info.handle_columns():
        return True
    if (part := _handle_part(info, column)) is not None:
        return part.length == WHOLE_COLUMN and not _needs_restored_data(column)
    has_default = any(d is not None for d in (column.default, column.default_bit, column.origin_default, column.origin_default_bit))
    return _virtual(column) or (value is None and not has_default)


def _virtual(column: ColumnInfo) -> bool:
    return column.generated and not column.generated_stored


def _handle_part(info: TableInfo, column: ColumnInfo) -> IndexColumn | None:
    index = info.primary_index() if info.is_common_handle else None
    return next((c for c in index.columns if c.offset == column.offset), None) if index else None


def _needs_restored_data(column: ColumnInfo) -> bool:
    return column.tp in _TEXT and not column.is_binary and (column.tp in _VARCHAR or not column.collate.endswith("_bin"))


def _handle(info: TableInfo, row: Row, rowid: int | None) -> bytes:
    if info.pk_is_handle:
        return datum.encode_int(to_signed(row[info.handle_columns()[0].id]))
    if info.is_common_handle:
        parts = ((c, _handle_part(info, c)) for c in info.handle_columns())
        return b"".join(_handle_datum(c, part.length if part else WHOLE_COLUMN, row[c.id]) for c, part in parts)
    return datum.encode_int(_given(info, rowid))


def _handle_datum(column: ColumnInfo, length: int, value: Any) -> bytes:
    if column.tp == ColumnType.TIME:
        return datum.encode_duration(parse_time(value))
    if column.tp in _TEXT:
        raw = _padded(column, value.encode() if isinstance(value, str) else value)
        return datum.encode_bytes(_sort_key(column, _prefix(column, raw, length)))
    return encode_value(column, value)


def _prefix(column: ColumnInfo, raw: bytes, length: int) -> bytes:
    if length == WHOLE_COLUMN:
        return raw
    return raw[:length] if column.is_binary else raw.decode()[:length].encode()


def _sort_key(column: ColumnInfo, raw: bytes) -> bytes:
    """The collation key that the handle holds instead of the value: a weight per character, approximating TiDB's general_ci."""
    if column.is_binary or column.collate.endswith("_bin"):
        return raw
    return b"".join((ord(c.upper()[0]) & 0xFFFF).to_bytes(2, "big") for c in raw.decode().rstrip(" "))


def _given(info: TableInfo, rowid: int | None) -> int:
    if rowid is None:
        raise ValueError(f"table {info.name} has no clustered primary key: its rows need a rowid")
    return rowid
