"""The Pump over real gRPC: deliveries, metadata, wake-up, kill -9 under writers, rehearsal of recorded cases."""

import contextlib
import dataclasses
import errno
import re
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import psutil
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump import handlers
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage import store
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter
from pyspark_tidb_binlog.binlog_source.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, literal
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.jobs.lab.emulator import rehearsal
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2
from tests.support.binlogs import payload
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.pump_pulls import BATCH, CLUSTER, RAW, TIP, Pull, config, iter_until

pytestmark = pytest.mark.grpc


@pytest.fixture
def pump(tmp_path):
    pump = PumpServer(config(tmp_path)).start()
    yield pump
    pump.stop()


def test_metadata_is_echoed(pump):
    with Pull(pump.address, RAW + BATCH) as pull:
        echoed = dict(pull.call.initial_metadata())
    assert echoed["tidb-binlog-delivery"] == "raw" and echoed["tidb-binlog-batch"] == "1"
    assert echoed["tidb-binlog-pump"] == "pump-1" and echoed["tidb-binlog-gc-ts"] == "0"
    with Pull(pump.address) as pull:
        echoed = dict(pull.call.initial_metadata())
    assert echoed["tidb-binlog-delivery"] == "sorted" and "tidb-binlog-batch" not in echoed


@pytest.mark.parametrize("delivery", [(), BATCH])
def test_waiting_pulls_hear_of_news_at_once(pump, delivery):
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    with Pull(pump.address, delivery) as complete, Pull(pump.address, RAW + delivery) as bare, Pull(pump.address, TIP + delivery) as tip:
        assert bare.take(1)[0].meta.commitTs == 0
        assert tip.take(1)[0].pos.offset == 0
        writer.write(payload(0, 10, prewrite_key=b"k", prewrite_value=b"v"))
        writer.write(payload(1, 10, 15, prewrite_key=b"k"))
        entity = complete.take(1)[0]
        binlog = binlog_pb2.Binlog.FromString(entity.payload)
        assert (binlog.tp, binlog.commit_ts, binlog.prewrite_value, entity.meta.commitTs) == (1, 15, b"v", 15)
        entities = list(iter_until(bare, lambda e: e.meta.commitTs == e.meta.startTs == 15))
        assert [e.payload[1] for e in entities if e.meta.startTs == 10] == [0, 1]
        *_, last = iter_until(tip, lambda e: e.meta.startTs == 15)
        assert last.meta.commitTs == 15 and last.pos == entities[-1].pos
        assert binlog_pb2.Binlog.FromString(last.payload).commit_ts == 15, "a fake of the largest ts before it"
    writer.close()


def test_lonely_calls_are_written_on_the_loop_and_others_in_groups(pump, monkeypatch):
    monkeypatch.setattr(store, "_QUICK", 60.0)
    written, write_now = [], pump.service.store.write_now
    monkeypatch.setattr(pump.service.store, "write_now", lambda *what: written.append(write_now(*what)) or written[-1])
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    for ts in range(1, 41):
        writer.write(payload(2, ts, ts))
    assert sum(written) >= 20, "the first ones go to the writer's thread"
    calls = [writer.start(payload(2, ts, ts)) for ts in range(41, 141)]
    for call in calls:
        call.result()
    with Pull(pump.address) as pull:
        assert [entity.meta.commitTs for entity in pull.take(140)] == list(range(1, 141))
    writer.close()


@pytest.mark.shows("WriteBinlog", "wire gotcha 4")
def test_errors_are_a_real_pumps(pump):
    writer = PumpWriter(pump.address, 8, tls=None)
    with pytest.raises(PumpUnavailable, match=f"UNKNOWN cluster ID are mismatch, 8 vs {CLUSTER}"):
        writer.write(payload(0, 5))
    with pytest.raises(PumpUnavailable, match="UNKNOWN cluster ID are mismatch"):
        writer.start_many([payload(0, 5)]).result()
    writer.close()
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    with pytest.raises(PumpUnavailable, match="UNKNOWN unexpected EOF"):
        writer.write(b"\x0a\x99")
    writer.write(b"")
    writer.close()
    with Pull(pump.address, cluster=8) as pull, pytest.raises(grpc.RpcError, match="cluster ID are mismatch, 8"):
        pull.take(1)
    with Pull(pump.address, RAW, offset=99) as pull, pytest.raises(grpc.RpcError, match="beyond the end of its log"):
        pull.take(1)


def test_stop_ends_pulls_cleanly(tmp_path):
    pump = PumpServer(config(tmp_path)).start()
    with Pull(pump.address, RAW) as pull:
        pull.take(1)
        pump.stop()
        assert list(pull) == []
        assert pull.call.code() == grpc.StatusCode.OK


@pytest.mark.shows("pump spark.registry", "pump gen-binlog-interval", "pump heartbeat-interval")
def test_an_idle_pump_writes_fakes_and_registers(tmp_path):
    service = ClusterService(Oracle(), CLUSTER).start()
    registry = RegistryClient(service.url)
    before = registry.tso()
    started = config(tmp_path, cluster_id=0, registry=service.url, fake_binlog_interval=0.02, heartbeat_interval=0.02)
    pump = PumpServer(started).start()
    with Pull(pump.address) as pull:
        fakes = pull.take(3)
    assert all(e.payload[1] == 2 and e.meta.startTs == e.meta.commitTs > before for e in fakes)
    eventually(lambda: registry.listing(PUMPS).nodes[0].max_commit_ts >= fakes[-1].meta.commitTs)
    (status,) = registry.listing(PUMPS).nodes
    assert (status.node_id, status.host, status.state) == ("pump-1", pump.address, NodeState.ONLINE)
    pump.stop()
    assert registry.listing(PUMPS).nodes[0].state is NodeState.PAUSED
    registry.close()
    service.stop()


@pytest.mark.shows("pump addr")
def test_a_taken_port_is_told(pump, tmp_path):
    with pytest.raises(ConfigError, match="cannot listen"):
        PumpServer(config(tmp_path / "other", addr=pump.address)).start()


@pytest.mark.shows("pump storage.sync-log")
@pytest.mark.parametrize("writers", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_kill_nine_under_writers_loses_nothing_acknowledged(tmp_path, writers):
    process = PumpProcess(config(tmp_path)).start()
    address = process.address
    acknowledged = []
    for life in range(3):
        killed = threading.Event()
        threads = [
            threading.Thread(target=write_until_gone, args=(address, 1 + life * 100_000 + n * 10_000, acknowledged, killed))
            for n in range(writers)
        ]
        goal = len(acknowledged) + 150
        for thread in threads:
            thread.start()
        eventually(lambda goal=goal: len(acknowledged) >= goal, seen=lambda: len(acknowledged), pause=0.005)
        process.kill()
        killed.set()
        for thread in threads:
            thread.join()
        process.start()
        assert process.address == address
    with Pull(address, RAW + BATCH) as pull:
        there = Counter(e.meta.startTs for e in iter_until(pull, lambda e: e.payload[1] == 2))
    process.stop()
    assert set(acknowledged) <= set(there)


def write_until_gone(address, first, acknowledged, killed):
    writer = PumpWriter(address, CLUSTER, tls=None)
    start_ts = first
    while not killed.is_set():
        start_ts += 1
        try:
            writer.write(payload(0, start_ts, prewrite_value=b"x" * 100))
        except PumpUnavailable:
            break
        acknowledged.append(start_ts)
    writer.close()


def test_a_server_that_cannot_start_says_why(tmp_path):
    process = PumpProcess(dataclasses.replace(config(tmp_path), data_dir="/dev/null/no"))
    with pytest.raises(PumpUnavailable, match="pump-1 did not start"):
        process.start()
    assert not process.running


@pytest.mark.shows("wire gotcha 2")
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, id=f"{name}-{seed}", marks=() if place % 2 == number else pytest.mark.slow)
        for place, name in enumerate(("types", "keys", "ddl", "txn", "beyond_mysql", "bank", "online"))
        for number, seed in enumerate((None, 1))
    ],
)
def test_a_recorded_case_comes_out_as_it_was(tmp_path, name, seed):
    case = load(GOLDEN / name)
    pumps = [PumpServer(config(tmp_path / f"p{n}", node_id=f"p{n}", cluster_id=case.cluster_id, sync_log=False)).start() for n in (1, 2)]
    logs = rehearsal.schedule(case, move_back_seed=seed)
    *_, last = rehearsal.feed(case, [p.address for p in pumps], logs=logs)
    assert last.written == last.total and last.ts > case.end_ts
    for pump, recorded in zip(pumps, case.pumps, strict=True):
        with Pull(pump.address, BATCH, cluster=case.cluster_id) as pull:
            got = [e.payload for e in iter_until(pull, lambda e: e.meta.commitTs > case.end_ts)]
        want = [p for p in recorded if binlog_pb2.Binlog.FromString(p).commit_ts <= rehearsed_upto(got)]
        assert got[: len(want)] == want and len(got) - len(want) in (0, 1)
        pump.stop()


def rehearsed_upto(got):
    return binlog_pb2.Binlog.FromString(got[-1]).commit_ts


def test_pace_follows_the_recorded_clock(pump):
    start = 470604699283750912
    payloads = tuple(payload(2, ts, ts) for ts in (start, start + (100 << 18), start + (250 << 18)))
    case = RecordedCase(Path(), CLUSTER, start, start + (200 << 18), (), (), (payloads,))
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    progress = [(p.written, now[0]) for p in rehearsal.feed(case, [pump.address], pace=2, sleep=sleep, clock=lambda: now[0])]
    assert [written for written, _ in progress] == [1, 2, 3]
    assert [round(at, 1) for _, at in progress] == [0.0, 0.2, 0.5]


def test_a_huge_binlog_comes_in_pieces_to_who_asks_for_them(pump):
    rows = [bytes([n]) * 900 for n in range(100)]
    value = binlog_pb2.PrewriteValue(schema_version=3)
    value.mutations.add(table_id=9, inserted_rows=rows, sequence=[0] * len(rows))
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    for binlog in (payload(0, 10, prewrite_key=b"k", prewrite_value=value.SerializeToString()), payload(1, 10, 20), payload(2, 30, 30)):
        writer.write(binlog)
    writer.close()
    with Pull(pump.address, BATCH + (("tidb-binlog-piece", "10000"),)) as pull, Pull(pump.address, BATCH) as whole_pull:
        *pieces, fake = pull.take(11)
        whole, _ = whole_pull.take(2)
    assert (fake.meta.commitTs, [p.more for p in pieces]) == (30, [True] * 9 + [False])
    assert {(p.meta.startTs, p.meta.commitTs) for p in pieces} == {(10, 20)} == {(whole.meta.startTs, whole.meta.commitTs)}
    assert max(len(p.payload) for p in pieces) < 11_000 < len(whole.payload)
    found = []
    for piece in pieces:
        binlog = binlog_pb2.Binlog.FromString(piece.payload)
        assert (binlog.tp, binlog.start_ts, binlog.commit_ts) == (1, 10, 20) and piece.first_seq == len(found)
        (mutation,) = binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value).mutations
        found += mutation.inserted_rows
    assert found == rows


def frames_of_pulls(count, delivery):
    """What a client of bare HTTP/2 says that begins so many pulls from the beginning."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/binlog.Pump/PullBinlogs"), (b"tidb-binlog-delivery", delivery)]
    request = pump_pb2.PullBinlogReq(clusterID=CLUSTER, startFrom=pump_pb2.Pos()).SerializeToString()
    body = struct.pack(">BI", 0, len(request)) + request
    pulls = (frame(HEADERS, END_HEADERS, n, literal(fields)) + frame(DATA, END_STREAM, n, body) for n in range(1, 2 * count, 2))
    return PREFACE + frame(SETTINGS, 0, 0, b"") + b"".join(pulls)


def huge_binlog(pump, ts, size):
    with contextlib.closing(PumpWriter(pump.address, CLUSTER, tls=None)) as writer:
        writer.write(payload(0, ts, prewrite_key=b"k", prewrite_value=b"v" * size))
        writer.write(payload(1, ts, ts + 1, prewrite_key=b"k"))


def most_memory(pump):
    """Bytes that the process needed at most."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pump.pid}/status").read_text())[1]) << 10


@pytest.mark.parametrize("delivery", [b"sorted", b"raw"])
def test_many_pulls_that_nobody_reads_hold_few_huge_binlogs(tmp_path, delivery):
    size = 20 << 20
    with PumpProcess(config(tmp_path)) as pump:
        huge_binlog(pump, 10, size)
        Path(f"/proc/{pump.pid}/clear_refs").write_text("5")  # what it needed for writing is forgotten
        before = most_memory(pump)
        with socket.create_connection(pump.address.split(":")) as silent:
            silent.sendall(frames_of_pulls(16, delivery))
            time.sleep(2)
            assert most_memory(pump) < before + 14 * size, "three of the sixteen are held at a time"
        with Pull(pump.address) as pull:
            assert [entity.meta.commitTs for entity in pull.take(1)] == [11]
        eventually(lambda: psutil.Process(pump.pid).memory_info().rss < before + 2 * size)


def test_pulls_that_hold_huge_binlogs_and_read_nothing_stop_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(handlers, "STALL", 0.5)
    pump = PumpServer(config(tmp_path)).start()
    try:
        huge_binlog(pump, 10, 40 << 20)
        with socket.create_connection(pump.address.split(":")) as silent:
            silent.sendall(frames_of_pulls(3, b"sorted"))
            time.sleep(0.5)
            with Pull(pump.address) as pull:
                assert [entity.meta.commitTs for entity in pull.take(1)] == [11]
    finally:
        pump.stop()


@pytest.mark.parametrize("left", ["", "\n", "\0" * 12], ids=["nothing", "blank", "zeros"])
@pytest.mark.parametrize("configured", ["", "pump-9"])
def test_an_empty_node_file_is_as_none(tmp_path, caplog, left, configured):
    """What a crash or a full disk leaves between a file's creation and its content."""
    node = tmp_path / ".node"
    node.write_text(left)
    pump = PumpServer(config(tmp_path, node_id=configured)).start()
    try:
        made = f"{socket.gethostname()}:{pump.address.partition(':')[2]}"
        assert pump.node_id == (configured or made)
        assert f"{node} is ignored, because the file is empty" in caplog.text
        assert node.read_text() == (left if configured else made)
    finally:
        pump.stop()


@pytest.mark.shows("pump node-id")
def test_the_node_file_wins_over_the_setting(tmp_path, caplog):
    (tmp_path / ".node").write_text("pump-7\n")
    pump = PumpServer(config(tmp_path, node_id="pump-9")).start()
    try:
        assert pump.node_id == "pump-7" and "node-id pump-9 is ignored, because" in caplog.text
    finally:
        pump.stop()


def test_a_data_dir_is_of_one_cluster(tmp_path):
    """Another one's readers would take its binlogs for theirs."""
    PumpServer(config(tmp_path)).start().stop()
    file = tmp_path / ".cluster"
    assert file.read_text() == str(CLUSTER) and file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(
        ConfigError, match=rf"data directory {tmp_path} has the binlogs of cluster {CLUSTER} .*name cluster {CLUSTER}, .*of its own"
    ):
        PumpServer(config(tmp_path, cluster_id=CLUSTER + 1)).start()
    PumpServer(config(tmp_path)).start().stop()
    file.unlink()
    PumpServer(config(tmp_path, cluster_id=CLUSTER + 1)).start().stop()
    assert file.read_text() == str(CLUSTER + 1), "one that does not say is a real Pump's"


def test_a_second_pump_of_the_same_node_id_is_refused(tmp_path):
    """As on a copy of a machine. A Pump that died, or has moved, is not its own twin."""
    service = ClusterService(Oracle(), CLUSTER).start()

    def one(directory, **more):
        return PumpServer(config(tmp_path / directory, registry=service.url, **more))

    first, other = one("a").start(), one("b", node_id="other").start()
    try:
        with pytest.raises(ConfigError, match=f"Pump pump-1 already runs at {first.address}, and this Pump at .* has the same node id"):
            one("c").start()
        with contextlib.closing(RegistryClient(service.url)) as registry:
            (status,) = [node for node in registry.listing(PUMPS).nodes if node.node_id == "pump-1"]
            assert (status.host, status.state) == (first.address, NodeState.ONLINE), "and nothing was registered"
            first.stop()
            for left_behind in (first.address, other.address):
                registry.put_status(PUMPS, dataclasses.replace(status, host=left_behind))
                one("c").start().stop()
    finally:
        for made in (first, other):
            made.stop()
        service.stop()


def test_a_full_disk_keeps_no_pump_from_starting_that_has_no_cluster_file_yet(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.pump.data_dir.replace_file", full)
    PumpServer(config(tmp_path)).start().stop()
    assert f"{tmp_path / '.cluster'} cannot be written" in caplog.text
