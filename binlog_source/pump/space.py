"""The disk that the Pump writes to: how much is left, and when to refuse binlogs (pump.md 4.4).

Promises: the free space is read when ``look`` is called and remembered; asking costs nothing.
"""

from pathlib import Path

from binlog_source.pump.storage.env import FileSystem
from schemas.errors import PumpUnavailable

LOOK_EVERY = 3.0
"""Seconds between two looks."""


class Space:
    """The disk below one directory."""

    def __init__(self, files: FileSystem, directory: Path, stop_at: int) -> None:
        """``stop_at``: free bytes at which writing stops; 0 = never."""
        self._files = files
        self._directory = directory
        self._stop_at = stop_at
        self.available = self.capacity = 0
        self.look()

    def look(self) -> None:
        """Read how much is left."""
        self.available = self._files.available(self._directory)
        self.capacity = self._files.capacity(self._directory)

    def require(self) -> None:
        """Refuse to write when too little is left."""
        if self._stop_at and self.available <= self._stop_at:
            raise PumpUnavailable(f"no available space, available: {self.available}, StopWriteAtAvailableSpace: {self._stop_at}")
