"""Log files: the file of this process, the form of its lines, its level and its rotation.

Promises: two processes never write to the same file. A job's Python writes ``JOB.log``, with the output of Spark's Python workers. Its JVM writes
``JOB.spark.log`` next to it. If another process uses ``JOB.log``, or this user may not write to it, the log is ``JOB-2.log``. Both are rotated by size:
``FILES`` old files are kept, as ``JOB.log.1`` and so on. Each record is exactly one line, in the format of TiDB's tools, which operators' parsers know:

    [2026/11/22 13:04:05.678 +00:00] [WARN] [node.go:42] ["could not be registered"] [node-id=d1] [error="PumpUnavailable: …"]
    {"level":"WARN","time":"2026/11/22 13:04:05.678 +00:00","caller":"node.py:42","message":"…","node-id":"d1"}

A message, key or value with a space, a quote, a backslash, ``=``, ``[``, ``]`` or a control character is quoted like a JSON string. An
exception becomes the fields ``error`` and ``stack``. A log call adds fields with ``extra={"fields": {"node-id": …}}``.
"""

import datetime
import itertools
import json
import logging
import logging.handlers
import os
import traceback
from collections.abc import Mapping
from pathlib import Path

from pyspark_tidb_binlog.jobs.entry import own_places
from pyspark_tidb_binlog.schemas.durable_file import locked_file

FILE_BYTES = 64 * 1024 * 1024
"""Size at which a log file is rotated; ``conf/log4j2.properties`` has the same for the JVM's."""
FILES = 4

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR, "fatal": logging.CRITICAL}
_OF_SPARK = {"debug": "INFO", "info": "WARN", "warn": "WARN", "error": "ERROR", "fatal": "FATAL"}
"""Spark logs a hundred times as much as this project: its level is one higher."""

_claimed: dict[Path, Path] = {}
_moved_to: list[Path] = []
"""Where ``move_log`` sent this process's log; the last one counts."""


def log_file() -> Path:
    """The log of this process: the file of ``move_log``, else of ``TIDB_BINLOG_LOG``. The first numbered variant that no other process uses counts."""
    return _claimed_for(_moved_to[-1] if _moved_to else _first_wanted())


def spark_log_file() -> Path:
    """The log of this process's JVM, beside the file of ``TIDB_BINLOG_LOG``. The JVM opens it before the settings are read."""
    return _claimed_for(_first_wanted()).with_suffix(".spark.log")


def log_to_file() -> None:
    """Send this process's log to ``log_file()``, as text."""
    to_file = _rotated(log_file())
    to_file.setFormatter(TextLines())
    logging.getLogger().addHandler(to_file)
    set_level("info")
    # Py4J logs every closed connection of a JVM that shuts down.
    logging.getLogger("py4j").setLevel(logging.ERROR)


def move_log(wanted: Path) -> None:
    """Log to ``wanted`` from now on (the setting ``log-file``), or to its first numbered variant that no other process uses.

    Raises:
        OSError: it cannot be written; the log stays where it is.
    """
    _claimed_for(wanted.absolute()).open("a").close()
    _moved_to.append(wanted.absolute())
    for before in _handlers():
        after = _rotated(log_file())
        after.setFormatter(before.formatter)
        logging.getLogger().addHandler(after)
        logging.getLogger().removeHandler(before)
        before.close()


def set_format(name: str) -> None:
    """What each line looks like from now on: ``text`` or ``json`` (the setting ``log-format``)."""
    for handler in _handlers():
        handler.setFormatter(JsonLines() if name == "json" else TextLines())


def _rotated(path: Path) -> logging.handlers.RotatingFileHandler:
    return logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES, delay=True)


def _handlers() -> list[logging.handlers.RotatingFileHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.handlers.RotatingFileHandler)]


def set_level(level: str) -> None:
    """Set the log level; ``level`` as in the setting ``log-level``."""
    logging.getLogger().setLevel(LEVELS[level])


def spark_level() -> str:
    """The level of Spark's own log that corresponds to this process's."""
    ours = logging.getLogger().level
    return next((_OF_SPARK[name] for name, level in LEVELS.items() if level >= ours), "ERROR")


def _first_wanted() -> Path:
    named = os.environ.get("TIDB_BINLOG_LOG")
    return Path(named).absolute() if named else own_places.logs() / "spark.log"


def _claimed_for(wanted: Path) -> Path:
    if wanted not in _claimed:
        _claimed[wanted] = _claim(wanted)
    return _claimed[wanted]


def _claim(wanted: Path) -> Path:
    """Claim a file by a lock next to it, since rotation renames the file itself; the kernel releases the lock when the process ends."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        beside = path.with_name(f".{path.name}.lock")
        try:
            locked_file(beside, 0o644)  # the descriptor stays open until the process ends
        except BlockingIOError:
            continue
        except PermissionError:
            if beside.exists():
                continue  # another user's: who has tried it as root, say
            raise
        return path
    raise AssertionError("unreachable: the numbers are infinite")


_NAMES = {"WARNING": "WARN", "CRITICAL": "FATAL"}
"""Names that differ from Python's."""
_QUOTED = set('\\"[]=\x7f') | {chr(code) for code in range(0x21)}
_FIELDS = "fields"


class TextLines(logging.Formatter):
    """The format in brackets."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        message = quoted(record.getMessage())
        parts = [_time(record.created), _level(record), f"{record.filename}:{record.lineno}", message]
        return " ".join([f"[{part}]" for part in parts] + [_field(name, value) for name, value in _fields(record).items()])


class JsonLines(logging.Formatter):
    """The same as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        head = {"level": _level(record), "time": _time(record.created), "caller": f"{record.filename}:{record.lineno}"}
        return json.dumps(head | {"message": record.getMessage()} | _fields(record), ensure_ascii=False, separators=(",", ":"), default=str)


def quoted(text: str) -> str:
    """``text`` as it stands in a line: unchanged, or like a JSON string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if _QUOTED & set(text) else text


def line(level: str, where: str, message: str, fields: Mapping[str, object], at: datetime.datetime) -> str:
    """A line that does not come from a log call; ``where`` is ``file:line``."""
    head = " ".join(f"[{part}]" for part in (_time(at.timestamp()), level, where, quoted(message)))
    return " ".join([head, *(_field(name, value) for name, value in fields.items())])


def _field(name: str, value: object) -> str:
    return f"[{quoted(name)}={quoted(str(value))}]"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    given: object = getattr(record, _FIELDS, None)
    found = dict(given) if isinstance(given, Mapping) else {}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        found |= {"error": f"{type(error).__name__}: {error}", "stack": "".join(traceback.format_exception(error)).rstrip("\n")}
    return found


def _time(seconds: float) -> str:
    at = datetime.datetime.fromtimestamp(seconds).astimezone()
    offset = at.strftime("%z")
    return f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d} {offset[:3]}:{offset[3:5]}"


def _level(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelname, record.levelname)
