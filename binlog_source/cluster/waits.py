"""How long Prewrites have been seen to wait for their outcome: by the machine's own running time, never by a difference of clocks. Pure but for the readings.

A start_ts is of PD's clock. Where that, or this machine's, is wrong, a transaction that has only just begun looks old; but nobody can have watched it for
longer than it exists. So what absence proves (``mvcc.decide``) counts from when a Prewrite was first looked at, in readings of one clock: after a
restart of the machine, or on another one, counting starts again.
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
    """What a clock that only runs shows: its name, and milliseconds since some moment. Readings of one name may be subtracted."""

    clock: str
    ms: int


@dataclass(frozen=True, slots=True)
class Waits:
    """Since when each start_ts is seen to wait, by ``clock``."""

    clock: str = ""
    since_ms: Mapping[int, int] = field(default_factory=dict)

    def seen(self, start_ts: Iterable[int], now: Reading) -> "Waits":
        """That ``start_ts`` wait now, and nothing else does."""
        known = self.since_ms if self.clock == now.clock else {}
        return Waits(now.clock, {ts: known.get(ts, now.ms) for ts in start_ts})

    def waited_ms(self, start_ts: int, now: Reading) -> int:
        """For how long ``start_ts`` has been seen to wait."""
        return now.ms - self.since_ms.get(start_ts, now.ms) if self.clock == now.clock else 0


def running_time() -> Reading:
    """What the clock of this machine shows, which all its processes share."""
    return Reading(_clock(), time.monotonic_ns() // 1_000_000)


@lru_cache(maxsize=1)
def _clock() -> str:
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink(_NAMESPACE)}"
    except OSError:
        # nothing says so here: then it is this process's alone
        return uuid.uuid4().hex
