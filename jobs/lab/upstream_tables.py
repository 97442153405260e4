"""The tables of an embedded or recorded upstream on a server, where ``verify`` reads them: the upstream itself has no SQL port. [db]

Promises: the rows come from the upstream's own memory, or from what was recorded of a TiDB, not from binlogs.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import CaseFacts
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.values import form_of, stored_value
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.jobs.lab.mariadb import UNSYNCED, PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import ROWID, SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

Cell: TypeAlias = str | bytes | int | None
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


@dataclass(frozen=True, slots=True)
class TableContent:
    """One table with its rows."""

    database: str
    info: TableInfo
    rows: Sequence[Sequence[Cell]]
    """Of the columns that statements name; behind them, if ``rowids``, the handle of a row that has no other."""
    rowids: bool = False
    """Whether the table shows ``_tidb_rowid``, as TiDB's does: mirrors have it."""


def contents_of(workload: WorkloadProcess, *, rowids: bool) -> Iterator[TableContent]:
    """The tables of a workload that has ended. ``rowids``: of ``TableContent``, for those without another handle."""
    for name, info in workload.tables().items():
        columns = info.target_columns()
        rows = [[*map(stored_value, columns, row), *row[len(columns) :]] for row in workload.rows(name, rowids=rowids)]
        yield TableContent(name.partition(".")[0], info, rows, rowids and not info.handle_columns())


def contents_recorded(case: CaseFacts) -> Iterator[TableContent]:
    """The tables of a recorded case as TiDB had them at its end, as far as they were recorded (``expected/*.tsv``, cells in hexadecimal digits)."""
    with gzip.open(case.history, "rt", encoding="utf-8") as file:
        history = SchemaHistory.of(JobReader().read(json.load(file)))
    for database, table in case.tables:
        file_of, at = case.directory / "expected" / f"{database}.{table}.tsv", history.find(database, table, history.newest_version)
        if at is not None and file_of.is_file():
            header, *lines = file_of.read_text(encoding="utf-8").split("\n")
            places = [(column, header.split("\t").index(column.name)) for column in at.info.target_columns()]
            rows = [[_recorded(column, cells[place]) for column, place in places] for cells in (line.split("\t") for line in lines if line)]
            yield TableContent(at.schema, replace(at.info, columns=tuple(map(_without_sequence, at.info.columns))), rows)


def _without_sequence(column: ColumnInfo) -> ColumnInfo:
    """A column without the default that a sequence gives: the sequences are not made."""
    return replace(column, default=None, default_is_expr=False) if column.default_is_expr and "nextval" in str(column.default) else column


def _recorded(column: ColumnInfo, cell: str) -> Cell:
    if cell == r"\N":
        return None
    raw = bytes.fromhex(cell)
    if column.tp == ColumnType.BIT:
        return int(raw)
    return raw if form_of(column) == "hex" else raw.decode()


@contextmanager
def upstream_tables(contents: Iterable[TableContent]) -> Iterator[UpstreamTables]:
    """These tables, on a private MariaDB that ends with the block."""
    with PrivateMariaDB(options=UNSYNCED) as server:
        _fill(server.target(), contents)
        yield UpstreamTables(ShippedTarget.of(server.target(), Here))


def _fill(server: TargetConfig, contents: Iterable[TableContent]) -> None:
    with connect(server, ApplyConfig()) as session:
        dialect = dialect_of(session, ApplyConfig())
        for content in contents:
            database, table = content.database, table_name(content.database, content.info.name)
            session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            session.execute(create_table(database, content.info, dialect).sql)
            names = [column.name for column in content.info.target_columns()]
            if content.rowids:
                names.append(ROWID)
                session.execute(f"ALTER TABLE {table} ADD COLUMN {ROWID} BIGINT NULL INVISIBLE")
            places = f"({', '.join(['%s'] * len(names))})"
            for begin in range(0, len(content.rows), _ROWS):
                rows = content.rows[begin : begin + _ROWS]
                into = f"INSERT INTO {table} ({', '.join(map(quote_name, names))}) VALUES {', '.join([places] * len(rows))}"
                session.execute(into, [*chain.from_iterable(rows)])
            session.commit()
