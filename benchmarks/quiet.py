"""Whether the machine was quiet during a measurement: the share of its cores that other processes and the hypervisor took.

Promises: ``disturbance`` is pure; ``watched`` is the thin shell that reads ``/proc``.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.processes import cpu_seconds

LOAD, OTHERS, STEAL = 0.5, 0.1, 0.02
"""Bounds, as shares of all cores: the load average before a run; what other processes use, the kernel's among them; what the hypervisor withholds."""
_CALM = 0.9
"""The share of the intervals that must keep the bounds: a process of ours that nobody waits for is counted with the others when it ends."""
_INTERVAL = 2.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds of CPU time so far, summed over all cores."""

    at: float
    """Seconds of a monotonic clock."""
    busy: float
    """All processes. Interrupts are left out: they belong to nobody."""
    stolen: float
    """Withheld by the hypervisor."""
    ours: float
    """This process and its descendants."""


def disturbance(moments: Sequence[Moment], cores: int, load: float = 0.0) -> str:
    """What disturbed a run with these moments, in words; empty when nothing did. ``load``: the load average before the run.

    Raises:
        ValueError: there are fewer than two moments.
    """
    spans = [(after.at - before.at, before, after) for before, after in pairwise(moments)]
    if not spans:
        raise ValueError("two moments at least are needed to judge a run")
    others = [(after.busy - before.busy - after.ours + before.ours) / (span * cores) for span, before, after in spans]
    steal = [(after.stolen - before.stolen) / (span * cores) for span, before, after in spans]
    found = [
        f"{what} {share:.0%} of the cores (at most {bound:.0%})"
        for what, share, bound in (
            ("the load average is", load / cores, LOAD),
            ("other processes used", _nearly_worst(others), OTHERS),
            ("the hypervisor withheld", _nearly_worst(steal), STEAL),
        )
        if share > bound
    ]
    return "; ".join(found)


def _nearly_worst(shares: Sequence[float]) -> float:
    return sorted(shares)[int(_CALM * (len(shares) - 1))]


@contextlib.contextmanager
def watched() -> Iterator[list[Moment]]:
    """The moments of the block: its begin, then every ``_INTERVAL``; two at least after the block."""
    moments = [_now()]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL):
            moments.append(_now())

    thread = threading.Thread(target=watch, name="quiet watch", daemon=True)
    thread.start()
    try:
        yield moments
    finally:
        ended.set()
        thread.join()
        if len(moments) < 2:
            moments.append(_now())


def _now() -> Moment:
    # user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5)
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return Moment(time.monotonic(), sum(ticks[:3]), ticks[7], sum(cpu_seconds().values()))
