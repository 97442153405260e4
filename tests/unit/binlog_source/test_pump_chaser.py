"""The queue between log and index, and the slow chaser: when it recovers, from where it goes on, and what it does to the store around it."""

import contextlib
import functools
import threading
import time

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import AfterPass, Backlog, Chaser, ChaserSettings, decide
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.index import KeyIndex
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from tests.support.eventually import eventually


def test_order_is_kept_over_groups_that_are_cut():
    backlog = Backlog(100)
    for group in ([1, 2, 3], [4], [5, 6, 7, 8]):
        assert backlog.put(group, 0)
    assert len(backlog) == 8
    assert [backlog.take(3), backlog.take(3), backlog.take(3)] == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert len(backlog) == 0


def test_a_group_goes_in_whole_or_not_at_all():
    backlog = Backlog(4)
    assert backlog.put([1, 2, 3], 0)
    assert not backlog.put([4, 5], 0.001)
    assert backlog.put([4], 0)
    assert backlog.take(10) == [1, 2, 3, 4]


def test_an_empty_queue_takes_a_group_of_any_size():
    backlog = Backlog(2)
    assert backlog.put(list(range(10)), 0)
    assert not backlog.put([10], 0.001)
    assert backlog.take(9) == list(range(9))
    assert backlog.put([10], 0), "one waits, and there is room for another"


def test_room_wakes_who_waits_for_it():
    backlog = Backlog(1)
    backlog.put([1], 0)
    took = threading.Timer(0.01, lambda: backlog.take(1))
    took.start()
    assert backlog.put([2], 10)
    took.join()
    assert backlog.take(1) == [2]


def test_closing_ends_waits_and_leaves_what_is_in_it():
    backlog = Backlog(1)
    backlog.put([1], 0)
    closed = threading.Timer(0.01, backlog.close)
    closed.start()
    assert backlog.put([2], 10), "what comes while it closes is taken too"
    closed.join()
    assert [backlog.take(5), backlog.take(5)] == [[1, 2], []]


NEVER = float("inf")
SETTINGS = ChaserSettings(poll=0.001)


@pytest.mark.parametrize(
    ("pass_seconds", "since_recovery", "follows"),
    [
        (0.99, 60.1, AfterPass.RECOVER),
        (0.99, NEVER, AfterPass.RECOVER),
        (1.0, 60.1, AfterPass.SLEEP),
        (0.99, 60.0, AfterPass.SLEEP),
        (30.0, NEVER, AfterPass.SLEEP),
    ],
)
def test_a_recovery_follows_a_quick_pass_at_most_once_a_minute(pass_seconds, since_recovery, follows):
    assert decide(ChaserSettings(), pass_seconds, since_recovery) is follows


class World:
    """A chaser whose passes follow a script: (seconds that it takes, position reached, whether that is the end)."""

    def __init__(self, *passes):
        self.now = 1000.0
        self.asked = []
        self.over = threading.Event()
        self._passes = list(passes)
        self._lock = threading.Lock()
        self.chaser = Chaser(SETTINGS, self._pass_on, self._lock, clock=lambda: self.now)
        with self._lock:
            self.chaser.turn_on(Pointer(0, 0))

    def _pass_on(self, start, deadline):
        assert self._lock.locked() == (deadline is not None), "only a recovery keeps writers out"
        if not self._passes:
            self.over.set()
            return start, False
        self.asked.append((start.offset, None if deadline is None else deadline - self.now))
        seconds, offset, end = self._passes.pop(0)
        self.now += seconds
        return Pointer(0, offset), end

    def played(self):
        """Positions and seconds that the passes were asked with, and the counts, once the script is over or the chaser off."""
        eventually(lambda: not self.chaser.on or self.over.is_set(), pause=0.001)
        self.chaser.stop()
        return self.asked, [count for _, count in self.chaser.counts.items()]


def test_slow_passes_go_on_until_a_quick_one_leads_to_a_recovery():
    world = World((5, 10, True), (2, 30, True), (0.5, 35, True), (0.2, 40, True))
    assert world.played() == ([(0, None), (10, None), (30, None), (35, 1.0)], [1, 1, 3, 1])
    assert not world.chaser.on and world.chaser.last_catch_up == 0.5


def test_a_recovery_out_of_time_leaves_it_on_where_it_came_to():
    world = World((0.5, 10, True), (1.0, 20, False), (0.5, 30, True), (0.1, 40, True), (58.8, 50, True), (0.5, 60, True), (0.1, 70, True))
    asked, counts = world.played()
    assert asked == [(0, None), (10, 1.0), (20, None), (30, None), (40, None), (50, None), (60, 1.0)], "the second recovery waits a minute"
    assert counts == [1, 1, 5, 2]


def test_it_stops_while_it_is_on():
    world = World((5, 10, True))
    assert world.played()[1][:2] == [1, 0]
    assert world.chaser.on


def test_it_may_be_turned_on_again():
    world = World((0.5, 10, True), (0.1, 10, True))
    asked, _ = world.played()
    assert not world.chaser.on and asked == [(0, None), (10, 1.0)]
    world.chaser.turn_on(Pointer(0, 20))
    assert world.chaser.on and world.chaser.counts.turned_on == 2


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(Store(tmp_path, StoreSettings(sync=False))) as store:
        store.write([fake(ts) for ts in range(1, 100)])
        store.catch_up()
        yield store


def test_a_pass_ends_at_its_deadline_even_if_the_index_has_room(store):
    assert store._pass_on(BEGINNING, time.monotonic() - 1) == (BEGINNING, False)


def test_a_log_that_cannot_be_read_is_tried_again(store, caplog, monkeypatch):
    def unreadable(start, upto):
        raise OSError(5, "Input/output error")
        yield

    monkeypatch.setattr(store._log, "scan", unreadable)
    assert store._pass_on(Pointer(0, 20), None) == (Pointer(0, 20), False)
    assert "cannot read the log from 0:20 on" in caplog.text


def test_a_pass_that_runs_out_of_time_says_how_far_it_came(tmp_path, monkeypatch):
    """Or the next one would index the same again."""
    go_on = threading.Event()

    class Blocked(KeyIndex):
        """Takes nothing until told; remembers what it took."""

        taken = []

        def apply(self, entries, checkpoints, head):
            """See ``KeyIndex``."""
            go_on.wait()
            self.taken += [entry.at for entry in entries]
            super().apply(entries, checkpoints, head)

    settings = StoreSettings(sync=False, backlog=1)
    with contextlib.closing(Store(tmp_path, settings, open_index=Blocked)) as store, contextlib.ExitStack() as at_end:
        at_end.callback(go_on.set)
        store.chaser.turn_on(BEGINNING)
        store.chaser.stop()
        store.write([fake(ts) for ts in range(1, 10)])
        monkeypatch.setattr(store._log, "scan", functools.partial(store._log.scan, piece_size=60))
        reached, done = store._pass_on(BEGINNING, time.monotonic() + 0.05)
        assert not done and BEGINNING < reached < store._log.end
        go_on.set()
        assert store._pass_on(reached, None) == (store._log.end, True)
        store.catch_up()
        assert store._index.taken == sorted(set(store._index.taken)) and len(store._index.taken) == 9
