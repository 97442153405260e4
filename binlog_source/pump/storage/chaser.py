"""How the index is fed: by the bounded queue of the records that are in the log and not yet in the index. When the index cannot keep up,
writers stop waiting for it, and the slow chaser feeds it from the value log (pump.md 4.4).

    off --a push waited too long--> on: writes go to the log only; the chaser reads the log from the first record that was not pushed
    on  --a pass was quick and the last recovery long ago--> recovery: a last pass while writers are blocked, limited in time
    recovery --reached the end--> off          recovery --timed out--> on

Promises: ``decide``, which is pure, chooses the moment of recovery. Every record reaches the index once, in log order, in every state. The
queue takes all steps of a ``put`` or none. Its memory is bounded by the capacity and one group.
"""

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import LogRecord


class Backlog:
    """A queue of groups of steps, bounded by the number of steps."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._groups: deque[Sequence[LogRecord]] = deque()
        self._size = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._size

    def put(self, steps: Sequence[LogRecord], timeout: float) -> bool:
        """Add a group; False when there was no room for ``timeout`` seconds. An empty queue accepts a group of any size."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.has_room(len(steps)) or self._closed, timeout):
                return False
            self._groups.append(steps)
            self._size += len(steps)
            self._changed.notify_all()
            return True

    def has_room(self, count: int) -> bool:
        """Whether a group of ``count`` steps would be added at once."""
        return not self._size or self._size + count <= self._capacity

    def take(self, limit: int) -> list[LogRecord]:
        """Wait for steps and take at most ``limit``; none when the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._groups or self._closed)
            taken: list[LogRecord] = []
            while self._groups and len(taken) < limit:
                group = self._groups.popleft()
                room = limit - len(taken)
                if len(group) > room:
                    self._groups.appendleft(group[room:])
                taken.extend(group[:room])
            self._size -= len(taken)
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Have ``take`` return at once from now on; queued steps can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class ChaserSettings:
    """When the chaser is turned on, runs and is turned off. All in seconds."""

    threshold: float = 1.0
    """A push to the index's queue that waits longer turns it on (a real Pump: 3)."""
    poll: float = 0.5
    """Between two checks whether it is on."""
    quick_pass: float = 1.0
    """A shorter pass may be followed by a recovery."""
    recovery_interval: float = 60.0
    """Minimum between two recoveries."""
    recovery_timeout: float = 1.0
    """How long one may block writers."""


@dataclass(slots=True)
class ChaserCounts:
    """How often each event happened (``binlog_pump_storage_slow_chaser_count``)."""

    turned_on: int = 0
    turned_off: int = 0
    catch_up: int = 0
    recovery: int = 0

    def items(self) -> tuple[tuple[str, int], ...]:
        """Names and counts."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


class AfterPass(enum.Enum):
    """What follows a pass."""

    SLEEP = enum.auto()
    RECOVER = enum.auto()


def decide(settings: ChaserSettings, pass_seconds: float, since_recovery: float) -> AfterPass:
    """What follows a pass that took ``pass_seconds``, the last recovery being ``since_recovery`` seconds ago."""
    quick = pass_seconds < settings.quick_pass and since_recovery > settings.recovery_interval
    return AfterPass.RECOVER if quick else AfterPass.SLEEP


class Chaser:
    """The thread and its on/off state.

    ``pass_on(start, deadline)`` pushes the log's records from ``start`` on to the index and returns the position reached and whether that
    is the end; it may stop early when ``deadline`` (monotonic) has passed. A writer holds ``write_lock`` during its append and push.
    """

    def __init__(
        self,
        settings: ChaserSettings,
        pass_on: Callable[[Pointer, float | None], tuple[Pointer, bool]],
        write_lock: threading.Lock,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = ChaserCounts()
        self.last_catch_up = 0.0
        """Seconds of the last pass."""
        self._settings = settings
        self._pass_on = pass_on
        self._write_lock = write_lock
        self._clock = clock
        self._from: Pointer | None = None
        self._recovered_at = float("-inf")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow chaser", daemon=True)
        self._thread.start()

    @property
    def on(self) -> bool:
        """Whether writers must not push to the index."""
        return self._from is not None

    def turn_on(self, first: Pointer) -> None:
        """Turn it on; ``first``: the first record that was not pushed. The caller holds the write lock."""
        self._from = first
        self.counts.turned_on += 1

    def stop(self) -> None:
        """End the thread; the scan at the next open indexes what it has not passed on."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._settings.poll):
            if self._from is not None:
                self._catch_up(self._from)

    def _catch_up(self, start: Pointer) -> None:
        begun = self._clock()
        self.counts.catch_up += 1
        self._from, _ = self._pass_on(start, None)
        now = self._clock()
        self.last_catch_up = now - begun
        if decide(self._settings, self.last_catch_up, now - self._recovered_at) is AfterPass.RECOVER and not self._stopped.is_set():
            self._recovered_at = now
            self._recover(self._from)

    def _recover(self, start: Pointer) -> None:
        self.counts.recovery += 1
        with self._write_lock:
            reached, done = self._pass_on(start, self._clock() + self._settings.recovery_timeout)
            self._from = None if done else reached
            if done:
                self.counts.turned_off += 1
