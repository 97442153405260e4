"""Prewrites whose outcome never came: the Pump asks the upstream and writes the record that is missing (pump.md 5).

    committed -> a Commit (no prewrite_key, no ddl fields: those stand in the Prewrite)       rolled back -> a Rollback
    locked    -> wait          no trace -> wait, and after ``orphan-timeout`` a Rollback      no answer   -> wait, and raise the alarm

Promises: nothing but what the upstream said, or what it did not know for longer than it remembers, is ever written.
"""

import logging
import time
from collections.abc import Callable, Sequence

from binlog_source.mvcc import Finding, StatusPorts, Verdict
from binlog_source.pump.service import PumpService
from binlog_source.pump.storage.index import Entry
from binlog_source.pump.storage.record import Record, canonical, parse
from schemas.errors import PumpUnavailable
from schemas.events import as_time, physical_ms, tso
from schemas.proto import binlog_pb2

ASK_AFTER = 1.0
"""Seconds that a Prewrite may wait for its outcome before anybody is asked."""
_ASKED_AT_ONCE = 256
_ALARM_EVERY = 10.0
_log = logging.getLogger(__name__)


def outcome(start_ts: int, verdict: Verdict, age_ms: int, timeout_ms: float) -> Record | None:
    """The record that settles transaction ``start_ts``; None while it must wait."""
    if verdict.finding is Finding.COMMITTED:
        return canonical(binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=start_ts, commit_ts=verdict.commit_ts).SerializeToString())
    if verdict.finding is Finding.ROLLED_BACK or (verdict.finding is Finding.ABSENT and age_ms > timeout_ms):
        return canonical(binlog_pb2.Binlog(tp=binlog_pb2.Rollback, start_ts=start_ts).SerializeToString())
    return None


class OrphanResolver:
    """One look at what waits."""

    def __init__(
        self,
        service: PumpService,
        ports: Callable[[], Sequence[str]],
        timeout: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``ports``: the status ports to ask, ``host:port`` each; ``timeout``: seconds after which absence is a rollback."""
        self._service = service
        self._ports = ports
        self._timeout_ms = timeout * 1000
        self._now_ms = now_ms
        self._alarmed_at = float("-inf")
        self.alarms = 0
        """How often nobody could say what became of a Prewrite."""

    def __call__(self) -> None:
        """Settle what the upstream knows of."""
        now = self._now_ms()
        waiting = self._service.store.orphans(tso(now - int(ASK_AFTER * 1000)))
        if not waiting:
            return
        try:
            ports = StatusPorts(self._ports())
            for entry in waiting[:_ASKED_AT_ONCE]:
                self._settle(entry, ports, now - physical_ms(entry.ts))
        except PumpUnavailable as error:
            self._alarm(waiting, error)

    def _settle(self, entry: Entry, ports: StatusPorts, age_ms: int) -> None:
        self._service.metrics.asked()
        verdict = ports.ask(entry.ts, parse(self._service.store.payload(entry)).prewrite_key)
        record = outcome(entry.ts, verdict, age_ms, self._timeout_ms)
        if record is not None:
            _log.warning(
                "Pump %s: the outcome of start_ts %d (%s) never came; the upstream says: %s", self._service.node_id, entry.ts,
                as_time(entry.ts), verdict.finding.value,
            )  # fmt: skip
            self._service.store.write([record])

    def _alarm(self, waiting: Sequence[Entry], error: PumpUnavailable) -> None:
        self.alarms += 1
        if time.monotonic() - self._alarmed_at >= _ALARM_EVERY:
            self._alarmed_at = time.monotonic()
            _log.error(
                "Pump %s: %d Prewrites wait for an outcome, the oldest since %s (start_ts %d), and %s: no Drainer gets past them; "
                "name a TiDB's status port in tidb-status", self._service.node_id, len(waiting), as_time(waiting[0].ts), waiting[0].ts, error,
            )  # fmt: skip
