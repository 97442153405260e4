"""Rows as values of Spark's VARIANT, a whole column at a time. Pure.

The encoding is the Parquet format's ``VariantEncoding``: a row is an object, whose fields are the table's columns. Every value is kept exactly: integers
have 64 bits (larger unsigned integers are decimals), DECIMAL is a decimal up to 38 digits and a string above, binary strings are binary, an invalid date
stays a string, a JSON column is nested.

Promises: equal rows of one table version give equal bytes, whatever rows are encoded with them. No Python loop per row or cell, except for JSON.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells

Ints = npt.NDArray[np.int64]

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
            return encoded([self.cells])[0]
        return self.encoded

    def texts(self) -> pa.StringArray:
        """The cells of JSON."""
        assert self.cells is not None
        return self.cells.values


@dataclass(frozen=True, slots=True)
class VariantRows:
    """Rows of one table."""

    columns: Sequence[VariantColumn]
    places: Ints
    """Where the rows are in the columns."""


def rows_as_variants(columns: Sequence[VariantColumn], count: int, *, json_nulls: bool = False) -> pa.StructArray:
    """``count`` rows of these columns. ``json_nulls``: a NULL of a JSON column leaves the field out; else it reads as JSON's null."""
    return tables_as_variants([VariantRows(columns, np.arange(count))], json_nulls=json_nulls)


def tables_as_variants(tables: Sequence[VariantRows], *, json_nulls: bool = False) -> pa.StructArray:
    """The rows of all of ``tables``, one table behind the other. One ``take`` puts together all values: of each row its head, then its cells."""
    cells, places, first = _Pool(), [], 0
    alike: list[_RowsOfFields] = []
    for table in tables:
        begins = [0 if c.is_json else cells.add(c.values()) for c in table.columns]
        for slots, at in _kinds(table, json_nulls) if len(table.places) else ():
            alike.append(_alike(cells, table, slots, [begins[slot] for slot in slots], table.places[at]))
            places.append(first + at)
        first += len(table.places)
    if not alike:
        return no_rows(0)
    sizes = cells.sizes()
    for rows in alike:
        rows.index[:, 0] = cells.add(rows.heads(sizes)) + np.arange(len(rows.index))
    found = cells.whole().take(pa.array(np.concatenate([rows.index.ravel() for rows in alike])))
    pieces = np.repeat([rows.index.shape[1] for rows in alike], [len(rows.index) for rows in alike])
    ends = np.frombuffer(found.buffers()[1], np.int32)[np.concatenate([[0], np.cumsum(pieces)])]
    values = pa.Array.from_buffers(pa.binary(), len(pieces), [None, pa.py_buffer(ends), found.buffers()[2]])
    made = pa.StructArray.from_arrays([values, pa.concat_arrays([rows.metadata for rows in alike])], fields=list(VARIANT))
    order = np.concatenate(places)
    return made if (np.diff(order) > 0).all() else made.take(pa.array(np.argsort(order)))


class _Pool:
    """Values, one behind the other."""

    def __init__(self) -> None:
        self._arrays, self._size = [pa.array([], pa.binary())], 0

    def add(self, values: pa.BinaryArray) -> int:
        """Where ``values`` begin."""
        self._arrays.append(values)
        self._size += len(values)
        return self._size - len(values)

    def sizes(self) -> npt.NDArray[np.uint32]:
        """Of all values."""
        sizes: npt.NDArray[np.uint32] = pc.binary_length(pa.chunked_array(self._arrays)).to_numpy().astype(np.uint32)
        return sizes

    def whole(self) -> pa.BinaryArray:
        """All values."""
        return pa.concat_arrays(self._arrays)


@dataclass(frozen=True, slots=True)
class _RowsOfFields:
    """Rows that have the same fields."""

    prefix: bytes
    index: Ints
    """A row each: the places of its head and of its cells."""
    metadata: pa.BinaryArray

    def heads(self, sizes: npt.NDArray[np.uint32]) -> pa.BinaryArray:
        """What comes before the cells, which are as long as ``sizes`` says."""
        ends: npt.NDArray[np.uint32] = np.zeros(self.index.shape, np.uint32)
        np.cumsum(sizes[self.index[:, 1:]], axis=1, dtype=np.uint32, out=ends[:, 1:])
        made = np.empty((len(ends), len(self.prefix) + WIDE * ends.shape[1]), np.uint8)
        made[:, : len(self.prefix)] = np.frombuffer(self.prefix, np.uint8)
        made[:, len(self.prefix) :] = ends.view(np.uint8)
        return _fixed(made)


def _kinds(table: VariantRows, json_nulls: bool) -> Iterator[tuple[Sequence[int], Ints]]:
    """The columns that rows have as fields, and these rows."""
    slots = range(len(table.columns))
    sparse = [slot for slot in slots if json_nulls and table.columns[slot].is_json and table.columns[slot].texts().null_count]
    if not sparse:
        yield slots, np.arange(len(table.places))
        return
    there = np.stack([table.columns[slot].texts().is_valid().to_numpy(zero_copy_only=False)[table.places] for slot in sparse])
    kinds, kind = np.unique(there, axis=1, return_inverse=True)
    for number in range(kinds.shape[1]):
        left_out = {slot for slot, known in zip(sparse, kinds[:, number], strict=True) if not known}
        yield [slot for slot in slots if slot not in left_out], np.flatnonzero(kind.reshape(-1) == number)


def _alike(cells: _Pool, table: VariantRows, slots: Sequence[int], begins: Sequence[int], places: Ints) -> _RowsOfFields:
    """The rows at ``places`` with the columns ``slots``, whose values ``begin`` there; those of JSON are added to ``cells``."""
    columns = [table.columns[slot] for slot in slots]
    ids = tuple(column.name for column in columns)
    names = [ids] * len(places) if any(column.is_json for column in columns) else []
    order = _order(ids)
    index = np.empty((len(places), 1 + len(columns)), np.int64)
    index[:, 1:] = np.array([begins[place] for place in order], np.int64) + places[:, None]
    for place, column in enumerate(columns):
        if column.is_json:
            begin = cells.add(json_cells(column.texts().take(pa.array(places)), names))
            index[:, 1 + order.index(place)] = begin + np.arange(len(places))
    metadata = pa.array([metadata_of(own) for own in names], pa.binary()) if names else _repeated(metadata_of(ids), len(places))
    return _RowsOfFields(header_of_object(order), index, metadata)


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


@lru_cache(_SETS_KEPT)
def _order(names: tuple[str, ...]) -> tuple[int, ...]:
    """The places of names in the order in which objects have them."""
    return tuple(sorted(range(len(names)), key=lambda place: _collated(names[place])))


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
def metadata_of(in_order: tuple[str, ...]) -> bytes:
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


def encoded(columns: Sequence[TypedCells]) -> list[pa.BinaryArray]:
    """Columns as values of VARIANT. Those whose cells have the same width are encoded together."""
    alike: dict[pa.DataType, list[int]] = {}
    for place, column in enumerate(columns):
        alike.setdefault(_raw_type(column.values.type), []).append(place)
    found: dict[int, pa.BinaryArray] = {}
    for raw, places in alike.items():
        values = [columns[place].values for place in places]
        counts = [len(one) for one in values]
        cells = [one.cast(raw) if pa.types.is_integer(one.type) or pa.types.is_string(one.type) else one.view(raw) for one in values]
        prefixes = np.repeat(np.array([_prefix(one.type) for one in values], np.uint8), counts, axis=0)
        made = _primitives(prefixes, cells[0] if len(cells) == 1 else pa.concat_arrays(cells))
        begins = [0, *accumulate(counts)]
        found |= {place: made.slice(begin, count) for place, begin, count in zip(places, begins, counts, strict=False)}
    return [_with_odd(found[place], column.odd) for place, column in enumerate(columns)]


def _with_odd(found: pa.BinaryArray, odd: pa.StringArray | None) -> pa.BinaryArray:
    return found if odd is None else pc.if_else(odd.is_valid(), *encoded([TypedCells(odd)]), found)


_DECIMAL = pa.binary(16)


def _raw_type(kind: pa.DataType) -> pa.DataType:
    """What an array has but for its meaning, which is in the prefixes of its values."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_decimal(kind):
        return _DECIMAL
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.bool_() if pa.types.is_boolean(kind) else pa.binary()
    return pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()


def _prefix(kind: pa.DataType) -> list[int]:
    """What comes before the raw bytes of a value."""
    if pa.types.is_decimal(kind):
        return [DECIMAL16 << 2, kind.scale]
    if pa.types.is_timestamp(kind):
        return [(TIMESTAMP if kind.tz else DATETIME) << 2]
    return [_HEADS.get(kind, INT8) << 2]


_HEADS = {pa.float32(): FLOAT, pa.float64(): DOUBLE, pa.date32(): DATE, pa.string(): STRING, pa.binary(): BINARY}


def _primitives(prefixes: npt.NDArray[np.uint8], cells: pa.Array) -> pa.BinaryArray:
    kind = cells.type
    if pa.types.is_boolean(kind):
        made = np.where(cells.cast(pa.uint8()).fill_null(0).to_numpy(), np.uint8(TRUE[0]), np.uint8(FALSE[0])).reshape(-1, 1)
        return _with_nulls(made, cells)
    if kind == pa.binary():
        found = pc.binary_join_element_wise(_fixed(_prefixed(prefixes, _sizes(cells).reshape(-1, 1))), cells, pa.scalar(b"", pa.binary()))
        return found.fill_null(NULL) if cells.null_count else found
    width = kind.bit_width // 8
    raw = np.frombuffer(cells.buffers()[1], np.uint8)[width * cells.offset : width * (cells.offset + len(cells))].reshape(-1, width)
    found = _with_nulls(_prefixed(prefixes, raw), cells)
    return found if kind != _DECIMAL else _small_as_integers(found, prefixes[:, 1], raw.view(np.int64), cells)


def _prefixed(prefixes: npt.NDArray[np.uint8], raw: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Values of a fixed width, a row each. What is ``raw`` of a null is undefined."""
    begin, content = prefixes.shape[1], raw.view(np.uint8)
    made = np.empty((len(raw), begin + content.shape[1]), np.uint8)
    made[:, :begin], made[:, begin:] = prefixes, content
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


def _small_as_integers(found: pa.BinaryArray, scales: npt.NDArray[np.uint8], halves: Ints, values: pa.Array) -> pa.BinaryArray:
    """Decimals without a scale that fit are integers, as Spark itself writes them."""
    small = (scales == 0) & (halves[:, 1] == halves[:, 0] >> 63) & values.is_valid().to_numpy(zero_copy_only=False)
    if not small.any():
        return found
    heads = np.full((len(halves), 1), INT8 << 2, np.uint8)
    return pc.if_else(pa.array(small), _fixed(_prefixed(heads, np.ascontiguousarray(halves[:, :1]))), found)


def json_cells(texts: pa.Array, names: list[tuple[str, ...]]) -> pa.BinaryArray:
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
