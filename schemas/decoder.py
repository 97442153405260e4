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
    place_of,
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

    @property
    def fallback_share(self) -> float:
        """The share of rows that took the slow path, 0 to 1."""
        return self.fallback / self.rows if self.rows else 0.0


def row_keys(table: "TableAt", ops: Ops, rows: pa.BinaryArray, stats: DecodeStats | None = None) -> pa.BinaryArray:
    """The identity of each event's row as canonical bytes, the same for its insert, its updates and its delete."""
    layout = KeyLayout.of(table.info)

    def fast(op: Op, chunk: Rows, index: Ints) -> tuple[pa.RecordBatch, Mask]:
        keys, odd = _keys(layout, op, chunk)
        return pa.RecordBatch.from_arrays([keys], names=["key"]), odd

    def slow(index: Ints) -> pa.RecordBatch:
        keys = reference_decoder.row_keys(table, ops[index], rows.take(pa.array(index)))
        return pa.RecordBatch.from_arrays([keys], names=["key"])

    return _decode(ops, rows, fast, slow, pa.schema([pa.field("key", pa.binary())]), stats).column(0)


def new_images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, stats: DecodeStats | None = None) -> pa.RecordBatch:
    """The rows after INSERT and UPDATE events, one column per target column."""
    return _images(table, ops, rows, versions, Half.NEW, stats)


def old_images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, stats: DecodeStats | None = None) -> pa.RecordBatch:
    """The rows before UPDATE and DELETE events, one column per target column."""
    return without_lacking(old_rows(table, ops, rows, versions, stats))


def old_rows(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, stats: DecodeStats | None = None) -> pa.RecordBatch:
    """``old_images`` with one more column: which of their cells the events do not contain (``row_layout.LACKING``)."""
    return _images(table, ops, rows, versions, Half.OLD, stats)


def _images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, half: Half, stats: DecodeStats | None) -> pa.RecordBatch:
    layout = ImageLayout.of(table.info)
    schema, reference = layout.schema, reference_decoder.new_images
    if half is Half.OLD:
        schema, reference = schema.append(LACKING), reference_decoder.old_rows

    def fast(op: Op, chunk: Rows, index: Ints) -> tuple[pa.RecordBatch, Mask]:
        cells, lacking, odd = _image(table, layout, op, half, chunk, versions[index])
        more = [_lacking_bits(lacking, len(cells), len(chunk))] if half is Half.OLD else []
        return pa.RecordBatch.from_arrays([*cells, *more], schema=schema), odd

    def slow(index: Ints) -> pa.RecordBatch:
        return reference(table, ops[index], rows.take(pa.array(index)), versions[index])

    for op in _kinds(ops):
        place_of(op, half)
    return _decode(ops, rows, fast, slow, schema, stats)


_Fast = Callable[[Op, Rows, Ints], tuple[pa.RecordBatch, Mask]]
_Slow = Callable[[Ints], pa.RecordBatch]


def _decode(ops: Ops, rows: pa.BinaryArray, fast: _Fast, slow: _Slow, schema: pa.Schema, stats: DecodeStats | None) -> pa.RecordBatch:
    """Decode chunk by chunk, odd rows on the slow path, and return all in the order of the events."""
    rows = rows if rows.type == pa.binary() else rows.cast(pa.binary())
    pieces: list[pa.RecordBatch] = []
    order: list[Ints] = []
    slow_rows = 0
    for op, chunk, index in _chunks(ops, rows):
        batch, odd = fast(op, chunk, index)
        if odd.any():
            batch = batch.filter(pa.array(~odd))
            pieces.append(slow(index[odd]))
            order.append(index[odd])
            slow_rows += len(order[-1])
            index = index[~odd]
        pieces.append(batch)
        order.append(index)
    if stats is not None:
        stats.rows += len(rows)
        stats.fallback += slow_rows
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    return _in_order(pieces, np.concatenate(order))


def _in_order(pieces: list[pa.RecordBatch], order: Ints) -> pa.RecordBatch:
    whole = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
    if (np.diff(order) > 0).all():
        return whole
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return whole.take(pa.array(back))


def _chunks(ops: Ops, rows: pa.BinaryArray) -> Iterator[tuple[Op, Rows, Ints]]:
    """The rows of each kind of event, at most ``CHUNK`` at a time, with their positions."""
    _, offset_buffer, data_buffer = rows.buffers()
    if not len(rows):
        return
    offsets = np.frombuffer(offset_buffer, np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    for op in _kinds(ops):
        all_of_op = np.flatnonzero(ops == op)
        for begin in range(0, len(all_of_op), CHUNK):
            index = all_of_op[begin : begin + CHUNK]
            yield op, Rows(data, offsets[index], offsets[index + 1]), index


def _kinds(ops: Ops) -> list[Op]:
    """The kinds of events among ``ops``; ``ValueError`` when one is not a row change."""
    counts = {op: int(np.count_nonzero(ops == op)) for op in HALVES}
    if sum(counts.values()) != len(ops):
        raise ValueError(f"only {', '.join(op.name for op in HALVES)} events have rows, but there are others among {len(ops)}")
    return [op for op, count in counts.items() if count]


def _image(
    table: "TableAt", layout: ImageLayout, op: Op, half: Half, chunk: Rows, versions: Versions
) -> tuple[list[pa.Array], dict[int, Mask], Mask]:
    """The cells of each column, the rows that lack a column (by slot), and the odd rows."""
    handle = tuple(layout.slots.get(p.id) if p.whole else None for p in layout.handle) if op == Op.INSERT else ()
    walk = Walk(chunk, ColumnSearch(handle, layout.slots, len(HALVES[op])))
    odd = walk.odd.copy()
    cells: list[pa.Array] = []
    lacking: dict[int, Mask] = {}
    for slot, cell in enumerate(layout.cells):
        places = walk.places(slot, place_of(op, half))
        if op == Op.UPDATE:
            odd |= places.absent != walk.places(slot, place_of(op, Half(1 - half))).absent
        values, wrong = _cells(chunk, places, cell)
        odd |= wrong
        if (absent := places.absent & ~odd).any():
            lacking[slot] = absent
            values, wrong = _completed(values, table, layout.columns[slot], op, versions, absent)
            odd |= wrong
        cells.append(values)
    return cells, lacking, odd


def _lacking_bits(lacking: Mapping[int, Mask], columns: int, rows: int) -> pa.BinaryArray:
    bits = np.zeros((rows, columns), np.bool_)
    for slot, absent in lacking.items():
        bits[:, slot] = absent
    packed = np.packbits(bits, axis=1, bitorder="little") if lacking else np.zeros((rows, 0), np.uint8)
    sizes = np.where(packed.any(axis=1), packed.shape[1], 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(packed[sizes > 0].tobytes())])


def _cells(chunk: Rows, places: DatumPlaces, cell: CellType) -> vectors.Cells:
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


def _completed(values: pa.Array, table: "TableAt", column: ColumnInfo, op: Op, versions: Versions, absent: Mask) -> vectors.Cells:
    """Fill in missing cells (rows.md 8), per schema version; rows in which the column must not be missing become odd."""
    odd = np.zeros(len(versions), np.bool_)
    for version in np.unique(versions[absent]).tolist():
        these = absent & (versions == version)
        if op == Op.UPDATE and not table.can_append_default(version):
            odd |= these
            continue
        try:
            value = missing_value(column, table.default_info(version))
        except Corruption:
            odd |= these  # the reference decoder finds it again and reports where it is
            continue
        if value is not None:
            values = pc.if_else(pa.array(these), pa.scalar(value, values.type), values)
    return values, odd


def _keys(layout: KeyLayout, op: Op, chunk: Rows) -> tuple[pa.BinaryArray, Mask]:
    slots = {p.id: i for i, p in enumerate(layout.parts)}
    handle = tuple(slots[p.id] if p.whole else None for p in layout.parts) if op == Op.INSERT else ()
    by_handle = op == Op.INSERT and layout.by_handle
    walk = Walk(chunk, ColumnSearch(handle, {} if by_handle else slots, len(HALVES[op]), until_found=True))
    odd = walk.odd.copy()
    pieces: list[pa.Array] = []
    for slot, part in enumerate(layout.parts):
        places = walk.places(slot, 0)
        values, wrong = _key_cells(chunk, places, part)
        odd |= wrong | vectors.nulls_of(places)
        pieces.append(values)
    return reduce(lambda a, b: pc.binary_join_element_wise(a, b, pa.scalar(b"", pa.binary())), pieces), odd


def _key_cells(chunk: Rows, places: DatumPlaces, part: KeyPart) -> vectors.Cells:
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
