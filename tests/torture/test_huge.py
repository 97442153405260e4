"""One transaction of a gigabyte goes through within 3 GiB of JVM and Python together; Pumps, upstream and target are not counted.

``HUGE_MB`` (1024) is the transaction's size, for a look at another one.
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from binlog_source.emulator.process import PumpProcess
from binlog_source.emulator.schema import Column, Table
from binlog_source.emulator.upstream import Upstream
from binlog_source.pump_client.client import PumpClient
from binlog_source.pump_client.settings import PumpClientSettings
from conf.model import PumpConfig
from jobs.lab.mariadb import PrivateMariaDB
from tests.torture.arena import Drainer, command_of, environ_of

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

CLUSTER = 7
MEGABYTES = int(os.environ.get("HUGE_MB", "1024"))
LIMIT_MIB = 3072
ROWS = 10_000
ID = Column("id", "bigint", not_null=True)
TABLES = {
    "clustered": Table("t", (ID, Column("doc", "mediumblob")), ("id",)),
    "nonclustered": Table("t", (ID, Column("doc", "mediumblob")), ("id",), clustered=False),
    "keyless": Table("t", (ID, Column("doc", "mediumblob"))),
}


def pump_config(directory: Path, number: int) -> PumpConfig:
    return PumpConfig(
        node_id=f"pump-{number}",
        addr="127.0.0.1:0",
        data_dir=str(directory / f"pump-{number}"),
        cluster_id=CLUSTER,
        fake_binlog_interval=0.5,
        sync_log=False,
        stop_write_at_available_space="",
    )


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [each.pid for each in (process, *process.children(recursive=True))]
    return []


def pss_mib(pid: int) -> float:
    """Its share of memory, without what it only maps of files: pages that the system takes back whenever it likes."""
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) / 1024
    return found.get("Pss_Anon", 0.0) + found.get("Pss_Shmem", 0.0)


@contextmanager
def peak_mib(pid: int) -> Iterator[list[float]]:
    """The largest sum over a tree of processes, sampled; the list's only element."""
    peak, ended = [0.0], threading.Event()
    parts: dict[int, float] = {}

    def sample() -> None:
        nonlocal parts
        pause = 0.3
        while not ended.wait(pause):
            begun = time.monotonic()
            now = {each: pss_mib(each) for each in tree(pid)}
            pause = max(0.3, 9 * (time.monotonic() - begun))  # a process of gigabytes takes the kernel a while
            if sum(now.values()) > peak[0]:
                peak[0], parts = sum(now.values()), now

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        print(f"at the peak: {' + '.join(f'{mib:,.0f}' for mib in sorted(parts.values(), reverse=True))} MiB")


@pytest.mark.parametrize("kind", list(TABLES))
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_a_gigabyte_in_one_transaction(delivery: str, kind: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    size = MEGABYTES * (1 << 20) // ROWS
    with PumpProcess(pump_config(tmp_path, 1)) as one, PumpProcess(pump_config(tmp_path, 2)) as two:
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


def drainer_of(pumps: str, delivery: str, target: PrivateMariaDB, work_dir: Path, more: Mapping[str, object]) -> Drainer:
    """A drainer of these Pumps that reads from the beginning; ``more`` flags."""
    to = target.target()
    flags = {
        "source.pumps": pumps,
        "source.cluster-id": CLUSTER,
        "source.delivery": delivery,
        "source.starting-commit-ts": 0,
        "syncer.to.port": to.port,
        "syncer.to.socket": to.socket,
        "syncer.to.user": to.user,
        "ddl-history": work_dir / "history.json",
        "checkpoint-dir": work_dir / "spark",
        "delta-dir": work_dir / "delta",
    }
    return Drainer(command_of(flags | more), environ_of(target, work_dir / "job.log"), work_dir / "out.txt")


def replicated(pumps: str, end_ts: int, delivery: str, target: PrivateMariaDB, work_dir: Path) -> tuple[float, float]:
    """Run the drainer up to ``end_ts``; its peak memory in MiB, and seconds."""
    begun = time.monotonic()
    with drainer_of(pumps, delivery, target, work_dir, {"source.ending-commit-ts": end_ts}) as drainer, peak_mib(drainer.pid) as peak:
        assert drainer.wait() == 0, drainer.output()
    return peak[0], time.monotonic() - begun
