"""The reference row decoder: one row at a time, as simple as the format (``row_layout``) allows.

``schemas.decoder`` is tested against it, and passes it the odd rows. Therefore only this decoder reports what is wrong with a damaged row.

Promises: pure. Damaged bytes raise nothing but ``Corruption``, which names table, schema version and row. Columns that the table info
lacks are skipped without decoding. Missing columns are completed as in rows.md 8.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, Value, missing_value
from pyspark_tidb_binlog.schemas.codec import datum
from pyspark_tidb_binlog.schemas.codec.datum import Datum, Flag, take_datum
from pyspark_tidb_binlog.schemas.codec.number import Cursor, encode_comparable_float, round_to_float32, to_signed, to_unsigned
from pyspark_tidb_binlog.schemas.codec.temporal import date_text, datetime_text, time_text
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.row_layout import (
    EMPTY_ROW,
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
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN

if TYPE_CHECKING:
    from pyspark_tidb_binlog.schemas.history import TableAt

_SHOWN = 64
"""Bytes of a damaged row shown in the error."""


def row_keys(table: "TableAt", ops: Ops, rows: pa.BinaryArray) -> pa.BinaryArray:
    """The identity of each event's row as canonical bytes, the same for its insert, its updates and its delete."""
    layout = key_layout(table.info)
    keys: list[bytes] = []
    for op, row in zip(ops.tolist(), rows.to_pylist(), strict=True):
        try:
            keys.append(_key(layout, op, row))
        except Corruption as error:
            raise _damaged(table, op, row, error) from error
    return pa.array(keys, pa.binary())


def new_images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions) -> pa.RecordBatch:
    """The rows after INSERT and UPDATE events, one column per target column."""
    return without_lacking(half_images(table, ops, rows, versions, Half.NEW))


def old_images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions) -> pa.RecordBatch:
    """The rows before UPDATE and DELETE events, one column per target column."""
    return without_lacking(old_rows(table, ops, rows, versions))


def old_rows(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions) -> pa.RecordBatch:
    """``old_images`` with one more column: which of their cells the events do not contain (``LACKING``)."""
    return half_images(table, ops, rows, versions, Half.OLD)


@dataclass(frozen=True, slots=True)
class _Event:
    """One parsed row event: the datums of each column id, in their order in the row."""

    handle: dict[int, Datum]
    pairs: dict[int, list[Datum]]

    def find(self, column_id: int, at: int) -> Datum | None:
        """The column's ``at``-th datum, or the handle's if the row lacks it."""
        found = self.pairs.get(column_id, ())
        return found[at] if at < len(found) else self.handle.get(column_id)


def half_images(table: "TableAt", ops: Ops, rows: pa.BinaryArray, versions: Versions, half: Half) -> pa.RecordBatch:
    """The rows before, or those after, events that have such, with ``LACKING``."""
    layout = image_layout(table.info)
    schema = layout.schema.append(LACKING)
    cells: list[list[Value]] = []
    for op, row, version in zip(ops.tolist(), rows.to_pylist(), versions.tolist(), strict=True):
        try:
            cells.append(_image(table, layout, op, row, version, half))
        except Corruption as error:
            raise _damaged(table, op, row, error) from error
    columns = [pa.array([row[i] for row in cells], field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _image(table: "TableAt", layout: ImageLayout, op: int, row: bytes | None, version: int, half: Half) -> list[Value]:
    at = HALVES[Op(op)].index(half)
    event = _parse(layout.handle, layout.slots.keys(), op, row)
    cells: list[Value] = []
    lacking = 0
    for place, (column, cell) in enumerate(zip(layout.columns, layout.cells, strict=True)):
        if op == Op.UPDATE and len(event.pairs.get(column.id, ())) == 1:
            raise Corruption(f"column {column.name} (id {column.id}) occurs in only one half of the update")
        found = event.find(column.id, at)
        if found is None and op == Op.UPDATE and not table.can_append_default(version):
            raise Corruption(f"column {column.name} (id {column.id}) is missing in an update of schema version {version}")
        lacking |= (found is None) << place
        try:
            cells.append(cell_of(cell, found) if found else missing_value(column, table.default_info(version)))
        except Corruption as error:
            raise Corruption(f"column {column.name} (id {column.id}): {error}") from error
    return [*cells, lacking.to_bytes((len(cells) + 7) // 8, "little") if lacking else b""]


def _parse(parts: tuple[KeyPart, ...], wanted: Collection[int], op: int, row: bytes | None, *, until_found: bool = False) -> _Event:
    """Parse a row; ``until_found`` stops as soon as every wanted column has been seen."""
    raw = row or b""
    cursor, event = Cursor(raw), _Event({}, {})
    for part in parts if op == Op.INSERT else ():
        value = take_datum(cursor)
        if part.length == WHOLE_COLUMN:
            event.handle[part.id] = value
    if cursor.pos == cursor.end:
        raise Corruption("the row has no columns, not even the byte 00 of an empty row")
    if raw[cursor.pos : cursor.pos + 2] == EMPTY_ROW:
        return event
    limit = len(HALVES[Op(op)])
    found: set[int] = set()
    while cursor.pos < cursor.end and not (until_found and len(found) == len(wanted)):
        flag = cursor.byte()
        if flag != Flag.VARINT:
            raise Corruption(f"a column id with flag {flag:#04x} before byte {cursor.pos}")
        column_id, value = cursor.varint(), take_datum(cursor)
        if column_id not in wanted:
            continue
        found.add(column_id)
        seen = event.pairs.setdefault(column_id, [])
        seen.append(value)
        if len(seen) > limit:
            raise Corruption(f"column id {column_id} occurs {len(seen)} times in the row")
    return event


def cell_of(cell: CellType, value: Datum) -> Value:
    """A datum converted to a cell of its column."""
    if value.flag == Flag.NULL:
        return None
    match cell.kind:
        case CellKind.INT:
            return to_signed(datum.as_integer(value))
        case CellKind.UINT | CellKind.NUMBER:
            return to_unsigned(datum.as_integer(value))
        case CellKind.FLOAT:
            return round_to_float32(datum.as_float(value))
        case CellKind.DOUBLE:
            return datum.as_float(value)
        case CellKind.DECIMAL:
            return datum.as_decimal(value, cell.digits)
        case CellKind.DATE:
            return date_text(to_unsigned(datum.as_integer(value)))
        case CellKind.DATETIME:
            return datetime_text(to_unsigned(datum.as_integer(value)), cell.digits)
        case CellKind.TIME:
            return time_text(to_signed(datum.as_integer(value)), cell.digits)
        case CellKind.BYTES:
            return datum.as_bytes(value)
        case CellKind.JSON:
            return datum.as_json(value)


def _key(layout: KeyLayout, op: int, row: bytes | None) -> bytes:
    wanted: frozenset[int] = frozenset() if op == Op.INSERT and layout.by_handle else layout.ids
    event = _parse(layout.parts, wanted, op, row, until_found=True)
    return b"".join(_key_bytes(p, event.find(p.id, 0)) for p in layout.parts)


def _key_bytes(part: KeyPart, value: Datum | None) -> bytes:
    """Integers and times as 8 bytes, strings and decimals as length and content."""
    if value is None or value.flag == Flag.NULL:
        raise Corruption(f"the row has no value for column id {part.id} of its key")
    match part.cell.kind:
        case CellKind.BYTES:
            return _sized(_prefix(part, datum.as_bytes(value)))
        case CellKind.DECIMAL:
            return _sized(datum.as_decimal(value, part.cell.digits).encode())
        case CellKind.FLOAT | CellKind.DOUBLE:
            return encode_comparable_float(datum.as_float(value))
        case _:
            return to_unsigned(datum.as_integer(value)).to_bytes(8, "big")


def _sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw


def _prefix(part: KeyPart, raw: bytes) -> bytes:
    if part.length == WHOLE_COLUMN:
        return raw
    if part.binary:
        return raw[: part.length]
    starts = [i for i, b in enumerate(raw) if b & 0xC0 != 0x80]
    return raw[: starts[part.length]] if len(starts) > part.length else raw


def _damaged(table: "TableAt", op: int, row: bytes | None, error: Corruption) -> Corruption:
    raw = row or b""
    more = f"... ({len(raw)} bytes)" if len(raw) > _SHOWN else ""
    return Corruption(
        f"damaged {Op(op).name} row of table {table.schema}.{table.name} (id {table.table_id}, schema version {table.version}): {error}; "
        f"row = {raw[:_SHOWN].hex()}{more}. Compare the row with the transaction's binlogs on other Pumps. A Drainer skips the transaction with "
        "ignore-txn-commit-ts. A query skips it if startingCommitTs is at or above the transaction's commit_ts"
    )
