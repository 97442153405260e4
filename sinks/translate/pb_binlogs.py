"""Binlogs as the file sink writes them and Reparo reads them: ``pb_binlog.Binlog`` (wire.md 2.5).

    INSERT   all columns, public or not; a column that the row lacks has its default, or the zero value
    UPDATE   the public columns that are not generated: ``value`` is the old value, ``changed_value`` the new value
    DELETE   the columns that the row has

Promises: pure; byte for byte what a real Drainer writes, except for the values that ``column_values`` names. TIMESTAMP in ``zone``.
"""

import datetime
from collections.abc import Sequence

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.codec.datum import NULL, Flag, encode_bytes, encode_float, encode_int, encode_uint
from pyspark_tidb_binlog.schemas.codec.number import encode_uvarint
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, quote_name
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.schemas.wire import BYTES, key
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, TableRows, TableRun, creates_database, int_field, text_field
from pyspark_tidb_binlog.sinks.translate.column_values import TEXTS, ColumnForm, RawDefault, ValueForms, encoding_of, mysql_type

_FORMS = ValueForms(encode_int, encode_uint, encode_float, encode_bytes)
_AS_IT_IS = {CellKind.INT: Flag.VARINT, CellKind.UINT: Flag.UVARINT, CellKind.BYTES: Flag.BYTES}
"""The datums of rows that are those of the format."""
_EVENTS = {Op.INSERT: pb.Insert, Op.UPDATE: pb.Update, Op.DELETE: pb.Delete}
_VALUE, _CHANGED = key(4, BYTES), key(5, BYTES)
_ROW, _EVENT = key(4, BYTES), key(1, BYTES)


class PbBinlogs(BinlogFormat):
    """The format of the file sink."""

    def transaction(self, commit_ts: int, runs: Sequence[TableRun]) -> bytes:
        """The message of a transaction, with an event per row change."""
        events: list[bytes] = []
        for run in runs:
            table: PbTable = self._table(run)
            for op, row in run.changes:
                event = table.event(op, row)
                events += (_EVENT, encode_uvarint(len(event)), event)
        return int_field(1, pb.DML) + int_field(2, commit_ts) + text_field(3, b"".join(events))

    def ddl(self, commit_ts: int, name: QualifiedName, query: str) -> bytes:
        """The message of a DDL: its text, preceded by the choice of its database."""
        if name.schema:
            query = f"{query};" if creates_database(query) else f"use {quote_name(name.schema)}; {query};"
        return int_field(1, pb.DDL) + int_field(2, commit_ts) + text_field(4, query.encode(errors="surrogateescape"))

    def _compiled(self, run: TableRun) -> "PbTable":
        return PbTable(run, self._zone)


class PbTable:
    """The events of one table at one schema version."""

    def __init__(self, run: TableRun, zone: datetime.tzinfo) -> None:
        table = run.table
        self._rows = TableRows(table, run.version)
        at_row = table.default_info(run.version)
        self._all = tuple(PbColumn(c, at_row, zone) for c in table.info.columns)
        writable = {c.id for c in self._rows.writable}
        self._writable = tuple(c for c in self._all if c.id in writable)
        named = text_field(1, table.schema.encode()) + text_field(2, table.name.encode())
        self._heads = {op: named + int_field(3, event) for op, event in _EVENTS.items()}

    def event(self, op: int, row: bytes) -> bytes:
        """One row change."""
        images = self._rows.images(op, row)
        parts = [self._heads[Op(op)]]
        try:
            if op == Op.INSERT:
                columns = [c.whole(c.value(images.new)) for c in self._all]
            elif op == Op.UPDATE:
                columns = [c.changed(c.value(images.old), c.value(images.new)) for c in self._writable]
            else:
                columns = [c.whole(c.value(images.old)) for c in self._all if c.id in images.old]
        except Corruption as error:
            raise self._rows.damaged(op, row, error) from error
        for column in columns:
            parts += (_ROW, encode_uvarint(len(column)), column)
        return b"".join(parts)


class PbColumn(ColumnForm):
    """The values of one column, as datums."""

    null = NULL

    def __init__(self, column: ColumnInfo, at_row: TableInfo | None, zone: datetime.tzinfo) -> None:
        encode, same = encoding_of(column, zone, _FORMS), _AS_IT_IS.get(kind_of(column))
        super().__init__(column, at_row, zone, encode if same is None else lambda raw: raw if raw[0] == same else encode(raw))
        named = text_field(1, column.name.encode()) + text_field(2, bytes((column.tp,)))
        self._head = named + text_field(3, mysql_type(column).encode()) + _VALUE

    def whole(self, value: bytes) -> bytes:
        """The column of an insert or delete."""
        return b"".join((self._head, encode_uvarint(len(value)), value))

    def changed(self, old: bytes, new: bytes) -> bytes:
        """The column of an update."""
        return b"".join((self._head, encode_uvarint(len(old)), old, _CHANGED, encode_uvarint(len(new)), new))

    def _default(self, value: int | bytes | RawDefault) -> bytes:
        column, kind = self._column, kind_of(self._column)
        match value:
            case RawDefault(text, number):
                return encode_bytes(text) if number is None or kind in TEXTS else encode_float(number)
            case bytes():
                return encode_uint(int.from_bytes(value, "big")) if column.tp == ColumnType.BIT else encode_bytes(value)
            case _ if kind in (CellKind.FLOAT, CellKind.DOUBLE):
                return encode_float(float(value))
            case _:
                return encode_uint(value) if kind is CellKind.NUMBER or column.unsigned else encode_int(value)
