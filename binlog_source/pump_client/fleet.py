"""All Pumps of a client: what is known of them, which is next, and the way to each.

Promises: safe for many threads; nothing in here waits for a Pump. Selection and availability are decided in ``selection.py`` and ``availability.py``.
"""

import logging
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from binlog_source.cluster.registry import NodeStatus
from binlog_source.pump_client.availability import Availability
from binlog_source.pump_client.clock import Clock
from binlog_source.pump_client.gate import Gate
from binlog_source.pump_client.lane import Lane
from binlog_source.pump_client.link import Connect, Link, Tally
from binlog_source.pump_client.selection import STRATEGIES, Selector, Sticky, matches
from binlog_source.pump_client.settings import PumpClientSettings
from binlog_source.pump_client.stats import Counters

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """All that leads to one Pump."""

    link: Link
    gate: Gate
    """For Prewrites."""
    lane: Lane
    """For outcomes."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a client reaches the world by."""

    connect: Connect
    clock: Clock
    chance: random.Random
    """For the strategy ``score``."""


class Fleet:
    """The Pumps of one client."""

    def __init__(self, settings: PumpClientSettings, surroundings: Surroundings, counters: Counters) -> None:
        self._settings = settings
        self._surroundings = surroundings
        self._counters = counters
        self._lock = threading.Lock()
        self._availability = Availability(settings.max_errors)
        self._selector = Selector(_strategy(settings), settings.labels, surroundings.chance)
        self._sticky = Sticky()
        self._ways: dict[str, Way] = {}

    def register(self, statuses: Iterable[NodeStatus]) -> None:
        """The registry told of these Pumps: new ones, or newer states of known ones."""
        for status in statuses:
            with self._lock:
                if status.node_id not in self._ways:
                    self._ways[status.node_id] = self._way_to(status)
                self._ways[status.node_id].link.move_to(status.host)
                self._moved([status.node_id] if self._availability.register(status) else [])

    def choose(self, start_ts: int, retries: int) -> Way | None:
        """The Pump to try a Prewrite with; None when there is no available one."""
        with self._lock:
            node_id = self._selector.choose(start_ts, retries)
            return self._ways[node_id] if node_id is not None else None

    def remember(self, start_ts: int, way: Way | None) -> None:
        """The Prewrite of ``start_ts`` was taken by that Pump, or by none."""
        with self._lock:
            self._sticky.remember(start_ts, way.link.node_id if way is not None else None)

    def taker(self, start_ts: int) -> Way | None:
        """The Pump that has the Prewrite; None when no Prewrite is known."""
        with self._lock:
            node_id = self._sticky.taker(start_ts)
            return self._ways[node_id] if node_id is not None else None

    def available(self) -> list[Way]:
        """The Pumps that Prewrites go to."""
        with self._lock:
            return [self._ways[status.node_id] for status in self._availability.available()]

    def online(self) -> list[Way]:
        """Every Pump that is registered online, available or not; those with the client's labels first."""
        with self._lock:
            statuses = sorted(self._availability.online(), key=lambda status: not matches(status, self._settings.labels))
            return [self._ways[status.node_id] for status in statuses]

    def to_probe(self) -> list[Way]:
        """The unavailable Pumps that should answer."""
        with self._lock:
            return [self._ways[status.node_id] for status in self._availability.to_probe()]

    def ways(self) -> list[Way]:
        """The ways to all Pumps that were ever known."""
        with self._lock:
            return list(self._ways.values())

    def answered(self, node_id: str) -> None:
        """A Pump that may be unavailable has answered."""
        with self._lock:
            self._moved([node_id] if self._availability.answered(node_id) else [])

    def demote_unusable(self) -> None:
        """A write met an error: move every unusable Pump to the unavailable ones."""
        with self._lock:
            demoted = self._availability.demote_unusable()
            self._moved(demoted)
        for node_id in demoted:
            self._counters.add(demotions=1)
            _log.warning("Pump %s gets no more Prewrites: it is not online or fails; it is probed while it is registered online", node_id)

    def _moved(self, node_ids: Iterable[str]) -> None:
        """Pumps came to another list, or none did: then only a status may be newer."""
        for node_id in node_ids:
            self._ways[node_id].link.reset()
        self._selector.offer(self._availability.available())

    def _way_to(self, status: NodeStatus) -> Way:
        settings, clock = self._settings, self._surroundings.clock
        tally = Tally(partial(self._count_success, status.node_id), partial(self._count_failure, status.node_id))
        link = Link(status.node_id, status.host, self._surroundings.connect, tally)
        lane = Lane(link, settings, clock, self._counters, self.demote_unusable, partial(self._left, status.node_id))
        return Way(link, Gate(link, clock, settings.gather), lane)

    def _left(self, node_id: str) -> bool:
        with self._lock:
            return self._availability.offline(node_id)

    def _count_success(self, node_id: str) -> None:
        with self._lock:
            self._availability.count_success(node_id)

    def _count_failure(self, node_id: str) -> None:
        with self._lock:
            self._availability.count_failure(node_id)


def _strategy(settings: PumpClientSettings) -> Callable[..., NodeStatus | None]:
    name = "local" if settings.socket else settings.strategy
    if name not in STRATEGIES:
        _log.warning("Pump client: there is no strategy %r, only %s; range is taken", name, ", ".join(STRATEGIES))
    return STRATEGIES.get(name, STRATEGIES["range"])
