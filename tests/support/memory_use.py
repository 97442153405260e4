"""How much memory a process and all below it take, while they run."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

LIMIT_MIB = 3072
"""What a Drainer may take, its JVM and its Python together."""


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [each.pid for each in (process, *process.children(recursive=True))]
    return []


def pss_mib(pid: int) -> float:
    """Its share of memory, without what it only maps of files: pages that the system takes back whenever it likes."""
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) / 1024
    return found.get("Pss_Anon", 0.0) + found.get("Pss_Shmem", 0.0)


def held_mib(pid: int) -> list[float]:
    """What each of a tree of processes takes now, the largest first."""
    return sorted((pss_mib(each) for each in tree(pid)), reverse=True)


@contextmanager
def peak_mib(pid: int) -> Iterator[list[float]]:
    """The largest sum over a tree of processes, sampled; the list's only element."""
    peak, ended = [0.0], threading.Event()
    parts: dict[int, float] = {}

    def sample() -> None:
        nonlocal parts
        pause = 0.3
        while not ended.wait(pause):
            begun = time.monotonic()
            now = {each: pss_mib(each) for each in tree(pid)}
            pause = max(0.3, 9 * (time.monotonic() - begun))  # a process of gigabytes takes the kernel a while
            if sum(now.values()) > peak[0]:
                peak[0], parts = sum(now.values()), now

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        print(f"at the peak: {' + '.join(f'{mib:,.0f}' for mib in sorted(parts.values(), reverse=True))} MiB")
