"""The key index alone: keys, checkpoints, what it remembers, and what it says when RocksDB refuses."""

import contextlib

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.index import Entry, Head, KeyIndex
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind
from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import NOTHING, SorterCheckpoint
from pyspark_tidb_binlog.schemas.errors import Corruption


@pytest.fixture
def index(tmp_path):
    with contextlib.closing(KeyIndex(tmp_path / "index")) as index:
        yield index


def entry(ts, kind=RecordKind.FAKE, offset=None):
    return Entry(ts, kind, Pointer(0, ts if offset is None else offset), 20)


def checkpoint(offset, max_ts, low=None):
    at = Pointer(0, offset)
    return SorterCheckpoint(at, max_ts, max_ts, Pointer(0, low) if low is not None else at, max_ts)


def test_what_was_applied_is_there_after_a_restart(tmp_path):
    first = KeyIndex(tmp_path / "index")
    first.apply([entry(5), entry(7, RecordKind.PREWRITE)], [checkpoint(10, 5)], Head(Pointer(0, 30), 7))
    first.note_gc(4, checkpoint(30, 7), 0)
    first.close()
    with contextlib.closing(KeyIndex(tmp_path / "index")) as again:
        assert (again.get(5), again.get(7), again.get(6)) == (entry(5), entry(7, RecordKind.PREWRITE), None)
        assert again.head == Head(Pointer(0, 30), 7) and again.gc_ts == 4
        assert again.checkpoints(BEGINNING, 10) == [checkpoint(10, 5), checkpoint(30, 7)]


def test_a_later_record_with_the_same_ts_replaces_the_earlier(index):
    index.apply([entry(5, offset=0), entry(5, offset=20)], [], Head(Pointer(0, 40), 5))
    assert index.get(5).at == Pointer(0, 20)


def test_a_span_is_what_is_delivered_and_the_prewrites_between(index):
    index.apply([entry(ts, RecordKind.PREWRITE if ts % 3 == 0 else RecordKind.COMMIT) for ts in range(1, 11)], [], Head(BEGINNING, 0))
    found = index.span(2, 9, 100)
    assert [e.ts for e in found.delivered] == [4, 5, 7, 8] and sorted(found.prewrites) == [3, 6, 9]
    assert [e.ts for e in index.span(2, 9, 2).delivered] == [4, 5]
    assert index.span(9, 9, 5).delivered == []


def test_a_negative_ts_stops_nothing(index):
    """int64 on the wire, so it can come; a real Pump keys it by its bits, far above every real one."""
    index.apply([entry(-5, RecordKind.PREWRITE, offset=0), entry(3)], [], Head(BEGINNING, 0))
    assert index.get(-5).at == BEGINNING
    assert [e.ts for e in index.span(0, 1 << 62, 10).delivered] == [3]
    assert list(index.drop_oldest(-1, Pointer(1, 0), 10)) == []


def test_the_base_of_a_ts_is_the_last_checkpoint_without_a_commit_above_it(index):
    made = [checkpoint(10, 5), checkpoint(20, 5), checkpoint(30, 9)]
    index.apply([], made, Head(BEGINNING, 0))
    assert [index.base(ts) for ts in (4, 5, 8, 9, 100)] == [NOTHING, made[1], made[1], made[2], made[2]]
    assert [index.newest_checkpoint(Pointer(0, offset)) for offset in (9, 10, 29, 99)] == [NOTHING, made[0], made[1], made[2]]
    assert index.checkpoints(Pointer(0, 10), 1) == [made[1]]


def test_old_keys_go_in_batches(index):
    index.apply([entry(ts) for ts in range(1, 26)], [], Head(BEGINNING, 0))
    assert list(index.drop_oldest(22, Pointer(1, 0), 10)) == [10, 10, 2]
    assert [e.ts for e in index.span(0, 99, 99).delivered] == [23, 24, 25]


def test_prewrites_that_the_log_holds_stay(index):
    """Their Commit may be delivered still: a transaction may be older than what is kept."""
    index.apply([entry(ts, RecordKind.PREWRITE if ts % 2 else RecordKind.COMMIT) for ts in range(1, 11)], [], Head(BEGINNING, 0))
    assert list(index.drop_oldest(10, Pointer(0, 5), 4)) == [4, 2, 1]
    left = index.span(0, 99, 99)
    assert left.delivered == [] and sorted(left.prewrites) == [5, 7, 9]


def test_checkpoints_before_a_position_go_but_for_the_last(index):
    made = [checkpoint(10 * n, n) for n in range(1, 6)]
    index.apply([], made, Head(BEGINNING, 0))
    index.drop_checkpoints(Pointer(0, 35))
    assert index.checkpoints(BEGINNING, 10) == made[2:]
    assert [index.base(ts) for ts in (2, 3, 5)] == [NOTHING, made[2], made[4]]


def test_clearing_leaves_only_what_was_collected(index):
    index.apply([entry(5)], [checkpoint(10, 5)], Head(Pointer(0, 30), 7))
    index.note_gc(4, checkpoint(30, 7), 0)
    index.clear()
    assert (index.get(5), index.head, index.gc_ts, index.base(9)) == (None, Head(BEGINNING, 0), 4, NOTHING)


def test_a_closed_index_refuses_with_an_oserror(tmp_path):
    index = KeyIndex(tmp_path / "index")
    index.close()
    for call in (
        lambda: index.get(5),
        lambda: index.span(0, 9, 9),
        lambda: index.base(5),
        lambda: index.apply([], [], Head(BEGINNING, 0)),
        lambda: index.drop_checkpoints(BEGINNING),
    ):
        with pytest.raises(OSError, match="closed"):
            call()


def test_an_index_in_use_is_not_thrown_away(tmp_path):
    index = KeyIndex(tmp_path / "index")
    index.apply([entry(5)], [], Head(BEGINNING, 0))
    with pytest.raises(OSError, match="LOCK"):
        KeyIndex(tmp_path / "index")
    assert index.get(5) == entry(5)
    index.close()


def test_a_value_of_another_size_is_corruption(index):
    index._db[b"ts:" + (5).to_bytes(8, "big")] = b"short"
    index._db[b"!binlog!headPointer"] = b"short"
    with pytest.raises(Corruption, match="remove its index directory"):
        index.get(5)
    with pytest.raises(Corruption, match="remove its index directory"):
        _ = index.head


def test_an_index_whose_head_is_no_head_is_made_anew(tmp_path, caplog):
    index = KeyIndex(tmp_path / "index")
    index._db[b"!binlog!headPointer"] = b"short"
    index.close()
    with contextlib.closing(KeyIndex(tmp_path / "index")) as again:
        assert again.head == Head(BEGINNING, 0)
    assert "rebuilt from the value log" in caplog.text
