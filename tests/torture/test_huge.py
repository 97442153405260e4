"""One transaction of a gigabyte goes through within 3 GiB of JVM and Python together; Pumps, upstream and target are not counted.

``HUGE_MB`` (1024) is the transaction's size, for a look at another one.
"""

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table
from pyspark_tidb_binlog.binlog_source.emulator.upstream import Upstream
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from tests.support.drainer_process import drainer_of
from tests.support.memory_use import LIMIT_MIB, peak_mib
from tests.support.pump_writes import CLUSTER, config_of

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

MEGABYTES = int(os.environ.get("HUGE_MB", "1024"))
ROWS = 10_000
FAKES = {"fake_binlog_interval": 0.5}
ID = Column("id", "bigint", not_null=True)
TABLES = {
    "clustered": Table("t", (ID, Column("doc", "mediumblob")), ("id",)),
    "nonclustered": Table("t", (ID, Column("doc", "mediumblob")), ("id",), clustered=False),
    "keyless": Table("t", (ID, Column("doc", "mediumblob"))),
}


@pytest.mark.parametrize("kind", list(TABLES))
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_a_gigabyte_in_one_transaction(delivery: str, kind: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    size = MEGABYTES * (1 << 20) // ROWS
    with PumpProcess(config_of(tmp_path, 1, **FAKES)) as one, PumpProcess(config_of(tmp_path, 2, **FAKES)) as two:
        with Upstream(PumpClient.fixed([one.address, two.address], CLUSTER, PumpClientSettings(write_timeout=600))) as upstream:
            upstream.ddl.create_database("d")
            upstream.ddl.create_table("d", TABLES[kind])
            txn = upstream.begin()
            for n in range(ROWS):
                txn.insert("d.t", {"id": n, "doc": bytes((n % 251,)) * 16 + os.urandom(size)})
            txn.commit()
            small = upstream.begin()
            handle = small.insert("d.t", {"id": ROWS, "doc": b"after"})
            small.commit()
            last = upstream.begin()
            last.update("d.t", handle, {"doc": b"then"})
            end_ts = last.commit()
            upstream.flush()
            (tmp_path / "history.json").write_text(json.dumps(upstream.jobs()))
        peak, seconds = replicated(f"{one.address},{two.address}", end_ts, delivery, fresh_mariadb, tmp_path)
    with closing(fresh_mariadb.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), SUM(LENGTH(doc)), SUM(ORD(doc) = id %% 251) FROM d.t WHERE id < %s", [ROWS])
        assert cursor.fetchone() == (ROWS, ROWS * (size + 16), ROWS)
        cursor.execute("SELECT doc FROM d.t WHERE id = %s", [ROWS])
        assert cursor.fetchall() == ((b"then",),)
    print(f"{MEGABYTES} MB in one transaction, {delivery}, {kind}: {seconds:.0f} s, {peak:,.0f} MiB")
    assert peak < LIMIT_MIB


def replicated(pumps: str, end_ts: int, delivery: str, target: PrivateMariaDB, work_dir: Path) -> tuple[float, float]:
    """Run the drainer up to ``end_ts``; its peak memory in MiB, and seconds."""
    begun = time.monotonic()
    with (
        drainer_of(pumps, CLUSTER, delivery, target, work_dir, {"spark.ending-commit-ts": end_ts}) as drainer,
        peak_mib(drainer.pid) as peak,
    ):
        assert drainer.wait() == 0, drainer.output()
    return peak[0], time.monotonic() - begun
