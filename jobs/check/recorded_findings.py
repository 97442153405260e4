"""Reads the findings that a Drainer has recorded in its Delta table, without Spark: ``ctl`` starts no JVM.

The table's log names its Parquet files, and Arrow reads them (``read_table``).

Promises: a table is read as of one version of its log, also while it is written to or compacted. If a vacuum removes a file meanwhile, the read
starts again from the log. A reader feature that this reader does not know (such as deletion vectors) is an error, never a
wrong result.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as parquet

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.local_paths import local_path
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from pyspark_tidb_binlog.schemas.findings import FindingKind

_COLUMNS = ("kind", "table", "commit_ts", "key", "wanted", "found", "words", "recorded_at")


def recorded_findings(config: DrainerConfig) -> Sequence[dict[str, Any]]:
    """All rows, in no order.

    Raises:
        ConfigError: the table is not on this machine's file system.
        NotUsableYet: no Drainer has run with these settings.
    """
    place, directory = local_path(config.delta_dir), local_path(config.findings_dir)
    if place is None or directory is None:
        raise ConfigError(f"the Delta table {config.findings_dir} is not on this machine's file system: read it with Spark")
    table = read_table(directory, _COLUMNS)
    if table is None and not place.exists():
        raise NotUsableYet(
            f"no Drainer has written here: there is no Delta table {directory.absolute()} and no {place.absolute()}; check spark.delta-dir"
        )
    rows: Sequence[dict[str, Any]] = [] if table is None else table.to_pylist()
    return rows


_CLOSED_BY_REPAIR = (FindingKind.ROWS, FindingKind.VALUE)


class Repairs:
    """The rows of kind ``repaired`` among all rows. Pure."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """All rows of the table ``findings``."""
        self._upto = dict[tuple[str, str], int]()
        for row in rows:
            if row["kind"] == FindingKind.REPAIRED:
                place = row["table"], row["key"] or ""
                self._upto[place] = max(self._upto.get(place, 0), row["commit_ts"])

    def repaired_at(self, row: Mapping[str, Any]) -> int:
        """The timestamp at which what the finding is about was made right; 0: it is open, or was found at a later one."""
        if row["kind"] not in _CLOSED_BY_REPAIR:
            return 0
        upto = max(self._upto.get((row["table"], key), 0) for key in ("", row["key"] or ""))
        return upto if upto >= (row["commit_ts"] or 0) else 0

    def is_open(self, row: Mapping[str, Any]) -> bool:
        """Whether the finding still matters."""
        return row["kind"] != FindingKind.REPAIRED and not self.repaired_at(row)


def open_findings(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Those of ``rows`` that no repair has closed."""
    repairs = Repairs(rows)
    return [row for row in rows if repairs.is_open(row)]


_ATTEMPTS = 3
_READER_VERSION = 1


def read_table(directory: Path, columns: Sequence[str]) -> pa.Table | None:
    """These columns of all rows, in no order; None if there is no table.

    Raises:
        ConfigError: the table needs a reader that knows more, or changes faster than it can be read.
    """
    if not (directory / "_delta_log").is_dir():
        return None
    for _ in range(_ATTEMPTS):
        try:
            tables = [_as_any_writes(parquet.read_table(directory / name, columns=list(columns))) for name in sorted(_files(directory))]
        except FileNotFoundError:
            continue
        return pa.concat_tables(tables) if tables else None
    raise ConfigError(f"the Delta table {directory} changes faster than this program reads it; try again")


def _as_any_writes(table: pa.Table) -> pa.Table:
    """Timestamps of Spark's files are of nanoseconds and without a zone, those of delta-rs' are not."""
    moment = pa.timestamp("us", tz="UTC")
    return table.cast(pa.schema([pa.field(f.name, moment if pa.types.is_timestamp(f.type) else f.type) for f in table.schema]))


def _files(directory: Path) -> set[str]:
    """The data files of the newest version."""
    found: set[str] = set()
    for action in _actions(directory / "_delta_log"):
        if protocol := action.get("protocol"):
            _require_readable(directory, protocol)
        if added := action.get("add"):
            if added.get("deletionVector"):
                raise ConfigError(f"the Delta table {directory} has deletion vectors, which this program does not read. Read it with Spark")
            found.add(unquote(added["path"]))
        if removed := action.get("remove"):
            found.discard(unquote(removed["path"]))
    return found


def _require_readable(directory: Path, protocol: dict[str, Any]) -> None:
    if protocol.get("minReaderVersion", 0) > _READER_VERSION:
        raise ConfigError(f"the Delta table {directory} needs a reader of version {protocol['minReaderVersion']}. Read it with Spark")


def _actions(log: Path) -> Iterator[dict[str, Any]]:
    """All actions in order: those of the last checkpoint of the log, then those of the commits after it."""
    last = log / "_last_checkpoint"
    version = -1
    if last.exists():
        pointer = json.loads(last.read_text())
        version = int(pointer["version"])
        if pointer.get("parts"):
            names = [f"{version:020d}.checkpoint.{part:010d}.{pointer['parts']:010d}.parquet" for part in range(1, pointer["parts"] + 1)]
        else:
            names = [f"{version:020d}.checkpoint.parquet"]
        for name in names:
            yield from parquet.read_table(log / name, columns=["protocol", "add"]).to_pylist()
    for commit in sorted(log.glob("*.json")):
        if commit.stem.isdigit() and int(commit.stem) > version:
            for text in commit.read_text("utf-8").splitlines():
                yield json.loads(text)
