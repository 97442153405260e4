"""The row decoder: all rows of one table at once, into whole Arrow columns.

    rows -> chunks -> lockstep.Walk: where each column's datum is in each row -> vectors: cells of a whole column -> record batch

Functions and results are those of ``schemas.reference_decoder``, which gets the odd rows: damaged rows, to report what is wrong, and rows
with what TiDB never writes. ``DecodeStats`` counts the rows of both ways. What is the same for all rows is decided once (``row_layout``).

Promises: pure. No Python loop runs per row or cell, except for JSON text. Damaged bytes raise nothing but ``Corruption``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas import reference_decoder
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, missing_value
from pyspark_tidb_binlog.schemas.codec import vectors
from pyspark_tidb_binlog.schemas.codec.lockstep import ColumnSearch, DatumPlaces, Ints, Mask, Rows, Walk
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.row_layout import (
    HALVES,
    LACKING,
    CellType,
    Half,
    ImageLayout,
    KeyLayout,
    KeyPart,
    Ops,
    Versions,
    image_layout,
    key_layout,
    without_lacking,
)
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo

if TYPE_CHECKING:
    from pyspark_tidb_binlog.schemas.history import TableAt

CHUNK = 8_192
"""Rows walked together: enough to amortize Python's overhead, few enough that intermediate arrays stay in the CPU cache."""


@dataclass(slots=True)
class DecodeStats:
    """How many rows were decoded, and how many of them one by one."""

    rows: int = 0
    fallback: int = 0


@dataclass(frozen=True, slots=True)
class EventImages:
    """The row images of some events, in the events' order; of an UPDATE the row before it, then the row after it."""

    cells: pa.RecordBatch
    """One column per target column."""
    keys: pa.BinaryArray
    """The identity of each image's row: ``row_keys`` of its event."""
    events: Ints
    """The event of each image."""
    halves: npt.NDArray[np.int8]
    """The ``Half`` of each image."""


def images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, stats: DecodeStats | None = None) -> EventImages:
    """All images of the events, and their keys, of one walk."""
    events, halves = images_of(ops, tuple(Half))
    found = _images(table, ops, rows, versions, tuple(Half), stats, keyed=True)
    return EventImages(without_lacking(found.select(list(range(found.num_columns - 1)))), found.column(-1), events, halves)


def new_images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, stats: DecodeStats | None = None) -> pa.RecordBatch:
    """The rows after INSERT and UPDATE events, one column per target column."""
    return without_lacking(_images(table, ops, rows, versions, (Half.NEW,), stats))


def old_images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, stats: DecodeStats | None = None) -> pa.RecordBatch:
    """The rows before UPDATE and DELETE events, one column per target column."""
    return without_lacking(old_rows(table, ops, rows, versions, stats))


def old_rows(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, stats: DecodeStats | None = None) -> pa.RecordBatch:
    """``old_images`` with one more column: which of their cells the events do not contain (``row_layout.LACKING``)."""
    return _images(table, ops, rows, versions, (Half.OLD,), stats)


def row_keys(table: "TableAt", ops: Ops, rows: pa.BinaryArray, stats: DecodeStats | None = None) -> pa.BinaryArray:
    """The identity of each event's row as canonical bytes, the same for its insert, its updates and its delete."""
    layout = key_layout(table.info)
    slots = {p.id: i for i, p in enumerate(layout.parts)}
    handle = tuple(slots[p.id] if p.whole else None for p in layout.parts)
    search = ColumnSearch(handle, slots, until_found=True, handle_is_enough=layout.by_handle)

    def fast(chunk: "_WalkedRows") -> tuple[pa.RecordBatch, Ints]:
        return pa.RecordBatch.from_arrays([_keys(layout, chunk, slots)], schema=_KEYS), np.arange(len(chunk.ops))

    def slow(index: Ints) -> tuple[pa.RecordBatch, Ints]:
        keys = reference_decoder.row_keys(table, ops[index], rows.take(pa.array(index)))
        return pa.RecordBatch.from_arrays([keys], schema=_KEYS), index

    return _decode(ops, rows, search, fast, slow, _KEYS, stats).column(0)


_KEY = pa.field("key", pa.binary())
_KEYS = pa.schema([_KEY])


def _images(
    table: "TableAt",
    ops: Ops,
    rows: pa.BinaryArray,
    versions: Versions,
    halves: tuple[Half, ...],
    stats: DecodeStats | None,
    *,
    keyed: bool = False,
) -> pa.RecordBatch:
    """The images of these halves, with ``LACKING``; ``keyed``: and the key of each one's event."""
    for op in _kinds(ops):
        if not set(halves) & set(HALVES[op]):
            raise ValueError(f"{op.name} events have no {halves[0].name.lower()} row")
    layout, keys = image_layout(table.info), key_layout(table.info)
    schema, slots = layout.schema.append(LACKING), dict(layout.slots)
    if keyed:
        # the rowid, and generated columns of a key
        schema = schema.append(_KEY)
        for part in keys.parts:
            slots.setdefault(part.id, len(slots))
    search = ColumnSearch(tuple(slots.get(p.id) if p.whole else None for p in layout.handle), slots)

    def fast(chunk: "_WalkedRows") -> tuple[pa.RecordBatch, Ints]:
        events, cells = _image_cells(table, layout, chunk, halves, versions[chunk.begin : chunk.begin + len(chunk.ops)])
        key = [_keys(keys, chunk, slots).take(pa.array(events))] if keyed else []
        return pa.RecordBatch.from_arrays([*cells, *key], schema=schema), events

    def slow(index: Ints) -> tuple[pa.RecordBatch, Ints]:
        pieces, events = [], []
        for half in halves:
            at = index[_HAS[ops[index], half]]
            event = table, ops[at], rows.take(pa.array(at))
            found = reference_decoder.half_images(*event, versions[at], half)
            key = [reference_decoder.row_keys(*event)] if keyed else []
            pieces.append(pa.RecordBatch.from_arrays([*found.columns, *key], schema=schema))
            events.append(at)
        return pa.concat_batches(pieces), np.concatenate(events)

    return _decode(ops, rows, search, fast, slow, schema, stats)


_HAS = np.zeros((max(HALVES) + 1, len(Half)), np.bool_)
"""By kind of event: which halves it has."""
for _op, _halves in HALVES.items():
    _HAS[_op, _halves] = True


def images_of(ops: Ops, halves: tuple[Half, ...]) -> tuple[Ints, npt.NDArray[np.int8]]:
    """The event and the half of each image of the events, in order."""
    events, which = np.nonzero(_HAS[ops][:, halves])
    return events, np.array(halves, np.int8)[which]


class _WalkedRows:
    """Some of the events, with a walk over their rows."""

    def __init__(self, begin: int, ops: Ops, rows: Rows, search: ColumnSearch) -> None:
        self.begin, self.ops, self.rows = begin, ops, rows
        self.inserts, self.updates = ops == Op.INSERT, ops == Op.UPDATE
        self.walk = Walk(rows, search, self.inserts, self.updates)
        self.odd = self.walk.odd.copy()


_Fast = Callable[[_WalkedRows], tuple[pa.RecordBatch, Ints]]
"""Rows, and the event within the chunk that each belongs to. Odd events get marked, and their rows are undefined."""
_Slow = Callable[[Ints], tuple[pa.RecordBatch, Ints]]
"""The rows of some events, and the event that each belongs to."""


def _decode(
    ops: Ops, rows: pa.BinaryArray, search: ColumnSearch, fast: _Fast, slow: _Slow, schema: pa.Schema, stats: DecodeStats | None
) -> pa.RecordBatch:
    """Decode chunk by chunk, odd events on the slow path, and return all in the order of the events."""
    _kinds(ops)
    pieces: list[pa.RecordBatch] = []
    order: list[Ints] = []
    slow_rows = 0
    for begin, chunk_rows in _chunks(rows):
        chunk = _WalkedRows(begin, ops[begin : begin + len(chunk_rows)], chunk_rows, search)
        batch, events = fast(chunk)
        if chunk.odd.any():
            good = ~chunk.odd[events]
            found, of_odd = slow(begin + np.flatnonzero(chunk.odd))
            pieces += [batch.filter(pa.array(good)), found]
            order += [begin + events[good], of_odd]
            slow_rows += int(chunk.odd.sum())
        else:
            pieces.append(batch)
            order.append(begin + events)
    if stats is not None:
        stats.rows += len(rows)
        stats.fallback += slow_rows
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    whole, places = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces), np.concatenate(order)
    return whole if (np.diff(places) >= 0).all() else whole.take(pa.array(np.argsort(places, kind="stable")))


def _chunks(rows: pa.BinaryArray) -> Iterator[tuple[int, Rows]]:
    """At most ``CHUNK`` rows at a time, and the number of the first."""
    for begin in range(0, len(rows), CHUNK):
        yield begin, rows_of(rows.slice(begin, CHUNK))


def rows_of(rows: pa.BinaryArray) -> Rows:
    """All of ``rows``, of which there are some."""
    rows = rows if rows.type == pa.binary() else rows.cast(pa.binary())
    _, offset_buffer, data_buffer = rows.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
    return Rows.of(np.frombuffer(data_buffer or b"", np.uint8), offsets)


def _kinds(ops: Ops) -> list[Op]:
    """The kinds of events among ``ops``; ``ValueError`` when one is not a row change."""
    counts = {op: int(np.count_nonzero(ops == op)) for op in HALVES}
    if sum(counts.values()) != len(ops):
        raise ValueError(f"only {', '.join(op.name for op in HALVES)} events have rows, but there are others among {len(ops)}")
    return [op for op, count in counts.items() if count]


def _image_cells(
    table: "TableAt", layout: ImageLayout, chunk: _WalkedRows, halves: tuple[Half, ...], versions: Versions
) -> tuple[Ints, list[pa.Array]]:
    """The event of each image, and the images' cells; the last column is ``LACKING``, which is empty unless only old images are asked for."""
    events, kinds = images_of(chunk.ops, halves)
    ops, versions, walk = chunk.ops[events], versions[events], chunk.walk
    second, any_updates = (ops == Op.UPDATE) & (kinds == Half.NEW), bool(chunk.updates.any())
    cells: list[pa.Array] = []
    lacking: dict[int, Mask] = {}
    for slot, cell in enumerate(layout.cells):
        first = walk.places(slot, 0)
        places = first if len(events) == len(chunk.ops) else first.only(events)
        if any_updates:
            other = walk.places(slot, 1)
            chunk.odd |= chunk.updates & (first.absent != other.absent)
            places = _either(places, other.only(events), second)
        values, wrong = cells_at(chunk.rows, places, cell)
        odd = chunk.odd[events] | wrong
        if (absent := places.absent & ~odd).any():
            lacking[slot] = absent
            values, wrong = completed(values, table, layout.columns[slot], ops, versions, absent)
            odd |= wrong
        chunk.odd[events[odd]] = True
        cells.append(values)
    return events, [*cells, _lacking_bits(lacking if halves == (Half.OLD,) else {}, len(cells), len(events))]


def _either(these: DatumPlaces, those: DatumPlaces, is_that: Mask) -> DatumPlaces:
    """``those`` places where ``is_that``, else ``these``."""
    if is_that.all():
        return those
    if not is_that.any():
        return these
    return DatumPlaces(
        np.where(is_that, those.flags, these.flags),
        np.where(is_that, those.bodies, these.bodies),
        np.where(is_that, those.sizes, these.sizes),
    )


def _lacking_bits(lacking: Mapping[int, Mask], columns: int, rows: int) -> pa.BinaryArray:
    bits = np.zeros((rows, columns), np.bool_)
    for slot, absent in lacking.items():
        bits[:, slot] = absent
    packed = np.packbits(bits, axis=1, bitorder="little") if lacking else np.zeros((rows, 0), np.uint8)
    sizes = np.where(packed.any(axis=1), packed.shape[1], 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(packed[sizes > 0].tobytes())])


def cells_at(chunk: Rows, places: DatumPlaces, cell: CellType) -> vectors.Cells:
    """The cells at ``places``, and which are odd."""
    kind = cell.kind
    match kind:
        case CellKind.INT | CellKind.UINT | CellKind.NUMBER:
            return vectors.numbers(chunk, places, kind.arrow)
        case CellKind.FLOAT | CellKind.DOUBLE:
            return vectors.floats(chunk, places, kind.arrow)
        case CellKind.DECIMAL:
            return vectors.decimals(chunk, places, cell.digits)
        case CellKind.DATE | CellKind.DATETIME:
            return vectors.datetimes(chunk, places, cell.digits, date_only=kind is CellKind.DATE)
        case CellKind.TIME:
            return vectors.times(chunk, places, cell.digits)
        case CellKind.BYTES:
            return vectors.binaries(chunk, places)
        case CellKind.JSON:
            return vectors.jsons(chunk, places)


def completed(values: pa.Array, table: "TableAt", column: ColumnInfo, ops: Ops, versions: Versions, absent: Mask) -> vectors.Cells:
    """Fill in missing cells (rows.md 8), per schema version; images in which the column must not be missing become odd."""
    odd = np.zeros(len(versions), np.bool_)
    for version in np.unique(versions[absent]).tolist():
        these = absent & (versions == version)
        if not table.can_append_default(version):
            odd |= these & (ops == Op.UPDATE)
            these &= ops != Op.UPDATE
            if not these.any():
                continue
        try:
            value = missing_value(column, table.default_info(version))
        except Corruption:
            odd |= these  # the reference decoder finds it again and reports where it is
            continue
        if value is not None:
            values = pc.if_else(pa.array(these), pa.scalar(value, values.type), values)
    return values, odd


def _keys(layout: KeyLayout, chunk: _WalkedRows, slots: Mapping[int, int]) -> pa.BinaryArray:
    """The key of each event of a chunk."""
    pieces: list[pa.Array] = []
    for part in layout.parts:
        places = chunk.walk.places(slots[part.id], 0)
        if layout.by_handle:
            places = _either(places, chunk.walk.handle(slots[part.id]), chunk.inserts)
        values, wrong = key_cells(chunk.rows, places, part)
        chunk.odd |= wrong | vectors.nulls_of(places)
        pieces.append(values)
    return reduce(joined, pieces)


def joined(keys: pa.BinaryArray, parts: pa.BinaryArray) -> pa.BinaryArray:
    """Keys with one more part."""
    return pc.binary_join_element_wise(keys, parts, pa.scalar(b"", pa.binary()))


def key_cells(chunk: Rows, places: DatumPlaces, part: KeyPart) -> vectors.Cells:
    """One part of the key of each row, as ``reference_decoder`` encodes it."""
    match part.cell.kind:
        case CellKind.BYTES:
            if not part.whole:
                places = vectors.shortened(chunk, places, part.length, in_bytes=part.binary)
            values, odd = vectors.binaries(chunk, places)
        case CellKind.DECIMAL:
            values, odd = vectors.decimals(chunk, places, part.cell.digits)
            values = values.cast(pa.binary())
        case CellKind.FLOAT | CellKind.DOUBLE:
            return vectors.float_keys(chunk, places)
        case _:
            return vectors.integer_keys(chunk, places)
    sizes = vectors.big_endian(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(">u4"))
    return pc.binary_join_element_wise(sizes, values, pa.scalar(b"", pa.binary())), odd
