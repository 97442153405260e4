"""Lists a Pump's value log offline, file by file and record by record: ``./spark-submit.sh pump inspect DATA_DIR``.

    file 000000.vlog: 1,234 records, 56,789 bytes, finished, max ts 470604668048769025 (2026-…)
    0:0       Prewrite  start 470604668048769025 (2026-…)                       216 bytes
    0:232     Commit    start …  commit …  DDL job 95                            80 bytes

Promises: read-only, also beside a running Pump and on a real Pump's directory. Damaged bytes and an unfinished last record are counted and
reported.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump.storage.env import ReadFile, RealFileSystem
from pyspark_tidb_binlog.binlog_source.pump.storage.format import FOOTER, decode_footer, file_id_of, file_name
from pyspark_tidb_binlog.binlog_source.pump.storage.record import Record, RecordKind, parse, read
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_files import scan_file
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time

_PIECE = 4 << 20


@dataclass(slots=True)
class FileReport:
    """One value-log file."""

    file_id: int
    size: int
    footer_ts: int | None
    """Largest ts according to the footer; None: not finished."""
    kinds: Counter[RecordKind] = field(default_factory=Counter)
    skipped: int = 0
    """Bytes that are not part of a record, a torn tail included."""
    max_ts: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{self.kinds[kind]:,} {kind.name.capitalize()}" for kind in RecordKind if self.kinds[kind])
        ended = f"finished, max ts {self.footer_ts}" if self.footer_ts is not None else "not finished"
        damage = f", {self.skipped:,} BYTES DAMAGED OR TORN" if self.skipped else ""
        wrong = f", FOOTER BELOW ITS RECORDS ({self.max_ts})" if self.footer_ts is not None and self.footer_ts < self.max_ts else ""
        newest = f", newest {as_time(self.max_ts)}" if self.max_ts else ""
        return f"file {file_name(self.file_id)}: {counts or 'no records'}, {self.size:,} bytes, {ended}{newest}{damage}{wrong}"


def value_directory(data_dir: Path) -> Path:
    """The directory of the ``.vlog`` files."""
    for directory in (data_dir / "value", data_dir):
        if directory.is_dir() and any(file_id_of(path.name) is not None for path in directory.iterdir()):
            return directory
    raise ConfigError(f"{data_dir} holds no value log: name a Pump's data-dir")


def inspect(directory: Path) -> Iterator[tuple[FileReport, Iterator[tuple[int, Record]]]]:
    """The report of each file, with its records and their offsets; a report is complete when its records are read."""
    for file_id in sorted(i for i in map(file_id_of, (path.name for path in directory.iterdir())) if i is not None):
        reader = RealFileSystem().open_read(directory / file_name(file_id))
        size = reader.size()
        footer = decode_footer(reader.read(size - FOOTER.size, FOOTER.size)) if size >= FOOTER.size else None
        report = FileReport(file_id, size, footer)
        yield report, _records(report, reader, size - FOOTER.size if footer is not None else size)


def _records(report: FileReport, reader: ReadFile, end: int) -> Iterator[tuple[int, Record]]:
    def on_skipped(size: int, at: int) -> None:
        report.skipped += size

    for run in scan_file(report.file_id, reader, 0, end, on_skipped, _PIECE):
        for offset, payload in zip(run.offsets, run.payloads, strict=True):
            record = read(payload)
            report.kinds[record.kind] += 1
            report.max_ts = max(report.max_ts, record.start_ts, record.commit_ts)
            yield offset, record


def line_of(file_id: int, at: int, record: Record) -> str:
    """One record as a line."""
    kind = record.kind.name.capitalize()
    times = f"start {record.start_ts} ({as_time(record.start_ts)})"
    if record.kind in (RecordKind.COMMIT, RecordKind.FAKE):
        times += f"  commit {record.commit_ts}"
    job = parse(record.payload).ddl_job_id
    return f"{f'{file_id}:{at}':14} {kind:9} {times}{f'  DDL job {job}' if job else ''}  {len(record.payload)} bytes"
