"""What a Pump client counts.

Promises: safe for many threads; a snapshot is consistent.
"""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the client was made."""

    prewrites: int = 0
    """Prewrites that a Pump took."""
    retries: int = 0
    """Records, of any kind, that were tried once more."""
    failovers: int = 0
    """Prewrites taken by another Pump than the one tried first."""
    outcomes_given_up: int = 0
    """Commits and Rollbacks that no Pump got: too old, of no known Prewrite, or for a Pump that has left. Orphan resolution finds them."""
    probes: int = 0
    """Empty binlogs sent to unavailable Pumps."""
    demotions: int = 0
    """Pumps found unusable and moved to the unavailable ones."""


class Counters:
    """The counts as they grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Stats()

    def add(self, **more: int) -> None:
        """Raise counts, by their names in ``Stats``."""
        with self._lock:
            self._now = replace(self._now, **{name: getattr(self._now, name) + number for name, number in more.items()})

    def snapshot(self) -> Stats:
        """The counts now."""
        return self._now
