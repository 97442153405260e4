"""Which Pumps are written to: the available and the unavailable ones as a state machine (pump_client.md 3 and 4).

    standing      event                                                     becomes
    unknown       registered online                                         available
    unknown       registered in another state                               unavailable
    available     registered away from online                               unavailable
    available     found unusable after a write that met an error            unavailable
    unavailable   registered online after another state                     available
    unavailable   answered a probe, or took a Prewrite that no other took   available

Usable is who is registered online and has had at most ``max_errors`` failed calls in a row. No heartbeat counts: a crashed Pump stays online in
the registry. A Pump is never forgotten: the registry tells of no deletion.

Promises: pure. A change of standing sets the count of errors to 0. Not safe for many threads: ``fleet.py`` locks.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from binlog_source.cluster.registry import NodeState, NodeStatus


class Standing(enum.Enum):
    """On which list a Pump is."""

    UNKNOWN = "unknown"
    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"


class Event(enum.Enum):
    """What may move a Pump."""

    ONLINE = "registered online, and was not before"
    AWAY = "registered in another state than online"
    UNUSABLE = "found unusable after a write that met an error"
    ANSWERED = "answered although unavailable"


TRANSITIONS: Mapping[tuple[Standing, Event], Standing] = {
    (Standing.UNKNOWN, Event.ONLINE): Standing.AVAILABLE,
    (Standing.UNKNOWN, Event.AWAY): Standing.UNAVAILABLE,
    (Standing.AVAILABLE, Event.AWAY): Standing.UNAVAILABLE,
    (Standing.AVAILABLE, Event.UNUSABLE): Standing.UNAVAILABLE,
    (Standing.UNAVAILABLE, Event.ONLINE): Standing.AVAILABLE,
    (Standing.UNAVAILABLE, Event.ANSWERED): Standing.AVAILABLE,
}
"""Any other event leaves a Pump where it is."""


def online(status: NodeStatus) -> bool:
    """Whether the registry says so."""
    return status.state is NodeState.ONLINE


@dataclass(frozen=True, slots=True)
class Known:
    """One Pump as the client sees it."""

    status: NodeStatus
    standing: Standing = Standing.UNKNOWN
    errors: int = 0
    """Failed calls in a row."""

    def after(self, event: Event) -> "Known":
        """The Pump after ``event``."""
        standing = TRANSITIONS.get((self.standing, event), self.standing)
        return self if standing is self.standing else replace(self, standing=standing, errors=0)

    def registered(self, status: NodeStatus) -> "Known":
        """The Pump after the registry told ``status``: newer, or the first one."""
        unchanged = self.standing is not Standing.UNKNOWN and online(status) == online(self.status)
        fresh = replace(self, status=status)
        return fresh if unchanged else fresh.after(Event.ONLINE if online(status) else Event.AWAY)


class Availability:
    """All known Pumps, in the order in which they became known."""

    def __init__(self, max_errors: int) -> None:
        self._max_errors = max_errors
        self._known: dict[str, Known] = {}

    def register(self, status: NodeStatus) -> bool:
        """The registry told of a Pump; whether that moved it."""
        known = self._known.get(status.node_id, Known(status))
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
        """The Pump answered although it may be unavailable; whether that moved it. One that left online meanwhile stays where it is."""
        known = self._known[node_id]
        return online(known.status) and self._put(known.after(Event.ANSWERED))

    def demote_unusable(self) -> tuple[str, ...]:
        """Move every unusable Pump to the unavailable ones; the ids of those that moved."""
        unusable = [known for known in self._known.values() if not (online(known.status) and known.errors <= self._max_errors)]
        return tuple(known.status.node_id for known in unusable if self._put(known.after(Event.UNUSABLE)))

    def available(self) -> tuple[NodeStatus, ...]:
        """The Pumps that Prewrites go to."""
        return tuple(known.status for known in self._known.values() if known.standing is Standing.AVAILABLE)

    def to_probe(self) -> tuple[NodeStatus, ...]:
        """The unavailable Pumps that should answer: they are registered online."""
        return tuple(k.status for k in self._known.values() if k.standing is Standing.UNAVAILABLE and online(k.status))

    def online(self) -> tuple[NodeStatus, ...]:
        """Every Pump that is registered online, available or not."""
        return tuple(known.status for known in self._known.values() if online(known.status))

    def offline(self, node_id: str) -> bool:
        """Whether the Pump has left the cluster."""
        return self._known[node_id].status.state is NodeState.OFFLINE

    def _put(self, known: Known) -> bool:
        before = self._known.get(known.status.node_id)
        self._known[known.status.node_id] = known
        return before is None or before.standing is not known.standing
