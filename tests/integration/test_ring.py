"""Two databases that replicate each other: both sides equal, nothing comes back, and nothing moves when nobody writes.

What one commits, whoever sent it, is the binlog of an upstream that a drainer applies to the other. The databases are real MariaDBs, and what a
drainer reads is made of their row binlogs, so that its own SQL is what comes back: rows, checkpoints, markers, marks, lease. A ``Half`` is the real
applier and the real sink, a batch at a time; a ``DrainedHalf`` a whole Drainer behind a Pump. Not shown: what a TiDB writes that a MariaDB does not.
DDLs are not carried over: a table that an upstream lacks is made there when its first row comes.
"""

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.engine import late_record
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from tests.support.emulated_stream import EmulatedStream
from tests.support.eventually import eventually
from tests.support.pump_writes import CLUSTER, config_of
from tests.support.row_binlog import ROW_BINLOG, Change, Image, RowBinlog, Transaction
from tests.support.target_rows import run_sql

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
        pump = PumpServer(config_of(directory, 1, registry=self._service.url, fake_binlog_interval=1)).start()
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


pytestmark = [
    pytest.mark.usefixtures("no_history_lag"),
    pytest.mark.spark,
    pytest.mark.mysql,
    pytest.mark.grpc,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ITEM = Table("item", (Column("id", "bigint"), Column("v", "int"), Column("name", "varchar(20)")), ("id",))
PAIR = Table("pair", (Column("a", "int"), Column("b", "varchar(10)"), Column("v", "int")), ("a", "b"))
IN_PARTS: dict[str, Any] = {"atomic_rows": 25, "parts": 2}
BY_ROW: dict[str, Any] = {"net_change": False, "worker_count": 3, "txn_batch": 5}
LEASE = 1.0
SLOWLY = 0.1
"""Seconds between two transactions that two whole Drainers in one process keep up with."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PrivateMariaDB, PrivateMariaDB]]:
    with PrivateMariaDB(options=ROW_BINLOG) as a, PrivateMariaDB(options=ROW_BINLOG) as b:
        yield a, b


def empty(servers: tuple[PrivateMariaDB, PrivateMariaDB]) -> None:
    for server in servers:
        run_sql(server, *(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "retl", "tidb_binlog")))


@pytest.fixture
def halves(spark: SparkSession, servers: tuple[PrivateMariaDB, PrivateMariaDB]) -> Iterator[tuple[Half, Half]]:
    a, b = servers
    empty(servers)
    there, back = Half(spark, a, b, (ITEM, PAIR), **IN_PARTS), Half(spark, b, a, (ITEM, PAIR), **BY_ROW)
    with there.stream, back.stream:
        there.open()
        back.open()
        yield there, back


@pytest.fixture
def drained(
    spark: SparkSession, servers: tuple[PrivateMariaDB, PrivateMariaDB], tmp_path: Path
) -> Iterator[tuple[DrainedHalf, DrainedHalf]]:
    """The same two directions, each by a Drainer that runs, with a lease of a second."""
    a, b = servers
    empty(servers)
    for server in servers:
        run_sql(
            server,
            "CREATE DATABASE shop",
            "CREATE TABLE shop.item (id BIGINT PRIMARY KEY, v INT, name VARCHAR(20))",
            "CREATE TABLE shop.pair (a INT, b VARCHAR(10) COLLATE utf8mb4_nopad_bin, v INT, PRIMARY KEY (a, b))",
        )
    there = DrainedHalf(spark, a, b, (ITEM, PAIR), tmp_path / "there", lease_timeout=LEASE, **IN_PARTS)
    back = DrainedHalf(spark.newSession(), b, a, (ITEM, PAIR), tmp_path / "back", lease_timeout=LEASE, **BY_ROW)
    with there, back:
        yield there, back


class Writer:
    """Changes rows of one half of the keys, as two sides do that share their work."""

    def __init__(self, server: PrivateMariaDB, half: int, pause: float = 0.01) -> None:
        """``pause``: seconds between two transactions."""
        self._server, self._half, self._pause = server, half, pause
        self._random = random.Random(half)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with self._server.connect() as connection, connection.cursor() as cursor:
                while not self._stop.wait(self._pause):
                    cursor.execute("BEGIN")
                    for _ in range(self._random.choice((1, 3, 20))):
                        self._change(cursor)
                    cursor.execute("COMMIT")
        except BaseException as error:
            self.error = error

    def _change(self, cursor: Any) -> None:
        key, v = 2 * self._random.randrange(60) + self._half, self._random.randrange(100)
        kind = self._random.randrange(6)
        if kind == 0:
            cursor.execute("DELETE FROM shop.item WHERE id = %s", [key])
        elif kind == 1:
            cursor.execute("UPDATE IGNORE shop.item SET id = id + 2 WHERE id = %s", [key])
        elif kind == 2:
            cursor.execute("DELETE FROM shop.pair WHERE a = %s", [key])
        elif kind == 3:
            cursor.execute("REPLACE INTO shop.pair VALUES (%s, %s, %s)", [key, f"k{v % 3}", v])
        else:
            cursor.execute(
                f"INSERT INTO shop.item VALUES (%s, %s, 'n{v}') ON DUPLICATE KEY UPDATE v = VALUES(v), name = VALUES(name)", [key, v]
            )


def content(server: PrivateMariaDB) -> list[Any]:
    with server.connect() as connection, connection.cursor() as cursor:
        found: list[Any] = []
        for name in ("item", "pair"):
            cursor.execute(f"SELECT * FROM shop.{name} ORDER BY 1, 2")
            found.append(cursor.fetchall())
        return found


def shop_changes(transactions: list[Transaction], *, marked: bool) -> int:
    """Changed rows of ``shop`` in transactions with our mark, or without."""
    return sum(c.table.startswith("shop.") for t in transactions if is_marked(t) == marked for c in t.changes)


def assert_no_loop(there: Half | DrainedHalf, back: Half | DrainedHalf) -> None:
    for half, other in ((there, back), (back, there)):
        own = shop_changes(half.carried, marked=False)
        assert own > 50, "the writers wrote"
        assert 0 < half.rows_written <= 2 * own, "no more than what was written there by others than the drainer"
        assert 0 < shop_changes(other.carried, marked=True) <= 2 * own


def settled(drained: tuple[DrainedHalf, DrainedHalf], servers: tuple[PrivateMariaDB, PrivateMariaDB]) -> None:
    """Nobody writes any more: both sides are equal once everything is carried over."""
    for half in drained:
        half.settle()
    assert content(servers[0]) == content(servers[1])
    assert all(map(len, content(servers[0])))


def recorded(server: PrivateMariaDB) -> int:
    """The commit_ts of the record at this target."""
    ((text,),) = run_sql(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")
    return int(json.loads(text)["commitTS"])


def checkpoints(transactions: list[Transaction]) -> int:
    return sum(any(c.table == "tidb_binlog.checkpoint" for c in t.changes) for t in transactions)


@pytest.mark.shows("syncer.loopback-control", "syncer.channel-id")
def test_both_sides_are_equal_and_nothing_comes_back(halves: tuple[Half, Half], servers: tuple[PrivateMariaDB, PrivateMariaDB]) -> None:
    there, back = halves
    with Writer(servers[0], 0), Writer(servers[1], 1):
        until = time.monotonic() + 4
        while time.monotonic() < until:
            there.turn()
            back.turn()
    quiet = 0
    while quiet < 2:
        written = there.turn().rows_written + back.turn().rows_written
        quiet = 0 if written else quiet + 1
    assert content(servers[0]) == content(servers[1])
    assert all(map(len, content(servers[0])))
    assert_no_loop(there, back)
    changes = [c for t in there.carried + back.carried for c in t.changes if c.table.endswith("spark_state")]
    words = {word for c in changes for cell in c.new or () for word in str(cell).split()}
    assert {"delete", "write", "ours"} <= words, "one drainer applied in parts too"
    assert "lane" in words, "and the other row by row"


def idle(halves: tuple[Half, Half], seconds: float) -> None:
    """Nothing is applied on either side, and a Drainer that filters the checkpoint alone would have nothing to apply either."""
    there, back = halves
    for half in (there, back, there, back):
        half.turn()
    seen = [len(half.carried) for half in halves]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for half in halves:
            report = half.turn()
            assert (report.rows_written, report.row_events, report.findings) == (0, 0, ())
        time.sleep(0.2)
    for half, before in zip(halves, seen, strict=True):
        transactions = half.carried[before:]
        unfiltered = [c for t in transactions for c in t.changes if c.table != "tidb_binlog.checkpoint"]
        assert unfiltered, "without loopback-control there would be something to apply"
        assert [t for t in transactions if not is_marked(t)] == []
        assert 1 <= checkpoints(transactions) <= seconds / late_record.SECONDS + 1


@pytest.mark.shows("mark table")
def test_an_idle_ring_stands_still(halves: tuple[Half, Half], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_record, "SECONDS", 1.0)
    idle(halves, 2.5)


@pytest.mark.slow
def test_an_idle_ring_stands_still_for_a_minute(halves: tuple[Half, Half]) -> None:
    idle(halves, 60)


@pytest.mark.shows("syncer.channel-id")
def test_marks_of_another_channel_are_left_alone(halves: tuple[Half, Half], servers: tuple[PrivateMariaDB, PrivateMariaDB]) -> None:
    """Its transactions are replicated, its marks are not."""
    there, _ = halves
    there.turn()
    with servers[0].connect() as connection, connection.cursor() as cursor:
        for number, channel in ((1, CHANNEL + 1), (2, CHANNEL)):
            cursor.execute("BEGIN")
            cursor.execute(f"INSERT INTO {MARK_TABLE} VALUES ({number}, {channel}, 1, '')")
            cursor.execute(f"INSERT INTO shop.item VALUES ({number}, 1, 'x')")
            cursor.execute("COMMIT")
    there.turn()
    with servers[1].connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM shop.item")
        assert cursor.fetchall() == ((1,),)
        cursor.execute(f"SELECT COUNT(*) FROM {MARK_TABLE} WHERE id IN (1, 2)")
        assert cursor.fetchall() == ((0,),)


@pytest.mark.slow
def test_one_side_is_paused_for_longer_than_its_lease(
    drained: tuple[DrainedHalf, DrainedHalf], servers: tuple[PrivateMariaDB, PrivateMariaDB]
) -> None:
    """Whole Drainers: rows go on at both sides meanwhile. Then an idle one is paused, whose record is behind because nothing was to be applied."""
    there, back = drained
    with Writer(servers[0], 0, SLOWLY), Writer(servers[1], 1, SLOWLY):
        eventually(lambda: there.rows_written and back.rows_written, seconds=120, what="rows go both ways")
        back.control("pause-drainer", "paused")
        stands, wrote, missed = back.replication.commit_ts, there.rows_written, len(back.carried)
        time.sleep(3 * LEASE)  # as long as the pause is to be
        eventually(lambda: there.rows_written > wrote, seconds=120, what="the other side goes on")
        eventually(lambda: shop_changes(back.carried[missed:], marked=False) > 50, seconds=120, what="rows that are not carried over yet")
        assert back.replication.commit_ts == stands
        back.control("resume-drainer", "online")
        eventually(lambda: back.replication.commit_ts > stands, seconds=120, what="it goes on")
    settled(drained, servers)
    assert_no_loop(there, back)

    written, seen, begun = [half.rows_written for half in drained], [len(half.carried) for half in drained], time.monotonic()
    for half, before in zip(drained, seen, strict=True):
        eventually(
            lambda half=half, before=before: checkpoints(half.carried[before:]) > 1, seconds=120, what="an idle ring saves its records"
        )
    seconds = time.monotonic() - begun
    for half, before in zip(drained, seen, strict=True):
        transactions = half.carried[before:]
        assert [t for t in transactions if not is_marked(t)] == []
        assert checkpoints(transactions) <= seconds / 3 + 2
    assert [half.rows_written for half in drained] == written, "idle, nothing is applied"

    there.control("pause-drainer", "paused")
    stands = there.replication.commit_ts
    eventually(lambda: recorded(servers[1]) == stands, seconds=120, what="what was put off is saved, although no batch follows")
    carried = len(there.carried)
    with Writer(servers[0], 0, SLOWLY), Writer(servers[1], 1, SLOWLY):
        eventually(lambda: shop_changes(there.carried[carried:], marked=False) > 50, seconds=120, what="rows that are not carried over yet")
    assert there.replication.commit_ts == stands
    there.control("resume-drainer", "online")
    settled(drained, servers)
    assert_no_loop(there, back)
