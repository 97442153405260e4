"""One upstream transaction: row changes, a Prewrite whose answer is awaited, and a commit whose outcome is written in the background.

Promises: the binlog is what TiDB writes (rows.md 1): mutations by table in the order of their first change, ``sequence`` in the order of
execution, a change of the handle as delete and insert. A refused Prewrite aborts the transaction. Nothing is visible to others before
``commit``.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_tidb_binlog.jobs.lab.emulator.tablestore import Handle, LiveTable, Row, TableVersion, WriteConflict
from pyspark_tidb_binlog.jobs.lab.emulator.upstream_state import UpstreamState
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

_SIGN = 1 << 63


class Txn:
    """Created by ``Upstream.begin``; used by one thread."""

    def __init__(self, upstream: UpstreamState, start_ts: int, schema_version: int) -> None:
        self._upstream = upstream
        self.start_ts = start_ts
        self.schema_version = schema_version
        self._changes: dict[tuple[int, Handle], Row | None] = {}
        self._mutations: dict[int, binlog_pb2.TableMutation] = {}
        self._prewrite_key = b""
        self._prewritten = False
        self.over = False
        """Committed, rolled back or aborted."""

    @property
    def row_changes(self) -> int:
        """How many row changes its binlog has: an update of the handle is two."""
        return sum(len(mutation.sequence) for mutation in self._mutations.values())

    def insert(self, table: str, values: Mapping[str, Any]) -> Handle:
        """Insert a row and return its handle; columns that are not named get their default."""
        with self._upstream.lock:
            live, seen = self._table(table)
            row = seen.row(values)
            handle = seen.handle_of(row) if seen.keyed else live.new_rowid()
            self._insert(live, seen, handle, row)
            return handle

    def update(self, table: str, handle: Handle, values: Mapping[str, Any]) -> Handle:
        """Change a row and return its new handle (another one if the clustered key changed)."""
        with self._upstream.lock:
            live, seen = self._table(table)
            old = self._row(live, handle)
            new = seen.row(values, old)
            new_handle = seen.handle_of(new) if seen.keyed else handle
            if new_handle != handle:
                self._delete(live, seen, handle, old)
                self._insert(live, seen, new_handle, new)
                return new_handle
            self._lock(live, handle)
            self._changes[live.id, handle] = new
            mutation = self._mutation(live, handle)
            mutation.updated_rows.append(seen.encoder.update(old, new, _rowid(handle)))
            mutation.sequence.append(binlog_pb2.Update)
            return handle

    def delete(self, table: str, handle: Handle) -> None:
        """Delete a row."""
        with self._upstream.lock:
            live, seen = self._table(table)
            self._delete(live, seen, handle, self._row(live, handle))

    def prewrite(self) -> None:
        """Write the Prewrite and wait until a Pump has it; ``PumpUnavailable`` aborts the transaction. ``commit`` calls it if needed."""
        if not self._prewritten and self._mutations and (refused := prewrite_together([self])):
            raise refused

    def commit(self, *, lose_outcome: bool = False) -> int:
        """Commit and return the commit_ts (0 if nothing was changed). ``lose_outcome``: no Commit record follows, as when a TiDB dies."""
        self.prewrite()
        if not self._prewritten:
            self._end()
            return 0
        with self._upstream.lock:
            commit_ts = self._upstream.oracle.next()
            self._apply()
            self._upstream.mvcc.commit(self._prewrite_key, self.start_ts, commit_ts)
            self._end()
        if lose_outcome:
            self._upstream.pumps.forget(self.start_ts)
        else:
            self._upstream.pumps.outcome(self.start_ts, self._binlog(binlog_pb2.Commit, commit_ts).SerializeToString())
        return commit_ts

    def rollback(self, *, lose_outcome: bool = False) -> None:
        """Roll back. Before ``prewrite`` nothing is written, after it a Rollback (unless it is to be lost)."""
        if self._prewritten:
            self._upstream.mvcc.roll_back(self._prewrite_key, self.start_ts)
            if lose_outcome:
                self._upstream.pumps.forget(self.start_ts)
            else:
                self._upstream.pumps.outcome(self.start_ts, self._binlog(binlog_pb2.Rollback, 0).SerializeToString())
        self._end()

    def _locked(self) -> bytes:
        """Lock the keys; the Prewrite."""
        self._upstream.mvcc.lock(self._prewrite_key, self.start_ts)
        value = binlog_pb2.PrewriteValue(schema_version=self.schema_version, mutations=self._mutations.values())
        binlog = self._binlog(binlog_pb2.Prewrite, 0)
        binlog.prewrite_value = value.SerializeToString()
        return binlog.SerializeToString()

    def _answered(self, refused: PumpUnavailable | None) -> None:
        self._prewritten = refused is None
        if refused is not None:
            self._upstream.mvcc.roll_back(self._prewrite_key, self.start_ts)
            self._end()

    def _insert(self, live: LiveTable, seen: TableVersion, handle: Handle, row: Row) -> None:
        if self._changes.get((live.id, handle), live.rows.get(handle)) is not None:
            raise WriteConflict(f"table {live.db}.{live.name} has a row {handle!r} already")
        self._lock(live, handle)
        self._changes[live.id, handle] = row
        mutation = self._mutation(live, handle)
        mutation.inserted_rows.append(seen.encoder.insert(row, _rowid(handle)))
        mutation.sequence.append(binlog_pb2.Insert)

    def _delete(self, live: LiveTable, seen: TableVersion, handle: Handle, row: Row) -> None:
        self._lock(live, handle)
        self._changes[live.id, handle] = None
        mutation = self._mutation(live, handle)
        mutation.deleted_rows.append(seen.encoder.delete(row, _rowid(handle)))
        mutation.sequence.append(binlog_pb2.DeleteRow)

    def _table(self, qualified: str) -> tuple[LiveTable, TableVersion]:
        if self.over or self._prewritten:
            raise WriteConflict(f"transaction {self.start_ts} accepts no more changes")
        live = self._upstream.store.table(qualified)
        return live, live.seen_at(self.schema_version)

    def _row(self, live: LiveTable, handle: Handle) -> dict[int, Any]:
        row = self._changes.get((live.id, handle), live.rows.get(handle))
        if row is None:
            raise WriteConflict(f"table {live.db}.{live.name} has no row {handle!r}")
        return live.completed(row)

    def _lock(self, live: LiveTable, handle: Handle) -> None:
        self._upstream.store.lock_row(live.id, handle, self.start_ts)

    def _mutation(self, live: LiveTable, handle: Handle) -> binlog_pb2.TableMutation:
        if not self._prewrite_key:
            self._prewrite_key = _record_key(live.id, handle)
        if live.id not in self._mutations:
            self._mutations[live.id] = binlog_pb2.TableMutation(table_id=live.id)
        return self._mutations[live.id]

    def _apply(self) -> None:
        for (table_id, handle), row in self._changes.items():
            live = self._upstream.store.tables.get(table_id)
            if live is None:
                continue
            if row is None:
                live.rows.pop(handle, None)
            else:
                live.rows[handle] = row

    def _end(self) -> None:
        self.over = True
        with self._upstream.lock:
            for key in self._changes:
                self._upstream.store.row_locks.pop(key, None)

    def _binlog(self, tp: binlog_pb2.BinlogType, commit_ts: int) -> binlog_pb2.Binlog:
        return binlog_pb2.Binlog(
            tp=tp, start_ts=self.start_ts, commit_ts=commit_ts, prewrite_key=self._prewrite_key, ddl_job_id=0, ddl_schema_state=0
        )


def prewrite_together(txns: Sequence[Txn]) -> PumpUnavailable | None:
    """Write the Prewrites of transactions that have changes, in one call to each Pump. Returns the first refusal: such a transaction is aborted."""
    pumps = txns[0]._upstream.pumps
    refused = pumps.prewrite_together({txn.start_ts: txn._locked() for txn in txns})
    for txn in txns:
        txn._answered(refused.get(txn.start_ts))
    return next(iter(refused.values()), None)


def _rowid(handle: Handle) -> int | None:
    return handle if isinstance(handle, int) else None


def _record_key(table_id: int, handle: Handle) -> bytes:
    """The key of a row (rows.md 9.1); a clustered key's values are written as text, because nothing parses them."""
    tail = struct.pack(">Q", (handle + _SIGN) % (1 << 64)) if isinstance(handle, int) else repr(handle).encode()
    return b"t" + struct.pack(">Q", table_id + _SIGN) + b"_r" + tail
