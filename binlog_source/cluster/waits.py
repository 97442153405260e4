"""For how long the upstream has reported no trace of Prewrites: by the machine's monotonic clock, never as a difference of two clocks.
Pure except for reading the clock.

A start_ts comes from PD's clock. If that, or this machine's, is wrong, a transaction that has just begun looks old; but it cannot have been
observed for longer than it has existed. So the time after which absence proves a rollback (``txn_outcome.decide``) counts from the first
time that the upstream was asked and answered that there is no trace of it, in readings of one clock: after a restart of the machine, or on
another one, counting starts again. It starts again, too, after anything else that the upstream answered, and when it did not answer: what
was on its way while it was away may still arrive when it is back.
"""

import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = "/proc/self/ns/time"


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of a monotonic clock: its name, and milliseconds since some moment. Readings with the same name may be subtracted."""

    clock: str
    ms: int


@dataclass(frozen=True, slots=True)
class WaitingTimes:
    """Since when each start_ts has been absent each time that the upstream was asked, by ``clock``."""

    clock: str = ""
    since_ms: Mapping[int, int] = field(default_factory=dict)

    def seen(self, absent: Iterable[int], now: Reading) -> "WaitingTimes":
        """The same after the upstream answered that exactly ``absent`` are absent now."""
        known = self.since_ms if self.clock == now.clock else {}
        return WaitingTimes(now.clock, {ts: known.get(ts, now.ms) for ts in absent})

    def waited_ms(self, start_ts: int, now: Reading) -> int:
        """How long ``start_ts`` has been absent, in milliseconds."""
        return now.ms - self.since_ms.get(start_ts, now.ms) if self.clock == now.clock else 0


def running_time() -> Reading:
    """A reading of this machine's monotonic clock, which all its processes share."""
    return Reading(_clock(), time.monotonic_ns() // 1_000_000)


@lru_cache(maxsize=1)
def _clock() -> str:
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink(_NAMESPACE)}"
    except OSError:
        # the machine's boot cannot be identified here: the name is valid in this process only
        return uuid.uuid4().hex
