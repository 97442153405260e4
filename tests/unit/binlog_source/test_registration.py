"""What a node registers: the address that others can reach, its states, its entry; and a task that goes on after a failure."""

import threading

import pytest

from pyspark_tidb_binlog.binlog_source.cluster import registration
from pyspark_tidb_binlog.binlog_source.cluster.node_tasks import PeriodicTask
from pyspark_tidb_binlog.binlog_source.cluster.registration import Registration, advertised, last_state
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.pump import server
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from tests.support.drainer_nodes import node_at
from tests.support.fakes.registry import FakeRegistry

HERE, ELSEWHERE = "http://127.0.0.1:2379", "http://192.0.2.7:2379"


@pytest.fixture(autouse=True)
def route(monkeypatch):
    monkeypatch.setattr(registration, "_on_the_way_to", lambda host, port: {"192.0.2.7": "192.0.2.1", "127.0.0.1": "127.0.0.1"}[host])


@pytest.mark.shows("advertise-addr", "pump advertise-addr")
@pytest.mark.parametrize(
    ("addr", "advertise_addr", "registry", "want"),
    [
        ("127.0.0.1:0", "", HERE, "127.0.0.1:8250"),
        ("localhost:8250", "", "http://localhost:2379", "localhost:8250"),
        ("192.0.2.1:8250", "", ELSEWHERE, "192.0.2.1:8250"),
        ("0.0.0.0:8250", "192.0.2.1:9999", ELSEWHERE, "192.0.2.1:9999"),
        ("0.0.0.0:8250", "pump-1.no.such.name.invalid:8250", ELSEWHERE, "pump-1.no.such.name.invalid:8250"),
        ("[::]:8250", "[2001:db8::1]:8250", ELSEWHERE, "[2001:db8::1]:8250"),
        ("127.0.0.1:8250", "", f"{HERE},http://localhost:2380", "127.0.0.1:8250"),
    ],
)
def test_what_others_can_reach(addr, advertise_addr, registry, want):
    assert advertised(addr, advertise_addr, 8250, registry) == want


@pytest.mark.shows("advertise-addr", "pump advertise-addr")
@pytest.mark.parametrize(
    ("addr", "advertise_addr", "registry"),
    [
        ("127.0.0.1:8250", "", ELSEWHERE),
        ("localhost:8250", "", ELSEWHERE),
        ("127.0.0.5:8250", "", ELSEWHERE),
        ("[::1]:8250", "", ELSEWHERE),
        ("0.0.0.0:8250", "localhost:8250", ELSEWHERE),
        ("0.0.0.0:8250", "", ELSEWHERE),
        ("[::]:8250", "", ELSEWHERE),
        (":8250", "", ELSEWHERE),
        ("192.0.2.1:8250", "192.0.2.1:0", ELSEWHERE),
        ("192.0.2.1:8250", "192.0.2.1", ELSEWHERE),
        ("127.0.0.1:8250", "", f"{ELSEWHERE},{HERE}"),
    ],
)
def test_what_they_cannot(addr, advertise_addr, registry):
    with pytest.raises(ConfigError, match=r"cannot be registered.*--advertise-addr 192\.0\.2\.1:8250"):
        advertised(addr, advertise_addr, 8250, registry)


@pytest.mark.parametrize("addr", ["0.0.0.0:8250", ":8250"])
def test_an_address_for_listening_is_none_even_here(addr):
    with pytest.raises(ConfigError, match=r"to listen on.*--advertise-addr 127\.0\.0\.1:8250"):
        advertised(addr, "", 8250, HERE)


class Elsewhere(FakeRegistry):
    """A registry on another machine."""

    url = ELSEWHERE


def test_a_drainer_and_a_pump_refuse_alike(tmp_path, monkeypatch):
    drainer, pump = Elsewhere(), Elsewhere()
    monkeypatch.setattr(server, "open_registry", lambda url, tls: pump)
    with pytest.raises(ConfigError, match="the registry http://192.0.2.7:2379 is elsewhere"):
        node_at(drainer, lambda: 0, "d1").start()
    with pytest.raises(ConfigError, match="the registry http://192.0.2.7:2379 is elsewhere"):
        PumpServer(PumpConfig(node_id="p1", addr="127.0.0.1:0", data_dir=str(tmp_path), cluster_id=7, registry=ELSEWHERE)).start()
    assert not drainer.listing("drainers").nodes and not pump.listing("pumps").nodes


def test_only_a_close_ends_offline() -> None:
    assert {state: last_state(state) for state in NodeState if state is not NodeState.OFFLINE} == {
        NodeState.ONLINE: NodeState.PAUSED,
        NodeState.PAUSING: NodeState.PAUSED,
        NodeState.PAUSED: NodeState.PAUSED,
        NodeState.CLOSING: NodeState.OFFLINE,
    }


class Recorded:
    """A registry that keeps what is put into it."""

    def __init__(self) -> None:
        self.put: list[tuple[str, NodeStatus]] = []

    def tso(self) -> int:
        return 9

    def put_status(self, kind: str, status: NodeStatus) -> None:
        self.put.append((kind, status))


def test_each_registration_says_how_far_the_node_is_now() -> None:
    registry, promises = Recorded(), iter((5, 7))
    node = Registration(registry, PUMPS, "p1", "h:8250", lambda: next(promises), 3, {"zone": "a"})  # type: ignore[arg-type]
    node.put(NodeState.ONLINE)
    node.put(NodeState.PAUSED)
    assert registry.put == [
        (PUMPS, NodeStatus("p1", "h:8250", NodeState.ONLINE, 5, 9, 3, {"zone": "a"})),
        (PUMPS, NodeStatus("p1", "h:8250", NodeState.PAUSED, 7, 9, 3, {"zone": "a"})),
    ]


def test_a_task_that_fails_is_run_again(caplog: pytest.LogCaptureFixture) -> None:
    again = threading.Event()
    failures = iter((PumpUnavailable("the registry is away"), OSError("no disk"), RuntimeError("a defect")))

    def act() -> None:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        again.set()

    task = PeriodicTask("p1 heartbeat", 0.001, act)
    assert again.wait(30)
    task.stop()
    assert "p1 heartbeat: the registry is away" in caplog.text and "no disk" in caplog.text
    traced = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert traced == ["a defect"], "with its trace; a node whose heartbeat ended would look dead"
