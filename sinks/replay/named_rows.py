"""Rows of files of binlogs, which carry no table infos, as rows of the target's tables; and the one plan over some of them. Pure.

    names, types and cells of a file + the target's table (``structure``) -> ``FileTable``, ``NamedRow``
    named rows, in order -> events with a number for each row -> ``SpanPlan``, in safe mode ``SafeSpanPlan``

Promises: a row has the values that were written. ENUM, SET and BIT are numbers; a TIMESTAMP is converted back to UTC; a default that was written as text
becomes its number. A value that its column cannot have is an error that names table, column and commit_ts. A column that the target lacks, or computes
itself, is left out. Rows are found by the target's unique keys.

A file has no ``_tidb_rowid``. Two operations are about one row if the second one begins with the key that the first one left. In a table without
a unique key that excludes NULL the whole image counts, where equal rows are interchangeable.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, Value, image_schema, kind_of, zero_value
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op, SchemaVersion
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.engine.fold import Indexes
from pyspark_tidb_binlog.sinks.file.replayed import Cell
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.matching import OldRows
from pyspark_tidb_binlog.sinks.mysql.plan import Images, Plan, PlanLimits, SpanPlan, planned
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.mysql.target_fit import own_keys
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack

_WHOLE = {CellKind.INT: (-(1 << 63), (1 << 63) - 1), CellKind.UINT: (0, (1 << 64) - 1), CellKind.NUMBER: (0, (1 << 64) - 1)}
"""What the numbers of a kind may be."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column as a file describes it."""

    name: str
    tp: int
    """Code of its type."""
    mysql_type: str
    binary: bool
    """Whether its charset is binary."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One operation on one row, as a file has it."""

    schema: str
    table: str
    op: Op
    columns: tuple[FileColumn, ...]
    old: Sequence[Cell]
    """The row before it, in the order of ``columns``; empty for an INSERT."""
    new: Sequence[Cell]
    """The row after it; empty for a DELETE."""
    size: int
    """About how many bytes it has."""


@dataclass(frozen=True, slots=True)
class FileTable:
    """A table at the target, for rows with certain columns."""

    at: TableAt
    columns: tuple[tuple[ColumnInfo, CellKind, int], ...]
    """Those of the file that the target has, too, and does not compute; each with its place in a row of the file."""
    key: tuple[int, ...]
    """Places in a row's values that tell it apart: of the first unique key without NULL, else of all columns."""

    def read(self, row: FileRow, commit_ts: int, how: ReadBack) -> "NamedRow":
        """A row of the file.

        Raises:
            Corruption: a value does not fit its column.
        """
        old, new = (self._values(row, cells, commit_ts, how) if cells else () for cells in (row.old, row.new))
        return NamedRow(self, row.op, commit_ts, old, new)

    def _values(self, row: FileRow, cells: Sequence[Cell], commit_ts: int, how: ReadBack) -> tuple[Value, ...]:
        label = f"{row.schema}.{row.table}"
        found = []
        for column, kind, place in self.columns:
            try:
                found.append(_value(column, kind, cells[place], label, how))
            except (ValueError, TypeError, AttributeError) as error:
                raise Corruption(
                    f"{label}, commit_ts {commit_ts}: the file has a value for column {column.name} ({row.columns[place].mysql_type}) that this type "
                    f"cannot have: {type(error).__name__}"
                ) from error
        return tuple(found)


@dataclass(frozen=True, slots=True)
class NamedRow:
    """One operation on one row of the target."""

    table: FileTable
    op: Op
    commit_ts: int
    old: tuple[Value, ...]
    new: tuple[Value, ...]


# Tables.


def file_table(number: int, name: tuple[str, str], written: Sequence[FileColumn], there: TargetTable) -> FileTable:
    """The table with the columns that the file and the target have, in the target's order, and the target's keys of these.

    Args:
        number: the id of the table among those of a replay.
        name: database and table, as the file has them.
        written: the file's columns.
        there: the target's table.
    """
    places = {c.name.lower(): place for place, c in enumerate(written)}
    both = [(c, places[c.name.lower()]) for c in there.columns if not c.generated and c.name.lower() in places]
    columns = tuple(_column(written[place], at_target, offset) for offset, (at_target, place) in enumerate(both))
    offsets = {c.name.lower(): c.offset for c in columns}
    known = (key for key in there.unique_keys if all(part.lower() in offsets for part, _ in key.columns))
    info = TableInfo(
        id=number,
        name=name[1],
        charset="utf8mb4",
        collate="",
        columns=columns,
        indexes=tuple(_index(place, key, offsets) for place, key in enumerate(known)),
        pk_is_handle=False,
        is_common_handle=False,
        partitions=(),
        is_view=False,
        is_sequence=False,
        temp_table_type=0,
        comment="",
    )
    others = tuple(c.name for c in there.columns if not c.generated and c.name.lower() not in offsets)
    keys = tuple(key.name for key in own_keys(info, there))
    at = TableAt(number, *name, info, SchemaVersion(0), (), dropping=False, others=others, own_keys=keys)
    certain = next((key for key in info.unique_keys() if all(c.not_null for c in key)), columns)
    known_columns = tuple((c, kind_of(c), place) for c, (_, place) in zip(columns, both, strict=True))
    return FileTable(at, known_columns, tuple(c.offset for c in certain))


def _column(written: FileColumn, there: TargetColumn, offset: int) -> ColumnInfo:
    flag = (0 if there.nullable else ColumnFlag.NOT_NULL) | (ColumnFlag.UNSIGNED if there.unsigned else 0)
    return ColumnInfo(
        id=offset + 1,
        name=there.name,
        offset=offset,
        tp=written.tp,
        flag=int(flag),
        flen=-1,
        decimal=-1,
        charset="binary" if written.binary else there.charset or "utf8mb4",
        collate=there.collation or "binary",
        elems=there.words,
        origin_default=None,
        origin_default_bit=None,
        default=None,
        default_bit=None,
        default_is_expr=False,
        generated_expr="",
        generated_stored=False,
        hidden=False,
        state=PUBLIC,
        comment="",
    )


def _index(place: int, key: TargetKey, offsets: Mapping[str, int]) -> IndexInfo:
    columns = tuple(IndexColumn(name, offsets[name.lower()], length) for name, length in key.columns)
    return IndexInfo(place + 1, key.name, columns, unique=True, primary=key.primary, state=PUBLIC, invisible=False, comment="")


# Values.


def _value(column: ColumnInfo, kind: CellKind, cell: Cell, label: str, how: ReadBack) -> Value:
    if cell is None:
        # A table that stays behind the upstream may have NOT NULL where that has not; it gets what it got before.
        return zero_value(column) if column.not_null else None
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
    # A YEAR, and the default of a column that the row lacked, is text; a BIT is bytes.
    return int.from_bytes(cell, "big") if column.tp == ColumnType.BIT else int(cell)


def _bytes(cell: int | float | bytes) -> bytes:
    if not isinstance(cell, bytes):
        raise TypeError(cell)
    return cell


# The plan.


def plan_of(rows: Sequence[NamedRow], limits: PlanLimits, flavour: Flavour, *, safe: bool) -> Plan:
    """The statements of ``rows``, which are in order; no two of them have another table of one name.

    In safe mode a row that no unique key finds is written once more, and an equal row is not deleted first: another chunk may have written that one.
    """
    source, tables = _NamedRows(rows), {row.table.at.table_id: row.table.at for row in rows}
    events = pa.table(
        {
            "commit_ts": source.commit_ts,
            "seq": np.arange(len(rows), dtype=np.int32),
            "op": source.ops,
            "table_id": source.table_ids,
            "schema_version": source.versions,
        }
    )
    keys = _as_keys(chains_of(rows))
    if safe:
        how = SafeSpan(in_doubt=False)
        return planned(SafeSpanPlan(events, tables, limits, keys, flavour=flavour, how=how, source=source))
    return planned(SpanPlan(events, tables, limits, keys, flavour=flavour, source=source))


def chains_of(rows: Iterable[NamedRow]) -> list[int]:
    """The number of the chain of each operation: an operation continues a chain that left the row with which it begins."""
    left: dict[tuple[object, ...], list[int]] = {}
    found: list[int] = []
    last = -1
    for row in rows:
        at, key = row.table.at.table_id, row.table.key
        known = left.get((at, *(row.old[place] for place in key))) if row.op is not Op.INSERT else None
        if known:
            number = known.pop()
        else:
            number = last = last + 1
        if row.op is not Op.DELETE:
            left.setdefault((at, *(row.new[place] for place in key)), []).append(number)
        found.append(number)
    return found


def _as_keys(numbers: Sequence[int]) -> pa.BinaryArray:
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 8
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(np.array(numbers, dtype=">i8").tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)


class _NamedRows:
    """Rows that are decoded already (``RowSource``)."""

    def __init__(self, rows: Sequence[NamedRow]) -> None:
        self._named = rows
        self.ops = np.array([int(row.op) for row in rows], dtype=np.int64)
        self.table_ids = np.array([row.table.at.table_id for row in rows], dtype=np.int64)
        self.versions = np.zeros(len(rows), dtype=np.int64)
        self.commit_ts = np.array([row.commit_ts for row in rows], dtype=np.int64)

    def old_rows(self, table: TableAt, indexes: Indexes) -> OldRows:
        """The rows before the events."""
        return OldRows.complete(_images(table, [self._named[place].old for place in indexes.tolist()]), indexes)

    def new_images(self, table: TableAt, indexes: Indexes) -> Images:
        """The rows after the events."""
        return Images(_images(table, [self._named[place].new for place in indexes.tolist()]), self.commit_ts[indexes])


def _images(table: TableAt, rows: Sequence[tuple[Value, ...]]) -> pa.RecordBatch:
    schema = image_schema(table.info.columns)
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays([pa.array(values, f.type) for values, f in zip(cells, schema, strict=True)], schema=schema)
