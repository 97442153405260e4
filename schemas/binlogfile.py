"""Files of binlogs: a Drainer's file sink and relay log write them, and Reparo reads them (wire.md 3).

    record   magic u32 | length i64 | payload | CRC-32C of the payload u32, all little-endian; a file holds records and nothing else
    name     binlog-<index, 16 digits>-<local time YYYYMMDDhhmmss>, indexes from 0 without a gap
    .lock    the writer of the directory holds a flock on this file

A record never spans two files: the record that reaches the maximal size is the last of its file. An empty payload is not written.

Promises: the format is the original's, byte for byte. A position is (index of the file, offset after the record).

* ``sync`` returns when everything written before is durable, names included.
* A writer begins after the last whole record, and cuts off a record that a crash left unfinished. The original appends behind such a
  record, and its files can then no longer be read.
* Reading changes nothing. ``Corruption`` names file and offset.
"""

import datetime
import itertools
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from pyspark_tidb_binlog.schemas.durable_file import locked_file, sync_directory
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, LeaseHeld

MAGIC = 471532804
MAX_FILE_BYTES = 512 << 20
"""Of the file sink."""
LOCK = ".lock"

_HEAD = struct.Struct("<Iq")
_TAIL = struct.Struct("<I")
AROUND = _HEAD.size + _TAIL.size
"""Bytes of a record besides its payload."""
_WRITE_BYTES = 4 << 20
"""Records are joined up to this size for one write."""
_INDEX = re.compile(r"\d{1,16}")
_DIRECTORY_MODE, _FILE_MODE = 0o700, 0o600


class TornRecord(Corruption):
    """A record that its file ends within. In the last file this is the record that a writer was writing when it died."""


@dataclass(frozen=True, slots=True, order=True)
class FilePosition:
    """A place between two records."""

    index: int
    """Of the file."""
    offset: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class BinlogName:
    """The name of a file of binlogs, taken apart."""

    name: str
    index: int
    first_ts: int = 0
    """commit_ts of its first binlog, where the name says it: ``binlog-<index>-<time>-<ts>`` of older versions and other tools."""


@dataclass(frozen=True, slots=True)
class BinlogRecord:
    """One record that was read."""

    payload: bytes
    end: FilePosition
    """The place after it."""


# Pure: records and names.


def record_of(payload: bytes) -> bytes:
    """``payload`` as a record."""
    return b"".join((_HEAD.pack(MAGIC, len(payload)), payload, _TAIL.pack(google_crc32c.value(payload))))


def records_in(file: BinaryIO, size: int, name: str, at: int = 0) -> Iterator[tuple[bytes, int]]:
    """(payload, offset after the record) of each record of ``file`` between its offsets ``at`` and ``size``.

    Raises:
        TornRecord: the last record ends beyond ``size``.
        Corruption: something else than a record.
    """
    file.seek(at)
    while at < size:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise TornRecord(f"{name}: the file ends {len(head)} bytes into the head of the record at offset {at}")
        magic, length = _HEAD.unpack(head)
        if magic != MAGIC or length < 0:
            raise Corruption(f"{name}: no record begins at offset {at}: magic {magic:#x}, length {length}")
        rest = file.read(length + _TAIL.size) if at + AROUND + length <= size else b""
        if len(rest) < length + _TAIL.size:
            raise TornRecord(f"{name}: the record at offset {at} has {length} bytes, and the file ends within the record")
        payload = rest[:length]
        (checksum,) = _TAIL.unpack_from(rest, length)
        if google_crc32c.value(payload) != checksum:
            raise Corruption(f"{name}: the checksum of the record at offset {at} ({length} bytes) is wrong")
        at += AROUND + length
        yield payload, at


def file_name(index: int, moment: datetime.datetime) -> str:
    """The name of a file begun at ``moment``, local time."""
    return f"binlog-{index:016}-{moment:%Y%m%d%H%M%S}"


def read_file_name(name: str) -> BinlogName | None:
    """The parts of a file's name; None for a file that holds no binlogs."""
    parts = name.split("-")
    if parts[0] != "binlog" or not 2 <= len(parts) <= 4 or name.endswith(("checkpoint", LOCK)):
        return None
    index = _INDEX.match(parts[1])
    first_ts = parts[3].partition(".")[0] if len(parts) == 4 else "0"
    return BinlogName(name, int(index.group()), int(first_ts)) if index and first_ts.isdecimal() else None


def in_order(names: Iterable[str]) -> tuple[BinlogName, ...]:
    """The files of binlogs among ``names``, in the order in which they were written."""
    return tuple(found for name in sorted(names) if (found := read_file_name(name)) is not None)


def require_whole(files: Sequence[BinlogName]) -> None:
    """``Corruption`` when a file is missing between two others. As in the original, none is missed between index 0 and the next."""
    for before, after in zip(files, files[1:], strict=False):
        if before.index not in (0, after.index - 1):
            raise Corruption(f"files are missing between {before.name} and {after.name}: move them back, or begin in an empty directory")


def collectable(files: Sequence[BinlogName], before: FilePosition) -> tuple[BinlogName, ...]:
    """The files that lie before a position, never the newest one."""
    return tuple(f for f in files[:-1] if f.index < before.index)


# Reading.


def files_in(directory: Path) -> tuple[BinlogName, ...]:
    """The files of binlogs of a directory, in order; empty when there is no such directory."""
    return in_order(os.listdir(directory)) if directory.is_dir() else ()


def read_records(path: Path, at: int = 0) -> Iterator[BinlogRecord]:
    """The records of one file from offset ``at`` on; raises as ``records_in``."""
    found = read_file_name(path.name)
    index = found.index if found else 0
    with path.open("rb") as file:
        for payload, end in records_in(file, os.fstat(file.fileno()).st_size, path.name, at):
            yield BinlogRecord(payload, FilePosition(index, end))


def walk(directory: Path, begin: FilePosition | None = None) -> Iterator[BinlogRecord]:
    """The records of a directory from ``begin`` on (default: all). A torn record ends the last file, and is an error in any other."""
    files = files_in(directory)
    kept = [f for f in files if begin is None or f.index >= begin.index]
    for file in kept:
        at = begin.offset if begin is not None and file.index == begin.index else 0
        try:
            yield from read_records(directory / file.name, at)
        except TornRecord:
            if file is not kept[-1]:
                raise


def whole_until(path: Path) -> int:
    """The offset after the last whole record of a file.

    Raises:
        Corruption: what follows it is not a torn record.
    """
    end = 0
    try:
        for record in read_records(path):
            end = record.end.offset
    except TornRecord:
        pass
    return end


# Writing.


class BinlogWriter:
    """The only writer of a directory. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int = MAX_FILE_BYTES,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        *,
        cut_to: FilePosition | None = None,
    ) -> None:
        """Lock the directory, which is created, and open its last file.

        Args:
            directory: where the files lie.
            max_bytes: a file of at least this size is the last of its index.
            now: local time, for names.
            cut_to: everything after it is removed (``BinlogWriter.cut``); None: nothing but a torn tail.

        Raises:
            LeaseHeld: another process writes to the directory.
            Corruption: a file is missing, or the end of the last one is neither a record nor a torn one.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        self._now = now
        self._unsynced = False
        self._name = ""
        """Of the file being written."""
        directory.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        self._lock = _locked(directory)
        try:
            self._file, self._position = self._open_last(cut_to)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def position(self) -> FilePosition:
        """Where the next record begins."""
        return self._position

    def append(self, payloads: Iterable[bytes]) -> None:
        """Write a record for each payload that is not empty."""
        joined: list[bytes] = []
        size = 0
        for payload in payloads:
            if not payload:
                continue
            record = record_of(payload)
            joined.append(record)
            size += len(record)
            full = self._position.offset + size >= self._max_bytes
            if full or size >= _WRITE_BYTES:
                self._write(joined)
                joined, size = [], 0
            if full:
                self._rotate()
        self._write(joined)

    def sync(self) -> None:
        """Make everything written durable.

        Raises:
            ApplyError: the file is not at its place any more; what was written since the last ``sync`` counts as not written.
        """
        if self._unsynced:
            os.fsync(self._file)
            self._require_there()
            self._unsynced = False

    def require(self, place: FilePosition) -> FilePosition:
        """``place``, which exists.

        Raises:
            Corruption: it does not.
        """
        self._file_of(place)
        return place

    def cut(self, to: FilePosition) -> None:
        """Remove what was written after ``to``: the rest of its file and all later files.

        Raises:
            Corruption: that place does not exist.
        """
        os.close(self._file)
        self._file, self._position = self._open_last(to)

    def files(self) -> tuple[BinlogName, ...]:
        """The files, in order; the last one is being written."""
        return files_in(self._directory)

    def collect(self, files: Iterable[BinlogName]) -> None:
        """Delete these files."""
        for file in files:
            (self._directory / file.name).unlink(missing_ok=True)

    def older_than(self, seconds: float) -> tuple[BinlogName, ...]:
        """The first files, up to the first that was written within the last ``seconds``; never the newest file.

        A later file that seems old stays if a file before it seems young (copied or touched), because no file may be missing between two others.
        """
        limit = time.time() - seconds
        return tuple(itertools.takewhile(lambda f: (self._directory / f.name).stat().st_mtime < limit, self.files()[:-1]))

    def close(self) -> None:
        """Release the directory. Nothing is made durable that was not; safe to call twice."""
        if self._lock >= 0:
            os.close(self._file)
            os.close(self._lock)
            self._lock = -1

    def _open_last(self, cut_to: FilePosition | None) -> tuple[int, FilePosition]:
        files = self.files()
        if not files and cut_to in (None, FilePosition(0, 0)):
            return self._begin(0), FilePosition(0, 0)
        require_whole(files)
        last = files[-1] if cut_to is None else self._file_of(cut_to)
        held = (self._directory / last.name).stat().st_size
        end = whole_until(self._directory / last.name) if cut_to is None else cut_to.offset
        # the newest first, so that a crash in between leaves no gap
        self.collect(f for f in reversed(files) if f.index > last.index)
        found = os.open(self._directory / last.name, os.O_WRONLY | os.O_APPEND)
        if end < held:
            os.ftruncate(found, end)
            os.fsync(found)
        sync_directory(self._directory)
        self._name = last.name
        return found, FilePosition(last.index, end)

    def _file_of(self, place: FilePosition) -> BinlogName:
        found = next((f for f in self.files() if f.index == place.index), None)
        if found is None or (self._directory / found.name).stat().st_size < place.offset:
            raise Corruption(f"{self._directory} does not hold {place}, up to which binlogs were recorded as written: were files removed?")
        return found

    def _require_there(self) -> None:
        """The descriptor alone would take writes for as long as this process lives, and they would be gone with it."""
        path, held = self._directory / self._name, os.fstat(self._file)
        try:
            there = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            there = None
        if there is None or (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise ApplyError(
                f"{path} was {'removed or moved' if there is None else 'replaced by another file'} while this program wrote it. The last binlogs are not recorded as "
                "written. Put the file back and start again. No other program may touch the newest file of this directory"
            )

    def _write(self, records: list[bytes]) -> None:
        data = memoryview(b"".join(records))
        while data:
            self._unsynced = True
            done = os.write(self._file, data)
            self._position = FilePosition(self._position.index, self._position.offset + done)
            data = data[done:]

    def _rotate(self) -> None:
        self.sync()
        following = self._begin(self._position.index + 1)
        os.close(self._file)
        self._file, self._position = following, FilePosition(self._position.index + 1, 0)

    def _begin(self, index: int) -> int:
        path = self._directory / file_name(index, self._now())
        found = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _FILE_MODE)
        sync_directory(self._directory)
        self._name = path.name
        return found


def _locked(directory: Path) -> int:
    try:
        return locked_file(directory / LOCK, _FILE_MODE)
    except BlockingIOError:
        raise LeaseHeld(
            f"another Drainer writes to {directory} and holds {directory / LOCK}: stop that Drainer, or name another directory"
        ) from None
