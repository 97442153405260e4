"""The value log's files: what is written is what a second parser reads, a real Pump's directory is taken over, odd directories and full disks."""

import contextlib
import errno
import gc
import gzip
import os
import resource
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.env import RealFileSystem
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer, encode_footer, encode_record, file_id_of, file_name
from pyspark_tidb_binlog.binlog_source.pump.storage.record import canonical, fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog import ValueLog
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_writer import FINISH_FROM
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import delimited
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, Corruption
from tests.support import vlog_parser
from tests.support.fakes.faulty_files import Fault, FaultyFiles, flip
from tests.support.store_model import commit, prewrite, pulled, raw, rollback

GOLDEN = Path(__file__).parents[2] / "golden" / "pump_dir"
TS = 470604668048769025


def opened(path, size=1 << 29, **more):
    return contextlib.closing(Store(path, StoreSettings(max_file_size=size, sync=False), **more))


def parsed(path):
    """Payloads and footer of each file, by the second parser."""
    return [vlog_parser.parse(file.read_bytes()) for file in sorted((path / "value").iterdir())]


def test_crc32c_of_its_check_value():
    assert vlog_parser.crc32c(b"123456789") == 0xE3069283


def test_what_is_written_is_what_a_second_parser_reads(tmp_path):
    records = [
        record
        for n in range(20)
        for record in (
            prewrite(TS + 10 * n, b"v" * n),
            commit(TS + 10 * n, TS + 10 * n + 2),
            fake(TS + 10 * n + 5),
            prewrite(TS + 10 * n + 6),
            rollback(TS + 10 * n + 6),
        )
    ]
    with opened(tmp_path, size=1000) as store:
        for record in records:
            store.write([record])
    files = parsed(tmp_path)
    assert len(files) > 3
    assert [payload for payloads, _ in files for payload in payloads] == [record.payload for record in records]
    *finished, active = files
    assert active[1] is None
    for payloads, max_ts in finished:
        assert max_ts == max(record.ts for record in map(canonical, payloads))


def test_the_footer_of_a_real_pump(tmp_path):
    with opened(tmp_path, size=1) as store:
        store.write([fake(TS)])
        assert (tmp_path / "value" / "000000.vlog").read_bytes()[-12:] == bytes.fromhex("0100b0c473ec870622b93a12")


def test_the_directory_of_a_real_pump_is_taken_over(tmp_path):
    """Its log is served as that Pump did and written on; its own index is left as it is."""
    (tmp_path / "value").mkdir()
    first, second = tmp_path / "value" / "000000.vlog", tmp_path / "value" / "000001.vlog"
    first.write_bytes(gzip.decompress((GOLDEN / "000000.vlog.gz").read_bytes()))
    before = first.read_bytes()
    kv = {"CURRENT": b"MANIFEST-000000\n", "MANIFEST-000000": b"\x01\x02", "000001.log": b"\x03"}
    (tmp_path / "kv").mkdir()
    for name, data in kv.items():
        (tmp_path / "kv" / name).write_bytes(data)
    served = list(delimited(gzip.decompress((GOLDEN / "pulled.binlogs.gz").read_bytes()), "golden"))
    ts = canonical(served[-1]).commit_ts + 10
    more = [prewrite(ts), commit(ts, ts + 1)]
    with opened(tmp_path) as store:
        assert [entity.payload for entity in pulled(store)] == served
        store.write(more)
        assert [entity.meta.commitTs for entity in pulled(store)][len(served) :] == [ts + 1]
    assert first.read_bytes() == before
    assert {file.name: file.read_bytes() for file in (tmp_path / "kv").iterdir()} == kv
    (old, footer_ts), (new, unfinished) = parsed(tmp_path)
    assert len(old) > 2 * 1567 and footer_ts == max(record.ts for record in map(canonical, old))
    assert new == [record.payload for record in more] and unfinished is None
    assert second.read_bytes()[:4] == bytes.fromhex("e8563a82")


@pytest.mark.parametrize(("size", "finished"), [(FINISH_FROM - 1000, False), (FINISH_FROM + 1000, True)])
def test_a_clean_close_finishes_a_big_file_only(tmp_path, size, finished):
    with opened(tmp_path) as store:
        store.write([prewrite(5, b"v" * size)])
    ((_, max_ts),) = parsed(tmp_path)
    assert max_ts == (5 if finished else None)
    with opened(tmp_path) as store:
        store.write([fake(9)])
    assert len(parsed(tmp_path)) == (2 if finished else 1)


@pytest.mark.parametrize("lost_before", [None, 1, 2])
def test_the_largest_ts_of_an_unfinished_file_outlives_restarts(tmp_path, lost_before):
    """Also when recovery starts behind the record that has it, and when the index is gone."""
    for life, records in enumerate(([fake(1000)], [prewrite(5), rollback(5), fake(7)], [fake(900)])):
        if life == lost_before:
            (tmp_path / "index").rename(tmp_path / "lost")
        settings = StoreSettings(max_file_size=1 if life == 2 else 1 << 20, sync=False, span=30)
        with contextlib.closing(Store(tmp_path, settings)) as store:
            for record in records:
                store.write([record])
    assert parsed(tmp_path)[0][1] == 1000


@pytest.mark.parametrize("name", ["0000001.vlog", "1.vlog", "000001.vlog.tmp"])
def test_a_name_that_is_not_ours_is_left_alone(tmp_path, name):
    assert file_id_of(name) is None
    (tmp_path / "value").mkdir()
    (tmp_path / "value" / name).write_bytes(b"?")
    with opened(tmp_path) as store:
        store.write([fake(5)])
        assert store.catch_up().at.file_id == 0


def test_new_directories_are_durable(tmp_path):
    synced = []

    class Noting(RealFileSystem):
        """Notes which directories are synced."""

        def open_dir(self, path):
            """See ``FileSystem``."""
            synced.append(path)
            return super().open_dir(path)

    Noting().make_dir(tmp_path / "a" / "b")
    Noting().make_dir(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_records_that_lie_near_each_other_share_reads(tmp_path):
    payloads = [prewrite(TS + n, bytes([n % 251]) * (n * 37 % 9000)).payload for n in range(300)]
    log = ValueLog(tmp_path, RealFileSystem(), 400_000, sync=False)
    assert not list(log.recover(BEGINNING))
    places = []
    while len(places) < len(payloads):
        places += log.append([canonical(p) for p in payloads[len(places) :]])
    assert len(log.ids) > 2
    reads = []
    block, whole = log.block, log.read
    log.block = lambda *which: reads.append(which) or block(*which)
    log.read = lambda *which: reads.append(which) or whole(*which)
    for order in (1, -1):
        reads.clear()
        reader = log.nearby()
        found = [reader.read(at, 16 + len(p)) for at, p in zip(places[::order], payloads[::order], strict=True)]
        assert found == payloads[::order] and len(reads) < len(payloads) / 2
    log.close()


def test_a_nearby_record_is_judged_by_itself(tmp_path):
    log = ValueLog(tmp_path, RealFileSystem(), 1 << 29, sync=False)
    assert not list(log.recover(BEGINNING))
    first, second = fake(5), prewrite(7, b"v" * 50)
    (at,) = log.append([first])
    reader = log.nearby()
    assert reader.read(at, 16 + len(first.payload)) == first.payload
    (grown,) = log.append([second])
    assert reader.read(grown, 16 + len(second.payload)) == second.payload, "it was written after its block was read"
    flip(tmp_path / "000000.vlog", grown.offset + 20)
    assert log.nearby().read(at, 16 + len(first.payload)) == first.payload
    with pytest.raises(Corruption, match="checksum"):
        log.nearby().read(grown, 16 + len(second.payload))
    log.close()


def test_a_reader_goes_on_in_a_file_that_is_dropped(tmp_path):
    log = ValueLog(tmp_path, RealFileSystem(), 200, sync=False)
    list(log.recover(BEGINNING))
    records = [fake(n) for n in range(1, 40)]
    while records:
        records = records[len(log.append(records)) :]
    reader = log.scan(BEGINNING, log.end, piece_size=50)
    seen = [fake_ts(payload) for payload in next(reader).payloads]
    assert log.drop(log.kept(1000, log.end.file_id)) == list(range(log.end.file_id))
    assert len(list(tmp_path.iterdir())) == 1
    seen += [fake_ts(payload) for piece in reader for payload in piece.payloads]
    assert seen == list(range(1, 40))
    log.close()


def fake_ts(payload):
    return canonical(payload).commit_ts


def test_a_reader_that_comes_back_too_late_is_told(tmp_path):
    with opened(tmp_path, size=1) as store:
        for ts in range(1, 10):
            store.write([fake(ts)])
        end = store.catch_up().at
        assert store.collect(8, 0)
        with pytest.raises(BinlogPurged, match="0:10 has been collected; the oldest one kept is 8:0"):
            store.scan(Pointer(0, 10), end)
        assert len(list(store.scan(BEGINNING, end))) == 1


def test_a_full_disk_at_close_is_no_reason_to_hold_the_directory(tmp_path):
    files = FaultyFiles()
    store = Store(tmp_path, StoreSettings(sync=False), files=files)
    store.write([prewrite(5, b"v" * FINISH_FROM)])
    files.refuse = {"append": Fault.TORN}
    store.close()
    with opened(tmp_path) as store:
        assert [entity.meta.startTs for entity in raw(store)[:-1]] == [5]


def test_a_store_that_cannot_open_lets_go_of_its_directory(tmp_path):
    files = FaultyFiles(at=2, fault=Fault.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        Store(tmp_path, StoreSettings(), files=files)
    with opened(tmp_path) as store:
        store.write([fake(5)])


def test_a_log_may_have_more_files_than_a_shell_gives_descriptors(tmp_path):
    (tmp_path / "value").mkdir()
    for number in range(200):
        (tmp_path / "value" / file_name(number)).write_bytes(encode_record(fake(number + 1).payload) + encode_footer(number + 1))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests have left would be closed, and its descriptors be free, in between
    in_use = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 60, before[1]))
    try:
        with opened(tmp_path) as store:
            assert store.state.sorted_promise == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def descriptors(count):
    """As though everybody else had taken all descriptors but ``count``."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(map(int, os.listdir("/proc/self/fd")))
    with contextlib.ExitStack() as taken:
        fillers = [taken.enter_context(open(os.devnull))]  # noqa: SIM115 (all are closed by the stack)
        while fillers[-1].fileno() < in_use:
            fillers.append(taken.enter_context(open(os.devnull)))  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1].fileno() + 1 + count, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("left", range(5))
def test_a_log_goes_on_when_there_are_descriptors_again(tmp_path, left):
    """Whatever could not be opened at a rotation: nothing was asked of the disk yet, so that nothing is unknown."""
    with opened(tmp_path, size=100) as store:
        written = []
        with descriptors(left):
            for ts in range(1, 90):
                try:
                    store.write([fake(ts)])
                    written.append(ts)
                except OSError as error:
                    assert "restart the Pump" not in str(error)
                    assert error.__cause__.errno == errno.EMFILE
        assert 0 < len(written) < 89
        store.write([fake(100)])
        assert [entity.meta.commitTs for entity in pulled(store)] == [*written, 100]
    with opened(tmp_path, size=100) as store:
        assert [entity.meta.commitTs for entity in pulled(store)] == [*written, 100]


def test_what_cannot_be_made_durable_is_not_removed(tmp_path):
    with opened(tmp_path, size=1) as store:
        for ts in range(1, 10):
            store.write([fake(ts)])
        store.catch_up()
        with descriptors(0), pytest.raises(OSError, match="Too many open files"):
            store.collect(8, 0)
        assert (tmp_path / "value" / file_name(0)).exists()
