"""The cells of decoded images as the types that a Spark column can have, a whole column at a time. Pure.

    TINYINT .. BIGINT, YEAR     tinyint .. bigint, int; UNSIGNED ones the next wider type, BIGINT UNSIGNED decimal(20,0)
    FLOAT, DOUBLE               float, double
    DECIMAL(p,s)                decimal(p,s); string where p is above 38
    BIT(1), BIT(n), BIT(64)     boolean, bigint, decimal(20,0)
    DATE, DATETIME, TIMESTAMP   date, timestamp_ntz, timestamp; a text that is no such date, as 0000-00-00, is ``odd``
    TIME, ENUM, SET, JSON       string
    text, binary strings        string, binary; bytes that are not UTF-8 become U+FFFD in a string

Promises: values change only as this table says; NULL stays NULL.
"""

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, digits_of, kind_of
from pyspark_tidb_binlog.schemas.codec.temporal import MAX_FSP
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType

Ints = npt.NDArray[np.int64]

UINT64 = pa.decimal128(20, 0)
_MOST_DIGITS = 38
"""Of a decimal in Spark."""
_INTEGERS = {
    ColumnType.TINYINT: (pa.int8(), pa.int16()),
    ColumnType.SMALLINT: (pa.int16(), pa.int32()),
    ColumnType.MEDIUMINT: (pa.int32(), pa.int32()),
    ColumnType.INT: (pa.int32(), pa.int64()),
    ColumnType.BIGINT: (pa.int64(), UINT64),
}
"""By type: signed, unsigned."""
_DATE, _DATETIME, _TIMESTAMP = pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_TENS = 10 ** np.arange(MAX_FSP)[::-1]
_DAYS_IN_MONTH = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


class InvalidDates(enum.StrEnum):
    """What a date that no calendar has, as 0000-00-00, becomes in a typed column."""

    NULL = "null"
    FAIL = "fail"
    STRING = "string"
    """All columns of dates are strings."""


@dataclass(frozen=True, slots=True)
class TypedCells:
    """One column."""

    values: pa.Array
    """Of type ``type_of`` the column; null where the cell is NULL or odd."""
    odd: pa.Array | None = None
    """The text of the cells that are no such date, null elsewhere; None: there are none."""


def type_of(column: ColumnInfo) -> pa.DataType:
    """The Arrow type of a column's cells."""
    kind = kind_of(column)
    match kind:
        case CellKind.INT | CellKind.UINT:
            if column.tp == ColumnType.YEAR:
                return pa.int32()
            return _INTEGERS[ColumnType(column.tp)][kind is CellKind.UINT]
        case CellKind.FLOAT | CellKind.DOUBLE:
            return kind.arrow
        case CellKind.DECIMAL:
            return pa.decimal128(column.flen, digits_of(column)) if 0 < column.flen <= _MOST_DIGITS else pa.string()
        case CellKind.NUMBER if column.tp == ColumnType.BIT:
            return {1: pa.bool_(), 64: UINT64}.get(column.flen, pa.int64())
        case CellKind.DATE:
            return _DATE
        case CellKind.DATETIME:
            return _TIMESTAMP if column.tp == ColumnType.TIMESTAMP else _DATETIME
        case CellKind.BYTES if column.is_binary:
            return pa.binary()
        case _:
            return pa.string()


def is_date(column: ColumnInfo) -> bool:
    """Whether a column holds dates, with or without a time of day."""
    return kind_of(column) in (CellKind.DATE, CellKind.DATETIME)


def typed(column: ColumnInfo, cells: pa.Array) -> TypedCells:
    """``cells`` of an image (``schemas.arrowtypes``) as ``type_of(column)``.

    Raises:
        ArrowInvalid: one is no value of the column.
    """
    wanted = type_of(column)
    match kind_of(column):
        case CellKind.DATE | CellKind.DATETIME:
            return _dates(cells, wanted, digits_of(column))
        case CellKind.NUMBER if column.tp != ColumnType.BIT:
            return TypedCells(_words(column, cells))
        case CellKind.NUMBER if wanted == pa.bool_():
            return TypedCells(pc.not_equal(cells, 0))
        case CellKind.BYTES if wanted == pa.string():
            return TypedCells(as_text(cells))
        case CellKind.UINT | CellKind.NUMBER if wanted == UINT64:
            return TypedCells(_unsigned(cells))
        case _:
            return TypedCells(cells.cast(wanted))


def as_text(cells: pa.Array) -> pa.StringArray:
    """Bytes as text."""
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if cell is None else cell.decode("utf-8", "replace") for cell in cells.to_pylist()], pa.string())


def _unsigned(cells: pa.Array) -> pa.Array:
    """Unsigned 64-bit integers as decimals: Arrow casts signed ones only, so the two halves are put together."""
    numbers = cells.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    halves = np.zeros((len(numbers), 2), np.uint64)
    halves[:, 0] = numbers
    whole = pa.Array.from_buffers(UINT64, len(numbers), [None, pa.py_buffer(halves.tobytes())])
    return pc.if_else(cells.is_null(), pa.scalar(None, UINT64), whole) if cells.null_count else whole


def _words(column: ColumnInfo, cells: pa.Array) -> pa.Array:
    """The texts of an ENUM or a SET: each that occurs is made once."""
    found = cells.dictionary_encode()
    make = _member if column.tp == ColumnType.ENUM else _members
    texts = pa.array([make(column.elems, number) for number in found.dictionary.to_pylist()], pa.string())
    return texts.take(found.indices)


def _member(elems: tuple[str, ...], number: int) -> str:
    return elems[number - 1] if 0 < number <= len(elems) else ""


def _members(elems: tuple[str, ...], bits: int) -> str:
    return ",".join(word for place, word in enumerate(elems) if bits >> place & 1)


def _dates(cells: pa.Array, wanted: pa.DataType, digits: int) -> TypedCells:
    """Texts ``YYYY-MM-DD[ hh:mm:ss[.f]]`` as dates or microseconds."""
    date_only = wanted == _DATE
    width = 10 if date_only else 19 + (digits + 1 if digits else 0)
    fits = pc.fill_null(pc.equal(pc.binary_length(cells), width), False)
    places = np.flatnonzero(fits.to_numpy(zero_copy_only=False))
    texts = cells.take(pa.array(places)) if len(places) < len(cells) else cells
    values, good = _parsed(texts, width, date_only)
    numbers, there = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.bool_)
    numbers[places], there[places] = values, good
    made = pa.array(numbers.astype(np.int32) if date_only else numbers, mask=~there)
    odd_mask = ~there & cells.is_valid().to_numpy(zero_copy_only=False)
    odd = pc.if_else(pa.array(odd_mask), cells, pa.scalar(None, pa.string())) if odd_mask.any() else None
    return TypedCells(made.view(wanted), odd)


def _parsed(texts: pa.Array, width: int, date_only: bool) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Days since 1970, or microseconds, and which of the texts are dates that Spark has."""
    if not len(texts):
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    signs = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(-1, width)

    def number(begin: int, end: int) -> Ints:
        return (signs[:, begin:end] - np.uint8(ord("0"))).astype(np.int64) @ _TENS[MAX_FSP - end + begin :]

    digit = (signs >= ord("0")) & (signs <= ord("9"))
    spans = [(0, 4), (5, 7), (8, 10)] + ([] if date_only else [(11, 13), (14, 16), (17, 19), (20, max(width, 20))])
    good = np.logical_and.reduce([digit[:, begin:end].all(axis=1) for begin, end in spans])
    days, known = days_of(*(number(*span) for span in spans[:3]))
    good &= known
    if date_only:
        return days, good
    hour, minute, second, fraction = (number(*span) for span in spans[3:])
    good &= (hour < 24) & (minute < 60) & (second < 60)
    micros = fraction * 10 ** (MAX_FSP - max(width - 20, 0))
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros, good


def days_of(year: Ints, month: Ints, day: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Days since 1970-01-01 of the proleptic Gregorian calendar, and which dates it has; the year is taken to begin in March."""
    known = (month >= 1) & (month <= 12)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    length = _DAYS_IN_MONTH[np.where(known, month, 0)] + (leap & (month == 2))
    good = known & (year >= 1) & (day >= 1) & (day <= length)
    year = year - (month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days: Ints = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return days, good


def dates_of(column: ColumnInfo, days: Ints, micros: Ints, nulls: npt.NDArray[np.bool_]) -> TypedCells:
    """Cells that are ``days`` since 1970 and ``micros`` of the day, all of them dates or null."""
    wanted = type_of(column)
    if wanted == _DATE:
        return TypedCells(pa.array(days.astype(np.int32), mask=nulls).view(wanted))
    micros = micros - micros % 10 ** (MAX_FSP - digits_of(column))
    return TypedCells(pa.array(days * 86_400_000_000 + micros, mask=nulls).view(wanted))
