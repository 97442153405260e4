"""An index that cannot keep up: writers go on, nothing is indexed twice or out of order, and nothing is lost by a ``kill -9`` meanwhile."""

import contextlib
import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import ChaserSettings
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, read
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from tests.support.eventually import eventually
from tests.support.slow_index import QUICK, Writers, opened
from tests.support.store_model import raw

ROOT = Path(__file__).parents[2]


@pytest.mark.shows("pump storage.kv_chan_cap")
def test_a_slow_index_is_chased(tmp_path):
    chased(opened(tmp_path, QUICK, backlog=16), delay=0.2, seconds=3)


@pytest.mark.slow
def test_a_very_slow_index_leaves_the_writers_alone(tmp_path):
    undelayed, delayed = chased(opened(tmp_path, ChaserSettings(), backlog=256), delay=2, seconds=30)
    print(f"p99 of a write: {undelayed * 1000:.1f} ms, beside an index of 2 s a batch {delayed * 1000:.1f} ms")
    assert delayed < 5 * undelayed


def chased(slow_store, delay, seconds):
    """Writers beside a quick index, a slow one, and a quick one again until the chaser is off; p99 of a write before and during."""
    with contextlib.closing(slow_store) as store:
        before = measured(store, seconds / 3)
        store._index.delay = delay
        during = measured(store, seconds)
        assert store.chaser.counts.turned_on
        store._index.delay = 0.0
        writers = Writers(store)
        eventually(lambda: not store.chaser.on, seconds=60 + store.settings.chaser.recovery_interval)
        writers.stop()
        end = store.catch_up(60)
        assert all(count for _, count in store.chaser.counts.items()), store.chaser.counts
        in_log = [
            (record.ts, (piece.file_id, offset))
            for piece in store.scan(BEGINNING, end.at)
            for offset, record in zip(piece.offsets, map(read, piece.payloads), strict=True)
        ]
        assert store._index.given == in_log, "once, and in order"
        assert end.sorted_promise == end.raw_promise == in_log[-1][0]
    return before, during


def measured(store, seconds):
    writers = Writers(store)
    time.sleep(seconds)
    writers.stop()
    return sorted(writers.seconds)[len(writers.seconds) * 99 // 100]


def test_kill_nine_while_the_chaser_is_on(tmp_path):
    command = [sys.executable, "-m", "tests.support.slow_index", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "")
        durable = [int(line) for line in itertools.takewhile(lambda line: line != "on\n", lines)]
        durable += [int(line) for line in itertools.islice(lines, 500)]
        process.kill()
        durable += [int(line) for line in lines if line.endswith("\n")]
    with contextlib.closing(Store(tmp_path, StoreSettings())) as store:
        there = [entity.meta.startTs for entity in raw(store)[:-1] if entity.payload[1] == RecordKind.PREWRITE]
        assert len(there) == len(set(there)) and set(durable) <= set(there)
        assert all(store.prewrite(start_ts) for start_ts in there)
