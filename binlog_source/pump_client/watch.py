"""The two loops beside the writes: news of the registry, and whether unavailable Pumps answer again (pump_client.md 3).

Promises: ``follow`` and ``detect`` are bodies of daemon threads and end soon after the clock is closed. A registry that does not answer is logged once
and then listed anew, so that nothing is missed; what was known of the Pumps stays as it is meanwhile.
"""

import logging

from binlog_source.cluster.registry import PUMPS, Listing, Registry
from binlog_source.pump_client.clock import Clock
from binlog_source.pump_client.fleet import Fleet, Way
from binlog_source.pump_client.retry import ANSWERED
from binlog_source.pump_client.settings import PumpClientSettings
from binlog_source.pump_client.stats import Counters
from binlog_source.pump_client.writer import WriteFailed
from schemas.errors import ReplicationError

_PROBE = b""
"""A Pump accepts an empty binlog and forgets it."""
_REGISTRY_PAUSE = 1.0
_log = logging.getLogger(__name__)


class Follower:
    """Takes the registry's news of Pumps over, change by change."""

    def __init__(self, registry: Registry, fleet: Fleet, revision: int, wait: float) -> None:
        """``revision`` is that of the listing that ``fleet`` knows already; one question may wait ``wait`` seconds."""
        self._registry = registry
        self._fleet = fleet
        self._wait = wait
        self._revision: int | None = revision

    def step(self) -> bool:
        """Wait for news once and take them over; False when the registry did not answer. The step after that lists anew."""
        try:
            news = self._news()
        except ReplicationError as error:
            if self._revision is not None:
                _log.warning("registry %s: %s; the Pumps known so far are written to meanwhile", self._registry.url, error)
            self._revision = None
            return False
        self._revision = news.revision
        self._fleet.register(news.nodes)
        return True

    def _news(self) -> Listing:
        if self._revision is None:
            return self._registry.listing(PUMPS)
        return self._registry.changes(PUMPS, self._revision, self._wait)


def follow(follower: Follower, clock: Clock) -> None:
    """Follow until the clock is closed."""
    while not clock.wait(0 if follower.step() else _REGISTRY_PAUSE):
        pass


def detect(fleet: Fleet, clock: Clock, settings: PumpClientSettings, counters: Counters) -> None:
    """Probe until the clock is closed."""
    while not clock.wait(settings.probe_interval):
        probe_unavailable(fleet, counters)


def probe_unavailable(fleet: Fleet, counters: Counters) -> None:
    """One look at each unavailable Pump that is registered online; who answers is available again."""
    for way in fleet.to_probe():
        counters.add(probes=1)
        if _answers(way):
            _log.info("Pump %s answers and is written to again", way.link.node_id)
            fleet.answered(way.link.node_id)


def _answers(way: Way) -> bool:
    try:
        way.link.write([_PROBE])
    except WriteFailed as failure:
        return failure.code == ANSWERED
    return True
