"""A drainer that is stopped (SIGSTOP) longer than its lease allows, another one under another name that takes over, and the first one's waking."""

import signal
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

LEASE = "--spark.lease-timeout=3"
CUTS = {"atomic": Cut(step_bytes=1000, max_bytes=8_000), "parts": Cut(step_bytes=1000, max_bytes=8_000, atomic_rows=1, parts=4)}
"""``parts``: every batch is applied by the executors, whose Python processes SIGSTOP to the driver's group does not reach."""


@pytest.mark.parametrize("way", CUTS)
def test_a_stopped_drainer_is_succeeded_and_does_nothing_more(way: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / "bank"), fresh_mariadb, tmp_path, "sorted", CUTS[way]) as arena:
        arena.write()
        other = [LEASE, "--node-id=other", f"--checkpoint-dir={tmp_path / 'spark2'}", f"--delta-dir={tmp_path / 'delta2'}"]
        with arena.drainer(flags=[LEASE, "--node-id=first"]) as first:
            first.until(lambda: arena.moved(""))
            first.signal(signal.SIGSTOP)
            with arena.drainer(flags=other) as second:
                assert second.wait() == 0, second.output()
            arena.assert_equal()
            first.signal(signal.SIGCONT)
            assert first.wait() == EXIT_FAILED, first.output()
            assert "so this Drainer stops writing: drainer 'other'" in first.output()
        arena.assert_equal()
