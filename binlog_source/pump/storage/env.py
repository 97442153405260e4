"""The file system behind one interface, so that tests can make it fail.

Promises: no other module of the storage opens files. Every method raises ``OSError`` as the system does.
"""

import contextlib
import os
import resource
import weakref
from pathlib import Path
from typing import Protocol

from pyspark_tidb_binlog.schemas.durable_file import locked_file
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable

LOOK_EVERY = 3.0
"""Seconds between two calls of ``Space.look``."""


class AppendFile(Protocol):
    """A file that is only appended to."""

    def append(self, data: bytes) -> None:
        """Write all of ``data`` at the end."""

    def sync(self) -> None:
        """Force the data to the disk (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Truncate the file to ``size`` bytes."""

    def close(self) -> None:
        """Close the descriptor."""


class ReadFile(Protocol):
    """A file that is read at offsets; thread-safe. Its descriptor is closed with the last reference to it."""

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def size(self) -> int:
        """Bytes in the file now."""


class Directory(Protocol):
    """An open directory, which can be synced without another descriptor."""

    def sync(self) -> None:
        """Make created and removed names durable (fsync)."""

    def close(self) -> None:
        """Close the descriptor."""


class FileSystem(Protocol):
    """The file operations that the storage needs."""

    def make_dir(self, path: Path) -> None:
        """Create a directory and its parents where they are missing, durably."""

    def names(self, path: Path) -> list[str]:
        """The names in a directory."""

    def open_append(self, path: Path) -> AppendFile:
        """Open for appending; created when absent."""

    def open_read(self, path: Path) -> ReadFile:
        """Open for reading."""

    def open_dir(self, path: Path) -> Directory:
        """Open a directory."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def available(self, path: Path) -> int:
        """Bytes that this process may still write to the disk of ``path``."""

    def capacity(self, path: Path) -> int:
        """Bytes of the disk of ``path``."""

    def lock(self, path: Path) -> int:
        """Take the exclusive lock on a file; the descriptor that holds it. ``BlockingIOError`` when another process has it."""

    def unlock(self, descriptor: int) -> None:
        """Release the lock."""


class _RealAppendFile:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        os.close(self._fd)


class _RealReadFile:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        while data and sum(map(len, pieces)) < length:
            got = sum(map(len, pieces))
            data = os.pread(self._fd, length - got, offset + got)
            pieces.append(data)
        return b"".join(pieces)

    def size(self) -> int:
        return os.fstat(self._fd).st_size


class _RealDirectory:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealFileSystem:
    """The operating system's files."""

    def __init__(self) -> None:
        """Raise the soft limit of descriptors to the hard one: a value log keeps each of its files open."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def make_dir(self, path: Path) -> None:
        """See ``FileSystem``."""
        missing = [directory for directory in (path, *path.parents) if not directory.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for made in reversed(missing):
            with contextlib.closing(self.open_dir(made.parent)) as parent:
                parent.sync()

    def names(self, path: Path) -> list[str]:
        """See ``FileSystem``."""
        return os.listdir(path)

    def open_append(self, path: Path) -> AppendFile:
        """See ``FileSystem``."""
        return _RealAppendFile(path)

    def open_read(self, path: Path) -> ReadFile:
        """See ``FileSystem``."""
        return _RealReadFile(path)

    def open_dir(self, path: Path) -> Directory:
        """See ``FileSystem``."""
        return _RealDirectory(path)

    def remove(self, path: Path) -> None:
        """See ``FileSystem``."""
        path.unlink()

    def available(self, path: Path) -> int:
        """See ``FileSystem``."""
        said = os.statvfs(path)
        return said.f_bavail * said.f_frsize

    def capacity(self, path: Path) -> int:
        """See ``FileSystem``."""
        said = os.statvfs(path)
        return said.f_blocks * said.f_frsize

    def lock(self, path: Path) -> int:
        """See ``FileSystem``."""
        return locked_file(path)

    def unlock(self, descriptor: int) -> None:
        """See ``FileSystem``."""
        os.close(descriptor)


class Space:
    """The disk that holds one directory: its free space, and when binlogs are refused (pump.md 4.4). Only ``look`` reads the free space."""

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
