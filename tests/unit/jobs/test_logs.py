"""Log files: one a process, put aside when full, and the JVM's beside it."""

import json
import logging
import logging.handlers
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry import logs
from pyspark_tidb_binlog.jobs.entry.logs import JsonLines, TextLines, quoted

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


TIME = r"\[\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3} [+-]\d\d:\d\d\]"
VALUE = r'(?:[^\s"=\[\]\\]*|"(?:[^"\\]|\\.)*")'
LINE = re.compile(rf"{TIME} \[(DEBUG|INFO|WARN|ERROR|FATAL)\] \[\S+:\d+\] \[({VALUE})\](?: \[{VALUE}={VALUE}\])*")
"""The unified log format: what a parser of TiDB's logs accepts."""
HARD = ["plain", "two words", 'a "quoted" word', "a\\b", "k=v", "[x]", "line\nline\r\n\ttab", "zwölf \x00\x1b\x7f", ""]


def record(message: str, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("n", level, "/a/b/node.py", 42, message, (), None)
    made.__dict__.update(more)
    return made


@pytest.mark.parametrize("message", HARD)
@pytest.mark.parametrize("value", HARD)
def test_every_text_is_one_line_that_parses(message: str, value: str) -> None:
    said = TextLines().format(record(message, fields={"key": value}))
    found = LINE.fullmatch(said)
    assert found is not None and "\n" not in said, said
    assert (json.loads(found[2]) if found[2].startswith('"') else found[2]) == message


def test_the_parts_of_a_line() -> None:
    said = TextLines().format(record("could not register", logging.WARNING, fields={"node-id": "d1", "seconds": 3}))
    assert said.partition("] ")[2] == '[WARN] [node.py:42] ["could not register"] [node-id=d1] [seconds=3]'
    assert quoted("simple") == "simple"


def test_an_exception_is_two_fields() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError:
        failed = record("failed", logging.ERROR, exc_info=sys.exc_info())
    said = TextLines().format(failed)
    assert LINE.fullmatch(said) and r'[error="ValueError: no\nway"]' in said and r'[stack="Traceback' in said
    values = json.loads(JsonLines().format(failed))
    assert values["error"] == "ValueError: no\nway" and values["stack"].startswith("Traceback")


@pytest.mark.shows("spark.log-format", "pump spark.log-format")
@pytest.mark.parametrize("message", HARD)
def test_json_holds_the_same(message: str) -> None:
    said = JsonLines().format(record(message, logging.CRITICAL, fields={"path": Path("/a")}))
    assert "\n" not in said
    values = json.loads(said)
    assert list(values) == ["level", "time", "caller", "message", "path"]
    assert (values["level"], values["caller"], values["message"], values["path"]) == ("FATAL", "node.py:42", message, "/a")
    assert re.fullmatch(TIME, f"[{values['time']}]")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    monkeypatch.setenv("TIDB_BINLOG_LOG", str(tmp_path / "first.log"))
    monkeypatch.setattr(logs, "_moved_to", [])
    root = logging.getLogger()
    handlers, level, root.handlers[:] = root.handlers[:], root.level, []
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_format_and_file_are_set_while_the_job_runs(root: logging.Logger, tmp_path: Path) -> None:
    logs.log_to_file()
    root.info("one %s", "text")
    logs.set_format("json")
    root.info("two")
    logs.move_log(tmp_path / "elsewhere" / "second.log")
    root.info("three")
    text, values = (tmp_path / "first.log").read_text().splitlines()
    assert LINE.fullmatch(text) and '["one text"]' in text and json.loads(values)["message"] == "two"
    (moved,) = (tmp_path / "elsewhere" / "second.log").read_text().splitlines()
    assert json.loads(moved)["message"] == "three", "the format stays"
    assert logs.log_file() == tmp_path / "elsewhere" / "second.log"
    assert logs.spark_log_file() == tmp_path / "first.spark.log", "the JVM has opened it before"
