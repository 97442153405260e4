"""The type name, the text of a value, and the default of a missing column, as both formats need them.

Promises: pure, except for ``process_zone``. Names, texts and values are those of a real Drainer (wire.md 2.4 and 2.5, rows.md 8). Where a real Drainer writes another value than
the row has, ours is the row's:

* a missing FLOAT or DOUBLE with a default is the default (in a real Drainer's Kafka messages 0);
* a missing ENUM that is NOT NULL, without a default, is the first member (there: number 0);
* the default of a missing TIMESTAMP keeps its fraction (there it is cut off).

A Drainer writes TIMESTAMP values in the time zone of its process (wire.md 2.4). A zone is picklable, so that executors on other machines use the
driver's. Conversions are exact over daylight saving.
"""

import datetime
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, digits_of, kind_of
from pyspark_tidb_binlog.schemas.codec.datum import NULL, Datum, as_bytes, as_float, as_integer, take_datum
from pyspark_tidb_binlog.schemas.codec.json_binary import float_text
from pyspark_tidb_binlog.schemas.codec.number import Cursor, round_to_float32, to_signed, to_unsigned
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.reference_decoder import cell_of
from pyspark_tidb_binlog.schemas.row_layout import CellType
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo

Encode: TypeAlias = Callable[[bytes], bytes]
"""A datum of a row as the value of a format."""

TEXTS = frozenset({CellKind.DECIMAL, CellKind.DATE, CellKind.DATETIME, CellKind.TIME, CellKind.JSON})
"""Kinds of columns whose values are written as text."""

_NAMES = {tp: tp.name.lower() for tp in ColumnType} | {
    ColumnType.NEWDATE: "",
    ColumnType.TINYBLOB: "tinytext",
    ColumnType.MEDIUMBLOB: "mediumtext",
    ColumnType.LONGBLOB: "longtext",
    ColumnType.BLOB: "text",
    ColumnType.STRING: "char",
}
_BINARY_NAMES = {
    ColumnType.TINYBLOB: "tinyblob",
    ColumnType.MEDIUMBLOB: "mediumblob",
    ColumnType.LONGBLOB: "longblob",
    ColumnType.BLOB: "blob",
    ColumnType.STRING: "binary",
    ColumnType.VARCHAR: "varbinary",
}

TYPES = {name: (tp, False) for tp, name in _NAMES.items()} | {name: (tp, True) for tp, name in _BINARY_NAMES.items()}
"""By the name of a type: its code, and whether its charset is binary."""


def mysql_type(column: ColumnInfo) -> str:
    """The name of a column's type."""
    tp = ColumnType(column.tp)
    return (_BINARY_NAMES.get(tp) if column.is_binary else None) or _NAMES[tp]


def read(raw: bytes) -> Datum:
    """A datum's flag and body."""
    return take_datum(Cursor(raw))


def text_of(column: ColumnInfo, zone: datetime.tzinfo) -> Callable[[bytes], bytes]:
    """Return the function that makes text of the datums of a column in ``TEXTS``; of a TIMESTAMP in ``zone``.

    A DECIMAL has the fraction digits with which it was stored, which are fewer than the column's after the column was widened.
    """
    kind = kind_of(column)
    cell = CellType(kind, 0 if kind is CellKind.DECIMAL else digits_of(column))
    if column.tp == ColumnType.TIMESTAMP and zone is not datetime.UTC:
        return lambda raw: in_zone(str(cell_of(cell, read(raw))), zone).encode()
    return lambda raw: str(cell_of(cell, read(raw))).encode()


@dataclass(frozen=True, slots=True)
class RawDefault:
    """The default of a column as the DDL history holds it."""

    text: bytes
    number: float | None
    """Set if the history holds a number and not a text."""


@dataclass(frozen=True, slots=True)
class ValueForms:
    """How a format writes the values of a column."""

    signed: Callable[[int], bytes]
    unsigned: Callable[[int], bytes]
    double: Callable[[float], bytes]
    of_bytes: Callable[[bytes], bytes]
    """Also texts."""


def encoding_of(column: ColumnInfo, zone: datetime.tzinfo, forms: ValueForms) -> Encode:
    """Return the function that makes values of the format of a column's datums; never called with NULL."""
    kind, signed, unsigned, double, of_bytes = kind_of(column), forms.signed, forms.unsigned, forms.double, forms.of_bytes
    if kind in TEXTS:
        text = text_of(column, zone)
        return lambda raw: of_bytes(text(raw))
    match kind:
        case CellKind.INT:
            return lambda raw: signed(to_signed(as_integer(read(raw))))
        case CellKind.UINT:
            return lambda raw: unsigned(to_unsigned(as_integer(read(raw))))
        case CellKind.FLOAT:
            return lambda raw: double(round_to_float32(as_float(read(raw))))
        case CellKind.DOUBLE:
            return lambda raw: double(as_float(read(raw)))
        case CellKind.BYTES:
            return lambda raw: of_bytes(as_bytes(read(raw)))
        case _:
            known = known_number(column)
            return lambda raw: unsigned(known(as_integer(read(raw))))


def known_number(column: ColumnInfo) -> Callable[[int], int]:
    """The number of an ENUM, SET or BIT as a Drainer reads it: of an ENUM 0 if it is no member, of a BIT the column's bits."""
    if column.tp == ColumnType.ENUM:
        members = len(column.elems)
        return lambda number: number if number <= members else 0
    if column.tp == ColumnType.BIT:
        mask = (1 << 8 * bit_bytes(column)) - 1
        return lambda number: number & mask
    return to_unsigned


def bit_bytes(column: ColumnInfo) -> int:
    """Bytes of a BIT column's values."""
    return (max(column.flen, 0) + 7) // 8


Missing: TypeAlias = int | bytes | RawDefault | None
"""ENUM, SET: int. BIT: its bytes, which may be none. Others: ``RawDefault``, or the zero value: int, bytes (texts too). None: NULL."""


def missing_datum(column: ColumnInfo, at_row: TableInfo | None, zone: datetime.tzinfo) -> Missing:
    """The value of a column that a row lacks; ``at_row``: the table info whose default applies (``TableAt.default_info``)."""
    known = next((c for c in at_row.columns if c.id == column.id), column) if at_row else column
    if known.tp == ColumnType.BIT and known.origin_default_bit is not None:
        return known.origin_default_bit
    default = known.origin_default
    if default is None:
        return _zero(column) if column.not_null else None
    if isinstance(default, str):
        if known.tp in (ColumnType.ENUM, ColumnType.SET):
            return _number(known, default)
        if known.tp == ColumnType.TIMESTAMP:
            default = in_zone(default, zone)
        if known.tp == ColumnType.BIT:
            return default.encode("latin-1", "replace")
        return RawDefault(default.encode(errors="surrogateescape"), None)
    return RawDefault(float_text(float(default)).encode(), float(default))


class ColumnForm(ABC):
    """The values of one column in a format."""

    null: bytes
    """A NULL."""

    def __init__(self, column: ColumnInfo, at_row: TableInfo | None, zone: datetime.tzinfo, encode: Encode) -> None:
        """``at_row``: as in ``missing_datum``; ``encode``: how the datums of the column become values of the format, never called with NULL."""
        self.id = column.id
        self._column = column
        self._at_row = at_row
        self._zone = zone
        self._encode = encode

    def value(self, image: Mapping[int, bytes]) -> bytes:
        """Return the column's value in an image, or the value of a missing column."""
        raw = image.get(self.id)
        if raw is None:
            return self._missing
        if raw == NULL:
            return self.null
        try:
            return self._encode(raw)
        except Corruption as error:
            raise Corruption(f"column {self._column.name} (id {self.id}): {error}") from error

    @cached_property
    def _missing(self) -> bytes:
        value = missing_datum(self._column, self._at_row, self._zone)
        return self.null if value is None else self._default(value)

    @abstractmethod
    def _default(self, value: int | bytes | RawDefault) -> bytes:
        """Return the value of the format for a default, which is not NULL."""


def _number(column: ColumnInfo, default: str) -> int:
    try:
        return column.number_of(default)
    except ValueError:
        if default.isdecimal():
            return int(default)
        raise Corruption(f"the origin default {default!r} of column {column.name} (id {column.id}) does not fit it") from None


_ZEROS = {
    CellKind.DATE: b"0000-00-00",
    CellKind.DATETIME: b"0000-00-00 00:00:00",
    CellKind.TIME: b"00:00:00",
    CellKind.DECIMAL: b"0",
    CellKind.JSON: b"null",
}
"""Without the column's fraction digits, as in the original."""


def _zero(column: ColumnInfo) -> int | bytes:
    kind = kind_of(column)
    if kind is CellKind.BYTES:
        return bytes(max(column.flen, 0)) if column.tp == ColumnType.STRING and column.is_binary else b""
    if column.tp == ColumnType.BIT:
        return b""
    return _ZEROS.get(kind, 1 if column.tp == ColumnType.ENUM else 0)


# TIMESTAMP.

_LOCALTIME = Path("/etc/localtime")
_FORMAT_LENGTH = len("2020-01-01 00:00:00")


def process_zone(localtime: Path = _LOCALTIME) -> datetime.tzinfo:
    """The zone that ``TZ`` names, else the machine's. Where neither has a name, the offset of now."""
    named = os.environ.get("TZ")
    if named is None:
        named = os.path.realpath(localtime).partition("/zoneinfo/")[2] or ("" if not localtime.exists() else None)
    if named is not None:
        if named.lstrip(":") in ("", "UTC", "Etc/UTC"):
            return datetime.UTC
        try:
            return ZoneInfo(named.lstrip(":"))
        except (ZoneInfoNotFoundError, ValueError):
            pass
    return datetime.datetime.now().astimezone().tzinfo or datetime.UTC


def in_zone(text: str, zone: datetime.tzinfo) -> str:
    """``YYYY-MM-DD hh:mm:ss[.f]`` in UTC as the same moment in ``zone``; a text that is no moment (a zero date) does not change."""
    if zone is datetime.UTC:
        return text
    try:
        moment = datetime.datetime.strptime(text[:_FORMAT_LENGTH], "%Y-%m-%d %H:%M:%S").replace(tzinfo=datetime.UTC)
        return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") + text[_FORMAT_LENGTH:]
    except (ValueError, OverflowError):
        return text


@dataclass(slots=True)
class ReadBack:
    """Reads TIMESTAMP values of a file back, and counts the doubtful ones."""

    zone: datetime.tzinfo
    """The zone of the process that wrote the file."""
    doubtful_times: dict[str, int] = field(default_factory=dict)
    """Number of values, by table, in the hour that comes twice when summer time ends: the file does not say which of the two hours is meant."""

    def in_utc(self, text: str, table: str) -> str:
        """``text`` in the file's zone as the same moment in UTC, the earlier of two; a text that is no moment (a zero date) does not change."""
        if self.zone is datetime.UTC:
            return text
        try:
            local = datetime.datetime.strptime(text[:_FORMAT_LENGTH], "%Y-%m-%d %H:%M:%S").replace(tzinfo=self.zone)
            first, second = (local.replace(fold=fold).astimezone(datetime.UTC) for fold in (0, 1))
        except (ValueError, OverflowError):
            return text
        if first < second:
            self.doubtful_times[table] = self.doubtful_times.get(table, 0) + 1
        return first.strftime("%Y-%m-%d %H:%M:%S") + text[_FORMAT_LENGTH:]
