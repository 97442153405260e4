"""What the records of files hold: a file sink's binlogs (wire.md 2.5) and those of a relay log (wire.md 2.4), in one form. Pure.

    pb.Binlog      -> FileRows: a FileRow for each event        FileDdl: its text without ``use``
    slave.Binlog   -> FileRows: a FileRow for each mutation     FileDdl

Promises: a column of a relay log that is generated or not public is there, too. Values are those that were written.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.file.replayed import Cell, columns_of, ddl_parts
from pyspark_tidb_binlog.sinks.replay.named_rows import FileColumn, FileRow
from pyspark_tidb_binlog.sinks.translate.column_values import TYPES

_EVENTS = {pb.Insert: Op.INSERT, pb.Update: Op.UPDATE, pb.Delete: Op.DELETE}
_MUTATIONS = {slave.Insert: Op.INSERT, slave.Update: Op.UPDATE, slave.Delete: Op.DELETE}
_UNKNOWN = (ColumnType.VAR_STRING, False)


@dataclass(frozen=True, slots=True)
class FileRows:
    """The row operations of one transaction."""

    commit_ts: int
    digest: str
    """Of all of them."""
    rows: Iterable[FileRow]
    """Can be read once."""
    tables: frozenset[tuple[str, str]] = frozenset()
    """Databases and tables of a relay log's record, in lower case."""
    done: int = 0
    """How many of them an earlier replay has applied."""


@dataclass(frozen=True, slots=True)
class FileDdl:
    """One DDL."""

    commit_ts: int
    digest: str
    """Of its text: an early DDL shares its commit_ts with the transaction before it, and with others."""
    database: str
    """The current database; empty: none."""
    statement: str
    table: tuple[str, str] = ("", "")
    """Database and table that it changes, in lower case, as far as the record says it."""


FileRecord: TypeAlias = FileRows | FileDdl


def of_file_sink(binlog: pb.Binlog) -> FileRecord:
    """A binlog of a file sink."""
    if binlog.tp == pb.DDL:
        parts = ddl_parts(binlog.ddl_query.decode("utf-8", "surrogateescape"))
        return FileDdl(binlog.commit_ts, _digest(binlog.ddl_query), parts.database, parts.statement)
    return FileRows(binlog.commit_ts, _digest(binlog.SerializeToString()), map(_of_event, binlog.dml_data.events))


def _of_event(event: pb.Event) -> FileRow:
    changes = tuple(columns_of(event))
    columns = tuple(FileColumn(c.name, c.tp, c.mysql_type, TYPES.get(c.mysql_type, (c.tp, False))[1]) for c in changes)
    first, op = [c.value for c in changes], _EVENTS[event.tp]
    new = [c.changed for c in changes] if op is Op.UPDATE else first if op is Op.INSERT else ()
    return FileRow(event.schema_name, event.table_name, op, columns, () if op is Op.INSERT else first, new, event.ByteSize())


def of_relay_log(payload: bytes, where: str) -> FileRecord:
    """A record of a relay log; ``where``: the file and the place, for errors.

    Raises:
        Corruption: it is none; also from the rows, if one does not have a value for each column.
    """
    try:
        binlog = slave.Binlog.FromString(payload)
    except DecodeError as error:
        raise Corruption(f"{where}: a record is not a binlog of a relay log: {error}. Is this the directory of a file sink?") from error
    if binlog.type == slave.DDL:
        data = binlog.ddl_data
        table = data.schema_name.lower(), data.table_name.lower()
        return FileDdl(binlog.commit_ts, _digest(payload), data.schema_name, data.ddl_query.decode("utf-8", "replace"), table)
    count = sum(len(table.mutations) for table in binlog.dml_data.tables)
    tables = frozenset((table.schema_name.lower(), table.table_name.lower()) for table in binlog.dml_data.tables)
    return FileRows(binlog.commit_ts, _digest(payload), _of_tables(binlog, len(payload) // max(count, 1)), tables)


def _of_tables(binlog: slave.Binlog, size: int) -> Iterator[FileRow]:
    for table in binlog.dml_data.tables:
        columns = tuple(
            FileColumn(c.name, tp, c.mysql_type, binary) for c in table.column_info for tp, binary in [TYPES.get(c.mysql_type, _UNKNOWN)]
        )
        for mutation in table.mutations:
            op = _MUTATIONS[mutation.type]
            image = _cells(table, mutation.row, binlog.commit_ts)
            old = _cells(table, mutation.change_row, binlog.commit_ts) if op is Op.UPDATE else image if op is Op.DELETE else ()
            yield FileRow(table.schema_name, table.table_name, op, columns, old, () if op is Op.DELETE else image, size)


def _cells(table: slave.Table, row: slave.Row, commit_ts: int) -> Sequence[Cell]:
    if len(row.columns) != len(table.column_info):
        raise Corruption(
            f"a row of {table.schema_name}.{table.table_name} at commit_ts {commit_ts} has {len(row.columns)} values, but the table has "
            f"{len(table.column_info)} columns"
        )
    return [_cell(column) for column in row.columns]


def _cell(column: slave.Column) -> Cell:
    if column.is_null:
        return None
    for kind in ("int64_value", "uint64_value", "double_value", "bytes_value"):
        if column.HasField(kind):
            value: Cell = getattr(column, kind)
            return value
    return column.string_value


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()
