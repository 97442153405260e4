"""Recovery of the value log after a crash: which records count, and where the newest file ends.

Promises: nothing is written. A torn tail is the part of a record that an unfinished append left at the end of the newest file; that record
was never acknowledged. Everything before it counts, damaged or not.
"""

from collections.abc import Generator, Iterator

from pyspark_tidb_binlog.binlog_source.pump.storage.format import HEADER, is_framed
from pyspark_tidb_binlog.binlog_source.pump.storage.pointer import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_files import LogFiles
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_scan import RecordRun


def recovered(files: LogFiles, runs: Iterator[RecordRun], start: Pointer, indexed: Pointer) -> Generator[RecordRun, None, int]:
    """The ``runs`` of a scan from ``start`` to the end of the log, without the torn tail; returns the offset at which that begins.

    ``indexed``: what precedes it was durable once, so that an unreadable record there is damaged, not torn.
    """
    good = start.offset if start.file_id == files.active else 0
    for run in runs:
        if run.file_id == files.active:
            run = _without_torn(files, run, indexed)
            last = run.end_of(len(run.offsets) - 1) if run.offsets else good
            good = max(good, last, *(end for _, end in run.holes))
        yield run
    return good


def _without_torn(files: LogFiles, run: RecordRun, indexed: Pointer) -> RecordRun:
    """The newest file's ``run`` without the hole of an unfinished append."""
    newest = files.newest
    if newest.finished or not run.holes or run.holes[-1][1] != newest.length:
        return run
    begin, end = run.holes[-1]
    kept = min(indexed.offset, end) if indexed.file_id == files.active else begin
    if is_framed(newest.reader.read(begin, end - begin)):
        kept = end
    return run._replace(holes=[*run.holes[:-1], *([(begin, kept)] if kept - begin >= HEADER.size else [])])
