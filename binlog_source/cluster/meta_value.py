"""The value of a key of TiDB's schema at a ts, from the answer of ``GET /mvcc/hex/{key}`` (rows.md 9.3). Pure.

A read at a ts sees the newest write with a commit_ts up to that ts. A transaction that began up to the ts and still holds the key may yet
commit up to the ts, so the reader must wait for it. The write record holds a value of at most 255 bytes. A longer value is stored
separately, under its start_ts.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import mvcc_info

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


def value_at(answer: Any, ts: int, began_upto: int) -> MetaValue | None:
    """The value at ``ts``; None while a transaction that began up to ``began_upto`` holds the key, so that it has to be asked again.

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
