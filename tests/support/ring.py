"""Two databases in a ring: what one commits, whoever sent it, is the binlog of an upstream that a drainer applies to the other.

Promises: the databases are real MariaDBs, and what a drainer reads is made of their row binlogs, so that its own SQL is what comes back: rows,
checkpoints, markers, marks, lease. A ``Half`` is the real applier and the real sink, a batch at a time; a ``DrainedHalf`` a whole Drainer behind a
Pump. Not shown: what a TiDB writes that a MariaDB does not. DDLs are not carried over: a table that an upstream lacks is made there when its first
row comes.
"""

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.cluster_service import ClusterService
from pyspark_tidb_binlog.binlog_source.cluster.oracle import Oracle
from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table
from pyspark_tidb_binlog.binlog_source.emulator.upstream import Upstream
from pyspark_tidb_binlog.binlog_source.pump.server import EmbeddedPump
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from tests.support.emulated_stream import EmulatedStream
from tests.support.eventually import eventually
from tests.support.pump_writes import CLUSTER, config_of
from tests.support.row_binlog import Change, Image, RowBinlog, Transaction

CHANNEL = 3
MARK_TABLE = "retl._drainer_repl_mark"


def is_marked(transaction: Transaction) -> bool:
    """The rule of a real Drainer's reading side (drainer.md 7): any change of the mark table with our channel."""
    marks = [change.new or change.old or () for change in transaction.changes if change.table.lower() == MARK_TABLE]
    return any(image[1] == CHANNEL for image in marks)


class Carrier:
    """Gives what a database commits to an embedded upstream, transaction by transaction."""

    def __init__(self, server: PrivateMariaDB, upstream: Upstream, tables: Sequence[Table]) -> None:
        """``tables``: of the database ``shop``, which the upstream gets. What ``server`` has committed so far is not carried."""
        self._server, self._binlog, self._upstream = server, RowBinlog(server), upstream
        self._keys: dict[str, list[int]] = {}
        self._kinds: dict[str, list[Column]] = {}
        self._handles: dict[tuple[str, Image], Any] = {}
        self.carried: list[Transaction] = []
        """All that the database has committed."""
        upstream.ddl.create_database("shop")
        for table in tables:
            upstream.ddl.create_table("shop", table)
            self._know(f"shop.{table.name}", table)

    def carry(self) -> list[Transaction]:
        """Give what the database has committed since the last call to the upstream."""
        transactions = self._binlog.read()
        for transaction in transactions:
            for change in transaction.changes:
                self._make(change.table)
            txn = self._upstream.begin()
            for change in transaction.changes:
                self._change(txn, change)
            txn.commit()
        self.carried += transactions
        return transactions

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
        if schema not in self._upstream.store.databases:
            self._upstream.ddl.create_database(schema)
        self._upstream.ddl.create_table(schema, table)
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


class Half:
    """One direction: from the database ``server`` by a drainer to ``to``, a batch when the test says so."""

    def __init__(self, spark: SparkSession, server: PrivateMariaDB, to: PrivateMariaDB, tables: Sequence[Table], **more: Any) -> None:
        """``tables``: of the database ``shop``; they are made at ``to``. ``more``: settings of the drainer."""
        self.stream = EmulatedStream(spark, DrainerConfig(target=to.target(), apply=_settings(more)))
        self._carrier = Carrier(server, self.stream.upstream, tables)

    def open(self) -> None:
        """Make the tables; from then on a step in which nothing is applied may be put off, as in the real job."""
        self.stream.apply()
        self.stream.sink.defer(lambda recorded, upto: None)

    @property
    def carried(self) -> list[Transaction]:
        """All that the database has committed."""
        return self._carrier.carried

    def turn(self) -> BatchReport:
        """Carry, and apply as one batch."""
        self._carrier.carry()
        return self.stream.apply()

    @property
    def rows_written(self) -> int:
        """Row images that the drainer has written in all."""
        return sum(report.rows_written for report in self.stream.reports)


class DrainedHalf:
    """One direction by a whole Drainer, which runs by itself: registry, Pump, source, and the node that ``ctl`` speaks to."""

    def __init__(
        self, spark: SparkSession, server: PrivateMariaDB, to: PrivateMariaDB, tables: Sequence[Table], directory: Path, **more: Any
    ) -> None:
        """``spark``: a session of its own. ``tables``: of ``shop`` upstream; ``to`` has them already. ``more``: settings of the drainer."""
        self._closing = contextlib.ExitStack()
        self._oracle = Oracle()
        self._service = ClusterService(self._oracle, CLUSTER, history=lambda: self._upstream.jobs()).start()
        self._closing.callback(self._service.stop)
        pump = EmbeddedPump(config_of(directory, 1, registry=self._service.url, fake_binlog_interval=1)).start()
        self._closing.callback(pump.stop)
        begin = self._oracle.next()
        self._upstream = Upstream(PumpClient.fixed([pump.address], CLUSTER), oracle=self._oracle)
        self._closing.callback(self._upstream.close)
        self._carrier = Carrier(server, self._upstream, tables)
        config = DrainerConfig(
            source=SourceConfig(self._service.url, CLUSTER, starting_commit_ts=begin, tidb_status=self._service.url),
            target=to.target(),
            apply=_settings({"sync_ddl": False} | more),
            addr="127.0.0.1:0",
            checkpoint_dir=str(directory / "spark"),
            delta_dir=str(directory / "delta"),
        )
        self.replication = Replication(spark, config)
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        self._carrying = ThreadPoolExecutor(1, "carrier")

    def __enter__(self) -> Self:
        """Start; a thread carries from here on."""
        with contextlib.ExitStack() as opened:
            opened.push(self._closing)
            opened.enter_context(self.replication)
            opened.callback(self._carrying.shutdown)
            opened.callback(self._stop.set)
            self._carried = self._carrying.submit(self._carry_on)
            self._closing = opened.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    def control(self, command: str, state: str) -> None:
        """What an operator asks of the Drainer by ``ctl``; returns when it is in that state."""
        assert ctl.main([command, "-node-id", "drainer", "-registry", self._service.url]) == 0
        eventually(lambda: self.replication.progress().state == state, what=f"it is {state}", seen=self.replication.progress)

    def settle(self) -> None:
        """Everything that the database has committed until now is applied, or left out."""
        with self._one_at_a_time:
            self._carrier.carry()
        self._upstream.flush()
        upto = self._oracle.next()
        eventually(lambda: self.replication.reached(upto), seconds=120, what="it has everything", seen=self.replication.progress)

    @property
    def carried(self) -> list[Transaction]:
        """All that the database has committed."""
        if self._carried.done():
            self._carried.result()
        return self._carrier.carried

    @property
    def rows_written(self) -> int:
        """Row images that the drainer has written in all."""
        return sum(report.rows_written for report in self.replication.reports)

    def _carry_on(self) -> None:
        while not self._stop.wait(0.1):
            with self._one_at_a_time:
                self._carrier.carry()


def _settings(more: dict[str, Any]) -> ApplyConfig:
    settings: dict[str, Any] = {"loopback_control": True, "channel_id": CHANNEL, "on_finding": "stop"}
    return ApplyConfig(**(settings | more))


def _kind(data_type: str) -> str:
    if data_type.endswith("int"):
        return "bigint"
    return "longtext" if data_type.endswith("text") else "varchar(255)"


def _value(column: Column, cell: int | str | None) -> int | str | None:
    return cell if cell is None or column.kind in ("int", "bigint") else str(cell)
