"""CPU time, memory, open files and threads of the job and its descendants, by role, from ``/proc``."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

JVM = "JVM"
PYTHON = ("driver", "source on the driver", "pairing on the driver", "Python workers")
"""Roles of the job's own Python processes."""
_ROLES = (
    ("workload_process", "workload"),
    ("pyspark_tidb_binlog.jobs.pump", "Pumps"),
    ("benchmarks.plain_pump", "Pumps"),
    ("mariadbd", "MariaDB"),
    ("java", JVM),
    ("source_runner", "source on the driver"),
    ("state_driver", "pairing on the driver"),
    ("pyspark.daemon", "Python workers"),
    # Its forks have its command line: with them, what runs on the driver counts as a worker.
    ("pyspark_tidb_binlog.jobs.spark.worker_forks", "Python workers"),
)
"""A text in the command line, and the role of the processes that have it."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The resources that processes hold."""

    pss: int = 0
    """Proportional set size: shared memory is divided among its processes. Bytes."""
    rss: int = 0
    """Resident set size: shared memory counts in each process. Bytes."""
    files: int = 0
    """Open file descriptors."""
    threads: int = 0

    def __add__(self, other: "Holding") -> "Holding":
        """The sum of both."""
        return Holding(self.pss + other.pss, self.rss + other.rss, self.files + other.files, self.threads + other.threads)


def cpu_seconds() -> dict[str, float]:
    """CPU time so far, by role."""
    seconds: dict[str, float] = {}
    for entry, role in _family():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # its own time and that of its children that have ended
            used = sum(map(int, _stat(entry)[11:15])) / os.sysconf("SC_CLK_TCK")
            seconds[role] = seconds.get(role, 0.0) + used
    return seconds


def holdings() -> dict[str, Holding]:
    """The resources held now, by role."""
    held: dict[str, Holding] = {}
    for entry, role in _family():
        with contextlib.suppress(OSError):
            memory = _numbers(entry / "smaps_rollup")
            threads = _numbers(entry / "status")["Threads"]
            files = len(list((entry / "fd").iterdir()))
            held[role] = held.get(role, Holding()) + Holding(memory["Pss"] << 10, memory["Rss"] << 10, files, threads)
    return held


def _family() -> Iterator[tuple[Path, str]]:
    parents: dict[int, int] = {}
    words: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int(_stat(entry)[1])
            words[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    for pid, said in words.items():
        if _descends(pid, os.getpid(), parents):
            own = "driver" if pid == os.getpid() else "other"
            yield Path(f"/proc/{pid}"), next((role for mark, role in _ROLES if mark in said), own)


def _stat(entry: Path) -> list[str]:
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def _numbers(file: Path) -> dict[str, int]:
    found = {}
    for line in file.read_text().splitlines():
        name, _, rest = line.partition(":")
        first = rest.split()[:1]
        if first and first[0].isdigit():
            found[name] = int(first[0])
    return found
