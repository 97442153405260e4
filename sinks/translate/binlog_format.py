"""The contract of both formats of binlogs, and their input: whole transactions and DDLs become one message each.

Promises: pure. A message does not depend on how its transaction was cut into batches. The datums of a row event stay bytes, by column id: most values are
copied as they are, so nothing is decoded here (rows.md 3, 4 and 6). All columns that the row has are there, public or not, generated or not. Damaged bytes
raise nothing but ``Corruption``.
"""

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from pyspark_tidb_binlog.schemas.codec import decimal as mydecimal
from pyspark_tidb_binlog.schemas.codec.datum import FIXED_SIZE, Flag, as_integer, encode_uint, take_datum
from pyspark_tidb_binlog.schemas.codec.number import Cursor, decode_uvarint, encode_uvarint, to_signed, to_unsigned
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect, JobType, On
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, significant
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.row_layout import EMPTY_ROW, KeyPart, key_layout
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.schemas.wire import BYTES, VARINT, fields, key, varint

_SHOWN = 64
"""Bytes of a damaged row shown in the error."""
_COMMIT_TS = 2
"""Number of the field in the ``Binlog`` of both formats."""
_VARINTS = (Flag.VARINT, Flag.UVARINT)
_FIXED = (Flag.COMPARABLE_INT, Flag.COMPARABLE_UINT, Flag.FLOAT, Flag.DURATION)

Datums: TypeAlias = Mapping[int, bytes]
"""By column id: a datum, its flag first."""


@dataclass(frozen=True, slots=True)
class RowImages:
    """Both images of one row event; an image that the event does not have is empty."""

    old: Datums
    new: Datums


@dataclass(frozen=True, slots=True)
class HandleLayout:
    """The datums before the pairs of an insert row."""

    parts: tuple[KeyPart, ...]
    of_integer: int
    """Id of the column that is the integer handle; 0 = none is."""
    unsigned: bool
    """Whether that column is UNSIGNED: the handle holds it as signed."""

    @classmethod
    def of(cls, info: TableInfo) -> "HandleLayout":
        """Return the layout of a table's rows."""
        column = info.handle_columns()[0] if info.pk_is_handle else None
        return cls(key_layout(info).parts, column.id if column else 0, bool(column and column.unsigned))


@dataclass(frozen=True, slots=True)
class TableRun:
    """Row changes of one table that follow each other in a transaction: a mutation of its binlog."""

    table: TableAt
    version: int
    """Schema version of the rows."""
    changes: Sequence[tuple[int, bytes]]
    """(operation, row bytes), in execution order."""


class BinlogFormat(ABC):
    """One format; picklable."""

    def __init__(self, zone: datetime.tzinfo = datetime.UTC) -> None:
        """``zone``: that of TIMESTAMP values."""
        self._zone = zone
        self._tables: dict[tuple[object, ...], Any] = {}

    def __reduce__(self) -> tuple[object, ...]:
        """Without the compiled tables."""
        return type(self), (self._zone,)

    @abstractmethod
    def transaction(self, commit_ts: int, runs: Sequence[TableRun]) -> bytes:
        """Return the message of a transaction."""

    @abstractmethod
    def ddl(self, commit_ts: int, name: QualifiedName, query: str) -> bytes:
        """Return the message of a DDL; ``name``: what it names, the table may be empty; ``query``: as in its binlog."""

    @abstractmethod
    def _compiled(self, run: TableRun) -> Any:
        """Compile the table of a run for the schema version of its rows."""

    def _table(self, run: TableRun) -> Any:
        table = run.table
        key = table.table_id, table.version, table.dropping, table.schema, table.name, run.version
        if key not in self._tables:
            self._tables[key] = self._compiled(run)
        return self._tables[key]


class TableRows:
    """The rows of one table at one schema version, parsed: what both formats share."""

    def __init__(self, table: TableAt, version: int) -> None:
        self.table = table
        self._handle = HandleLayout.of(table.info)
        self.writable = tuple(c for c in table.info.columns if c.public and not c.generated)
        """The columns of an update: public ones that are not generated."""
        self._may_lack = table.can_append_default(version)

    def images(self, op: int, row: bytes) -> RowImages:
        """The images of a row event.

        Raises:
            Corruption: it does not parse, or is an update without a column that it must have.
        """
        try:
            images = images_of(self._handle, op, row)
            if op == Op.UPDATE:
                self._require_both(images.old, images.new)
        except Corruption as error:
            raise self.damaged(op, row, error) from error
        return images

    def damaged(self, op: int, row: bytes, error: Corruption) -> Corruption:
        """``error`` with the table and the row that it is about."""
        more = f"... ({len(row)} bytes)" if len(row) > _SHOWN else ""
        return Corruption(
            f"damaged {Op(op).name} row of table {self.table.schema}.{self.table.name} (id {self.table.table_id}, schema version "
            f"{self.table.version}): {error}; row = {row[:_SHOWN].hex()}{more}. Compare it with the transaction's binlogs on other Pumps, "
            "or skip it with ignore-txn-commit-ts"
        )

    def _require_both(self, old: Datums, new: Datums) -> None:
        for column in self.writable:
            if (column.id in old) != (column.id in new):
                raise Corruption(f"column {column.name} (id {column.id}) is in only one half of the update")
            if column.id not in old and not self._may_lack:
                raise Corruption(f"column {column.name} (id {column.id}) is missing in an update")


def by_table(changes: Iterable[tuple[int, int, int, bytes]], tables: Mapping[int, TableAt]) -> Iterator[TableRun]:
    """(table id, schema version, operation, row) of one transaction, in execution order, as runs."""
    for (table_id, version), run in groupby(changes, key=itemgetter(0, 1)):
        yield TableRun(tables[table_id], version, [(op, row) for _, _, op, row in run])


def name_of(job: Job, history: SchemaHistory) -> QualifiedName:
    """The name under which a real Drainer hands on a DDL: after RENAME the new one, of several tables the last one (ddl.md 4)."""
    own = job.db_info if job.db_info is not None and job.db_info.name else None
    database = own or history.schema_at(job.schema_id, job.version) or history.schema_at(job.schema_id, job.version - 1)
    schema = database.name if database is not None else job.schema_name
    if job.kind.on is On.DATABASE:
        return QualifiedName(schema, "")
    if job.kind.effect is JobEffect.DROPS:
        table = history.table_at(job.table_id, job.version - 1)
        return QualifiedName(schema, table.name if table else job.table_name)
    infos = job.multiple_table_infos if job.type == JobType.CREATE_TABLES else (job.table_info,)
    last = infos[-1] if infos else None
    return QualifiedName(schema, last.name if last else job.table_name)


def creates_database(query: str) -> bool:
    """Whether a DDL is a CREATE DATABASE."""
    tokens = significant(query)
    return len(tokens) > 2 and tokens[0].word == "CREATE" and tokens[1].word in ("DATABASE", "SCHEMA")


def commit_ts_of(payload: bytes) -> int:
    """The commit_ts of a message of either format, without parsing the rest."""
    for field in fields(payload, 0, len(payload)):
        if field.number == _COMMIT_TS and field.kind == VARINT:
            return to_signed(decode_uvarint(payload, field.value)[0])
    raise Corruption("a binlog without a commit_ts")


# The images of a row event.


def images_of(handle: HandleLayout, op: int, row: bytes) -> RowImages:
    """The images of a row event.

    Raises:
        Corruption: the row does not parse, or a column occurs more often than its kind of event allows.
    """
    try:
        if op == Op.INSERT:
            return RowImages({}, _inserted(handle, row))
        if op == Op.DELETE:
            return RowImages(_once(row, 0), {})
        return _updated(row)
    except IndexError:
        raise Corruption(f"the row ends within a value, after {len(row)} bytes") from None


def _inserted(handle: HandleLayout, row: bytes) -> Datums:
    at = 0
    firsts: list[tuple[KeyPart, bytes]] = []
    for part in handle.parts:
        end = _after_datum(row, at)
        firsts.append((part, row[at:end]))
        at = end
    datums = _once(row, at)
    if handle.of_integer:
        raw = firsts[0][1]
        datums[handle.of_integer] = encode_uint(to_unsigned(as_integer(take_datum(Cursor(raw))))) if handle.unsigned else raw
    else:
        for part, raw in firsts:
            if part.whole:
                datums.setdefault(part.id, raw)
    return datums


def _once(row: bytes, at: int) -> dict[int, bytes]:
    """The datums of one image that fills the row from ``at`` on."""
    datums: dict[int, bytes] = {}
    if row[at:] == EMPTY_ROW:
        return datums
    end = len(row)
    while at < end:
        column_id, at = _column_id(row, at)
        begin, at = at, _after_datum(row, at)
        if column_id in datums:
            raise Corruption(f"column id {column_id} occurs twice in the row")
        datums[column_id] = row[begin:at]
    return datums


def _updated(row: bytes) -> RowImages:
    """The halves have no separator: a column's second datum is its new value."""
    old: dict[int, bytes] = {}
    new: dict[int, bytes] = {}
    at, end = 0, len(row)
    while at < end:
        column_id, at = _column_id(row, at)
        begin, at = at, _after_datum(row, at)
        half = new if column_id in old else old
        if column_id in half:
            raise Corruption(f"column id {column_id} occurs three times in the row")
        half[column_id] = row[begin:at]
    return RowImages(old, new)


def _column_id(row: bytes, at: int) -> tuple[int, int]:
    if row[at] != Flag.VARINT:
        raise Corruption(f"a column id with flag {row[at]:#04x} at byte {at}")
    second = row[at + 1]
    if second < 0x80:
        return second >> 1 ^ -(second & 1), at + 2
    value, at = decode_uvarint(row, at + 1)
    return value >> 1 ^ -(value & 1), at


def _after_datum(row: bytes, at: int) -> int:
    """The offset after the datum at ``at``."""
    flag = row[at]
    if flag in _VARINTS:
        at += 1
        while row[at] >= 0x80:
            at += 1
        return at + 1
    if flag == Flag.NULL:
        return at + 1
    if flag == Flag.BYTES:
        length, begin = decode_uvarint(row, at + 1)
        end = begin + (length >> 1)
        if length & 1:
            raise Corruption(f"a string of negative length at byte {at}")
    elif flag in _FIXED:
        end = at + 1 + FIXED_SIZE
    elif flag == Flag.DECIMAL:
        end = at + 1 + mydecimal.HEADER + mydecimal.size_of(row[at + 1], row[at + 2])
    else:
        cursor = Cursor(row[at:])
        take_datum(cursor)
        end = at + cursor.pos
    if end > len(row):
        raise Corruption(f"a value of {end - at} bytes at byte {at} of {len(row)}")
    return end


# Protobuf by hand: a message object per column would cost more than all the rest.


def text_field(number: int, content: bytes) -> bytes:
    """A field of bytes, a string or a message."""
    return key(number, BYTES) + encode_uvarint(len(content)) + content


def int_field(number: int, value: int) -> bytes:
    """A field of an integer, a bool or an enum."""
    return key(number, VARINT) + varint(value)
