"""Reads the content of a relay log: row operations by name, on tables as the target has them, and DDLs (wire.md 2.4). Pure.

    record -> slave.Binlog -> slave.Table, a run of rows of one table -> RowOp
    names and types of a record + the target's table (``TargetTable``) -> TableAt

Promises: a column that the target lacks, or computes itself, is left out: the log also has generated columns and columns that are not public. Rows are found
by the target's unique keys. Values are those that were written into the log. A TIMESTAMP is in ``zone``, the zone of the process that wrote it. In the
hour that comes twice when summer time ends, the log does not say which of the two is meant; ``doubtful_times`` counts such values.
"""

from collections.abc import Collection, Iterator, Sequence

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.schemas.arrowtypes import Value, zero_value
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.row_ops import RowOp
from pyspark_tidb_binlog.sinks.mysql.rows.file_tables import WrittenColumn, table_there
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable
from pyspark_tidb_binlog.sinks.translate.column_values import TYPES, ReadBack

_OPS = {slave.Insert: Op.INSERT, slave.Update: Op.UPDATE, slave.Delete: Op.DELETE}
_UNKNOWN = (ColumnType.VAR_STRING, False)


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


def worded(table: slave.Table) -> frozenset[str]:
    """Names, in lower case, of the columns of which a row holds the number of a word."""
    return frozenset(c.name.lower() for c in table.column_info if c.mysql_type in ("enum", "set"))


def signature(table: slave.Table) -> tuple[tuple[str, str, int, int], ...]:
    """What distinguishes the columns of two runs of rows of one table."""
    return tuple((c.name, c.mysql_type, c.flen, c.decimal) for c in table.column_info)


# Tables.


def table_of(table: slave.Table, there: TargetTable, not_yet: Collection[str] = ()) -> TableAt:
    """The table with the columns that both the log and the target have, in the target's order, and the target's keys over these columns.

    ``not_yet``: names, in lower case, of columns that a later DDL adds. The log has no real value for them, and they get their defaults.
    """
    known = [c for c in table.column_info if c.name.lower() not in not_yet]
    columns = [WrittenColumn(c.name, *TYPES.get(c.mysql_type, _UNKNOWN), c.flen, c.decimal) for c in known]
    return table_there(table.schema_name, table.table_name, columns, there)


# Rows.


def operations_in(table: slave.Table, at: TableAt, commit_ts: int, how: ReadBack) -> Iterator[RowOp]:
    """The row operations of one run of rows, in order.

    Raises:
        Corruption: a row does not have a value for each column.
    """
    places = {c.name.lower(): place for place, c in enumerate(table.column_info)}
    wanted = [(c, places[c.name.lower()]) for c in at.info.columns]
    label = f"{table.schema_name}.{table.table_name}"

    def row(cells: Sequence[slave.Column]) -> dict[str, Value]:
        if len(cells) != len(table.column_info):
            raise Corruption(
                f"a row of {label} at commit_ts {commit_ts} has {len(cells)} values, but the table has {len(table.column_info)} columns"
            )
        return {c.name: _value(c, cells[place], label, how) for c, place in wanted}

    for mutation in table.mutations:
        op = _OPS[mutation.type]
        image = row(mutation.row.columns)
        old = row(mutation.change_row.columns) if op is Op.UPDATE else image if op is Op.DELETE else {}
        yield RowOp(table.schema_name, table.table_name, op, commit_ts, {} if op is Op.DELETE else image, old)


def _value(column: ColumnInfo, cell: slave.Column, label: str, how: ReadBack) -> Value:
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
            return how.in_utc(cell.string_value.decode(), label)
        case ColumnType.DATE | ColumnType.NEWDATE | ColumnType.DATETIME | ColumnType.TIME | ColumnType.DECIMAL:
            return cell.string_value.decode()
    if cell.HasField("int64_value"):
        return cell.int64_value
    if cell.HasField("uint64_value"):
        return cell.uint64_value
    return cell.bytes_value if cell.HasField("bytes_value") else cell.string_value
