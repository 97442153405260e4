"""One transaction of a gigabyte goes through within 3 GiB of JVM and Python together, and soon after it the stream holds no more than it does beside
small ones; Pumps, upstream and target are not counted. It prints how long after it the next transaction is in the target (goal: at most 5 s).

``HUGE_MB`` (1024) is the transaction's size, for a look at another one.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from tests.support.drainer_process import drainer_of
from tests.support.eventually import eventually
from tests.support.memory_use import LIMIT_MIB, held_mib, peak_mib
from tests.support.pump_writes import CLUSTER, config_of

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

MEGABYTES = int(os.environ.get("HUGE_MB", "1024"))
ROWS = 10_000
SIZE = MEGABYTES * (1 << 20) // ROWS
FAKES = {"fake_binlog_interval": 0.5}
ID = Column("id", "bigint", not_null=True)
MANY = 200
HELD_MIB = 1024
"""What may be held once it is over: a JVM and the processes of Spark's Python workers take about half of it when they have done little."""
TABLES = {
    "clustered": Table("t", (ID, Column("doc", "mediumblob")), ("id",)),
    "nonclustered": Table("t", (ID, Column("doc", "mediumblob")), ("id",), clustered=False),
    "keyless": Table("t", (ID, Column("doc", "mediumblob"))),
}


@pytest.mark.shows("known wrong: memory")
@pytest.mark.parametrize("kind", list(TABLES))
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_a_gigabyte_in_one_transaction(delivery: str, kind: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    run(delivery, kind, [TABLES[kind]], fresh_mariadb, tmp_path)
    with closing(fresh_mariadb.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), SUM(LENGTH(doc)), SUM(ORD(doc) = id %% 251) FROM d.t WHERE id < %s", [ROWS])
        assert cursor.fetchone() == (ROWS, ROWS * (SIZE + 16), ROWS)
        cursor.execute("SELECT doc FROM d.t WHERE id = %s", [ROWS])
        assert cursor.fetchall() == ((b"then",),)


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_a_gigabyte_in_one_transaction_over_many_tables(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    tables = [Table(f"t{number}", (ID, Column("doc", "mediumblob")), ("id",)) for number in range(MANY)]
    run(delivery, f"{MANY} tables", tables, fresh_mariadb, tmp_path)
    with closing(fresh_mariadb.connect()) as connection, connection.cursor() as cursor:
        for number in range(MANY):
            cursor.execute(f"SELECT COUNT(*), SUM(LENGTH(doc)), SUM(ORD(doc) = id %% 251) FROM d.t{number} WHERE id < %s", [ROWS])
            assert cursor.fetchone() == (ROWS // MANY, ROWS // MANY * (SIZE + 16), ROWS // MANY), number
        cursor.execute("SELECT doc FROM d.t0 WHERE id = %s", [ROWS])
        assert cursor.fetchall() == ((b"then",),)


def run(delivery: str, what: str, tables: list[Table], target: PrivateMariaDB, tmp_path: Path) -> None:
    """One transaction of ``ROWS`` rows, dealt to the tables in turn, and two small ones after it."""
    with PumpProcess(config_of(tmp_path, 1, **FAKES)) as one, PumpProcess(config_of(tmp_path, 2, **FAKES)) as two:
        with Upstream(PumpClient.fixed([one.address, two.address], CLUSTER, PumpClientSettings(write_timeout=600))) as upstream:
            upstream.ddl.create_database("d")
            for table in tables:
                upstream.ddl.create_table("d", table)
            txn = upstream.begin()
            for n in range(ROWS):
                txn.insert(f"d.{tables[n % len(tables)].name}", {"id": n, "doc": bytes((n % 251,)) * 16 + os.urandom(SIZE)})
            huge_ts = txn.commit()
            small = upstream.begin()
            handle = small.insert(f"d.{tables[0].name}", {"id": ROWS, "doc": b"after"})
            small_ts = small.commit()
            last = upstream.begin()
            last.update(f"d.{tables[0].name}", handle, {"doc": b"then"})
            end_ts = last.commit()
            upstream.flush()
            (tmp_path / "history.json").write_text(json.dumps(upstream.jobs()))
        with reached(target, huge_ts, small_ts, end_ts) as at:
            peak, held, seconds = replicated(f"{one.address},{two.address}", lambda: end_ts in at, delivery, target, tmp_path)
    after = f"the next one {at[small_ts] - at[huge_ts]:.1f} s after it"
    print(f"{MEGABYTES} MB in one transaction, {delivery}, {what}: {seconds:.0f} s, {peak:,.0f} MiB, then {held:,.0f} MiB, {after}")
    assert peak < LIMIT_MIB


@contextmanager
def reached(target: PrivateMariaDB, *stamps: int) -> Iterator[dict[int, float]]:
    """When the target's checkpoint was first seen at each of these commit_ts, or later; in seconds of a monotonic clock."""
    found: dict[int, float] = {}
    done = threading.Event()

    def look() -> None:
        with closing(target.connect()) as connection, connection.cursor() as cursor:
            while not done.wait(0.1) and len(found) < len(stamps):
                connection.rollback()
                cursor.execute("SELECT 1 FROM information_schema.tables WHERE table_schema = 'tidb_binlog' AND table_name = 'checkpoint'")
                rows = ()
                if cursor.fetchall():
                    cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
                    rows = cursor.fetchall()
                now = time.monotonic()
                for (text,) in rows:
                    stands = json.loads(text)["commitTS"]
                    found.update({ts: now for ts in stamps if ts <= stands and ts not in found})

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        done.set()
        looking.join()


def replicated(pumps: str, done: Callable[[], bool], delivery: str, target: PrivateMariaDB, work_dir: Path) -> tuple[float, float, float]:
    """Run the drainer until ``done``; its peak memory in MiB, what it holds soon after, and the seconds until then."""
    begun = time.monotonic()
    with drainer_of(pumps, CLUSTER, delivery, target, work_dir, {}) as drainer:
        with peak_mib(drainer.pid) as peak:
            drainer.until(done, pause=0.1)
            seconds = time.monotonic() - begun
        eventually(lambda: sum(held_mib(drainer.pid)) < HELD_MIB, seconds=30, seen=lambda: held_mib(drainer.pid), pause=1)
        held = sum(held_mib(drainer.pid))
        drainer.signal(signal.SIGTERM)
        assert drainer.wait(120) == 0, drainer.output()
    return peak[0], held, seconds
