"""The memory for large binlogs that pulls read (``PullMemory``), bounded over all pulls, even if their clients read nothing.

    large   more than ``LARGE`` bytes: a pull reserves memory (``Reservation``) before it reads the binlog, until the binlog is sent
    huge    more than a quarter of the memory: one at a time, not counted, so that a binlog of any size passes

Promises: thread-safe. Waiting pulls are served by address: the least recently served is first. One address has at most a quarter of the
memory. While a pull waits, a pull that holds memory is ended if its client reads less than ``SLOWEST`` bytes a second for ``STALL``
seconds.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from pyspark_tidb_binlog.binlog_source.rpc.serving_order import ServingOrder

LARGE = 1 << 20
CAPACITY = 64 << 20
STALL = 30.0
SLOWEST = 64 << 10
_LOOK = 1.0
"""Seconds between two checks for stalled clients."""


class Client(Protocol):
    """The client of a pull."""

    @property
    def address(self) -> str:
        """Its address."""

    @property
    def behind(self) -> int:
        """Bytes of answers that are not sent yet."""

    @property
    def taken(self) -> int:
        """Bytes of answers that are sent."""

    def end(self, text: str) -> None:
        """End the pull; ``text`` is the reason that the client receives."""


class PullMemory:
    """The memory for large binlogs of one Pump."""

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], float] = time.monotonic) -> None:
        self.held = 0
        """Bytes in use, the huge binlog excluded."""
        self._capacity = capacity
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[Reservation, int] = {}
        self._holding: dict[Reservation, _Held] = {}
        self._held_of: Counter[str] = Counter()
        self._turns = ServingOrder()  # of addresses
        self._huge: Reservation | None = None

    @property
    def _largest(self) -> int:
        return self._capacity // 4

    def take(self, reservation: "Reservation", size: int, stop: Callable[[], bool]) -> bool:
        """Wait for ``size`` bytes, in place of what ``reservation`` held so far; False: stopped."""
        with self._changed:
            self._release(reservation)
            if not self._waiting:
                self._begin_anew()
            self._waiting[reservation] = size
            self._serve()
            while reservation in self._waiting:
                if stop():
                    del self._waiting[reservation]
                    self._serve()
                    return False
                self._changed.wait(_LOOK)
                self.end_stalled()
        return True

    def give(self, reservation: "Reservation") -> None:
        """Release what ``reservation`` holds, if anything."""
        with self._changed:
            self._release(reservation)
            self._serve()

    def wake(self) -> None:
        """Have the waiting pulls check ``stop``."""
        with self._changed:
            self._changed.notify_all()

    def holds(self, reservation: "Reservation") -> bool:
        """Whether ``reservation`` holds memory."""
        return reservation in self._holding

    def _release(self, reservation: "Reservation") -> None:
        held = self._holding.pop(reservation, None)
        if held is None:
            return
        if self._huge is reservation:
            self._huge = None
            return
        self.held -= held.size
        self._held_of[reservation.address] -= held.size
        if not self._held_of[reservation.address]:
            del self._held_of[reservation.address]

    def _serve(self) -> None:
        turn = self._turns.order()
        full = False
        for reservation, size in sorted(self._waiting.items(), key=lambda waiting: turn(waiting[0].address)):
            if size > self._largest:
                if self._huge is None:
                    self._huge = reservation
                    self._grant(reservation, size)
            elif self._held_of[reservation.address] + size <= self._largest:
                # pulls that wait for memory are not overtaken, those that wait for their own address are
                full = full or self.held + size > self._capacity
                if not full:
                    self.held += size
                    self._held_of[reservation.address] += size
                    self._grant(reservation, size)
        self._changed.notify_all()

    def _grant(self, reservation: "Reservation", size: int) -> None:
        del self._waiting[reservation]
        self._holding[reservation] = _Held(size, self._clock(), reservation.client.taken)
        self._turns.took(reservation.address)

    def _begin_anew(self) -> None:
        """Restart the stall timers: no pull waited so far, so that none was held up."""
        for reservation, held in self._holding.items():
            held.since, held.taken = self._clock(), reservation.client.taken

    def end_stalled(self) -> None:
        """While a pull waits, end the pulls that hold memory and whose clients do not read."""
        now = self._clock()
        for reservation, held in self._holding.items() if self._waiting else ():
            if not reservation.client.behind:
                held.since, held.taken = now, reservation.client.taken
            elif now - held.since >= STALL:
                came = reservation.client.taken - held.taken
                if came < SLOWEST * STALL:
                    reservation.client.end(
                        f"other pulls wait, and this client read {came} bytes in {STALL:g} s of a binlog of {held.size} bytes"
                    )
                held.since, held.taken = now, reservation.client.taken


class _Held:
    """What a pull holds, and how far its client had read at the last check."""

    __slots__ = ("since", "size", "taken")

    def __init__(self, size: int, since: float, taken: int) -> None:
        self.size, self.since, self.taken = size, since, taken


class Reservation:
    """One pull's reservation. For one thread."""

    def __init__(self, memory: PullMemory, client: Client) -> None:
        self.client = client
        self.address = client.address
        self._memory = memory

    def take(self, size: int, stop: Callable[[], bool]) -> bool:
        """Reserve ``size`` bytes in place of what it holds; does nothing if ``size`` is not large. False: stopped."""
        return size <= LARGE or self._memory.take(self, size, stop)

    def give(self) -> None:
        """Release the memory: what was read is sent."""
        if self.holds:
            self._memory.give(self)

    @property
    def holds(self) -> bool:
        """Whether it holds memory."""
        return self._memory.holds(self)


class _Nobody:
    """A client that reads everything at once."""

    address = ""
    behind = taken = 0

    def end(self, text: str) -> None:
        """Nothing to do."""


def unshared_reservation() -> Reservation:
    """A reservation for a reader that shares no memory with others."""
    return Reservation(PullMemory(), _Nobody())
