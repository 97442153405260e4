"""The store on real files: rotation, restart, torn tails, and a disk that fails."""

import errno
import itertools
import os
import re
import threading
import time

import pytest

from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage import store as store_module
from pyspark_tidb_binlog.binlog_source.pump.storage.env import RealFileSystem
from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer, encode_record
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_writer import WriteRequest
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, ConfigError, ProtocolViolation
from tests.support.eventually import eventually
from tests.support.fakes.faulty_files import Fault, FaultyFiles
from tests.support.store_model import commit, prewrite, pulled, raw, rollback, undisturbed

NEVER = threading.Event().is_set


def opened(path, size=1 << 29, **more):
    return Store(path, StoreSettings(max_file_size=size, sync=False), **more)


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
    store.close()
    file = tmp_path / "value" / "000000.vlog"
    file.write_bytes(file.read_bytes() + encode_record(prewrite(11).payload)[:-cut])
    store = opened(tmp_path)
    assert store.state.at == Pointer(0, end) and file.stat().st_size == end
    store.write([prewrite(12), commit(12, 14)])
    assert [e.meta.commitTs for e in pulled(store)] == [9, 14]
    store.close()


def test_one_process_per_directory(tmp_path):
    store = opened(tmp_path)
    with pytest.raises(ConfigError, match="another Pump uses it"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


class RefusingFiles(RealFileSystem):
    """The lock fails so."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def lock(self, path):
        raise OSError(self.number, os.strerror(self.number))


def test_a_data_directory_that_is_a_file_is_a_wrong_setting(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for name, why in ((file, "File exists"), (file / "below", "Not a directory")):
        with pytest.raises(ConfigError, match=f"data directory {name} cannot be used: {why}"):
            opened(name)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_data_directory_that_may_not_be_written_to_is_a_wrong_setting(tmp_path, number):
    with pytest.raises(ConfigError, match=f"data directory {tmp_path} cannot be used: {os.strerror(number)}"):
        opened(tmp_path, files=RefusingFiles(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fails_at_the_start_is_no_wrong_setting(tmp_path, number):
    """It may work at the next start, which systemd makes after every failure except one of the settings."""
    with pytest.raises(OSError, match=re.escape(str(tmp_path))) as failed:
        opened(tmp_path, files=RefusingFiles(number))
    assert failed.value.errno == number
    opened(tmp_path).close()


def test_a_position_past_the_end_is_refused(tmp_path):
    store = opened(tmp_path)
    with pytest.raises(ProtocolViolation, match="beyond the end"):
        next(PumpService(store, 0, "p").pull_raw(Pointer(0, 1), NEVER, undisturbed()))
    store.close()


def test_a_position_that_is_gone_is_refused(tmp_path):
    store = opened(tmp_path, size=1)
    store.write([fake(5)])
    store.close()
    (tmp_path / "value" / "000000.vlog").unlink()
    store = opened(tmp_path, size=1)
    store.write([fake(6)])
    with pytest.raises(BinlogPurged, match="0:5"):
        next(PumpService(store, 0, "p").pull_raw(Pointer(0, 5), NEVER, undisturbed()))
    store.close()


@pytest.fixture
def any_disk(monkeypatch):
    """Every disk is quick."""
    monkeypatch.setattr(store_module, "_QUICK", 60.0)


def alone(*records):
    return WriteRequest(records, pytest.fail)


def test_a_lonely_request_is_written_where_it_comes(tmp_path, any_disk):
    store = opened(tmp_path)
    threads = []
    request = alone(prewrite(5), commit(5, 9))
    assert store.write_now(request, lambda requests: threads.append((requests, threading.current_thread())))
    assert threads == [([request], threading.current_thread())] and request.error is None
    store.write([fake(11)])
    assert [e.meta.commitTs for e in pulled(store)] == [9, 11]
    store.close()
    store = opened(tmp_path)
    assert [e.meta.commitTs for e in pulled(store)] == [9, 11]
    store.close()


def test_what_is_written_at_once_is_visible_even_if_the_answer_fails(tmp_path, any_disk):
    store = opened(tmp_path)

    def fail(requests):
        raise RuntimeError("the client is gone")

    with pytest.raises(RuntimeError, match="the client is gone"):
        store.write_now(alone(fake(5)), fail)
    assert [e.meta.commitTs for e in pulled(store)] == [5]
    assert store.write_now(alone(fake(6)), lambda requests: None), "the log is free again"
    store.close()


def test_a_request_is_not_written_at_once_where_that_could_wait(tmp_path):
    files = SlowSync()
    store = Store(tmp_path, StoreSettings(), files=files)
    seen = []
    assert not store.write_now(alone(prewrite(1, b"v" * (1 << 20))), seen.append), "large"
    files.seconds = 0.05
    store.write([fake(5)])
    assert not store.write_now(alone(fake(6)), seen.append), "the disk was slow"
    files.seconds = 0.0
    ts = itertools.count(10)

    def once_more():
        store.write([fake(next(ts))])
        return store.write_now(alone(fake(next(ts))), lambda requests: None)

    eventually(once_more, what="the disk has been quick for long", pause=0.0)
    assert next(ts) > 200
    assert not seen
    store.close()


def test_a_request_is_not_written_at_once_while_another_is(tmp_path, any_disk):
    files = SlowSync()
    store = Store(tmp_path, StoreSettings(), files=files)
    files.goes_on.clear()
    other = threading.Thread(target=store.write, args=([fake(5)],))
    other.start()
    assert files.syncs.wait(10)
    assert not store.write_now(alone(fake(6)), pytest.fail)
    files.goes_on.set()
    other.join()
    store.close()


def test_a_lonely_request_on_a_full_disk_is_refused(tmp_path, any_disk):
    files = FaultyFiles()
    store = Store(tmp_path, StoreSettings(), files=files)
    files.refuse = {"append": Fault.TORN}
    request = alone(fake(5))
    assert store.write_now(request, lambda requests: None)
    assert request.error is not None
    files.refuse = {}
    assert store.write_now(alone(fake(6)), lambda requests: None)
    assert [e.meta.commitTs for e in pulled(store)] == [6]
    store.close()


class SlowSync(RealFileSystem):
    """Each sync of a file waits for ``goes_on``, and takes ``seconds`` more."""

    def __init__(self):
        super().__init__()
        self.goes_on, self.syncs = threading.Event(), threading.Event()
        self.goes_on.set()
        self.seconds = 0.0

    def open_append(self, path):
        file = super().open_append(path)

        def sync():
            self.syncs.set()
            assert self.goes_on.wait(10)
            time.sleep(self.seconds)

        file.sync = sync
        return file


def test_a_full_disk_refuses_and_recovers(tmp_path):
    files = FaultyFiles()
    store = Store(tmp_path, StoreSettings(max_file_size=1 << 20), files=files)
    store.write([fake(5)])
    files.refuse = {"append": Fault.TORN}
    with pytest.raises(OSError, match="No space left"):
        store.write([fake(6)])
    files.refuse = {}
    store.write([fake(7)])
    assert [e.meta.commitTs for e in pulled(store)] == [5, 7]
    store.close()
    store = opened(tmp_path)
    assert [e.meta.commitTs for e in pulled(store)] == [5, 7]
    store.close()


def test_after_a_failed_sync_nothing_is_acknowledged_any_more(tmp_path):
    files = FaultyFiles()
    store = Store(tmp_path, StoreSettings(max_file_size=1 << 20), files=files)
    files.refuse = {"sync": Fault.EIO}
    with pytest.raises(OSError, match="Input/output"):
        store.write([fake(5)])
    files.refuse = {}
    with pytest.raises(OSError, match="restart the Pump"):
        store.write([fake(6)])
    store.close()


def test_waiting_writers_share_one_sync(tmp_path):
    syncing, queued = threading.Event(), threading.Event()

    class Waiting(FaultyFiles):
        """The first sync of a file waits until the other writers queue."""

        def passes(self, name, half=b"", file=None):
            """See ``FaultyFiles``."""
            super().passes(name, half, file)
            if name == "sync":
                syncing.set()
                assert queued.wait(10)

    files = Waiting()
    store = Store(tmp_path, StoreSettings(max_file_size=1 << 20), files=files)
    writers = [threading.Thread(target=store.write, args=([fake(n)],)) for n in range(1, 12)]
    writers[0].start()
    assert syncing.wait(10)
    for writer in writers[1:]:
        writer.start()
    eventually(lambda: store._queue.qsize() >= 10, seen=store._queue.qsize)
    queued.set()
    for writer in writers:
        writer.join()
    assert files.operations.count("sync") == 2
    assert len(pulled(store)) == 11
    store.close()


def test_a_group_that_crosses_into_a_next_file_is_refused_whole(tmp_path):
    """What of it was durable before the disk was full stays and is served: an unanswered write may be there."""
    files = FaultyFiles()
    store = Store(tmp_path, StoreSettings(max_file_size=1), files=files)
    files.refuse = {"open_append": Fault.ENOSPC}
    with pytest.raises(OSError, match="No space left"):
        store.write([fake(5), fake(6)])
    files.refuse = {}
    store.write([fake(6)])
    assert [e.meta.commitTs for e in raw(store)[:-1]] == [5, 6]
    store.close()


def test_a_negative_ts_stops_nothing(tmp_path):
    """int64 on the wire: no client may stop the Pump with it, now or at the next open."""
    store = opened(tmp_path)
    store.write([prewrite(-5), fake(-3), fake(7)])
    store.catch_up()
    store.close()
    store = opened(tmp_path)
    store.write([rollback(-5), fake(9)])
    assert [e.meta.commitTs for e in pulled(store)] == [7, 9]
    store.close()


def test_closing_twice_is_closing_once(tmp_path):
    store = opened(tmp_path)
    store.close()
    other = opened(tmp_path)
    store.close()
    other.write([fake(5)])
    other.catch_up()
    assert [e.meta.commitTs for e in pulled(other)] == [5], "the second close let go of nothing that is another's"
    other.close()


@pytest.mark.shows("wire gotcha 3")
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
