"""Room for large binlogs: how much all pulls hold, whose turn it is, and what becomes of a pull whose client does not take what it holds."""

import threading
import time

import pytest

from binlog_source.pump import reading
from binlog_source.pump.reading import LARGE, SLOWEST, STALL, PullMemory, Reservation

PATIENCE = 20
MIB = 1 << 20


class Client:
    """A client that takes what it is told to."""

    def __init__(self, address="a"):
        self.address = address
        self.behind = MIB
        self.taken = 0
        self.told = []

    def end(self, text):
        self.told.append(text)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def room(clock, monkeypatch):
    monkeypatch.setattr(reading, "_LOOK", 0.01)
    return PullMemory(64 * MIB, clock)


def never():
    return False


class Waiting:
    """A pull that asks for room in its own thread."""

    def __init__(self, room, address, size, order=None):
        self.client = Client(address)
        self.seat = Reservation(room, self.client)
        self.stopped = False
        self.got = None
        self.order = order
        self.thread = threading.Thread(target=self.run, args=(size,))
        waiting = len(room._waiting)
        self.thread.start()
        until(lambda: self.got is not None or len(room._waiting) > waiting)

    def run(self, size):
        self.got = self.seat.take(size, lambda: self.stopped)
        if self.order is not None:
            self.order.append(self.client.address)


def until(done):
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_is_small_needs_no_room(room):
    seat = Reservation(room, Client())
    assert seat.take(LARGE, never) and not seat.holds and room.held == 0


def test_room_is_bounded_for_all_and_for_an_address(room):
    seats = [Reservation(room, Client(address)) for address in "aabbccdd"]
    for seat in seats:
        assert seat.take(8 * MIB, never) and seat.holds
    assert room.held == 64 * MIB
    more = Waiting(room, "e", 2 * MIB)
    own = Waiting(room, "a", 2 * MIB)
    seats[0].give()
    until(lambda: more.got and own.got)
    assert room.held == 60 * MIB
    for seat in (*seats, more.seat, own.seat):
        seat.give()
        seat.give()
    assert room.held == 0 and not room._held_of


def test_a_huge_one_passes_alone_beside_the_room(room):
    huge, large = Reservation(room, Client("a")), Reservation(room, Client("a"))
    assert huge.take(1000 * MIB, never) and large.take(16 * MIB, never) and room.held == 16 * MIB
    other = Waiting(room, "b", 17 * MIB)
    assert other.got is None
    huge.give()
    until(lambda: other.got)


def test_what_is_asked_again_replaces_what_was_held(room):
    seat = Reservation(room, Client())
    for size in (16 * MIB, 2 * MIB, 100 * MIB, 16 * MIB):
        assert seat.take(size, never)
    assert room.held == 16 * MIB


def test_addresses_take_turns(room):
    """However many pulls one address has: the other waits for one of them."""
    holder = Reservation(room, Client("a"))
    assert holder.take(100 * MIB, never)
    order = []
    many = [Waiting(room, "a", 100 * MIB, order) for _ in range(3)]
    one = Waiting(room, "b", 100 * MIB, order)
    holder.give()
    for count in range(1, 4):
        until(lambda count=count: len(order) == count)
        room._huge.give()
    until(lambda: len(order) == 4)
    assert order[0] == "b" and one.got and all(each.got for each in many)


def test_who_waits_for_room_is_not_overtaken(room):
    seats = [Reservation(room, Client(address)) for address in "abcd"]
    for seat in seats:
        assert seat.take(15 * MIB, never)
    first, second = Waiting(room, "e", 16 * MIB), Waiting(room, "f", 4 * MIB)
    assert first.got is None and second.got is None
    seats[0].give()
    until(lambda: first.got)
    assert second.got is None
    seats[1].give()
    until(lambda: second.got)


def test_a_wait_ends_when_its_pull_does(room):
    holder = Reservation(room, Client())
    assert holder.take(100 * MIB, never)
    waiting = Waiting(room, "b", 100 * MIB)
    waiting.stopped = True
    room.wake()
    until(lambda: waiting.got is False)
    assert not room._waiting and not waiting.seat.holds


@pytest.mark.parametrize(
    ("took", "behind", "ended"),
    [(0, MIB, True), (SLOWEST * STALL - 1, MIB, True), (SLOWEST * STALL, MIB, False), (0, 0, False)],
    ids=["nothing", "a little", "enough", "it waits for us"],
)
def test_who_takes_too_little_while_others_wait_is_ended(room, clock, took, behind, ended):
    client = Client()
    holder = Reservation(room, client)
    assert holder.take(100 * MIB, never)
    clock.now = 1000.0
    room.end_stalled()
    assert not client.told, "nobody waits"
    waiting = Waiting(room, "b", 100 * MIB)
    room.end_stalled()
    assert not client.told, "now somebody does, but not for long"
    client.taken += int(took)
    client.behind = behind
    clock.now += STALL
    time.sleep(0.1)
    assert bool(client.told) is ended
    holder.give()
    until(lambda: waiting.got)
