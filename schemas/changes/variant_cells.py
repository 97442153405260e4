"""The columns of a table from its rows as VARIANT: the inverse of ``variant_values.rows_as_variants``, a whole column at a time. Pure.

Only what that function writes is read. Rows whose objects have the same fields are read together: their prefix is the same, and each offset has
four bytes, so numpy takes a field of all rows at once.

Promises: cells are those that were written, of ``cell_type``. No Python loop per row or cell.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, digits_of, kind_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates, is_date, type_of
from pyspark_tidb_binlog.schemas.changes.variant_values import (
    BINARY,
    DATE,
    DATETIME,
    DECIMAL16,
    DOUBLE,
    FALSE,
    FLOAT,
    INT8,
    NULL,
    OBJECT,
    STORED_VARIANT,
    STRING,
    TIMESTAMP,
    TRUE,
    WIDE,
    header_of_object,
    no_rows,
)
from pyspark_tidb_binlog.schemas.errors import Corruption, SchemaMismatch
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_TEXT_HEAD = 5
"""Header and length before a text."""
_SECOND_LETTERS = len("2026-11-20 12:34:56")
_DECIMAL = np.dtype([("scale", "u1"), ("halves", "<i8", 2)])


def cell_type(column: ColumnInfo, invalid_dates: InvalidDates = InvalidDates.NULL) -> pa.DataType:
    """The Arrow type of a column's cells: ``typed_cells.type_of``, but VARIANT for JSON, and text for dates if they are to be text."""
    if kind_of(column) is CellKind.JSON:
        return STORED_VARIANT
    return pa.string() if is_date(column) and invalid_dates is InvalidDates.STRING else type_of(column)


def cells_of(images: pa.Array, columns: Sequence[ColumnInfo], invalid_dates: InvalidDates = InvalidDates.NULL) -> list[pa.Array]:
    """The cells of ``columns``, an array of ``cell_type`` for each. An image that is null gives nulls.

    ``images`` has the fields ``metadata`` and ``value``. A JSON column that an image lacks is NULL; JSON's null is a variant null.

    Raises:
        Corruption: an image is not as ``rows_as_variants`` writes it.
        SchemaMismatch: an image lacks another column, or a date is invalid and ``invalid_dates`` is ``FAIL``.
    """
    valid = images.is_valid().to_numpy(zero_copy_only=False)
    there, absent = np.flatnonzero(valid), np.flatnonzero(~valid)
    places, pieces = [absent], [[_nulls(cell_type(column, invalid_dates), len(absent)) for column in columns]]
    if len(there):
        found = images.take(pa.array(there)) if len(absent) else images
        values, metadata = (found.field(name).cast(pa.binary()) for name in ("value", "metadata"))
        try:
            for group in _groups(values, metadata):
                places.append(there[group.places])
                pieces.append([_cells(group, column, invalid_dates) for column in columns])
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise _foreign(str(error)) from error
    if len(pieces) == 2 and not len(absent):
        return pieces[1]
    order = pa.array(np.argsort(np.concatenate(places), kind="stable"))
    return [pa.concat_arrays(cells).take(order) for cells in zip(*pieces, strict=True)]


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A binary array, and its insides."""

    array: pa.BinaryArray
    data: npt.NDArray[np.uint8]
    bounds: Ints
    """Where values begin in ``data``, and where the last one ends."""

    @classmethod
    def of(cls, array: pa.BinaryArray) -> Self:
        """Those of ``array``."""
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
        return cls(array, np.frombuffer(data or b"", np.uint8), bounds)

    def take(self, starts: Ints, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """What begins at each of ``starts``."""
        kind = np.dtype(dtype)
        if not len(starts):
            return np.zeros(0, kind)
        everywhere: npt.NDArray[Any] = np.ndarray((len(self.data) - kind.itemsize + 1,), kind, self.data, strides=(1,))
        return everywhere[starts]


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of some rows."""

    rows: _Bytes
    starts: Ints
    ends: Ints
    heads: npt.NDArray[np.uint8]

    def are(self, kind: int, size: int) -> Flags:
        """Which cells are primitives of this kind and size."""
        found: Flags = (self.heads == kind << 2) & (self.ends - self.starts == 1 + size)
        return found

    def nulls(self) -> Flags:
        """Which cells are variant nulls."""
        return self.are(NULL[0] >> 2, 0)

    def fixed(self, kind: int, dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], Flags]:
        """The cells of a kind of fixed width, zero elsewhere, and which they are."""
        are = self.are(kind, np.dtype(dtype).itemsize)
        if are.all():
            return self.rows.take(self.starts + 1, dtype), are
        values = np.zeros(len(are), dtype)
        values[are] = self.rows.take(self.starts[are] + 1, dtype)
        return values, are

    def texts(self, kind: int) -> tuple[pa.BinaryArray, Flags]:
        """The contents of texts, null elsewhere, and which cells they are."""
        are = (self.heads == kind << 2) & (self.ends - self.starts >= _TEXT_HEAD)
        are[are] = self.rows.take(self.starts[are] + 1, "<u4") == (self.ends - self.starts)[are] - _TEXT_HEAD
        return self.slices(np.where(are, self.starts + _TEXT_HEAD, self.starts), are), are

    def slices(self, begins: Ints, there: Flags) -> pa.BinaryArray:
        """The bytes from ``begins`` to the cells' ends. Cells are every other value of an array whose other values are the gaps between them."""
        bounds = np.empty(2 * len(begins), np.int32)
        bounds[0::2], bounds[1::2] = begins, self.ends
        cells_and_gaps = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), self.rows.array.buffers()[2]])
        return cells_and_gaps.take(pa.array(np.arange(0, len(bounds), 2), mask=~there))


@dataclass(frozen=True, slots=True)
class _AlikeRows:
    """Rows with the same fields."""

    places: Ints
    """Among all rows."""
    rows: _Bytes
    metadata: pa.BinaryArray
    names: tuple[str, ...]
    """In the order of the fields."""
    base: Ints
    """Where each row's first cell begins."""
    ends: npt.NDArray[np.uint32]
    """A row each: where its cells begin behind ``base``, and where the last one ends."""

    def field(self, name: str) -> _Field | None:
        """The cells of a column, if these rows have it."""
        if name not in self.names:
            return None
        at = self.names.index(name)
        starts, ends = self.base + self.ends[:, at], self.base + self.ends[:, at + 1]
        return _Field(self.rows, starts, ends, self.rows.data[starts])


def _groups(values: pa.BinaryArray, metadata: pa.BinaryArray) -> Iterator[_AlikeRows]:
    """The rows by the names of their fields and the order of these."""
    encoded = metadata.dictionary_encode()
    dictionary = encoded.indices.to_numpy(zero_copy_only=False)
    left = np.ones(len(values), np.bool_)
    while left.any():
        prefix, ids = _prefix(values[int(np.argmax(left))].as_py())
        same = pc.starts_with(values, prefix).to_numpy(zero_copy_only=False) & left
        left &= ~same
        for places, named in _by_names(np.flatnonzero(same), dictionary, encoded.dictionary, len(ids)):
            yield _alike_rows(places, values, metadata, len(prefix), tuple(named[i] for i in ids))


def _by_names(places: Ints, dictionary: Ints, dictionaries: pa.BinaryArray, count: int) -> Iterator[tuple[Ints, tuple[str, ...]]]:
    """``places`` by the first ``count`` names of their dictionaries: behind these, a row's has the keys of its JSON documents."""
    own = dictionary[places]
    kinds: dict[tuple[int, bytes, bytes], list[int]] = {}
    for which in np.unique(own).tolist():
        kinds.setdefault(_head(dictionaries[which].as_py(), count), []).append(which)
    for head, members in kinds.items():
        yield places if len(kinds) == 1 else places[np.isin(own, members)], _names(*head)


def _alike_rows(places: Ints, values: pa.BinaryArray, metadata: pa.BinaryArray, begin: int, names: tuple[str, ...]) -> _AlikeRows:
    if len(places) < len(values):
        at = pa.array(places)
        values, metadata = values.take(at), metadata.take(at)
    rows, width = _Bytes.of(values), WIDE * (len(names) + 1)
    if int(np.diff(rows.bounds).min()) < begin + width:
        raise _foreign("a row is cut short")
    base = rows.bounds[:-1] + begin + width
    ends = rows.take(base - width, np.dtype((np.void, width))).view("<u4").reshape(-1, len(names) + 1)
    if ends[:, 0].any() or not (ends[:, 1:] > ends[:, :-1]).all() or not (base + ends[:, -1] == rows.bounds[1:]).all():
        raise _foreign("a row's offsets do not ascend to its end")
    return _AlikeRows(places, rows, metadata, names, base, ends)


def _prefix(row: bytes) -> tuple[bytes, list[int]]:
    """What comes before a row's offsets, and the ids of its fields."""
    if not row or row[0] & 0b1111 != (WIDE - 1) << 2 | OBJECT:
        raise _foreign(f"a row begins with {row[:20]!r}")
    width, begin = (row[0] >> 4 & 3) + 1, 5 if row[0] >> 6 & 1 else 2
    count = int.from_bytes(row[1:begin], "little")
    ids = [int.from_bytes(row[at : at + width], "little") for at in range(begin, min(begin + count * width, len(row)), width)]
    prefix = header_of_object(tuple(ids))
    if sorted(ids) != list(range(count)) or not row.startswith(prefix):
        raise _foreign(f"a row begins with {row[:20]!r}")
    return prefix, ids


def _head(dictionary: bytes, count: int) -> tuple[int, bytes, bytes]:
    """Of a dictionary's first ``count`` names: the bytes of a number, where each begins, and the names."""
    if not dictionary or dictionary[0] & 0b111111 != 1:
        raise _foreign(f"names begin with {dictionary[:20]!r}")
    width = (dictionary[0] >> 6) + 1
    begin = 1 + width * (int.from_bytes(dictionary[1 : 1 + width], "little") + 2)
    ends = dictionary[1 + width : 1 + width * (count + 2)]
    names = dictionary[begin : begin + int.from_bytes(ends[-width:], "little")]
    if len(ends) != width * (count + 1) or len(names) != int.from_bytes(ends[-width:], "little"):
        raise _foreign(f"{count} names are cut short: {dictionary[:20]!r}")
    return width, ends, names


def _names(width: int, ends: bytes, names: bytes) -> tuple[str, ...]:
    bounds = [int.from_bytes(ends[at : at + width], "little") for at in range(0, len(ends), width)]
    return tuple(names[begin:end].decode("utf-8", "surrogatepass") for begin, end in pairwise(bounds))


def _cells(group: _AlikeRows, column: ColumnInfo, invalid_dates: InvalidDates) -> pa.Array:
    wanted, found = type_of(column), group.field(column.name)
    is_json = kind_of(column) is CellKind.JSON
    if found is None:
        if is_json:
            return _nulls(STORED_VARIANT, len(group.places))
        raise SchemaMismatch(
            f"a row has no column {column.name}, it has {', '.join(sorted(group.names))}: read it with the table's definition at its schema_version"
        )
    if is_json:
        value = found.slices(found.starts, np.ones(len(group.places), np.bool_))
        return pa.StructArray.from_arrays([group.metadata, value], fields=list(STORED_VARIANT))
    cells, known = _primitives(found, wanted)
    if is_date(column):
        odd, are = found.texts(STRING)
        if invalid_dates is InvalidDates.FAIL and are.any():
            raise SchemaMismatch(
                f"column {column.name} holds {odd[int(np.argmax(are))].as_py()!r}, which is not a date of Spark; set invalidDates=null, or "
                "invalidDates=string to get all dates as text"
            )
        known |= are
        if invalid_dates is InvalidDates.STRING:
            cells = pc.if_else(pa.array(are), odd.cast(pa.string()), _text(cells, digits_of(column)))
    known |= found.nulls()
    if not known.all():
        at = int(np.argmin(known))
        raise _foreign(
            f"column {column.name}, {wanted}, has a cell of kind {found.heads[at]} and {found.ends[at] - found.starts[at]} bytes"
        )
    return cells


def _primitives(field: _Field, wanted: pa.DataType) -> tuple[pa.Array, Flags]:
    """The cells that are of the kind that ``wanted`` is written as, null elsewhere, and which they are."""
    if pa.types.is_boolean(wanted):
        there = field.are(TRUE[0] >> 2, 0) | field.are(FALSE[0] >> 2, 0)
        return _array(field.heads == TRUE[0], there), there
    if pa.types.is_decimal(wanted):
        return _decimals(field, wanted)
    if pa.types.is_binary(wanted):
        return field.texts(BINARY)
    if pa.types.is_string(wanted):
        texts, there = field.texts(STRING)
        return texts.cast(pa.string()), there
    kind, dtype = _fixed_kind(wanted)
    values, there = field.fixed(kind, dtype)
    cells = _array(values, there)
    return (cells.cast(wanted) if kind == INT8 else cells.view(wanted)), there


def _fixed_kind(wanted: pa.DataType) -> tuple[int, str]:
    """As what a type of fixed width is written."""
    if pa.types.is_integer(wanted):
        return INT8, "<i8"
    if pa.types.is_floating(wanted):
        return (FLOAT, "<f4") if wanted == pa.float32() else (DOUBLE, "<f8")
    if pa.types.is_date(wanted):
        return DATE, "<i4"
    return (TIMESTAMP if wanted.tz else DATETIME), "<i8"


def _decimals(field: _Field, wanted: pa.DataType) -> tuple[pa.Array, Flags]:
    """Those without a scale that fit in 64 bits are written as integers."""
    wide, there = field.fixed(DECIMAL16, _DECIMAL)
    there &= wide["scale"] == wanted.scale
    halves = np.where(there[:, None], wide["halves"], 0)
    if wanted.scale == 0:
        small, are = field.fixed(INT8, "<i8")
        halves += np.where(are, [small, small >> 63], 0).T
        there |= are
    cells = pa.Array.from_buffers(wanted, len(there), [None, pa.py_buffer(np.ascontiguousarray(halves))])
    return cells if there.all() else pc.if_else(pa.array(there), cells, pa.scalar(None, wanted)), there


def _array(values: npt.NDArray[Any], there: Flags) -> pa.Array:
    return pa.array(values) if there.all() else pa.array(values, mask=~there)


def date_texts(column: ColumnInfo, cells: pa.Array) -> pa.StringArray:
    """The dates of a column as the upstream shows them."""
    return _text(cells, digits_of(column))


def _text(cells: pa.Array, digits: int) -> pa.StringArray:
    if pa.types.is_date(cells.type):
        return cells.cast(pa.string())
    local = cells.view(pa.int64()).view(pa.timestamp("us"))
    return pc.utf8_slice_codeunits(local.cast(pa.string()), 0, _SECOND_LETTERS + (1 + digits if digits else 0))


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    return no_rows(count, kind) if kind == STORED_VARIANT else pa.nulls(count, kind)


def _foreign(what: str) -> Corruption:
    return Corruption(f"an image is not as this project writes it: {what}; restore the files that hold it from a backup")
