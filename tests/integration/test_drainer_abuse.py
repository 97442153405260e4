"""Requests to a Drainer's port that nobody should send: huge, malformed, half, many. It changes no state, tells nothing and goes on answering."""

import errno
import http.client
import json
import socket
from collections.abc import Iterator

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import NOTIFY
from pyspark_tidb_binlog.schemas.http_client import fetch
from tests.support.drainer_nodes import PretendedStream

pytestmark = pytest.mark.grpc
PATIENCE = 30.0


@pytest.fixture
def stream() -> PretendedStream:
    return PretendedStream(lambda: 5)


@pytest.fixture
def node(stream: PretendedStream) -> Iterator[DrainerNode]:
    made = stream.node(None, "d1").start()
    yield made
    made.stop()


def raw(node: DrainerNode, sent: bytes) -> bytes:
    """Everything that is answered to these bytes, of a client that then sends nothing more."""
    host, _, port = node.address.rpartition(":")
    found = b""
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        try:
            client.sendall(sent)
            try:
                client.shutdown(socket.SHUT_WR)
            except OSError as error:
                # the server has refused what was sent, and reset the connection, before this call
                if error.errno != errno.ENOTCONN:
                    raise
            while part := client.recv(1 << 16):
                found += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    return found


MALFORMED = {
    "no protocol at all": b"\x00\x01\x02\x03" * 100,
    "a TLS client": bytes.fromhex("16030100c8010000c40303") + b"\x00" * 200,
    "a head without an end": b"GET /status HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 10,
    "a head of 1 MiB": b"GET /status HTTP/1.1\r\nHost: a\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n",
    "a path of 1 MiB": b"PUT /state/d1/" + b"x" * (1 << 20) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a body of 2 MiB": b"PUT /state/d1/pause HTTP/1.1\r\nHost: a\r\nContent-Length: 2097152\r\n\r\n" + b"x" * (2 << 20),
    "half a body": b"PUT /state/d1/pause HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nxx",
    "two lengths": b"PUT /state/d1/pause HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "no host": b"PUT /state/d1/pause HTTP/1.1\r\n\r\n",
    "a bad chunk": b"PUT /state/d1/pause HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    "a bracket": b"GET http://[::1/state HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_malformed_changes_nothing(node: DrainerNode, stream: PretendedStream, what: str) -> None:
    said = raw(node, MALFORMED[what])
    assert not said.startswith(b"HTTP/1.1 200"), said[:200]
    assert len(said) < 1000 and b"Traceback" not in said
    assert stream.asked == [] and node.state == "online"
    assert fetch(f"http://{node.address}/commit_ts", PATIENCE).ok


@pytest.mark.shows("drainer 404 and 405")
@pytest.mark.parametrize(
    "path", ["/state/d1/pause/", "/state/D1/pause", "/state/d1%2Fpause/x", "/state/d1/%70ause%00", "/state//pause", "/state/d1/pause%20"]
)
def test_a_path_that_is_nearly_right_is_wrong_or_right_as_a_real_drainers(node: DrainerNode, stream: PretendedStream, path: str) -> None:
    """Only the slash at the end is taken."""
    fetch(f"http://{node.address}{path}", PATIENCE, "PUT")
    assert stream.asked == (["pause"] if path == "/state/d1/pause/" else [])


def test_what_a_client_sends_comes_back_as_json_only(node: DrainerNode) -> None:
    answer = raw(node, b"PUT /state/%3Cscript%3E%22%0d%0aX-Evil:1%ff/pause HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head and b"X-Evil" not in head
    assert json.loads(body)["message"].startswith('invalid nodeID <script>"\r\nX-Evil:1')


def test_a_page_of_another_site_cannot_pause_it(node: DrainerNode, stream: PretendedStream) -> None:
    """A browser asks first whether another site may PUT, and takes silence for no; a form can only GET and POST."""
    connection = http.client.HTTPConnection(node.address, timeout=PATIENCE)
    connection.request("OPTIONS", "/state/d1/pause", headers={"Origin": "http://evil", "Access-Control-Request-Method": "PUT"})
    answer = connection.getresponse()
    assert answer.status == 405 and not [name for name in answer.headers if name.lower().startswith("access-control")]
    connection.close()
    assert fetch(f"http://{node.address}/state/d1/pause", PATIENCE, "POST").status == 405 and stream.asked == []


def test_a_page_that_fails_fails_alone(node: DrainerNode, stream: PretendedStream) -> None:
    """Spark is gone, say: what was in the error is in the log, not in the answer."""
    stream.progress = {"holding": object()}
    answer = fetch(f"http://{node.address}/progress", PATIENCE)
    assert answer.status == 500 and "object" not in answer.text and "Traceback" not in answer.text
    assert fetch(f"http://{node.address}/status", PATIENCE).ok


def test_a_huge_notify_is_refused(node: DrainerNode) -> None:
    """Notify's message names a Pump; memory for a larger one is nobody's to ask for."""
    with grpc.insecure_channel(node.address) as channel:
        call = channel.unary_unary(NOTIFY, request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"x" * (3 << 20), timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError, match="fixed list of Pumps"):
            call(b"x" * 1000, timeout=PATIENCE)


def test_many_at_once_and_many_on_one_connection(node: DrainerNode) -> None:
    host, _, port = node.address.rpartition(":")
    idle = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(200)]
    try:
        for half in idle[:100]:
            half.sendall(b"GET /metr")
        said = raw(node, b"GET /commit_ts HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
        assert said.count(b"HTTP/1.1 200 OK") == 500
    finally:
        for client in idle:
            client.close()
