"""One mirror: a table of the upstream as a Delta table, written by delta-rs. [deltalake]

Promises: each write is one version, committed by compare-and-swap on the version that this handle knows. A version counts for nothing until
``snapshots`` names it: ``at`` puts any other newest version aside by RESTORE.

A mirror is a plain table, which any engine reads: its files have columns by their names, in any order. ``alter`` adds columns to it. Where columns get other
names, go, or change their values, ``rewritten`` writes the rows again. A large mirror has features: Spark marks its rows as removed, and renames and drops
columns by column mapping. Earlier builds made each mirror with column mapping: it is read and written, and ``rewritten`` makes a plain one elsewhere.
"""

import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from deltalake import CommitProperties, DeltaTable, QueryBuilder, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import VariantType

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.changes.json_texts import documents_as
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT, laid_out
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.lake import lake_table
from pyspark_tidb_binlog.sinks.lake.lake_table import APP, FULL, KEPT_HOURS, RUN_BYTES, LiveFile, WrittenPart
from pyspark_tidb_binlog.sinks.lake.large_mirrors import FEATURES, REFUSED_NAMES, LargeMirrors, SparkFailed, column_clauses
from pyspark_tidb_binlog.sinks.lake.net_changes import MirrorChanges

_log = logging.getLogger(__name__)

FAULTS = (DeltaError, OSError, SparkFailed)
"""What delta-rs and Spark raise: for a lost race, too."""
GONE = TableNotFoundError
"""What it raises where a table's directory was removed."""


class MirrorUnreadable(ApplyError):
    """A version of a mirror cannot be read."""


def is_error(error: BaseException) -> bool:
    """Whether it is one of the work, and not of the process: a panic of delta-rs is no ``Exception``."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


_SETTINGS = {
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
    # ``upkeep`` does it.
    "delta.enableExpiredLogCleanup": "false",
}
_VECTORS = "delta.enableDeletionVectors"
_LARGE = {
    _VECTORS: "true",
    # Spark puts sums beside the files that it writes, and refuses those that delta-rs has written again under the same names.
    "delta.checkpointInterval": "1000000000",
}
"""Of a mirror that Spark writes, too. ``upkeep`` makes its checkpoints."""
_PHYSICAL = "delta.columnMapping.physicalName"
_ADDED = {"timestampNtz": TableFeatures.TimestampWithoutTimezone, "variantType": TableFeatures.VariantType}
"""``FEATURES`` as delta-rs adds them."""
_BATCH_ROWS = 1 << 12
_MOST_FILES = 64
"""Small files at which a mirror is compacted: each merge adds some."""
_SMALL_BYTES = 16 << 20
_WHOLE_BYTES = 1 << 20
"""Up to this size a mirror is written again in one write, which takes a third of the time of a file of its own and of a commit that swaps files."""


_HERE_BYTES = _WHOLE_BYTES
"""Up to this size a mirror whose columns change stays in its directory."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The record of each commit to a mirror."""

    upto_ts: int
    epoch: int

    @property
    def commit(self) -> CommitProperties:
        """The record as delta-rs takes it: never tried again on another version."""
        return lake_table.compare_and_swap(json.dumps(self._record), self.upto_ts)

    @property
    def mark(self) -> str:
        """A record that only one commit has, of all that Spark makes."""
        return json.dumps({APP: self._record, "commit": uuid.uuid4().hex})

    @property
    def _record(self) -> dict[str, int]:
        return {"upto_ts": self.upto_ts, "epoch": self.epoch}


class MirrorTable:
    """A handle on one version. One thread at a time."""

    def __init__(self, uri: str, table: DeltaTable, large: LargeMirrors | None = None) -> None:
        """``large``: writes it once it is large; None: delta-rs always does."""
        self.uri = uri
        self._table, self._large = table, large
        self._known = set(self._files())

    @classmethod
    def created(cls, uri: str, schema: pa.Schema, stamp: Stamp, large: LargeMirrors | None = None) -> "MirrorTable":
        """A table without rows, where nothing is yet."""
        table = DeltaTable.create(
            lake_table.with_directory(uri),
            lake_table.delta_schema(schema),
            mode="error",
            configuration=_SETTINGS,
            commit_properties=stamp.commit,
        )
        return cls(uri, table, large)

    @classmethod
    def at(cls, uri: str, version: int, stamp: Stamp, large: LargeMirrors | None = None) -> "MirrorTable":
        """The table as it was at ``version``; later versions are put aside."""
        found = cls(uri, DeltaTable(uri), large)
        if (newest := found.version) < version:
            raise GONE(f"{uri} has versions up to {newest}, and {version} was published: an older one was put in its place")
        if newest != version:
            later = found._table.history(newest - version)
            for commit in (c for c in later if APP not in c and APP not in (c.get("userMetadata") or "")):
                _log.warning(
                    "another program has committed version %d (%s) of %s; it is undone", commit["version"], commit["operation"], uri
                )
            if found._has_vectors:
                # delta-rs compares files by their paths, and so would leave rows removed.
                found._by_spark(lambda spark, mark: spark.restore(uri, version, mark), stamp)
            else:
                found._table.restore(version, commit_properties=stamp.commit)
            found._known = set(found._files())
        return found

    @property
    def version(self) -> int:
        """The version that is known."""
        return int(self._table.version())

    @property
    def bytes(self) -> int:
        """The size of its files, as they were when it was opened or tidied last."""
        return sum(file.size for file in self._known)

    @property
    def is_there(self) -> bool:
        """Whether the log still has the version that is known: delta-rs would begin a new log where somebody has removed it."""
        return lake_table.in_log(self._table, self.version)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [field.name for field in self._table.schema().fields]

    def stored_schema(self, schema: pa.Schema) -> pa.Schema:
        """``schema``, that of the table, with the names and types that columns have in its files."""
        stored = {f.name: f.metadata.get(_PHYSICAL, f.name) for f in self._table.schema().fields}
        return pa.schema([field.with_name(stored[field.name]) for field in self._as_kept(schema.empty_table()).schema])

    def _as_kept(self, rows: pa.Table) -> pa.Table:
        """``rows`` with their JSON documents as the table has them."""
        return _with_documents(rows, {f.name for f in self._table.schema().fields if isinstance(f.type, VariantType)})

    def merge(self, net: MirrorChanges, stamp: Stamp) -> None:
        """Make the rows what ``net`` says."""
        if net.fresh:
            self.append(net.rows, stamp)
            failpoints.point("after-mirror-merge")
        else:
            self.replace(net.found_by, net.rows.filter(pc.invert(net.gone)), stamp)

    def replace(self, found_by: pa.Table, rows: pa.Table, stamp: Stamp) -> None:
        """Put ``rows`` in place of those of these identities (``MirrorChanges.found_by``). A small mirror is written again, of another one the files that
        have some of them; of a large mirror Spark marks the rows.

        A MERGE of delta-rs is slower for a small mirror, and no faster for others; it holds 8,192 rows at a time, several times over.
        """
        if self._is_large:
            self._give_vectors(stamp)
            self._by_spark(lambda spark, mark: spark.remove(self.uri, found_by, mark), stamp)
            if rows.num_rows:
                self.append(rows, stamp)
        else:
            self._write_again(found_by, rows, stamp)
        failpoints.point("after-mirror-merge")

    def _write_again(self, found_by: pa.Table, rows: pa.Table, stamp: Stamp) -> None:
        rows, files = self._as_kept(rows), self._files()
        stored = self.stored_schema(rows.schema)
        ids = found_by.rename_columns([stored.names[rows.schema.get_field_index(name)] for name in found_by.column_names])
        if sum(file.size for file in files) <= _WHOLE_BYTES:
            there = pa.concat_tables([stored.empty_table(), *(self._rows_of(file, stored).to_table() for file in files)])
            stays = not_among(there.select(ids.column_names), ids)
            if rows.num_rows or not stays.all():
                kept = there.filter(pa.array(stays)).rename_columns(rows.column_names).cast(rows.schema)
                write_deltalake(self._table, pa.concat_tables([kept, rows]), mode="overwrite", commit_properties=stamp.commit)
        else:
            pieces, changed = list[Iterator[pa.RecordBatch]](), list[LiveFile]()
            for file in files:
                found = self._rows_of(file, stored)
                stays = not_among(found.to_table(columns=ids.column_names), ids)
                if not stays.all():
                    pieces.append(_kept_rows(found, stays))
                    changed.append(file)
            fresh = rows.rename_columns(stored.names).cast(stored).to_batches()
            parts = list(lake_table.written_files(self.uri, stored, chain(*pieces, fresh)))
            if parts or changed:
                self._swap(parts, changed, stamp)

    def _give_vectors(self, stamp: Stamp) -> None:
        if self._table.metadata().configuration.get(_VECTORS) != "true":
            _log.info("from here on %s has deletion vectors", self.uri)
            self._table.alter.set_table_properties(_LARGE, commit_properties=stamp.commit)

    @property
    def _has_vectors(self) -> bool:
        """Whether some versions have deletion vectors. Then its files are not to be read without the log."""
        return "deletionVectors" in self._features

    @property
    def _is_large(self) -> bool:
        if self._has_vectors:
            return True
        return self._large is not None and self.bytes > self._large.above_bytes and not _refused(self.columns)

    def _by_spark(self, work: Callable[[LargeMirrors, str], None], stamp: Stamp) -> None:
        """A version that Spark makes, or none."""
        if self._large is None:
            raise SparkFailed(f"{self.uri} has deletion vectors, which only Spark writes")
        version, mark = self.version, stamp.mark
        failpoints.point("before-spark-write")
        work(self._large, mark)
        failpoints.point("after-spark-write")
        if (newest := DeltaTable(self.uri)).version() == version:
            return
        own = [commit["version"] for commit in newest.history(newest.version() - version) if commit.get("userMetadata") == mark]
        if own != [version + 1]:
            raise DeltaError(f"another program has committed to {self.uri}")
        self._table.load_as_version(version + 1)

    def _files(self) -> list[LiveFile]:
        actions = pa.table(self._table.get_add_actions())
        return [LiveFile(*file) for file in zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)]

    def _rows_of(self, file: LiveFile, stored: pa.Schema) -> pads.Dataset:
        """The rows of a file; nulls in a column that came later. Without the schema, texts and bytes that a MERGE has written are views, which few functions of Arrow take."""
        return pads.dataset(unquote(file.path), stored, filesystem=lake_table.store_of(self._table), format="parquet")

    def _swap(self, parts: Sequence[WrittenPart], gone: Sequence[LiveFile], stamp: Stamp, *, data_change: bool = True) -> None:
        lake_table.swap_files(self._table, parts, gone, stamp.commit, data_change=data_change)
        lake_table.without_logs(self.uri, parts)

    def append(self, rows: pa.Table, stamp: Stamp) -> None:
        """Add rows."""
        write_deltalake(self._table, self._as_kept(rows), mode="append", commit_properties=stamp.commit)

    def append_files(self, parts: Sequence[WrittenPart], stamp: Stamp) -> None:
        """Add the rows of ``parts``, which were written as ``stored_schema``."""
        failpoints.point("before-load-commit")
        if parts:
            self._swap(parts, (), stamp)
        self._known = set(self._files())
        failpoints.point("after-load-commit")

    def delete(self, predicate: str, stamp: Stamp) -> None:
        """Remove the rows of which a condition in SQL holds."""
        self._table.delete(predicate, commit_properties=stamp.commit)
        failpoints.point("after-mirror-ddl")

    def alter(self, columns: Sequence[tuple[pa.Field, str | None]], stamp: Stamp) -> bool:
        """Change columns as metadata: to ``columns``, each with its name before, or None where it is new. Their order stays, and new ones are the last.

        Returns False where the mirror has to be ``rewritten``.
        """
        fresh, kept = (
            pa.schema([c for c, former in columns if former is None]),
            {former: c.name for c, former in columns if former is not None},
        )
        if self._is_large and _refused(c.name for c, _ in columns):
            return False
        fields = lake_table.delta_schema(fresh).fields
        if not self._is_mapped and kept == {name: name for name in self.columns}:
            self._table.alter.add_columns(list(fields), commit_properties=stamp.commit)
        elif self._is_large:
            self._give_vectors(stamp)
            for clause in column_clauses(self.columns, kept, {f.name: f.type.type for f in fields}):
                self._by_spark(partial(LargeMirrors.alter, uri=self.uri, clause=clause), stamp)
        else:
            return False
        failpoints.point("after-mirror-ddl")
        return True

    @property
    def _is_mapped(self) -> bool:
        return any(_PHYSICAL in field.metadata for field in self._table.schema().fields)

    def rewritten(self, uri: str, schema: pa.Schema, turned: Callable[[pa.RecordBatch], pa.RecordBatch], stamp: Stamp) -> "MirrorTable":
        """The table whose rows are as ``turned`` makes them, of ``schema``: this one, in one version, if it is small and has no feature that the rows do not
        need; else another one at ``uri``, which goes if the round fails.
        """
        needed = {FEATURES[field.type.type] for field in lake_table.delta_schema(schema).fields if field.type.type in FEATURES}
        is_here = self.bytes <= _HERE_BYTES and needed.issuperset(self._features)
        there = self if is_here else self.created(uri, schema, stamp, self._large)
        # In a version of its own, which has all rows.
        if lacking := [_ADDED[name] for name in sorted(needed.difference(there._features))]:
            there._table.alter.add_feature(lacking, allow_protocol_versions_increase=True, commit_properties=stamp.commit)
        variants = {f.name for f in schema if pa.types.is_struct(f.type)}
        rows = (_with_documents(pa.Table.from_batches([turned(batch)]), variants).to_batches() for batch in self.read())
        parts = list(lake_table.written_files(there.uri, schema, chain.from_iterable(rows)))
        lake_table.overwrite(there._table, parts, schema, stamp.commit)
        lake_table.without_logs(there.uri, parts)
        if there is not self:
            there._known = set(there._files())
        failpoints.point("after-mirror-ddl")
        return there

    @property
    def _features(self) -> Sequence[str]:
        return self._table.protocol().reader_features or ()

    def read(self, where: str = "TRUE") -> Iterator[pa.RecordBatch]:
        """The rows of which a condition in SQL holds."""
        return _rows(self._table, where)

    def is_true_of_some(self, select: str) -> bool:
        """Whether a query on the table ``t`` has a row."""
        return any(batch.num_rows for batch in _found(self._table, select))

    def tidy(self, schema: pa.Schema, stamp: Stamp) -> int:
        """Join small files, if there are many, of a table of ``schema``. delta-rs's own compaction refuses a table with column mapping.

        Returns the bytes of the files that are not there any more since the last call: what readers of former versions still need.
        """
        small = [file for file in self._files() if file.size < _SMALL_BYTES and not file.closed]
        if len(small) > _MOST_FILES and self._has_vectors:
            self._by_spark(lambda spark, mark: spark.compact(self.uri, mark), stamp)
        elif len(small) > _MOST_FILES:
            stored, parts = self.stored_schema(schema), list[WrittenPart]()
            for run in lake_table.runs(batch for file in small for batch in _batches(self._rows_of(file, stored))):
                parts += lake_table.written_files(
                    self.uri, stored, iter(run), FULL if sum(batch.nbytes for batch in run) >= RUN_BYTES else "parts"
                )
            self._swap(parts, small, stamp, data_change=False)
        before, self._known = self._known, set(self._files())
        return sum(file.size for file in before - self._known)


def rows_of_version(uri: str, version: int) -> Iterator[pa.RecordBatch]:
    """The rows of a published version, for a reader: nothing is put aside.

    Raises:
        MirrorUnreadable: files of the version are damaged, or gone.
    """
    try:
        yield from _rows(lake_table.opened(uri, version), "TRUE")
    except (*FAULTS, pa.ArrowException) as error:
        raise MirrorUnreadable(f"version {version} of {uri} cannot be read: {error}") from error


def _rows(table: DeltaTable, where: str) -> Iterator[pa.RecordBatch]:
    for found in _found(table, f"SELECT * FROM t WHERE {where}"):
        arrays = [_plain(cells) for cells in found.columns]
        yield pa.RecordBatch.from_arrays(arrays, names=found.schema.names)


def _found(table: DeltaTable, select: str) -> pa.RecordBatchReader:
    """Run a query by Arrow's reader: that of delta-rs holds Python's lock while it waits for the store, and with it the lease."""
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(select))


def _with_documents(rows: pa.Table, variants: Collection[str]) -> pa.Table:
    """``rows`` with their JSON documents as VARIANT in these columns, and as texts in others."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_struct(field.type) != (field.name in variants):
            kind = STORED_VARIANT if field.name in variants else pa.string()
            rows = rows.set_column(place, field.name, documents_as(rows[place].combine_chunks(), kind))
    return rows


def _refused(names: Iterable[str]) -> bool:
    return not REFUSED_NAMES.isdisjoint(name.lower() for name in names)


def not_among(rows: pa.Table, ids: pa.Table) -> npt.NDArray[np.bool_]:
    """A mask of the rows that are none of ``ids``, which has the same columns."""
    names, place = ids.column_names, "_place"
    ids = ids.cast(rows.schema)
    numbered = rows.append_column(place, pa.array(np.arange(rows.num_rows)))
    found = numbered.join(ids, names, join_type="left semi")[place].to_numpy()
    stays = np.full(rows.num_rows, True)
    stays[found] = False
    return stays


def _kept_rows(file: pads.Dataset, stays: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    """The rows of a file that stay."""
    begin = 0
    for batch in _batches(file):
        yield batch.filter(pa.array(stays[begin : begin + len(batch)]))
        begin += len(batch)


def _batches(file: pads.Dataset) -> Iterator[pa.RecordBatch]:
    """A batch at a time in memory."""
    return iter(file.to_batches(batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1))


def _plain(cells: pa.Array) -> pa.Array:
    """Without the views that a query gives."""
    return laid_out(cells, STORED_VARIANT) if pa.types.is_struct(cells.type) else cells.cast(lake_table.without_views(cells.type))
