"""The ledger: one append-only Delta table, ``changes``, written by delta-rs. The files of a lake that know delta-rs are ``ledger``, ``mirror_table``, ``moments`` and
``old_versions``. [deltalake]

Promises: a commit is compare-and-swap. It succeeds only as the next version after the one that this handle knows, with its rows and its
``LakeState``; whatever another process has committed in between makes it fail with ``CommitUnclear``. Files that were written for a commit that
failed belong to nothing, and VACUUM removes them.

    DIR/changes/_delta_log            the log; ``commitInfo.tidb_binlog`` is the state
    DIR/changes/part-….parquet        rows of small steps
    DIR/changes/parts/<uuid>/part-…   rows of a big step, written by an executor, or of many steps, by a compaction
    DIR/changes/runs/<uuid>/part-…    rows of many steps, sorted by table and place; no compaction takes them again
    DIR/changes/ddls/<uuid>/part-…    DDLs whose row changes are not kept any more

The log is cleaned by ``shorten_log`` alone: it runs while the newest commits are the sink's own, so the state is never among what it removes.
"""

import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import Field, Schema, VariantType
from deltalake.transaction import AddAction, RemoveAction

from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.packed import gathered
from pyspark_tidb_binlog.sinks.lake.lake_state import LakeState
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LEDGER, MEASURED

_log = logging.getLogger(__name__)
T = TypeVar("T")

APP = "tidb_binlog"
"""The one application of a ledger's transactions, and the name of the state in a commit."""
KEPT_HOURS = 3
"""How long a file stays that no version needs, for those who read an older one, and for a commit that is to come."""
REFUSES_OLD = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""Of a Spark session: whether it refuses versions that are older than ``KEPT_HOURS``. The files of those that are published stay (``old_versions``)."""
LOG_VERSIONS = 2_000
"""Versions that the log keeps. Readers go by commit_ts, and on a local disk each commit lists all of the log: 2 ms per 1,000 files."""
LOG_SECONDS = 60.0
"""How long a version stays in the log in any case: a reader that has listed the log reads it."""
_SETTINGS = {
    "delta.appendOnly": "true",
    "delta.dataSkippingStatsColumns": ",".join(MEASURED),
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
    # Another program that cleaned the log could remove the newest state.
    "delta.enableExpiredLogCleanup": "false",
}
RUN_BYTES = 64 << 20
"""Of rows in memory that become a file: what an executor holds."""
_BATCH_ROWS = 1 << 14
_SMALL_BYTES = 8 << 20
_FIRST_LOOK = 10
_NO_LAST_TS = (1 << 63) - 1
_WRITER = WriterProperties(compression="SNAPPY")
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
FULL, DDLS = "runs", "ddls"
"""Where files are that no compaction takes again."""
_IN_ORDER = [(name, "ascending") for name in ("table_id", "commit_ts", "seq", "schema_version")]
_FAULTS = (DeltaError, OSError)


class CommitUnclear(Exception):
    """Nothing was committed, because another commit came first or for the reason that is named; or it was, and the answer was lost."""


class Superseded(Exception):
    """Another program has removed files that a compaction was to replace."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of a version."""

    path: str
    size: int
    first_ts: int = 0
    """The smallest commit_ts; 0 if it has no statistics."""
    last_ts: int = _NO_LAST_TS
    """The largest commit_ts; above all if it has no statistics."""

    @property
    def closed(self) -> bool:
        """Whether no compaction takes it."""
        return self.path.startswith((f"{FULL}/", f"{DDLS}/"))

    @property
    def only_ddls(self) -> bool:
        """Whether it is kept for ever."""
        return self.path.startswith(f"{DDLS}/")


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A file that a commit can take in; picklable."""

    path: str
    size: int
    rows: int
    stats: str
    written_ms: int

    def added(self, *, data_change: bool = True) -> AddAction:
        """As a log has it."""
        return AddAction(self.path, self.size, {}, self.written_ms, data_change, self.stats)


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


class Ledger:
    """A handle on the table at one version. One thread at a time."""

    def __init__(self, lake: str) -> None:
        """``lake``: path or URI of the lake. Nothing is read before ``load``."""
        self._lake = lake.rstrip("/")
        self.uri = f"{self._lake}/changes"
        self._table: DeltaTable | None = None

    def load(self) -> LakeState | None:
        """Go to the newest version; None: there is no table.

        Raises:
            ApplyError: it is no ledger, or cannot be read.
        """
        try:
            if self._table is None or not in_log(self._table, self._table.version()):
                self._table = DeltaTable(self.uri)
            return at_newest(self._table, self._newest_state)
        except TableNotFoundError:
            return None
        except _FAULTS as error:
            raise ApplyError(f"the ledger {self.uri} cannot be read: {error}") from error

    def require_kept(self, after_ts: int) -> None:
        """Raises ``ConfigError`` if the newest version does not keep all row changes after ``after_ts``: who read the lake before is told so."""
        state = self.load()
        if state is not None and state.begin_ts > after_ts:
            raise ConfigError(
                f"the lake {self._lake} does not keep row changes up to {as_time(state.begin_ts)} ({state.begin_ts}) any more: refresh the Lake"
            )

    def create(self, state: LakeState) -> None:
        """Make the table.

        Raises:
            CommitUnclear: another process has made it.
        """
        try:
            self._table = DeltaTable.create(
                with_directory(self.uri),
                delta_schema(LEDGER),
                mode="error",
                configuration=_SETTINGS,
                commit_properties=_commit_of(state),
            )
        except _FAULTS as error:
            if self.load() is None:
                raise ApplyError(f"the ledger {self.uri} cannot be created: {error}") from error
            raise CommitUnclear(str(error)) from error

    def commit(
        self, state: LakeState, rows: Sequence[pa.RecordBatch] = (), parts: Sequence[WrittenPart] = (), gone: Sequence[LiveFile] = ()
    ) -> None:
        """One version: ``rows`` (``LEDGER``), or ``parts`` that were written before, and ``state``; with ``gone``, whose rows are those of ``parts``.

        Raises:
            CommitUnclear: ``load`` shows what there is.
            Superseded: ``gone`` are not all there. Nothing was committed.
        """
        table = self._held
        version = table.version()
        if gone and not {f.path for f in gone} <= {f.path for f in self.files()}:
            raise Superseded(f"version {version} does not have all its files")
        try:
            if parts or gone:
                actions: list[AddAction | RemoveAction] = [p.added(data_change=not gone) for p in parts]
                actions += [RemoveAction(f.path, False, int(time.time() * 1000), f.size, {}) for f in gone]
                table.create_write_transaction(
                    actions, "append", table.schema(), commit_properties=_commit_of(state), post_commithook_properties=_NO_HOOKS
                )
                table.load_as_version(version + 1)
            else:
                data = pa.Table.from_batches(rows, schema=LEDGER)
                write_deltalake(
                    table,
                    data,
                    mode="append",
                    writer_properties=_WRITER,
                    commit_properties=_commit_of(state),
                    post_commithook_properties=_NO_HOOKS,
                )
        except _FAULTS as error:
            raise CommitUnclear(str(error)) from error
        if table.version() != version + 1:
            raise CommitUnclear(f"the handle is at version {table.version()} after a commit of {version + 1}")
        if not in_log(table, version):
            raise CommitUnclear(f"the log has gone on from version {version}, and nobody reads version {version + 1} any more")

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

    @property
    def version(self) -> int:
        """The version that is known."""
        return self._held.version()

    # Upkeep: by a handle of its own.

    def files(self) -> list[LiveFile]:
        """Those of the version that is known."""
        actions = pa.table(self._held.get_add_actions(flatten=True))
        absent = pa.nulls(len(actions))
        names = ("path", "size_bytes", "min.commit_ts", "max.commit_ts")
        columns = (actions[name] if name in actions.column_names else absent for name in names)
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [LiveFile(path, size, first or 0, last or _NO_LAST_TS) for path, size, first, last in rows]

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
        except (*_FAULTS, pa.ArrowException) as error:
            raise ApplyError(f"the files of {self.uri} up to {file.path} cannot be rewritten: {error}") from error

    def checkpoint(self) -> None:
        """Let readers begin at the version that is known.

        Raises:
            ApplyError: it cannot be written, or the log has gone on so far that readers would miss what came since.
        """
        if not in_log(self._held, self.version):
            raise ApplyError(f"the log of {self.uri} has no version {self.version} any more")
        try:
            self._held.create_checkpoint()
        except _FAULTS as error:
            raise ApplyError(f"the log of {self.uri} has no new checkpoint: {error}") from error

    def shorten_log(self) -> None:
        """Remove versions from the log but for the ``LOG_VERSIONS`` newest and those of ``LOG_SECONDS``; to be called behind ``checkpoint``.

        Raises:
            ApplyError: one cannot be removed.
        """
        try:
            shorten_log(self._store, self.version - LOG_VERSIONS)
        except OSError as error:
            raise ApplyError(f"the log of {self.uri} cannot be shortened: {error}") from error

    def sweep(self, settled: Callable[[], None]) -> None:
        """Remove files that no version has needed for ``KEPT_HOURS``. What a suspended process took for such is looked at again:
        ``settled`` returns when commits that were under way are done.

        Raises:
            ApplyError: one cannot be removed.
        """
        try:
            old = set(self._held.vacuum(KEPT_HOURS, dry_run=True, enforce_retention_duration=False, full=True))
            settled()
            self._held.update_incremental()
            remove_files(self.uri, self._store, old - {file.path for file in self.files()})
        except _FAULTS as error:
            raise ApplyError(f"old files of {self.uri} cannot be removed: {error}") from error

    @property
    def _store(self) -> pafs.FileSystem:
        return store_of(self._held)

    @property
    def _held(self) -> DeltaTable:
        if self._table is None:
            raise ApplyError(f"the ledger {self.uri} is not open")
        return self._table

    def _newest_state(self, table: DeltaTable) -> LakeState:
        """That of the newest commit that has one."""
        commit = recording_commit(table)
        if commit is None:
            raise ApplyError(
                f"{self.uri} is a Delta table whose log holds no record of a stream: it is no ledger, or its log was removed. Name an empty directory "
                "in syncer.to.dir, or restore the log"
            )
        try:
            return LakeState.from_json(commit[APP])
        except (ValueError, TypeError, KeyError) as error:
            raise ApplyError(f"version {commit.get('version')} of {self.uri} was written by another release: {error}") from error


def store_of(table: DeltaTable) -> pafs.FileSystem:
    """The files of a table, wherever they are."""
    return pafs.PyFileSystem(DeltaStorageHandler.from_table(table._table))


def in_log(table: DeltaTable, version: int) -> bool:
    """Whether the log still has a version. Where ``shorten_log`` of another process, or a person, has removed it, the next number may be free again."""
    return bool(store_of(table).get_file_info(f"_delta_log/{version:020}.json").type != pafs.FileType.NotFound)


def remove_files(uri: str, store: pafs.FileSystem, paths: Iterable[str]) -> None:
    """Remove files of a table, which may have gone before, the sums that Spark has put beside them, and the directories that are empty then."""
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            store.delete_file(path)
        if "://" not in uri:
            Path(uri, path).with_name(f".{Path(path).name}.crc").unlink(missing_ok=True)
            for directory in Path(path).parents[:-1]:
                with suppress(OSError):
                    Path(uri, directory).rmdir()


def shorten_log(store: pafs.FileSystem, upto: int, kept: Collection[int] = ()) -> None:
    """Remove versions up to ``upto`` from a log, but for those ``kept`` and those of ``LOG_SECONDS``.

    The oldest first: while a version is there, the number after it is not free (``Ledger.commit``).
    """
    before = time.time() - LOG_SECONDS
    for entry in sorted(store.get_file_info(pafs.FileSelector("_delta_log")), key=lambda entry: entry.base_name):
        number = entry.base_name.removeprefix(".")[:20]
        if number.isdecimal() and int(number) <= upto and int(number) not in kept and entry.mtime_ns < before * 1e9:
            store.delete_file(entry.path)


def at_newest(table: DeltaTable, read: Callable[[DeltaTable], T]) -> T:
    """What ``read`` finds in the newest version, to which ``table`` goes. A history may be newer than what was loaded."""
    while True:
        table.update_incremental()
        version, found = table.version(), read(table)
        table.update_incremental()
        if table.version() == version:
            return found


def recording_commit(table: DeltaTable) -> dict[str, Any] | None:
    """The newest commit with a record of ours: another program may have compacted the table since. None: there is none."""
    commits = (commit for limit in (_FIRST_LOOK, None) for commit in table.history(limit))
    return next((commit for commit in commits if APP in commit), None)


def written_part(lake: str, batches: Iterator[pa.RecordBatch], kind: str = "parts") -> Iterator[WrittenPart]:
    """Write ``batches`` (``LEDGER``) as files of the ledger that no commit knows yet; on an executor, or by a compaction."""
    return written_files(f"{lake.rstrip('/')}/changes", LEDGER, batches, kind, _SETTINGS)


def written_files(
    uri: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], kind: str = "parts", settings: Mapping[str, str] | None = None
) -> Iterator[WrittenPart]:
    """Write ``batches`` as files of the table at ``uri`` that no commit knows yet, by way of a table of their own."""
    inside, table = f"{kind}/{uuid.uuid4()}", None
    for run in runs(batches):
        table = table or DeltaTable.create(
            with_directory(f"{uri}/{inside}"), delta_schema(schema), mode="error", configuration=dict(settings or {})
        )
        write_deltalake(table, pa.Table.from_batches(run, schema=schema), mode="append", writer_properties=_WRITER)
    for action in pa.table(table.get_add_actions(flatten=False)).to_pylist() if table else ():
        yield WrittenPart(
            f"{inside}/{action['path']}", action["size_bytes"], action["num_records"], stats_of(action), action["modification_time"]
        )


def without_logs(uri: str, parts: Sequence[WrittenPart]) -> None:
    """Remove what only the writing of ``parts`` needed; for files of a store that is not local, VACUUM does it."""
    if "://" not in uri:
        for part in parts:
            shutil.rmtree(Path(uri, part.path).parent / "_delta_log", ignore_errors=True)


def scanned(uri: str, columns: Sequence[str], where: str) -> pa.RecordBatchReader | None:
    """The rows of a table of a lake, in any order; None: there is no such table. Files whose statistics exclude ``where`` are not read.

    Raises:
        ApplyError: it cannot be read.
    """
    try:
        rows = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan(list(columns), where))
        return rows.cast(pa.schema([pa.field(f.name, without_views(f.type)) for f in rows.schema]))
    except TableNotFoundError:
        return None
    except _FAULTS as error:
        raise ApplyError(f"{uri} cannot be read: {error}") from error


def without_views(kind: pa.DataType) -> pa.DataType:
    """A type whose views on texts are texts: few functions of Arrow take views."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, without_views(f.type), f.nullable) for f in kind])
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


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


def runs(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """``batches`` by about ``RUN_BYTES``. One stream took delta-rs 3 GiB of memory for rows of 100 kB (docs/adr/0012)."""
    return gathered(batches, RUN_BYTES)


def with_directory(uri: str) -> str:
    """``uri``, whose directory is there if it is a local one."""
    if "://" not in uri:
        Path(uri).mkdir(parents=True, exist_ok=True)
    return uri


def delta_schema(schema: pa.Schema) -> Schema:
    """As delta-rs has it; a struct is a VARIANT."""
    plain = Schema.from_arrow(pa.schema([f for f in schema if not pa.types.is_struct(f.type)]))
    fields = {field.name: field for field in plain.fields}
    return Schema([fields.get(f.name) or Field(f.name, VariantType()) for f in schema])


def stats_of(action: dict[str, Any]) -> str:
    """The statistics of a file as a log has them; those that JSON has no form of are left out."""
    names = {"minValues": "min", "maxValues": "max", "nullCount": "null_count"}
    columns = {name: {n: v for n, v in (action.get(own) or {}).items() if isinstance(v, str | int | float)} for name, own in names.items()}
    return json.dumps({"numRecords": action["num_records"], **columns})


def _commit_of(state: LakeState) -> CommitProperties:
    return compare_and_swap(state.to_json(), state.commit_ts or 0)


def compare_and_swap(record: str, version: int) -> CommitProperties:
    """A commit that is never tried again on another version of the table; ``version``: of its application transaction."""
    return CommitProperties({APP: record}, max_commit_retries=0, app_transactions=[Transaction(APP, version)])
