"""Which Pumps get binlogs: a state machine of available and unavailable Pumps (pump_client.md 3 and 4).

    availability  event                                                     becomes
    unknown       registered online                                         available
    unknown       registered in another state                               unavailable
    available     registered in another state than online                   unavailable
    available     found unusable after a failed write                       unavailable
    unavailable   registered online after another state                     available
    unavailable   answered a probe, or alone accepted a Prewrite            available

A Pump is usable if it is registered online and has had at most ``max_errors`` consecutive failed calls. Heartbeats do not count: a crashed
Pump stays online in the registry. A Pump is never removed, because the registry reports no deletions.

Promises: pure. A change of availability resets the error count. Not thread-safe: ``pump_set.py`` locks.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus


class Availability(enum.Enum):
    """Which list a Pump is on."""

    UNKNOWN = "unknown"
    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"


class Event(enum.Enum):
    """What may change a Pump's availability."""

    ONLINE = "registered online, and was not before"
    AWAY = "registered in another state than online"
    UNUSABLE = "found unusable after a failed write"
    ANSWERED = "answered although unavailable"


TRANSITIONS: Mapping[tuple[Availability, Event], Availability] = {
    (Availability.UNKNOWN, Event.ONLINE): Availability.AVAILABLE,
    (Availability.UNKNOWN, Event.AWAY): Availability.UNAVAILABLE,
    (Availability.AVAILABLE, Event.AWAY): Availability.UNAVAILABLE,
    (Availability.AVAILABLE, Event.UNUSABLE): Availability.UNAVAILABLE,
    (Availability.UNAVAILABLE, Event.ONLINE): Availability.AVAILABLE,
    (Availability.UNAVAILABLE, Event.ANSWERED): Availability.AVAILABLE,
}
"""Any other event leaves the availability unchanged."""


def online(status: NodeStatus) -> bool:
    """Whether the Pump is registered online."""
    return status.state is NodeState.ONLINE


@dataclass(frozen=True, slots=True)
class KnownPump:
    """What the client knows of one Pump."""

    status: NodeStatus
    availability: Availability = Availability.UNKNOWN
    errors: int = 0
    """Consecutive failed calls."""

    def after(self, event: Event) -> "KnownPump":
        """The Pump after ``event``."""
        availability = TRANSITIONS.get((self.availability, event), self.availability)
        return self if availability is self.availability else replace(self, availability=availability, errors=0)

    def registered(self, status: NodeStatus) -> "KnownPump":
        """The Pump after the registry reported ``status``, its first or a newer one."""
        unchanged = self.availability is not Availability.UNKNOWN and online(status) == online(self.status)
        fresh = replace(self, status=status)
        return fresh if unchanged else fresh.after(Event.ONLINE if online(status) else Event.AWAY)


class KnownPumps:
    """All known Pumps, in the order in which they became known."""

    def __init__(self, max_errors: int) -> None:
        self._max_errors = max_errors
        self._known: dict[str, KnownPump] = {}

    def register(self, status: NodeStatus) -> bool:
        """The registry reported a Pump; whether its availability changed."""
        known = self._known.get(status.node_id, KnownPump(status))
        return self._put(known.registered(status))

    def count_failure(self, node_id: str) -> None:
        """A call to the Pump failed."""
        known = self._known[node_id]
        self._known[node_id] = replace(known, errors=known.errors + 1)

    def count_success(self, node_id: str) -> None:
        """The Pump answered a call."""
        known = self._known[node_id]
        if known.errors:
            self._known[node_id] = replace(known, errors=0)

    def answered(self, node_id: str) -> bool:
        """The Pump answered although it may be unavailable; whether its availability changed, which it does only if it is registered online."""
        known = self._known[node_id]
        return online(known.status) and self._put(known.after(Event.ANSWERED))

    def demote_unusable(self) -> tuple[str, ...]:
        """Move every unusable Pump to the unavailable ones; the ids of those that moved."""
        unusable = [known for known in self._known.values() if not (online(known.status) and known.errors <= self._max_errors)]
        return tuple(known.status.node_id for known in unusable if self._put(known.after(Event.UNUSABLE)))

    def available(self) -> tuple[NodeStatus, ...]:
        """The Pumps that Prewrites go to."""
        return tuple(known.status for known in self._known.values() if known.availability is Availability.AVAILABLE)

    def to_probe(self) -> tuple[NodeStatus, ...]:
        """The unavailable Pumps that should answer: they are registered online."""
        return tuple(k.status for k in self._known.values() if k.availability is Availability.UNAVAILABLE and online(k.status))

    def online(self) -> tuple[NodeStatus, ...]:
        """Every Pump that is registered online, available or not."""
        return tuple(known.status for known in self._known.values() if online(known.status))

    def offline(self, node_id: str) -> bool:
        """Whether the Pump is registered offline."""
        return self._known[node_id].status.state is NodeState.OFFLINE

    def _put(self, known: KnownPump) -> bool:
        before = self._known.get(known.status.node_id)
        self._known[known.status.node_id] = known
        return before is None or before.availability is not known.availability
