"""An installation of an earlier release, which ran with its defaults, goes on where it was: same checkpoint, Delta table, names and value log."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.emulator.rehearsal import load
from pyspark_tidb_binlog.conf.unset import KEPT
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.replication import Replication
from tests.support.arena import Arena, Cut
from tests.support.drainer_process import RUN_SECONDS, command_of, environ_of
from tests.support.golden_case import GOLDEN
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def arena(fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[Arena]:
    with Arena(load(GOLDEN / "txn"), fresh_mariadb, tmp_path / "arena", "sorted", Cut(step_bytes=200, max_bytes=1000)) as arena:
        arena.write()
        yield arena


def left_by_an_earlier_release(spark: SparkSession, arena: Arena, here: Path) -> None:
    """A batch was applied, and everything lies where the defaults of that release had it; its file holds no name."""
    places = {"checkpoint_dir": str(here / "var/drainer/spark"), "delta_dir": str(here / "var/drainer/delta")}
    settings = dataclasses.replace(arena.settings(), **places)
    with Replication(spark, settings) as replication:
        replicated(replication, arena.case.end_ts, 1)
    kept = here / "var/drainer/spark" / KEPT
    known = json.loads(kept.read_text())
    assert known.pop("node_id") == "drainer"
    kept.write_text(json.dumps(known))


def started_anew(arena: Arena, here: Path) -> subprocess.CompletedProcess[str]:
    """The job of this release in that directory, which is told nothing of directories and names, to the end of the case."""
    settings, to = arena.settings(), arena.target.target()
    flags = {
        "pumps": settings.source.pumps,
        "initial-commit-ts": -1,
        "ending-commit-ts": settings.source.ending_commit_ts,
        "pairing-buckets": settings.source.pairing_buckets,
        "ddl-history": settings.ddl_history,
        "spark.socket": to.socket,
        "syncer.to.user": to.user,
        "addr": "127.0.0.1:0",
    }
    environ = environ_of(arena.target, here / "job.log")
    return subprocess.run(command_of(flags), env=environ, cwd=here, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)


def drainers(arena: Arena) -> dict[str, str]:
    with contextlib.closing(RegistryClient(arena.settings().source.pumps)) as registry:
        return {node.node_id: node.state.value for node in registry.listing(DRAINERS).nodes}


def test_a_drainer_goes_on_where_its_defaults_had_been(spark: SparkSession, arena: Arena, tmp_path: Path) -> None:
    left_by_an_earlier_release(spark, arena, tmp_path)
    before = len(list((tmp_path / "var/drainer/spark/commits").glob("[0-9]*")))
    done = started_anew(arena, tmp_path)
    assert done.returncode == 0, done.stderr
    arena.assert_equal()
    assert len(list((tmp_path / "var/drainer/spark/commits").glob("[0-9]*"))) > before
    tables = [parquet.read_table(path, columns=["resolved_ts"]) for path in (tmp_path / "var/drainer/delta").glob("*.parquet")]
    assert max(ts for table in tables for ts in table.column(0).to_pylist()) >= arena.case.end_ts
    assert drainers(arena) == {"drainer": "paused"}
    assert not (tmp_path / "data.drainer").exists()
    assert (
        "spark.checkpoint-dir: var/drainer/spark, the default of earlier releases, is there and is used"
        in (tmp_path / "job.log").read_text()
    )

    with arena.target.connect() as connection, connection.cursor() as cursor:
        for name in (*arena.case.databases, "tidb_binlog"):
            cursor.execute(f"DROP DATABASE {name}")
    done = started_anew(arena, tmp_path)
    assert (done.returncode, "but Spark's checkpoint var/drainer/spark shows that this stream has run" in done.stderr) == (2, True)


def test_a_pump_goes_on_with_the_value_log_of_its_former_default(tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("TIDB_BINLOG", "PUMP_"))} | {
        "TIDB_BINLOG_LOG": str(tmp_path / "job.log")
    }
    command = [str(Path(__file__).parents[2] / "spark-submit.sh"), "pump", "-pd-urls=", "-addr=127.0.0.1:0"]
    names = []
    for more in (["-data-dir=var/pump"], []):
        with subprocess.Popen([*command, *more], env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as pump:
            assert pump.stdout is not None
            assert pump.stdout.readline().startswith("serving 127.0.0.1:")
            pump.send_signal(signal.SIGTERM)
            assert pump.wait(60) == 0
        names.append((tmp_path / "var/pump/.node").read_text())
    assert names[0] == names[1]
    assert not (tmp_path / "data.pump").exists()
    assert "data-dir: var/pump, the default of earlier releases, is there and is used" in (tmp_path / "job.log").read_text()
