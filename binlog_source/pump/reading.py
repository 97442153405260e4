"""Room for large binlogs that pulls read: what all of them hold together, whether their clients take it or not.

    large   more than ``LARGE`` bytes: a pull waits for room before it reads it, and gives the room back when it was sent
    huge    more than a quarter of the room: one at a time, beside the room, so that a binlog of any size passes

Promises: safe for many threads. Who waits is served in turn by address: the one whose last turn is the longest ago. One address has at most a
quarter of the room. While somebody waits, a pull that holds room and whose client takes less than ``SLOWEST`` bytes a second for ``STALL``
seconds is ended.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from binlog_source.rpc.turns import Turns

LARGE = 1 << 20
CAPACITY = 64 << 20
STALL = 30.0
SLOWEST = 64 << 10
_LOOK = 1.0
"""Seconds between two looks at who stalls."""


class Client(Protocol):
    """Who a pull is for."""

    @property
    def address(self) -> str:
        """Its address."""

    @property
    def behind(self) -> int:
        """Bytes that were sent to it and have not left yet."""

    @property
    def taken(self) -> int:
        """Bytes that have left for it."""

    def end(self, text: str) -> None:
        """Tell it why nothing more comes."""


class Room:
    """One Pump's."""

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], float] = time.monotonic) -> None:
        self.held = 0
        """Bytes, without the huge one."""
        self._capacity = capacity
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[Seat, int] = {}
        self._holding: dict[Seat, _Held] = {}
        self._held_of: Counter[str] = Counter()
        self._turns = Turns()  # of addresses
        self._huge: Seat | None = None

    @property
    def _largest(self) -> int:
        return self._capacity // 4

    def take(self, seat: "Seat", size: int, stop: Callable[[], bool]) -> bool:
        """Wait for room, instead of what ``seat`` held so far; False: ``stop`` said so."""
        with self._changed:
            self._release(seat)
            if not self._waiting:
                self._begin_anew()
            self._waiting[seat] = size
            self._serve()
            while seat in self._waiting:
                if stop():
                    del self._waiting[seat]
                    self._serve()
                    return False
                self._changed.wait(_LOOK)
                self.end_stalled()
        return True

    def give(self, seat: "Seat") -> None:
        """What ``seat`` holds is free, if it holds anything."""
        with self._changed:
            self._release(seat)
            self._serve()

    def wake(self) -> None:
        """Let who waits look whether it is to stop."""
        with self._changed:
            self._changed.notify_all()

    def holds(self, seat: "Seat") -> bool:
        """Whether ``seat`` holds room."""
        return seat in self._holding

    def _release(self, seat: "Seat") -> None:
        held = self._holding.pop(seat, None)
        if held is None:
            return
        if self._huge is seat:
            self._huge = None
            return
        self.held -= held.size
        self._held_of[seat.address] -= held.size
        if not self._held_of[seat.address]:
            del self._held_of[seat.address]

    def _serve(self) -> None:
        turn = self._turns.order()
        full = False
        for seat, size in sorted(self._waiting.items(), key=lambda waiting: turn(waiting[0].address)):
            if size > self._largest:
                if self._huge is None:
                    self._huge = seat
                    self._grant(seat, size)
            elif self._held_of[seat.address] + size <= self._largest:
                # who waits for room is not overtaken; who waits for its own address is
                full = full or self.held + size > self._capacity
                if not full:
                    self.held += size
                    self._held_of[seat.address] += size
                    self._grant(seat, size)
        self._changed.notify_all()

    def _grant(self, seat: "Seat", size: int) -> None:
        del self._waiting[seat]
        self._holding[seat] = _Held(size, self._clock(), seat.client.taken)
        self._turns.took(seat.address)

    def _begin_anew(self) -> None:
        """Nobody waited so far: nobody was in anybody's way."""
        for seat, held in self._holding.items():
            held.since, held.taken = self._clock(), seat.client.taken

    def end_stalled(self) -> None:
        """While somebody waits: end the pulls whose clients do not take what they hold."""
        now = self._clock()
        for seat, held in self._holding.items() if self._waiting else ():
            if not seat.client.behind:
                held.since, held.taken = now, seat.client.taken
            elif now - held.since >= STALL:
                came = seat.client.taken - held.taken
                if came < SLOWEST * STALL:
                    seat.client.end(f"others wait, and this client took {came} bytes in {STALL:g} s of a binlog of {held.size} bytes")
                held.since, held.taken = now, seat.client.taken


class _Held:
    """What a pull holds, and how far its client was when that was looked at."""

    __slots__ = ("since", "size", "taken")

    def __init__(self, size: int, since: float, taken: int) -> None:
        self.size, self.since, self.taken = size, since, taken


class Seat:
    """One pull's place. For one thread."""

    def __init__(self, room: Room, client: Client) -> None:
        self.client = client
        self.address = client.address
        self._room = room

    def take(self, size: int, stop: Callable[[], bool]) -> bool:
        """Room for ``size`` bytes instead of what it holds; nothing is asked for what is not large. False: ``stop`` said so."""
        return size <= LARGE or self._room.take(self, size, stop)

    def give(self) -> None:
        """What was read is sent."""
        if self.holds:
            self._room.give(self)

    @property
    def holds(self) -> bool:
        """Whether it holds room."""
        return self._room.holds(self)


class _Nobody:
    """A client that takes everything at once."""

    address = ""
    behind = taken = 0

    def end(self, text: str) -> None:
        """Nothing to do."""


def seat_of_its_own() -> Seat:
    """For a reader that shares no room with others."""
    return Seat(Room(), _Nobody())
