"""What a reader has seen of a log is in it: for every place that the log ever told, after restarts, with the index made anew, damaged, collected."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump.service import holds
from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark, seen_of
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import ANYWHERE, LogFingerprint, seen_in
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import Delivery
from tests.support.fakes.faulty_files import flip
from tests.support.store_model import commit, prewrite, rollback

SETTINGS = StoreSettings(max_file_size=4000, sync=False, span=500)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path, SETTINGS)
    yield made
    made.close()


def fill(store: Store, count: int, first: int = 10, seed: int = 1) -> list[LogFingerprint]:
    """So many records of every kind; what the log told after each."""
    rng, open_, told = random.Random(seed), [], []
    for ts in range(first, first + 10 * count, 10):
        kind = rng.choice("pppcccrf")
        if kind == "p":
            open_.append(ts)
            store.write([prewrite(ts, b"v" * rng.randint(1, 300))])
        elif kind == "f" or not open_:
            store.write([fake(ts)])
        elif kind == "r":
            store.write([rollback(open_.pop(0))])
        else:
            store.write([commit(open_.pop(0), ts)])
        state = store.catch_up()
        told.append(LogFingerprint(Position(*state.at), state.max_ts))
    return told


def test_every_place_that_it_told_is_in_it(store: Store) -> None:
    told = fill(store, 200)
    assert all(holds(store, seen) for seen in told)
    assert all(holds(store, LogFingerprint(ANYWHERE, seen.ts)) for seen in told)
    assert all(holds(store, LogFingerprint(seen.position)) for seen in told)
    assert not any(holds(store, LogFingerprint(seen.position, seen.ts + 1)) for seen in told)
    assert not any(holds(store, LogFingerprint(Position(seen.position.suffix, seen.position.offset + 1), seen.ts)) for seen in told)
    assert not holds(store, LogFingerprint(ANYWHERE, 5)) and not holds(store, LogFingerprint(Position(99, 0), 0))


@pytest.mark.parametrize("index", ["kept", "gone"])
def test_also_after_a_restart(tmp_path: Path, index: str) -> None:
    store = Store(tmp_path, SETTINGS)
    told = fill(store, 100)
    store.close()
    if index == "gone":
        shutil.rmtree(tmp_path / "index")
    again = Store(tmp_path, SETTINGS)
    assert all(holds(again, seen) for seen in told)
    again.close()


@pytest.mark.parametrize("index", ["kept", "gone"])
def test_what_was_collected_is_no_other_log(tmp_path: Path, index: str) -> None:
    store = Store(tmp_path, SETTINGS)
    told = fill(store, 200)
    store.write([rollback(entry.ts) for entry in store.orphans(1 << 62)])
    told += fill(store, 100, 5000)
    assert store.collect(2000, 0) and store.beginning > Pointer(0, 0)
    store.close()
    if index == "gone":
        shutil.rmtree(tmp_path / "index")
    again = Store(tmp_path, SETTINGS)
    assert all(holds(again, seen) and holds(again, LogFingerprint(ANYWHERE, seen.ts)) for seen in told)
    again.close()


@pytest.mark.parametrize("index", ["kept", "gone"])
def test_a_damaged_place_is_no_other_log(tmp_path: Path, index: str) -> None:
    store = Store(tmp_path, SETTINGS)
    told = fill(store, 30)
    store.close()
    for offset in (700, 2100):
        flip(tmp_path / "value" / "000000.vlog", offset)
    if index == "gone":
        shutil.rmtree(tmp_path / "index")
    again = Store(tmp_path, SETTINGS)
    assert all(holds(again, seen) and holds(again, LogFingerprint(ANYWHERE, seen.ts)) for seen in told)
    again.close()


def test_a_log_that_goes_on_otherwise_is_another(tmp_path: Path) -> None:
    """From a backup on, records of the same lengths and other timestamps."""
    store = Store(tmp_path / "log", SETTINGS)
    common = fill(store, 50)
    store.close()
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    told, others = ([], [])
    for name, first, into in (("log", 1000, told), ("backup", 1003, others)):
        store = Store(tmp_path / name, SETTINGS)
        into += fill(store, 50, first, seed=2)
        assert all(holds(store, seen) for seen in common + into)
        store.close()
    assert [seen.position for seen in told] == [seen.position for seen in others]
    restored = Store(tmp_path / "backup", SETTINGS)
    new = [seen for seen in told if seen.ts >= 1000]
    assert new and not any(holds(restored, seen) or holds(restored, LogFingerprint(ANYWHERE, seen.ts)) for seen in new)
    restored.close()


def test_the_text() -> None:
    seen = LogFingerprint(Position(3, 500), 470624748130795521)
    assert seen_in(seen.text) == seen
    assert [seen_in(text) for text in ("", "x", "1:2", "1:2:3:4", "-1:2:3", "1:2:" + "9" * 30)] == [None] * 6


def test_what_an_offset_has_seen() -> None:
    marks = {"a": PumpMark(Position(1, 7), seen_ts=45), "b": PumpMark(Position(0, 0))}
    raw, in_order = (BinlogOffset(delivery, 50, 10, marks) for delivery in (Delivery.RAW, Delivery.SORTED))
    assert (seen_of(raw, "a"), seen_of(in_order, "a")) == (LogFingerprint(Position(1, 7), 45), LogFingerprint(ANYWHERE, 45))
    assert (seen_of(raw, "b"), seen_of(in_order, "b"), seen_of(raw, "c")) == (None, None, None)
