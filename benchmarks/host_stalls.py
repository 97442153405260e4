"""How long the machine itself withheld its cores while a benchmark ran: what no program on it could have avoided.

On each core a process of the highest real-time priority sleeps for ``PAUSE`` and notes by how much it wakes late. Where that priority is not
granted (it needs root, or CAP_SYS_NICE), the benchmark's own load would make it late, so nothing is measured.
"""

import contextlib
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


@dataclass(slots=True)
class HostStalls:
    """The stalls of all cores."""

    measured: bool = False
    seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        """A line for people."""
        if not self.measured:
            return "the machine's own stalls were not measured: that needs root"
        if not self.seconds:
            return f"the machine: no stall over {1000 * LATE:.0f} ms"
        longest, total = max(self.seconds), sum(self.seconds)
        return (
            f"the machine: {len(self.seconds)} stalls over {1000 * LATE:.0f} ms, the longest {1000 * longest:.0f} ms, in all {total:.1f} s"
        )


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
            answers = [process.communicate()[0].split() for process in processes]
            found.measured = all(answers)
            found.seconds = [float(late) for _, *stalls in filter(None, answers) for late in stalls]


def _watch(core: int) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    stalls = []
    before = time.perf_counter()
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        now = time.perf_counter()
        late = now - before - PAUSE
        if late > LATE:
            stalls.append(late)
        before = now
    print("measured", *(f"{late:.4f}" for late in stalls))


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        _watch(int(sys.argv[1]))
