"""The outcomes of transactions by primary key, and the values of TiDB's schema, as TiDB's ``/mvcc/hex`` reports them (rows.md 9.3).

Promises: safe for many threads. Commits and rollbacks are final; only ``collect`` removes them, as TiKV's GC does.
"""

import base64
import threading
from typing import Any

_DELETE, _ROLLBACK = 1, 3
_SHORT = 255
"""Bytes of a value that TiKV stores in the write record itself, at most."""


class Mvcc:
    """Locks and writes on the primary keys of transactions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[bytes, int] = {}
        self._writes: dict[bytes, list[dict[str, Any]]] = {}
        self._values: dict[bytes, dict[int, str]] = {}
        """Long values by key and start_ts, as base64."""
        self.safe_point = 0
        """Versions that no read at or above this ts can see were collected."""

    def lock(self, key: bytes, start_ts: int) -> None:
        """Lock the key of a transaction that is in its prewrite."""
        with self._lock:
            self._locks[key] = start_ts

    def commit(self, key: bytes, start_ts: int, commit_ts: int) -> None:
        """Record a commit."""
        self._settle(key, {"start_ts": start_ts, "commit_ts": commit_ts})

    def roll_back(self, key: bytes, start_ts: int) -> None:
        """Record a rollback."""
        self._settle(key, {"type": _ROLLBACK, "start_ts": start_ts, "commit_ts": start_ts})

    def put(self, key: bytes, value: bytes | None, start_ts: int, commit_ts: int) -> None:
        """Record a commit that writes a value; None = that deletes the key."""
        write: dict[str, Any] = {"start_ts": start_ts, "commit_ts": commit_ts}
        if value is None:
            write["type"] = _DELETE
        elif len(value) <= _SHORT:
            write["short_value"] = base64.b64encode(value).decode()
        else:
            with self._lock:
                self._values.setdefault(key, {})[start_ts] = base64.b64encode(value).decode()
        self._settle(key, write)

    def _settle(self, key: bytes, write: dict[str, Any]) -> None:
        with self._lock:
            if self._locks.get(key) == write["start_ts"]:
                del self._locks[key]
            self._writes.setdefault(key, []).insert(0, write)

    def collect(self, safe_point: int) -> None:
        """MVCC GC: of each key's writes up to ``safe_point`` only the newest version is kept, and no rollback."""
        with self._lock:
            self.safe_point = max(self.safe_point, safe_point)
            for key, writes in self._writes.items():
                old = [write for write in writes if write["commit_ts"] <= self.safe_point]
                kept = next((write for write in old if write.get("type") != _ROLLBACK), None)
                left = [write for write in writes if write["commit_ts"] > self.safe_point or write is kept]
                self._writes[key] = left
                starts = {write["start_ts"] for write in left}
                self._values[key] = {start_ts: value for start_ts, value in self._values.get(key, {}).items() if start_ts in starts}

    def look_up(self, key: bytes) -> dict[str, Any]:
        """The answer of ``GET /mvcc/hex/KEY``; newest write first."""
        with self._lock:
            info: dict[str, Any] = {}
            if key in self._locks:
                info["lock"] = {"start_ts": self._locks[key], "primary": base64.b64encode(key).decode(), "ttl": 3000}
            if self._writes.get(key):
                info["writes"] = list(self._writes[key])
            if self._values.get(key):
                info["values"] = [
                    {"start_ts": start_ts, "value": text} for start_ts, text in sorted(self._values[key].items(), reverse=True)
                ]
        return {"key": key.hex().upper(), "region_id": 1, "value": {"info": info}}
