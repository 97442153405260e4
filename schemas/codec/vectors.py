"""Converts places in rows to whole Arrow columns: one function per kind of datum. Only JSON needs a Python loop over rows.

Every function takes the rows and ``DatumPlaces`` of one column, or of several. It returns the cells, and a mask of the places whose datum is damaged or of
another kind: the cells of those places are undefined. NULL and missing datums become null cells.

Text is built in planes: an array per character position, with an element per row, all transposed at the end. Numbers are right-aligned,
and the offsets skip the unused leading part.

Promises: pure. The cells equal those of ``schemas.reference_decoder.cell_of``, which property tests check.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidb_binlog.schemas.codec.datum import Flag
from pyspark_tidb_binlog.schemas.codec.decimal import BYTES_OF_DIGITS, HEADER, groups_of
from pyspark_tidb_binlog.schemas.codec.json_binary import json_text
from pyspark_tidb_binlog.schemas.codec.lockstep import MISSING, U8, U64, DatumPlaces, Ints, Mask, Rows, varint_values
from pyspark_tidb_binlog.schemas.codec.temporal import MAX_TIME_NS
from pyspark_tidb_binlog.schemas.errors import Corruption

Cells: TypeAlias = tuple[pa.Array, Mask]

_SIGN = np.uint64(1 << 63)
_ZERO = ord("0")
_MICRO_DIGITS = 6


def nulls_of(places: DatumPlaces) -> Mask:
    """The rows whose cell is null."""
    nulls: Mask = (places.flags == Flag.NULL) | (places.flags == MISSING)
    return nulls


def integers(rows: Rows, places: DatumPlaces) -> tuple[U64, Mask]:
    """The 64 bits of any integer form; 0 where there is none."""
    flags = places.flags
    first = int(flags[0]) if len(flags) else Flag.NULL
    if first in (Flag.VARINT, Flag.UVARINT) and (flags == first).all():
        values = varint_values(rows, places.bodies, places.sizes)
        return (_unzigzag(values) if first == Flag.VARINT else values), np.zeros(len(flags), np.bool_)
    values = np.zeros(len(flags), np.uint64)
    odd = ~nulls_of(places)
    for flag in np.unique(flags).tolist():
        index = np.flatnonzero(flags == flag)
        found = _integers_of(rows, flag, places.bodies[index], places.sizes[index])
        if found is not None:
            values[index] = found
            odd[index] = False
    return values, odd


def _integers_of(rows: Rows, flag: int, bodies: Ints, sizes: Ints) -> U64 | None:
    match flag:
        case Flag.VARINT:
            return _unzigzag(varint_values(rows, bodies, sizes))
        case Flag.UVARINT:
            return varint_values(rows, bodies, sizes)
        case Flag.COMPARABLE_UINT:
            return rows.words[bodies].byteswap()
        case Flag.COMPARABLE_INT | Flag.DURATION:
            return rows.words[bodies].byteswap() ^ _SIGN
        case _:
            return None


def _unzigzag(values: U64) -> U64:
    return (values >> np.uint64(1)) ^ -(values & np.uint64(1))


def numbers(rows: Rows, places: DatumPlaces, kind: pa.DataType) -> Cells:
    """Integer cells, int64 or uint64."""
    values, odd = integers(rows, places)
    return _array(values, kind, nulls_of(places)), odd


def doubles(rows: Rows, places: DatumPlaces) -> tuple[npt.NDArray[np.float64], Mask]:
    """Floats, 0 where there is none; odd where not finite."""
    is_float = places.flags == Flag.FLOAT
    bits = rows.words[places.bodies].byteswap()
    bits = np.where(bits >> np.uint64(63) == 1, bits ^ _SIGN, ~bits)
    values = np.where(is_float, bits.view(np.float64), 0.0)
    return values, ~np.isfinite(values) | ~(is_float | nulls_of(places))


def floats(rows: Rows, places: DatumPlaces, kind: pa.DataType) -> Cells:
    """Float cells, float32 or float64."""
    values, odd = doubles(rows, places)
    if kind == pa.float64():
        return _array(values, kind, nulls_of(places)), odd
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
    return _array(narrow, kind, nulls_of(places)), odd | ~np.isfinite(narrow)


def _array(values: npt.NDArray[np.generic], kind: pa.DataType, nulls: Mask) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [_validity(nulls), pa.py_buffer(np.ascontiguousarray(values))])


def _validity(nulls: Mask) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None


def binaries(rows: Rows, places: DatumPlaces) -> Cells:
    """Binary cells."""
    nulls = nulls_of(places)
    return _slices(rows.buffer, places.bodies, places.bodies + places.sizes, nulls), (places.flags != Flag.BYTES) & ~nulls


def _slices(buffer: pa.Buffer, starts: Ints, ends: Ints, nulls: Mask) -> pa.BinaryArray:
    """The slices [start, end) of a buffer, which must not overlap.

    Arrow copies them: in one binary array over the buffer, the elements are alternately a requested slice and a gap.
    """
    if not len(starts):
        return pa.array([], pa.binary())
    wanted = np.arange(0, 2 * len(starts), 2, dtype=np.int64)
    if (starts[1:] < ends[:-1]).any():
        # of several columns, one behind the other
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        wanted[order] = wanted.copy()
    bounds = np.stack((starts, ends), axis=1).astype(np.int32).ravel()
    both = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), buffer])
    return both.take(_array(wanted, pa.int64(), nulls))


def jsons(rows: Rows, places: DatumPlaces) -> Cells:
    """JSON cells as text."""
    odd = (places.flags != Flag.JSON) & ~nulls_of(places)
    texts: list[str | None] = [None] * len(places)
    known: dict[bytes, str] = {}  # an update mostly has the same document before and after it
    for i in np.flatnonzero(places.flags == Flag.JSON).tolist():
        begin = int(places.bodies[i])
        document = rows.data[begin : begin + int(places.sizes[i])].tobytes()
        try:
            texts[i] = known[document] if document in known else known.setdefault(document, json_text(document))
        except Corruption:
            odd[i] = True  # the scalar decoder finds it again and reports where it is
    return pa.array(texts, pa.string()), odd


def decimals(rows: Rows, places: DatumPlaces, scale: int) -> Cells:
    """Plain decimal text with at least ``scale`` fraction digits."""
    is_decimal = places.flags == Flag.DECIMAL
    sizes = np.where(is_decimal, rows.data[places.bodies].astype(np.uint16) << 8 | rows.data[places.bodies + 1], 0)
    kinds = [divmod(k, 256) for k in np.flatnonzero(np.bincount(sizes)).tolist() if k]
    page = _DecimalPage(len(places), max((p - s for p, s in kinds), default=1), max([scale, *(s for _, s in kinds)]))
    for precision, frac in kinds:
        index = np.flatnonzero(sizes == (precision << 8 | frac))
        page.write(index, rows, places.bodies[index], precision, frac, scale)
    return page.cells(nulls_of(places), page.odd | ~(is_decimal | nulls_of(places)))


class _DecimalPage:
    """Texts under construction: one line per row, with the decimal point at the same position in all."""

    def __init__(self, count: int, whole: int, scale: int) -> None:
        self._whole = max(whole, 1)
        self._planes = np.full((1 + self._whole + 1 + scale, count), _ZERO, np.uint8)
        self._planes[1 + self._whole] = ord(".")
        self._starts = np.zeros(count, np.int64)
        self._ends = np.zeros(count, np.int64)
        self.odd: Mask = np.zeros(count, np.bool_)

    def write(self, index: Ints, rows: Rows, bodies: Ints, precision: int, frac: int, scale: int) -> None:
        """Write the numbers of one DECIMAL(precision, frac)."""
        digits, negative, odd = _decimal_digits(rows, bodies + HEADER, precision, frac)
        whole = precision - frac
        point = 1 + self._whole
        lines = np.full((len(self._planes), len(index)), _ZERO, np.uint8)
        lines[point] = ord(".")
        lines[point - whole : point] += digits[:whole]
        lines[point + 1 : point + 1 + frac] += digits[whole:]
        lead = np.argmax(lines[1 : point - 1] != _ZERO, axis=0) if point > 2 else np.zeros(len(index), np.int64)
        none = (lines[1 : point - 1] == _ZERO).all(axis=0)
        first = np.where(none, point - 1, lead + 1)
        negative &= digits.any(axis=0)
        at = np.flatnonzero(negative)
        lines[first[at] - 1, at] = ord("-")
        shown = max(frac, scale)
        self._planes[:, index] = lines
        self._starts[index] = first - negative
        self._ends[index] = point + (1 + shown if shown else 0)
        self.odd[index] = odd

    def cells(self, nulls: Mask, odd: Mask) -> Cells:
        """The finished column."""
        width, count = self._planes.shape
        base = np.arange(count, dtype=np.int64) * width
        text = pa.py_buffer(np.ascontiguousarray(self._planes.T))
        return _text(_slices(text, base + self._starts, base + self._ends, nulls)), odd


def _decimal_digits(rows: Rows, at: Ints, precision: int, frac: int) -> tuple[U8, Mask, Mask]:
    """All digits as planes of 0..9, which numbers are negative, and which have invalid digits."""
    negative: Mask = rows.data[at] < 0x80
    planes = np.zeros((precision, len(at)), np.uint8)
    odd = np.zeros(len(at), np.bool_)
    done, offset = 0, 0
    for count in groups_of(precision, frac):
        size = BYTES_OF_DIGITS[count]
        word = (rows.words[at + offset].byteswap() >> np.uint64(64 - 8 * size)).astype(np.uint32)
        if offset == 0:
            word ^= np.uint32(0x80 << 8 * (size - 1))
        word ^= np.where(negative, np.uint32((1 << 8 * size) - 1), np.uint32(0))
        odd |= word >= 10**count
        _write_digits(planes[done : done + count], word)
        done, offset = done + count, offset + size
    return planes, negative, odd


def _write_digits(planes: U8, values: npt.NDArray[np.uint32]) -> None:
    """The last ``len(planes)`` decimal digits of each value."""
    for plane in planes[::-1]:
        tens = values // np.uint32(10)
        plane[:] = values - tens * np.uint32(10)
        values = tens


def time_fields(rows: Rows, places: DatumPlaces) -> tuple[tuple[npt.NDArray[np.uint32], ...], Mask]:
    """Year, month, day, hour, minute, second and microsecond of packed times, whatever calendar has such a day; and which are odd."""
    packed, odd = integers(rows, places)
    date, clock = (packed >> np.uint64(41)).astype(np.uint32), (packed >> np.uint64(24)).astype(np.uint32) & np.uint32(0x1FFFF)
    months = date >> np.uint32(5)
    year, month, day = months // np.uint32(13), months % np.uint32(13), date & np.uint32(31)
    hour, minute, second = clock >> np.uint32(12), clock >> np.uint32(6) & np.uint32(63), clock & np.uint32(63)
    micro = packed.astype(np.uint32) & np.uint32(0xFFFFFF)
    odd |= (year > 9999) | (hour > 23) | (minute > 59) | (second > 59) | (micro > 999_999)
    return (year, month, day, hour, minute, second, micro), odd


def datetimes(rows: Rows, places: DatumPlaces, fsp: int, *, date_only: bool) -> Cells:
    """``YYYY-MM-DD[ hh:mm:ss[.f]]`` of packed times."""
    (year, month, day, hour, minute, second, micro), odd = time_fields(rows, places)
    fields = [(year, 4, ""), (month, 2, "-"), (day, 2, "-")]
    if not date_only:
        fields += [(hour, 2, " "), (minute, 2, ":"), (second, 2, ":")]
        fields += [(micro // np.uint32(10 ** (_MICRO_DIGITS - fsp)), fsp, ".")] if fsp else []
    return _fixed_text(fields, nulls_of(places)), odd


def _fixed_text(fields: list[tuple[npt.NDArray[np.uint32], int, str]], nulls: Mask) -> pa.Array:
    planes = _planes(fields, len(nulls))
    width, count = planes.shape
    offsets = pa.py_buffer(np.arange(0, width * (count + 1), width, dtype=np.int32))
    text = pa.py_buffer(np.ascontiguousarray(planes.T))
    return pa.Array.from_buffers(pa.string(), count, [_validity(nulls), offsets, text])


def _planes(fields: list[tuple[npt.NDArray[np.uint32], int, str]], count: int) -> U8:
    """Numbers with leading zeros, each after its separator."""
    planes = np.full((sum(size + len(mark) for _, size, mark in fields), count), _ZERO, np.uint8)
    at = 0
    for values, size, mark in fields:
        if mark:
            planes[at] = ord(mark)
            at += 1
        digits = np.empty((size, count), np.uint8)
        _write_digits(digits, values)
        planes[at : at + size] += digits
        at += size
    return planes


def times(rows: Rows, places: DatumPlaces, fsp: int) -> Cells:
    """``[-]hh:mm:ss[.f]`` of nanoseconds; hours have a third digit where needed."""
    values, odd = integers(rows, places)
    nanoseconds = values.view(np.int64)
    odd |= (nanoseconds > MAX_TIME_NS) | (nanoseconds < -MAX_TIME_NS)
    nanoseconds = np.where(odd, 0, nanoseconds)
    units = np.abs(nanoseconds) // 10 ** (9 - fsp)
    negative = (nanoseconds < 0) & (units > 0)
    seconds = (units // 10**fsp).astype(np.uint32)
    part = (units % 10**fsp).astype(np.uint32)
    hours = seconds // np.uint32(3600)
    fields = [(hours, 3, "-"), (seconds // np.uint32(60) % np.uint32(60), 2, ":"), (seconds % np.uint32(60), 2, ":")]
    planes = _planes(fields + ([(part, fsp, ".")] if fsp else []), len(places))
    long = hours > 99
    planes[1, ~long] = ord("-")
    width, count = planes.shape
    base = np.arange(count, dtype=np.int64) * width
    starts = base + np.where(long, 1, 2) - negative
    return _text(_slices(pa.py_buffer(np.ascontiguousarray(planes.T)), starts, base + width, nulls_of(places))), odd


def _text(ascii_bytes: pa.BinaryArray) -> pa.StringArray:
    return pa.Array.from_buffers(pa.string(), len(ascii_bytes), ascii_bytes.buffers(), offset=ascii_bytes.offset)


def integer_keys(rows: Rows, places: DatumPlaces) -> Cells:
    """Integers as 8 bytes, big-endian."""
    values, odd = integers(rows, places)
    return big_endian(values.astype(">u8")), odd


def float_keys(rows: Rows, places: DatumPlaces) -> Cells:
    """Floats in their comparable form."""
    values, odd = doubles(rows, places)
    bits = values.view(np.uint64)
    return big_endian(np.where(values >= 0, bits | _SIGN, ~bits).astype(">u8")), odd


def big_endian(values: npt.NDArray[np.unsignedinteger[Any]]) -> pa.BinaryArray:
    """Big-endian numbers as their bytes."""
    width = values.itemsize
    offsets = np.arange(0, width * (len(values) + 1), width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def shortened(rows: Rows, places: DatumPlaces, length: int, *, in_bytes: bool) -> DatumPlaces:
    """The places of the first ``length`` characters of strings; UTF-8 continuation bytes do not count."""
    if in_bytes:
        return DatumPlaces(places.flags, places.bodies, np.minimum(places.sizes, length))
    begins = np.flatnonzero(rows.data & 0xC0 != 0x80)
    begins = np.append(begins, np.full(length + 1, len(rows.data)))
    cut = begins[np.searchsorted(begins, places.bodies) + length]
    return DatumPlaces(places.flags, places.bodies, np.minimum(places.sizes, cut - places.bodies))
