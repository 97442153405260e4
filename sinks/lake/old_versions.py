"""What a lake keeps of its past: rows of ``snapshots`` are thinned, and what no published version needs goes. [deltalake]

    rows younger than an hour     all
    older ones                    the last one of each hour, and those before and after each DDL of their table
    before ``Moment.kept_ts``     the newest one of each table, which the moments after it need; of a dropped table none
    with a ``job``                all: the schema history needs them

Of the ledger, row changes go that are older than ``OldChanges`` says; the upkeep removes them.

A pass of an hour thins ``snapshots``, removes the directories that no row names any more, and then tidies one mirror after the other, some seconds of
each moment: its files, and its log. In the log, a version that is kept has a checkpoint of its own, so the versions between may go.

Promises: a file stays for ``KEPT_HOURS`` after a newer version has removed it, and what a row has named until the pass after the one that removed the
row. A writer that was suspended removes nothing that a newer one has made, or may need: it looks whether another one has begun after it has chosen, and
names of files and directories are never used twice.
"""

import base64
import json
import logging
import shutil
import string
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.lake import lake_table
from pyspark_tidb_binlog.sinks.lake.lake_table import KEPT_HOURS, scanned
from pyspark_tidb_binlog.sinks.lake.moments import DROPPED, MIRRORED, Moment, Snapshots

_log = logging.getLogger(__name__)

PASS_SECONDS = 3600.0
LOOK_SECONDS = 2.0
"""Of a pass, between two moments."""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
YOUNG_HOURS = 1
_FROM_Z85 = str.maketrans(
    string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#",
    string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~",
)
"""To the digits of ``base64.b85decode``: it is the same code otherwise."""
_VECTORS = ("add.deletionVector.pathOrInlineDv", "remove.deletionVector.pathOrInlineDv", "remove.deletionTimestamp")
_RUN = ("table_id", "schema_version", "state", "path", "database", "table")
"""Between rows of a table that are alike in these there is no DDL of the table."""
_COLUMNS = (*_RUN, "number", "resolved_ts", "version", "job")
OF_CHANGES = ("number", "resolved_ts", "table_id", "state", "upto_ts")
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Versions = Mapping[str, Mapping[int, int]]
"""By path: the versions of a mirror that rows name, and the newest resolved_ts of each."""


def outlived(rows: pa.Table, newest_ts: int, kept_ts: int) -> list[int]:
    """The ``number`` of each row (``_COLUMNS``) that is not kept; pure."""
    rows = rows.sort_by([("table_id", "ascending"), ("number", "ascending")])
    ts, count = rows["resolved_ts"].to_numpy(), rows.num_rows
    if not count:
        return []
    codes = np.array([rows[name].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False) for name in _RUN])
    begins = np.append(True, (codes[:, 1:] != codes[:, :-1]).any(axis=0))
    ends = np.append(begins[1:], True)
    last = np.append(codes[0, 1:] != codes[0, :-1], True)
    next_ts, hours = np.append(ts[1:], 0), ts // tso(HOUR_MS)
    dropped = rows["state"].to_numpy(zero_copy_only=False) == DROPPED
    past = np.where(last, dropped & (ts <= kept_ts), next_ts <= kept_ts)
    young = ts > newest_ts - tso(YOUNG_HOURS * HOUR_MS)
    defined = rows["job"].is_valid().to_numpy()
    # What is not past and older than ``kept_ts`` holds there.
    kept = defined | ~past & (young | begins | ends | (hours != np.append(hours[1:], -1)) | (ts <= kept_ts))
    return [int(number) for number in rows["number"].to_numpy()[~kept]]


@dataclass(frozen=True, slots=True)
class OldChanges:
    """The row changes of the ledger that are not kept; pure."""

    upto_ts: int
    """Younger ones stay."""
    table_ids: Ints
    """The tables that can be read at a moment that is kept, ascending; of others all older ones go."""
    merged_ts: Ints
    """Up to which commit_ts each of these moments has their changes in the mirror."""

    @classmethod
    def of(cls, rows: pa.Table, moment: Moment, days: int) -> "OldChanges":
        """The changes of before ``days`` days, up to a whole day: files are written again once a day. ``rows``: ``OF_CHANGES`` of ``snapshots``."""
        before_ts = min(moment.resolved_ts - tso(days * DAY_MS), moment.kept_ts)
        rows = rows.sort_by([("table_id", "ascending"), ("number", "ascending")])
        ids, ts, upto = (rows[name].to_numpy() for name in ("table_id", "resolved_ts", "upto_ts"))
        last, next_ts = np.append(ids[1:] != ids[:-1], True)[: len(ids)], np.append(ts[1:], 0)[: len(ts)]
        read = (last | (next_ts > moment.kept_ts)) & (rows["state"].to_numpy(zero_copy_only=False) == MIRRORED)
        table_ids, first = np.unique(ids[read], return_index=True)
        merged = np.minimum.reduceat(upto[read], first) if len(first) else upto[:0]
        return cls(max(0, before_ts - before_ts % tso(DAY_MS)), table_ids, merged)

    def ddls(self, rows: pa.Table) -> pa.Table:
        """The old DDLs among rows of the ledger."""
        return rows.filter(pa.array(self._is_old(rows) & _is_ddl(rows)))

    def others(self, rows: pa.Table) -> pa.Table:
        """All else that stays."""
        ids, commit_ts = (rows[name].to_numpy() for name in ("table_id", "commit_ts"))
        at = np.searchsorted(self.table_ids, ids)
        known = np.append(self.table_ids, -1)[at] == ids
        needed = known & (commit_ts > np.append(self.merged_ts, 0)[at]) & ~_is_ddl(rows)
        return rows.filter(pa.array(~self._is_old(rows) | needed))

    def _is_old(self, rows: pa.Table) -> Mask:
        return rows["commit_ts"].to_numpy() <= self.upto_ts  # type: ignore[no-any-return]


def old_changes(lake: str, days: int) -> OldChanges | None:
    """The row changes of a lake that are not kept; None, as for 0 days: all are. What is published meanwhile only makes them fewer.

    Raises:
        ApplyError: ``snapshots`` cannot be read.
    """
    newest = Snapshots(lake).load() if days else None
    rows = scanned(f"{lake.rstrip('/')}/snapshots", OF_CHANGES, "true") if newest is not None else None
    return OldChanges.of(rows.read_all(), newest, days) if rows is not None and newest is not None else None


def _is_ddl(rows: pa.Table) -> Mask:
    return pc.equal(rows["op"], "ddl").to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Tidied:
    """The versions that a pass has left of a mirror."""

    versions: Mapping[int, int]
    base: int
    """The log has each version from here on, and before it those of ``versions``."""
    idle: bool
    """Whether there was nothing to do."""


_NOTHING = _Tidied({}, 0, False)


class OldVersions:
    """Removes old versions of one lake, for its writer, between two moments."""

    def __init__(self, lake: str, snapshots: Snapshots) -> None:
        """``snapshots``: has the lease."""
        self._lake, self._snapshots = lake, snapshots
        self._due = 0.0
        self._paths: list[str] = []
        """What this pass has to tidy."""
        self._before: Versions = {}
        """What rows named when this pass began."""
        self._tidied: dict[str, _Tidied] = {}
        """By path: what the last pass has done."""

    def look(self) -> None:
        """Begin a pass if it is time, or go on with one.

        Raises:
            LeaseLost: another writer has begun.
        """
        begun = time.monotonic()
        try:
            if not self._paths and begun >= self._due:
                self._due = begun + PASS_SECONDS
                self._begin()
            now = _versions(self._snapshots.rows(_COLUMNS)) if self._paths else {}
            while self._paths and time.monotonic() < begun + LOOK_SECONDS:
                path = self._paths.pop()
                self._tidy(path, {**self._before.get(path, {}), **now.get(path, {})})
        except LeaseLost:
            raise
        except (DeltaError, OSError, ApplyError) as error:
            _log.warning("old versions in %s could not be removed; the next hour tries again: %s", self._lake, error)

    def _begin(self) -> None:
        rows, moment = self._snapshots.rows(_COLUMNS), self._snapshots.moment
        self._before = _versions(rows)
        gone = outlived(rows, moment.resolved_ts, moment.kept_ts)
        failpoints.point("before-thinning")
        self._snapshots.thin(gone)
        failpoints.point("after-thinning")
        kept = _versions(self._snapshots.rows(_COLUMNS))
        self._paths = ["snapshots", *kept]
        for path in [path for path in self._tidied if path not in kept]:
            del self._tidied[path]
        if "://" not in self._lake:
            self._remove_directories({*kept, *self._before})

    def _remove_directories(self, named: Collection[str]) -> None:
        """Mirrors that no row names: dropped, written again elsewhere, or left by an attempt that died."""
        before = time.time() - YOUNG_HOURS * 3600
        there = Path(self._lake, "tables").glob("*")
        gone = [d for d in there if f"tables/{d.name}" not in named and max(d.stat().st_mtime, _changed(d / "_delta_log")) < before]
        self._snapshots.require_newest()
        for directory in gone:
            shutil.rmtree(directory)
            failpoints.point("after-directory-removal")

    def _tidy(self, path: str, versions: Mapping[int, int]) -> None:
        """Remove files and versions of the log that neither ``versions`` nor newer ones need."""
        before = self._tidied.get(path, _NOTHING)
        if before.idle and versions == before.versions:
            return
        uri = f"{self._lake}/{path}"
        try:
            table = DeltaTable(uri)
        except TableNotFoundError:
            return
        store, newest = lake_table.store_of(table), table.version()
        log = {entry.base_name: entry.mtime for entry in store.get_file_info(pafs.FileSelector("_delta_log"))}
        named = sorted(v for v in versions if v <= newest)
        # Files of a version behind ``last`` were removed later, if at all. One before it may seem younger: the clock was set back.
        before_ts = time.time() - KEPT_HOURS * 3600
        last = max((int(name[:20]) for name, at in log.items() if name[20:] == ".json" and at.timestamp() <= before_ts), default=0)
        old = [v for v in named if v <= last or f"{v:020}.json" not in log]
        orphans = set(table.vacuum(KEPT_HOURS, dry_run=True, enforce_retention_duration=False, full=True, keep_versions=old or None))
        unneeded = orphans - vectors_in(store, before_ts) if any(name.endswith(".bin") for name in orphans) else orphans
        failpoints.point("before-files-removal")
        self._snapshots.require_newest()
        lake_table.remove_files(uri, store, unneeded)
        failpoints.point("after-files-removal")
        if not named:
            table.create_checkpoint()
            lake_table.shorten_log(store, newest - lake_table.LOG_VERSIONS)
            return
        # A reader may have a version that was the newest since then, and that no row names any more.
        young_ts = self._snapshots.moment.resolved_ts - tso(KEPT_HOURS * HOUR_MS)
        base = max((v for v in named if versions[v] <= young_ts), default=named[0])
        if before.base:
            # By checkpoints of the pass before: who reads the log has found them.
            lake_table.shorten_log(store, before.base - 1, frozenset(named))
        failpoints.point("before-log-checkpoints")
        for version in (v for v in named if v <= base and f"{v:020}.checkpoint.parquet" not in log):
            DeltaTable(uri, version=version).create_checkpoint()
        # The log's hint is to name the newest one.
        table.create_checkpoint()
        # A younger version may have files to leave that no moment has named.
        idle = versions == before.versions and base == before.base and len(old) == len(named) and not orphans
        self._tidied[path] = _Tidied(versions, base, idle)


def vectors_in(store: pafs.FileSystem, before_ts: float) -> set[str]:
    """The files of deletion vectors that a log names, but for those that were removed before ``before_ts``. delta-rs takes them all for orphans."""
    found = set[str]()
    for entry in store.get_file_info(pafs.FileSelector("_delta_log")):
        if entry.extension == "json":
            with store.open_input_stream(entry.path) as log:
                actions = [json.loads(line) for line in log.read().splitlines() if b"deletionVector" in line]
        elif entry.extension == "parquet":
            # ``read_table`` would give the leaves without their branches.
            actions = pq.ParquetFile(entry.path, filesystem=store).read(list(_VECTORS)).to_pylist()
        else:
            continue
        for action in actions:
            added, removed = (action.get(name) or {} for name in ("add", "remove"))
            if (removed.get("deletionTimestamp") or 0) < before_ts * 1000:
                removed = {}
            names = [(one.get("deletionVector") or {}).get("pathOrInlineDv") for one in (added, removed)]
            found |= {_file_of(name) for name in names if name}
    return found


def _file_of(vector: str) -> str:
    """The file of a deletion vector that a log names: a directory, if there is one, and a UUID in Z85."""
    directory, name = vector[:-20], uuid.UUID(bytes=base64.b85decode(vector[-20:].translate(_FROM_Z85)))
    return f"{directory}/deletion_vector_{name}.bin" if directory else f"deletion_vector_{name}.bin"


def _versions(rows: pa.Table) -> Versions:
    found: dict[str, dict[int, int]] = {}
    for path, version, ts in zip(*(rows[name].to_pylist() for name in ("path", "version", "resolved_ts")), strict=True):
        if path and version is not None:
            found.setdefault(path, {})[version] = max(ts, found.get(path, {}).get(version, 0))
    return found


def _changed(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0
