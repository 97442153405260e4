"""Reads TiDB's schema as it was at a ts, through status ports. No TiKV client is needed. HTTP shell; ``value_at`` is pure.

``/schema`` and ``/schema/{db}`` show the schema that their TiDB server has now. ``/mvcc/hex`` shows a schema key's value at a ts. The keys
``Diff:N`` show what schema version N changed and when. Schema versions are made one after the other, and a change commits with its diff.

Promises: ``changes`` includes every change that is committed when it is called, and every change that may yet commit up to the ts. The
reader waits for status ports that do not answer and for transactions that hold a key. After ``patience`` seconds it raises
``HistoryUnavailable``.
"""

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark_tidb_binlog.binlog_source.cluster.status_port import StatusPorts
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import mvcc_info
from pyspark_tidb_binlog.schemas import meta_keys
from pyspark_tidb_binlog.schemas.backoff import Backoff, Retries
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo
from pyspark_tidb_binlog.schemas.errors import Corruption, HistoryUnavailable, PumpUnavailable
from pyspark_tidb_binlog.schemas.schema_snapshot import SchemaDiff
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo

A = TypeVar("A")
_BACKOFF = Backoff(0.05, 2.0)
_PUT, _DELETE = 0, 1
"""``type`` of a lock or a write that changes the value; others (a pessimistic lock, a rollback) do not."""
NOW = (1 << 64) - 1
"""A ts that sees every write."""


@dataclass(frozen=True, slots=True)
class MetaValue:
    """A key at a ts."""

    value: bytes | None
    """None: the key did not exist, or GC has collected what it was."""
    commit_ts: int = 0
    """Of the transaction that wrote it; 0 = there is none."""


class SchemaReader:
    """The schema of one cluster; ``ports`` returns the status ports known at the moment, ``patience`` is in seconds."""

    def __init__(self, ports: Callable[[], StatusPorts], patience: float, pause: Callable[[float], object]) -> None:
        self._ports = ports
        self._patience = patience
        self._pause = pause

    def listing(self) -> dict[DbInfo, list[TableInfo]]:
        """Every database and its tables, as a TiDB server knows them now: it may be behind by as much as a schema lease."""

        def ask() -> dict[DbInfo, list[TableInfo]]:
            ports = self._ports()
            databases = [DbInfo.from_json(parsed) for parsed in ports.databases()]
            stored = [database for database in databases if database.id <= meta_keys.MAX_GLOBAL_ID]
            return {d: [TableInfo.from_json(t) for t in ports.tables(d.name) or () if t["id"] <= meta_keys.MAX_GLOBAL_ID] for d in stored}

        # A database that is dropped between the two requests is an error of the second: the next listing lacks it.
        return self._patiently(ask, "the databases and tables")

    def changes(self, ts: int, since: int) -> list[SchemaDiff]:
        """The changes of the schema versions, newest first, down to the newest change that was committed up to ``since``, included."""
        newest = self._value(meta_keys.schema_version_key(), NOW, ts).value
        if newest is None or not newest.isdigit():
            raise HistoryUnavailable(
                f"load-schema-snapshot cannot read the schema: TiDB's status port shows no schema version under key "
                f"{meta_keys.schema_version_key().hex()}. Check that the port is of a TiDB whose keys have no prefix (API v1)"
            )
        found: list[SchemaDiff] = []
        for version in range(int(newest), 0, -1):
            held = self._value(meta_keys.schema_diff_key(version), NOW, ts)
            if held.value is not None:  # a version whose job failed then has none
                found.append(SchemaDiff.from_json(held.value, held.commit_ts))
                if held.commit_ts <= since:
                    break
        return found

    def database(self, schema_id: int, ts: int) -> DbInfo | None:
        """A database at ``ts``; None when there was none, or GC has collected it."""
        held = self._value(meta_keys.database_key(schema_id), ts, ts)
        return None if held.value is None else DbInfo.from_json(_parsed(held.value))

    def table(self, schema_id: int, table_id: int, ts: int) -> TableInfo | None:
        """A table of a database at ``ts``; None when there was none, or GC has collected it."""
        held = self._value(meta_keys.table_key(schema_id, table_id), ts, ts)
        return None if held.value is None else TableInfo.from_json(_parsed(held.value))

    def tables_dropped_by(self, job_id: int) -> frozenset[int]:
        """The ids of tables and partitions that a DROP DATABASE removed, which its job names in its arguments."""
        job = self._patiently(lambda: self._ports().job(job_id), f"DDL job {job_id}")
        return frozenset(_numbers(job.get("raw_args") if job else None))

    def _value(self, key: bytes, ts: int, began_upto: int) -> MetaValue:
        def ask() -> MetaValue:
            found = value_at(self._ports().look_up(key), ts, began_upto)
            if found is None:
                raise PumpUnavailable(f"a DDL that began up to ts {began_upto} still holds the key {key.hex()}")
            return found

        return self._patiently(ask, f"the schema's key {key.hex()}")

    def _patiently(self, ask: Callable[[], A], what: str) -> A:
        retries = Retries(_BACKOFF, self._patience, sleep=self._pause)
        while True:
            try:
                return ask()
            except (PumpUnavailable, ValueError) as error:
                if retries.over:
                    raise HistoryUnavailable(
                        f"load-schema-snapshot cannot read {what} for {self._patience:g} s: {error}. Check that TiDB's status port is up"
                    ) from error
            retries.pause_in_time()


def value_at(answer: Any, ts: int, began_upto: int) -> MetaValue | None:
    """The value at ``ts``; None while a transaction that began up to ``began_upto`` holds the key, so that it has to be asked again. Pure.

    ``answer`` is that of ``GET /mvcc/hex/{key}`` (rows.md 9.3). A read at a ts sees the newest write with a commit_ts up to that ts. A transaction that began
    up to the ts and still holds the key may yet commit up to the ts. The write record holds a value of at most 255 bytes. A longer value is stored
    separately, under its start_ts.

    Raises:
        ValueError: it is no answer about the key, the JSON has another form, or lacks the value that it names.
    """
    info = mvcc_info(answer)
    try:
        lock = info.get("lock")
        if lock and int(lock.get("start_ts", 0)) <= began_upto and int(lock.get("type", _PUT)) in (_PUT, _DELETE):
            return None
        writes = [write for write in info.get("writes") or () if int(write.get("type", _PUT)) in (_PUT, _DELETE)]
        seen = max((w for w in writes if int(w["commit_ts"]) <= ts), key=lambda w: int(w["commit_ts"]), default=None)
        if seen is None:
            return MetaValue(None)
        commit_ts, start_ts = int(seen["commit_ts"]), int(seen["start_ts"])
        if int(seen.get("type", _PUT)) == _DELETE:
            return MetaValue(None, commit_ts)
        text = seen.get("short_value")
        if text is None:
            text = next((v["value"] for v in info.get("values") or () if int(v["start_ts"]) == start_ts), None)
        if text is None:
            raise ValueError(f"the value that start_ts {start_ts} wrote is missing")
        return MetaValue(base64.b64decode(text, validate=True), commit_ts)
    except (AttributeError, KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"no MVCC information: {str(answer)[:200]}") from error


def _parsed(text: bytes) -> dict[str, object]:
    try:
        parsed: dict[str, object] = json.loads(text)
    except ValueError as error:
        raise Corruption(f"a value of TiDB's schema is not JSON: {text[:200]!r}") from error
    return parsed


def _numbers(value: object) -> set[int]:
    """Every whole number in a JSON value: the form of a job's arguments differs between TiDB's releases."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(_numbers, parts))
