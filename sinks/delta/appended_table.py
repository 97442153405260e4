"""A Delta table to which one query appends, written by delta-rs. ``checkpoint_table`` has the two tables. [deltalake]

Promises: an append is one commit of one file. Its transaction (``txn``) is the query's id with its newest batch: part of the table's state, which outlives
files and log entries. An append fails if its query has committed since ``newest_batch``; without a batch it fails if anybody has. ``tidy`` changes no row.
It joins small files in a commit without new data, so streams that read the table skip it. It removes files that no version within the retention refers
to, so a reader may lag by the retention. Entries of the log that are older go, too.
"""

import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

FAULTS = (DeltaError, OSError, pa.ArrowException)
"""What delta-rs raises; Arrow for a file that a query cannot read."""
MOST_FILES = 100
"""New files before they are joined."""
_FULL_BYTES = 16 << 20
"""Files of this size are not joined again: the whole table would be written anew every time."""
_STRICT = CommitProperties(max_commit_retries=0)
_KEEP_LOG = PostCommitHookProperties(cleanup_expired_logs=False)
"""A look for old entries takes longer than a commit: 0.4 s where the log has 31,000, those of a week (docs/adr/0012)."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
"""Of a store. A ``uri`` without one is a local path."""
_FILE_SCHEME = re.compile(r"^file:(//(?=/))?")
_OWN = re.compile(r"part-[^/]*\.parquet")
"""Files of rows. A vacuum also takes others in the directory, deletion vectors in use among them, for files of commits that failed."""
_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳")


def vacuum_every(retention: float) -> float:
    """Seconds between two removals of old files: a quarter of the retention, at most an hour. Pure."""
    return min(3600.0, retention / 4)


def properties(retention: float) -> Mapping[str, str]:
    """The table's properties: the retention also of a VACUUM that somebody else runs. Pure."""
    # Delta refuses to vacuum if the log were deleted before the files.
    kept = f"interval {math.ceil(retention)} seconds"
    return {"delta.checkpointInterval": "100", "delta.deletedFileRetentionDuration": kept, "delta.logRetentionDuration": kept}


def reason_of(error: BaseException) -> str:
    """Why a write failed, in a line: delta-rs tells causes in lines with colours. Pure."""
    return f"{type(error).__name__}: {' '.join(_NOISE.sub('', str(error)).split())}"


def found_at(uri: str, sql: str) -> list[dict[str, Any]]:
    """The rows that a query of the table ``t`` finds in its newest version; none where there is no table."""
    table = _opened(_FILE_SCHEME.sub("", uri))
    return _found(table, sql) if table is not None else []


class AppendedTable:
    """The table. One thread at a time."""

    def __init__(self, uri: str, schema: pa.Schema, app_id: str, retention: float) -> None:
        """Nothing is read or made before ``newest_batch``. ``retention``: seconds that files and log entries are kept that the newest version does not need."""
        self.uri = _FILE_SCHEME.sub("", uri)
        self._schema = schema
        self._app_id = app_id
        self._retention = retention
        self._table: DeltaTable | None = None
        self._joined = 0
        """Files after the last join."""
        self._vacuum_at = 0.0

    def newest_batch(self) -> int:
        """Go to the newest version of the table, which is made if it is not there; its newest batch of this query, -1: none."""
        table, self._table = self._table, None
        if table is not None:
            table.update_incremental()
        else:
            table = _opened(self.uri) or self._made()
        found = table.transaction_version(self._app_id)
        # A handle that has failed is not used again: whether it still fits the log is unknown.
        self._table = table
        return -1 if found is None else found

    def found(self, sql: str) -> list[dict[str, Any]]:
        """The rows that a query of the table ``t`` finds in the version that ``newest_batch`` has read."""
        return _found(self._held, sql)

    def commit(self, rows: pa.Table, batch_id: int) -> None:
        """Append ``rows``, which the version that ``newest_batch`` has read lacks; ``batch_id``: the newest one, negative: of no batch."""
        table, self._table = self._held, None
        done = CommitProperties(app_transactions=[Transaction(self._app_id, batch_id)]) if batch_id >= 0 else _STRICT
        write_deltalake(table, rows, mode="append", commit_properties=done, post_commithook_properties=_KEEP_LOG)
        self._table = table

    def remove(self, predicate: str) -> None:
        """Remove rows, in a commit that a stream over the table refuses."""
        table, self._table = self._held, None
        table.delete(predicate, commit_properties=_STRICT, post_commithook_properties=_KEEP_LOG)
        self._table = table

    def tidy(self) -> None:
        """Do what is due: after a commit of its own."""
        table, self._table = self._table, None
        if table is None:
            return
        joins, vacuums = table.get_add_actions().num_rows >= self._joined + MOST_FILES, time.monotonic() >= self._vacuum_at
        if joins or vacuums:
            # Others may have committed since ``newest_batch``. A vacuum takes files of versions that it does not know for those of failed commits.
            table.update_incremental()
        if joins:
            table.optimize.compact(target_size=_FULL_BYTES, commit_properties=_STRICT)
            self._joined = table.get_add_actions().num_rows
        if vacuums:
            wanted = properties(self._retention)
            if not wanted.items() <= table.metadata().configuration.items():
                table.alter.set_table_properties(dict(wanted), commit_properties=_STRICT)
            self._vacuum_at = time.monotonic() + vacuum_every(self._retention)
            table.cleanup_metadata()
            self._remove_sums()
            # Without hours, which are no measure for a short retention: the property says how old. ``full``: also of commits that failed.
            foreign = [name for name in table.vacuum(dry_run=True, full=True) if not _OWN.fullmatch(name)]
            if foreign:
                raise DeltaError(f"{self.uri} is not vacuumed: {foreign[0]} may be in use; move it away, or vacuum with Spark")
            table.vacuum(dry_run=False, full=True)
        self._table = table

    def _remove_sums(self) -> None:
        """Remove the sums that Spark has put beside its files: of a file that delta-rs writes anew they are wrong, and nobody else removes them."""
        if not _SCHEME.match(self.uri):
            for found in (*Path(self.uri).glob(".*.crc"), *Path(self.uri).glob("_delta_log/.*.crc")):
                found.unlink(missing_ok=True)

    def _made(self) -> DeltaTable:
        if not _SCHEME.match(self.uri):
            Path(self.uri).mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(self.uri, self._schema, mode="error", configuration=properties(self._retention), commit_properties=_STRICT)

    @property
    def _held(self) -> DeltaTable:
        assert self._table is not None, "newest_batch comes first"
        return self._table


def _opened(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def _found(table: DeltaTable, sql: str) -> list[dict[str, Any]]:
    # By Arrow's reader: that of delta-rs holds Python's lock while it waits for the store, and with it the stream and its lease.
    rows: list[dict[str, Any]] = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(sql)).read_all().to_pylist()
    return rows
