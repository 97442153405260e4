"""Clients that go away, are slow, or come in numbers: they harm nobody but themselves."""

import contextlib
import resource
import socket
import threading

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.rpc import calls as calls_module
from pyspark_tidb_binlog.binlog_source.rpc import rpc_server as front_module
from pyspark_tidb_binlog.binlog_source.rpc.frames import UNKNOWN, Refusal, frame
from tests.support.eventually import eventually
from tests.support.own_host import OWN_HOST
from tests.support.rpc_front import (
    BACKLOG,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MIB,
    PATIENCE,
    PING,
    RST_STREAM,
    UNLIMITED,
    WINDOW,
    Raw,
    Server,
    block_of,
    blocked_at,
    calm,
    streaming,
    unary,
)

pytestmark = pytest.mark.grpc


def test_a_deadline_that_passes(server, channel):
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Hold")(b"x", timeout=0.1)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.answer_one()
    assert unary(channel, "Write")(b"next") == b""


def test_a_cancelled_unary_call_harms_no_other(server, channel):
    first = unary(channel, "Hold").future(b"1")
    eventually(lambda: server.held.qsize() == 1)
    second = unary(channel, "Hold").future(b"2")
    eventually(lambda: server.held.qsize() == 2)
    first.cancel()
    server.answer_one()
    server.answer_one(Refusal(UNKNOWN, "disk full"))
    assert second.exception(PATIENCE).details() == "disk full"


def test_cancelling_a_stream_wakes_its_handler(server, channel):
    call = streaming(channel, "Wait")(b"x")
    assert next(call) == b"here"
    call.cancel()
    assert server.ended.get(timeout=PATIENCE) is True


def test_a_killed_client_leaves_nothing_behind(server):
    before = threading.active_count()
    clients = [Raw(server) for _ in range(3)]
    for number, client in enumerate(clients):
        client.call(1, b"Wait", b"x")
        client.call(3, b"Hold", b"y")
        client.call(5, b"Down", b"100000 1000")
        client.socket.sendall(frame(HEADERS, END_HEADERS, 7, block_of(b"Write")) + frame(DATA, 0, 7, b"\0\0\0\0\x08half"))
        eventually(lambda number=number: server.held.qsize() == number + 1)
    eventually(lambda: server.calls.qsize() == 6)
    for client in clients:
        client.kill()
    assert [server.ended.get(timeout=PATIENCE) for _ in range(6)] == [True] * 6
    eventually(lambda: threading.active_count() == before and not server.front._peers and not server.front._handlers)
    for _ in clients:
        server.answer_one()


def test_a_client_with_narrow_windows_holds_its_handler_back(server):
    client = Raw(server)
    count, size = 100_000, 995
    client.call(1, b"Down", b"%d %d" % (count, size))
    blocked_at(server, size + 5)
    calm(server)
    # what the window let through, what may be on the way, and one more batch of 100
    assert server.sent * (size + 5) <= WINDOW + BACKLOG + 100 * (size + 5)
    client.widen(1 << 30, 1)
    assert len(client.body(1)) == count * (size + 5)
    client.socket.close()


def test_a_client_that_does_not_read_holds_its_handler_back(server):
    client = Raw(server, initial_window=(1 << 31) - 1)
    client.widen(1 << 30)
    count, size = 100_000, 9_995
    client.call(1, b"Down", b"%d %d" % (count, size))
    calm(server)
    # of a gigabyte what the two ends of the socket hold, and the backlog
    assert server.sent * (size + 5) < 64 * MIB
    client.kill()
    assert server.ended.get(timeout=PATIENCE) is True


def test_a_client_that_asks_and_does_not_listen_is_not_read(server, monkeypatch):
    monkeypatch.setattr(calls_module, "_DEAF_BYTES", BACKLOG + MIB)
    client = Raw(server)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # the answers are to wait at the server, and few questions on their way
        client.socket.setsockopt(socket.SOL_SOCKET, buffer, 64 << 10)
    pings = frame(PING, 0, 0, b"are you?") * 10_000
    said = 0
    client.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        while said < 200 * MIB:
            said += client.socket.send(pings[said % 17 :])
    client.socket.settimeout(PATIENCE)
    answered = []
    listening = threading.Thread(target=lambda: answered.append(client.body(1)))
    listening.start()
    client.socket.sendall(pings[said % 17 : 17])
    client.call(1, b"Write", b"now that I listen")
    listening.join(PATIENCE)
    assert answered == [b"\0" * 5]
    client.socket.close()


def test_too_many_streams_at_once():
    server, said = Server(max_streams=2), "Test: more than 2 streams at the same time"
    try:
        with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
            calls = [streaming(channel, "Wait")(b"x") for _ in range(2)]
            for call in calls:
                next(call)
            with pytest.raises(grpc.RpcError) as error:
                next(streaming(channel, "Wait")(b"x"))
            assert (error.value.code(), error.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, said)
            calls[0].cancel()
            server.ended.get(timeout=PATIENCE)
            eventually(lambda: len(server.front._handlers) == 1)
            assert next(streaming(channel, "Wait")(b"x")) == b"here"
    finally:
        server.front.stop(0)


@pytest.mark.parametrize(("most", "descriptors"), [(2, -1), (2, 1000), (4096, 5)])
def test_a_connection_too_many_is_refused(caplog, monkeypatch, most, descriptors):
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (descriptors, descriptors))
    server = Server(max_connections=most)
    try:
        clients = [Raw(server) for _ in range(2)]
        eventually(lambda: len(server.front._peers) == 2)
        with contextlib.suppress(ConnectionError), socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as refused:
            assert refused.recv(MIB) == b""
        eventually(lambda: "Test: refused 1 connections" in caplog.text)
        clients[0].kill()
        eventually(lambda: len(server.front._peers) == 1)
        again = Raw(server)
        again.call(1, b"Write", b"now there is room")
        assert again.body(1) == b"\0" * 5
        for client in (again, clients[1]):
            client.kill()
    finally:
        server.front.stop(0)


def test_rapid_resets(server, channel):
    client = Raw(server)
    block = block_of(b"Wait")
    for n in range(1, 2001, 2):
        client.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, n, block) + frame(RST_STREAM, 0, n, b"\0\0\0\x08"))
    assert unary(channel, "Write")(b"others go on") == b""
    eventually(lambda: not server.front._handlers)
    client.socket.close()


def test_dead_machines_are_noticed(server):
    with Raw(server).socket as client:
        eventually(lambda: server.front._peers)
        (peer,) = server.front._peers
        accepted = peer._transport.get_extra_info("socket")
        assert (
            accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            and accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        )
        client.recv(1)
