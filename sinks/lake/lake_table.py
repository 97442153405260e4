"""One Delta table of a lake: its files, its log, and the commits that record something. The files of a lake that know delta-rs are ``lake_table``, ``ledger``,
``mirror_table``, ``moments`` and ``upkeep``. [deltalake]

Promises: a commit with ``compare_and_swap`` succeeds only as the next version after the one that its handle knows. One with a record is on the disk when it counts. Files that were written for a commit that
failed belong to nothing, and VACUUM removes them.
"""

import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import Field, Schema, VariantType
from deltalake.transaction import AddAction, RemoveAction

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.packed import gathered
from pyspark_tidb_binlog.sinks.lake.commit_log import CommitLog, is_local

_log = logging.getLogger(__name__)

APP = "tidb_binlog"
"""The one application of a ledger's transactions, and the name of the state in a commit."""
KEPT_HOURS = 3
"""How long a file stays that no version needs, for those who read an older one, and for a commit that is to come."""
LOG_VERSIONS = 2_000
"""Versions that the log keeps. Readers go by commit_ts, and on a local disk each commit lists all of the log: 2 ms per 1,000 files."""
LOG_SECONDS = 60.0
"""How long a version stays in the log in any case: a reader that has listed the log reads it."""
RUN_BYTES = 64 << 20
"""Of rows in memory that become a file: what an executor holds."""
FULL, DDLS = "runs", "ddls"
"""Where files are that no compaction takes again."""
_FIRST_LOOK = 10
_OPENS = 3
"""Reads of a log that is shortened meanwhile: each lists it anew."""
_RACES = 20
"""Commits of other programs after which a commit is given up."""
NO_LAST_TS = (1 << 63) - 1
WRITER = WriterProperties(compression="SNAPPY")
FAULTS = (DeltaError, OSError)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of a version."""

    path: str
    size: int
    first_ts: int = 0
    """The smallest commit_ts; 0 if it has no statistics."""
    last_ts: int = NO_LAST_TS
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
        """The file as a log has it."""
        return AddAction(self.path, self.size, {}, self.written_ms, data_change, self.stats)


PARTS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("stats", pa.string(), nullable=False),
        pa.field("written_ms", pa.int64(), nullable=False),
    ]
)
"""Files as an executor names them."""


def row_of(part: WrittenPart) -> pa.RecordBatch:
    """A file as ``PARTS``."""
    return pa.RecordBatch.from_pylist([asdict(part)], schema=PARTS)


def parts_in(rows: pa.Table) -> list[WrittenPart]:
    """The inverse of ``row_of``."""
    return [WrittenPart(**row) for row in rows.to_pylist()]


class CommitUnclear(Exception):
    """Nothing was committed, because another commit came first or for the reason that is named; or it was, and the answer was lost."""


class RecordReplaced(Exception):
    """The newest record is not the one that a commit was to follow."""

    def __init__(self, uri: str, found: Any) -> None:
        """``found``: the newest record; None: there is none."""
        super().__init__(f"the newest record of {uri} is {found}")
        self.found = found


class TableRecord(Protocol):
    """How far a table is."""

    @property
    def commit(self) -> CommitProperties:
        """The record as a commit has it: ``compare_and_swap``."""
        ...


R = TypeVar("R", bound=TableRecord)


class RecordedTable(Generic[R]):
    """A handle on one version of a table whose newest commit with a record of ours says how far it is. One thread at a time."""

    def __init__(self, uri: str, name: str, lacks: str, parsed: Callable[[str], R]) -> None:
        """Nothing is read before ``load``. ``name``, ``lacks``: what it is, and what a log without a record means, for errors. ``parsed``: reads a record;
        ``ValueError``: it is another release's.
        """
        self.uri, self._name, self._lacks, self._parsed = uri, f"{name} {uri}", lacks, parsed
        self._table: DeltaTable | None = None
        self._forced: int | None = None
        """Up to which version commits are on the disk, as far as this handle knows."""

    def load(self) -> R | None:
        """Go to the newest version; its record. None: there is no table.

        Raises:
            ApplyError: it is not a lake's, or cannot be read.
        """
        try:
            if self._table is None or not in_log(self._table, self._table.version()):
                self._table = opened(self.uri)
            try:
                return self._newest()
            except FAULTS:
                # As in ``opened``.
                self._table = opened(self.uri)
                return self._newest()
        except TableNotFoundError:
            return None
        except FAULTS as error:
            raise ApplyError(f"{self._name} cannot be read: {error}") from error

    def created(self, schema: pa.Schema, settings: Mapping[str, str], first: R) -> bool:
        """Make the table with its first record; False: another process has made it.

        Raises:
            ApplyError: it cannot be made.
        """
        try:
            with_directory(self.uri)
            self._table = DeltaTable.create(
                self.uri, delta_schema(schema), mode="error", configuration=dict(settings), commit_properties=first.commit
            )
        except FAULTS as error:
            if self.load() is None:
                raise ApplyError(f"{self._name} cannot be created: {error}") from error
            return False
        self._force(-1)
        return True

    @property
    def version(self) -> int:
        """The version that is known."""
        return int(self._held.version())

    def commit_behind(self, before: R, fresh: R, write: Callable[[DeltaTable, CommitProperties], object], what: str) -> None:
        """Commit the record ``fresh`` as the one that follows ``before``. Programs that record nothing, such as a compaction, may commit in between.

        Args:
            before: the newest record, as far as is known.
            fresh: the record of ``write``.
            write: commits the next version of the table.
            what: the commit in words, for an error.

        Raises:
            RecordReplaced: another record follows ``before``, or ``before`` is gone.
            ApplyError: the commit fails.
        """
        for _ in range(_RACES):
            version = self.version
            try:
                self._commit_next(fresh, write)
                return
            except CommitUnclear as error:
                found = self.load()
                if found == fresh and self.version > version:
                    return
                if found != before:
                    raise RecordReplaced(self.uri, found) from error
                if self.version == version:
                    raise ApplyError(f"cannot commit version {version + 1} of {self.uri}: {error}") from error
                _log.warning("another program has committed version %d of %s", self.version, self.uri)
        raise ApplyError(f"other programs have committed to {self.uri} {_RACES} times while {what}; end them")

    def _commit_next(self, fresh: R, write: Callable[[DeltaTable, CommitProperties], object]) -> None:
        table, version = self._held, self.version
        try:
            write(table, fresh.commit)
        except FAULTS as error:
            raise CommitUnclear(str(error)) from error
        if self.version != version + 1:
            raise CommitUnclear(f"the handle is at version {self.version} after a commit of {version + 1}")
        if not in_log(table, version):
            raise CommitUnclear(f"the log has gone on from version {version}, and nobody reads version {version + 1} any more")
        self._force(version if self._forced is None else self._forced)

    def _force(self, after: int) -> None:
        """Force the commits behind a version to the disk."""
        if is_local(self.uri):
            CommitLog(self.uri).force(after, self.version)
        self._forced = self.version

    def _newest(self) -> R:
        """The newest record in the newest version, to which the handle goes: another program may have compacted the table since."""
        table = self._held
        while True:
            table.update_incremental()
            version, commits = table.version(), (commit for limit in (_FIRST_LOOK, None) for commit in table.history(limit))
            commit = next((commit for commit in commits if APP in commit), None)
            # A history may be newer than what was loaded.
            table.update_incremental()
            if table.version() == version:
                break
        if commit is None:
            raise ApplyError(f"{self.uri} is a Delta table whose log holds {self._lacks}")
        try:
            return self._parsed(commit[APP])
        except (ValueError, TypeError, KeyError) as error:
            raise ApplyError(f"version {commit.get('version')} of {self.uri} was written by another release: {error}") from error

    @property
    def _held(self) -> DeltaTable:
        if self._table is None:
            raise ApplyError(f"{self._name} is not open")
        return self._table


def opened(uri: str, version: int | None = None) -> DeltaTable:
    """A table at its newest version, or at ``version``. Where the log was shortened between two reads of it, it is read again."""
    for _ in range(_OPENS - 1):
        try:
            return DeltaTable(uri, version=version)
        except TableNotFoundError:
            raise
        except FAULTS as error:
            _log.info("the log of %s is read again: %s", uri, error)
    return DeltaTable(uri, version=version)


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
        if is_local(uri):
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


def written_files(
    uri: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], kind: str = "parts", settings: Mapping[str, str] | None = None
) -> Iterator[WrittenPart]:
    """Write ``batches`` as files of the table at ``uri`` that no commit knows yet, by way of a table of their own."""
    inside, table = f"{kind}/{uuid.uuid4()}", None
    for run in runs(batches):
        table = table or DeltaTable.create(
            with_directory(f"{uri}/{inside}"), delta_schema(schema), mode="error", configuration=dict(settings or {})
        )
        write_deltalake(table, pa.Table.from_batches(run, schema=schema), mode="append", writer_properties=WRITER)
    for action in pa.table(table.get_add_actions(flatten=False)).to_pylist() if table else ():
        yield WrittenPart(
            f"{inside}/{action['path']}", action["size_bytes"], action["num_records"], stats_of(action), action["modification_time"]
        )


def swap_files(
    table: DeltaTable,
    parts: Sequence[WrittenPart],
    gone: Sequence[LiveFile],
    commit: CommitProperties,
    *,
    data_change: bool = True,
    hooks: PostCommitHookProperties | None = None,
) -> None:
    """Commit ``parts`` in place of the files ``gone``."""
    version = table.version()
    actions: list[AddAction | RemoveAction] = [part.added(data_change=data_change) for part in parts]
    actions += [RemoveAction(file.path, data_change, int(time.time() * 1000), file.size, {}) for file in gone]
    table.create_write_transaction(actions, "append", table.schema(), commit_properties=commit, post_commithook_properties=hooks)
    table.load_as_version(version + 1)


def overwrite(table: DeltaTable, parts: Sequence[WrittenPart], schema: pa.Schema, commit: CommitProperties) -> None:
    """Commit ``parts``, which have the columns ``schema``, in place of all files."""
    version = table.version()
    table.create_write_transaction([part.added() for part in parts], "overwrite", delta_schema(schema), commit_properties=commit)
    table.load_as_version(version + 1)


def without_logs(uri: str, parts: Sequence[WrittenPart]) -> None:
    """Remove what only the writing of ``parts`` needed; for files of a store that is not local, VACUUM does it."""
    if is_local(uri):
        for part in parts:
            shutil.rmtree(Path(uri, part.path).parent / "_delta_log", ignore_errors=True)


def scanned(uri: str, columns: Sequence[str], where: str) -> pa.RecordBatchReader | None:
    """The rows of a table of a lake, in any order; None: there is no such table. Files whose statistics exclude ``where`` are not read.

    Raises:
        ApplyError: it cannot be read.
    """
    try:
        rows = pa.RecordBatchReader.from_stream(opened(uri).scan(list(columns), where))
        return rows.cast(pa.schema([pa.field(f.name, without_views(f.type)) for f in rows.schema]))
    except TableNotFoundError:
        return None
    except FAULTS as error:
        raise ApplyError(f"{uri} cannot be read: {error}") from error


def without_views(kind: pa.DataType) -> pa.DataType:
    """A type whose views on texts are texts: few functions of Arrow take views."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, without_views(f.type), f.nullable) for f in kind])
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def runs(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """``batches`` by about ``RUN_BYTES``. One stream took delta-rs 3 GiB of memory for rows of 100 kB (docs/adr/0012)."""
    return gathered(batches, RUN_BYTES)


def with_directory(uri: str) -> str:
    """``uri``, whose directory is there if it is a local one."""
    if is_local(uri):
        Path(uri).mkdir(parents=True, exist_ok=True)
    return uri


def delta_schema(schema: pa.Schema) -> Schema:
    """A schema as delta-rs has it; a struct is a VARIANT."""
    plain = Schema.from_arrow(pa.schema([f for f in schema if not pa.types.is_struct(f.type)]))
    fields = {field.name: field for field in plain.fields}
    return Schema([fields.get(f.name) or Field(f.name, VariantType()) for f in schema])


def stats_of(action: dict[str, Any]) -> str:
    """The statistics of a file as a log has them; those that JSON has no form of are left out."""
    names = {"minValues": "min", "maxValues": "max", "nullCount": "null_count"}
    columns = {name: {n: v for n, v in (action.get(own) or {}).items() if isinstance(v, str | int | float)} for name, own in names.items()}
    return json.dumps({"numRecords": action["num_records"], **columns})


def compare_and_swap(record: str, version: int) -> CommitProperties:
    """A commit that is never tried again on another version of the table; ``version``: of its application transaction."""
    return CommitProperties({APP: record}, max_commit_retries=0, app_transactions=[Transaction(APP, version)])
