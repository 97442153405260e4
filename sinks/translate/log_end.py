"""Finds the end of a directory's binlogs, by commit_ts, for sinks that continue after a certain binlog (wire.md 3).

Promises: reads only. Files of either format. A torn record at the end of a file is ignored; any other invalid record raises ``Corruption``
with the file and the offset.
"""

from pathlib import Path

from pyspark_tidb_binlog.schemas.binlogfile import BinlogName, FilePosition, TornRecord, files_in, read_records
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of


def end_of(directory: Path, commit_ts: int) -> FilePosition:
    """The place after the last record with a commit_ts of at most ``commit_ts``: in the last file that begins with one."""
    files = files_in(directory)
    for file in reversed(files):
        end = _end_in(directory, file, commit_ts)
        if end.offset:
            follows = end.offset == (directory / file.name).stat().st_size and next((f for f in files if f.index == file.index + 1), None)
            return FilePosition(follows.index, 0) if follows else end
    return FilePosition(files[0].index, 0) if files else FilePosition(0, 0)


def _end_in(directory: Path, file: BinlogName, commit_ts: int) -> FilePosition:
    end = FilePosition(file.index, 0)
    try:
        for record in read_records(directory / file.name):
            if commit_ts_of(record.payload) > commit_ts:
                return end
            end = record.end
    except TornRecord:
        pass
    return end


def last_ts_of(directory: Path) -> int:
    """The commit_ts of the last binlog; 0 where there is none."""
    for file in reversed(files_in(directory)):
        last = b""
        try:
            for record in read_records(directory / file.name):
                last = record.payload
        except TornRecord:
            pass
        if last:
            return commit_ts_of(last)
    return 0
