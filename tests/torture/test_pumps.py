"""Twenty Pump deaths, pauses, joins, leaves and returns under a workload with faults, while the drainer runs: no table differs at the end.

``TIDB_BINLOG_TORTURE_SEED`` names another run: other events, other transactions.
"""

import logging
import os
import random
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.demo import catch_up
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.small_cluster import settings_for
from pyspark_tidb_binlog.jobs.lab.target_use import DEMO_CLUSTER
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from tests.support.pump_herd import Happened, Herd, Kind, draw
from tests.support.workload_copy import compared

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

SEED = int(os.environ.get("TIDB_BINLOG_TORTURE_SEED", "1"))
EVENTS = 20
LONGEST_GAP, LONGEST_AWAY = 7.0, 3.0
WRITE_TIMEOUT = 1.0
"""So that a frozen Pump's Prewrites come to another one too."""
RATE = 300.0
LONGEST_SILENCE = 10.0
"""Seconds. Each Prewrite may have to wait for the timeout of several Pumps."""


class Pulse(threading.Thread):
    """Looks how many transactions there are, all the time."""

    def __init__(self, workload: WorkloadProcess) -> None:
        super().__init__(name="pulse")
        self._workload = workload
        self._ended = threading.Event()
        self.longest_silence = 0.0
        """Seconds without a transaction."""

    def run(self) -> None:
        """Look until ``end``."""
        known, since = -1, time.monotonic()
        while not self._ended.wait(0.2):
            seen, now = self._workload.status().transactions, time.monotonic()
            if seen != known:
                known, since = seen, now
            self.longest_silence = max(self.longest_silence, now - since)

    def __enter__(self) -> "Pulse":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_pumps_come_and_go_under_load(
    delivery: str, fresh_mariadb: PrivateMariaDB, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pyspark_tidb_binlog.binlog_source.drainer.node")
    events = draw(random.Random(f"{SEED}/{delivery}"), EVENTS, LONGEST_GAP, LONGEST_AWAY)
    config = WorkloadConfig(SEED, RATE, write_timeout=WRITE_TIMEOUT)
    with (
        WorkloadProcess(tmp_path / "upstream", DEMO_CLUSTER, config, module="tests.support.faulty_workload") as workload,
        Herd(tmp_path / "pumps", workload.url, DEMO_CLUSTER) as herd,
    ):
        assert isinstance(workload, WorkloadProcess)
        settings = settings_for(
            workload,
            DrainerConfig(apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery=delivery)),
            fresh_mariadb.target(),
            tmp_path,
        )
        opened = workload.open(len(herd.addresses))
        with Replication(spark, settings) as replication:
            catch_up(replication, opened.upto_ts)
            workload.begin()

            def tell(happened: Happened) -> None:
                replication.check()
                print(f"{happened}; {workload.status().transactions:,} transactions, {len(herd.addresses)} Pumps serve", flush=True)

            with Pulse(workload) as pulse:
                counts = herd.play(events, tell)
            client, ended = workload.client(), workload.end()
            assert not ended.failure
            catch_up(replication, ended.upto_ts)
        outcomes = compared(workload, fresh_mariadb.target())
    happened = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    print(
        f"seed {SEED}, {delivery}: {ended.transactions:,} transactions, {ended.ddls} DDLs, at most {pulse.longest_silence:.1f} s without; "
        f"{happened}; {client}"
    )
    assert {outcome.name: outcome.difference for outcome in outcomes if outcome.difference} == {}
    assert len(outcomes) >= 7 and sum(outcome.rows for outcome in outcomes) > 100
    assert min(counts[kind] for kind in Kind) >= 2 and counts.total() == EVENTS
    assert pulse.longest_silence < LONGEST_SILENCE and ended.transactions > 1000, "transactions were written throughout"
    assert client.failovers > 0 and client.prewrites > ended.transactions
    notified = [record for record in caplog.records if record.getMessage().startswith("notified")]
    assert len(notified) >= counts[Kind.JOIN] + counts[Kind.RETURN], "every Pump that nobody read from told the drainer first"
