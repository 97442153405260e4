"""Requests that do not become complete: the memory that they may hold, who waits for it, and who is closed."""

import contextlib
import socket
import struct
import threading
import time

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.rpc import calls as calls_module
from pyspark_tidb_binlog.binlog_source.rpc import rpc_server as front_module
from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, frame
from tests.support.eventually import eventually
from tests.support.own_host import OWN_HOST
from tests.support.rpc_front import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MIB,
    PATIENCE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    UNLIMITED,
    WINDOW,
    Raw,
    Server,
    block_of,
    iter_until,
    unary,
)

pytestmark = pytest.mark.grpc


def unfinished(client, stream_id, size, come, method=b"Write"):
    """Send ``come`` bytes of a request that says that it has ``size``, as far as its first window goes."""
    client.socket.sendall(frame(HEADERS, END_HEADERS, stream_id, block_of(method)))
    data = (struct.pack(">BI", 0, size) + b"x" * come)[:WINDOW]
    client.socket.sendall(b"".join(frame(DATA, 0, stream_id, data[at : at + 16_000]) for at in range(0, len(data), 16_000)))


def test_unfinished_requests_are_bounded_for_a_connection(server, channel):
    client = Raw(server)
    for stream_id in range(1, 2001, 2):
        unfinished(client, stream_id, 60_000, 59_990)
    *_, last = iter_until(client, RST_STREAM)
    assert last[3] == struct.pack(">I", REFUSED_STREAM)
    (peer,) = (peer for peer in server.front._peers if peer.connection)
    eventually(lambda: sum(len(stream.body) for stream in peer.connection._streams.values()) == 512 * 59_995)
    assert unary(channel, "Write")(b"others go on") == b""
    client.kill()
    eventually(lambda: len(server.front._peers) == 1)


def test_honest_clients_wait_for_memory_and_are_not_cut_off():
    """More requests at once than there is memory for: all of them are served, on their first connections."""
    server = Server(request_memory=8 * MIB)
    most = 0
    try:
        with contextlib.ExitStack() as stack:
            channels = [stack.enter_context(grpc.insecure_channel(server.address, options=UNLIMITED)) for _ in range(8)]
            for channel in channels:
                assert unary(channel, "Write")(b"hello") == b""
            server.front.call(server.front.hold, True)
            calls = [unary(channel, "Write").future(b"y" * 100_000, timeout=60) for _ in range(100) for channel in channels]
            time.sleep(0.5)
            server.front.call(server.front.hold, False)
            while not all(call.done() for call in calls):
                most = max(most, server.front.memory.held)
                time.sleep(0.001)
            assert [call.exception() for call in calls] == [None] * len(calls)
        assert 0 < most <= 8 * MIB
        eventually(lambda: server.front.memory.held == 0 and not server.front.memory._waiting)
    finally:
        server.front.stop(0)


def test_large_requests_come_in_turn_and_all_of_them():
    server = Server(request_memory=16 * MIB)
    most = 0
    try:
        with (
            grpc.insecure_channel(server.address, options=UNLIMITED) as one,
            grpc.insecure_channel(server.address, options=UNLIMITED) as two,
        ):
            body = b"y" * (3 * MIB)
            calls = [unary(channel, "Write").future(body) for _ in range(10) for channel in (one, two)]
            calls += [unary(one, "Write").future(b"z" * (40 * MIB)) for _ in range(3)]
            while not all(call.done() for call in calls):
                most = max(most, server.front.memory.held)
                time.sleep(0.001)
            assert [call.result(PATIENCE) for call in calls] == [b""] * 23
        assert 16 * MIB < most <= 40 * MIB + 5, "the largest ones alone"
        assert sorted(map(len, [server.messages.get_nowait() for _ in range(23)])) == [3 * MIB] * 20 + [40 * MIB] * 3
        eventually(lambda: server.front.memory.held == 0 and not server.front.memory._waiting)
    finally:
        server.front.stop(0)


def test_who_announces_much_and_sends_nothing_is_closed_and_the_next_goes_on(monkeypatch):
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    server = Server(request_memory=32 * MIB)
    try:
        silent, busy = Raw(server), Raw(server)
        unfinished(silent, 1, 24 * MIB, WINDOW)
        busy.call(1, b"Wait", b"x")
        eventually(lambda: server.front.memory.held and server.calls.qsize())
        with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
            waiting = unary(channel, "Write").future(b"w" * (12 * MIB), timeout=PATIENCE)
            eventually(lambda: server.front.memory._waiting)
            monkeypatch.setattr(calls_module, "IDLE_SECONDS", 0.5)
            assert waiting.result() == b""
        with contextlib.suppress(ConnectionError):
            assert GOAWAY not in [f[0] for f in silent.frames()]
        eventually(lambda: server.front.memory.held == 0)
        assert server.ended.empty(), "who owes nothing may be silent"
        for client in (silent, busy):
            client.socket.close()
    finally:
        server.front.stop(0)


def test_while_it_holds_nobodys_time_passes(server, monkeypatch):
    monkeypatch.setattr(calls_module, "IDLE_SECONDS", 0.3)
    client = Raw(server)
    server.front.call(server.front.hold, True)
    unfinished(client, 1, 1000, 500)
    server.front.call(server.front.hold, True)
    client.socket.sendall(frame(DATA, END_STREAM, 1, b"x" * 500))
    time.sleep(1)
    server.front.call(server.front.hold, False)
    assert client.body(1) == b"\0" * 5
    client.socket.close()


def test_calls_that_came_in_one_piece_wait_while_it_holds(server):
    """A little that becomes much, as gzip's does, must not pass by the bound on what waits for the disk."""
    server.front.methods.unary[b"/t/Full"] = lambda data, call: (server.messages.put(data), server.front.hold(True))
    client = Raw(server)
    body = b"\0\0\0\0\x01x"
    calls = b"".join(frame(HEADERS, END_HEADERS, n, block_of(b"Full")) + frame(DATA, END_STREAM, n, body) for n in (1, 3, 5))
    client.socket.sendall(calls)
    for seen in (1, 2, 3):
        eventually(lambda seen=seen: server.messages.qsize() == seen and server.front.held)
        server.front.call(server.front.hold, False)
    client.socket.close()


def test_a_client_that_breaks_the_protocol_is_told_and_cut_off(server, channel, caplog):
    assert unary(channel, "Write")(b"x") == b""
    client = Raw(server)
    client.call(1, b"Wait", b"x")
    server.calls.get(timeout=PATIENCE)
    client.socket.sendall(frame(SETTINGS, 0, 0, b"12345"))
    *_, last = client.frames()
    assert last[0] == GOAWAY and last[3] == struct.pack(">II", 1, 6) + b"SETTINGS of 5 bytes"
    assert server.ended.get(timeout=PATIENCE) is True
    assert "SETTINGS of 5 bytes" in caplog.text
    assert unary(channel, "Write")(b"others go on") == b""
    client.socket.close()


@pytest.mark.parametrize("said", [b"", b"PR", PREFACE[:20], PREFACE, PREFACE + frame(SETTINGS, 0, 0, b"123456")[:-1]])
def test_a_client_that_does_not_finish_its_first_words_is_dropped(server, monkeypatch, said):
    monkeypatch.setattr(calls_module, "IDLE_SECONDS", 0.1)
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as silent:
        silent.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            while silent.recv(MIB):
                pass
    eventually(lambda: not server.front._peers)


def test_a_look_that_fails_is_not_the_last(server, monkeypatch):
    """Without further looks no client would ever time out."""
    monkeypatch.setattr(calls_module, "IDLE_SECONDS", 0.1)
    own, failed = calls_module.Peer.look, threading.Event()

    def look(peer, now):
        if not failed.is_set():
            failed.set()
            raise ValueError("a defect")
        own(peer, now)

    monkeypatch.setattr(calls_module.Peer, "look", look)
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as silent:
        assert silent.recv(MIB) == b"" and failed.is_set()
