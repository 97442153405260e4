"""Two databases that replicate each other (``tests.support.ring``): both sides equal, nothing comes back, and nothing moves when nobody writes."""

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.ring import CHANNEL, MARK_TABLE, Half, is_marked
from tests.support.row_binlog import ROW_BINLOG, Transaction

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

ITEM = Table("item", (Column("id", "bigint"), Column("v", "int"), Column("name", "varchar(20)")), ("id",))
PAIR = Table("pair", (Column("a", "int"), Column("b", "varchar(10)"), Column("v", "int")), ("a", "b"))
IN_PARTS: dict[str, Any] = {"atomic_rows": 25, "parts": 2}
BY_ROW: dict[str, Any] = {"net_change": False, "worker_count": 3, "txn_batch": 5}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PrivateMariaDB, PrivateMariaDB]]:
    with PrivateMariaDB(options=ROW_BINLOG) as a, PrivateMariaDB(options=ROW_BINLOG) as b:
        yield a, b


@pytest.fixture
def halves(spark: SparkSession, servers: tuple[PrivateMariaDB, PrivateMariaDB]) -> Iterator[tuple[Half, Half]]:
    a, b = servers
    for server in servers:
        with server.connect() as connection, connection.cursor() as cursor:
            for name in ("shop", "retl", "tidb_binlog"):
                cursor.execute(f"DROP DATABASE IF EXISTS {name}")
    there, back = Half(spark, a, b, (ITEM, PAIR), **IN_PARTS), Half(spark, b, a, (ITEM, PAIR), **BY_ROW)
    with there.stream, back.stream:
        there.open()
        back.open()
        yield there, back


class Writer:
    """Changes rows of one half of the keys, as two sides do that share their work."""

    def __init__(self, server: PrivateMariaDB, half: int) -> None:
        self._server, self._half = server, half
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
                while not self._stop.wait(0.01):
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
    for half, other in ((there, back), (back, there)):
        own = shop_changes(half.carried, marked=False)
        assert own > 50, "the writers wrote"
        assert 0 < half.rows_written <= 2 * own, "no more than what was written there by others than the drainer"
        assert 0 < shop_changes(other.carried, marked=True) <= 2 * own
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
        saved = [t for t in transactions if any(c.table == "tidb_binlog.checkpoint" for c in t.changes)]
        assert 1 <= len(saved) <= seconds / 3 + 1


def test_an_idle_ring_stands_still(halves: tuple[Half, Half]) -> None:
    idle(halves, 7)


@pytest.mark.slow
def test_an_idle_ring_stands_still_for_a_minute(halves: tuple[Half, Half]) -> None:
    idle(halves, 60)


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
