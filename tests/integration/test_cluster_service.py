"""The standalone registry's HTTP front: parameters, many clients that wait at once, and its stop while they wait."""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import quote

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, Listing, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.nodes import Nodes
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from tests.support.eventually import eventually

CLIENTS = 60


def status(node_id: str) -> NodeStatus:
    """A Pump that is online."""
    return NodeStatus(node_id, "127.0.0.1:8250", NodeState.ONLINE, 0, 0)


def put(service: ClusterService, node_id: str) -> None:
    """Register a Pump."""
    with contextlib.closing(RegistryClient(service.url)) as client:
        client.put_status(PUMPS, status(node_id))


def changes(service: ClusterService, after: int, timeout: float) -> Listing:
    """The Pumps written after a revision, as a client waits for them."""
    with contextlib.closing(RegistryClient(service.url)) as client:
        return client.changes(PUMPS, after, timeout)


def asked(service: ClusterService, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of one answer."""
    host, _, port = service.address.partition(":")
    connection = HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_more_clients_wait_than_the_server_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of them is answered by one write, and other requests are answered meanwhile."""
    service = ClusterService(Oracle(), 7).start()
    waiting = threading.Semaphore(0)
    plain = Nodes.changes

    def noted(nodes: Nodes, kind: str, after: int, timeout: float) -> Listing:
        waiting.release()
        return plain(nodes, kind, after, timeout)

    monkeypatch.setattr(Nodes, "changes", noted)
    revision = service.nodes.listing(PUMPS).revision
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            waits = [pool.submit(changes, service, revision, 30.0) for _ in range(CLIENTS)]
            for _ in range(CLIENTS):
                assert waiting.acquire(timeout=20)
            assert asked(service, "GET", "/cluster_id")[0] == 200
            put(service, "a")
            assert {wait.result(20).nodes[0].node_id for wait in waits} == {"a"}
    finally:
        service.stop()


def test_more_waits_than_allowed_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And requests that do not wait are answered as ever."""
    monkeypatch.setattr("pyspark_tidb_binlog.jobs.lab.registry.cluster_service._WAITING", 2)
    service = ClusterService(Oracle(), 7).start()
    revision = service.nodes.listing(PUMPS).revision
    try:
        with ThreadPoolExecutor(4) as pool:
            waits = [pool.submit(changes, service, revision, 30.0) for _ in range(4)]
            eventually(lambda: sum(wait.done() for wait in waits) == 2)
            assert all(wait.result().nodes == () for wait in waits if wait.done())
            put(service, "a")
            assert sorted(len(wait.result(10).nodes) for wait in waits) == [0, 0, 1, 1]
    finally:
        service.stop()


def test_stopping_ends_the_waits() -> None:
    """A client that waits for a change is told at once; it is not answered with a listing."""
    service = ClusterService(Oracle(), 7).start()
    revision = service.nodes.listing(PUMPS).revision
    ends: list[Exception] = []

    def wait() -> None:
        try:
            changes(service, revision, 50.0)
        except PumpUnavailable as error:
            ends.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    begun = time.monotonic()
    service.stop()
    for thread in threads:
        thread.join(10)
    assert len(ends) == 3 and time.monotonic() - begun < 10
    with pytest.raises((OSError, HTTPException)):
        asked(service, "GET", "/cluster_id")


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/tso?count=0", 400),
        ("GET", "/tso?count=262145", 400),
        ("GET", f"/tso?count={'9' * 5000}", 400),
        ("GET", "/registry/pumps?after=%C2%B2", 400),
        ("GET", "/registry/pumps?after=1&wait=1%C2%B2", 400),
        ("GET", "/registry/pumps?after=x", 400),
        ("GET", "/registry/pumps?after=1&wait=-1", 400),
        ("GET", "/registry/tidb", 404),
        ("GET", "/mvcc/hex/xyz", 400),
        ("PUT", "/registry/pumps/a", 400),
        ("PUT", "/registry/tidb/a", 404),
        ("POST", "/open", 404),
        ("GET", "/stop", 405),
        ("DELETE", "/registry/pumps/a", 405),
    ],
)
def test_what_cannot_be_served_is_refused(method: str, target: str, expected: int) -> None:
    """Each with the status that says why."""
    service = ClusterService(Oracle(), 7, commands={"stop": lambda query: {}}).start()
    try:
        status, body = asked(service, method, target, b"{")
        assert (status, b"use POST" in body) == (expected, target == "/stop")
    finally:
        service.stop()


def test_a_node_id_with_any_characters(tmp_path: Path) -> None:
    """The id of the body counts; the path names it for the reader of a log."""
    service = ClusterService(Oracle(), 7, data_dir=tmp_path).start()
    try:
        for node_id in ("a/b", "ä?x=1", "host:8250"):
            put(service, node_id)
        code, body = asked(service, "GET", f"/registry/{quote('pumps')}")
        assert code == 200
        assert [node["nodeId"] for node in json.loads(body)["nodes"]] == ["a/b", "host:8250", "ä?x=1"]
    finally:
        service.stop()


def test_a_client_that_hangs_up_frees_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait is longer than the server's own bound, whatever the client asked for."""
    monkeypatch.setattr("pyspark_tidb_binlog.jobs.lab.registry.cluster_service._MAX_WAIT", 0.2)
    service = ClusterService(Oracle(), 7).start()
    try:
        revision = service.nodes.listing(PUMPS).revision
        assert changes(service, revision, 1e6).nodes == ()
        eventually(lambda: asked(service, "GET", f"/registry/pumps?after={revision}&wait=3600") == (200, ANSWER % revision))
    finally:
        service.stop()


ANSWER = b'{\n "revision": %d,\n "nodes": []\n}\n'
