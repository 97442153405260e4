"""Notes for the job's progress line about reads that wait for their Pump: files beside the stop file, shared by a machine's processes.
Shell.

Promises: a note exists while a read waits, and is removed when the read continues. A note that cannot be written, on another machine or
after the job has ended, is skipped.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

_PREFIX = "waits-"
_AGAIN_SECONDS = 60.0
"""Interval at which the warning is logged again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """A read that waits for its Pump, and why, in words."""

    pump: str
    words: str

    @property
    def why(self) -> str:
        """The reason alone."""
        return self.words.split(": ", 2)[-1]


class ReadNote:
    """What one partition's read waits for."""

    def __init__(self, stop_file: str, pump: str) -> None:
        """``stop_file`` empty: only a warning is logged."""
        self._path = Path(stop_file).with_name(_PREFIX + quote(pump, safe="")) if stop_file else None
        self._pump = pump
        self._since = self._told_at = 0.0

    def waits(self, why: str) -> None:
        """Note that nothing arrives, and why; called repeatedly while it lasts."""
        now = time.time()
        if self._since and now - self._told_at < _AGAIN_SECONDS:
            return
        self._since, self._told_at = self._since or now, now
        text = f"read: Pump {self._pump} since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self._since))}: {why}"
        _log.warning("%s; the stream continues when the Pump is back", text)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.write_text(text, "utf-8")

    def over(self) -> None:
        """Remove the note: the read continues, or has ended."""
        if not self._since:
            return
        self._since = 0.0
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def noted(stop_file: str, pump: str) -> Iterator[ReadNote]:
    """A note for the duration of a read."""
    note = ReadNote(stop_file, pump)
    try:
        yield note
    finally:
        note.over()


def waiting(stop_file: Path) -> WaitingRead | None:
    """The oldest note beside ``stop_file``; None = no read waits."""
    with contextlib.suppress(OSError):
        notes = sorted(stop_file.parent.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime)
        if notes:
            return WaitingRead(unquote(notes[0].name.removeprefix(_PREFIX)), notes[0].read_text("utf-8"))
    return None
