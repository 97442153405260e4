"""The ledger: one append-only Delta table, ``changes``, written by delta-rs, and the state of its stream, which each commit records. [deltalake]

    {"layout": 1, "target": "…", "cluster_id": 1, "epoch": 3, "number": 17, "holder": {…}, "held": true, "commit_ts": 45…, "schema_version": 9, "early": []}

Promises: a commit is compare-and-swap. It succeeds only as the next version after the one that this handle knows, with its rows and its
``LakeState``; whatever another process has committed in between makes it fail with ``CommitUnclear``. The newest state is the record: every transaction
up to its ``commit_ts`` is in the ledger, and none above it.

    DIR/changes/_delta_log            the log; ``commitInfo.tidb_binlog`` is the state
    DIR/changes/part-….parquet        rows of small steps
    DIR/changes/parts/<uuid>/part-…   rows of a big step, written by an executor, or of many steps, by a compaction
    DIR/changes/runs/<uuid>/part-…    rows of many steps, sorted by table and place; no compaction takes them again
    DIR/changes/ddls/<uuid>/part-…    DDLs whose row changes are not kept any more

The log is cleaned by ``shorten_log`` alone: it runs while the newest commits are the sink's own, so the state is never among what it removes.
"""

import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.lake import lake_table
from pyspark_tidb_binlog.sinks.lake.lake_table import (
    FAULTS,
    FULL,
    KEPT_HOURS,
    NO_LAST_TS,
    RUN_BYTES,
    WRITER,
    LiveFile,
    RecordedTable,
    WrittenPart,
    scanned,
)
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LEDGER, MEASURED, ORDER

REFUSES_OLD = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""Of a Spark session: whether it refuses versions that are older than ``KEPT_HOURS``. The files of those that are published stay (``upkeep``)."""
_SETTINGS = {
    "delta.appendOnly": "true",
    "delta.dataSkippingStatsColumns": ",".join(MEASURED),
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
    # Another program that cleaned the log could remove the newest state.
    "delta.enableExpiredLogCleanup": "false",
}
_BATCH_ROWS = 1 << 14
_SMALL_BYTES = 8 << 20
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_IN_ORDER = [(name, "ascending") for name in ("table_id", "commit_ts", "seq", "schema_version")]
_LAYOUT = 1
_OF_DDL = ("commit_ts", "seq", "schema_version", "database", "table", "job")


class Superseded(Exception):
    """Another program has removed files that a compaction was to replace."""


@dataclass(frozen=True, slots=True)
class LakeWriter:
    """A process that writes, or has written, to a lake."""

    drainer: str = ""
    host: str = ""
    pid: int = 0

    @classmethod
    def here(cls, drainer: str) -> Self:
        """The process that asks."""
        return cls(drainer, socket.gethostname(), os.getpid())

    @property
    def is_gone(self) -> bool:
        """Whether it was a process of this machine that is not there any more."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def __str__(self) -> str:
        """The process in messages."""
        return f"{self.drainer} (process {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class LakeState:
    """The progress of a ledger, and its writer."""

    target: str
    """The identity of the lake."""
    cluster_id: int
    epoch: int = 0
    """Ascends with each start."""
    number: int = 0
    """Ascends with each commit of an epoch."""
    holder: LakeWriter = field(default_factory=LakeWriter)
    held: bool = False
    """Whether the holder writes on; False: it has ended."""
    commit_ts: int | None = None
    """None: the stream has not begun."""
    schema_version: int = 0
    early: frozenset[int] = frozenset()
    """``AppliedJobs.early``."""
    since_ts: int = 0
    """``AppliedJobs.since``."""
    begin_ts: int = 0
    """Up to it only DDLs are kept; a row change may still be there, for moments that need it."""

    @property
    def applied(self) -> AppliedJobs:
        """The DDL jobs that the ledger holds."""
        return AppliedJobs(self.schema_version, self.early, since=self.since_ts)

    @property
    def commit(self) -> CommitProperties:
        """The state as a commit has it."""
        record = json.dumps({"layout": _LAYOUT, **asdict(self), "early": sorted(self.early)}, separators=(",", ":"))
        return lake_table.compare_and_swap(record, self.commit_ts or 0)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of ``commit``; ``ValueError`` for another layout."""
        found: dict[str, Any] = json.loads(text)
        if found.pop("layout", None) != _LAYOUT:
            raise ValueError(f"its layout is not {_LAYOUT}")
        found.setdefault("since_ts", found["commit_ts"] or 0)
        return cls(**found | {"holder": LakeWriter(**found["holder"]), "early": frozenset(found["early"])})


@dataclass(frozen=True, slots=True)
class LedgerWrite:
    """What a commit does to the rows of a ledger: it adds some, or files that were written before, which may replace others."""

    rows: Sequence[pa.RecordBatch] = ()
    parts: Sequence[WrittenPart] = ()
    gone: Sequence[LiveFile] = ()


NO_ROWS = LedgerWrite()


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """Rows of a ledger as one version has them."""

    after_ts: int
    jobs: frozenset[int]
    """The DDL jobs at ``after_ts`` that it does not have."""
    upto_ts: int
    files: tuple[LiveFile, ...]
    store: pafs.FileSystem

    def upto(self, ts: int) -> "LedgerSpan":
        """Its rows up to ``ts``."""
        return replace(self, upto_ts=ts)

    def ddls(self, columns: Sequence[str]) -> pa.Table:
        """The DDLs, in any order. Files without one are passed over by their statistics."""
        at_begin = (pc.field("commit_ts") == self.after_ts) & ~pc.field("job_id").isin(pa.array(list(self.jobs), pa.int64()))
        return pa.Table.from_batches(
            self._batches(columns, (pc.field("op") == "ddl") & (at_begin | (pc.field("commit_ts") > self.after_ts))), of_ledger(columns)
        )

    def changes(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The row changes, in any order. It holds a row group at a time."""
        return self._batches(columns, (pc.field("op") != "ddl") & (pc.field("commit_ts") > self.after_ts))

    def _batches(self, columns: Sequence[str], where: pc.Expression) -> Iterator[pa.RecordBatch]:
        schema, where = of_ledger(columns), where & (pc.field("commit_ts") <= self.upto_ts)
        for file in self.files:
            if file.first_ts <= self.upto_ts:
                found = pads.dataset(unquote(file.path), filesystem=self.store, format="parquet")
                for batch in found.to_batches(
                    columns=list(columns), filter=where, batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1
                ):
                    yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


class Ledger(RecordedTable[LakeState]):
    """A handle on the table at one version. One thread at a time."""

    def __init__(self, lake: str) -> None:
        """``lake``: path or URI of the lake. Nothing is read before ``load``."""
        self._lake = lake.rstrip("/")
        lacks = (
            "no record of a stream: it is no ledger, or its log was removed. Name an empty directory in syncer.to.dir, or restore the log"
        )
        super().__init__(f"{self._lake}/changes", "the ledger", lacks, LakeState.from_json)

    def require_kept(self, after_ts: int) -> None:
        """Raises ``ConfigError`` if the newest version does not keep all row changes after ``after_ts``: whoever read the lake before learns it."""
        state = self.load()
        if state is not None and state.begin_ts > after_ts:
            raise ConfigError(
                f"the lake {self._lake} does not keep row changes up to {as_time(state.begin_ts)} ({state.begin_ts}) any more: refresh the Lake"
            )

    def create(self, state: LakeState) -> bool:
        """Make the table; False: another process has made it."""
        return self.created(LEDGER, _SETTINGS, state)

    def commit(self, before: LakeState, state: LakeState, added: LedgerWrite = NO_ROWS) -> None:
        """Commit one version behind ``before``: ``added`` and ``state``.

        Raises:
            RecordReplaced, ApplyError: as ``commit_behind`` does.
            Superseded: ``gone`` are not all there. Nothing was committed.
        """

        def write(table: DeltaTable, commit: CommitProperties) -> None:
            if not added.parts and not added.gone:
                data = pa.Table.from_batches(added.rows, schema=LEDGER)
                write_deltalake(
                    table, data, mode="append", writer_properties=WRITER, commit_properties=commit, post_commithook_properties=_NO_HOOKS
                )
                return
            if added.gone and not {f.path for f in added.gone} <= {f.path for f in self.files()}:
                raise Superseded(f"version {self.version} does not have all its files")
            lake_table.swap_files(table, added.parts, added.gone, commit, data_change=not added.gone, hooks=_NO_HOOKS)

        self.commit_behind(before, state, write, "a step was to be committed")

    def span(self, after_ts: int, jobs: Collection[int], upto_ts: int, most_bytes: int = 1 << 62) -> "LedgerSpan":
        """The rows of (after_ts, upto], as the newest version has them, and the DDLs at ``after_ts`` that are not among ``jobs``.

        upto: as far as files of ``most_bytes`` reach, at most ``upto_ts``; it is above ``after_ts`` if ``upto_ts`` is.
        """
        # The history that ``load`` reads may go beyond the version of the handle, and then numbers its commits wrongly: the state may be newer.
        self._held.update_incremental()
        files = sorted((f for f in self.files() if f.last_ts >= after_ts and f.first_ts <= upto_ts), key=lambda f: f.last_ts)
        for file, taken in zip(files, accumulate(f.size for f in files), strict=True):
            if taken >= most_bytes and file.last_ts > after_ts:
                upto_ts = min(upto_ts, file.last_ts)
                break
        return LedgerSpan(after_ts, frozenset(jobs), upto_ts, tuple(files), self._store)

    # Upkeep: by a handle of its own.

    def files(self) -> list[LiveFile]:
        """The files of the version that is known."""
        actions = pa.table(self._held.get_add_actions(flatten=True))
        absent = pa.nulls(len(actions))
        names = ("path", "size_bytes", "min.commit_ts", "max.commit_ts")
        columns = (actions[name] if name in actions.column_names else absent for name in names)
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [LiveFile(path, size, first or 0, last or NO_LAST_TS) for path, size, first, last in rows]

    def rewritten(
        self, files: Sequence[LiveFile], given_up: Callable[[], bool], chosen: Callable[[pa.Table], pa.Table] | None = None, kind: str = ""
    ) -> list[WrittenPart]:
        """The rows of ``files`` in new files that no commit knows yet. It holds some ``RUN_BYTES`` of rows twice.

        Args:
            files: of the version that is known.
            given_up: whether to end before it is done.
            chosen: which rows of a file; None: all.
            kind: where the files are; empty: as they are full or not.

        Raises:
            ApplyError: a file cannot be read or written.
        """
        store, parts, held, size = self._store, list[WrittenPart](), list[pa.Table](), 0
        try:
            for file in files:
                if given_up():
                    break
                rows = _rows_in(file, store)
                held.append(chosen(rows) if chosen is not None else rows)
                size += held[-1].nbytes
                if size >= RUN_BYTES:
                    parts += _sorted_part(self._lake, held, kind or FULL)
                    held, size = [], 0
            return parts + (_sorted_part(self._lake, held, kind or "parts") if held else [])
        except (*FAULTS, pa.ArrowException) as error:
            raise ApplyError(f"the files of {self.uri} up to {file.path} cannot be rewritten: {error}") from error

    def shorten_log(self) -> None:
        """Let readers begin at the version that is known. Then remove older ones from the log but for the ``LOG_VERSIONS`` newest and those of ``LOG_SECONDS``.

        Raises:
            ApplyError: a file cannot be written or removed, or the log has gone on so far that readers would miss what came since.
        """
        if not lake_table.in_log(self._held, self.version):
            raise ApplyError(f"the log of {self.uri} has no version {self.version} any more")
        failpoints.point("before-log-checkpoint")
        try:
            self._held.create_checkpoint()
            failpoints.point("after-log-checkpoint")
            lake_table.shorten_log(self._store, self.version - lake_table.LOG_VERSIONS)
        except FAULTS as error:
            raise ApplyError(f"the log of {self.uri} cannot be shortened: {error}") from error

    def sweep(self, settled: Callable[[], None]) -> None:
        """Remove files that no version has needed for ``KEPT_HOURS``. What a suspended process took for such is looked at again:
        ``settled`` returns when commits that were under way are done.

        Raises:
            ApplyError: one cannot be removed.
        """
        try:
            # The handle that is held may stand on a checkpoint of the log that has been removed since.
            old = set(DeltaTable(self.uri).vacuum(KEPT_HOURS, dry_run=True, enforce_retention_duration=False, full=True))
            settled()
            self._held.update_incremental()
            lake_table.remove_files(self.uri, self._store, old - {file.path for file in self.files()})
        except FAULTS as error:
            raise ApplyError(f"old files of {self.uri} cannot be removed: {error}") from error

    @property
    def _store(self) -> pafs.FileSystem:
        return lake_table.store_of(self._held)


def written_part(lake: str, batches: Iterator[pa.RecordBatch], kind: str = "parts") -> Iterator[WrittenPart]:
    """Write ``batches`` (``LEDGER``) as files of the ledger that no commit knows yet; on an executor, or by a compaction."""
    return lake_table.written_files(f"{lake.rstrip('/')}/changes", LEDGER, batches, kind, _SETTINGS)


@dataclass(frozen=True, slots=True)
class LedgerDdl:
    """A row of the ledger."""

    commit_ts: int
    name: tuple[str, str]
    """Database and table in the lake."""
    job: Job


def ledger_ddls(lake: str, upto_ts: int) -> list[LedgerDdl]:
    """The DDLs up to ``upto_ts``, in order. Files without a DDL are passed over by their statistics.

    Raises:
        ApplyError: the ledger cannot be read.
    """
    found = scanned(f"{lake}/changes", _OF_DDL, f"op = 'ddl' AND commit_ts <= {upto_ts}")
    rows = found.read_all().sort_by(ORDER).to_pylist() if found is not None else []
    return [LedgerDdl(r["commit_ts"], (r["database"] or "", r["table"] or ""), Job.from_json(json.loads(r["job"]))) for r in rows]


def of_ledger(columns: Sequence[str]) -> pa.Schema:
    """These columns of ``LEDGER``."""
    return pa.schema([LEDGER.field(name) for name in columns])


def _rows_in(file: LiveFile, store: pafs.FileSystem) -> pa.Table:
    """The rows of a file. That of one commit is small: a data set, threads, or a read of each column cost more than its rows."""
    if file.size > _SMALL_BYTES:
        return pq.read_table(file.path, filesystem=store, partitioning=None).cast(LEDGER)
    return pq.ParquetFile(file.path, filesystem=store, pre_buffer=True).read(use_threads=False).cast(LEDGER)


def _sorted_part(lake: str, tables: list[pa.Table], kind: str) -> list[WrittenPart]:
    """``tables`` as files; the list is empty then, as the rows are held twice already."""
    rows = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    rows = rows.sort_by(_IN_ORDER)
    return list(written_part(lake, iter(rows.to_batches(max_chunksize=_BATCH_ROWS)), kind))
