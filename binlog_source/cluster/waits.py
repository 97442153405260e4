"""For how long the upstream has reported no trace of a Prewrite: by the machine's monotonic clock, never as a difference of two clocks.
Pure except for reading the clock.

A start_ts comes from PD's clock. If PD's or this machine's clock is wrong, a transaction that has just begun looks old. But nobody can have
observed the transaction for longer than it exists. So the time after which no trace proves a rollback (``txn_outcome.decide``) counts from
the first answer without a trace, in readings of one clock. Counting starts again

* after a restart of the machine, or on another machine,
* after any other answer of the upstream,
* after an outage of the upstream: a write that was under way may still arrive when the upstream is back.
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
