"""The store on real files: rotation, restart, torn tails, and a disk that fails."""

import gzip
import threading
import time
from pathlib import Path

import pytest

from binlog_source.pump.service import PumpService
from binlog_source.pump.storage.env import RealFileSystem
from binlog_source.pump.storage.pointer import BEGINNING, Pointer
from binlog_source.pump.storage.record import canonical, fake
from binlog_source.pump.storage.store import Store, StoreSettings
from binlog_source.upstream.rehearsal import delimited
from schemas.errors import BinlogPurged, ConfigError, ProtocolViolation
from schemas.proto import binlog_pb2, pump_pb2

GOLDEN = Path(__file__).parents[2] / "golden" / "pump_dir"
NEVER = threading.Event().is_set


def opened(path, size=1 << 29, **more):
    return Store(path, StoreSettings(max_file_size=size, sync=False), **more)


def prewrite(start_ts, value=b"v"):
    return canonical(binlog_pb2.Binlog(tp=0, start_ts=start_ts, prewrite_key=b"k", prewrite_value=value).SerializeToString())


def commit(start_ts, commit_ts):
    return canonical(binlog_pb2.Binlog(tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k").SerializeToString())


def pulled(store, last=0):
    """What sorted delivery sends until it would wait."""
    waits = []
    store.catch_up()
    service = PumpService(store, 0, "p")
    store.wait_past = lambda seen, timeout: waits.append(1)
    got = []
    for flush in service.pull_sorted(last, lambda: bool(waits)):
        got += [pump_pb2.PullBinlogResp.FromString(m).entity for m in flush]
    return got


def raw(store, start=BEGINNING):
    waits = []
    store.catch_up()
    store.wait_past = lambda seen, timeout: waits.append(1)
    got = []
    for flush in PumpService(store, 0, "p").pull_raw(start, lambda: bool(waits)):
        got += [pump_pb2.PullBinlogResp.FromString(m).entity for m in flush]
    return got


def test_the_log_of_a_real_pump_is_served_as_that_pump_did(tmp_path):
    value = tmp_path / "value"
    value.mkdir()
    (value / "000000.vlog").write_bytes(gzip.decompress((GOLDEN / "000000.vlog.gz").read_bytes()))
    want = list(delimited(gzip.decompress((GOLDEN / "pulled.binlogs.gz").read_bytes()), "golden"))
    store = opened(tmp_path)
    assert [entity.payload for entity in pulled(store)] == want
    assert sorted(p.name for p in value.iterdir()) == ["000000.vlog", "000001.vlog"]
    store.close()


def test_what_was_written_is_there_after_a_restart(tmp_path):
    store = opened(tmp_path)
    store.write([prewrite(5), fake(7), commit(5, 9), prewrite(11)])
    before = store.catch_up()
    store.close()
    store = opened(tmp_path)
    assert store.state == before
    assert [e.meta.commitTs for e in pulled(store)] == [7, 9]
    store.close()


def test_files_rotate_and_keep_their_largest_ts(tmp_path):
    store = opened(tmp_path, size=200)
    for n in range(10):
        store.write([prewrite(10 * n + 1), commit(10 * n + 1, 10 * n + 5)])
    names = sorted(p.name for p in (tmp_path / "value").iterdir())
    assert len(names) == 3
    entities = raw(store)
    assert len(entities) == 21
    first = (tmp_path / "value" / "000000.vlog").read_bytes()
    assert first[-4:] == bytes.fromhex("22b93a12")
    store.close()
    again = opened(tmp_path, size=200)
    assert [e.SerializeToString() for e in raw(again)] == [e.SerializeToString() for e in entities]
    again.close()


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_tail_is_cut_off_and_written_over(tmp_path, cut):
    store = opened(tmp_path)
    store.write([prewrite(5), commit(5, 9)])
    end = store.catch_up().at.offset
    store.write([prewrite(11)])
    store.close()
    file = tmp_path / "value" / "000000.vlog"
    file.write_bytes(file.read_bytes()[:-cut])
    store = opened(tmp_path)
    assert store.state.at == Pointer(0, end) and file.stat().st_size == end
    store.write([prewrite(12), commit(12, 14)])
    assert [e.meta.commitTs for e in pulled(store)] == [9, 14]
    store.close()


def test_damage_in_the_middle_costs_only_what_it_hit(tmp_path):
    store = opened(tmp_path)
    store.write([prewrite(5), commit(5, 9)])
    hit = store.catch_up().at.offset
    store.write([prewrite(11), commit(11, 14), prewrite(15), commit(15, 19)])
    store.close()
    file = tmp_path / "value" / "000000.vlog"
    data = bytearray(file.read_bytes())
    data[hit + 20] ^= 0xFF
    file.write_bytes(bytes(data))
    store = opened(tmp_path)
    assert [e.meta.commitTs for e in pulled(store)] == [9, 19], "the Commit at 14 lost its Prewrite and is skipped"
    store.close()


def test_one_process_per_directory(tmp_path):
    store = opened(tmp_path)
    with pytest.raises(ConfigError, match="another Pump works on it"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


def test_a_position_past_the_end_is_refused(tmp_path):
    store = opened(tmp_path)
    with pytest.raises(ProtocolViolation, match="past the end"):
        next(PumpService(store, 0, "p").pull_raw(Pointer(0, 1), NEVER))
    store.close()


def test_a_position_that_is_gone_is_refused(tmp_path):
    store = opened(tmp_path, size=1)
    store.write([fake(5)])
    store.close()
    (tmp_path / "value" / "000000.vlog").unlink()
    store = opened(tmp_path, size=1)
    store.write([fake(6)])
    with pytest.raises(BinlogPurged, match="0:5"):
        next(PumpService(store, 0, "p").pull_raw(Pointer(0, 5), NEVER))
    store.close()


class FailingFiles(RealFileSystem):
    """A disk whose next append or sync fails on demand."""

    fail = ""

    def open_append(self, path):
        """See ``FileSystem``."""
        outer, inner = self, super().open_append(path)

        class File:
            def append(self, data):
                if outer.fail == "append":
                    inner.append(data[: len(data) // 2])
                    raise OSError(28, "No space left on device")
                inner.append(data)

            def sync(self):
                if outer.fail == "sync":
                    raise OSError(5, "Input/output error")
                inner.sync()

            def truncate(self, size):
                if outer.fail == "truncate":
                    raise OSError(5, "Input/output error")
                inner.truncate(size)

            def close(self):
                inner.close()

        return File()


def test_a_full_disk_refuses_and_recovers(tmp_path):
    files = FailingFiles()
    store = Store(tmp_path, StoreSettings(max_file_size=1 << 20), files=files)
    store.write([fake(5)])
    files.fail = "append"
    with pytest.raises(OSError, match="No space left"):
        store.write([fake(6)])
    files.fail = ""
    store.write([fake(7)])
    assert [e.meta.commitTs for e in pulled(store)] == [5, 7]
    store.close()
    store = opened(tmp_path)
    assert [e.meta.commitTs for e in pulled(store)] == [5, 7]
    store.close()


def test_after_a_failed_sync_nothing_is_acknowledged_any_more(tmp_path):
    files = FailingFiles()
    store = Store(tmp_path, StoreSettings(max_file_size=1 << 20), files=files)
    files.fail = "sync"
    with pytest.raises(OSError, match="Input/output"):
        store.write([fake(5)])
    files.fail = ""
    with pytest.raises(OSError, match="restart the Pump"):
        store.write([fake(6)])
    store.close()


def test_waiting_writers_share_one_sync(tmp_path):
    syncs = []

    class Counting(FailingFiles):
        """Counts the syncs, the first of which waits until the others queue."""

        def open_append(self, path):
            """See ``FileSystem``."""
            inner = super().open_append(path)
            plain = inner.sync

            def sync():
                syncs.append(1)
                if len(syncs) == 1:
                    first.set()
                    queued.wait()
                plain()

            inner.sync = sync
            return inner

    first, queued = threading.Event(), threading.Event()
    store = Store(tmp_path, StoreSettings(max_file_size=1 << 20), files=Counting())
    writers = [threading.Thread(target=store.write, args=([fake(n)],)) for n in range(1, 12)]
    writers[0].start()
    assert first.wait(10)
    for writer in writers[1:]:
        writer.start()
    while store._queue.qsize() < 10:
        time.sleep(0.001)
    queued.set()
    for writer in writers:
        writer.join()
    assert len(syncs) == 2
    assert len(pulled(store)) == 11
    store.close()


def test_sorted_delivery_begins_after_the_ts_it_is_given(tmp_path):
    store = opened(tmp_path)
    store.write([prewrite(5), commit(5, 9), fake(12)])
    assert [e.meta.commitTs for e in pulled(store, 9)] == [12]
    store.close()


def test_raw_delivery_ends_in_the_promise(tmp_path):
    store = opened(tmp_path)
    store.write([prewrite(5), fake(12)])
    *_, last_record, promise = raw(store)
    assert (last_record.meta.startTs, promise.meta.startTs, promise.meta.commitTs) == (12, 4, 4)
    assert promise.pos == last_record.pos
    assert [e.meta.startTs for e in raw(store, Pointer(promise.pos.suffix, promise.pos.offset))] == [4]
    store.close()


def test_the_probe_is_accepted_and_forgotten(tmp_path):
    store = opened(tmp_path)
    service = PumpService(store, 7, "p")
    assert service.accept(7, [b""]) == [] and service.writes == 1
    with pytest.raises(ProtocolViolation, match="cluster ID are mismatch, 8 vs 7"):
        service.accept(8, [b""])
    store.close()
