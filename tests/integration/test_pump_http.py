"""The Pump's HTTP pages on its gRPC port: a real Pump's JSON and texts, its states, GC on demand and the metrics' names."""

import contextlib
import http.client
import json
import time
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster import discovery
from pyspark_tidb_binlog.binlog_source.cluster.discovery import ConfiguredDiscovery
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump import server
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.binlogs import payload
from tests.support.eventually import eventually
from tests.support.fine_pump import fine_store
from tests.support.pump_writes import CLUSTER

pytestmark = pytest.mark.grpc
METRICS = """
binlog_pump_rpc_duration_seconds binlog_pump_loss_binlog_count binlog_pump_storage_gc_ts binlog_pump_storage_done_gc_ts
binlog_pump_storage_max_commit_ts binlog_pump_storage_deleted_kv_total binlog_pump_storage_storage_size_bytes
binlog_pump_storage_query_tikv_count binlog_pump_storage_error_count binlog_pump_storage_write_binlog_size
binlog_pump_storage_write_binlog_duration_time binlog_pump_storage_slow_chaser_count
binlog_drainer_slow_chaser_catchup_time_seconds binlog_pump_detected_drainer_binlog_purge_count process_resident_memory_bytes
""".split()


def config(path: Path, name: str, service: ClusterService, **more) -> PumpConfig:
    given = {"addr": "127.0.0.1:0", "fake_binlog_interval": 0, "heartbeat_interval": 0.05, "sync_log": False}
    return PumpConfig(
        **({"node_id": name, "data_dir": str(path / name), "registry": service.url, "stop_write_at_available_space": ""} | given | more)
    )


@pytest.fixture
def pump(tmp_path, service):
    made = PumpServer(config(tmp_path, "pump1", service)).start()
    yield made
    made.stop()


def ask(pump: PumpServer, method: str, path: str):
    """Status, content type and body."""
    connection = http.client.HTTPConnection(pump.address, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("days", [-1000, 1000], ids=["set back", "far ahead"])
def test_a_fixed_list_of_pumps_tells_the_time_whatever_this_machines_clock_says(tmp_path, service, monkeypatch, days):
    """A Pump with a registry tells the registry's, one without is above all that it holds."""
    alone = config(tmp_path, "pump1", service, registry="", cluster_id=CLUSTER)
    with_registry = config(tmp_path, "pump2", service)
    pumps = [PumpServer(alone).start(), PumpServer(with_registry).start()]
    try:
        held_ts = tso(time.time_ns() // 1_000_000 + 3_600_000)
        write(pumps[0], payload(2, held_ts, held_ts))
        wrong = time.time_ns() + days * 86_400 * 10**9
        monkeypatch.setattr(discovery.time, "time_ns", lambda: wrong)
        assert service.oracle.next() < ConfiguredDiscovery(pumps[1].address, CLUSTER).now() < service.oracle.next()
        assert ConfiguredDiscovery(pumps[0].address, CLUSTER).now() > held_ts
        # Nobody listens on the port of a Pump that has gone; one that answers is enough.
        gone = pumps[1].address
        pumps.pop().stop()
        assert ConfiguredDiscovery(f"{gone},{pumps[0].address}", CLUSTER).now() > held_ts
        with pytest.raises(PumpUnavailable, match=f"no Pump reports the upstream's time: http://{gone}/status does not answer"):
            ConfiguredDiscovery(gone, CLUSTER).now()
    finally:
        for one in pumps:
            one.stop()


def test_a_pump_that_cannot_ask_pd_says_so(pump, service):
    service.stop()
    with pytest.raises(PumpUnavailable, match="/status: .*does not answer"):
        ConfiguredDiscovery(pump.address, CLUSTER).now()


def write(pump, *payloads):
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    try:
        for one in payloads:
            writer.write(one)
    finally:
        writer.close()


def states(service):
    return {node["nodeId"]: node["state"] for node in service_nodes(service, PUMPS)}


def service_nodes(service, kind):
    client = RegistryClient(service.url)
    try:
        return [status.to_dict() for status in client.listing(kind).nodes]
    finally:
        client.close()


@pytest.mark.shows("pump GET /status")
def test_status_is_a_real_pumps(pump, service):
    before = service.oracle.next()
    status, kind, body = ask(pump, "GET", "/status")
    assert status == 200 and kind == "text/plain; charset=utf-8" and body.endswith(b"}\n")
    said = json.loads(body)
    assert list(said) == ["status", "CommitTS", "Checkpoint", "ErrMsg"] and said["Checkpoint"] == {} and said["ErrMsg"] == ""
    assert said["CommitTS"] > before, "a fresh timestamp, not this Pump's"
    assert body.startswith(
        b'{"status":{"pump1":{"nodeId":"pump1","host":"' + pump.address.encode() + b'","state":"online","isAlive":false,"score":0,'
    )


@pytest.mark.shows("pump GET /status")
def test_status_without_a_registry_says_why(tmp_path):
    service = ClusterService(Oracle(), CLUSTER).start()
    pump = PumpServer(config(tmp_path, "alone", service)).start()
    service.stop()
    said = json.loads(ask(pump, "GET", "/status")[2])
    assert said["status"] is None and said["CommitTS"] == 0 and "does not answer" in said["ErrMsg"]
    pump.stop()


@pytest.mark.shows("pump GET /drainers")
def test_drainers(pump, service):
    assert ask(pump, "GET", "/drainers")[2] == b"null\n"
    client = RegistryClient(service.url)
    client.put_status(DRAINERS, NodeStatus("d1", "127.0.0.1:1", NodeState.PAUSED, 5, 6))
    client.close()
    (drainer,) = json.loads(ask(pump, "GET", "/drainers")[2])
    assert (drainer["nodeId"], drainer["state"], drainer["maxCommitTS"]) == ("d1", "paused", 5)


@pytest.mark.shows("pump 404 and 405")
def test_what_is_not_there(pump):
    assert ask(pump, "GET", "/nothing") == (404, "text/plain; charset=utf-8", b"404 page not found\n")
    assert ask(pump, "POST", "/status")[0] == 405 and ask(pump, "POST", "/status")[2] == b""
    assert ask(pump, "GET", "/state/pump1/pause")[0] == 405


@pytest.mark.shows("pump spark.log-row-data", "pump GET /debug/binlog/{ts}")
def test_a_look_at_a_record_shows_rows_and_keys_only_where_that_is_set(tmp_path, service):
    row = binlog_pb2.TableMutation(table_id=96, inserted_rows=[b"card 4111"], sequence=[0])
    value = binlog_pb2.PrewriteValue(schema_version=48, mutations=[row]).SerializeToString()
    shown = {}
    for shows in (False, True):
        pump = PumpServer(config(tmp_path, f"looked-at-{shows}", service, log_row_data=shows)).start()
        write(pump, payload(0, 10, prewrite_key=b"t-card 4111", prewrite_value=value), payload(1, 10, 15, prewrite_key=b"t-card 4111"))
        write(pump, payload(0, 20, prewrite_key=b"k", prewrite_value=b"card 4111 is no protobuf"))
        pump.service.store.catch_up()
        unread = ask(pump, "GET", "/debug/binlog/20")
        assert unread[0] == 200 and unread[2].startswith(b"fail read binlog by ts: 20: ") and b"card" not in unread[2]
        shown[shows] = "".join(ask(pump, "GET", f"/debug/binlog/{ts}")[2].decode() for ts in (10, 15))
        pump.stop()
    assert "PREWRITE at 0:" in shown[False] and "start_ts 10\ntable id 96: 1 changes\n" in shown[False]
    assert "COMMIT at 0:" in shown[False] and "start_ts 10\ncommit_ts 15\n" in shown[False]
    for secret in ("card", b"t-card 4111".hex(), "mvcc"):
        assert secret not in shown[False] and secret in shown[True]


@pytest.mark.shows("pump GET /debug/binlog/{ts}")
def test_a_look_at_a_record(pump):
    value = binlog_pb2.PrewriteValue(schema_version=48, mutations=[binlog_pb2.TableMutation(table_id=96)]).SerializeToString()
    write(pump, payload(0, 10, prewrite_key=b"\x74k", prewrite_value=value), payload(1, 10, 15, prewrite_key=b"\x74k"))
    pump.service.store.catch_up()
    text = ask(pump, "GET", "/debug/binlog/10")[2].decode()
    assert "PREWRITE" in text and "table id 96: 0 changes" in text
    assert "COMMIT" in ask(pump, "GET", "/debug/binlog/15")[2].decode()
    assert ask(pump, "GET", "/debug/binlog/x")[2] == b"invalid parameter ts: x\n"
    assert ask(pump, "GET", "/debug/binlog/77")[2] == b"fail read binlog by ts: 77: leveldb: not found\n"


@pytest.mark.parametrize("number", ["%C2%B2", "9" * 5000, "9223372036854775808", "-1", "x"])
def test_what_is_no_ts_is_refused(pump, number):
    for method, path in (
        ("GET", f"/debug/binlog/{number}"),
        ("PUT", f"/orphans/{number}/rollback"),
        ("PUT", f"/orphans/10/commit/{number}"),
    ):
        assert ask(pump, method, path)[0] == 400, path


def test_a_look_at_a_large_binlog_counts_its_changes(pump):
    value = binlog_pb2.PrewriteValue(schema_version=1)
    for table_id, rows in ((7, 2), (9, 1)):
        value.mutations.add(table_id=table_id, inserted_rows=[bytes(1 << 20)] * rows, sequence=[0] * rows)
    write(pump, payload(0, 1000, prewrite_key=b"k", prewrite_value=value.SerializeToString()))
    pump.service.store.catch_up()
    text = ask(pump, "GET", "/debug/binlog/1000")[2].decode()
    assert "PREWRITE at 0:" in text and "table id 7: 2 changes" in text and "table id 9: 1 changes" in text and len(text) < 500


@pytest.mark.shows("pump POST /debug/gc/trigger")
def test_gc_on_demand(tmp_path, service):
    with fine_store(max_file_size=100):
        pump = PumpServer(config(tmp_path, "old", service, gc="1h")).start()
    now_ms = time.time_ns() // 1_000_000
    old, new = tso(now_ms - 3 * 3_600_000), tso(now_ms)
    write(
        pump,
        payload(2, old, old),
        payload(2, old + 1, old + 1),
        payload(2, old + 2, old + 2),
        payload(2, new, new),
        payload(2, new + 1, new + 1),
    )
    store = pump.service.store
    store.catch_up()
    assert ask(pump, "POST", "/debug/gc/trigger")[2] == b"trigger gc success\n"
    eventually(lambda: store.deleted_keys == 3, seen=lambda: store.deleted_keys)
    assert store.gc_ts > old and store.entry(old) is None and store.entry(new) is not None
    assert b"binlog_pump_storage_deleted_kv_total 3.0" in ask(pump, "GET", "/metrics")[2]
    pump.stop()


def test_gc_counts_from_the_time_of_the_upstream(tmp_path, service, monkeypatch):
    """The clock of this machine is three hours ahead: nothing is older than an hour."""
    pump = PumpServer(config(tmp_path, "ahead", service, gc="1h")).start()
    now = tso(time.time_ns() // 1_000_000)
    upstream = now - tso(3 * 3_600_000)
    write(pump, payload(2, upstream, upstream), payload(2, now, now))
    pump.service.store.catch_up()
    monkeypatch.setattr(RegistryClient, "tso", lambda client, count=1: upstream)
    pump._collector()
    assert pump.service.store.gc_ts < upstream
    pump.stop()


@pytest.mark.shows("pump GET /metrics", "pump metrics")
def test_metrics_have_a_real_pumps_names(pump):
    write(pump, payload(0, 10, prewrite_value=b"x" * 100), payload(1, 10, tso(1234)))
    pump.service.store.catch_up()
    status, kind, body = ask(pump, "GET", "/metrics")
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    names = {line.split("{")[0].split(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")}
    assert [name for name in METRICS if not {name, f"{name}_count"} & names and not name.endswith("purge_count")] == []
    text = body.decode()
    assert 'binlog_pump_rpc_duration_seconds_count{label="succ",method="WriteBinlog"} 2.0' in text
    assert 'binlog_pump_storage_write_binlog_size_count{type="single"} 2.0' in text
    assert "binlog_pump_storage_max_commit_ts 1234.0" in text, "physical milliseconds"
    assert 'binlog_pump_rpc_duration_seconds_bucket{label="succ",le="5e-05",method="WriteBinlog"}' in text


@pytest.mark.shows("pump PUT /state/{nodeID}/pause")
@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("/state/other/pause", 2, "invalide nodeID other, this pump's nodeID is pump1"),
        ("/state/pump1/jump", 3, "invalide action jump"),
    ],
)
def test_refused_changes_of_state(pump, path, code, message):
    status, kind, body = ask(pump, "PUT", path)
    assert status == 200 and kind == "application/json; charset=UTF-8"
    assert body.decode() == json.dumps({"message": message, "code": code, "data": None}, indent=2)


@pytest.mark.shows("pump PUT /state/{nodeID}/pause")
def test_pause_ends_in_paused(pump, service):
    eventually(lambda: states(service) == {"pump1": "online"}, seen=lambda: states(service))
    assert json.loads(ask(pump, "PUT", "/state/pump1/pause")[2]) == {"message": "apply action pause success!", "code": 200, "data": None}
    assert pump.ended.wait(10)
    assert states(service) == {"pump1": "paused"}


@pytest.mark.shows("pump PUT /state/{nodeID}/close")
def test_close_waits_for_the_drainers(pump, service):
    client = RegistryClient(service.url)
    client.put_status(DRAINERS, NodeStatus("behind", "127.0.0.1:1", NodeState.PAUSED, 5))
    client.put_status(DRAINERS, NodeStatus("gone", "127.0.0.1:1", NodeState.OFFLINE, 5))
    write(pump, payload(0, 10))
    assert json.loads(ask(pump, "PUT", "/state/pump1/close")[2])["code"] == 200
    again = json.loads(ask(pump, "PUT", "/state/pump1/pause")[2])
    assert (again["message"], again["code"]) == ("this pump's state is closing, apply pause failed!", 3)
    with pytest.raises(PumpUnavailable, match="UNKNOWN.*no online: closing"):
        write(pump, payload(0, 11))
    write(pump, payload(1, 10, 15))
    assert not pump.ended.wait(0.5), "the Drainer has not read it yet"
    client.put_status(DRAINERS, NodeStatus("behind", "127.0.0.1:1", NodeState.PAUSED, 1 << 62))
    assert pump.ended.wait(10)
    assert states(service) == {"pump1": "offline"}
    client.close()


@pytest.mark.parametrize("unfinished", [True, False], ids=["a Prewrite waits", "a Drainer is behind"])
def test_a_closing_pump_that_is_stopped_ends_at_once(pump, service, unfinished):
    """Whoever it waits for may be away for days, and what stops it (systemd, a shutdown) kills it after seconds."""
    with contextlib.closing(RegistryClient(service.url)) as client:
        client.put_status(DRAINERS, NodeStatus("behind", "127.0.0.1:1", NodeState.PAUSED, 5))
    write(pump, payload(0, 10), *(() if unfinished else (payload(1, 10, 15),)))
    ask(pump, "PUT", "/state/pump1/close")
    eventually(lambda: states(service) == {"pump1": "closing"})
    pump.stop()
    assert pump.ended.is_set() and states(service) == {"pump1": "paused"}
    pump.start()
    assert states(service) == {"pump1": "online"}


@pytest.mark.parametrize("goes_on", [True, False])
def test_close_ends_with_a_drainer_that_is_always_a_little_behind(tmp_path, service, monkeypatch, goes_on):
    """``goes_on`` False: it stands just below the last fake binlog until another one comes, as a real Drainer may."""
    monkeypatch.setattr(server, "_FAKE_AGAIN", 60.0 if goes_on else 0.2)
    monkeypatch.setattr(server, "_SAFE_POLL", 0.05)
    closing = PumpServer(config(tmp_path, "pump1", service)).start()
    client, store = RegistryClient(service.url), closing.service.store
    write(closing, payload(0, 10), payload(1, 10, 15))
    client.put_status(DRAINERS, NodeStatus("d", "127.0.0.1:1", NodeState.ONLINE, 15))
    ask(closing, "PUT", "/state/pump1/close")
    deadline = time.monotonic() + 10
    eventually(lambda: store.state.max_ts > 15, what="a fake binlog", pause=0.001)
    first = store.state.max_ts
    read = first - 1
    while not closing.ended.wait(0.1) and time.monotonic() < deadline:
        client.put_status(DRAINERS, NodeStatus("d", "127.0.0.1:1", NodeState.ONLINE, read))
        read = store.state.max_ts if goes_on or store.state.max_ts > first else first - 1
    assert closing.ended.is_set() and states(service) == {"pump1": "offline"}
    (status,) = service_nodes(service, PUMPS)
    assert (status["maxCommitTS"] == first) is goes_on and status["maxCommitTS"] <= read, "nothing in it is above what was read"
    client.close()


def test_a_heartbeat_tells_what_is_sorted(pump, service):
    write(pump, payload(0, 10), payload(1, 10, 15))
    eventually(lambda: service_nodes(service, PUMPS)[0]["maxCommitTS"] == 15, seen=lambda: service_nodes(service, PUMPS))


@pytest.mark.shows("pump storage.stop-write-at-available-space")
def test_a_full_disk_refuses_with_a_real_pumps_words(tmp_path, service):
    pump = PumpServer(config(tmp_path, "full", service, stop_write_at_available_space="900000 TiB")).start()
    with pytest.raises(PumpUnavailable, match=r"no available space, available: \d+, StopWriteAtAvailableSpace: \d+"):
        write(pump, payload(0, 10))
    write(pump, b"")
    pump.stop()


@pytest.mark.shows("pump spark.max-message-size")
def test_a_message_above_the_limit_is_resource_exhausted(tmp_path, service):
    pump = PumpServer(config(tmp_path, "small", service, max_message_size=1000)).start()
    with pytest.raises(PumpUnavailable, match="RESOURCE_EXHAUSTED.*received message larger than max"):
        write(pump, payload(0, 10, prewrite_value=b"x" * 2000))
    write(pump, payload(0, 10, prewrite_value=b"x" * 500))
    pump.stop()


@pytest.mark.shows("pump node-id")
def test_the_node_id_is_kept_in_the_data_directory(tmp_path, service):
    first = PumpServer(config(tmp_path, "a", service, node_id="")).start()
    made = first.node_id
    first.stop()
    assert (tmp_path / "a" / ".node").read_text() == made and made.endswith(first.address.rpartition(":")[2])
    again = PumpServer(config(tmp_path, "a", service, node_id="other")).start()
    assert again.node_id == made
    again.stop()


@pytest.mark.shows("pump socket")
def test_a_unix_socket_beside_the_port(tmp_path, service):
    pump = PumpServer(config(tmp_path, "u", service, socket=f"unix://{tmp_path}/pump.sock")).start()
    writer = PumpWriter(f"unix:{tmp_path}/pump.sock", CLUSTER, tls=None)
    writer.write(payload(0, 10))
    writer.close()
    assert pump.service.store.catch_up().low.offset == 0
    pump.stop()
    assert not (tmp_path / "pump.sock").exists()
