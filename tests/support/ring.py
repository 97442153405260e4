"""Two databases in a ring: what one commits, whoever sent it, is the binlog of an upstream that a drainer applies to the other.

Promises: the databases are real MariaDBs, and what a drainer reads is made of their row binlogs, so that its own SQL is what comes back: rows,
checkpoints, markers, marks, lease. The drainers are the real applier and the real sink, a batch at a time. Not shown: Pumps, the source, and what
a TiDB writes that a MariaDB does not. DDLs are not carried over: a table that an upstream lacks is made there when its first row comes.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from tests.support.emulated_stream import EmulatedStream
from tests.support.row_binlog import Change, Image, RowBinlog, Transaction

CHANNEL = 3
MARK_TABLE = "retl._drainer_repl_mark"


def is_marked(transaction: Transaction) -> bool:
    """The rule of a real Drainer's reading side (drainer.md 7): any change of the mark table with our channel."""
    marks = [change.new or change.old or () for change in transaction.changes if change.table.lower() == MARK_TABLE]
    return any(image[1] == CHANNEL for image in marks)


class Half:
    """One direction: from the database ``server`` by a drainer to ``to``."""

    def __init__(self, spark: SparkSession, server: PrivateMariaDB, to: PrivateMariaDB, tables: Sequence[Table], **more: Any) -> None:
        """``tables``: of the database ``shop``; they are made at ``to``. ``more``: settings of the drainer."""
        self._server, self._binlog = server, RowBinlog(server)
        settings: dict[str, Any] = {"loopback_control": True, "channel_id": CHANNEL, "on_finding": "stop", "history_lag": 0.0}
        apply = ApplyConfig(**(settings | more))
        self.stream = EmulatedStream(spark, DrainerConfig(target=to.target(), apply=apply))
        self._keys: dict[str, list[int]] = {}
        self._kinds: dict[str, list[Column]] = {}
        self._handles: dict[tuple[str, Image], Any] = {}
        self.carried: list[Transaction] = []
        """All that the database has committed."""
        ddl = self.stream.upstream.ddl
        ddl.create_database("shop")
        for table in tables:
            ddl.create_table("shop", table)
            self._know(f"shop.{table.name}", table)

    def open(self) -> None:
        """Make the tables; from then on a step in which nothing is applied may be put off, as in the real job."""
        self.stream.apply()
        self.stream.sink.defer(lambda recorded, upto: None)

    def carry(self) -> list[Transaction]:
        """Give what the database has committed since the last call to the upstream."""
        transactions = self._binlog.read()
        for transaction in transactions:
            for change in transaction.changes:
                self._make(change.table)
            txn = self.stream.upstream.begin()
            for change in transaction.changes:
                self._change(txn, change)
            txn.commit()
        self.carried += transactions
        return transactions

    def turn(self) -> BatchReport:
        """Carry, and apply as one batch."""
        self.carry()
        return self.stream.apply()

    @property
    def rows_written(self) -> int:
        """Row images that the drainer has written in all."""
        return sum(report.rows_written for report in self.stream.reports)

    def _know(self, name: str, table: Table) -> None:
        self._kinds[name] = list(table.columns)
        self._keys[name] = [i for i, column in enumerate(table.columns) if column.name in table.primary_key]

    def _make(self, name: str) -> None:
        if name in self._kinds:
            return
        schema, table_name = name.split(".")
        with self._server.connect() as connection, connection.cursor() as cursor:
            sql = "SELECT column_name, data_type, column_key FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
            cursor.execute(f"{sql} ORDER BY ordinal_position", (schema, table_name))
            found = list(cursor.fetchall())
        columns = tuple(Column(column, _kind(kind)) for column, kind, _ in found)
        table = Table(table_name, columns, tuple(column for column, _, key in found if key == "PRI"))
        upstream = self.stream.upstream
        if schema not in upstream.store.databases:
            upstream.ddl.create_database(schema)
        upstream.ddl.create_table(schema, table)
        self._know(name, table)

    def _change(self, txn: Any, change: Change) -> None:
        columns = self._kinds[change.table]
        values = {c.name: _value(c, cell) for c, cell in zip(columns, change.new or (), strict=False)}
        if change.old is None:
            handle = txn.insert(change.table, values)
        else:
            handle = self._handles.pop((change.table, self._key(change.table, change.old)))
            if change.new is None:
                txn.delete(change.table, handle)
                return
            handle = txn.update(change.table, handle, values)
        assert change.new is not None
        self._handles[change.table, self._key(change.table, change.new)] = handle

    def _key(self, table: str, image: Image) -> Image:
        return tuple(image[i] for i in self._keys[table])


def _kind(data_type: str) -> str:
    if data_type.endswith("int"):
        return "bigint"
    return "longtext" if data_type.endswith("text") else "varchar(255)"


def _value(column: Column, cell: int | str | None) -> int | str | None:
    return cell if cell is None or column.kind in ("int", "bigint") else str(cell)
