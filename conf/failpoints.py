"""Failpoints: places where a test can kill the stream. ``point("after-ddl")`` kills the process at the pass that the environment names.

Promises: without ``TIDB_BINLOG_DIE`` in the environment a point costs one dictionary look-up and does nothing. Stdlib only.

``TIDB_BINLOG_DIE=name:n[,name:m]``   die at the n-th pass of point ``name`` (from 1); several points are possible
``TIDB_BINLOG_DIE_LOG=path``          every pass of a named point appends ``name pass pid``, the fatal one ``name pass pid died``
``TIDB_BINLOG_DIE_PID=pid``           die with the whole process group of ``pid`` (``jobs/command.py`` sets it to the job)

The log file counts the passes over all processes and restarts. A point therefore kills once, even if the variables stay set for the
restart. Without a log file each process counts for itself. The kill is SIGKILL: nothing is flushed, closed or undone.
"""

import fcntl
import os
import signal
from collections import Counter

DIE = "TIDB_BINLOG_DIE"
DIE_LOG = "TIDB_BINLOG_DIE_LOG"
DIE_PID = "TIDB_BINLOG_DIE_PID"

_passes: Counter[str] = Counter()


def point(name: str) -> None:
    """Pass the failpoint ``name``: kill the process if the environment says so, else return at once."""
    spec = os.environ.get(DIE)
    if not spec:
        return
    fatal = fatal_passes(spec).get(name)
    if fatal is None:
        return
    log = os.environ.get(DIE_LOG)
    if log:
        dies = _count_in_log(log, name, fatal)
    else:
        _passes[name] += 1
        dies = _passes[name] in fatal
    if dies:
        _die()


def fatal_passes(spec: str) -> dict[str, frozenset[int]]:
    """``name:n,name:m`` as the passes that kill, per point. A malformed spec raises ValueError."""
    fatal: dict[str, set[int]] = {}
    for item in spec.split(","):
        name, colon, count = item.strip().rpartition(":")
        if not colon or not name or not count.isdecimal() or int(count) < 1:
            raise ValueError(f"{DIE}: {item!r} is not name:n with n >= 1")
        fatal.setdefault(name, set()).add(int(count))
    return {name: frozenset(passes) for name, passes in fatal.items()}


def _count_in_log(path: str, name: str, fatal: frozenset[int]) -> bool:
    """Append this pass to the log, durably, and return whether it is a fatal one."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        lines = os.pread(fd, os.fstat(fd).st_size, 0).decode().splitlines()
        number = 1 + sum(line.partition(" ")[0] == name for line in lines)
        dies = number in fatal
        os.write(fd, f"{name} {number} {os.getpid()}{' died' if dies else ''}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    return dies


def _die() -> None:
    """Kill the application named by the environment, and this process in any case.

    A Python worker of Spark is in its own process group, and killing it alone would only make Spark retry the task.
    """
    launcher = os.environ.get(DIE_PID)
    if launcher:
        pid = int(launcher)
        try:
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os.kill(os.getpid(), signal.SIGKILL)
