"""What a Pump does for its readers besides the service. Before it serves, it notifies the Drainers (pump.md 2.1, step 4). Then periodically:
fake binlogs while no client writes, GC by age, a check of the Drainers. ``server.py`` starts the threads.

Promises: ``notify`` returns only when every online Drainer has answered ``Notify``; else ``PumpUnavailable`` names those that did not. A
Drainer answers once it has refreshed its list of Pumps, so none can advance past a commit_ts that this Pump will store.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from pyspark_tidb_binlog.binlog_source.cluster.channels import open_channel, reason
from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import NOTIFY
from pyspark_tidb_binlog.schemas.backoff import Backoff
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import as_time, tso
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_log = logging.getLogger(__name__)

GC_SLACK = tso(600 * 1000)
"""Binlogs are removed only this far below the announced gc_ts: a Commit follows its Prewrite within this time (pump.md 8)."""
ALERT_BEFORE = tso(20 * 3600 * 1000)
"""A Drainer that is less than this above gc_ts is reported as an error."""
OVERALL = 10.0
"""Seconds for all Drainers together."""
_ATTEMPTS = 4
_BACKOFF = Backoff(1.0, 4.0)


def notify(drainers: Iterable[NodeStatus], tls: TlsSettings | None) -> None:
    """Notify every online Drainer, all concurrently; ``tls``: the cluster's."""
    online = [drainer for drainer in drainers if drainer.state is NodeState.ONLINE]
    if not online:
        return
    deadline = time.monotonic() + OVERALL
    with ThreadPoolExecutor(len(online)) as pool:
        failures = [failure for failure in pool.map(lambda drainer: _notify(drainer, deadline, tls), online) if failure]
    if failures:
        raise PumpUnavailable(
            f"fail to notify all living drainer: {'; '.join(failures)}; start these Drainers, or set their state to offline, and start this Pump again"
        )


def _notify(drainer: NodeStatus, deadline: float, tls: TlsSettings | None) -> str:
    """Why the Drainer was not notified; "" if it was."""
    failure = "no time was left"
    with open_channel(drainer.host, tls) as channel:
        call = channel.unary_unary(NOTIFY, request_serializer=bytes, response_deserializer=bytes)
        for attempt in range(_ATTEMPTS):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                call(b"", timeout=left, wait_for_ready=True)
                return ""
            except grpc.RpcError as error:
                failure = reason(error)
            if attempt + 1 < _ATTEMPTS:
                time.sleep(max(0.0, min(_BACKOFF.pause(attempt), deadline - time.monotonic())))
    return f"Drainer {drainer.node_id} at {drainer.host}: {failure}"


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
