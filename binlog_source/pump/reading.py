"""Memory for the large binlogs that pulls read: one cap for all pulls of a Pump.

A pull takes memory before it reads a binlog of more than ``LARGE`` bytes, and gives it back when the binlog is sent.

Promises: thread-safe. Pulls hold at most ``CAPACITY`` bytes together, or one binlog; they take turns. What a pull has held for ``STALL``
seconds no longer counts: a client that does not read delays the others, and never stops them.
"""

import threading
import time
from collections.abc import Callable

LARGE = 1 << 20
CAPACITY = 64 << 20
STALL = 30.0
_LOOK = 1.0
"""Seconds between two checks of a waiting pull."""


class PullMemory:
    """The memory of one Pump."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[Reservation, tuple[int, float]] = {}  # bytes, and since when
        self._waiting: dict[Reservation, None] = {}

    def take(self, reservation: "Reservation", size: int, stop: Callable[[], bool]) -> bool:
        """Wait for ``size`` bytes, in place of what ``reservation`` held so far; False: stopped."""
        self.give(reservation)
        with self._changed:
            self._waiting[reservation] = None
            while not (stopped := stop()) and not self._may_take(reservation, size):
                self._changed.wait(_LOOK)
            del self._waiting[reservation]
            if not stopped:
                self._held[reservation] = size, self._clock()
            self._changed.notify_all()
        return not stopped

    def _may_take(self, reservation: "Reservation", size: int) -> bool:
        held = [held for held, since in self._held.values() if self._clock() - since < STALL]
        return next(iter(self._waiting)) is reservation and (not held or sum(held) + size <= CAPACITY)

    def give(self, reservation: "Reservation") -> None:
        """Release what ``reservation`` holds, if anything."""
        with self._changed:
            self._held.pop(reservation, None)
            self._changed.notify_all()

    def holds(self, reservation: "Reservation") -> bool:
        """Whether ``reservation`` holds memory."""
        return reservation in self._held


class Reservation:
    """One pull's memory. For one thread."""

    def __init__(self, memory: PullMemory | None = None) -> None:
        """Without ``memory``, it is shared with no other pull."""
        self._memory = memory or PullMemory()

    def take(self, size: int, stop: Callable[[], bool]) -> bool:
        """Take ``size`` bytes in place of what it holds; does nothing if ``size`` is not large. False: stopped."""
        return size <= LARGE or self._memory.take(self, size, stop)

    def give(self) -> None:
        """Release the memory: what was read is sent."""
        if self.holds:
            self._memory.give(self)

    @property
    def holds(self) -> bool:
        """Whether it holds memory."""
        return self._memory.holds(self)
