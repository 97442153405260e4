"""The files of a value log: which exist, how far their records reach, the largest ts of each, and the one scan of a file from one end to the
other, for recovery, the slow chaser, the pulls and the operator's report.

Promises: any thread may read this while the writer adds a file and the collection removes some. A removed file stays readable for those
who have it open. A scan returns every record between the two ends once, in order. Bytes that are not records are reported with the records
around them (``RecordRun.holes``), however the file is cut into pieces.

Points of ``conf.failpoints``: vlog-before-drop, vlog-dropped.
"""

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_tidb_binlog.binlog_source.pump.storage.env import FileSystem, ReadFile
from pyspark_tidb_binlog.binlog_source.pump.storage.format import (
    BEGINNING,
    FOOTER,
    HEADER,
    Pointer,
    decode_footer,
    file_id_of,
    file_name,
    split_records,
)
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import Corruption

PIECE = 1 << 20
"""Bytes that a scan reads at once."""
Admit = Callable[[int], bool]
"""Called with the bytes of a read that is larger than a piece; where it returns False, the scan ends."""
OnSkipped = Callable[[int, int], None]
"""Called with the damaged bytes in a piece, and the offset from which on they were found."""


class RecordRun(NamedTuple):
    """Some records of one file, in order, and the damaged places between them."""

    file_id: int
    offsets: list[int]
    payloads: list[bytes]
    holes: Sequence[tuple[int, int]] = ()
    """Begin and end of the bytes that are not records: places where records may have been."""

    def end_of(self, position: int) -> int:
        """Offset just after the record at ``position``."""
        return self.offsets[position] + HEADER.size + len(self.payloads[position])


class LogFile:
    """One value-log file: its reader, and how far its records reach."""

    __slots__ = ("finished", "length", "max_ts", "reader")

    def __init__(self, reader: ReadFile) -> None:
        size = reader.size()
        footer = decode_footer(reader.read(size - FOOTER.size, FOOTER.size)) if size >= FOOTER.size else None
        self.reader = reader
        self.finished = footer is not None
        """Whether it has its footer: nothing is appended to it any more."""
        self.length = size - FOOTER.size if self.finished else size
        """Bytes of records."""
        self.max_ts = footer or 0


class LogFiles:
    """The files below one directory."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self.directory = directory
        self.fs = fs
        self._lock = threading.Lock()
        fs.make_dir(directory)
        ids = sorted(i for i in map(file_id_of, fs.names(directory)) if i is not None)
        self._files = {i: LogFile(fs.open_read(directory / file_name(i))) for i in ids}
        self.active = ids[-1] if ids else -1
        """The id of the newest file, which is appended to; -1: there is none."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the files, ascending."""
        with self._lock:
            return tuple(sorted(self._files))

    @property
    def end(self) -> Pointer:
        """Just after the last record."""
        with self._lock:
            return Pointer(self.active, self._files[self.active].length) if self._files else BEGINNING

    @property
    def beginning(self) -> Pointer:
        """The position of the oldest record that is still kept."""
        with self._lock:
            return Pointer(min(self._files), 0) if self._files else BEGINNING

    @property
    def newest(self) -> LogFile:
        """The active file."""
        return self._files[self.active]

    def get(self, file_id: int) -> LogFile | None:
        """A file; None if it was collected, or the log is closed."""
        return self._files.get(file_id)

    def file(self, file_id: int) -> LogFile:
        """A file that is there."""
        return self._files[file_id]

    def path(self, file_id: int) -> Path:
        """Where a file is, or will be."""
        return self.directory / file_name(file_id)

    def between(self, start: Pointer, upto: Pointer | None) -> dict[int, LogFile]:
        """The files that hold what is between two positions, oldest first; ``upto`` None: the end of the log."""
        with self._lock:
            ids = sorted(i for i in self._files if i >= start.file_id and (upto is None or i <= upto.file_id))
            return {i: self._files[i] for i in ids}

    def add(self, file: LogFile) -> None:
        """Begin to append to a new file, whose id follows the active one's."""
        with self._lock:
            self._files[self.active + 1] = file
            self.active += 1

    def kept(self, upto_ts: int, before: int) -> int:
        """The oldest file to keep: those before it are finished, below file id ``before``, and have no ts above ``upto_ts``."""
        for file_id in self.ids:
            file = self._files[file_id]
            if file_id >= before or file_id == self.active or not file.finished or file.max_ts > upto_ts:
                return file_id
        return self.active

    def drop(self, kept: int) -> list[int]:
        """Remove the files below file id ``kept``; their ids."""
        gone: list[int] = []
        with contextlib.closing(self.fs.open_dir(self.directory)) as directory:
            for file_id in self.ids:
                if file_id >= kept:
                    break
                failpoints.point("vlog-before-drop")
                self.fs.remove(self.path(file_id))
                with self._lock:
                    del self._files[file_id]
                # one by one: after a power failure no file may reappear whose successor is gone
                directory.sync()
                gone.append(file_id)
                failpoints.point("vlog-dropped")
        return gone

    def close(self) -> None:
        """Forget all files."""
        with self._lock:
            self._files.clear()


def at_once(size: int) -> bool:
    """The ``Admit`` that never ends a scan."""
    return True


def scan_file(
    file_id: int, reader: ReadFile, at: int, end: int, on_skipped: OnSkipped, piece_size: int = PIECE, admit: Admit = at_once
) -> Generator[RecordRun, None, bool]:
    """The records from offset ``at`` to ``end``. Returns whether the end was reached; False: ``admit`` returned False.

    Raises:
        Corruption: the file is shorter than ``end``.
    """
    wanted = piece_size
    carried: list[tuple[int, int]] = []
    while at < end:
        if wanted > piece_size and not admit(min(wanted, end - at)):
            return False
        split = split_records(reader.read(at, min(wanted, end - at)), end - at)
        if split.skipped:
            on_skipped(split.skipped, at)
        holes = _joined(carried, [(at + begin, at + over) for begin, over in split.holes])
        # a hole that reaches the end of the piece may continue in the next
        carried = [holes.pop()] if holes and holes[-1][1] == at + split.consumed < end else []
        holes = [hole for hole in holes if hole[1] - hole[0] >= HEADER.size]
        if split.offsets or holes:
            yield RecordRun(file_id, [at + offset for offset in split.offsets], split.payloads, holes)
        if not split.consumed and split.missing <= wanted:
            raise Corruption(f"value log {Pointer(file_id, at)}: the file is shorter than it was ({end} bytes expected)")
        at += split.consumed
        wanted = max(piece_size, split.missing)
    return True


def _joined(before: list[tuple[int, int]], holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """``before`` (at most one) and ``holes``, merged where they touch."""
    if before and holes and before[0][1] == holes[0][0]:
        return [(before[0][0], holes[0][1]), *holes[1:]]
    return [*before, *holes]
