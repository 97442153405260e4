"""The current content of the embedded upstream: databases, tables with all their versions, rows by handle.

Promises: no IO. Not thread-safe by itself: ``Upstream`` holds its lock around every call. A row is a mapping column id -> value in the
form of ``schemas.codec.rowwriter``; a column that a row lacks has its origin default.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_tidb_binlog.binlog_source.emulator import schema
from pyspark_tidb_binlog.binlog_source.emulator.schema import Json
from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

Row = Mapping[int, Any]
Handle = Hashable
"""The integer key, the tuple of a clustered key's values, or ``_tidb_rowid``."""


class WriteConflict(ReplicationError):
    """Another transaction has locked the row, or the row is not as the caller expects: begin again."""


@dataclass(slots=True)
class LiveTable:
    """One table with its rows."""

    id: int
    db: str
    info: Json
    versions: list[tuple[int, TableInfo]]
    """Ascending (schema version, table info)."""
    rows: dict[Handle, Row] = field(default_factory=dict)
    next_rowid: int = 1
    conversions: dict[int, tuple[int, Callable[[Any], Any]]] = field(default_factory=dict)
    """Columns that a MODIFY COLUMN fills: id -> the id of the source column, and the conversion."""

    @property
    def name(self) -> str:
        """The table's name."""
        return str(self.info["name"]["O"])

    def at(self, version: int) -> TableInfo:
        """The table as a session at schema version ``version`` sees it."""
        known = [info for since, info in self.versions if since <= version]
        if not known:
            raise WriteConflict(f"table {self.db}.{self.name} does not exist at schema version {version}")
        return known[-1]

    def completed(self, row: Row) -> dict[int, Any]:
        """``row`` with every column that any version of the table has or had."""
        full: dict[int, Any] = {}
        for _, info in self.versions:
            full |= {column.id: schema.origin_of(column) for column in info.columns if column.id not in full}
        return full | dict(row)

    def converted(self, info: TableInfo, row: Row) -> dict[int, Any]:
        """``row`` with the values of a MODIFY COLUMN in progress, as a session that sees ``info`` writes it."""
        making = {
            c.id: self.conversions[c.id]
            for c in info.columns
            if c.id in self.conversions and c.state in (schema.WRITE_ONLY, schema.WRITE_REORG)
        }
        return {**row, **{new: convert(row[old]) for new, (old, convert) in making.items()}}

    def backfill(self, column_id: int) -> None:
        """Fill the new column of a MODIFY COLUMN in every row."""
        old, convert = self.conversions[column_id]
        for handle, row in self.rows.items():
            self.rows[handle] = {**row, column_id: convert(self.completed(row)[old])}

    def new_handle(self, info: TableInfo, row: Row) -> Handle:
        """The handle of a row to insert."""
        if info.pk_is_handle:
            return int(row[info.handle_columns()[0].id])
        if info.is_common_handle:
            return tuple(row[column.id] for column in info.handle_columns())
        self.next_rowid += 1
        return self.next_rowid - 1


class TableStore:
    """All databases and tables at the newest schema version, and the counters for ids and versions."""

    def __init__(self) -> None:
        self.version = 1
        self._next_id = 100
        self.databases: dict[str, int] = {}
        self.tables: dict[int, LiveTable] = {}
        self.row_locks: dict[tuple[int, Handle], int] = {}
        """(table id, handle) -> start_ts of the transaction that holds the lock."""

    def new_id(self) -> int:
        """A fresh id for a job, database or table."""
        self._next_id += 1
        return self._next_id

    def new_version(self) -> int:
        """The next schema version."""
        self.version += 1
        return self.version

    def table(self, qualified: str) -> LiveTable:
        """The table that ``db.table`` names now."""
        db, _, name = qualified.partition(".")
        for table in self.tables.values():
            if (table.db, table.name) == (db, name):
                return table
        raise WriteConflict(f"there is no table {qualified}")

    def add_table(self, db: str, info: Json, version: int) -> LiveTable:
        """Make a table visible."""
        table = LiveTable(int(info["id"]), db, info, [(version, schema.parsed(info))])
        self.tables[table.id] = table
        return table

    def alter(self, table: LiveTable, info: Json, version: int) -> None:
        """Give a table its next info."""
        table.info = info
        table.versions.append((version, schema.parsed(info)))

    def lock_row(self, table_id: int, handle: Handle, start_ts: int) -> None:
        """Lock a row for a transaction."""
        owner = self.row_locks.setdefault((table_id, handle), start_ts)
        if owner != start_ts:
            raise WriteConflict(f"row {handle!r} of table {table_id} is locked by transaction {owner}")


def column_of(info: TableInfo, name: str) -> ColumnInfo:
    """A public column by its name."""
    for column in info.columns:
        if column.name == name and column.public:
            return column
    raise WriteConflict(f"table {info.name} has no column {name}")
