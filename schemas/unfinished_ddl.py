"""Whether a running DDL has already changed a table: TiDB's status port shows the change, but the DDL history does not yet. Pure.

Example: a multi-schema change adds column c. Rows have c as soon as TiDB makes c public. The job enters the history later, when no
transaction is open at an older schema version (metadata lock). In between, columns of an ADD or MODIFY are visible, and a unique key
that is being dropped is no longer checked. To write such rows to a target, the Drainer needs the job, and waits for it.

Promises: a table that only loses columns, or gets indexes, is not waited for: its rows fit the table before. The hidden column of an
expression index is ignored, because it is public while the index is still filled. A table that loses partitions is waited for: rows of
those ranges go to other partitions.
"""

from dataclasses import dataclass
from typing import Any, Self

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ColumnInfo, TableInfo

_MEANT = int(ColumnFlag.NOT_NULL | ColumnFlag.UNSIGNED)


@dataclass(frozen=True, slots=True)
class TableNow:
    """One table as a TiDB server knows it."""

    version: int
    """The schema version of the server; a table that is gone has none."""
    info: TableInfo | None
    """None: the server has no such table."""

    @classmethod
    def from_json(cls, json: Any) -> Self:
        """Read the answer of ``/db-table/ID``; ``Corruption`` when it is not one."""
        try:
            return cls(int(json["schema_version"]), TableInfo.from_json(json["table_info"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Corruption(f"the answer of TiDB's status port to /db-table cannot be read: {type(error).__name__} {error}") from error

    def is_ahead_of(self, known: TableInfo) -> bool:
        """Whether rows may be written that do not fit ``known``, the newest that the history shows of it."""
        if self.info is None:
            return False
        shown = {_meaning(column) for column in known.public_columns()}
        changed = any(_meaning(column) not in shown for column in self.info.public_columns() if not column.hidden)
        return changed or bool(_keys(known) - _keys(self.info)) or _partitions(self.info) < _partitions(known)


def _meaning(column: ColumnInfo) -> tuple[object, ...]:
    """The attributes that decide a column's values. Not its charset: a TiDB server may show another than is stored (old utf8 as utf8mb4)."""
    return column.id, column.name, column.tp, column.flag & _MEANT, column.flen, column.decimal, column.elems


def _partitions(info: TableInfo) -> frozenset[int]:
    return frozenset(partition.id for partition in info.partitions)


def _keys(info: TableInfo) -> frozenset[int]:
    """The ids of the unique indexes that are checked for every row."""
    return frozenset(index.id for index in info.indexes if index.unique and index.state == PUBLIC)
