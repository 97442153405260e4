"""Prewrites whose outcome never came: the Pump asks the upstream and writes the record that is missing (pump.md 5).

Promises: only what the upstream says is written: a commit it names, or a rollback it names. A lock or silence changes nothing; absence is never
taken for a rollback here. The written Commit has no prewrite_key and no ddl fields: those stand in the Prewrite.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from binlog_source.pump.service import PumpService
from binlog_source.pump.storage.record import Record, canonical, parse, read
from schemas.events import tso
from schemas.proto import binlog_pb2

ASK_AFTER = 1.0
"""Seconds that a Prewrite may wait for its outcome before anybody is asked."""
_ROLLBACK = 3
_log = logging.getLogger(__name__)


def outcome(start_ts: int, answer: Any) -> Record | None:
    """The record that settles transaction ``start_ts`` by an answer of ``/mvcc/hex``, None when it does not say."""
    writes = ((answer.get("value") or {}).get("info") or {}).get("writes") or ()
    for write in writes:
        if write.get("start_ts") != start_ts:
            continue
        if write.get("type", 0) == _ROLLBACK:
            return canonical(binlog_pb2.Binlog(tp=binlog_pb2.Rollback, start_ts=start_ts).SerializeToString())
        if write.get("commit_ts", 0) > start_ts:
            return canonical(binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=start_ts, commit_ts=write["commit_ts"]).SerializeToString())
    return None


class OrphanResolver:
    """One look at what waits; ``ask`` is ``/mvcc/hex`` for a key."""

    def __init__(
        self, service: PumpService, ask: Callable[[bytes], Any], now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._service = service
        self._ask = ask
        self._now_ms = now_ms

    def __call__(self) -> None:
        """Settle what the upstream knows of."""
        store = self._service.store
        for entry in store.orphans(tso(self._now_ms() - int(ASK_AFTER * 1000))):
            payload = store.payload(entry)
            record = outcome(entry.ts, self._ask(parse(payload).prewrite_key))
            if record is not None:
                _log.warning(
                    "Pump %s: the outcome of %d never came; the upstream says %s",
                    self._service.node_id,
                    entry.ts,
                    read(record.payload).kind.name,
                )
                self._service.write_records([record])
