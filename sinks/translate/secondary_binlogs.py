"""Binlogs as the Kafka sink sends them and the relay log holds them: ``slave.binlog.Binlog`` (wire.md 2.4).

Each row has a value for every column of the table, public or not, by the column's place:

    INSERT, DELETE   a column that the row lacks has its default, or the zero value
    UPDATE           ``row`` is the new row, ``change_row`` the old row; a generated column, or a column that is not public, is NULL

Promises: pure; byte for byte what a real Drainer sends, except for the values that ``column_values`` names. TIMESTAMP in ``zone``.
"""

import datetime
import struct
from collections.abc import Iterator, Sequence

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.codec.datum import as_integer
from pyspark_tidb_binlog.schemas.codec.number import encode_uvarint, to_signed
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.schemas.wire import BYTES, key
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, Datums, TableRows, TableRun, int_field, text_field
from pyspark_tidb_binlog.sinks.translate.column_values import (
    ColumnForm,
    Encode,
    RawDefault,
    ValueForms,
    bit_bytes,
    encoding_of,
    known_number,
    mysql_type,
    read,
)

_MUTATIONS = {Op.INSERT: slave.Insert, Op.UPDATE: slave.Update, Op.DELETE: slave.Delete}
_COLUMN, _MUTATION = key(1, BYTES), key(4, BYTES)
_DOUBLE = struct.Struct("<Bd")
_DOUBLE_KEY = 4 << 3 | 1
_PRIMARY = "PRIMARY"


def _column(content: bytes) -> bytes:
    return _COLUMN + encode_uvarint(len(content)) + content


def of_signed(value: int) -> bytes:
    """A column with ``int64_value``."""
    return _column(int_field(2, value))


def of_unsigned(value: int) -> bytes:
    """A column with ``uint64_value``."""
    return _column(int_field(3, value))


def of_double(value: float) -> bytes:
    """A column with ``double_value``."""
    return _column(_DOUBLE.pack(_DOUBLE_KEY, value))


def of_bytes(value: bytes) -> bytes:
    """A column with ``bytes_value``."""
    return _column(text_field(5, value))


def of_text(value: bytes) -> bytes:
    """A column with ``string_value``."""
    return _column(text_field(6, value))


OF_NULL = _column(int_field(1, 1))
"""A column that is NULL."""


class SecondaryBinlogs(BinlogFormat):
    """The format of the Kafka sink and the relay log."""

    def transaction(self, commit_ts: int, runs: Sequence[TableRun]) -> bytes:
        """The message of a transaction, with a table per run."""
        compiled: Iterator[SecondaryTable] = map(self._table, runs)
        tables = [text_field(1, table.content(run.changes)) for table, run in zip(compiled, runs, strict=True)]
        return int_field(1, slave.DML) + int_field(2, commit_ts) + text_field(3, b"".join(tables))

    def ddl(self, commit_ts: int, name: QualifiedName, query: str) -> bytes:
        """The message of a DDL, its text as TiDB wrote it."""
        named = text_field(1, name.schema.encode()) + text_field(2, name.name.encode())
        data = named + text_field(3, query.encode(errors="surrogateescape"))
        return int_field(1, slave.DDL) + int_field(2, commit_ts) + text_field(4, data)

    def _compiled(self, run: TableRun) -> "SecondaryTable":
        return SecondaryTable(run, self._zone)


class SecondaryTable:
    """The row changes of one table at one schema version."""

    def __init__(self, run: TableRun, zone: datetime.tzinfo) -> None:
        table = run.table
        self._rows = TableRows(table, run.version)
        at_row = table.default_info(run.version)
        writable = {c.id for c in self._rows.writable}
        self._columns = tuple(SecondaryColumn(c, at_row, zone, written=c.id in writable) for c in table.info.columns)
        named = text_field(1, table.schema.encode()) + text_field(2, table.name.encode())
        self._head = named + b"".join(text_field(3, column_content(c)) for c in table.info.columns)
        self._tail = b"".join(text_field(5, k.SerializeToString()) for k in unique_keys(table.info))

    def content(self, changes: Sequence[tuple[int, bytes]]) -> bytes:
        """The table with its row changes."""
        parts = [self._head]
        for op, row in changes:
            mutation = self._mutation(op, row)
            parts += (_MUTATION, encode_uvarint(len(mutation)), mutation)
        return b"".join((*parts, self._tail))

    def _mutation(self, op: int, row: bytes) -> bytes:
        images = self._rows.images(op, row)
        head = int_field(1, _MUTATIONS[Op(op)])
        try:
            if op == Op.UPDATE:
                new, old = (b"".join(c.updated(half) for c in self._columns) for half in (images.new, images.old))
                return head + text_field(2, new) + text_field(3, old)
            image = images.new if op == Op.INSERT else images.old
            return head + text_field(2, b"".join(c.value(image) for c in self._columns))
        except Corruption as error:
            raise self._rows.damaged(op, row, error) from error


class SecondaryColumn(ColumnForm):
    """The values of one column, as columns of a row."""

    null = OF_NULL

    def __init__(self, column: ColumnInfo, at_row: TableInfo | None, zone: datetime.tzinfo, *, written: bool) -> None:
        super().__init__(column, at_row, zone, _encoding_of(column, zone))
        self._written = written

    def updated(self, image: Datums) -> bytes:
        """Return the column's value in an image of an update."""
        return self.value(image) if self._written else OF_NULL

    def _default(self, value: int | bytes | RawDefault) -> bytes:
        column = self._column
        if isinstance(value, int):
            return _of_number(column, value)
        return _of_default(column, value) if isinstance(value, RawDefault) else of_bytes(value) if _is_raw(column) else of_text(value)


def _is_raw(column: ColumnInfo) -> bool:
    """Whether values of that column are in ``bytes_value``."""
    kind = kind_of(column)
    binary = column.is_binary and column.tp not in (ColumnType.VAR_STRING, ColumnType.GEOMETRY)
    return kind is CellKind.JSON or column.tp == ColumnType.BIT or (kind is CellKind.BYTES and binary)


def _of_number(column: ColumnInfo, value: int) -> bytes:
    """ENUM, SET, or the zero of a number."""
    kind = kind_of(column)
    if kind in (CellKind.FLOAT, CellKind.DOUBLE):
        return of_double(float(value))
    if column.tp == ColumnType.YEAR:
        return of_text(str(value).encode())
    return of_unsigned(value) if kind is not CellKind.INT else of_signed(value)


def _of_default(column: ColumnInfo, default: RawDefault) -> bytes:
    kind = kind_of(column)
    try:
        if kind in (CellKind.FLOAT, CellKind.DOUBLE):
            return of_double(float(default.text))
        if kind in (CellKind.INT, CellKind.UINT, CellKind.NUMBER) and column.tp != ColumnType.YEAR:
            return _of_number(column, int(default.text))
    except ValueError as error:
        raise Corruption(f"the origin default {default.text!r} of column {column.name} (id {column.id}) does not fit it") from error
    return of_bytes(default.text) if _is_raw(column) else of_text(default.text)


def _encoding_of(column: ColumnInfo, zone: datetime.tzinfo) -> Encode:
    if column.tp == ColumnType.YEAR:
        return lambda raw: of_text(str(to_signed(as_integer(read(raw)))).encode())
    if column.tp == ColumnType.BIT:
        known, size = known_number(column), bit_bytes(column)
        return lambda raw: of_bytes(known(as_integer(read(raw))).to_bytes(size, "big"))
    return encoding_of(column, zone, ValueForms(of_signed, of_unsigned, of_double, of_bytes if _is_raw(column) else of_text))


def column_content(column: ColumnInfo) -> bytes:
    """A column's ``ColumnInfo``."""
    info = slave.ColumnInfo(
        name=column.name,
        mysql_type=mysql_type(column),
        is_primary_key=column.flag & ColumnFlag.PRI_KEY != 0,
        flen=_int32(column.flen),
        decimal=_int32(column.decimal),
    )
    return info.SerializeToString()


def _int32(value: int) -> int:
    """The low 32 bits: a LONGTEXT is 4294967295 long, which becomes -1."""
    return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def unique_keys(info: TableInfo) -> Iterator[slave.Key]:
    """A table's unique keys: an integer handle first, then its indexes in their order, of any state."""
    if info.pk_is_handle:
        yield slave.Key(name=_PRIMARY, column_names=[c.name for c in info.handle_columns()])
    for index in info.indexes:
        if (index.unique or index.primary) and not (info.pk_is_handle and index.name == _PRIMARY):
            yield slave.Key(name=index.name, column_names=[c.name for c in index.columns])
