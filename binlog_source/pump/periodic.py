"""The Pump's periodic tasks: fake binlogs while no client writes, GC by age, a check of the Drainers. ``server.py`` starts the threads."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.events import as_time, tso

_log = logging.getLogger(__name__)

GC_SLACK = tso(600 * 1000)
"""Binlogs are removed only this far below the announced gc_ts: a Commit follows its Prewrite within this time (pump.md 8)."""
ALERT_BEFORE = tso(20 * 3600 * 1000)
"""A Drainer that is less than this above gc_ts is reported as an error."""


def own_clock(service: PumpService) -> int:
    """A timestamp for a Pump without a TSO service: its clock's, and above every ts in its log."""
    return max(tso(time.time_ns() // 1_000_000), service.store.written_max_ts + 1)


class FakeBinlogs:
    """Writes a fake binlog when no WriteBinlog call was received since the last check."""

    def __init__(self, service: PumpService, oracle: Callable[[], int]) -> None:
        self._service = service
        self._oracle = oracle
        self._seen = service.writes

    def __call__(self) -> None:
        """Check once."""
        writes = self._service.writes
        if writes == self._seen:
            self._service.store.write([fake(self._oracle())])
        self._seen = writes


class Collector:
    """GC by age, and the check for Drainers that it is about to overtake."""

    def __init__(
        self,
        service: PumpService,
        keep: float,
        drainers: Callable[[], Sequence[NodeStatus]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``keep``: seconds that binlogs are kept."""
        self._service = service
        self._keep_ms = int(keep * 1000)
        self._drainers = drainers
        self._now_ms = now_ms
        self._at_work = threading.Lock()

    def __call__(self) -> None:
        """Remove the binlogs older than ``keep``, even those that a Drainer has not read, as a real Pump does."""
        with self._at_work:
            self._service.store.collect(tso(self._now_ms() - self._keep_ms), GC_SLACK)

    def trigger(self) -> bool:
        """Start a collection now; False when one is running."""
        if self._at_work.locked():
            return False
        threading.Thread(target=self._quietly, name=f"{self._service.node_id} gc on demand", daemon=True).start()
        return True

    def _quietly(self) -> None:
        try:
            self()
        except (ReplicationError, OSError) as error:
            _log.error("Pump %s: gc failed: %s", self._service.node_id, error)

    def check_drainers(self) -> None:
        """Log and count every Drainer that is near gc_ts or behind it."""
        limit = self._service.store.gc_ts + ALERT_BEFORE
        for drainer in self._drainers():
            if drainer.state is not NodeState.OFFLINE and drainer.max_commit_ts < limit and self._service.store.gc_ts:
                self._service.metrics.behind(drainer.node_id)
                _log.error(
                    "Pump %s: Drainer %s has read up to %d (%s), but binlogs up to %d (%s) are collected, so this Drainer loses binlogs. "
                    "Raise gc, or find out why the Drainer lags",
                    self._service.node_id, drainer.node_id, drainer.max_commit_ts, as_time(drainer.max_commit_ts),
                    self._service.store.gc_ts, as_time(self._service.store.gc_ts),
                )  # fmt: skip
