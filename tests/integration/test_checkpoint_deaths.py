"""Spark's checkpoint directory as a death or a person leaves it before a batch is recorded, over a real stream into a real MariaDB."""

import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def arena(mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[Arena]:
    with Arena(load(GOLDEN / "txn"), mariadb, tmp_path / "arena", "raw", Cut(step_bytes=200, max_bytes=1000)) as arena:
        prepare_target(mariadb.target(), arena.settings(), arena.case.databases, drop=True)
        arena.write()
        yield arena


def run(spark: SparkSession, arena: Arena, batches: int = 1 << 30) -> None:
    """To the end, or until that many batches are in."""
    with Replication(spark, arena.settings()) as replication:
        replicated(replication, arena.case.end_ts, batches)


def test_a_death_while_the_first_batch_was_recorded(spark: SparkSession, arena: Arena) -> None:
    """Of two lives: one has written the checksum's file, too."""
    offsets = arena.spark_dir / "offsets"
    offsets.mkdir(parents=True)
    half_written = ".0.12ca75eb-eced-4c78-a611-7661187e38ce.tmp", ".0.7d0f4a0e-3b53-4f0b-8a55-0c1c7f3f6a11.tmp"
    for name in (*half_written, f".{half_written[0]}.crc"):
        (offsets / name).write_bytes(b"")
    run(spark, arena)
    arena.assert_equal()
    assert not [name for name in half_written if (offsets / name).exists()]


def test_a_record_of_batches_that_somebody_deleted(spark: SparkSession, arena: Arena) -> None:
    run(spark, arena, batches=2)
    shutil.rmtree(arena.spark_dir / "offsets")
    with pytest.raises(ConfigError, match=r"has state/0 but records no batch, so Spark starts no query: delete the directory"):
        run(spark, arena)
    shutil.rmtree(arena.spark_dir)
    run(spark, arena)
    arena.assert_equal()


def test_a_death_after_batches_that_applied_nothing(spark: SparkSession, arena: Arena) -> None:
    """Spark has recorded more than the target's row says; what is noted beside Spark's checkpoint tells why."""
    with arena.drainer("after-spark-commit:4", ['--syncer.replicate-do-db=["no_such"]']) as drainer:
        assert drainer.wait() == -signal.SIGKILL, drainer.output()
    note = arena.spark_dir / "tidb-binlog-nothing-applied.json"
    kept = note.read_text()
    for spoiled in ("", kept.replace('"recorded_ts": ', '"recorded_ts": 1'), kept.replace('"upto_ts": ', '"upto_ts": 0.')):
        note.write_text(spoiled)
        with pytest.raises(ApplyError, match="would be lost"):
            run(spark, arena)
    note.write_text(kept)
    settings = arena.settings()
    with Replication(spark, replace(settings, apply=replace(settings.apply, replicate_do_db=("no_such",)))) as replication:
        replicated(replication, arena.case.end_ts)
    assert f'"consistent":true,"commitTS":{arena.case.end_ts},' in arena.checkpoint()
