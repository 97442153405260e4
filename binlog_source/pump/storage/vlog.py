"""The value log: files of records, appended in batches, rotated, scanned, read at a pointer.

    vlog_writer.py  append, sync, rotate    vlog_files.py  the files, and every read of many records    format.py  their bytes

Promises: those of the writer; and only durable records are read. One appender, any number of readers: a dropped file stays readable for the
scans that read it. ``recover`` cuts an unfinished record off the end of the newest file, never acknowledged records. Damage is counted, and
reported with the records around it (``RecordRun.holes``).
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump.storage.env import FileSystem
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, HEADER, Pointer, decode_record, file_name, is_framed
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_files import PIECE, Admit, LogFile, LogFiles, RecordRun, at_once, scan_file
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_writer import LogWriter
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, Corruption

_BLOCK = 32 << 10
_BLOCKS = 8
_log = logging.getLogger(__name__)


class ValueLog(LogFiles):
    """The files below one directory. Call ``recover`` to its end before the first ``append``."""

    def __init__(self, directory: Path, files: FileSystem, max_file_size: int, sync: bool) -> None:
        super().__init__(directory, files)
        self.writer = LogWriter(self, max_file_size, sync)
        self.append = self.writer.append
        """See ``LogWriter``."""
        self.damaged_bytes = 0
        """Bytes skipped because they are not records, over all scans so far."""

    def recover(self, start: Pointer, indexed: Pointer = BEGINNING) -> Iterator[RecordRun]:
        """The records from ``start`` on, in order; then the torn tail is truncated and the log is ready for ``append``.

        ``indexed``: what precedes it was durable once, so that an unreadable record there is damaged, not torn.
        """
        good = start.offset if start.file_id == self.active else 0
        for run in self.scan(start, None):
            if run.file_id == self.active:
                run = self._without_torn(run, indexed)
                last = run.end_of(len(run.offsets) - 1) if run.offsets else good
                good = max(good, last, *(end for _, end in run.holes))
            yield run
        self.writer.resume(good)

    def _without_torn(self, run: RecordRun, indexed: Pointer) -> RecordRun:
        """The newest file's ``run`` without the part of a record that an unfinished append left: that record was never acknowledged."""
        newest = self.newest
        if newest.finished or not run.holes or run.holes[-1][1] != newest.length:
            return run
        begin, end = run.holes[-1]
        kept = min(indexed.offset, end) if indexed.file_id == self.active else begin
        if is_framed(newest.reader.read(begin, end - begin)):
            kept = end
        return run._replace(holes=[*run.holes[:-1], *([(begin, kept)] if kept - begin >= HEADER.size else [])])

    def max_ts(self, file_id: int) -> int:
        """The largest ts of a file; of an unfinished one, of what was appended or noted so far."""
        return self.file(file_id).max_ts

    def length(self, file_id: int) -> int:
        """Bytes of records in a file; 0 if it is not there."""
        file = self.get(file_id)
        return file.length if file is not None else 0

    def unfinished(self) -> tuple[int, ...]:
        """The ids of the files without a footer, ascending; those besides the active one lost it, or another program left them so."""
        return tuple(i for i in self.ids if not self.file(i).finished)

    def note_ts(self, file_id: int, ts: int) -> None:
        """Note that recovery found ``ts`` in a file; its footer will hold the largest."""
        file = self.file(file_id)
        file.max_ts = max(file.max_ts, ts)

    def read(self, at: Pointer, length: int) -> bytes:
        """The payload of the record of ``length`` bytes at ``at``.

        Raises:
            Corruption: there is no such record, or its file is missing between others.
            BinlogPurged: its file was collected meanwhile.
        """
        file = self.get(at.file_id)
        if file is None:
            if not self.writer.ready:
                raise OSError("the value log is closed")
            if at >= self.beginning:
                raise Corruption(f"value log {at}: the file is missing")
            raise BinlogPurged(f"value log {at}: the file has been collected")
        return decode_record(file.reader.read(at.offset, length), at)

    def nearby(self) -> "NearbyReader":
        """For single records that lie near each other."""
        return NearbyReader(self)

    def block(self, file_id: int, offset: int, size: int) -> bytes:
        """At most ``size`` bytes of a file; none if it was collected."""
        file = self.get(file_id)
        return file.reader.read(offset, size) if file is not None else b""

    def scan(self, start: Pointer, upto: Pointer | None, piece_size: int = PIECE, admit: Admit = at_once) -> Iterator[RecordRun]:
        """Records from ``start`` on in pieces of about ``piece_size``, up to ``upto`` or the current end of the log.

        ``admit`` is called with the bytes of each larger read, for a record that is longer; where it returns False, the scan ends.
        The files are determined at the call: one that is dropped later is still read to its end.
        """
        return self._scan_files(self.between(start, upto), start, upto, piece_size, admit)

    def _scan_files(
        self, files: Mapping[int, LogFile], start: Pointer, upto: Pointer | None, piece_size: int, admit: Admit
    ) -> Iterator[RecordRun]:
        for file_id, file in files.items():

            def on_skipped(size: int, at: int, name: str = file_name(file_id)) -> None:
                self.damaged_bytes += size
                _log.warning("value log %s: %d damaged bytes skipped from offset %d on", name, size, at)

            begin = start.offset if file_id == start.file_id else 0
            end = upto.offset if upto is not None and file_id == upto.file_id else file.length
            if not (yield from scan_file(file_id, file.reader, begin, end, on_skipped, piece_size, admit)):
                return

    def close(self) -> None:
        """Finish the active file if it is large enough, and close all files. A failure is repaired at the next open."""
        self.writer.close()
        super().close()


class NearbyReader:
    """Reads single records through a few blocks, so that those that lie near each other share a read. For one thread, for a short time."""

    def __init__(self, log: ValueLog) -> None:
        self._log = log
        self._blocks: dict[tuple[int, int], bytes] = {}

    def read(self, at: Pointer, length: int) -> bytes:
        """See ``ValueLog.read``."""
        number, begin = divmod(at.offset, _BLOCK)
        if begin + length <= _BLOCK:
            try:
                return decode_record(self._block(at.file_id, number)[begin : begin + length], at)
            except (Corruption, OSError):
                # written since the block was read, or damage elsewhere in the block: only the record itself counts
                pass
        return self._log.read(at, length)

    def _block(self, file_id: int, number: int) -> bytes:
        block = self._blocks.get((file_id, number))
        if block is None:
            if len(self._blocks) >= _BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            block = self._blocks[file_id, number] = self._log.block(file_id, number * _BLOCK, _BLOCK)
        return block
