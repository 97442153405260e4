"""All Pumps of a client: their states, the choice among them, and the connection to each.

Promises: thread-safe; nothing in here waits for a Pump. ``selection.py`` and ``availability.py`` decide on selection and availability.
"""

import logging
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.binlog_source.pump_client.availability import KnownPumps
from pyspark_tidb_binlog.binlog_source.pump_client.connection import Connect, PumpConnection
from pyspark_tidb_binlog.binlog_source.pump_client.outcome_queue import OutcomeQueue
from pyspark_tidb_binlog.binlog_source.pump_client.selection import STRATEGIES, Selector, matches
from pyspark_tidb_binlog.binlog_source.pump_client.settings import Clock, Counters, PumpClientSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PumpHandle:
    """The connection to one Pump, and what writes over it."""

    connection: PumpConnection
    outcome_queue: OutcomeQueue
    """For outcomes."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """A client's external dependencies."""

    connect: Connect
    clock: Clock
    chance: random.Random
    """For the strategy ``score``."""


class PumpSet:
    """The Pumps of one client."""

    def __init__(self, settings: PumpClientSettings, dependencies: Dependencies, counters: Counters) -> None:
        self._settings = settings
        self._dependencies = dependencies
        self._counters = counters
        self._lock = threading.Lock()
        self._availability = KnownPumps(settings.max_errors)
        self._selector = Selector(_strategy(settings), settings.labels, dependencies.chance)
        self._takers: dict[int, PumpHandle] = {}  # which Pump accepted the Prewrite of a start_ts: its outcome goes there too
        self._handles: dict[str, PumpHandle] = {}

    def register(self, statuses: Iterable[NodeStatus]) -> None:
        """The registry reported these Pumps: new ones, or newer states of known ones."""
        for status in statuses:
            with self._lock:
                if status.node_id not in self._handles:
                    self._handles[status.node_id] = self._way_to(status)
                self._handles[status.node_id].connection.address = status.host
                self._moved([status.node_id] if self._availability.register(status) else [])

    def choose(self, start_ts: int, retries: int) -> PumpHandle | None:
        """The Pump to try a Prewrite with; None when there is no available one."""
        with self._lock:
            node_id = self._selector.choose(start_ts, retries)
            return self._handles[node_id] if node_id is not None else None

    def remember(self, start_ts: int, handle: PumpHandle | None) -> None:
        """The Prewrite of ``start_ts`` was accepted by that Pump, or by none."""
        with self._lock:
            if handle is None:
                self._takers.pop(start_ts, None)
            else:
                self._takers[start_ts] = handle

    def pump_of(self, start_ts: int) -> PumpHandle | None:
        """The Pump that has the Prewrite; None when no Prewrite is known."""
        with self._lock:
            return self._takers.get(start_ts)

    def available(self) -> list[PumpHandle]:
        """The Pumps that Prewrites go to."""
        with self._lock:
            return [self._handles[status.node_id] for status in self._availability.available()]

    def online(self) -> list[PumpHandle]:
        """Every Pump that is registered online, available or not; those with the client's labels first."""
        with self._lock:
            statuses = sorted(self._availability.online(), key=lambda status: not matches(status, self._settings.labels))
            return [self._handles[status.node_id] for status in statuses]

    def to_probe(self) -> list[PumpHandle]:
        """The unavailable Pumps that should answer."""
        with self._lock:
            return [self._handles[status.node_id] for status in self._availability.to_probe()]

    def handles(self) -> list[PumpHandle]:
        """The handles of all Pumps that were ever registered."""
        with self._lock:
            return list(self._handles.values())

    def answered(self, node_id: str) -> None:
        """A Pump that may be unavailable has answered."""
        with self._lock:
            self._moved([node_id] if self._availability.answered(node_id) else [])

    def demote_unusable(self) -> None:
        """A write failed: move every unusable Pump to the unavailable ones."""
        with self._lock:
            demoted = self._availability.demote_unusable()
            self._moved(demoted)
        for node_id in demoted:
            self._counters.add(demotions=1)
            _log.warning(
                "Pump %s gets no more Prewrites, because it is not online or fails. While it is registered as online, the client probes it",
                node_id,
            )

    def _moved(self, node_ids: Iterable[str]) -> None:
        """Apply changes of availability (or of a status only, without ``node_ids``): new connections, and a new choice."""
        for node_id in node_ids:
            self._handles[node_id].connection.reset()
        self._selector.offer(self._availability.available())

    def _way_to(self, status: NodeStatus) -> PumpHandle:
        settings, clock = self._settings, self._dependencies.clock
        connection = PumpConnection(status.node_id, status.host, self._dependencies.connect, partial(self._count, status.node_id))
        outcome_queue = OutcomeQueue(connection, settings, clock, self._counters, self.demote_unusable, partial(self._left, status.node_id))
        return PumpHandle(connection, outcome_queue)

    def _left(self, node_id: str) -> bool:
        with self._lock:
            return self._availability.offline(node_id)

    def _count(self, node_id: str, answered: bool) -> None:
        with self._lock:
            if answered:
                self._availability.count_success(node_id)
            else:
                self._availability.count_failure(node_id)


def _strategy(settings: PumpClientSettings) -> Callable[..., NodeStatus | None]:
    name = "local" if settings.socket else settings.strategy
    if name not in STRATEGIES:
        _log.warning("Pump client: strategy %r is unknown (known: %s): the client uses range", name, ", ".join(STRATEGIES))
    return STRATEGIES.get(name, STRATEGIES["range"])
