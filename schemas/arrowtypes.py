"""The Arrow type of a TiDB column in row images, and the value of a column that a row lacks.

    integers                     int64, or uint64 when UNSIGNED;   YEAR  int64
    ENUM, SET, BIT               uint64: the number, the bit mask, the bits
    FLOAT, DOUBLE                float32, float64; always finite
    DECIMAL                      string, plain digits, with at least as many fraction digits as the column's scale
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

from pyspark_tidb_binlog.schemas.codec.number import round_to_float32, to_signed, to_unsigned
from pyspark_tidb_binlog.schemas.codec.temporal import MAX_FSP, date_text, datetime_text, pack_datetime, parse_time, time_text
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo

Value: TypeAlias = str | int | float | bytes | None
"""A cell of an image, as passed to Arrow."""


_WIDE = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
"""A DECIMAL has up to 65 digits."""


class CellKind(Enum):
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
    CellKind.INT: pa.int64(),
    CellKind.UINT: pa.uint64(),
    CellKind.NUMBER: pa.uint64(),
    CellKind.FLOAT: pa.float32(),
    CellKind.DOUBLE: pa.float64(),
    CellKind.BYTES: pa.binary(),
}
INTEGERS = frozenset({ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.MEDIUMINT, ColumnType.INT, ColumnType.BIGINT})
_KINDS = {
    ColumnType.YEAR: CellKind.INT,
    ColumnType.ENUM: CellKind.NUMBER,
    ColumnType.SET: CellKind.NUMBER,
    ColumnType.BIT: CellKind.NUMBER,
    ColumnType.FLOAT: CellKind.FLOAT,
    ColumnType.DOUBLE: CellKind.DOUBLE,
    ColumnType.DECIMAL: CellKind.DECIMAL,
    ColumnType.DATE: CellKind.DATE,
    ColumnType.NEWDATE: CellKind.DATE,
    ColumnType.DATETIME: CellKind.DATETIME,
    ColumnType.TIMESTAMP: CellKind.DATETIME,
    ColumnType.TIME: CellKind.TIME,
    ColumnType.JSON: CellKind.JSON,
    ColumnType.VARCHAR: CellKind.BYTES,
    ColumnType.VAR_STRING: CellKind.BYTES,
    ColumnType.STRING: CellKind.BYTES,
    ColumnType.TINYBLOB: CellKind.BYTES,
    ColumnType.BLOB: CellKind.BYTES,
    ColumnType.MEDIUMBLOB: CellKind.BYTES,
    ColumnType.LONGBLOB: CellKind.BYTES,
    ColumnType.GEOMETRY: CellKind.BYTES,
}


def kind_of(column: ColumnInfo) -> CellKind:
    """The kind of a column; ``Corruption`` for a type that no table can have."""
    if column.tp in INTEGERS:
        return CellKind.UINT if column.unsigned else CellKind.INT
    try:
        return _KINDS[ColumnType(column.tp)]
    except (KeyError, ValueError) as error:
        raise Corruption(f"column {column.name} (id {column.id}) has type code {column.tp}, which no column can have") from error


def digits_of(column: ColumnInfo) -> int:
    """Fraction digits that the text of a DECIMAL or a time shows."""
    return max(column.decimal, 0) if kind_of(column) is CellKind.DECIMAL else min(max(column.decimal, 0), MAX_FSP)


def image_schema(columns: Iterable[ColumnInfo]) -> pa.Schema:
    """The schema of images with these columns."""
    return pa.schema([pa.field(c.name, kind_of(c).arrow) for c in columns])


def missing_value(column: ColumnInfo, at_row: TableInfo | None) -> Value:
    """The cell of a column that the row lacks: default-or-zero of rows.md 8.

    ``at_row`` is the table info at the row's schema version (``TableAt.default_info``): its default applies.
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
    """The value that TiDB uses for a NOT NULL column without a value."""
    kind = kind_of(column)
    match kind:
        case CellKind.INT | CellKind.UINT | CellKind.NUMBER:
            return 1 if column.tp == ColumnType.ENUM else 0
        case CellKind.FLOAT | CellKind.DOUBLE:
            return 0.0
        case CellKind.BYTES:
            return _pad(column, b"")
        case CellKind.JSON:
            return "null"
        case CellKind.DECIMAL:
            return _from_json(column, "0")
        case CellKind.TIME:
            return time_text(0, digits_of(column))
        case CellKind.DATE | CellKind.DATETIME:
            return _time_text(column, 0)


def _from_json(column: ColumnInfo, default: str | int | float) -> Value:
    """A default from the job's JSON as a cell. Times that cannot be parsed stay as text."""
    kind = kind_of(column)
    match kind:
        case CellKind.INT if column.tp == ColumnType.YEAR:
            return _year(default)
        case CellKind.INT:
            return to_signed(_whole(default))
        case CellKind.UINT:
            return to_unsigned(_whole(default))
        case CellKind.NUMBER:
            return _number(column, default)
        case CellKind.FLOAT:
            return round_to_float32(float(default))
        case CellKind.DOUBLE:
            return float(default)
        case CellKind.DECIMAL:
            return _decimal_text(column, str(default))
        case CellKind.DATE | CellKind.DATETIME:
            return _readable(column, str(default))
        case CellKind.TIME:
            return _readable_time(column, str(default))
        case CellKind.BYTES:
            return _pad(column, str(default).encode(errors="surrogateescape"))
        case CellKind.JSON:
            return str(default)


def _whole(default: str | int | float) -> int:
    return int(decimal.Decimal(str(default)).to_integral_value(decimal.ROUND_HALF_UP))


def _year(default: str | int | float) -> int:
    """As TiDB casts a default, which it stores as it was written: two digits are 1970 to 2069, and a short text of zero is 2000."""
    year = _whole(default)
    if year == 0:
        return 2000 if isinstance(default, str) and len(default) != len("0000") else 0
    return year + (2000 if 0 < year < 70 else 1900 if 70 <= year < 100 else 0)


def _number(column: ColumnInfo, default: str | int | float) -> int:
    if isinstance(default, str) and column.tp == ColumnType.BIT:
        return int.from_bytes(default.encode("latin-1"), "big")
    return column.number_of(default) if isinstance(default, str) else to_unsigned(int(default))


def _decimal_text(column: ColumnInfo, text: str) -> str:
    """The default as TiDB casts it, which it stores as it was written: with the column's digits, half rounded up."""
    rounded = decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-digits_of(column)), context=_WIDE)
    return format(abs(rounded) if rounded.is_zero() else rounded, "f")


def _time_text(column: ColumnInfo, packed: int) -> str:
    return date_text(packed) if kind_of(column) is CellKind.DATE else datetime_text(packed, digits_of(column))


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
