"""Rows of a file sink's binlogs as row operations by name, on tables as the target has them (wire.md 2.5). Pure.

    pb.Event -> names and types of its columns + structure at the target -> TableAt, RowOp

Promises: the operation has the value that was written. ENUM, SET and BIT are numbers; a TIMESTAMP is converted back to UTC; a default
that was written as text becomes its number. A value that its column cannot have is an error that names table, column and commit_ts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, Value, kind_of, zero_value
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.row_ops import RowOp
from pyspark_tidb_binlog.sinks.file.replayed import Cell, ColumnChange
from pyspark_tidb_binlog.sinks.translate.column_values import TYPES, ReadBack

_OPS = {pb.Insert: Op.INSERT, pb.Update: Op.UPDATE, pb.Delete: Op.DELETE}
_WHOLE = {CellKind.INT: (-(1 << 63), (1 << 63) - 1), CellKind.UINT: (0, (1 << 64) - 1), CellKind.NUMBER: (0, (1 << 64) - 1)}
"""What the numbers of a kind may be."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """The name and type of a column in an event."""

    name: str
    tp: int
    binary: bool


def columns_in(changes: Sequence[ColumnChange]) -> tuple[FileColumn, ...]:
    """Those of an event, as they distinguish the tables of two events of one name."""
    return tuple(FileColumn(c.name, c.tp, TYPES.get(c.mysql_type, (c.tp, False))[1]) for c in changes)


def operation_of(event: pb.Event, changes: Sequence[ColumnChange], at: TableAt, commit_ts: int, how: ReadBack) -> RowOp:
    """The row operation that an event is.

    Raises:
        Corruption: a value does not fit its column.
    """
    by_name = {c.name.lower(): c for c in changes}
    label = f"{event.schema_name}.{event.table_name}"
    op = _OPS[event.tp]
    first: dict[str, Value] = {}
    second: dict[str, Value] = {}
    for column in at.info.columns:
        change = by_name[column.name.lower()]
        try:
            first[column.name] = _value(column, change.value, label, how)
            if op is Op.UPDATE:
                second[column.name] = _value(column, change.changed, label, how)
        except (ValueError, TypeError, AttributeError) as error:
            raise Corruption(
                f"{label}, commit_ts {commit_ts}: the file has a value for column {column.name} ({change.mysql_type}) that this type cannot have: "
                f"{type(error).__name__}"
            ) from error
    if op is Op.UPDATE:
        return RowOp(event.schema_name, event.table_name, op, commit_ts, second, first)
    return RowOp(event.schema_name, event.table_name, op, commit_ts, *((first, {}) if op is Op.INSERT else ({}, first)))


def _value(column: ColumnInfo, cell: Cell, label: str, how: ReadBack) -> Value:
    if cell is None:
        # A table that stays behind the upstream may have NOT NULL where that has not; it gets what it got before.
        return zero_value(column) if column.not_null else None
    kind = kind_of(column)
    if kind in _WHOLE:
        number = _number(column, cell)
        least, most = _WHOLE[kind]
        if not least <= number <= most:
            raise ValueError(number)
        return number
    match kind:
        case CellKind.FLOAT | CellKind.DOUBLE:
            return float(cell)
        case CellKind.BYTES:
            return _bytes(cell)
        case _:
            text = _bytes(cell).decode()
            return how.in_utc(text, label) if column.tp == ColumnType.TIMESTAMP else text


def _number(column: ColumnInfo, cell: int | float | bytes) -> int:
    if not isinstance(cell, bytes):
        return int(cell)
    # The default of a column that the row lacked is text, of a BIT its bytes.
    return int.from_bytes(cell, "big") if column.tp == ColumnType.BIT else int(cell)


def _bytes(cell: int | float | bytes) -> bytes:
    if not isinstance(cell, bytes):
        raise TypeError(cell)
    return cell
