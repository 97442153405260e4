"""From a TiDB column to its Arrow type in row images, and to the value of a column that a row lacks.

    integers                     int64, or uint64 when UNSIGNED;   YEAR  int64
    ENUM, SET, BIT               uint64: the number, the bit mask, the bits
    FLOAT, DOUBLE                float32, float64; always finite
    DECIMAL                      string, plain digits, at least the column's scale of them after the point
    DATE, DATETIME, TIMESTAMP    string with the column's fraction digits, zero and partial dates as they are, TIMESTAMP in UTC
    TIME                         string "[-]hh:mm:ss[.f]"
    text, blobs                  binary, the bytes as TiDB stores them
    JSON                         string, TiDB's text of it

Promises: pure. Both decoders take kinds, types and defaults from here, so they cannot differ in them.
"""

import decimal
from collections.abc import Iterable
from enum import Enum, auto
from typing import TypeAlias

import pyarrow as pa

from schemas.codec.number import round_to_float32, to_signed, to_unsigned
from schemas.codec.temporal import MAX_FSP, date_text, datetime_text, pack_datetime, parse_time, time_text
from schemas.errors import Corruption
from schemas.tableinfo import ColumnInfo, ColumnType, TableInfo

Value: TypeAlias = str | int | float | bytes | None
"""A cell of an image as Arrow takes it."""


class Kind(Enum):
    """How a column's datum becomes a cell."""

    INT = auto()
    UINT = auto()
    NUMBER = auto()
    """ENUM, SET and BIT."""
    FLOAT = auto()
    DOUBLE = auto()
    DECIMAL = auto()
    DATE = auto()
    DATETIME = auto()
    """TIMESTAMP too."""
    TIME = auto()
    BYTES = auto()
    JSON = auto()

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the cells."""
        return _ARROW.get(self, pa.string())


_ARROW = {
    Kind.INT: pa.int64(),
    Kind.UINT: pa.uint64(),
    Kind.NUMBER: pa.uint64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BYTES: pa.binary(),
}
_INTEGERS = frozenset({ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.MEDIUMINT, ColumnType.INT, ColumnType.BIGINT})
_KINDS = {
    ColumnType.YEAR: Kind.INT,
    ColumnType.ENUM: Kind.NUMBER,
    ColumnType.SET: Kind.NUMBER,
    ColumnType.BIT: Kind.NUMBER,
    ColumnType.FLOAT: Kind.FLOAT,
    ColumnType.DOUBLE: Kind.DOUBLE,
    ColumnType.DECIMAL: Kind.DECIMAL,
    ColumnType.DATE: Kind.DATE,
    ColumnType.NEWDATE: Kind.DATE,
    ColumnType.DATETIME: Kind.DATETIME,
    ColumnType.TIMESTAMP: Kind.DATETIME,
    ColumnType.TIME: Kind.TIME,
    ColumnType.JSON: Kind.JSON,
    ColumnType.VARCHAR: Kind.BYTES,
    ColumnType.VAR_STRING: Kind.BYTES,
    ColumnType.STRING: Kind.BYTES,
    ColumnType.TINYBLOB: Kind.BYTES,
    ColumnType.BLOB: Kind.BYTES,
    ColumnType.MEDIUMBLOB: Kind.BYTES,
    ColumnType.LONGBLOB: Kind.BYTES,
    ColumnType.GEOMETRY: Kind.BYTES,
}


def kind_of(column: ColumnInfo) -> Kind:
    """The kind of a column; ``Corruption`` for a type that no table can have."""
    if column.tp in _INTEGERS:
        return Kind.UINT if column.unsigned else Kind.INT
    try:
        return _KINDS[ColumnType(column.tp)]
    except (KeyError, ValueError) as error:
        raise Corruption(f"column {column.name} (id {column.id}) has type code {column.tp}, which no column can have") from error


def digits_of(column: ColumnInfo) -> int:
    """Fraction digits that the text of a DECIMAL or a time shows."""
    return max(column.decimal, 0) if kind_of(column) is Kind.DECIMAL else min(max(column.decimal, 0), MAX_FSP)


def image_schema(columns: Iterable[ColumnInfo]) -> pa.Schema:
    """The schema of images with these columns."""
    return pa.schema([pa.field(c.name, kind_of(c).arrow) for c in columns])


def missing_value(column: ColumnInfo, at_row: TableInfo | None) -> Value:
    """The cell of a column that the row lacks: default-or-zero of rows.md 8.

    ``at_row`` is the table as the row's writer may have known it (``TableAt.default_info``): its word on the default counts.
    """
    known = next((c for c in at_row.columns if c.id == column.id), column) if at_row else column
    if column.tp == ColumnType.BIT and known.origin_default_bit is not None:
        return int.from_bytes(known.origin_default_bit, "big")
    if known.origin_default is None:
        return zero_value(column) if known.not_null else None
    try:
        return _from_json(column, known.origin_default)
    except (ValueError, ArithmeticError) as error:
        raise Corruption(f"the origin default {known.origin_default!r} of column {column.name} (id {column.id}) does not fit it") from error


def zero_value(column: ColumnInfo) -> Value:
    """What TiDB takes for a column that may not be NULL and has no value."""
    kind = kind_of(column)
    match kind:
        case Kind.INT | Kind.UINT | Kind.NUMBER:
            return 1 if column.tp == ColumnType.ENUM else 0
        case Kind.FLOAT | Kind.DOUBLE:
            return 0.0
        case Kind.BYTES:
            return _pad(column, b"")
        case Kind.JSON:
            return "null"
        case Kind.DECIMAL:
            return _from_json(column, "0")
        case Kind.TIME:
            return time_text(0, digits_of(column))
        case Kind.DATE | Kind.DATETIME:
            return _time_text(column, 0)


def _from_json(column: ColumnInfo, default: str | int | float) -> Value:
    """A default as the job's JSON states it, as a cell. Times that cannot be read stay the text they are."""
    kind = kind_of(column)
    match kind:
        case Kind.INT:
            return to_signed(_whole(default))
        case Kind.UINT:
            return to_unsigned(_whole(default))
        case Kind.NUMBER:
            return _number(column, default)
        case Kind.FLOAT:
            return round_to_float32(float(default))
        case Kind.DOUBLE:
            return float(default)
        case Kind.DECIMAL:
            return _decimal_text(column, str(default))
        case Kind.DATE | Kind.DATETIME:
            return _readable(column, str(default))
        case Kind.TIME:
            return _readable_time(column, str(default))
        case Kind.BYTES:
            return _pad(column, str(default).encode(errors="surrogateescape"))
        case Kind.JSON:
            return str(default)


def _whole(default: str | int | float) -> int:
    return int(decimal.Decimal(str(default)).to_integral_value(decimal.ROUND_HALF_UP))


def _number(column: ColumnInfo, default: str | int | float) -> int:
    if isinstance(default, str) and column.tp == ColumnType.BIT:
        return int.from_bytes(default.encode("latin-1"), "big")
    return column.number_of(default) if isinstance(default, str) else to_unsigned(int(default))


def _decimal_text(column: ColumnInfo, text: str) -> str:
    plain = format(decimal.Decimal(text), "f")
    whole, _, fraction = plain.partition(".")
    fraction = fraction.ljust(digits_of(column), "0")
    return f"{whole}.{fraction}" if fraction else whole


def _time_text(column: ColumnInfo, packed: int) -> str:
    return date_text(packed) if kind_of(column) is Kind.DATE else datetime_text(packed, digits_of(column))


def _readable(column: ColumnInfo, text: str) -> str:
    try:
        return _time_text(column, pack_datetime(text))
    except ValueError:
        return text


def _readable_time(column: ColumnInfo, text: str) -> str:
    try:
        return time_text(parse_time(text), digits_of(column))
    except ValueError:
        return text


def _pad(column: ColumnInfo, raw: bytes) -> bytes:
    return raw.ljust(max(column.flen, 0), b"\x00") if column.tp == ColumnType.STRING and column.is_binary else raw
