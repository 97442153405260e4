"""The two background loops of the client: one follows the registry, one probes unavailable Pumps (pump_client.md 3).

Promises: ``follow`` and ``detect`` are bodies of daemon threads, and end soon after the clock is closed. If the registry does not answer,
that is logged once, and the Pumps are listed again later, so that no change is missed. Until then their last known states apply.
"""

import logging

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, Listing, Registry
from pyspark_tidb_binlog.binlog_source.pump_client.clock import Clock
from pyspark_tidb_binlog.binlog_source.pump_client.pump_set import PumpHandle, PumpSet
from pyspark_tidb_binlog.binlog_source.pump_client.retry import ANSWERED
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.stats import Counters
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed
from pyspark_tidb_binlog.schemas.errors import ReplicationError

_PROBE = b""
"""A Pump accepts an empty binlog and discards it."""
_REGISTRY_PAUSE = 1.0
_log = logging.getLogger(__name__)


class Follower:
    """Applies the registry's changes of Pumps to the set."""

    def __init__(self, registry: Registry, pump_set: PumpSet, revision: int, wait: float) -> None:
        """``revision``: of the listing that ``pump_set`` already has; ``wait``: seconds that one request waits for changes."""
        self._registry = registry
        self._pump_set = pump_set
        self._wait = wait
        self._revision: int | None = revision

    def step(self) -> bool:
        """Wait for changes once and apply them; False when the registry did not answer. The next step then lists all Pumps again."""
        try:
            news = self._news()
        except ReplicationError as error:
            if self._revision is not None:
                _log.warning("registry %s: %s: the client continues with the Pumps known so far", self._registry.url, error)
            self._revision = None
            return False
        self._revision = news.revision
        self._pump_set.register(news.nodes)
        return True

    def _news(self) -> Listing:
        if self._revision is None:
            return self._registry.listing(PUMPS)
        return self._registry.changes(PUMPS, self._revision, self._wait)


def follow(follower: Follower, clock: Clock) -> None:
    """Follow until the clock is closed."""
    while not clock.wait(0 if follower.step() else _REGISTRY_PAUSE):
        pass


def detect(pump_set: PumpSet, clock: Clock, settings: PumpClientSettings, counters: Counters) -> None:
    """Probe until the clock is closed."""
    while not clock.wait(settings.probe_interval):
        probe_unavailable(pump_set, counters)


def probe_unavailable(pump_set: PumpSet, counters: Counters) -> None:
    """Probe each unavailable Pump that is registered online; one that answers is available again."""
    for handle in pump_set.to_probe():
        counters.add(probes=1)
        if _answers(handle):
            _log.info("Pump %s answers again and is available", handle.connection.node_id)
            pump_set.answered(handle.connection.node_id)


def _answers(handle: PumpHandle) -> bool:
    try:
        handle.connection.write([_PROBE])
    except WriteFailed as failure:
        return failure.code == ANSWERED
    return True
