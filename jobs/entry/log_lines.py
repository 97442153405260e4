"""Log lines in the format of TiDB's tools: text, or one JSON object per line. Operators' parsers know the format.

    [2026/11/22 13:04:05.678 +00:00] [WARN] [node.go:42] ["could not be registered"] [node-id=d1] [error="PumpUnavailable: …"]
    {"level":"WARN","time":"2026/11/22 13:04:05.678 +00:00","caller":"node.py:42","message":"…","node-id":"d1"}

A message, key or value with a space, a quote, a backslash, ``=``, ``[``, ``]`` or a control character is quoted like a JSON string. An
exception becomes the fields ``error`` and ``stack``. A log call adds fields with ``extra={"fields": {"node-id": …}}``.

Promises: pure; each record is exactly one line.
"""

import datetime
import json
import logging
import traceback
from collections.abc import Mapping

_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
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


FORMATS: Mapping[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}
"""By the name in the setting ``log-format``."""


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
    return _LEVELS.get(record.levelname, record.levelname)
