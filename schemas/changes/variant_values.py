"""Rows as values of Spark's VARIANT, a whole column at a time. Pure.

The encoding is the Parquet format's ``VariantEncoding``: a row is an object, whose fields are the table's columns. Every value is kept exactly: integers
have 64 bits (larger unsigned integers are decimals), DECIMAL is a decimal up to 38 digits and a string above, binary strings are binary, an invalid date
stays a string, a JSON column is nested.

Promises: equal rows of one table version give equal bytes, whatever rows are encoded with them. No Python loop per row or cell, except for JSON.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells

VARIANT = pa.struct(
    [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})]
)
"""The Arrow type that Spark takes for VARIANT."""
STORED_VARIANT = pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
"""The Arrow type of a VARIANT in a table's files."""

OBJECT, _ARRAY = 2, 3
INT8, DOUBLE, DECIMAL16, DATE, TIMESTAMP, DATETIME, FLOAT, BINARY, STRING = 6, 7, 10, 11, 12, 13, 14, 15, 16
NULL, TRUE, FALSE = b"\x00", b"\x04", b"\x08"
WIDE = 4
"""Bytes of an offset, whatever the size: a row's bytes do not depend on its neighbours."""
_MOST_INT64 = (1 << 63) - 1
_NAMES_KEPT, _SETS_KEPT = 10_000, 256
"""The number of names, and sets of names, whose encodings are cached: documents of one table mostly have the same keys."""


@dataclass(frozen=True, slots=True)
class VariantColumn:
    """One field of the rows."""

    name: str
    cells: TypedCells
    is_json: bool = False

    def taken(self, at: pa.Array) -> "VariantColumn":
        """The cells at some places."""
        odd = self.cells.odd.take(at) if self.cells.odd is not None else None
        return VariantColumn(self.name, TypedCells(self.cells.values.take(at), odd), self.is_json)


def rows_as_variants(columns: Sequence[VariantColumn], count: int, *, json_nulls: bool = False) -> pa.StructArray:
    """``count`` rows of these columns. ``json_nulls``: a NULL of a JSON column leaves the field out; else it reads as JSON's null."""
    if not count:
        return no_rows(0)
    cells = [None if c.is_json else _cells(c.cells) for c in columns]
    sparse = [c for c in columns if json_nulls and c.is_json and c.cells.values.null_count]
    if not sparse:
        return _alike(columns, cells, count)
    there = np.stack([c.cells.values.is_valid().to_numpy(zero_copy_only=False) for c in sparse])
    kinds, kind = np.unique(there, axis=1, return_inverse=True)
    places, pieces = [], []
    for number, has in enumerate(kinds.T):
        at = np.flatnonzero(kind.reshape(-1) == number)
        absent = {c.name for c, is_there in zip(sparse, has, strict=True) if not is_there}
        chosen = [place for place, c in enumerate(columns) if c.name not in absent]
        own = [columns[place].taken(pa.array(at)) if cells[place] is None else columns[place] for place in chosen]
        pieces.append(_alike(own, [_taken(cells[place], at) for place in chosen], len(at)))
        places.append(at)
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


_Encoded = Sequence[pa.BinaryArray | None]
"""The values of each column; None for JSON, whose values depend on the names of their row."""


def _taken(cells: pa.BinaryArray | None, at: npt.NDArray[np.int64]) -> pa.BinaryArray | None:
    return None if cells is None else cells.take(pa.array(at))


def _alike(columns: Sequence[VariantColumn], encoded: _Encoded, count: int) -> pa.StructArray:
    """Rows that all have these fields."""
    ids = tuple(column.name for column in columns)
    if all(made is not None for made in encoded):
        metadata = pa.array([_metadata(ids)], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
        cells = list(encoded)
    else:
        names = [ids] * count
        cells = [_json_cells(c.cells.values, names) if made is None else made for c, made in zip(columns, encoded, strict=True)]
        metadata = pa.array([_metadata(own) for own in names], pa.binary())
    order = sorted(range(len(columns)), key=lambda place: _collated(columns[place].name))
    values = _objects([cells[place] for place in order], order, count)
    return pa.StructArray.from_arrays([values, metadata], fields=list(VARIANT))


def spread(rows: pa.StructArray, places: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> pa.StructArray:
    """The rows at ``places``, null where they are not ``there``; both parts of a null are empty."""
    index = pa.array(places, mask=~there)
    parts = [pc.fill_null(rows.field(place).take(index), b"") for place in (0, 1)]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=pa.array(~there))


def no_rows(count: int, kind: pa.StructType = VARIANT) -> pa.StructArray:
    """As many nulls."""
    empty = pa.array([b""], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
    return pa.StructArray.from_arrays([empty, empty], fields=list(kind), mask=pa.array(np.ones(count, np.bool_)))


def laid_out(rows: pa.Array, kind: pa.StructType) -> pa.Array:
    """The same rows with the fields in the order of ``kind``: ``VARIANT`` or ``STORED_VARIANT``; other cells as they are. Both parts of a null are empty."""
    if not pa.types.is_struct(rows.type):
        return rows
    parts = [rows.field(field.name).cast(field.type).fill_null(b"") for field in kind]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=rows.is_null())


@lru_cache(_NAMES_KEPT)
def _collated(name: str) -> bytes:
    """Names in the order of Java's strings, by which Spark searches them."""
    return name.encode("utf-16-be", "surrogatepass")


def _objects(cells: Sequence[pa.BinaryArray], ids: Sequence[int], count: int) -> pa.BinaryArray:
    """Objects with these fields, in the order of their names."""
    prefix = header_of_object(tuple(ids))
    sizes = [pc.binary_length(column).to_numpy(zero_copy_only=False) for column in cells]
    ends = np.zeros((count, len(cells) + 1), np.uint32)
    for place, size in enumerate(sizes):
        ends[:, place + 1] = ends[:, place] + size.astype(np.uint32)
    offsets = _fixed(ends.view(np.uint8).reshape(count, -1))
    head = pa.array([prefix], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
    return pc.binary_join_element_wise(head, offsets, *cells, pa.scalar(b"", pa.binary()))


@lru_cache(_SETS_KEPT)
def header_of_object(ids: tuple[int, ...]) -> bytes:
    """Header, number of fields and their ids."""
    large, width = len(ids) > 0xFF, _id_width(max(ids, default=0))
    header = (large << 4 | (width - 1) << 2 | (WIDE - 1)) << 2 | OBJECT
    number = len(ids).to_bytes(4 if large else 1, "little")
    return bytes([header]) + number + b"".join(i.to_bytes(width, "little") for i in ids)


def _id_width(highest: int) -> int:
    return max(1, (highest.bit_length() + 7) // 8)


@lru_cache(_SETS_KEPT)
def _metadata(in_order: tuple[str, ...]) -> bytes:
    """The dictionary of names, whose ids are their places."""
    names = [name.encode("utf-8", "surrogatepass") for name in in_order]
    ends = [0]
    for name in names:
        ends.append(ends[-1] + len(name))
    width = _id_width(max(ends[-1], len(names)))
    numbers = (len(names), *ends)
    return bytes([1 | (width - 1) << 6]) + b"".join(n.to_bytes(width, "little") for n in numbers) + b"".join(names)


def _fixed(bytes_of_rows: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Values of one length."""
    count, width = bytes_of_rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(bytes_of_rows))]
    )


def _cells(column: TypedCells) -> pa.BinaryArray:
    """A column as encoded values."""
    found = _primitives(column.values)
    if column.odd is not None:
        found = pc.if_else(column.odd.is_valid(), _sized(column.odd, STRING), found)
    return found


def _primitives(values: pa.Array) -> pa.BinaryArray:
    kind = values.type
    if pa.types.is_boolean(kind):
        made = pc.if_else(values, pa.scalar(TRUE), pa.scalar(FALSE))
    elif pa.types.is_integer(kind):
        made = _numbers(INT8, values.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False).astype("<i8"))
    elif pa.types.is_decimal(kind):
        made = _decimals(values)
    elif kind == pa.float32():
        made = _numbers(FLOAT, values.fill_null(0).to_numpy(zero_copy_only=False).astype("<f4"))
    elif kind == pa.float64():
        made = _numbers(DOUBLE, values.fill_null(0).to_numpy(zero_copy_only=False).astype("<f8"))
    elif pa.types.is_date(kind):
        made = _numbers(DATE, values.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype("<i4"))
    elif pa.types.is_timestamp(kind):
        made = _numbers(
            TIMESTAMP if kind.tz else DATETIME, values.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype("<i8")
        )
    else:
        made = _sized(values, BINARY if pa.types.is_binary(kind) else STRING)
    return pc.if_else(values.is_null(), pa.scalar(NULL), made) if values.null_count else made


def _numbers(kind: int, values: npt.NDArray[Any]) -> pa.BinaryArray:
    """Primitives of a fixed width, little-endian."""
    width = values.dtype.itemsize
    made = np.empty((len(values), 1 + width), np.uint8)
    made[:, 0] = kind << 2
    made[:, 1:] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)
    return _fixed(made)


def _decimals(values: pa.Array) -> pa.BinaryArray:
    """Decimals of 16 bytes; those without a scale that fit are integers, as Spark itself writes them."""
    kind, count = values.type, len(values)
    filled = values.fill_null(0) if values.null_count else values
    halves = np.frombuffer(filled.buffers()[1], np.int64)[2 * filled.offset : 2 * (filled.offset + count)].reshape(-1, 2)
    made = np.empty((count, 18), np.uint8)
    made[:, 0], made[:, 1] = DECIMAL16 << 2, kind.scale
    made[:, 2:] = halves.view(np.uint8).reshape(-1, 16)
    found = _fixed(made)
    if kind.scale == 0:
        small = halves[:, 1] == halves[:, 0] >> 63
        if small.any():
            found = pc.if_else(pa.array(small), _numbers(INT8, halves[:, 0].astype("<i8")), found)
    return found


def _sized(values: pa.Array, kind: int) -> pa.BinaryArray:
    """Strings: header, length, content."""
    content = values.cast(pa.binary()).fill_null(b"")
    sizes = pc.binary_length(content).to_numpy(zero_copy_only=False).astype("<u4")
    return pc.binary_join_element_wise(_numbers(kind, sizes), content, pa.scalar(b"", pa.binary()))


def _json_cells(texts: pa.Array, names: list[tuple[str, ...]]) -> pa.BinaryArray:
    """JSON documents, whose keys are added to the ``names`` of their rows."""
    known: dict[tuple[str, tuple[str, ...]], tuple[bytes, tuple[str, ...]]] = {}
    cells = []
    for row, text in enumerate(texts.to_pylist()):
        if text is None:
            cells.append(NULL)
            continue
        if (made := known.get((text, names[row]))) is None:
            own = {name: place for place, name in enumerate(names[row])}
            made = known[text, names[row]] = _document(text, own), tuple(own)
        cells.append(made[0])
        names[row] = made[1]
    return pa.array(cells, pa.binary())


def _document(text: str, names: dict[str, int]) -> bytes:
    try:
        return _nested(json.loads(text), names)
    except ValueError:
        # a default that TiDB keeps as any text
        return _word(text)


def _nested(value: Any, names: dict[str, int]) -> bytes:
    """A value of a JSON document."""
    match value:
        case str():
            return _word(value)
        case None:
            return NULL
        case bool():
            return TRUE if value else FALSE
        case int() if -_MOST_INT64 - 1 <= value <= _MOST_INT64:
            return struct.pack("<Bq", INT8 << 2, value)
        case int() if abs(value) < 10**38:
            return bytes([DECIMAL16 << 2, 0]) + value.to_bytes(16, "little", signed=True)
        case int() | float():
            return struct.pack("<Bd", DOUBLE << 2, float(value))
        case list():
            large = len(value) > 0xFF
            header = (large << 2 | (WIDE - 1)) << 2 | _ARRAY
            prefix = bytes([header]) + len(value).to_bytes(4 if large else 1, "little")
            return prefix + _joined([_nested(part, names) for part in value])
        case _:
            keys = sorted(value, key=_collated)
            parts = [_nested(value[key], names) for key in keys]
            return header_of_object(tuple([names.setdefault(key, len(names)) for key in keys])) + _joined(parts)


def _joined(parts: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(parts) + 1}I", *accumulate(map(len, parts), initial=0)) + b"".join(parts)


def _word(text: str) -> bytes:
    content = text.encode("utf-8", "replace")
    return struct.pack("<BI", STRING << 2, len(content)) + content
