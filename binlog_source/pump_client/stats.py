"""The counters of a Pump client.

Promises: thread-safe; a snapshot is consistent.
"""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts since the client was made."""

    prewrites: int = 0
    """Prewrites that a Pump accepted."""
    retries: int = 0
    """Retries of records of any kind."""
    failovers: int = 0
    """Prewrites accepted by another Pump than the one tried first."""
    outcomes_given_up: int = 0
    """Commits and Rollbacks that were not written: too old, without a known Prewrite, or for an offline Pump. Orphan resolution finds them."""
    probes: int = 0
    """Empty binlogs sent to unavailable Pumps."""
    demotions: int = 0
    """Pumps found unusable and moved to the unavailable ones."""


class Counters:
    """The counts while they grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ClientStats()

    def add(self, **more: int) -> None:
        """Raise counts, by their names in ``ClientStats``."""
        with self._lock:
            self._now = replace(self._now, **{name: getattr(self._now, name) + number for name, number in more.items()})

    def snapshot(self) -> ClientStats:
        """The counts now."""
        return self._now
