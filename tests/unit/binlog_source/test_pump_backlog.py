"""The queue between log and index: order, bounds, and how it ends."""

import threading

from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import Backlog


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
