"""One of three Pumps is dead for 4 GiB of the others' binlogs: the drainer waits within 3 GiB of JVM and Python, and then nothing differs.

``DEAD_MB`` (4096) is how much is written meanwhile, for a look at another amount; below some 300 nothing is read ahead, and it waits in vain.
"""

import hashlib
import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from tests.support.drainer_process import Drainer, drainer_of
from tests.support.memory_use import LIMIT_MIB, peak_mib
from tests.support.pump_writes import CLUSTER, config_of
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

MEGABYTES = int(os.environ.get("DEAD_MB", "4096"))
PENDING_MIB = MEGABYTES // 4
KEYS, VALUE = 64, 512 << 10
QUICK = PumpClientSettings(write_timeout=5.0, prewrite_pause=0.02, outcome_pause=0.1, probe_interval=0.5)
TABLE = Table("t", (Column("id", "bigint", not_null=True), Column("doc", "mediumblob")), ("id",))
WAIT = 1800.0


def test_four_gigabytes_while_a_pump_is_dead(fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    pumps = [PumpProcess(config_of(tmp_path, number, fake_binlog_interval=0.5)) for number in (1, 2, 3)]
    with pumps[0] as one, pumps[1] as two, pumps[2] as three:
        addresses = [pump.address for pump in (one, two, three)]
        with Upstream(PumpClient.fixed(addresses, CLUSTER, QUICK)) as upstream:
            upstream.ddl.create_database("d")
            upstream.ddl.create_table("d", TABLE)
            (tmp_path / "history.json").write_text(json.dumps(upstream.jobs()))
            handles = []
            for number in range(KEYS):
                txn = upstream.begin()
                handles.append(txn.insert("d.t", {"id": number, "doc": os.urandom(VALUE)}))
                txn.commit()
            more = {"spark.max-pending-bytes": PENDING_MIB << 20}
            with drainer_of(",".join(addresses), CLUSTER, "raw", fresh_mariadb, tmp_path, more) as drainer, peak_mib(drainer.pid) as peak:
                drainer.until(lambda: count(fresh_mariadb) == KEYS, seconds=WAIT, pause=0.5)
                killed_between_batches(three, drainer)
                for number in range((MEGABYTES << 20) // (2 * VALUE)):  # an update holds the old row too
                    txn = upstream.begin()
                    txn.update("d.t", handles[number % KEYS], {"doc": os.urandom(VALUE)})
                    txn.commit()
                upstream.flush()
                drainer.until(lambda: "pending bytes" in drainer.output()[-2000:], seconds=WAIT, pause=0.5)
                waited = peak[0]
                three.start()
                last = upstream.begin()
                last.insert("d.t", {"id": KEYS, "doc": b"last"})
                last.commit()
                upstream.flush()
                drainer.until(lambda: count(fresh_mariadb) == KEYS + 1, seconds=WAIT, pause=0.5)
            wanted = {row["id"]: hashlib.md5(row["doc"]).hexdigest() for row in upstream.rows("d.t").values()}
    assert dict(run_sql(fresh_mariadb, "SELECT id, MD5(doc) FROM d.t")) == wanted
    print(f"{MEGABYTES} MB beside a dead Pump: {waited:,.0f} MiB while waiting, {peak[0]:,.0f} MiB at most")
    assert peak[0] < LIMIT_MIB


def killed_between_batches(pump: PumpProcess, drainer: Drainer) -> None:
    """Kill it, and again when it was in a batch: that batch waits for it, and nothing of the others is read ahead."""
    for _ in range(20):
        pump.kill()
        time.sleep(6)
        if not waits_in_a_batch(drainer):
            return
        pump.start()
        drainer.until(lambda: not waits_in_a_batch(drainer), seconds=WAIT, pause=0.5)
    raise AssertionError("it was in a batch each time")


def waits_in_a_batch(drainer: Drainer) -> bool:
    """By its newest line of progress: a read waits for its Pump."""
    return drainer.output().rpartition('"stalled": ')[2].startswith('"read: Pump')


def count(target: PrivateMariaDB) -> int:
    """Rows of the table; -1 when it is not there."""
    with closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'd' AND table_name = 't'")
        if cursor.fetchone() == (0,):
            return -1
        cursor.execute("SELECT COUNT(*) FROM d.t")
        (found,) = cursor.fetchone()
        return int(found)
