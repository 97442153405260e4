"""HTTP/1 on the port of gRPC: answers in order, and clients that say too much or too little."""

import contextlib
import http.client
import socket
import threading
import time
from http import HTTPStatus

import pytest

from pyspark_tidb_binlog.binlog_source.rpc import calls as calls_module
from tests.support.eventually import eventually
from tests.support.own_host import OWN_HOST
from tests.support.rpc_front import MIB, PATIENCE, streaming

pytestmark = pytest.mark.grpc


@pytest.mark.parametrize("said", [b"GET /slow HTTP/1.1\r\nHost", b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: 9\r\n\r\nbod"])
def test_an_http_request_that_does_not_become_complete_is_dropped(server, monkeypatch, said):
    monkeypatch.setattr(calls_module, "IDLE_SECONDS", 0.3)
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as slow, contextlib.suppress(ConnectionError):
        slow.sendall(said)
        while slow.recv(MIB):
            pass
    eventually(lambda: not server.front._peers)


def test_an_idle_http_connection_is_closed_and_a_busy_one_is_not(server, monkeypatch):
    client = http.client.HTTPConnection(OWN_HOST, server.front.port, PATIENCE)
    for _ in range(3):
        client.request("GET", "/a")
        client.getresponse().read()
    monkeypatch.setattr(calls_module, "IDLE_SECONDS", 0.3)
    address = client.sock.getsockname()
    client.request("GET", "/slow")
    time.sleep(1)
    server.go_on.set()
    client.getresponse().read()
    assert client.sock.getsockname() == address
    assert client.sock.recv(1) == b""
    client.close()


def test_http_requests_on_one_connection(server):
    client = http.client.HTTPConnection(OWN_HOST, server.front.port, PATIENCE)
    for method, path, body, said in [
        ("GET", "/status", None, b"GET /status "),
        ("PUT", "/state/pump%201/pause", b"now", b"PUT /state/pump 1/pause now"),
        ("HEAD", "/status", None, b""),
        ("GET", "/large", None, b"x" * (4 * MIB)),
        ("GET", "/again", None, b"GET /again "),
    ]:
        client.request(method, path, body)
        address = client.sock.getsockname()
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (HTTPStatus.OK, said)
        assert client.sock.getsockname() == address
    client.request("GET", "/last", headers={"Connection": "close"})
    answer = client.getresponse()
    assert answer.read() == b"GET /last " and answer.headers["Connection"] == "close"
    assert client.sock is None
    client.close()


def test_http_while_streams_run(server, channel):
    call = streaming(channel, "Down")(b"5000 1000", timeout=PATIENCE)
    next(call)
    client = http.client.HTTPConnection(OWN_HOST, server.front.port, PATIENCE)
    for _ in range(20):
        client.request("GET", "/metrics")
        assert client.getresponse().read() == b"GET /metrics "
    client.close()
    assert len(list(call)) == 4999


def test_an_http_handler_that_fails(server, caplog):
    client = http.client.HTTPConnection(OWN_HOST, server.front.port, PATIENCE)
    client.request("GET", "/fail")
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (HTTPStatus.INTERNAL_SERVER_ERROR, b"ValueError: see the log of this process\n")
    assert "GET /fail failed" in caplog.text
    client.request("GET", "/next")
    assert client.getresponse().status == HTTPStatus.OK
    client.close()


def http_bytes(server, data, half_close=False):
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as client:
        client.sendall(data)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(MIB), b""))


def test_pipelined_requests_are_answered_in_order(server):
    asked = b"".join(b"GET /%d HTTP/1.1\r\nHost: p\r\n\r\n" % n for n in range(50)) + b"GET /last HTTP/1.0\r\n\r\n"
    said = http_bytes(server, asked)
    assert [part.split(b" ")[0] for part in said.split(b"\r\n\r\nGET /")[1:]] == [*(b"%d" % n for n in range(50)), b"last"]


def test_who_stops_talking_still_gets_an_answer(server):
    assert (
        http_bytes(server, b"GET /a HTTP/1.1\r\nHost: p\r\n\r\nGET /b HTTP/1.1\r\nHost: p\r\n\r\n", half_close=True).count(
            b"HTTP/1.1 200 OK"
        )
        == 2
    )
    assert http_bytes(server, b"GET /a HT", half_close=True) == b""


@pytest.mark.parametrize(
    "data", [b"hello\r\n\r\n", b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: \xb2\r\n\r\n", b"GET //[ HTTP/1.1\r\nHost: p\r\n\r\n"]
)
def test_a_bad_request_is_answered_and_the_connection_closed(server, data):
    assert http_bytes(server, data).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_pipelined_requests_do_not_pile_up(server):
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: p\r\n\r\n" * 1000)
        eventually(lambda: server.requests.qsize() >= 2)
        time.sleep(0.2)
        assert server.requests.qsize() < 20
        wanted = 10 * 4 * MIB
        while wanted > 0:
            wanted -= len(client.recv(MIB))
        assert server.requests.qsize() >= 10


def test_an_endless_talker_is_cut_off(server):
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as client, pytest.raises(ConnectionError):
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: p\r\n\r\n")
        while True:
            client.sendall(b"GET /more HTTP/1.1\r\nHost: p\r\n\r\n" * 1000)


def test_stop_lets_an_http_answer_finish(server):
    client = http.client.HTTPConnection(OWN_HOST, server.front.port, PATIENCE)
    client.request("GET", "/slow")
    server.requests.get(timeout=PATIENCE)
    stopping = threading.Thread(target=server.front.stop, args=(PATIENCE,))
    stopping.start()
    time.sleep(0.05)
    server.go_on.set()
    assert client.getresponse().read() == b"GET /slow "
    stopping.join(PATIENCE)
    client.close()
