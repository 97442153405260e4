"""The value log: files of records, appended in batches, rotated, scanned, read at a pointer.

Promises: ``append`` returns only when its records are on the disk (with ``sync``). A batch that fails is truncated away; if that fails too,
or a sync fails, the log stops for good rather than acknowledge what may be lost. If a file cannot be opened, the batch is refused and the
next ``append`` tries again. Only durable records are read.
One appender, any number of readers: a file that is dropped stays readable for the scans that read it. ``recover`` truncates a torn tail of
the newest file, never acknowledged records; damage is counted and reported with the records around it (``RecordRun.holes``).

Points of ``conf.failpoints``: vlog-before-write, vlog-written, vlog-synced, vlog-finished, vlog-created, vlog-before-drop, vlog-dropped.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from binlog_source.pump.storage.env import AppendFile, FileSystem, ReadFile
from binlog_source.pump.storage.format import (
    FOOTER,
    HEADER,
    decode_footer,
    decode_record,
    encode_footer,
    encode_record,
    file_id_of,
    file_name,
    is_framed,
    split_records,
)
from binlog_source.pump.storage.pointer import BEGINNING, Pointer
from binlog_source.pump.storage.record import Record
from conf import failpoints
from schemas.errors import BinlogPurged, Corruption

FINISH_FROM = 50 * 1024
"""Minimum bytes of the active file for a clean close to finish it with a footer (pump.md 4.1)."""
_PIECE = 1 << 20
Admit = Callable[[int], bool]
_log = logging.getLogger(__name__)


def _at_once(size: int) -> bool:
    return True


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


class _File:
    """One value-log file: its reader, and how far its records reach."""

    __slots__ = ("finished", "length", "max_ts", "reader")

    def __init__(self, reader: ReadFile) -> None:
        size = reader.size()
        footer = decode_footer(reader.read(size - FOOTER.size, FOOTER.size)) if size >= FOOTER.size else None
        self.reader = reader
        self.finished = footer is not None
        self.length = size - FOOTER.size if self.finished else size
        self.max_ts = footer or 0


class ValueLog:
    """The files below one directory. Call ``recover`` to its end before the first ``append``."""

    def __init__(self, directory: Path, files: FileSystem, max_file_size: int, sync: bool) -> None:
        self._directory = directory
        self._fs = files
        self._max_file_size = max_file_size
        self._sync = sync
        self._failure: OSError | None = None
        self._appender: AppendFile | None = None
        self._ready = False
        self._lock = threading.Lock()
        files.make_dir(directory)
        ids = sorted(i for i in map(file_id_of, files.names(directory)) if i is not None)
        self._files = {i: _File(files.open_read(directory / file_name(i))) for i in ids}
        self._active = ids[-1] if ids else -1
        self.damaged_bytes = 0
        """Bytes skipped because they are not records, over all scans so far."""
        self.sync_seconds = 0.0
        """Seconds spent in fdatasync so far."""
        self.rotations = 0
        """Files finished because they were full."""

    @property
    def file_ids(self) -> tuple[int, ...]:
        """The ids of the files, ascending."""
        with self._lock:
            return tuple(sorted(self._files))

    @property
    def end(self) -> Pointer:
        """Just after the last record."""
        with self._lock:
            return Pointer(self._active, self._files[self._active].length) if self._files else BEGINNING

    @property
    def beginning(self) -> Pointer:
        """The position of the oldest record that is still kept."""
        with self._lock:
            return Pointer(min(self._files), 0) if self._files else BEGINNING

    @property
    def size(self) -> int:
        """Bytes of records in all files."""
        with self._lock:
            return sum(f.length for f in self._files.values())

    def recover(self, start: Pointer, indexed: Pointer = BEGINNING) -> Iterator[RecordRun]:
        """The records from ``start`` on, in order; then the torn tail is truncated and the log is ready for ``append``.

        ``indexed``: what precedes it was durable once, so that an unreadable record there is damaged, not torn.
        """
        good = start.offset if start.file_id == self._active else 0
        for piece in self.scan(start, None):
            if piece.file_id == self._active:
                piece = self._without_torn(piece, indexed)
                last = piece.end_of(len(piece.offsets) - 1) if piece.offsets else good
                good = max(good, last, *(end for _, end in piece.holes))
            yield piece
        self._ready = True
        if self._active < 0 or self._files[self._active].finished:
            self._open_next()
            return
        active = self._files[self._active]
        self._appender = self._fs.open_append(self._directory / file_name(self._active))
        if good < active.length:
            _log.warning("value log %s: torn tail of %d bytes truncated at offset %d", file_name(self._active), active.length - good, good)
            self._appender.truncate(good)
            self._appender.sync()
            active.length = good

    def _without_torn(self, piece: RecordRun, indexed: Pointer) -> RecordRun:
        """The newest file's ``piece`` without the hole of an unfinished append: part of a record that was never acknowledged."""
        active = self._files[self._active]
        if active.finished or not piece.holes or piece.holes[-1][1] != active.length:
            return piece
        begin, end = piece.holes[-1]
        kept = min(indexed.offset, end) if indexed.file_id == self._active else begin
        if is_framed(active.reader.read(begin, end - begin)):
            kept = end
        return piece._replace(holes=[*piece.holes[:-1], *([(begin, kept)] if kept - begin >= HEADER.size else [])])

    def max_ts(self, file_id: int) -> int:
        """The largest ts of a file; of an unfinished one, of what was appended or noted so far."""
        return self._files[file_id].max_ts

    def unfinished(self) -> tuple[int, ...]:
        """The ids of the files without a footer, ascending; those besides the active one lost it, or another program left them so."""
        return tuple(i for i in self.file_ids if not self._files[i].finished)

    def note_ts(self, file_id: int, ts: int) -> None:
        """Note that recovery found ``ts`` in a file; its footer will hold the largest."""
        self._files[file_id].max_ts = max(self._files[file_id].max_ts, ts)

    def append(self, records: Sequence[Record]) -> list[Pointer]:
        """Make the first records durable, as many as the active file takes (the last may exceed its limit); the position of each."""
        if self._failure is not None:
            raise OSError(f"the value log stopped after an earlier failure ({self._failure}); restart the Pump")
        if not self._ready:
            raise OSError("the value log is closed or not yet recovered")
        self._make_room()
        active = self._files[self._active]
        offset, max_ts = active.length, active.max_ts
        frames: list[bytes] = []
        places: list[Pointer] = []
        for record in records:
            frame = encode_record(record.payload)
            frames.append(frame)
            places.append(Pointer(self._active, offset))
            offset += len(frame)
            max_ts = max(max_ts, record.ts)
            if offset > self._max_file_size:
                break
        self._write(b"".join(frames), active.length)
        active.max_ts = max_ts
        active.length = offset
        try:
            self._make_room()
        except OSError as error:
            _log.warning("value log %s: %s; the next append begins the next file", file_name(self._active), error)
        return places

    def _make_room(self) -> None:
        """Begin the next file when the active one is full."""
        active = self._files[self._active]
        if active.length <= self._max_file_size and self._appender is not None:
            return
        if not active.finished:
            self._finish()
        self._open_next()
        self.rotations += 1

    def _write(self, data: bytes, length_before: int) -> None:
        appender = self._appender
        if appender is None:
            raise OSError("the value log has no file to write to")
        failpoints.point("vlog-before-write")
        try:
            appender.append(data)
        except OSError:
            # a partial write must not precede the next record
            try:
                appender.truncate(length_before)
            except OSError as error:
                self._failure = error
            raise
        failpoints.point("vlog-written")
        if self._sync:
            begun = time.perf_counter()
            self._force(appender.sync)
            self.sync_seconds += time.perf_counter() - begun
        failpoints.point("vlog-synced")

    def _force(self, sync: Callable[[], None]) -> None:
        """Sync; after a failure it is unknown what the disk holds, so that no further record may be acknowledged."""
        try:
            sync()
        except OSError as error:
            self._failure = error
            raise

    def _finish(self) -> None:
        active = self._files[self._active]
        self._write(encode_footer(active.max_ts), active.length)
        active.finished = True
        failpoints.point("vlog-finished")

    def _open_next(self) -> None:
        self._close_appender()
        path = self._directory / file_name(self._active + 1)
        # open everything before the sync: a lack of descriptors can be retried, a failed sync cannot
        with contextlib.closing(self._fs.open_dir(self._directory)) as directory, contextlib.ExitStack() as undo:
            appender = self._fs.open_append(path)
            undo.callback(appender.close)
            opened = _File(self._fs.open_read(path))
            failpoints.point("vlog-created")
            self._force(directory.sync)
            undo.pop_all()
        self._appender = appender
        with self._lock:
            self._files[self._active + 1] = opened
            self._active += 1

    def _close_appender(self) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            appender.close()

    def read(self, at: Pointer, length: int) -> bytes:
        """The payload of the record of ``length`` bytes at ``at``.

        Raises:
            Corruption: there is no such record.
            BinlogPurged: its file was collected meanwhile.
        """
        file = self._files.get(at.file_id)
        if file is None:
            if not self._ready:
                raise OSError("the value log is closed")
            raise BinlogPurged(f"value log {at}: the file has been collected")
        return decode_record(file.reader.read(at.offset, length), at)

    def scan(self, start: Pointer, upto: Pointer | None, piece_size: int = _PIECE, admit: Admit = _at_once) -> Iterator[RecordRun]:
        """Records from ``start`` on in pieces of about ``piece_size``, up to ``upto`` or the current end of the log.

        ``admit`` is called with the bytes of each larger read, for a record that is longer; where it returns False, the scan ends.
        The files are determined at the call: one that is dropped later is still read to its end.
        """
        with self._lock:
            ids = sorted(i for i in self._files if i >= start.file_id and (upto is None or i <= upto.file_id))
            files = {i: self._files[i] for i in ids}
        return self._scan_files(files, start, upto, piece_size, admit)

    def _scan_files(
        self, files: Mapping[int, _File], start: Pointer, upto: Pointer | None, piece_size: int, admit: Admit
    ) -> Iterator[RecordRun]:
        for file_id, file in files.items():
            begin = start.offset if file_id == start.file_id else 0
            end = upto.offset if upto is not None and file_id == upto.file_id else file.length
            if not (yield from self._scan_file(file_id, file.reader, begin, end, piece_size, admit)):
                return

    def _scan_file(
        self, file_id: int, reader: ReadFile, at: int, end: int, piece_size: int, admit: Admit
    ) -> Generator[RecordRun, None, bool]:
        """Returns whether the end was reached; False: ``admit`` returned False."""
        wanted = piece_size
        carried: list[tuple[int, int]] = []
        while at < end:
            if wanted > piece_size and not admit(min(wanted, end - at)):
                return False
            split = split_records(reader.read(at, min(wanted, end - at)), end - at)
            if split.skipped:
                self.damaged_bytes += split.skipped
                _log.warning("value log %s: %d damaged bytes skipped from offset %d on", file_name(file_id), split.skipped, at)
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

    def drop(self, upto_ts: int, before: int) -> list[int]:
        """Remove the oldest finished files, below file id ``before``, whose largest ts is at most ``upto_ts``; their ids."""
        gone: list[int] = []
        with contextlib.closing(self._fs.open_dir(self._directory)) as directory:
            for file_id in self.file_ids:
                file = self._files[file_id]
                if file_id >= before or file_id == self._active or not file.finished or file.max_ts > upto_ts:
                    break
                failpoints.point("vlog-before-drop")
                self._fs.remove(self._directory / file_name(file_id))
                with self._lock:
                    del self._files[file_id]
                # one by one: after a power failure no file may reappear whose successor is gone
                directory.sync()
                gone.append(file_id)
                failpoints.point("vlog-dropped")
        return gone

    def close(self) -> None:
        """Finish the active file if it is large enough, and close all files. A failure is repaired at the next open."""
        self._ready = False
        try:
            if self._appender is not None and self._failure is None and self._files[self._active].length >= FINISH_FROM:
                self._finish()
            self._close_appender()
        except OSError as error:
            _log.warning("value log %s is not finished: %s", file_name(self._active), error)
        with self._lock:
            self._files.clear()


def _joined(before: list[tuple[int, int]], holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """``before`` (at most one) and ``holes``, merged where they touch."""
    if before and holes and before[0][1] == holes[0][0]:
        return [(before[0][0], holes[0][1]), *holes[1:]]
    return [*before, *holes]
