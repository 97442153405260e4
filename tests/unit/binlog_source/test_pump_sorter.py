"""What may be promised after each record, step by step; the random walks are in tests/property/test_store_model.py."""

from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind
from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import LogRecord, Sorter, SorterCheckpoint

P, C, R, F = RecordKind.PREWRITE, RecordKind.COMMIT, RecordKind.ROLLBACK, RecordKind.FAKE


def walk(records, span=1 << 20, length=10):
    """The sorter after the records, and the checkpoints it made."""
    sorter = Sorter(span)
    made = [
        sorter.push(LogRecord(kind, start, commit, Pointer(0, number * length), length))
        for number, (kind, start, commit) in enumerate(records)
    ]
    return sorter, [checkpoint for checkpoint in made if checkpoint is not None]


def promises(*records):
    now = walk(records)[0].now()
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


def test_checkpoints_come_before_the_span_is_passed():
    _, made = walk([(F, n, n) for n in range(1, 8)], span=20)
    assert [(c.at.offset, c.raw_promise) for c in made] == [(20, 2), (40, 4), (60, 6)]


def test_a_record_bigger_than_the_span_is_a_step_of_its_own():
    _, made = walk([(F, n, n) for n in range(1, 4)], span=5)
    assert [c.at for c in made] == [Pointer(0, 10), Pointer(0, 20)]


def test_memory_follows_what_waits_not_what_is_written():
    sorter = Sorter()
    sorter.push(LogRecord(P, 1, 0, Pointer(0, 0), 10))
    for n in range(10, 20_000, 2):
        sorter.push(LogRecord(P, n, 0, Pointer(0, n * 10), 10))
        sorter.push(LogRecord(C, n, n + 1, Pointer(0, n * 10 + 10), 10))
    assert sorter.waiting == (1,) and len(sorter._lowest) < 2000
    assert sorter.now().sorted_promise == 0 and sorter.now().low == Pointer(0, 0)


def test_a_checkpoint_survives_packing():
    checkpoint = SorterCheckpoint(Pointer(3, 1 << 40), 1 << 60, (1 << 60) - 1, Pointer(2, 7), 1 << 61)
    assert SorterCheckpoint.unpack(checkpoint.pack()) == checkpoint
