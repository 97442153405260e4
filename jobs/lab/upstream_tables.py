"""The tables of an embedded upstream on a server, where ``verify`` reads them: the upstream itself has no SQL port. [db]

Promises: the rows come from the upstream's own memory, not from its binlogs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from pyspark_tidb_binlog.binlog_source.emulator.values import stored_value
from pyspark_tidb_binlog.binlog_source.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import UNSYNCED, PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import ROWID, SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

_ROWS = 200
"""Of one INSERT."""


class UpstreamTables(SnapshotSource):
    """A server whose tables are those of an upstream that writes no more: it shows them at each S from then on."""

    def columns(self, session: Session, table: TableAt) -> tuple[tuple[str, str], ...] | None:
        """See ``SnapshotSource``."""
        found = super().columns(session, table)
        return tuple(column for column in found if column[0] != ROWID) if found is not None else None

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")


@contextmanager
def upstream_tables(workload: WorkloadProcess, *, rowids: bool) -> Iterator[UpstreamTables]:
    """The tables of a workload that has ended, on a private MariaDB that ends with the block. ``rowids``: tables without another handle show
    ``_tidb_rowid``, as TiDB's do: mirrors have it.
    """
    with PrivateMariaDB(options=UNSYNCED) as server:
        _fill(server.target(), workload, rowids=rowids)
        yield UpstreamTables(ShippedTarget.of(server.target(), Here))


def _fill(server: TargetConfig, workload: WorkloadProcess, *, rowids: bool) -> None:
    """Write every table of the workload."""
    with connect(server, ApplyConfig()) as session:
        dialect = dialect_of(session, ApplyConfig())
        for name, info in workload.tables().items():
            database, _, table = name.partition(".")
            columns = info.target_columns()
            session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            session.execute(create_table(database, info, dialect).sql)
            names = [column.name for column in columns]
            if rowids and not info.handle_columns():
                names.append(ROWID)
                session.execute(f"ALTER TABLE {table_name(database, table)} ADD COLUMN {ROWID} BIGINT NULL INVISIBLE")
            into = f"INSERT INTO {table_name(database, table)} ({', '.join(map(quote_name, names))}) VALUES "
            places, every = f"({', '.join(['%s'] * len(names))})", workload.rows(name, rowids=rowids)
            for begin in range(0, len(every), _ROWS):
                rows = every[begin : begin + _ROWS]
                cells = [*chain.from_iterable(_stored(columns, row) for row in rows)]
                session.execute(into + ", ".join([places] * len(rows)), cells)
            session.commit()


def _stored(columns: Sequence[ColumnInfo], row: Sequence[str | None]) -> list[str | bytes | int | None]:
    """What an INSERT writes of a row, and of its handle behind the columns."""
    return [*map(stored_value, columns, row), *row[len(columns) :]]
