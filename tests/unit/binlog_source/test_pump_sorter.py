"""What may be promised after each record, step by step; the random walks are in tests/property/test_store_model.py."""

from binlog_source.pump.storage.pointer import Pointer
from binlog_source.pump.storage.record import Kind
from binlog_source.pump.storage.sorter import Sorter

P, C, R, F = Kind.PREWRITE, Kind.COMMIT, Kind.ROLLBACK, Kind.FAKE


def walk(records, span=1 << 20, length=10):
    sorter = Sorter(span)
    for number, (kind, start, commit) in enumerate(records):
        sorter.push(kind, start, commit, Pointer(0, number * length), Pointer(0, (number + 1) * length), length)
    return sorter


def promises(*records):
    now = walk(records).now()
    return now.raw_promise, now.sorted_promise, now.low.offset // 10


def test_nothing_is_promised_of_an_empty_log():
    assert promises() == (0, 0, 0)


def test_a_commit_promises_itself_when_nothing_waits():
    assert promises((P, 5, 0), (C, 5, 9)) == (9, 9, 2)


def test_a_waiting_prewrite_holds_back_what_is_behind_it():
    assert promises((F, 3, 3), (P, 5, 0), (P, 6, 0), (C, 6, 9), (F, 12, 12)) == (4, 3, 1)


def test_what_was_complete_before_the_waiting_one_is_promised():
    assert promises((P, 5, 0), (C, 5, 9), (P, 6, 0), (F, 12, 12)) == (9, 9, 2)


def test_a_rollback_lets_go():
    assert promises((P, 5, 0), (F, 12, 12), (R, 5, 0)) == (12, 12, 3)


def test_the_raw_promise_never_goes_back():
    # the session that began at 5 prewrites late: its commit_ts will be above 20 all the same
    assert promises((F, 20, 20), (P, 5, 0)) == (20, 20, 1)
    assert promises((F, 20, 20), (P, 5, 0), (F, 30, 30)) == (20, 20, 1)


def test_a_prewrite_written_twice_waits_once():
    assert promises((P, 5, 0), (P, 5, 0), (C, 5, 9)) == (9, 9, 3)


def test_base_is_before_every_commit_above_ts():
    sorter = walk([(P, 5, 0), (P, 6, 0), (C, 5, 9), (C, 6, 14), (F, 20, 20)], span=20)
    assert [c.max_ts for c in (sorter.base(t) for t in (0, 8, 9, 13, 14, 99))] == [0, 0, 0, 0, 14, 14]
    assert sorter.base(8).low == Pointer(0, 0)
    assert sorter.base(99).low == Pointer(0, 40)


def test_steps_reach_the_end():
    sorter = walk([(F, n, n) for n in range(1, 8)], span=20)
    at, seen = Pointer(0, 0), []
    while at < sorter.now().at:
        step = sorter.next_checkpoint(at)
        at = step.at
        seen.append((at.offset, step.raw_promise))
    assert seen == [(20, 2), (40, 4), (60, 6), (70, 7)]


def test_a_record_bigger_than_the_span_is_a_step_of_its_own():
    sorter = walk([(F, n, n) for n in range(1, 4)], span=5)
    assert sorter.next_checkpoint(Pointer(0, 0)).at == Pointer(0, 10)
