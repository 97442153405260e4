"""Notes for the job's progress about Pumps: files beside the stop file, shared by a machine's processes. Shell.

    waits-PUMP  a read waits for it
    away-PUMP   the source does not reach it; without a note a dead Pump would be known only once the batch under way is done

Promises: a note exists while that is so, and is removed when it is over. A note that cannot be written, on another machine or
after the job has ended, is skipped.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

_PREFIX, _AWAY = "waits-", "away-"
_AGAIN_SECONDS = 60.0
"""Interval at which the warning is logged again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """A read that waits for its Pump, and why, in words."""

    pump: str
    words: str


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


def note_away(stop_file: str, pump: str, why: str) -> None:
    """Note that the source does not reach a Pump; ``why`` empty: it does, or does not read it any more."""
    if stop_file:
        path = Path(stop_file).with_name(_AWAY + quote(pump, safe=""))
        with contextlib.suppress(OSError):
            path.write_text(why, "utf-8") if why else path.unlink(missing_ok=True)


def away(stop_file: Path) -> dict[str, str]:
    """The Pumps that are noted as not reached, and why."""
    found = {}
    with contextlib.suppress(OSError):
        for path in stop_file.parent.glob(f"{_AWAY}*"):
            found[unquote(path.name.removeprefix(_AWAY))] = path.read_text("utf-8")
    return {pump: why for pump, why in found.items() if why}
