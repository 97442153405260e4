"""The contract of both formats of binlogs, and their input: whole transactions and DDLs become one message each.

Promises: pure. A message does not depend on how its transaction was cut into batches.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark_tidb_binlog.schemas.codec.number import decode_uvarint, encode_uvarint, to_signed
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect, JobType, On
from pyspark_tidb_binlog.schemas.ddl_tokens import significant
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from pyspark_tidb_binlog.schemas.wire import BYTES, VARINT, fields, key, varint
from pyspark_tidb_binlog.sinks.translate.raw_datums import Datums, HandleLayout, RowImages, images_of

_SHOWN = 64
"""Bytes of a damaged row shown in the error."""
_COMMIT_TS = 2
"""Number of the field in the ``Binlog`` of both formats."""


@dataclass(frozen=True, slots=True)
class TableRun:
    """Row changes of one table that follow each other in a transaction: a mutation of its binlog."""

    table: TableAt
    version: int
    """Schema version of the rows."""
    changes: Sequence[tuple[int, bytes]]
    """(operation, row bytes), in execution order."""


@dataclass(frozen=True, slots=True)
class DdlName:
    """The database and table that a DDL binlog names; the table may be empty."""

    schema: str
    table: str


class BinlogFormat(Protocol):
    """One format; picklable."""

    def transaction(self, commit_ts: int, runs: Sequence[TableRun]) -> bytes:
        """The message of a transaction."""

    def ddl(self, commit_ts: int, name: DdlName, query: str) -> bytes:
        """The message of a DDL; ``query`` as in its binlog."""


class TableRows:
    """The rows of one table at one schema version, parsed: what both formats share."""

    def __init__(self, table: TableAt, version: int) -> None:
        self.table = table
        self._handle = HandleLayout.of(table.info)
        self._writable = tuple(c for c in table.info.columns if c.public and not c.generated)
        self._may_lack = table.can_append_default(version)

    @property
    def writable(self) -> tuple[ColumnInfo, ...]:
        """The columns of an update: public ones that are not generated."""
        return self._writable

    def images(self, op: int, row: bytes) -> RowImages:
        """The images of a row event.

        Raises:
            Corruption: it does not parse, or is an update without a column that it must have.
        """
        try:
            found = images_of(self._handle, op, row)
            if op == Op.UPDATE:
                self._require_both(found.old, found.new)
        except Corruption as error:
            raise self.damaged(op, row, error) from error
        return found

    def damaged(self, op: int, row: bytes, error: Corruption) -> Corruption:
        """``error`` with the table and the row that it is about."""
        more = f"... ({len(row)} bytes)" if len(row) > _SHOWN else ""
        return Corruption(
            f"damaged {Op(op).name} row of table {self.table.schema}.{self.table.name} (id {self.table.table_id}, schema version "
            f"{self.table.version}): {error}; row = {row[:_SHOWN].hex()}{more}. Compare it with the transaction's binlogs on other Pumps, "
            "or skip it with ignore-txn-commit-ts"
        )

    def _require_both(self, old: Datums, new: Datums) -> None:
        for column in self._writable:
            if (column.id in old) != (column.id in new):
                raise Corruption(f"column {column.name} (id {column.id}) is in only one half of the update")
            if column.id not in old and not self._may_lack:
                raise Corruption(f"column {column.name} (id {column.id}) is missing in an update")


@dataclass(frozen=True, slots=True)
class TableKey:
    """What the compiled form of a table depends on."""

    table_id: int
    version: int
    dropping: bool
    schema: str
    name: str
    row_version: int

    @classmethod
    def of(cls, run: TableRun) -> "TableKey":
        """That of a run's table."""
        table = run.table
        return cls(table.table_id, table.version, table.dropping, table.schema, table.name, run.version)


def by_table(changes: Iterable[tuple[int, int, int, bytes]], tables: Mapping[int, TableAt]) -> Iterator[TableRun]:
    """(table id, schema version, operation, row) of one transaction, in execution order, as runs."""
    at: tuple[int, int] | None = None
    held: list[tuple[int, bytes]] = []
    for table_id, version, op, row in changes:
        if at is not None and at != (table_id, version):
            yield TableRun(tables[at[0]], at[1], held)
            held = []
        at = table_id, version
        held.append((op, row))
    if at is not None:
        yield TableRun(tables[at[0]], at[1], held)


def name_of(job: Job, history: SchemaHistory) -> DdlName:
    """The name under which a real Drainer hands on a DDL: after RENAME the new one, of several tables the last one (ddl.md 4)."""
    if job.kind.on is On.DATABASE:
        return DdlName(_schema_of(job, history), "")
    if job.kind.effect is JobEffect.DROPS:
        table = history.table_at(job.table_id, job.version - 1)
        return DdlName(_schema_of(job, history), table.name if table else job.table_name)
    infos = job.multiple_table_infos if job.type == JobType.CREATE_TABLES else (job.table_info,)
    last = infos[-1] if infos else None
    return DdlName(_schema_of(job, history), last.name if last else job.table_name)


def _schema_of(job: Job, history: SchemaHistory) -> str:
    if job.db_info is not None and job.db_info.name:
        return job.db_info.name
    found = history.schema_at(job.schema_id, job.version) or history.schema_at(job.schema_id, job.version - 1)
    return found.name if found else job.schema_name


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


# Protobuf by hand: a message object per column would cost more than all the rest.


def text_field(number: int, content: bytes) -> bytes:
    """A field of bytes, a string or a message."""
    return key(number, BYTES) + encode_uvarint(len(content)) + content


def int_field(number: int, value: int) -> bytes:
    """A field of an integer, a bool or an enum."""
    return key(number, VARINT) + varint(value)
