"""The upkeep of a lake. [deltalake]

The ledger stays quick: small files become few, the log stays short, and files that nothing needs go. A thread beside the steps does it, because a commit slows
down with the number of live files, and on a local disk with the number of files in the log. So

    compaction   files are read, sorted by table and place, and written again beside the stream. One commit of the sink swaps them: a step waits
                 for that commit only. The table is append-only, so what was read stays right whatever steps come between.
    retention    row changes that are too old (``OldChanges``) go in the same way, once a day; their DDLs come into files of their own
    log          a checkpoint of the log's own, then the versions that it replaces are removed but for the newest ``LOG_VERSIONS``
    sweep        removed files, and those of attempts that died, go after ``KEPT_HOURS``

Of ``snapshots`` and the mirrors, rows are thinned, and what no published version needs goes (``OldVersions``).

    rows younger than an hour     all
    older ones                    the last one of each hour, and those before and after each DDL of their table
    before ``Moment.kept_ts``     the newest one of each table, which the moments after it need; of a dropped table none
    with a ``job``                all: the schema history needs them

A pass of an hour thins ``snapshots``, removes the directories that no row names any more, and then tidies one mirror after the other, some seconds of
each moment: its files, and its log. In the log, a version that is kept has a checkpoint of its own, so the versions between may go.

Promises: at each death the ledger holds each row once. What fails is logged and tried again: the stream goes on. A file stays for ``KEPT_HOURS`` after a newer
version has removed it, and what a row has named until the pass after the one that removed the row. A writer that was suspended swaps nothing once another one
has begun, and removes nothing that a newer one has made, or may need: it looks whether another one has begun after it has chosen, and names of files and
directories are never used twice.
"""

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from pyspark_tidb_binlog.sinks.lake.commit_log import is_local, vector_file
from pyspark_tidb_binlog.sinks.lake.lake_table import DDLS, FULL, KEPT_HOURS, LiveFile, WrittenPart, scanned, without_logs
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger, Superseded
from pyspark_tidb_binlog.sinks.lake.moments import DROPPED, MIRRORED, Moment, Snapshots

_log = logging.getLogger(__name__)

MOST_OPEN = 40
"""Files that are not closed before they are compacted."""
LOOK_EVERY = 20
"""New files, or commits, between two looks."""
CHECKPOINT_EVERY = 100
"""Versions that a reader's start reads one by one."""
_SWEEP_SECONDS = 3600.0

Swap = Callable[[Sequence[WrittenPart], Sequence[LiveFile], int | None], None]
PASS_SECONDS = 3600.0
LOOK_SECONDS = 2.0
"""Of a pass, between two moments."""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
YOUNG_HOURS = 1
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
        if is_local(self._lake):
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
            found |= {vector_file(name) for name in names if name}
    return found


def _versions(rows: pa.Table) -> Versions:
    found: dict[str, dict[int, int]] = {}
    for path, version, ts in zip(*(rows[name].to_pylist() for name in ("path", "version", "resolved_ts")), strict=True):
        if path and version is not None:
            found.setdefault(path, {})[version] = max(ts, found.get(path, {}).get(version, 0))
    return found


def _changed(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def due(files: Sequence[LiveFile]) -> list[LiveFile]:
    """The files to be written again together, in the order of their rows; pure.

    The newest half of ``MOST_OPEN``, and older ones while each is not larger than all newer ones together: a row is rewritten as often as sizes double.
    """
    still_open = sorted((f for f in files if not f.closed), key=lambda f: (f.first_ts, f.path))
    if len(still_open) < MOST_OPEN:
        return []
    begin, size = len(still_open), 0
    while begin and (len(still_open) - begin < MOST_OPEN // 2 or still_open[begin - 1].size <= size):
        begin -= 1
        size += still_open[begin].size
    return still_open[begin:]


class Upkeep:
    """Upkeep of one ledger by the sink that has the lease."""

    def __init__(
        self, ledger: Ledger, swap: Swap, settled: Callable[[], None], old_changes: Callable[[], OldChanges | None] = lambda: None
    ) -> None:
        """``ledger``: a handle of its own. ``swap``: commits files in place of others, and where the ledger begins if that changes, or raises ``LeaseLost``.
        ``settled``: returns once no step writes files that began before. ``old_changes``: what is not to be kept; None: all is.
        """
        self._ledger, self._swap, self._settled, self._old_changes = ledger, swap, settled, old_changes
        self._new = 0
        self._wake, self._ended = threading.Event(), threading.Event()
        self._checkpoint = 0
        self._swept_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="lake-upkeep", daemon=True)

    def start(self) -> None:
        """Begin with a look."""
        self._wake.set()
        self._thread.start()

    def committed(self, files: int) -> None:
        """A commit has added so many files."""
        self._new += max(1, files)
        if self._new >= LOOK_EVERY:
            self._new = 0
            self._wake.set()

    def end(self) -> None:
        """Return when nothing is written any more; a compaction that is under way is given up."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Do what is due.

        Raises:
            ApplyError: it failed; ``LeaseLost``: another writer has begun.
        """
        state = self._ledger.load()
        if (chosen := due(self._ledger.files())) and self._replace(chosen, self._ledger.rewritten(chosen, self._ended.is_set)):
            self._wake.set()
        if state is not None and (old := self._old_changes()) is not None and old.upto_ts > state.begin_ts:
            self._remove(old)
        if self._ledger.version >= self._checkpoint + CHECKPOINT_EVERY:
            self._ledger.shorten_log()
            self._checkpoint = self._ledger.version
        if time.monotonic() - self._swept_at >= _SWEEP_SECONDS:
            self._ledger.sweep(self._settled)
            self._swept_at = time.monotonic()

    def _remove(self, old: OldChanges) -> None:
        files = self._ledger.files()
        chosen = [file for file in files if file.first_ts <= old.upto_ts and not file.only_ddls]
        if not chosen:
            return
        if len(few := [file for file in files if file.only_ddls]) >= MOST_OPEN:
            chosen += few
        kinds = ((old.ddls, DDLS), (old.others, FULL))
        parts = [part for of in kinds for part in self._ledger.rewritten(chosen, self._ended.is_set, *of)]
        self._replace(chosen, parts, old.upto_ts)

    def _replace(self, chosen: Sequence[LiveFile], parts: Sequence[WrittenPart], begin_ts: int | None = None) -> bool:
        """Commit ``parts`` in place of files; whether that was done."""
        failpoints.point("before-compaction-commit")
        swapped = False
        try:
            if not self._ended.is_set():
                self._swap(parts, chosen, begin_ts)
                swapped = True
        except Superseded as error:
            _log.warning("a compaction of %s is given up: %s", self._ledger.uri, error)
        failpoints.point("after-compaction-commit")
        without_logs(self._ledger.uri, parts)
        _log.debug("%d files of %s are now %d", len(chosen), self._ledger.uri, len(parts))
        if swapped:
            self._ledger.load()
        return swapped

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._ended.is_set():
                return
            try:
                self.look()
            except LeaseLost:
                return
            except ApplyError as error:
                _log.warning("the upkeep of %s failed and is tried again: %s", self._ledger.uri, error)
