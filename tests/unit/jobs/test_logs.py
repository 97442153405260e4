"""Log files: one a process, put aside when full, and the JVM's beside it."""

import logging
import logging.handlers
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry import logs

ROOT = Path(__file__).parents[3]
OTHER = "import sys; from pyspark_tidb_binlog.jobs.entry.logs import log_file; print(log_file(), flush=True); sys.stdin.read()"


def other(wanted: Path) -> "subprocess.Popen[str]":
    environ = os.environ | {"TIDB_BINLOG_LOG": str(wanted)}
    return subprocess.Popen([sys.executable, "-c", OTHER], cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_jobs_of_a_kind_have_a_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tmp_path / "log" / "drainer.log"
    with other(wanted) as first:
        assert first.stdout is not None
        assert first.stdout.readline().strip() == str(wanted)
        monkeypatch.setenv("TIDB_BINLOG_LOG", str(wanted))
        assert logs.log_file() == tmp_path / "log" / "drainer-2.log"
        assert logs.spark_log_file() == tmp_path / "log" / "drainer-2.spark.log"
        first.kill()
    with other(wanted) as third:
        assert third.stdout is not None
        assert third.stdout.readline().strip() == str(wanted), "a killed job gives its file back"
        third.kill()


def test_another_users_log_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".job.log.lock").touch()
    opened = os.open

    def refused(path: Path, *more: int) -> int:
        if path.name == ".job.log.lock" or path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more)

    monkeypatch.setattr(logs.os, "open", refused)
    monkeypatch.setenv("TIDB_BINLOG_LOG", str(tmp_path / "job.log"))
    assert logs.log_file() == tmp_path / "job-2.log"
    monkeypatch.setenv("TIDB_BINLOG_LOG", str(tmp_path / "closed" / "job.log"))
    with pytest.raises(PermissionError):
        logs.log_file()


def test_a_full_log_is_put_aside_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDB_BINLOG_LOG", str(tmp_path / "job.log"))
    monkeypatch.setattr(logs, "FILE_BYTES", 1000)
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    root.handlers[:] = []
    try:
        logs.log_to_file()
        for _ in range(200):
            logging.info("%s", "x" * 100)
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
    assert sorted(path.name for path in tmp_path.glob("job.log*")) == ["job.log", *(f"job.log.{n}" for n in range(1, logs.FILES + 1))]


def test_sparks_log_is_bounded_alike() -> None:
    said = dict(line.split(" = ") for line in (ROOT / "conf" / "log4j2.properties").read_text().splitlines() if " = " in line)
    assert said["appender.file.type"] == "RollingFile"
    assert said["appender.file.policies.size.size"] == f"{logs.FILE_BYTES // 1024 // 1024}MB"
    assert said["appender.file.strategy.max"] == str(logs.FILES)
