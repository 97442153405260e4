"""The tables of an embedded upstream on a server, where ``verify`` reads them: the upstream itself has no SQL port. [db]

Promises: the rows come from the upstream's own memory, not from its binlogs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_tidb_binlog.binlog_source.emulator.values import stored_value
from pyspark_tidb_binlog.binlog_source.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import UNSYNCED, PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

_ROWS = 200
"""Of one INSERT."""


class UpstreamTables(SnapshotSource):
    """A server whose tables are those of an upstream that writes no more: it shows them at each S from then on."""

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")


@contextmanager
def upstream_tables(workload: WorkloadProcess) -> Iterator[UpstreamTables]:
    """The tables of a workload that has ended, on a private MariaDB that ends with the block."""
    with PrivateMariaDB(options=UNSYNCED) as server:
        _fill(server.target(), workload)
        yield UpstreamTables(ShippedTarget.of(server.target(), Here))


def _fill(server: TargetConfig, workload: WorkloadProcess) -> None:
    """Write every table of the workload."""
    with connect(server, ApplyConfig()) as session:
        dialect = dialect_of(session, ApplyConfig())
        for name, info in workload.tables().items():
            database, _, table = name.partition(".")
            columns = info.target_columns()
            session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            session.execute(create_table(database, info, dialect).sql)
            places = f"({', '.join(['%s'] * len(columns))})"
            every = workload.rows(name)
            for begin in range(0, len(every), _ROWS):
                rows = every[begin : begin + _ROWS]
                cells = [stored_value(column, text) for row in rows for column, text in zip(columns, row, strict=True)]
                session.execute(f"INSERT INTO {table_name(database, table)} VALUES {', '.join([places] * len(rows))}", cells)
            session.commit()
