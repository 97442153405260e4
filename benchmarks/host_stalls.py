"""Measures how long the machine withheld or slowed its cores during a benchmark: no program on the machine can avoid these stalls.

On each core a process of the highest real-time priority sleeps for ``PAUSE``, records how late it wakes, and now and then times a fixed loop. Without that
priority (it needs root, or CAP_SYS_NICE) nothing is measured, because the benchmark's own load would delay the process.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

PAUSE = 0.005
LATE = 0.010
"""Seconds by which a sleep may last longer."""
_LOOP_EVERY, _LOOP = 40, range(10_000)
"""After how many sleeps the loop runs once, and its length: less than a millisecond in two hundred."""


@dataclass(slots=True)
class HostStalls:
    """The stalls of all cores."""

    measured: bool = False
    seconds: list[float] = field(default_factory=list)
    loops: list[float] = field(default_factory=list)
    """Seconds of each fixed loop."""

    def __str__(self) -> str:
        """A line for people."""
        if not self.measured:
            return "the machine's own stalls were not measured: that needs root"
        longest, total = max(self.seconds, default=0.0), sum(self.seconds)
        stalls = f"{len(self.seconds)} stalls over {1000 * LATE:.0f} ms, the longest {1000 * longest:.0f} ms, in all {total:.1f} s"
        ranked = sorted(self.loops) or [1.0]
        median, slow = (ranked[int(share * (len(ranked) - 1))] / ranked[0] for share in (0.5, 0.9))
        return f"the machine: {stalls}; a fixed loop took {median:.2f} times its best in the median, {slow:.2f} at p90"


@contextlib.contextmanager
def watched() -> Iterator[HostStalls]:
    """Filled in at the end of the block."""
    found = HostStalls()
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-S", __file__]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen([*command, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for core in cores
        ]
        try:
            yield found
        finally:
            answers = [process.communicate()[0] for process in processes]
            found.measured = all(answers)
            for stalls, loops in map(json.loads, filter(None, answers)):
                found.seconds += stalls
                found.loops += loops


def _watch(core: int) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    stalls: list[float] = []
    loops: list[float] = []
    before, turn = time.perf_counter(), 0
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        now = time.perf_counter()
        late = now - before - PAUSE
        if late > LATE:
            stalls.append(late)
        turn += 1
        if turn % _LOOP_EVERY == 0:
            sum(_LOOP)
            loops.append(time.perf_counter() - now)
        before = time.perf_counter()
    print(json.dumps((stalls, loops)))


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        _watch(int(sys.argv[1]))
