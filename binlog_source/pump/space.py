"""The disk of the Pump: its free space, and when binlogs are refused (pump.md 4.4).

Promises: only ``look`` reads the free space. Everything else uses its last result.
"""

from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump.storage.env import FileSystem
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable

LOOK_EVERY = 3.0
"""Seconds between two calls of ``look``."""


class Space:
    """The disk that holds one directory."""

    def __init__(self, files: FileSystem, directory: Path, stop_at: int) -> None:
        """``stop_at``: free bytes at which writing stops; 0 = never."""
        self._files = files
        self._directory = directory
        self._stop_at = stop_at
        self.available = self.capacity = 0
        self.look()

    def look(self) -> None:
        """Read the free space and the capacity."""
        self.available = self._files.available(self._directory)
        self.capacity = self._files.capacity(self._directory)

    def require(self) -> None:
        """Refuse to write when too little space is left."""
        if self._stop_at and self.available <= self._stop_at:
            raise PumpUnavailable(f"no available space, available: {self.available}, StopWriteAtAvailableSpace: {self._stop_at}")
