"""Room for large binlogs: how much all pulls hold, whose turn it is, and what becomes of a pull whose client does not take what it holds."""

import threading
import time

import pytest

from pyspark_tidb_binlog.binlog_source.pump import reading
from pyspark_tidb_binlog.binlog_source.pump.reading import LARGE, SLOWEST, STALL, PullMemory, Reservation
from tests.support.eventually import eventually

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
def memory(clock, monkeypatch):
    monkeypatch.setattr(reading, "_LOOK", 0.01)
    return PullMemory(64 * MIB, clock)


def never():
    return False


class Waiting:
    """A pull that asks for memory in its own thread."""

    def __init__(self, memory, address, size, order=None):
        self.client = Client(address)
        self.reservation = Reservation(memory, self.client)
        self.stopped = False
        self.got = None
        self.order = order
        self.thread = threading.Thread(target=self.run, args=(size,))
        waiting = len(memory._waiting)
        self.thread.start()
        eventually(lambda: self.got is not None or len(memory._waiting) > waiting)

    def run(self, size):
        self.got = self.reservation.take(size, lambda: self.stopped)
        if self.order is not None:
            self.order.append(self.client.address)


def test_what_is_small_needs_no_room(memory):
    reservation = Reservation(memory, Client())
    assert reservation.take(LARGE, never) and not reservation.holds and memory.held == 0


def test_room_is_bounded_for_all_and_for_an_address(memory):
    reservations = [Reservation(memory, Client(address)) for address in "aabbccdd"]
    for reservation in reservations:
        assert reservation.take(8 * MIB, never) and reservation.holds
    assert memory.held == 64 * MIB
    more = Waiting(memory, "e", 2 * MIB)
    own = Waiting(memory, "a", 2 * MIB)
    reservations[0].give()
    eventually(lambda: more.got and own.got)
    assert memory.held == 60 * MIB
    for reservation in (*reservations, more.reservation, own.reservation):
        reservation.give()
        reservation.give()
    assert memory.held == 0 and not memory._held_of


def test_a_huge_one_passes_alone_beside_the_room(memory):
    huge, large = Reservation(memory, Client("a")), Reservation(memory, Client("a"))
    assert huge.take(1000 * MIB, never) and large.take(16 * MIB, never) and memory.held == 16 * MIB
    other = Waiting(memory, "b", 17 * MIB)
    assert other.got is None
    huge.give()
    eventually(lambda: other.got)


def test_what_is_asked_again_replaces_what_was_held(memory):
    reservation = Reservation(memory, Client())
    for size in (16 * MIB, 2 * MIB, 100 * MIB, 16 * MIB):
        assert reservation.take(size, never)
    assert memory.held == 16 * MIB


def test_addresses_take_turns(memory):
    """However many pulls one address has: the other waits for one of them."""
    holder = Reservation(memory, Client("a"))
    assert holder.take(100 * MIB, never)
    order = []
    many = [Waiting(memory, "a", 100 * MIB, order) for _ in range(3)]
    one = Waiting(memory, "b", 100 * MIB, order)
    holder.give()
    for count in range(1, 4):
        eventually(lambda count=count: len(order) == count)
        memory._huge.give()
    eventually(lambda: len(order) == 4)
    assert order[0] == "b" and one.got and all(each.got for each in many)


def test_who_waits_for_room_is_not_overtaken(memory):
    reservations = [Reservation(memory, Client(address)) for address in "abcd"]
    for reservation in reservations:
        assert reservation.take(15 * MIB, never)
    first, second = Waiting(memory, "e", 16 * MIB), Waiting(memory, "f", 4 * MIB)
    assert first.got is None and second.got is None
    reservations[0].give()
    eventually(lambda: first.got)
    assert second.got is None
    reservations[1].give()
    eventually(lambda: second.got)


def test_a_wait_ends_when_its_pull_does(memory):
    holder = Reservation(memory, Client())
    assert holder.take(100 * MIB, never)
    waiting = Waiting(memory, "b", 100 * MIB)
    waiting.stopped = True
    memory.wake()
    eventually(lambda: waiting.got is False)
    assert not memory._waiting and not waiting.reservation.holds


@pytest.mark.parametrize(
    ("took", "behind", "ended"),
    [(0, MIB, True), (SLOWEST * STALL - 1, MIB, True), (SLOWEST * STALL, MIB, False), (0, 0, False)],
    ids=["nothing", "a little", "enough", "it waits for us"],
)
def test_who_takes_too_little_while_others_wait_is_ended(memory, clock, took, behind, ended):
    client = Client()
    holder = Reservation(memory, client)
    assert holder.take(100 * MIB, never)
    clock.now = 1000.0
    memory.end_stalled()
    assert not client.told, "nobody waits"
    waiting = Waiting(memory, "b", 100 * MIB)
    memory.end_stalled()
    assert not client.told, "now somebody does, but not for long"
    client.taken += int(took)
    client.behind = behind
    clock.now += STALL
    time.sleep(0.1)
    assert bool(client.told) is ended
    holder.give()
    eventually(lambda: waiting.got)
