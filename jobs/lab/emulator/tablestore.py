"""The current content of the embedded upstream: databases, tables with all their versions, rows by handle.

Promises: no IO. Not thread-safe by itself: ``Upstream`` holds its lock around every call. A row is a mapping column id -> value in the
form of ``jobs.lab.emulator.row_encoder``; a column that a row lacks has its origin default.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pyspark_tidb_binlog.jobs.lab.emulator import schema
from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import RowEncoder
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Json
from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo

Row = Mapping[int, Any]
Handle = Hashable
"""The integer key, the tuple of a clustered key's values, or ``_tidb_rowid``."""
Conversions = dict[int, tuple[int, Callable[[Any], Any]]]
"""The columns that a MODIFY COLUMN fills: id -> the id of the source column, and the conversion."""


class WriteConflict(ReplicationError):
    """Another transaction has locked the row, or the row is not as the caller expects: begin again."""


class TableVersion:
    """A table as the sessions from one schema version on see it. What depends on the version alone is decided once, not for each row."""

    def __init__(self, since: int, info: TableInfo, conversions: Conversions) -> None:
        """``info``, from the schema version ``since`` on."""
        self.since, self.info = since, info
        self.encoder = RowEncoder(info)
        self.keyed = info.pk_is_handle or info.is_common_handle
        """Whether the handle is made of the row's values."""
        self._handle = tuple(c.id for c in info.handle_columns())
        self._ids = {c.name: c.id for c in info.columns if c.public}
        writable = [c for c in info.columns if c.state in schema.WRITABLE and not c.generated]
        self._unset = {c.id: schema.default_of(c) if c.public else schema.origin_of(c) for c in writable}
        making = [c.id for c in info.columns if c.state in (schema.WRITE_ONLY, schema.WRITE_REORG) and c.id in conversions]
        self._making = tuple((column_id, *conversions[column_id]) for column_id in making)

    def row(self, values: Mapping[str, Any], old: Row | None = None) -> Row:
        """The row of an INSERT of ``values``, or that of an UPDATE of ``old``, with the values of a MODIFY COLUMN in progress."""
        try:
            row = {**(self._unset if old is None else old), **{self._ids[name]: value for name, value in values.items()}}
        except KeyError as error:
            raise WriteConflict(f"table {self.info.name} has no column {error.args[0]}") from None
        for new, source, convert in self._making:
            row[new] = convert(row[source])
        return row

    def handle_of(self, row: Row) -> Handle:
        """The handle of a row of a table with a clustered key."""
        return int(row[self._handle[0]]) if self.info.pk_is_handle else tuple([row[column_id] for column_id in self._handle])


@dataclass(slots=True)
class LiveTable:
    """One table with its rows."""

    id: int
    db: str
    info: Json = field(default_factory=dict)
    versions: list[TableVersion] = field(default_factory=list)
    """Ascending."""
    rows: dict[Handle, Row] = field(default_factory=dict)
    conversions: Conversions = field(default_factory=dict)
    """Columns that a MODIFY COLUMN fills."""
    _rowids: Iterator[int] = field(default_factory=lambda: count(1))
    _origins: dict[int, Any] = field(default_factory=dict)
    """Column id -> value in a row that lacks the column, for every column that any version of the table has or had."""

    @property
    def name(self) -> str:
        """The table's name."""
        return str(self.info["name"]["O"])

    def alter(self, info: Json, since: int) -> None:
        """Give the table its next info, which is that of the schema version ``since``."""
        version = TableVersion(since, schema.parsed(info), self.conversions)
        self.info = info
        self.versions.append(version)
        self._origins |= {c.id: schema.origin_of(c) for c in version.info.columns if c.id not in self._origins}

    def seen_at(self, version: int) -> TableVersion:
        """The table as a session at schema version ``version`` sees it."""
        for known in reversed(self.versions):
            if known.since <= version:
                return known
        raise WriteConflict(f"table {self.db}.{self.name} does not exist at schema version {version}")

    def at(self, version: int) -> TableInfo:
        """The info of the table that a session at schema version ``version`` sees."""
        return self.seen_at(version).info

    def completed(self, row: Row) -> dict[int, Any]:
        """``row`` with every column that any version of the table has or had."""
        return {**self._origins, **row}

    def backfill(self, column_id: int) -> None:
        """Fill the new column of a MODIFY COLUMN in every row."""
        old, convert = self.conversions[column_id]
        for handle, row in self.rows.items():
            self.rows[handle] = {**row, column_id: convert(self.completed(row)[old])}

    def new_rowid(self) -> int:
        """The handle of a row to insert into a table without a clustered key."""
        return next(self._rowids)


class TableStore:
    """All databases and tables at the newest schema version, and the counters for ids and versions."""

    def __init__(self) -> None:
        self.version = 1
        self._next_id = 100
        self.databases: dict[str, int] = {}
        self.tables: dict[int, LiveTable] = {}
        self._by_name: dict[str, LiveTable] = {}
        """Made of ``tables`` when a name is looked up first after a change, and each change takes a new version."""
        self.row_locks: dict[tuple[int, Handle], int] = {}
        """(table id, handle) -> start_ts of the transaction that holds the lock."""

    def new_id(self) -> int:
        """A fresh id for a job, database or table."""
        self._next_id += 1
        return self._next_id

    def new_version(self) -> int:
        """The next schema version."""
        self.version += 1
        self._by_name = {}
        return self.version

    def table(self, qualified: str) -> LiveTable:
        """The table that ``db.table`` names now."""
        if not self._by_name:
            self._by_name = {f"{table.db}.{table.name}": table for table in self.tables.values()}
        try:
            return self._by_name[qualified]
        except KeyError:
            raise WriteConflict(f"there is no table {qualified}") from None

    def add_table(self, db: str, info: Json, version: int) -> LiveTable:
        """Make a table visible."""
        table = LiveTable(int(info["id"]), db)
        table.alter(info, version)
        self.tables[table.id] = table
        return table

    def lock_row(self, table_id: int, handle: Handle, start_ts: int) -> None:
        """Lock a row for a transaction."""
        owner = self.row_locks.setdefault((table_id, handle), start_ts)
        if owner != start_ts:
            raise WriteConflict(f"row {handle!r} of table {table_id} is locked by transaction {owner}")
