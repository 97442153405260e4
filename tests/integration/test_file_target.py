"""Binlog files as the target of the real stream: what Pumps, Spark and the file sink make of a case is what the real Drainer made of it.

In both deliveries, from the driver and in parts, over restarts and a lost Spark checkpoint; in `make slow` also ``kill -9`` at every kind of point.
"""

import dataclasses
import gzip
import itertools
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import DrainerConfig, FileConfig
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.binlogfile import files_in, record_of, walk
from pyspark_tidb_binlog.schemas.errors import ConfigError, LeaseHeld
from tests.support.arena import Arena, Cut, counted, numbered
from tests.support.drainer_process import ROOT
from tests.support.golden_case import GOLDEN
from tests.support.golden_messages import checksums, checksums_from_drainer, from_drainer
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DRIVER = Cut(step_bytes=500, max_bytes=3000)
PARTS = Cut(step_bytes=500, max_bytes=3000, atomic_rows=1, parts=3)
CUTS = {"driver": DRIVER, "parts": PARTS}
BANK = Cut(step_bytes=8_000, max_bytes=60_000, atomic_rows=300)
"""Some of its batches in parts, some not."""
DEADLY = {
    "source-read": (5,),
    "before-deletes": (3,),
    "before-downstream-commit": (5,),
    "after-downstream-commit": (2,),
    "after-spark-commit": (5,),
}
TWICE = dict.fromkeys(DEADLY, (2, 5))
"""Points, and the passes that kill."""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone that the real Drainer ran in."""
    monkeypatch.setenv("TZ", "UTC")


def to_files(arena: Arena) -> DrainerConfig:
    """The arena's settings, with a directory of its own for files."""
    settings = arena.settings()
    apply = dataclasses.replace(settings.apply, db_type="file")
    files = FileConfig(dir=str(arena.work_dir / "binlogs"))
    return dataclasses.replace(settings, apply=apply, files=files, data_dir=str(arena.work_dir / "data"))


def arena_of_files(name: str, delivery: str, cut: Cut, directory: Path) -> Arena:
    """Its drainers write files, too."""
    more = {"syncer.db-type": "file", "syncer.to.dir": directory / "binlogs", "data-dir": directory / "data"}
    return Arena(load(GOLDEN / name), None, directory, delivery, cut, more)


def payloads(directory: Path) -> list[bytes]:
    """What the files hold; their bytes are nothing but its records."""
    found = [record.payload for record in walk(directory)]
    assert b"".join((directory / file.name).read_bytes() for file in files_in(directory)) == b"".join(map(record_of, found))
    return found


def every_way() -> list[Any]:
    """Each case in each delivery and each cut; in `make test` one. ``test_kafka_target.py`` has ``keys`` in sorted delivery, of which some batches go
    from the driver; ``tests/unit/sinks/test_relay_log.py`` compares the messages of every type.
    """
    quick = {("txn", "raw", "parts")}
    return [
        pytest.param(
            name, delivery, CUTS[cut], id=f"{name}-{delivery}-{cut}", marks=() if (name, delivery, cut) in quick else pytest.mark.slow
        )
        for name, delivery, cut in itertools.product(("keys", "types", "txn"), ("sorted", "raw"), CUTS)
    ]


@pytest.mark.shows("syncer.to.dir", "data-dir", "pb files", "Reparo: print")
@pytest.mark.parametrize(("name", "delivery", "cut"), every_way())
def test_the_files_are_those_of_the_real_drainer(name: str, delivery: str, cut: Cut, spark: SparkSession, tmp_path: Path) -> None:
    """Beside a running drainer another one is refused. Before the second life of raw delivery Spark's directory is lost: the sink's own record says
    where to go on. Reparo prints the files. A record that is lost afterwards is for a person to decide.
    """
    with arena_of_files(name, delivery, cut, tmp_path) as arena:
        arena.write()
        with Replication(spark, to_files(arena)) as replication:
            replicated(replication, arena.case.end_ts, 2)
            with pytest.raises(LeaseHeld, match="another Drainer records its progress"):
                Replication(spark, to_files(arena)).start()
        if delivery == "raw":
            arena.forget(delta=False)
        arena.drain(spark)
        assert payloads(tmp_path / "binlogs") == from_drainer(name, "drainer.pb")
        assert f"commitTS = {arena.case.end_ts}\n" in (tmp_path / "data" / "savepoint").read_text()
        command = [str(ROOT / "spark-submit.sh"), "replay", "-data-dir", str(tmp_path / "binlogs"), "-dest-type", "print"]
        done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        assert done.stdout == gzip.decompress((GOLDEN / name / "reparo.txt.gz").read_bytes())
        for file in (tmp_path / "data").glob("savepoint*"):
            file.unlink()
        with pytest.raises(
            ConfigError, match=r"the target .*binlogs has no checkpoint .*binlogs holds nothing.*commitTS = TS into .*data/savepoint"
        ):
            Replication(spark, to_files(arena)).start()


# In `make test` the sink dies at each of its points without Spark: ``tests/unit/sinks/test_message_sinks.py``.
@pytest.mark.slow
@pytest.mark.parametrize(("delivery", "deadly"), [("raw", DEADLY), ("sorted", TWICE)], ids=["raw", "sorted-twice"])
def test_more_deaths_of_more_kinds(delivery: str, deadly: dict[str, tuple[int, ...]], spark: SparkSession, tmp_path: Path) -> None:
    with arena_of_files("bank", delivery, BANK, tmp_path) as arena:
        arena.write()
        # At the third death Spark's directory goes too: the sink's own record says where to go on.
        deaths = arena.live_and_die(numbered(deadly), lambda deaths: arena.forget(delta=False) if deaths == 3 else None, spark=spark)
        assert (deaths, arena.deaths()) == (sum(map(len, deadly.values())), counted(deadly))
    found = payloads(tmp_path / "binlogs")
    assert checksums(found) == checksums_from_drainer("bank", "drainer.pb")
