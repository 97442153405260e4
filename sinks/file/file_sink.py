"""Binlogs as files (``db-type = "file"``): what a real Drainer's file sink writes, byte for byte, and Reparo reads (wire.md 2.5 and 3).

Promises: those of the contract. The files hold each transaction and DDL once, in the order of commit_ts, and begin and end where they would without
a crash. Beyond a real Drainer's savepoint its files may hold more: the sink removes those records, and writes them again when the stream brings them.
Files are deleted by the time of their last write, but never the newest one.
"""

import datetime
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.schemas.binlogfile import (
    MAX_FILE_BYTES,
    BinlogName,
    BinlogWriter,
    FilePosition,
    TornRecord,
    files_in,
    read_records,
)
from pyspark_tidb_binlog.schemas.durable_file import written_in
from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.column_values import process_zone
from pyspark_tidb_binlog.sinks.translate.local_record import LocalProgress, TargetPlace
from pyspark_tidb_binlog.sinks.translate.message_sink import LastBinlog, MessageSettings, MessageSink, Outlet
from pyspark_tidb_binlog.sinks.translate.pb_binlogs import PbBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Message

_log = logging.getLogger(__name__)

_TIDY_SECONDS = 3600.0
"""Interval between two looks for old files, as in the original."""
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class FileTarget:
    """The place of binlogs. TOML table ``[syncer.to]`` with ``db-type = "file"``."""

    directory: Path
    """``dir``."""
    retention_days: int = 0
    """``retention-time``: files last written before that are deleted; 0 = never."""
    max_file_bytes: int = MAX_FILE_BYTES


def file_sink(target: FileTarget, settings: MessageSettings) -> MessageSink:
    """The sink of a stream into files. TIMESTAMP values are in the zone of this process."""
    return MessageSink(settings, PbBinlogs(process_zone()), BinlogDirectory(target))


class BinlogDirectory(Outlet):
    """Files of binlogs in one directory."""

    def __init__(self, target: FileTarget, now: Callable[[], datetime.datetime] = datetime.datetime.now) -> None:
        self._target = target
        self._now = now
        self._writer: BinlogWriter | None = None
        self._cut_to: FilePosition | None = None
        """The place at which the first ``put`` continues; None: the end."""
        self._tidied_at = time.monotonic()

    def open(self, progress: LocalProgress | None, commit_ts: int) -> None:
        """Lock the directory. The first ``put`` removes what is beyond ``progress``: by then the upstream has shown that it still holds these binlogs. If the record
        was restored from an old backup, these files may be the only copy.
        """
        target = self._target
        with self._written(), ExitStack() as closing:
            writer = BinlogWriter(target.directory, target.max_file_bytes, self._now)
            closing.callback(writer.close)
            place = progress.place if progress is not None else None
            end = FilePosition(place["file"], place["offset"]) if place else end_of(target.directory, commit_ts)
            if progress is None and end != writer.position:
                raise ApplyError(
                    f"{target.directory} holds binlogs beyond {commit_ts}, where the stream begins, and no savepoint says how far they reach. Begin in "
                    "an empty directory, or restore the savepoint"
                )
            self._cut_to = self._required(writer, end) if end != writer.position else None
            closing.pop_all()
            self._writer = writer

    def _required(self, writer: BinlogWriter, end: FilePosition) -> FilePosition:
        try:
            return writer.require(end)
        except Corruption as error:
            left = last_ts_of(self._target.directory)
            again = (
                f"with commitTS = {left} in savepoint, which is the last binlog that remains"
                if left
                else "with initial-commit-ts, in an empty data-dir"
            )
            raise Corruption(
                f"{error} Put these files back. If they are lost and the Pumps still hold their binlogs, write them again: remove savepoint.spark and start {again}"
            ) from error

    def _written(self) -> AbstractContextManager[None]:
        return written_in("binlogs", self._target.directory, "syncer.to.dir")

    def put(self, messages: Iterable[Message]) -> int:
        """Append a record per message."""
        writer, events = self._held, 0

        def payloads() -> Iterator[bytes]:
            nonlocal events
            for message in messages:
                events += message.events
                yield message.payload

        with self._written():
            if self._cut_to is not None:
                _log.warning("%s: binlogs after %s are removed; they are written again", self._target.directory, self._cut_to)
                writer.cut(self._cut_to)
                self._cut_to = None
            writer.append(payloads())
            writer.sync()
            self._tidy()
        return events

    def last(self) -> LastBinlog | None:
        """The last record of the newest file that has one."""
        commit_ts = last_ts_of(self._target.directory)
        return LastBinlog(str(self._target.directory), commit_ts) if commit_ts else None

    @property
    def place(self) -> TargetPlace:
        """The file and the offset after the last record."""
        position = self._cut_to or self._held.position
        return {"file": position.index, "offset": position.offset}

    @property
    def waiting_for(self) -> None:
        """A file system's errors are not retried."""
        return

    def close(self) -> None:
        """Release the directory."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _held(self) -> BinlogWriter:
        if self._writer is None:
            raise ApplyError("the directory of binlogs is not open")
        return self._writer

    def _tidy(self) -> None:
        if self._target.retention_days > 0 and time.monotonic() - self._tidied_at >= _TIDY_SECONDS:
            self._tidied_at = time.monotonic()
            old = self._held.older_than(self._target.retention_days * _DAY)
            self._held.collect(old)
            _log.info("%s: %d files older than %d days were deleted", self._target.directory, len(old), self._target.retention_days)


# The end of a directory's binlogs, of either format (wire.md 3). A torn record at the end of a file is ignored. Any other invalid record is ``Corruption``.


def end_of(directory: Path, commit_ts: int) -> FilePosition:
    """Return the place after the last record with a commit_ts of at most ``commit_ts``: in the last file that begins with one."""
    files = files_in(directory)
    for file in reversed(files):
        end = _end_in(directory, file, commit_ts)
        if end.offset:
            follows = end.offset == (directory / file.name).stat().st_size and next((f for f in files if f.index == file.index + 1), None)
            return FilePosition(follows.index, 0) if follows else end
    return FilePosition(files[0].index, 0) if files else FilePosition(0, 0)


def _end_in(directory: Path, file: BinlogName, commit_ts: int) -> FilePosition:
    end = FilePosition(file.index, 0)
    with suppress(TornRecord):
        for record in read_records(directory / file.name):
            if commit_ts_of(record.payload) > commit_ts:
                break
            end = record.end
    return end


def last_ts_of(directory: Path) -> int:
    """Return the commit_ts of the last binlog; 0 if the directory has none."""
    for file in reversed(files_in(directory)):
        last = b""
        with suppress(TornRecord):
            for record in read_records(directory / file.name):
                last = record.payload
        if last:
            return commit_ts_of(last)
    return 0
