"""A disk that is full: one message with its directory, nothing lost or written twice, and once there is space again the stream goes on by itself or by
a new start. Real disks, which only root can mount.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import DrainerConfig, FileConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.binlogfile import walk
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName
from pyspark_tidb_binlog.schemas.errors import ApplyError, ReplicationError
from pyspark_tidb_binlog.sinks.mysql import elsewhere
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from pyspark_tidb_binlog.sinks.mysql.elsewhere import InFile, Trailing
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayLog, RelayStream
from pyspark_tidb_binlog.sinks.sink import TargetProgress
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Message
from tests.support.arena import Arena, Cut
from tests.support.drainer_process import ROOT
from tests.support.golden_case import GOLDEN
from tests.support.golden_messages import from_drainer
from tests.support.spark_queries import replicated

_PAGE = 4096


class SmallDisk:
    """A mount of ``size`` bytes at ``path``, from the beginning of the ``with`` block to its end. Skips the test where nothing can be mounted."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size
        self._filler = path / "filler"

    def __enter__(self) -> "SmallDisk":
        self.path.mkdir()
        if os.geteuid() != 0:
            pytest.skip("only root can mount the small disk that is to be full")
        found = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.path)], capture_output=True, text=True
        )
        if found.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {found.stderr.strip()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Unmount it, also while somebody has a file there."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def fill(self, but: int = 0) -> None:
        """Leave room for ``but`` bytes, in whole pages."""
        self.free()
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        left = os.statvfs(self.path)
        os.truncate(self._filler, max(0, self._filler.stat().st_size + left.f_bavail * left.f_frsize - but) // _PAGE * _PAGE)

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)


pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CUT = Cut(step_bytes=200, max_bytes=1000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", 8 << 20) as disk:
        yield disk


def run(spark: SparkSession, settings: DrainerConfig, end_ts: int, batches: int = 1 << 30) -> None:
    """To the end, or until that many batches are in."""
    with Replication(spark, settings) as replication:
        replicated(replication, end_ts, batches)


@pytest.mark.mysql
@pytest.mark.slow
def test_sparks_checkpoint_and_the_delta_table(spark: SparkSession, fresh_mariadb: PrivateMariaDB, disk: SmallDisk, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / "txn"), fresh_mariadb, tmp_path / "arena", "raw", CUT) as arena:
        arena.write()
        settings, end_ts = arena.settings(), arena.case.end_ts
        to_delta = dataclasses.replace(settings, delta_dir=str(disk.path / "delta"))
        disk.fill()
        with Replication(spark, to_delta) as replication:
            replicated(replication, end_ts, 2)
            assert replication._delta is not None
            with pytest.raises(ReplicationError, match=rf"Delta table {disk.path}/delta: .*No space left on device.*; they are kept"):
                replication._delta.flush()
            assert "No space left on device" in replication.progress().unrecorded
            disk.free()
            replication._delta.flush()
            assert replication.progress().unrecorded == ""
            reports = list(replication.reports)
        rows = spark.read.format("delta").load(str(disk.path / "delta")).toArrow().to_pylist()
        assert sorted(r["batch_id"] for r in rows if r["batch_id"] >= 0)[: len(reports)] == [r.batch_id for r in reports]

        on_disk = dataclasses.replace(settings, checkpoint_dir=str(disk.path / "spark"))
        for left in (0, 12_000):
            disk.fill(left)
            with pytest.raises(
                ReplicationError,
                match=rf"the disk is full \(No space left on device\): spark.checkpoint-dir {disk.path}/spark: \d MB free on this machine; Spark",
            ):
                run(spark, on_disk, end_ts)
            disk.free()
        run(spark, on_disk, end_ts)
        arena.assert_equal()


@pytest.mark.parametrize("what", ["binlogs", pytest.param("the record of the stream", marks=pytest.mark.slow)])
def test_files_and_their_record(what: str, spark: SparkSession, disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    with Arena(load(GOLDEN / "types"), None, tmp_path / "arena", "sorted", Cut(step_bytes=20_000, max_bytes=40_000)) as arena:
        arena.write()
        binlogs, data = (disk.path / "on", tmp_path / "off") if what == "binlogs" else (tmp_path / "off", disk.path / "on")
        apply = dataclasses.replace(arena.settings().apply, db_type="file")
        settings = dataclasses.replace(arena.settings(), apply=apply, files=FileConfig(dir=str(binlogs)), data_dir=str(data))
        run(spark, settings, arena.case.end_ts, 1)
        disk.fill()
        with pytest.raises(
            ApplyError, match=rf"cannot write {what} in {disk.path}/on: .*No space left on device.*Free space there.*start again"
        ):
            run(spark, settings, arena.case.end_ts)
        disk.free()
        run(spark, settings, arena.case.end_ts)
        assert [record.payload for record in walk(binlogs)] == from_drainer("types", "drainer.pb")


def test_the_relay_log(disk: SmallDisk) -> None:
    form, stream = SecondaryBinlogs(), RelayStream(7, "all")

    def messages(*stamps: int) -> list[Message]:
        return [Message(ts, form.ddl(ts, QualifiedName("d", "t"), f"-- {'x' * 5000} {ts}"), 0) for ts in stamps]

    log = RelayLog(disk.path / "relay", 10 << 20, stream)
    log.begin(TargetProgress(0, True, 1, None))
    log.write(0, 3, messages(1, 2, 3))
    disk.fill(but=4096)
    with pytest.raises(ApplyError, match=rf"cannot write the relay log in {disk.path}/relay: .*No space left on device"):
        log.write(3, 9, messages(4, 5, 6, 7, 8, 9))
    with pytest.raises(ApplyError, match="Start again"):
        log.write(3, 9, messages(4))
    log.close()
    disk.free()
    again = RelayLog(disk.path / "relay", 10 << 20, stream)
    again.begin(TargetProgress(3, True, 1, None))
    again.write(3, 9, messages(4, 5, 6, 7, 8, 9))
    again.close()
    assert [commit_ts_of(record.payload) for record in walk(disk.path / "relay")] == list(range(1, 10))


def test_a_checkpoint_as_a_file_stays_behind_until_there_is_space(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(elsewhere, "SAVE_SECONDS", 0.0)
    real = InFile(disk.path / "data")
    real.open()
    trailing = Trailing(real)

    def saved(commit_ts: int) -> tuple[int, ...]:
        named = trailing.named(commit_ts)
        trailing.follow(Checkpoint(commit_ts, False, 1, written_for="target-1"))
        return named

    assert saved(5) == (5,)
    disk.fill()
    assert saved(9) == (5, 9), "ours says that either may be there"
    assert (
        f"the checkpoint {disk.path}/data/savepoint cannot be written, and stays behind" in caplog.text and "No space left" in caplog.text
    )
    found = real.read()
    assert found is not None and (found.commit_ts, found.written_for) == (5, "target-1"), "the old one is whole"
    disk.free()
    assert trailing.retry(now=True)
    found = real.read()
    assert found is not None and found.commit_ts == 9
    real.close()


def test_the_log(disk: SmallDisk) -> None:
    """The job goes on, and so does its log once there is space."""
    program = (
        "import logging, os, sys, time\n"
        "from pathlib import Path\n"
        "from pyspark_tidb_binlog.jobs.entry.cli import run_job\n"
        "def main(argv):\n"
        "    for number in range(20):\n"
        "        logging.warning('%s before %d', 'x' * 3000, number)\n"
        f"    os.unlink({str(disk.path / 'filler')!r})\n"
        "    logging.warning('there is space')\n"
        "    return 0\n"
        "sys.exit(run_job(main, []))\n"
    )
    disk.fill(but=8192)
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TIDB_BINLOG_LOG": str(disk.path / "job.log")}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "No space left on device" in ended.stderr, ended.stderr
    assert "there is space" in (disk.path / "job.log").read_text()
