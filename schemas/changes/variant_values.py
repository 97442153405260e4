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
    cells: TypedCells | None
    """None: they are encoded."""
    is_json: bool = False
    encoded: pa.BinaryArray | None = None
    """Values of VARIANT. Those of JSON depend on the names of their row, so they are not encoded before."""

    def values(self) -> pa.BinaryArray | None:
        """The cells as values of VARIANT; None for JSON."""
        if self.encoded is None and self.cells is not None and not self.is_json:
            return encoded(self.cells)
        return self.encoded

    def texts(self) -> pa.StringArray:
        """The cells of JSON."""
        assert self.cells is not None
        return self.cells.values

    def taken(self, at: pa.Array) -> "VariantColumn":
        """The cells at some places."""
        made = self.values()
        return VariantColumn(
            self.name, TypedCells(self.texts().take(at)) if made is None else None, self.is_json, None if made is None else made.take(at)
        )

    def sliced(self, begin: int, count: int) -> "VariantColumn":
        """The cells from ``begin`` on."""
        made = self.values()
        cells = TypedCells(self.texts().slice(begin, count)) if made is None else None
        return VariantColumn(self.name, cells, self.is_json, None if made is None else made.slice(begin, count))


def rows_as_variants(columns: Sequence[VariantColumn], count: int, *, json_nulls: bool = False) -> pa.StructArray:
    """``count`` rows of these columns. ``json_nulls``: a NULL of a JSON column leaves the field out; else it reads as JSON's null."""
    if not count:
        return no_rows(0)
    columns = [c if c.is_json else VariantColumn(c.name, None, encoded=c.values()) for c in columns]
    sparse = [c.texts() for c in columns if json_nulls and c.is_json and c.texts().null_count]
    if not sparse:
        return _alike(columns, count)
    there = np.stack([texts.is_valid().to_numpy(zero_copy_only=False) for texts in sparse])
    kinds, kind = np.unique(there, axis=1, return_inverse=True)
    places, pieces = [], []
    for number in range(kinds.shape[1]):
        at = np.flatnonzero(kind.reshape(-1) == number)
        own = [c.taken(pa.array(at)) for c in columns]
        pieces.append(_alike([c for c in own if not c.is_json or not c.texts().null_count], len(at)))
        places.append(at)
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _alike(columns: Sequence[VariantColumn], count: int) -> pa.StructArray:
    """Rows that all have these fields."""
    ids = tuple(column.name for column in columns)
    names = [ids] * count
    cells = [_json_cells(c.texts(), names) if c.encoded is None else c.encoded for c in columns]
    if any(c.encoded is None for c in columns):
        metadata = pa.array([_metadata(own) for own in names], pa.binary())
    else:
        metadata = _repeated(_metadata(ids), count)
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
    empty = _repeated(b"", count)
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
    ends = np.zeros((count, len(cells) + 1), np.uint32)
    for place, column in enumerate(cells):
        ends[:, place + 1] = ends[:, place] + _sizes(column)
    offsets = _fixed(ends.view(np.uint8).reshape(count, -1))
    return pc.binary_join_element_wise(_repeated(prefix, count), offsets, *cells, pa.scalar(b"", pa.binary()))


def _sizes(values: pa.Array) -> npt.NDArray[np.uint32]:
    """Of binary values or texts; that of a null is undefined."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return np.diff(offsets).astype(np.uint32)


def _repeated(value: bytes, count: int) -> pa.BinaryArray:
    """As many times the same."""
    return _fixed(np.broadcast_to(np.frombuffer(value, np.uint8), (count, len(value))))


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
    return _binary(offsets, np.ascontiguousarray(bytes_of_rows))


def _binary(offsets: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)])


def encoded(column: TypedCells) -> pa.BinaryArray:
    """A column as values of VARIANT."""
    found = _primitives(column.values)
    if column.odd is not None:
        found = pc.if_else(column.odd.is_valid(), _sized(column.odd, STRING), found)
    return found


def _primitives(values: pa.Array) -> pa.BinaryArray:
    kind = values.type
    if pa.types.is_boolean(kind):
        made = np.where(values.cast(pa.uint8()).fill_null(0).to_numpy(), np.uint8(TRUE[0]), np.uint8(FALSE[0])).reshape(-1, 1)
    elif pa.types.is_integer(kind):
        made = _numbers(INT8, _raw(values, kind.to_pandas_dtype()).astype("<i8"))
    elif pa.types.is_decimal(kind):
        return _decimals(values)
    elif pa.types.is_floating(kind):
        made = _numbers(FLOAT if kind == pa.float32() else DOUBLE, _raw(values, kind.to_pandas_dtype()))
    elif pa.types.is_date(kind):
        made = _numbers(DATE, _raw(values, "<i4"))
    elif pa.types.is_timestamp(kind):
        made = _numbers(TIMESTAMP if kind.tz else DATETIME, _raw(values, "<i8"))
    else:
        return _sized(values, BINARY if pa.types.is_binary(kind) else STRING)
    return _with_nulls(made, values)


def _raw(values: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The numbers of an array; that of a null is undefined."""
    return np.frombuffer(values.buffers()[1], dtype)[values.offset : values.offset + len(values)]


def _numbers(kind: int, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Primitives of a fixed width, little-endian, a row each."""
    width = values.dtype.itemsize
    made = np.empty((len(values), 1 + width), np.uint8)
    made[:, 0] = kind << 2
    made[:, 1:] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)
    return made


def _with_nulls(made: npt.NDArray[np.uint8], values: pa.Array) -> pa.BinaryArray:
    """Encoded rows, of one length but for those where ``values`` are null."""
    if not values.null_count:
        return _fixed(made)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    made[~there, 0] = NULL[0]
    kept = np.broadcast_to(there[:, None], made.shape).copy()
    kept[:, 0] = True
    return _binary(np.concatenate([[0], np.cumsum(np.where(there, made.shape[1], len(NULL)))]), made[kept])


def _decimals(values: pa.Array) -> pa.BinaryArray:
    """Decimals of 16 bytes; those without a scale that fit are integers, as Spark itself writes them."""
    kind, count = values.type, len(values)
    halves = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset : 2 * (values.offset + count)].reshape(-1, 2)
    made = np.empty((count, 18), np.uint8)
    made[:, 0], made[:, 1] = DECIMAL16 << 2, kind.scale
    made[:, 2:] = halves.view(np.uint8).reshape(-1, 16)
    found = _with_nulls(made, values)
    if kind.scale == 0:
        small = (halves[:, 1] == halves[:, 0] >> 63) & values.is_valid().to_numpy(zero_copy_only=False)
        if small.any():
            found = pc.if_else(pa.array(small), _fixed(_numbers(INT8, halves[:, 0].astype("<i8"))), found)
    return found


def _sized(values: pa.Array, kind: int) -> pa.BinaryArray:
    """Strings: header, length, content."""
    content = values.cast(pa.binary()) if pa.types.is_string(values.type) else values
    heads = _fixed(_numbers(kind, _sizes(content).astype("<u4")))
    made = pc.binary_join_element_wise(heads, content, pa.scalar(b"", pa.binary()))
    return made.fill_null(NULL) if values.null_count else made


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
