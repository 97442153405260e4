"""Collection: which files and keys go, what is told to readers, what stays, and what happens beside it."""

import contextlib
import threading

import pytest

from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage import store as store_module
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import BinlogPurged
from tests.support.store_model import commit, prewrite, pulled, raw, rollback, undisturbed

ONE_RECORD_A_FILE = 1
NEVER = threading.Event().is_set


def opened(path, size=ONE_RECORD_A_FILE, **more):
    return Store(path, StoreSettings(max_file_size=size, sync=False, span=100), **more)


@pytest.fixture
def store(tmp_path):
    """Fakes of ts 1 to 20, each in a file of its own (0 to 19), and an empty active file."""
    store = opened(tmp_path)
    for ts in range(1, 21):
        store.write([fake(ts)])
    store.catch_up()
    yield store
    store.close()


def files_of(path):
    return sorted(int(file.stem) for file in (path / "value").iterdir())


def delivered(store, after=0):
    return [entity.meta.commitTs for entity in pulled(store, after)]


def during(monkeypatch, point, act):
    """Do ``act`` once when a collection passes ``point``."""
    acts = [act]
    monkeypatch.setattr(failpoints, "point", lambda name: acts.pop()() if name == point and acts else None)


@pytest.mark.shows("pump gc")
def test_files_and_keys_up_to_the_slack_below_gc_ts_are_gone(store, tmp_path):
    assert store.collect(15, 5)
    assert files_of(tmp_path) == list(range(10, 21)) and store.beginning == Pointer(10, 0)
    assert [store.entry(ts) is None for ts in (1, 10, 11, 20)] == [True, True, False, False]
    assert (store.gc_ts, store.gc_done_ts, store.deleted_keys) == (15, 10, 10)
    assert delivered(store) == [16, 17, 18, 19, 20], "a reader from before gc_ts begins there"
    assert [e.meta.commitTs for e in raw(store)[:-1]] == list(range(11, 21))


@pytest.mark.parametrize("gc_ts", [20, 21, 0, -7])
def test_nothing_is_done_unless_the_promise_is_past_it(store, tmp_path, gc_ts):
    assert not store.collect(gc_ts, 0)
    assert files_of(tmp_path) == list(range(21)) and store.gc_ts == 0


def test_nothing_is_done_twice(store):
    assert store.collect(10, 0)
    assert not store.collect(10, 0) and not store.collect(9, 0)
    assert store.collect(11, 0)


def test_a_slack_larger_than_gc_ts_removes_nothing(store, tmp_path):
    assert store.collect(10, 100)
    assert files_of(tmp_path) == list(range(21)) and store.entry(1) is not None and store.gc_ts == 10


def test_the_active_file_stays(tmp_path):
    store = opened(tmp_path, size=1 << 20)
    store.write([fake(1), fake(2), fake(3)])
    store.catch_up()
    assert store.collect(2, 0)
    assert files_of(tmp_path) == [0] and delivered(store) == [3]
    store.close()


def test_only_the_oldest_files_go(tmp_path):
    """A file that is new enough keeps those behind it, however old: positions stay contiguous."""
    store = opened(tmp_path)
    for ts in (1, 2, 50, 3, 4, 60):
        store.write([fake(ts)])
    store.catch_up()
    assert store.collect(10, 0)
    assert files_of(tmp_path) == [2, 3, 4, 5, 6]
    store.close()


def test_keys_go_in_batches(store, monkeypatch):
    monkeypatch.setattr(store_module, "_GC_BATCH", 4)
    passed = []
    monkeypatch.setattr(failpoints, "point", passed.append)
    assert store.collect(10, 0)
    assert passed.count("gc-keys") == 3 and store.deleted_keys == 10


def test_readers_are_told_before_anything_is_removed(store, tmp_path, monkeypatch):
    seen = []
    during(monkeypatch, "gc-noted", lambda: seen.append((store.gc_ts, len(files_of(tmp_path)), store.deleted_keys)))
    assert store.collect(10, 0)
    assert seen == [(10, 21, 0)]


def test_gc_ts_is_remembered(store, tmp_path):
    store.collect(10, 0)
    before = store.state
    store.close()
    again = opened(tmp_path)
    assert again.gc_ts == 10 and again.state == before
    assert not again.collect(10, 0) and again.collect(12, 0)
    again.close()


def test_what_a_waiting_prewrite_holds_stays(tmp_path):
    store = opened(tmp_path)
    for record in (fake(1), prewrite(2), prewrite(3), rollback(3), commit(2, 6), fake(7), prewrite(8), fake(30)):
        store.write([record])
    store.catch_up()
    assert not store.collect(7, 0), "the promise ends before the one that waits"
    assert store.collect(6, 0)
    assert store.beginning == Pointer(5, 0), "the fake at 7 is above"
    store.write([fake(31), commit(8, 32)])
    assert delivered(store) == [7, 30, 31, 32]
    store.close()


def test_a_prewrite_whose_commit_is_above_gc_ts_keeps_its_file(tmp_path):
    """A load of half an hour: its Prewrite is alone in a file that is older than all that is kept, its Commit is not."""
    store = opened(tmp_path)
    for record in (fake(1), prewrite(2), fake(50), commit(2, 60), fake(61), fake(90)):
        store.write([record])
    store.catch_up()
    assert store.collect(55, 10)
    assert store.beginning == Pointer(1, 0) and delivered(store, 55) == [60, 61, 90]
    assert store.collect(65, 10) and store.beginning.file_id > 1, "nobody above gc_ts needs it any more"
    store.close()


def test_an_old_prewrite_that_waits_keeps_its_file_though_its_ts_is_old(tmp_path):
    """Its start_ts says nothing about when its Commit comes."""
    store = opened(tmp_path)
    for record in (fake(20), prewrite(2), fake(21)):
        store.write([record])
    store.catch_up()
    assert store.collect(19, 0)
    assert files_of(tmp_path) == [0, 1, 2, 3] and store.prewrite(2) is not None
    store.write([commit(2, 30)])
    assert delivered(store) == [20, 21, 30]
    store.close()


def test_a_transaction_that_began_before_gc_ts_and_ended_after_it_is_whole(tmp_path):
    store = opened(tmp_path)
    for record in (fake(20), prewrite(2), commit(2, 30), fake(31)):
        store.write([record])
    store.catch_up()
    assert store.collect(19, 0)
    (first, second, third) = pulled(store)
    assert second.meta.commitTs == 30 and b"v" in second.payload
    store.close()


def test_a_prewrite_that_comes_while_keys_go_is_not_among_them(store, monkeypatch):
    def old_prewrite():
        store.write([prewrite(5)])
        store.catch_up()

    during(monkeypatch, "vlog-dropped", old_prewrite)
    assert store.collect(10, 0)
    store.write([commit(5, 40)])
    assert delivered(store)[-1] == 40


def test_a_pull_under_way_finishes_the_files_it_reads(store, tmp_path):
    flushes = PumpService(store, 0, "p").pull_raw(BEGINNING, NEVER, undisturbed())
    got = next(flushes)
    assert store.collect(19, 0) and len(files_of(tmp_path)) == 2
    for _ in range(19):
        got += next(flushes)
    assert len(got) == 21, "twenty records and the promise"


def test_positions_below_the_oldest_file_are_refused(store):
    store.collect(10, 0)
    service = PumpService(store, 0, "p")
    with pytest.raises(BinlogPurged, match="the oldest one kept is 10:0"):
        next(service.pull_raw(Pointer(9, 0), NEVER, undisturbed()))
    assert [e.meta.commitTs for e in raw(store, Pointer(10, 0))[:-1]] == list(range(11, 21))


def test_bases_and_checkpoints_after_a_collection(store, tmp_path):
    for ts in range(21, 41):
        store.write([fake(ts)])
    store.catch_up()
    before = store.steps_past(BEGINNING, 1000)
    store.collect(30, 0)
    after = store.steps_past(BEGINNING, 1000)
    assert len(after) < len(before) and after[-1] == store.state
    assert sum(checkpoint.at < store.beginning for checkpoint in after) <= 1, "what is gone has no checkpoints"
    for ts in (0, 10, 30, 35, 40):
        assert store.base(ts).low >= store.beginning
        seen = [e.meta.commitTs for e in raw(store, store.base(ts).low)[:-1]]
        assert [n for n in seen if n > max(ts, 30)] == list(range(max(ts, 30) + 1, 41))


def test_one_collection_at_a_time(store, monkeypatch):
    seen = []
    during(monkeypatch, "gc-noted", lambda: seen.append(store.collect(15, 0)))
    assert store.collect(10, 0)
    assert seen == [False] and store.gc_ts == 10


def test_closing_waits_for_the_collection_under_way(store, monkeypatch):
    monkeypatch.setattr(store_module, "_GC_BATCH", 1)
    closing = threading.Thread(target=store.close)
    held = []

    def close():
        closing.start()
        assert store._closing.wait(10)
        closing.join(0.01)
        held.append(closing.is_alive())

    during(monkeypatch, "gc-keys", close)
    assert store.collect(10, 0)
    closing.join(10)
    assert held == [True] and not closing.is_alive() and store.deleted_keys == 1
    assert not store.collect(12, 0)


def test_a_file_that_cannot_be_removed_is_tried_again(store, tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(store._fs, "remove", refuse)
        with pytest.raises(OSError, match="Input/output"):
            store.collect(10, 0)
    assert files_of(tmp_path) == list(range(21)) and store.gc_ts == 10
    assert store.collect(11, 0)
    assert files_of(tmp_path) == list(range(11, 21))


def test_without_the_index_readers_are_told_of_what_is_missing(store, tmp_path, caplog):
    store.collect(15, 5)
    store.close()
    (tmp_path / "index").rename(tmp_path / "lost")
    with contextlib.closing(opened(tmp_path)) as again:
        assert again.gc_ts == 10, "just below the oldest that is kept"
        assert delivered(again) == list(range(11, 21))
    assert "its oldest, as collected" in caplog.text
