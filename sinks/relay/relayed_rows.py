"""What a relay log holds, read back: row operations by name, on tables as the target has them, and DDLs (wire.md 2.4). Pure.

    record -> slave.Binlog -> slave.Table, a run of rows of one table -> RowOp
    names and types of a record + structure at the target (``TargetShape``) -> TableAt

Promises: a column that the target lacks, or computes itself, is left out: the log has those of any state, and generated ones. A row is sought by
the target's unique keys. Values are those that were written into the log. A TIMESTAMP is in ``zone``, that of the process that wrote it: of the
hour that comes twice when summer time ends, the log does not say which one is meant, so ``doubtful_times`` counts these.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.schemas.arrowtypes import Value, zero_value
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op, SchemaVersion
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.tableinfo import (
    PUBLIC,
    WHOLE_COLUMN,
    ColumnFlag,
    ColumnInfo,
    ColumnType,
    IndexColumn,
    IndexInfo,
    TableInfo,
)
from pyspark_tidb_binlog.sinks.engine.row_ops import RowOp
from pyspark_tidb_binlog.sinks.translate.column_values import TYPES

_OPS = {slave.Insert: Op.INSERT, slave.Update: Op.UPDATE, slave.Delete: Op.DELETE}
_MOMENT = len("2020-01-01 00:00:00")


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """A column at the target that statements may write."""

    name: str
    unsigned: bool
    not_null: bool
    collate: str


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """A unique key at the target."""

    name: str
    columns: tuple[tuple[str, int], ...]
    """Name and length of the prefix (-1 = the whole column)."""


@dataclass(frozen=True, slots=True)
class TargetShape:
    """A table as the target has it."""

    columns: tuple[ShapeColumn, ...]
    """Those that it does not compute."""
    keys: tuple[ShapeKey, ...]
    """The primary key first."""


@dataclass(slots=True)
class ReadBack:
    """How rows are read back, and what was doubtful about them."""

    zone: datetime.tzinfo
    doubtful_times: dict[str, int] = field(default_factory=dict)
    """Number of TIMESTAMP values in the hour that comes twice, by table."""


# Records.


def binlog_of(payload: bytes, where: str) -> slave.Binlog:
    """A record's binlog; ``where``: the file and the place, for errors.

    Raises:
        Corruption: it is none.
    """
    try:
        return slave.Binlog.FromString(payload)
    except DecodeError as error:
        raise Corruption(f"{where}: a record is not a binlog of a relay log: {error}. Is this the directory of a file sink?") from error


def signature(table: slave.Table) -> tuple[tuple[str, str, int, int], ...]:
    """What distinguishes the columns of two runs of rows of one table."""
    return tuple((c.name, c.mysql_type, c.flen, c.decimal) for c in table.column_info)


# Tables.


def table_of(table: slave.Table, shape: TargetShape) -> TableAt:
    """The table with the columns that both the log and the target have, in the target's order, and the target's keys of these."""
    described = {c.name.lower(): c for c in table.column_info}
    columns = tuple(
        _column(described[there.name.lower()], there, place)
        for place, there in enumerate(c for c in shape.columns if c.name.lower() in described)
    )
    offsets = {c.name.lower(): c.offset for c in columns}
    indexes = tuple(
        _index(number, key, offsets) for number, key in enumerate(shape.keys) if all(name.lower() in offsets for name, _ in key.columns)
    )
    info = TableInfo(
        id=0,
        name=table.table_name,
        charset="utf8mb4",
        collate="",
        columns=columns,
        indexes=indexes,
        pk_is_handle=False,
        is_common_handle=False,
        partitions=(),
        is_view=False,
        is_sequence=False,
        temp_table_type=0,
        comment="",
    )
    return TableAt(0, table.schema_name, table.table_name, info, SchemaVersion(0), (), dropping=False)


def _column(told: slave.ColumnInfo, there: ShapeColumn, place: int) -> ColumnInfo:
    tp, binary = TYPES.get(told.mysql_type, (ColumnType.VAR_STRING, False))
    flag = (ColumnFlag.NOT_NULL if there.not_null else 0) | (ColumnFlag.UNSIGNED if there.unsigned else 0)
    return ColumnInfo(
        id=place + 1,
        name=there.name,
        offset=place,
        tp=tp,
        flag=int(flag),
        flen=told.flen,
        decimal=told.decimal,
        charset="binary" if binary else "utf8mb4",
        collate=there.collate or "binary",
        elems=(),
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


def _index(number: int, key: ShapeKey, offsets: Mapping[str, int]) -> IndexInfo:
    columns = tuple(IndexColumn(name, offsets[name.lower()], length if length > 0 else WHOLE_COLUMN) for name, length in key.columns)
    return IndexInfo(number + 1, key.name, columns, unique=True, primary=key.name == "PRIMARY", state=PUBLIC, invisible=False, comment="")


# Rows.


def operations_in(table: slave.Table, at: TableAt, commit_ts: int, how: ReadBack) -> Iterator[RowOp]:
    """The row operations of one run of rows, in order.

    Raises:
        Corruption: a row does not have a value for each column.
    """
    places = {c.name.lower(): place for place, c in enumerate(table.column_info)}
    wanted = [(c, places[c.name.lower()], table.column_info[places[c.name.lower()]].mysql_type) for c in at.info.columns]
    label = f"{table.schema_name}.{table.table_name}"

    def row(cells: Sequence[slave.Column]) -> dict[str, Value]:
        if len(cells) != len(table.column_info):
            raise Corruption(f"a row of {label} at commit_ts {commit_ts} has {len(cells)} values for {len(table.column_info)} columns")
        return {c.name: _value(c, mysql_type, cells[place], label, how) for c, place, mysql_type in wanted}

    for mutation in table.mutations:
        op = _OPS[mutation.type]
        image = row(mutation.row.columns)
        old = row(mutation.change_row.columns) if op is Op.UPDATE else image if op is Op.DELETE else {}
        yield RowOp(table.schema_name, table.table_name, op, commit_ts, {} if op is Op.DELETE else image, old)


def _value(column: ColumnInfo, mysql_type: str, cell: slave.Column, label: str, how: ReadBack) -> Value:
    if cell.is_null:
        # A table that stays behind the upstream may have NOT NULL where that has not; it gets what it got before.
        return zero_value(column) if column.not_null else None
    match column.tp:
        case ColumnType.FLOAT | ColumnType.DOUBLE:
            return cell.double_value
        case ColumnType.BIT:
            return int.from_bytes(cell.bytes_value, "big")
        case ColumnType.YEAR:
            return int(cell.string_value)
        case ColumnType.JSON:
            return cell.bytes_value.decode()
        case ColumnType.TIMESTAMP:
            return _in_utc(cell.string_value.decode(), label, how)
        case ColumnType.DATE | ColumnType.NEWDATE | ColumnType.DATETIME | ColumnType.TIME | ColumnType.DECIMAL:
            return cell.string_value.decode()
    if cell.HasField("int64_value"):
        return cell.int64_value
    if cell.HasField("uint64_value"):
        return cell.uint64_value
    return cell.bytes_value if cell.HasField("bytes_value") else cell.string_value


def _in_utc(text: str, label: str, how: ReadBack) -> str:
    """``text`` in the log's zone as the same moment in UTC; what is no moment (a zero date) stays as it is."""
    if how.zone is datetime.UTC:
        return text
    try:
        local = datetime.datetime.strptime(text[:_MOMENT], "%Y-%m-%d %H:%M:%S").replace(tzinfo=how.zone)
        first, second = (local.replace(fold=fold).astimezone(datetime.UTC) for fold in (0, 1))
    except (ValueError, OverflowError):
        return text
    if first < second:
        how.doubtful_times[label] = how.doubtful_times.get(label, 0) + 1
    return first.strftime("%Y-%m-%d %H:%M:%S") + text[_MOMENT:]
