"""Which Pump gets a binlog: the strategies, and the preference by labels (pump_client.md 5).

    strategy   Prewrite                                              Commit, Rollback
    range      round robin, from the first whenever the list changed  the Pump that accepted the Prewrite
    hash       (start_ts + retries) mod n                             the same
    score      drawn by weight; a score of 0 is never drawn           the same
    local      the only one                                           the same

Promises: pure but for the random source, which is a parameter. Not thread-safe: ``pump_set.py`` locks.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus


@dataclass(frozen=True, slots=True)
class PrewriteRequest:
    """A Prewrite for which a Pump is chosen."""

    start_ts: int
    retries: int
    """How often it failed already."""
    turn: int
    """How many choices were made since the list of Pumps changed."""


Strategy = Callable[[Sequence[NodeStatus], PrewriteRequest, random.Random], NodeStatus | None]
"""Chooses from a list that is not empty; None when no Pump of it may be chosen."""


def by_range(pumps: Sequence[NodeStatus], ask: PrewriteRequest, chance: random.Random) -> NodeStatus | None:
    """The next one, round robin."""
    return pumps[ask.turn % len(pumps)]


def by_hash(pumps: Sequence[NodeStatus], ask: PrewriteRequest, chance: random.Random) -> NodeStatus | None:
    """The Pump at start_ts modulo their number; with every retry the next Pump."""
    return pumps[(ask.start_ts + ask.retries) % len(pumps)]


def by_score(pumps: Sequence[NodeStatus], ask: PrewriteRequest, chance: random.Random) -> NodeStatus | None:
    """A random Pump, weighted by score; None when all scores are 0, as real Pumps' are."""
    weights = [max(0, pump.score) for pump in pumps]
    return chance.choices(pumps, weights)[0] if any(weights) else None


def the_only_one(pumps: Sequence[NodeStatus], ask: PrewriteRequest, chance: random.Random) -> NodeStatus | None:
    """The local Pump."""
    return pumps[0]


STRATEGIES: Mapping[str, Strategy] = {"range": by_range, "hash": by_hash, "score": by_score, "local": the_only_one}


def matches(pump: NodeStatus, labels: Mapping[str, str]) -> bool:
    """Whether the Pump has all of ``labels``."""
    return all(pump.labels.get(name) == value for name, value in labels.items())


def preferred(pumps: Sequence[NodeStatus], labels: Mapping[str, str]) -> tuple[NodeStatus, ...]:
    """The Pumps that match ``labels``; all of them when none does."""
    return tuple(pump for pump in pumps if matches(pump, labels)) or tuple(pumps)


class Selector:
    """Chooses among the Pumps offered last: the Pumps with the client's labels, and the others only for a Prewrite that failed on these."""

    def __init__(self, strategy: Strategy, labels: Mapping[str, str], chance: random.Random) -> None:
        self._strategy = strategy
        self._labels = labels
        self._chance = chance
        self._pumps: tuple[NodeStatus, ...] = ()
        self._preferred: tuple[NodeStatus, ...] = ()
        self._turn = 0

    def offer(self, pumps: Sequence[NodeStatus]) -> None:
        """Set the available Pumps. The turns restart when the preferred Pumps have changed, not when only a status is newer."""
        fresh = preferred(pumps, self._labels)
        if [pump.node_id for pump in fresh] != [pump.node_id for pump in self._preferred]:
            self._turn = 0
        self._pumps, self._preferred = tuple(pumps), fresh

    def choose(self, start_ts: int, retries: int) -> str | None:
        """The id of the Pump to try; None when there is none."""
        # a preferred Pump that fails stays available for a while: a Prewrite must not wait for it if another Pump would accept it
        pumps = self._preferred if retries < len(self._preferred) else self._pumps
        if not pumps:
            return None
        chosen = self._strategy(pumps, PrewriteRequest(start_ts, retries, self._turn), self._chance)
        self._turn += 1
        return chosen.node_id if chosen is not None else None
