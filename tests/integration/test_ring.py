"""Two databases that replicate each other (``tests.support.ring``): both sides equal, nothing comes back, and nothing moves when nobody writes."""

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.engine import late_record
from tests.support.eventually import eventually
from tests.support.ring import CHANNEL, MARK_TABLE, DrainedHalf, Half, is_marked
from tests.support.row_binlog import ROW_BINLOG, Transaction

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
        with server.connect() as connection, connection.cursor() as cursor:
            for name in ("shop", "retl", "tidb_binlog"):
                cursor.execute(f"DROP DATABASE IF EXISTS {name}")


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
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.item (id BIGINT PRIMARY KEY, v INT, name VARCHAR(20))")
            cursor.execute("CREATE TABLE shop.pair (a INT, b VARCHAR(10) COLLATE utf8mb4_nopad_bin, v INT, PRIMARY KEY (a, b))")
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
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        ((text,),) = cursor.fetchall()
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
    phases = {cell for t in there.carried + back.carried for c in t.changes if c.table.endswith("spark_progress") for cell in c.new or ()}
    lanes = any(c.table.endswith("spark_rows") for t in there.carried for c in t.changes)
    assert {"delete", "write", "atomic"} <= phases, "one drainer applied in parts too"
    assert lanes, "and the other row by row"


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
