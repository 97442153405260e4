"""Walks many rows of one table side by side: step k reads the k-th (column id, datum) pair of every row, in a few numpy operations.

The walk decodes no value. It finds where each requested column's datum begins and ends in each row (``DatumPlaces``), and which rows
are odd. Rows may differ in columns, flags, lengths and number of pairs. The cost is the number of pairs of the longest row times the
number of distinct (id, flag) pairs per step, which is 1 or 2 in practice.

A row is odd if it is damaged or holds what TiDB never writes there: bytes in comparable form, more than ``MAX_STEPS`` pairs. The scalar
decoder decides about odd rows.

Promises: pure. The walk never reads beyond a row: a row that would need that is odd.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidb_binlog.schemas.codec.datum import FIXED_SIZE, Flag
from pyspark_tidb_binlog.schemas.codec.decimal import BYTES_OF_DIGITS, HEADER, groups_of, is_valid_size
from pyspark_tidb_binlog.schemas.codec.json_binary import FIXED_SIZES, JsonType
from pyspark_tidb_binlog.schemas.codec.json_binary import HEADER as JSON_HEADER

U8: TypeAlias = npt.NDArray[np.uint8]
U64: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

MISSING = 0xFF
"""Stands in for a flag: the row lacks the column."""
MAX_STEPS = 10_000
"""More pairs than an update of TiDB's widest table (4,096 columns) has."""

_PAD = 32
"""Zero bytes after the last row, so that fixed-size reads at the end of a row need no bounds check."""
_MSB = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_UNKNOWN = -1
_NULL, _VARINT = int(Flag.NULL), int(Flag.VARINT)
_NO_FLAG = np.uint8(max(Flag) + 1)


class Rows:
    """Rows in order, without overlap, in one contiguous buffer."""

    __slots__ = ("buffer", "data", "ends", "starts", "words")

    def __init__(self, data: U8, starts: Ints, ends: Ints) -> None:
        self.data, self.starts, self.ends = data, starts, ends
        self.buffer = pa.py_buffer(data)
        self.words: U64 = np.ndarray((len(data) - FIXED_SIZE + 1,), "<u8", data, strides=(1,))
        """The 8 bytes starting at each position, as little-endian numbers."""

    @classmethod
    def of(cls, data: U8, bounds: Ints) -> Self:
        """Rows without gaps: each begins where the one before ends."""
        low, high = int(bounds[0]), int(bounds[-1])
        padded = np.zeros(high - low + _PAD, dtype=np.uint8)
        padded[: high - low] = data[low:high]
        return cls(padded, bounds[:-1] - low, bounds[1:] - low)

    def only(self, index: Ints) -> "Rows":
        """Some of the rows, in the same buffer."""
        return Rows(self.data, self.starts[index], self.ends[index])

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class DatumPlaces:
    """Where one column's datum lies in each row: its flag, and position and size of its body (of the content, for BYTES)."""

    flags: U8
    bodies: Ints
    sizes: Ints

    @classmethod
    def missing(cls, rows: Rows, half: int) -> Self:
        """The places of a column that no row has in its ``half``: an end of the row, so that places are in order whatever is missing."""
        count = len(rows)
        return cls(np.full(count, MISSING, np.uint8), (rows.ends if half else rows.starts).copy(), np.zeros(count, np.int64))

    def __len__(self) -> int:
        return len(self.flags)

    @property
    def absent(self) -> Mask:
        """The rows that lack the column."""
        absent: Mask = self.flags == MISSING
        return absent

    def put(self, index: Ints | Mask, other: "DatumPlaces") -> None:
        """Store ``other``, the places of the rows ``index``."""
        self.flags[index] = other.flags
        self.bodies[index] = other.bodies
        self.sizes[index] = other.sizes

    def only(self, index: Ints | Mask) -> "DatumPlaces":
        """The places of these rows."""
        return DatumPlaces(self.flags[index], self.bodies[index], self.sizes[index])


@dataclass(frozen=True, slots=True)
class ColumnSearch:
    """Which columns to find. A slot is the number under which a column's places are stored."""

    handle: tuple[int | None, ...]
    """Slot of each datum before the pairs, in the rows that have a handle; None: skip it."""
    slots: Mapping[int, int]
    """Slot by column id; other columns are skipped."""
    until_found: bool = False
    """Stop in each row as soon as all columns of ``slots`` have been seen."""
    handle_is_enough: bool = False
    """Read only the handle of the rows that have one."""


class Walk:
    """The result: places by half and slot, and the odd rows. A column's second pair in a row is its second half."""

    def __init__(self, rows: Rows, search: ColumnSearch, handled: Mask, twice: Mask) -> None:
        """``handled``: the rows that begin with a handle; ``twice``: those in which a column may occur twice."""
        self._rows = rows
        self._search = search
        self._handled, self._twice = handled, twice
        self._pos = rows.starts.copy()
        self.odd: Mask = np.zeros(len(rows), np.bool_)
        self._handle: dict[int, DatumPlaces] = {}
        self._found: tuple[dict[int, DatumPlaces], dict[int, DatumPlaces]] = ({}, {})
        if len(rows):
            self._read_handle()
            self._read_pairs()

    def places(self, slot: int, half: int) -> DatumPlaces:
        """Where a column's datum lies; a row's own pair takes precedence over its handle. In odd rows it is missing."""
        found, handle = self._found[half].get(slot), None if half else self._handle.get(slot)
        if found is None:
            found = DatumPlaces.missing(self._rows, half) if handle is None else handle
        elif handle is not None and (absent := found.absent).any():
            found.put(absent, handle.only(absent))
        return self._without_odd(found, half)

    def handle(self, slot: int) -> DatumPlaces:
        """Where a column's datum lies in the handle. In odd rows, and those without a handle, it is missing."""
        found = self._handle.get(slot)
        return DatumPlaces.missing(self._rows, 0) if found is None else self._without_odd(found, 0)

    def _without_odd(self, found: DatumPlaces, half: int) -> DatumPlaces:
        if self.odd.any():
            found.put(self.odd, DatumPlaces.missing(self._rows, half).only(self.odd))
        return found

    def _read_handle(self) -> None:
        index = np.flatnonzero(self._handled)
        for slot in self._search.handle if len(index) else ():
            places = self._read_datums(None if len(index) == len(self._rows) else index)
            if slot is not None:
                self._handle[slot] = whole = DatumPlaces.missing(self._rows, 0)
                whole.put(index, places)
        left = self._rows.ends - self._pos
        self.odd |= left <= 0
        self._pos[(left == 1) & (self._rows.data[self._pos] == Flag.NULL)] += 1

    def _read_pairs(self) -> None:
        data, ends = self._rows.data, self._rows.ends
        for step in range(MAX_STEPS):
            live = (self._pos < ends) & ~self.odd
            if self._search.until_found:
                live &= ~self._complete()
            # a handle's columns are pairs in rows without a handle: afterwards most rows are at the same column
            later = live & self._handled if step < len(self._search.handle) or self._search.handle_is_enough else None
            if later is not None:
                live &= ~later
            if live.all():
                live_rows = None
            else:
                live_rows = np.flatnonzero(live)
                if not len(live_rows):
                    if later is not None and later.any() and not self._search.handle_is_enough:
                        continue
                    return
            ids = self._read_ids(live_rows, data)
            self._keep(ids, live_rows, self._read_datums(live_rows))
        self.odd |= (self._pos < ends) & ~self.odd

    def _complete(self) -> Mask:
        first = [self._found[0].get(slot) for slot in self._search.slots.values()]
        complete = np.full(len(self._rows), all(p is not None for p in first), np.bool_)
        for places in first:
            if places is not None:
                complete &= ~places.absent
        return complete

    def _read_ids(self, index: Ints | None, data: U8) -> Ints:
        at = self._pos if index is None else self._pos[index]
        raw: Ints = data[at + 1].astype(np.int64)
        sizes: Ints | int = 1
        odd = data[at] != _VARINT
        if (raw >= 0x80).any():
            sizes, too_long = varint_sizes(self._rows, at + 1)
            raw = varint_values(self._rows, at + 1, sizes).view(np.int64)
            odd |= too_long
        self._move(index, at + 1 + sizes, odd)
        return (raw >> 1 & 0x7FFF_FFFF_FFFF_FFFF) ^ -(raw & 1)

    def _read_datums(self, index: Ints | None) -> DatumPlaces:
        at = self._pos if index is None else self._pos[index]
        ends = self._rows.ends if index is None else self._rows.ends[index]
        odd = at >= ends
        flags: U8 = self._rows.data[at]
        bodies, sizes = at + 1, np.zeros(len(at), np.int64)
        for flag, rows in _each(np.minimum(flags, _NO_FLAG)):
            if flag == _NULL:
                continue
            found, size, wrong = _EXTENTS.get(flag, _no_extent)(self._rows, bodies if rows is None else bodies[rows])
            if rows is None:
                bodies, sizes, odd = found, size, odd | wrong
            else:
                bodies[rows], sizes[rows] = found, size
                odd[rows] |= wrong
        self._move(index, bodies + sizes, odd)
        return DatumPlaces(flags, bodies, sizes)

    def _move(self, index: Ints | None, to: Ints, odd: Mask) -> None:
        """Advance past what was read; a row that read past its end stays at its end and becomes odd."""
        ends = self._rows.ends if index is None else self._rows.ends[index]
        odd = odd | (to > ends)
        to = np.minimum(to, ends)
        if odd.any():
            to[odd] = ends[odd]
        if index is None:
            self._pos = to
            self.odd |= odd
        else:
            self._pos[index] = to
            self.odd[index] |= odd

    def _keep(self, ids: Ints, index: Ints | None, places: DatumPlaces) -> None:
        if ids.min() == ids.max():
            self._keep_slot(self._search.slots.get(int(ids[0]), _UNKNOWN), index, places)
            return
        for column_id in np.unique(ids).tolist():
            slot = self._search.slots.get(column_id, _UNKNOWN)
            if slot != _UNKNOWN:
                rows = np.flatnonzero(ids == column_id)
                self._keep_slot(slot, rows if index is None else index[rows], places.only(rows))

    def _keep_slot(self, slot: int, index: Ints | None, places: DatumPlaces) -> None:
        if slot == _UNKNOWN:
            return
        for number, half in enumerate(self._found):
            if number and not self._twice.all():
                index = np.arange(len(self._rows)) if index is None else index
                allowed = self._twice[index]
                self.odd[index[~allowed]] = True
                index, places = index[allowed], places.only(allowed)
            if slot not in half:
                if index is None:
                    half[slot] = places
                    return
                half[slot] = DatumPlaces.missing(self._rows, number)
            free = half[slot].absent if index is None else half[slot].absent[index]
            if not free.any():
                continue
            if index is None:
                index = np.arange(len(self._rows))
            half[slot].put(index[free], places.only(free))
            if free.all():
                return
            index, places = index[~free], places.only(~free)
        self.odd[slice(None) if index is None else index] = True


def _each(flags: U8) -> Iterator[tuple[int, Ints | None]]:
    """Each flag that occurs, with the rows that have it; None: all."""
    if flags.size == 0:
        return
    if flags.min() == flags.max():
        yield int(flags[0]), None
        return
    for flag in np.flatnonzero(np.bincount(flags, minlength=1)).tolist():
        yield flag, np.flatnonzero(flags == flag)


_Extent: TypeAlias = tuple[Ints, Ints, Mask]
"""Position and size of bodies, and which are odd."""


def _varint_extent(rows: Rows, at: Ints) -> _Extent:
    return at, *varint_sizes(rows, at)


def _fixed_extent(rows: Rows, at: Ints) -> _Extent:
    return at, np.full(len(at), FIXED_SIZE, np.int64), np.zeros(len(at), np.bool_)


def _decimal_extent(rows: Rows, at: Ints) -> _Extent:
    sizes = _DECIMAL_SIZES[rows.data[at], rows.data[at + 1]]
    return at, sizes, sizes == 0


def _no_extent(rows: Rows, at: Ints) -> _Extent:
    return at, np.zeros(len(at), np.int64), np.ones(len(at), np.bool_)


def _bytes_extent(rows: Rows, at: Ints) -> _Extent:
    first: Ints = rows.data[at].astype(np.int64)
    if not (first >= 0x80).any():
        return at + 1, first >> 1, (first & 1) == 1
    widths, odd = varint_sizes(rows, at)
    coded = varint_values(rows, at, widths)
    odd |= (coded & _ONE).astype(np.bool_)
    return at + widths, _capped(coded >> _ONE, rows), odd


def _json_extent(rows: Rows, at: Ints) -> _Extent:
    types = rows.data[at]
    sizes = _JSON_SIZES[types]
    odd = sizes == 0
    for tp, index in _each(types):
        inside = (at if index is None else at[index]) + 1
        if tp in (JsonType.OBJECT, JsonType.ARRAY):
            size: Ints = (rows.words[inside] >> np.uint64(32)).astype(np.int64)
            wrong = size < JSON_HEADER
        elif tp in (JsonType.STRING, JsonType.OPAQUE):
            skip = 1 if tp == JsonType.OPAQUE else 0
            widths, wrong = varint_sizes(rows, inside + skip)
            size = skip + widths + _capped(varint_values(rows, inside + skip, widths), rows)
        else:
            continue
        sizes[slice(None) if index is None else index] = size + 1
        odd[slice(None) if index is None else index] = wrong
    return at, sizes, odd


_EXTENTS: dict[int, Callable[[Rows, Ints], _Extent]] = {
    Flag.VARINT: _varint_extent,
    Flag.UVARINT: _varint_extent,
    Flag.BYTES: _bytes_extent,
    Flag.FLOAT: _fixed_extent,
    Flag.COMPARABLE_INT: _fixed_extent,
    Flag.COMPARABLE_UINT: _fixed_extent,
    Flag.DURATION: _fixed_extent,
    Flag.DECIMAL: _decimal_extent,
    Flag.JSON: _json_extent,
}
"""By flag: where the bodies that begin at some positions lie."""


def _capped(sizes: U64, rows: Rows) -> Ints:
    """Sizes as signed numbers, capped at the buffer size: a larger one is too long in any case."""
    return np.minimum(sizes, np.uint64(len(rows.data))).astype(np.int64)


def varint_sizes(rows: Rows, at: Ints) -> tuple[Ints, Mask]:
    """How many bytes each varint takes, and which are longer than 64 bits."""
    count = len(at)
    if not (rows.data[at] >= 0x80).any():
        return np.ones(count, np.int64), np.zeros(count, np.bool_)
    last = ~rows.words[at] & _MSB
    sizes: Ints = (np.bitwise_count((last & -last) - _ONE) >> 3).astype(np.int64) + 1
    odd = np.zeros(count, np.bool_)
    if (sizes > FIXED_SIZE).any():
        index = np.flatnonzero(sizes > FIXED_SIZE)
        longer = index[rows.data[at[index] + 8] >= 0x80]
        sizes[longer] = 10
        odd[longer] = rows.data[at[longer] + 9] > 1
    return sizes, odd


def varint_values(rows: Rows, at: Ints, sizes: Ints) -> U64:
    """The unsigned number of each varint."""
    word = rows.words[at]
    widest = int(sizes.max()) if len(sizes) else 1
    if widest == 1:
        return word & np.uint64(0x7F)
    keep = (_ONE << (sizes.astype(np.uint64) << np.uint64(3))) - _ONE
    word &= keep & ~_MSB
    word = (word & np.uint64(0x7F007F007F007F00)) >> _ONE | word & np.uint64(0x007F007F007F007F)
    word = (word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2) | word & np.uint64(0x00003FFF00003FFF)
    word = (word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4) | word & np.uint64(0x000000000FFFFFFF)
    if widest > FIXED_SIZE:
        index = np.flatnonzero(sizes > FIXED_SIZE)
        word[index] |= (rows.data[at[index] + 8] & 0x7F).astype(np.uint64) << np.uint64(56)
        index = index[sizes[index] == 10]
        word[index] |= rows.data[at[index] + 9].astype(np.uint64) << np.uint64(63)
    return word


def _decimal_sizes() -> Ints:
    """Bytes of a decimal's body by precision and scale; 0 = no such type."""
    sizes = np.zeros((256, 256), np.int64)
    for precision in range(256):
        for scale in range(256):
            if is_valid_size(precision, scale):
                sizes[precision, scale] = HEADER + sum(BYTES_OF_DIGITS[g] for g in groups_of(precision, scale))
    return sizes


def _json_sizes() -> Ints:
    """Bytes of a JSON value by type, with the type byte; 0 = unknown type, 1 = the size is stored in the value."""
    sizes = np.zeros(256, np.int64)
    sizes[[JsonType.OBJECT, JsonType.ARRAY, JsonType.STRING, JsonType.OPAQUE]] = 1
    for tp, size in FIXED_SIZES.items():
        sizes[tp] = 1 + size
    return sizes


_DECIMAL_SIZES = _decimal_sizes()
_JSON_SIZES = _json_sizes()
