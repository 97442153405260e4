"""The timestamp oracle: strictly increasing TSOs, also across restarts.

Promises: ``next`` returns a ts above ``floor`` and above every ts that this run, or an earlier run on the same file, returned. Like PD, it
persists a high-water mark some seconds ahead, and starts above that mark.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark_tidb_binlog.schemas.durable_file import replace_file
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso

_AHEAD_MS = 3000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Oracle:
    """Timestamps for one cluster. Safe for many threads."""

    def __init__(self, path: Path | None = None, floor: int = 0, clock_ms: Callable[[], int] = _now_ms) -> None:
        self._path = path
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._last = max(floor, self._read_mark())
        self._mark = 0

    def next(self, count: int = 1) -> int:
        """The first of ``count`` consecutive timestamps."""
        with self._lock:
            first = max(tso(self._clock_ms()), self._last + 1)
            self._last = first + count - 1
            if self._path is not None and self._last >= self._mark:
                self._write_mark(self._path, self._last + tso(_AHEAD_MS))
            return first

    def _read_mark(self) -> int:
        if self._path is None or not self._path.exists():
            return 0
        text = self._path.read_text()
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(
                f"oracle file {self._path} holds no timestamp: {text!r}. Write a timestamp above all issued ones into this file, or remove the file"
            ) from error

    def _write_mark(self, path: Path, mark: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, str(mark))
        self._mark = mark
