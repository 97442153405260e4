"""A Pump's host vanishes without FIN or RST and is back: tails, readers and writers take a new connection instead of waiting for ever."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.discovery import discovery_of
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter, write_binlog
from pyspark_tidb_binlog.binlog_source.source.delivery import unfit
from pyspark_tidb_binlog.binlog_source.source.loss import LossPolicy
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_raw, read_sorted
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery, tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.eventually import eventually
from tests.support.fakes.scripted_pump import Asked, ScriptedPump, message
from tests.support.store_model import commit, prewrite

pytestmark = pytest.mark.grpc


class Network:
    """What lies between a Drainer and a Pump at ``address``."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.pump = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: list[tuple[socket.socket, socket.socket]] = []
        self.cut: set[socket.socket] = set()
        self.pause = 0.0
        """Seconds that each 64 KiB take."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.pump)
                self.open.append((near, far))
                for here, there in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=(here, there), daemon=True).start()

    def _relay(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                if here in self.cut:
                    return
                time.sleep(self.pause)
                there.sendall(data)

    def vanish(self) -> None:
        """Packets of the connections that are open get nowhere any more; new connections work."""
        for near, far in self.open:
            self.cut |= {near, far}

    def close(self) -> None:
        self.listener.close()
        for pair in self.open:
            for end in pair:
                end.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.source.tails.SILENT_SECONDS", 0.5)
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.source.span_read.SILENT_SECONDS", 0.5)


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[PumpServer]:
    config = PumpConfig("p1", "127.0.0.1:0", data_dir=str(tmp_path), cluster_id=7, fake_binlog_interval=0, stop_write_at_available_space="")
    made = PumpServer(config).start()
    made.service.store.write([prewrite(11), commit(11, 14), fake(20)])
    made.service.store.catch_up()
    yield made
    made.stop()


@pytest.fixture
def network(pump: PumpServer) -> Iterator[Network]:
    made = Network(pump.address)
    yield made
    made.close()


def promised(tails: Tails, start: BinlogOffset) -> int:
    views = tails.views(start)
    if not views:
        return 0
    steps = views["p1"].steps
    return (steps[-1].sorted_promise if steps else 0) or views["p1"].promise


def until(tails: Tails, start: BinlogOffset, upto: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if tails.wait(lambda: promised(tails, start) == upto, 0.2):
            return True
    return False


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_tail_notices(pump: PumpServer, network: Network, delivery: Delivery) -> None:
    tails, start = Tails(True), BinlogOffset(delivery, 10, 10, {})
    tails.follow({"p1": Endpoint("p1", network.address, 7)}, 10)
    assert until(tails, start, 20, 5)
    network.vanish()
    pump.service.store.write([prewrite(21), commit(21, 24)])
    assert until(tails, start, 24, 8)
    tails.stop()


def test_it_says_since_when_it_heard_nothing(pump: PumpServer, network: Network) -> None:
    tails, start = Tails(True), BinlogOffset(Delivery.RAW, 10, 10, {})
    tails.follow({"p1": Endpoint("p1", network.address, 7)}, 10)
    assert until(tails, start, 20, 5) and not tails.unreachable()
    network.vanish()
    network.listener.close()
    # ``until`` looks at the views, which is when a tail notices its silence
    eventually(
        lambda: not until(tails, start, 0, 0.2) and "last message at 20" in tails.unreachable().get("p1", ""), seen=tails.unreachable
    )
    tails.stop()


def test_a_pump_that_has_nothing_to_say_stays(pump: PumpServer, network: Network) -> None:
    tails, start = Tails(True), BinlogOffset(Delivery.RAW, 10, 10, {"p1": PumpMark(Position(0, 0))})
    tails.follow({"p1": Endpoint("p1", network.address, 7)}, 10)
    assert until(tails, start, 20, 5)
    assert not until(tails, start, 0, 1.5)
    pump.service.store.write([fake(30)])
    assert until(tails, start, 30, 5), "it was asked again, and nothing came of it"
    tails.stop()


def test_a_tail_of_a_real_pump_notices() -> None:
    stamps, over = [11, 20], threading.Event()

    def log(asked: Asked) -> Iterator[bytes]:
        yield from (message(2, ts, ts) for ts in stamps if ts > asked.offset)
        over.wait(20)

    with ScriptedPump(log) as real:
        between = Network(real.address)
        tails, start = Tails(True), BinlogOffset(Delivery.SORTED, 10, 10, {})
        tails.follow({"p1": Endpoint("p1", between.address, 7)}, 10)
        assert until(tails, start, 20, 5)
        between.vanish()
        stamps.append(30)
        assert until(tails, start, 30, 8)
        tails.stop()
        over.set()
        between.close()


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_reader_notices(pump: PumpServer, network: Network, delivery: Delivery) -> None:
    endpoint = Endpoint("p1", network.address, 7)
    end = Position(*pump.service.store.state.at)

    def read() -> list[int]:
        runs = (
            read_raw(endpoint, Position(0, 0), end, 0, ReadTerms(4.0, LossPolicy(fail=True).lost))
            if delivery is Delivery.RAW
            else read_sorted(endpoint, 10, 20, ReadTerms(4.0, LossPolicy(fail=True).lost))
        )
        return [ts for run in runs for ts in run.commit_ts.tolist()]

    before = read()
    assert before[-1] == 20
    network.vanish()
    assert read() == before


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_binlog_may_take_longer_than_a_pump_may_be_silent(pump: PumpServer, network: Network, delivery: Delivery) -> None:
    """It is delivered in pieces, and after a broken connection again from the first: it could never be read within a time for all of it."""
    value = binlog_pb2.PrewriteValue(schema_version=1)
    rows = value.mutations.add(table_id=1)
    for _ in range(12):
        rows.inserted_rows.append(bytes(1 << 20))
        rows.sequence.append(0)
    store = pump.service.store
    store.write([prewrite(21, value.SerializeToString()), commit(21, 24), fake(30)])
    end = store.catch_up().at
    network.pause = 0.006
    endpoint, terms = Endpoint("p1", network.address, 7), ReadTerms(60.0, LossPolicy(fail=True).lost)
    runs = (
        read_raw(endpoint, Position(0, 0), Position(*end), 0, terms) if delivery is Delivery.RAW else read_sorted(endpoint, 10, 30, terms)
    )
    assert sum(run.nbytes for run in runs) > 12 << 20


def test_a_message_that_takes_longer_is_waited_for_longer() -> None:
    """A real Pump sends a binlog of any size as one message."""
    asked: list[int] = []

    def log(request: Asked) -> Iterator[bytes]:
        asked.append(request.offset)
        time.sleep(1.5)
        yield message(2, 20, 20)

    with ScriptedPump(log) as real:
        runs = read_sorted(Endpoint("p1", real.address, 7), 10, 20, ReadTerms(60.0, LossPolicy(fail=True).lost))
        assert [ts for run in runs for ts in run.commit_ts.tolist()] == [20]
    assert len(asked) >= 3


def test_a_tail_waits_longer_too() -> None:
    def log(_: Asked) -> Iterator[bytes]:
        time.sleep(1.5)
        yield message(2, 20, 20)

    with ScriptedPump(log) as real:
        tails, start = Tails(True), BinlogOffset(Delivery.SORTED, 10, 10, {})
        tails.follow({"p1": Endpoint("p1", real.address, 7)}, 10)
        assert until(tails, start, 20, 30)
        tails.stop()


def test_a_writer_notices(pump: PumpServer, network: Network) -> None:
    with contextlib.closing(PumpWriter(network.address, 7, 1.0, "p1", tls=None)) as writer:
        writer.write(fake(30).payload)
        network.vanish()
        with pytest.raises(PumpUnavailable, match="Pump p1 at .* DEADLINE_EXCEEDED"):
            writer.write(fake(31).payload)
    write_binlog(network.address, 7, fake(32).payload, timeout=1.0, tls=None)


@pytest.mark.parametrize("real", [False, True])
def test_a_check_waits_for_a_connection_that_is_slow(monkeypatch: pytest.MonkeyPatch, pump: PumpServer, real: bool) -> None:
    """0.12 s one way: the first attempt to connect is given up."""
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.source.delivery._UNFIT_SECONDS", 30.0)
    with (
        ScriptedPump(lambda _: iter([b""])) as other,
        contextlib.closing(Network(other.address if real else pump.address)) as far,
    ):
        far.pause = 0.12
        config = SourceConfig(pumps=far.address, cluster_id=7)
        discovery = discovery_of(config)
        assert unfit(config, discovery, discovery.pumps(), 60) == {}
        newest = tso(time.time_ns() // 1_000_000)
        assert bool(other.asked) == real and all(pull.offset < newest for pull in other.asked), (
            "a Pump logs a WARN for what it does not have yet"
        )
