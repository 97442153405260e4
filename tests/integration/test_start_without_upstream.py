"""A start while the upstream is away: what it says, how long it waits, and that a stop request ends it."""

import dataclasses
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable, Stopped

pytestmark = [pytest.mark.spark, pytest.mark.grpc]


@pytest.mark.shows("spark.upstream-timeout")
@pytest.mark.parametrize(
    ("pumps", "who"), [("127.0.0.1:{}", "Pump 127.0.0.1"), ("pd://127.0.0.1:{}", "PD http"), ("http://127.0.0.1:{}", "registry")]
)
def test_it_says_what_it_waits_for_and_gives_up(spark: SparkSession, tmp_path: Path, pumps: str, who: str) -> None:
    config = DrainerConfig(
        source=SourceConfig(pumps.format(free_port())),
        checkpoint_dir=str(tmp_path / "spark"),
        delta_dir=str(tmp_path / "delta"),
        upstream_timeout=1.0,
    )
    said: list[str] = []
    with pytest.raises(PumpUnavailable, match=who):
        Replication(spark, config, say=said.append)
    (first,) = said
    assert first.startswith("waiting for the upstream, 0 of 1 s") and who in first

    stop = threading.Event()

    def ask_to_stop(text: str) -> None:
        stop.set()

    with pytest.raises(Stopped):
        Replication(spark, dataclasses.replace(config, upstream_timeout=60.0), stop, say=ask_to_stop)
