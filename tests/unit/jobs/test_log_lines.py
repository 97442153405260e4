"""Log lines as operators' parsers know them from TiDB's tools."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry import logs
from pyspark_tidb_binlog.jobs.entry.logs import JsonLines, TextLines, quoted

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
