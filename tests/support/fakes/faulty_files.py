"""A disk that fails when a test says so, over the real one: errors that pass, torn appends, the death of the process, power failures.

    FaultyFiles(at=7, fault=Fault.TORN)    the 7th operation fails so, once; those before and after it work
    FaultyFiles(at=7, fault=Fault.DEATH)   the 7th operation and all after it fail: the process is dead
    files.refuse["sync"] = Fault.EIO       every sync fails so, until the entry is taken away
    files.lose_power(random)               after the store is closed: what was not synced is cut, forgotten or back again

Promises: every append, sync, truncate, open_append, open_dir, sync_dir and remove counts as one operation, in the order they came; reading and
closing always work. Syncs are only noted, so that thousands of deaths take seconds.
"""

import enum
import errno
import threading
from pathlib import Path
from random import Random

from pyspark_tidb_binlog.binlog_source.pump.storage.env import AppendFile, Directory, RealFileSystem


class Fault(enum.Enum):
    """How an operation fails."""

    ENOSPC = enum.auto()
    """Nothing is done; no space left."""
    EIO = enum.auto()
    """Nothing is done; input/output error."""
    TORN = enum.auto()
    """An append writes half of its bytes, then there is no space left. Nothing else is done."""
    DEATH = enum.auto()
    """Nothing is done, by this operation and all that follow."""
    TORN_DEATH = enum.auto()
    """An append writes half of its bytes; and death."""


def flip(file: Path, at: int) -> None:
    """The byte at ``at`` of ``file`` goes bad on the disk."""
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(bytes(data))


class FaultyFiles(RealFileSystem):
    """See the module."""

    def __init__(self, at: int = 0, fault: Fault = Fault.DEATH) -> None:
        self.operations: list[str] = []
        """The names of the operations so far."""
        self.refuse: dict[str, Fault] = {}
        self.dead = False
        self._at = at
        self._fault = fault
        self._lock = threading.Lock()
        self._synced: dict[Path, int] = {}
        self._made: set[Path] = set()
        self._removed: dict[Path, bytes] = {}

    def passes(self, name: str, half: bytes = b"", file: AppendFile | None = None) -> None:
        """One operation begins; raises when it is to fail. ``half``: what a torn append writes to ``file``."""
        with self._lock:
            self.operations.append(name)
            fault = self._fault if len(self.operations) == self._at else self.refuse.get(name)
            if self.dead:
                fault = Fault.DEATH
            elif fault in (Fault.DEATH, Fault.TORN_DEATH):
                self.dead = True
        if fault is None:
            return
        if fault in (Fault.TORN, Fault.TORN_DEATH) and file is not None:
            file.append(half)
        if fault in (Fault.DEATH, Fault.TORN_DEATH):
            raise OSError(errno.EIO, "the process is dead")
        number = errno.EIO if fault is Fault.EIO else errno.ENOSPC
        raise OSError(number, "Input/output error" if fault is Fault.EIO else "No space left on device")

    def open_append(self, path: Path) -> AppendFile:
        """See ``FileSystem``."""
        self.passes("open_append")
        if not path.exists():
            self._made.add(path)
        file = super().open_append(path)
        self._synced.setdefault(path, path.stat().st_size)
        return _FaultyAppendFile(self, path, file)

    def open_dir(self, path: Path) -> Directory:
        """See ``FileSystem``."""
        self.passes("open_dir")
        return _FaultyDirectory(self, path)

    def synced_dir(self, path: Path) -> None:
        """The names in ``path`` are on the disk."""
        self._made = {made for made in self._made if made.parent != path}
        self._removed = {removed: data for removed, data in self._removed.items() if removed.parent != path}

    def remove(self, path: Path) -> None:
        """See ``FileSystem``."""
        self.passes("remove")
        self._removed[path] = path.read_bytes()
        self._synced.pop(path, None)
        super().remove(path)

    def synced(self, path: Path) -> None:
        """All of ``path`` is on the disk."""
        self._synced[path] = path.stat().st_size

    def truncated(self, path: Path, size: int) -> None:
        """``path`` was cut."""
        self._synced[path] = min(self._synced[path], size)

    def lose_power(self, random: Random) -> None:
        """What no sync has forced to the disk is lost, or some of it: bytes, names and removals."""
        for path, size in self._synced.items():
            with path.open("r+b") as file:
                file.truncate(random.randint(size, path.stat().st_size))
        for path in sorted(self._made):
            if random.random() < 0.5:
                path.unlink()
        for path, data in self._removed.items():
            if random.random() < 0.5:
                path.write_bytes(data)


class _FaultyDirectory:
    def __init__(self, files: FaultyFiles, path: Path) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        self._files.passes("sync_dir")
        self._files.synced_dir(self._path)

    def close(self) -> None:
        pass


class _FaultyAppendFile:
    def __init__(self, files: FaultyFiles, path: Path, file: AppendFile) -> None:
        self._files = files
        self._path = path
        self._file = file

    def append(self, data: bytes) -> None:
        self._files.passes("append", data[: len(data) // 2], self._file)
        self._file.append(data)

    def sync(self) -> None:
        self._files.passes("sync")
        self._files.synced(self._path)

    def truncate(self, size: int) -> None:
        self._files.passes("truncate")
        self._file.truncate(size)
        self._files.truncated(self._path, size)

    def close(self) -> None:
        self._file.close()
