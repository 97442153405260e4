"""Tables as the target has them, for rows from a file that carries no table infos: a relay log, or a file sink's. [db]

    names and types of the file + the target's table (``structure``) -> TableAt

Promises: reads only; each table is read once, until ``forget``. A column that the target lacks, or computes itself, is left out. Rows are found by
the target's unique keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ColumnInfo, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.structure import Structures, TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.mysql.target_fit import without_transactions

_NO_SUCH_TABLE = 1146


@dataclass(frozen=True, slots=True)
class WrittenColumn:
    """A column as a file of binlogs describes it."""

    name: str
    tp: int
    """Code of its type."""
    binary: bool
    """Whether its charset is binary."""
    flen: int = -1
    decimal: int = -1


def table_there(schema: str, name: str, written: Iterable[WrittenColumn], there: TargetTable) -> TableAt:
    """The table with the columns that both the file and the target have, in the target's order, and the target's keys of these."""
    described = {c.name.lower(): c for c in written}
    columns = tuple(
        _column(described[found.name.lower()], found, place)
        for place, found in enumerate(c for c in there.columns if not c.generated and c.name.lower() in described)
    )
    offsets = {c.name.lower(): c.offset for c in columns}
    indexes = tuple(
        _index(number, key, offsets)
        for number, key in enumerate(there.unique_keys)
        if all(name.lower() in offsets for name, _ in key.columns)
    )
    info = TableInfo(
        id=0,
        name=name,
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
    return TableAt(0, schema, name, info, SchemaVersion(0), (), dropping=False)


def _column(told: WrittenColumn, there: TargetColumn, place: int) -> ColumnInfo:
    flag = (0 if there.nullable else ColumnFlag.NOT_NULL) | (ColumnFlag.UNSIGNED if there.unsigned else 0)
    return ColumnInfo(
        id=place + 1,
        name=there.name,
        offset=place,
        tp=told.tp,
        flag=int(flag),
        flen=told.flen,
        decimal=told.decimal,
        charset="binary" if told.binary else there.collation.partition("_")[0] or "utf8mb4",
        collate=there.collation or "binary",
        elems=there.words,
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


def _index(number: int, key: TargetKey, offsets: Mapping[str, int]) -> IndexInfo:
    columns = tuple(IndexColumn(name, offsets[name.lower()], length) for name, length in key.columns)
    return IndexInfo(number + 1, key.name, columns, unique=True, primary=key.primary, state=PUBLIC, invisible=False, comment="")


class FileTables:
    """The target's tables of which a file has rows."""

    def __init__(self, file: str, way_out: str) -> None:
        """Take for errors what the rows come from, and how a transaction is left out of it, with ``{commit_ts}`` in its place."""
        self._file = file
        self._way_out = way_out
        self._structures = Structures()

    def of(self, session: Target, schema: str, table: str, commit_ts: int) -> TargetTable:
        """A table, of which the transaction ``commit_ts`` has rows.

        Raises:
            ApplyError: the target has no such table, or one without transactions.
        """
        found = self._structures.of(session, [(schema, table)])
        if not found:
            raise ApplyError(
                f"{self._file} has rows of {schema}.{table} at commit_ts {commit_ts}, but the target has no such table. Create it as it was "
                f"at that time, or {self._way_out.format(commit_ts=commit_ts)}, and start again",
                _NO_SUCH_TABLE,
            )
        there = found[schema, table]
        if why := without_transactions(table_name(there.schema, there.name), there):
            raise ApplyError(
                f"{self._file} has rows of {schema}.{table} at commit_ts {commit_ts}, but the target's table cannot take them: {why}"
            )
        return there

    def forget(self) -> None:
        """A DDL was executed."""
        self._structures.forget()
