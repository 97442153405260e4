"""Writers, readers, collections and the slow chaser at the same time, and a close in the middle of it: nobody meets what another left half done."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import ChaserSettings
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.index import KeyIndex
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.schemas.errors import BinlogPurged
from pyspark_tidb_binlog.schemas.proto import pump_pb2
from tests.support.eventually import eventually
from tests.support.slow_index import Writers
from tests.support.store_model import undisturbed

SECONDS = 2.0
CHASER = ChaserSettings(threshold=0.001, poll=0.005, quick_pass=0.05, recovery_interval=0.01, recovery_timeout=0.05)
SETTINGS = StoreSettings(max_file_size=5_000, sync=False, span=500, backlog=8, chaser=CHASER)
SLACK = 200


class Stuttering(KeyIndex):
    """Slow at every twentieth batch, so that the chaser has something to do."""

    batches = 0

    def apply(self, entries, checkpoints, head):
        """See ``KeyIndex``."""
        self.batches += 1
        if self.batches % 20 == 0:
            time.sleep(0.05)
        super().apply(entries, checkpoints, head)


def test_nobody_meets_what_another_left_half_done(tmp_path):
    store = Store(tmp_path, SETTINGS, open_index=Stuttering)
    over = threading.Event()
    writers = Writers(store)
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(act, store, over.is_set) for act in (collect, follow_raw, follow_raw, follow_sorted, follow_sorted, walk_steps)]
        time.sleep(SECONDS)
        eventually(lambda: store.chaser.counts.turned_off)
        writers.stop()
        # the readers and the collections are at work still
        over.set()
        store.wake()
        seen = [future.result(10) for future in work]
    assert all(seen), seen
    store.close()
    with contextlib.closing(Store(tmp_path, StoreSettings())) as again:
        assert again.state == store.state or again.state.at > store.state.at


def test_closing_while_all_are_at_work(tmp_path):
    store = Store(tmp_path, SETTINGS, open_index=Stuttering)
    over = threading.Event()
    writers = Writers(store)
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(act, store, over.is_set) for act in (collect, follow_raw, follow_sorted, walk_steps)]
        time.sleep(SECONDS / 4)
        writers.stop()
        store.close()
        over.set()
        for future in work:
            # a reader of a closed store may be refused, in words that the wire has
            assert future.exception(10) is None or isinstance(future.exception(), OSError)


def collect(store, stop):
    """Collections close behind the writers."""
    count = 0
    while not stop():
        count += store.collect(store.state.sorted_promise - SLACK, SLACK)
        time.sleep(0.002)
    return count


def follow_raw(store, stop):
    """Every record once, in order, from wherever it begins; from the oldest again when it was too slow."""
    service, count, prewritten = PumpService(store, 0, "p"), 0, set()
    at = BEGINNING
    while not stop():
        try:
            for flush in service.pull_raw(at, stop, undisturbed()):
                for entity in entities(flush):
                    here = Pointer(entity.pos.suffix, entity.pos.offset)
                    assert here >= at
                    if entity.payload[1] == RecordKind.PREWRITE:
                        assert entity.meta.startTs not in prewritten
                        prewritten.add(entity.meta.startTs)
                    count, at = count + 1, here
        except BinlogPurged:
            at, prewritten = BEGINNING, set()
    return count


def follow_sorted(store, stop):
    """Ascending, and what is not collected is complete; from what is kept when it was too slow."""
    service, count, last = PumpService(store, 0, "p"), 0, 0
    while not stop():
        try:
            for flush in service.pull_sorted(last, stop, undisturbed()):
                for entity in entities(flush):
                    assert entity.meta.commitTs > last
                    last, count = entity.meta.commitTs, count + 1
        except BinlogPurged:
            assert store.gc_ts > last
    return count


def walk_steps(store, stop):
    """The steps ascend, and neither promise goes back."""
    at, raw_promise, sorted_promise, count = BEGINNING, 0, 0, 0
    while not stop():
        assert store.base(store.state.sorted_promise).low >= BEGINNING
        for step in store.steps_past(at, 10):
            assert step.at > at and step.raw_promise >= raw_promise and step.sorted_promise >= sorted_promise
            at, raw_promise, sorted_promise, count = step.at, step.raw_promise, step.sorted_promise, count + 1
    return count


def entities(flush):
    return [pump_pb2.PullBinlogResp.FromString(message).entity for message in flush]
