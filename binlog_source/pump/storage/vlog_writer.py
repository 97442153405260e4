"""The writer of the value log: requests and how many of them one append writes, appends, syncs, and the change to the next file.

Promises: ``append`` returns only when its records are on the disk (with ``sync``). A failed batch is cut off again. If that fails too, or a
sync fails, the log stops for good: it never acknowledges what may be lost. If a file cannot be opened, the batch is refused and the next
``append`` tries again. There is one writer at a time, after recovery. A small request waits for no large one.

Points of ``conf.failpoints``: vlog-before-write, vlog-written, vlog-synced, vlog-finished, vlog-created.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.pump.storage.env import AppendFile
from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer, encode_footer, encode_record, file_name
from pyspark_tidb_binlog.binlog_source.pump.storage.record import Record
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_files import LogFile, LogFiles
from pyspark_tidb_binlog.conf import failpoints

FINISH_FROM = 50 * 1024
"""Minimum bytes of the active file for a clean close to finish it with a footer (pump.md 4.1)."""
_GROUP_BYTES = 1 << 20
SMALL_BYTES = 128 << 10
"""A group with a first request of at most this size takes only this much more: small requests do not wait for large ones (pump.md 4.4)."""
_log = logging.getLogger(__name__)


class WriteRequest:
    """Records to be written together; ``done`` is called on the thread that writes, with all requests of the group that share it."""

    __slots__ = ("begun", "done", "error", "records", "size", "call")

    def __init__(self, records: Sequence[Record], done: Callable[[list["WriteRequest"]], None], call: object = None) -> None:
        self.records = records
        self.done = done
        self.call = call
        self.size = sum(len(record.payload) for record in records)
        self.error: OSError | None = None
        """Why the write failed; None: all of it is durable."""
        self.begun = time.perf_counter()


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """The sizes and times of one group, for the metrics. Bytes and seconds."""

    requests: Sequence[WriteRequest]
    size: int
    write: float
    """The whole write, ``fsync`` included."""
    fsync: float
    rotated: bool


def group_of(requests: Sequence[WriteRequest]) -> int:
    """How many of the requests, from the first on, are written together."""
    size = requests[0].size
    limit = size + SMALL_BYTES if size <= SMALL_BYTES else _GROUP_BYTES
    count = 1
    while count < len(requests) and size < limit:
        size += requests[count].size
        count += 1
    return count


def refuse(group: Sequence[WriteRequest], durable: int, error: OSError) -> None:
    """Set the error of the requests whose records are not all among the first ``durable`` ones of their group."""
    for request in group:
        durable -= len(request.records)
        if durable < 0:
            request.error = error


class LogWriter:
    """Appends to the newest of the files. Call ``resume`` before the first ``append``."""

    def __init__(self, files: LogFiles, max_file_size: int, sync: bool) -> None:
        self._files = files
        self._max_file_size = max_file_size
        self._sync = sync
        self._failure: OSError | None = None
        self._appender: AppendFile | None = None
        self.ready = False
        """Whether the log is recovered and not closed."""
        self.sync_seconds = 0.0
        """Seconds spent in fdatasync so far."""
        self.rotations = 0
        """Files finished because they were full."""

    def resume(self, good: int) -> None:
        """Continue the newest file, truncated to ``good`` bytes of records, or begin the next one if it is finished."""
        self.ready = True
        active = self._files.active
        if active < 0 or self._files.newest.finished:
            self._open_next()
            return
        newest = self._files.newest
        self._appender = self._files.fs.open_append(self._files.path(active))
        if good < newest.length:
            _log.warning(
                "value log %s: an unfinished record of %d bytes at offset %d was cut off", file_name(active), newest.length - good, good
            )
            self._appender.truncate(good)
            self._appender.sync()
            newest.length = good

    def append(self, records: Sequence[Record]) -> list[Pointer]:
        """Make the first records durable, as many as the active file takes (the last may exceed its limit); the position of each."""
        if self._failure is not None:
            raise OSError(f"the value log takes no records since an earlier failure ({self._failure}): restart the Pump")
        if not self.ready:
            raise OSError("the value log is closed or not yet recovered")
        self._make_room()
        active, newest = self._files.active, self._files.newest
        offset, max_ts = newest.length, newest.max_ts
        frames: list[bytes] = []
        places: list[Pointer] = []
        for record in records:
            frame = encode_record(record.payload)
            frames.append(frame)
            places.append(Pointer(active, offset))
            offset += len(frame)
            max_ts = max(max_ts, record.ts)
            if offset > self._max_file_size:
                break
        self._write(b"".join(frames), newest.length)
        newest.max_ts = max_ts
        newest.length = offset
        try:
            self._make_room()
        except OSError as error:
            _log.warning("value log %s: %s. The next append begins the next file", file_name(active), error)
        return places

    def _make_room(self) -> None:
        """Begin the next file when the active one is full."""
        newest = self._files.newest
        if newest.length <= self._max_file_size and self._appender is not None:
            return
        if not newest.finished:
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
        newest = self._files.newest
        self._write(encode_footer(newest.max_ts), newest.length)
        newest.finished = True
        failpoints.point("vlog-finished")

    def _open_next(self) -> None:
        self._close_appender()
        fs, path = self._files.fs, self._files.path(self._files.active + 1)
        # open everything before the sync: a lack of descriptors can be retried, a failed sync cannot
        with contextlib.closing(fs.open_dir(self._files.directory)) as directory, contextlib.ExitStack() as undo:
            appender = fs.open_append(path)
            undo.callback(appender.close)
            opened = LogFile(fs.open_read(path))
            failpoints.point("vlog-created")
            self._force(directory.sync)
            undo.pop_all()
        self._appender = appender
        self._files.add(opened)

    def _close_appender(self) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            appender.close()

    def close(self) -> None:
        """Finish the active file if it is large enough, and close it. A failure is repaired at the next open."""
        self.ready = False
        try:
            if self._appender is not None and self._failure is None and self._files.newest.length >= FINISH_FROM:
                self._finish()
            self._close_appender()
        except OSError as error:
            _log.warning("value log %s: the footer could not be written: %s", file_name(self._files.active), error)
