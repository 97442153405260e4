"""Memory for large binlogs: how much all pulls hold, whose turn it is, and that a client that does not read stops nobody."""

import threading

import pytest

from pyspark_tidb_binlog.binlog_source.pump import service
from pyspark_tidb_binlog.binlog_source.pump.service import CAPACITY, LARGE, STALL, Reservation
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from tests.support.eventually import eventually

MIB = 1 << 20


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
    monkeypatch.setattr(service, "_LOOK", 0.01)
    return BoundedMemory(CAPACITY, STALL, clock)


def never():
    return False


class Waiting:
    """A pull that asks for memory in its own thread."""

    def __init__(self, memory, size):
        self.reservation = Reservation(memory)
        self.stopped = False
        self.got = None
        waiting = len(memory._waiting)
        threading.Thread(target=self.run, args=(size,)).start()
        eventually(lambda: self.got is not None or len(memory._waiting) > waiting)

    def run(self, size):
        self.got = self.reservation.take(size, lambda: self.stopped)


def test_what_is_small_needs_no_memory(memory):
    reservation = Reservation(memory)
    assert reservation.take(LARGE, never) and not reservation.holds


def test_memory_is_bounded_and_pulls_take_turns(memory):
    reservations = [Reservation(memory) for _ in range(8)]
    for reservation in reservations:
        assert reservation.take(8 * MIB, never) and reservation.holds
    assert memory.held == CAPACITY
    large, small = Waiting(memory, 16 * MIB), Waiting(memory, 2 * MIB)
    reservations[0].give()
    assert large.got is None and small.got is None, "who waits is not overtaken"
    reservations[1].give()
    eventually(lambda: large.got)
    assert small.got is None
    reservations[2].give()
    eventually(lambda: small.got)
    for reservation in (*reservations, large.reservation, small.reservation):
        reservation.give()
        reservation.give()
    assert memory.held == 0


def test_one_binlog_may_be_larger_than_the_memory(memory):
    huge = Reservation(memory)
    assert huge.take(1000 * MIB, never)
    other = Waiting(memory, 2 * MIB)
    assert other.got is None
    huge.give()
    eventually(lambda: other.got)


def test_what_is_taken_again_replaces_what_was_held(memory):
    reservation = Reservation(memory)
    for size in (16 * MIB, 2 * MIB, 100 * MIB, 16 * MIB):
        assert reservation.take(size, never)
    assert memory.held == 16 * MIB


def test_a_wait_ends_when_its_pull_does(memory):
    holder = Reservation(memory)
    assert holder.take(100 * MIB, never)
    waiting, next_one = Waiting(memory, 100 * MIB), Waiting(memory, 100 * MIB)
    waiting.stopped = True
    eventually(lambda: waiting.got is False)
    assert not waiting.reservation.holds
    holder.give()
    eventually(lambda: next_one.got)


def test_a_client_that_does_not_read_stops_nobody(memory, clock):
    silent = Reservation(memory)
    assert silent.take(100 * MIB, never)
    waiting = Waiting(memory, 60 * MIB)
    clock.now = STALL
    eventually(lambda: waiting.got)
    assert silent.holds
