"""The Drainer's HTTP pages beside gRPC on one port: a real Drainer's JSON and texts, its states in the registry, our own page."""

import base64
import hashlib
import http.client
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.drainer import node as node_module
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import NOTIFY
from pyspark_tidb_binlog.jobs.entry import documents
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from tests.support.drainer_nodes import PretendedStream
from tests.support.eventually import eventually

pytestmark = pytest.mark.grpc


@pytest.fixture
def stream() -> PretendedStream:
    return PretendedStream(lambda: 470604628714323969)


@pytest.fixture
def node(stream: PretendedStream, service: ClusterService, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrainerNode]:
    monkeypatch.setattr(node_module, "HEARTBEAT", 0.02)
    made = stream.node(RegistryClient(service.url), "host-1:8249").start()
    yield made
    made.stop()


def ask(node: DrainerNode, method: str, path: str) -> tuple[int, str | None, bytes]:
    """Status, content type and body."""
    connection = http.client.HTTPConnection(node.address, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def put(node: DrainerNode, action: str, node_id: str = "host-1:8249") -> tuple[int, str]:
    said = json.loads(ask(node, "PUT", f"/state/{node_id}/{action}")[2])
    assert said["data"] is None
    return said["code"], said["message"]


def registered(service: ClusterService) -> str:
    return service.nodes.listing(DRAINERS).nodes[0].state.value


@pytest.mark.shows("drainer GET /status")
def test_status_is_a_real_drainers(node: DrainerNode, stream: PretendedStream) -> None:
    assert ask(node, "GET", "/status") == (
        200,
        "text/plain; charset=utf-8",
        b'{"PumpPos":null,"Synced":false,"LastTS":0,"TsMap":""}\n',
    )
    stream.positions = {"pump1": 470604628714323970}
    expected = b'{"PumpPos":{"pump1":470604628714323970},"Synced":false,"LastTS":470604628714323969,"TsMap":""}\n'
    assert ask(node, "GET", "/status")[2] == expected


@pytest.mark.shows("synced-check-time")
def test_synced_once_nothing_was_applied_for_a_while(node: DrainerNode, stream: PretendedStream) -> None:
    stream.positions = {"pump1": 1}
    stream.applied_at = time.monotonic() - 299
    assert b'"Synced":false' in ask(node, "GET", "/status")[2]
    stream.applied_at = time.monotonic() - 301
    assert b'"Synced":true' in ask(node, "GET", "/status")[2]
    stream.applied_at = time.monotonic()
    assert b'"Synced":false' in ask(node, "GET", "/status")[2]


@pytest.mark.shows("drainer GET /commit_ts")
def test_commit_ts_is_a_real_drainers(node: DrainerNode) -> None:
    status, kind, body = ask(node, "GET", "/commit_ts")
    assert (status, kind) == (200, "application/json; charset=UTF-8")
    assert (
        body == b'{\n  "message": "get drainer\'s latest ts success!",\n  "code": 200,\n  "data": {\n    "ts": 470604628714323969\n  }\n}'
    )


@pytest.mark.shows("drainer GET /metrics", "drainer GET /progress")
def test_metrics_and_our_page(node: DrainerNode) -> None:
    status, kind, body = ask(node, "GET", "/metrics")
    assert status == 200 and kind is not None and kind.startswith("text/plain; version=0.0.4") and b"binlog_drainer_checkpoint_tso" in body
    assert json.loads(ask(node, "GET", "/progress")[2]) == {"holding": "apply"}


def whole(node: DrainerNode, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    """The answer with its headers."""
    connection = http.client.HTTPConnection(node.address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@pytest.mark.shows("drainer GET /")
def test_the_page_asks_nobody_else_for_anything(node: DrainerNode) -> None:
    answer, body = whole(node, "/")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'" and "unsafe" not in str(policy)
    (script,) = re.findall(rb"<script>(.*?)</script>", body, re.DOTALL)
    assert policy["script-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
    assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b""), "no other address is named"
    assert not re.search(rb"innerHTML|outerHTML|insertAdjacent|document.write|eval", script), "text is text"


def test_the_pages_json_is_asked_for_what_is_new(node: DrainerNode) -> None:
    for query, after in (
        ("", 0),
        ("?after=1790000000", 1790000000),
        ("?after=-5", 0),
        ("?after=x", 0),
        (f"?after={'9' * 40}", 0),
        ("?after=²", 0),
    ):
        answer, body = whole(node, f"/page.json{quote(query, safe='?=')}")
        assert json.loads(body) == {"after": after} and answer.headers["Cache-Control"] == "no-store"
    assert [ask(node, "POST", path)[0] for path in ("/", "/page.json", "/docs/errors/ddl")] == [405] * 3


def test_documents_are_plain_text_and_nothing_else_is_read(node: DrainerNode) -> None:
    answer, body = whole(node, "/docs/errors/ddl")
    assert (answer.headers["Content-Type"], answer.headers["X-Content-Type-Options"]) == ("text/plain; charset=utf-8", "nosniff")
    assert body == b"# DDLs" and whole(node, "/docs/")[1] == whole(node, "/docs")[1] == b"a list"
    for path in ("/docs/nothing", "/docs/../setup.cfg", "/docs/%2e%2e/setup.cfg", "/docs//etc/passwd", "/docs/..%2f..%2fetc%2fpasswd"):
        assert whole(node, path)[0].status == 404


def test_what_a_document_is_named_finds_pages_of_the_release_only() -> None:
    assert str(documents.document_text("errors/ddl")).startswith("# DDLs") and "runbook" in str(documents.document_text(""))
    for name in (
        "../setup",
        "../setup.cfg",
        "/etc/passwd",
        "errors/../../setup.cfg",
        "docs/../conf/drainer.toml",
        "conf/drainer.toml",
        "\0",
        ".",
    ):
        assert documents.document_text(name) is None


@pytest.mark.shows("drainer 404 and 405")
def test_what_is_not_there(node: DrainerNode) -> None:
    assert ask(node, "GET", "/nothing") == (404, "text/plain; charset=utf-8", b"404 page not found\n")
    assert [ask(node, "POST", path)[0] for path in ("/status", "/commit_ts", "/metrics", "/state/d/pause")] == [405] * 4
    assert ask(node, "GET", "/state/host-1:8249/pause")[0] == 405


@pytest.mark.shows("addr", "gRPC and HTTP on one port")
def test_grpc_goes_on_on_the_same_port(node: DrainerNode) -> None:
    with grpc.insecure_channel(node.address) as channel:
        assert channel.unary_unary(NOTIFY, request_serializer=None, response_deserializer=None)(b"", timeout=10) == b""
        assert ask(node, "GET", "/commit_ts")[0] == 200


@pytest.mark.shows("drainer PUT /state/{nodeID}/pause")
def test_refused_changes_of_state(node: DrainerNode, stream: PretendedStream, service: ClusterService) -> None:
    assert put(node, "pause", "other") == (3, "invalid nodeID other, this pump's nodeID is host-1:8249")
    assert put(node, "jump") == (3, "invalid action jump")
    assert put(node, "resume") == (3, "this pump's state is online, apply resume failed!")
    assert registered(service) == "online" and stream.asked == []


@pytest.mark.shows("drainer PUT /state/{nodeID}/pause")
def test_a_pause_takes_effect_between_two_batches_and_ends_with_resume(
    node: DrainerNode, stream: PretendedStream, service: ClusterService
) -> None:
    assert put(node, "pause") == (200, "apply action pause success!")
    eventually(lambda: registered(service) == "pausing", seen=lambda: registered(service))
    assert put(node, "pause") == (3, "this pump's state is pausing, apply pause failed!")
    stream.resting = True
    eventually(lambda: registered(service) == "paused", seen=lambda: registered(service))
    assert put(node, "resume") == (200, "apply action resume success!")
    eventually(lambda: registered(service) == "online", seen=lambda: registered(service))
    assert stream.asked == ["pause", "resume"]


@pytest.mark.shows("drainer PUT /state/{nodeID}/close")
def test_a_close_waits_for_the_batch_and_ends_offline(node: DrainerNode, stream: PretendedStream, service: ClusterService) -> None:
    assert put(node, "close") == (200, "apply action close success!")
    eventually(lambda: registered(service) == "closing", seen=lambda: registered(service))
    assert stream.asked == ["pause"], "the batch under way is finished first"
    assert put(node, "resume")[0] == put(node, "pause")[0] == 3
    stream.resting = True
    eventually(lambda: "end" in stream.asked)
    node.stop()
    assert registered(service) == "offline"


def test_a_process_that_ends_while_paused_is_paused_until_a_start(
    node: DrainerNode, stream: PretendedStream, service: ClusterService
) -> None:
    stream.resting = True
    put(node, "pause")
    node.stop()
    assert registered(service) == "paused"
    again = stream.node(RegistryClient(service.url), "host-1:8249").start()
    eventually(lambda: registered(service) == "online", seen=lambda: registered(service))
    again.stop()


def test_what_cannot_be_done_leaves_the_state_and_says_why(node: DrainerNode, stream: PretendedStream, service: ClusterService) -> None:
    stream.trouble = OSError(28, "No space left on device")
    seen = stream.kept
    said = "Drainer host-1:8249 stays online, because {} failed: [Errno 28] No space left on device"
    assert put(node, "pause") == (3, said.format("pause")) and put(node, "close") == (3, said.format("close"))
    eventually(lambda: stream.kept > seen + 1, what="the heartbeat goes on")
    assert node.state.value == registered(service) == "online" and stream.asked == []
    stream.trouble, stream.resting = None, True
    assert put(node, "pause")[0] == 200
    eventually(lambda: registered(service) == "paused", seen=lambda: registered(service))
    stream.trouble = OSError(28, "No space left on device")
    assert put(node, "resume")[0] == 3 and node.state.value == "paused"


def test_a_registry_that_is_away_stops_no_pause(node: DrainerNode, stream: PretendedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: Any) -> None:
        raise PumpUnavailable("the registry is away")

    monkeypatch.setattr(RegistryClient, "put_status", away)
    stream.resting = True
    assert put(node, "pause")[0] == 200
    eventually(lambda: node.state.value == "paused", seen=lambda: node.state)


def test_without_a_registry_the_pages_are_served_all_the_same(stream: PretendedStream) -> None:
    alone = stream.node(None).start()
    try:
        assert ask(alone, "GET", "/commit_ts")[0] == 200
        with grpc.insecure_channel(alone.address) as channel, pytest.raises(grpc.RpcError, match="fixed list of Pumps"):
            channel.unary_unary(NOTIFY, request_serializer=None, response_deserializer=None)(b"", timeout=10)
    finally:
        alone.stop()


@pytest.mark.shows("drainer PUT /rest")
def test_a_rest_is_asked_for(node: DrainerNode, stream: PretendedStream) -> None:
    def put_rest(seconds: str) -> tuple[int, str]:
        said = json.loads(ask(node, "PUT", f"/rest/{seconds}")[2])
        return said["code"], said["message"]

    assert put_rest("60") == (200, "no batch begins for 60 s") and put_rest("0")[0] == 200
    assert [put_rest(wrong)[1] for wrong in ("61", "-1", "soon")] == [
        f"{wrong} is no number of seconds from 0 to 60" for wrong in ("61", "-1", "soon")
    ]
    assert stream.asked == ["rest 60", "rest 0"] and ask(node, "GET", "/rest/1")[0] == 405
