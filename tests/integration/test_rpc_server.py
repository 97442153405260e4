"""The front with real clients: grpcio's, HTTP's, and bare sockets that misbehave."""

import contextlib
import gc
import http.client
import logging
import os
import queue
import resource
import socket
import struct
import threading
import time
from http import HTTPStatus

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.rpc import allowance as allowance_module
from pyspark_tidb_binlog.binlog_source.rpc import http_peer as http_peer_module
from pyspark_tidb_binlog.binlog_source.rpc import inflater as inflater_module
from pyspark_tidb_binlog.binlog_source.rpc import peer as peer_module
from pyspark_tidb_binlog.binlog_source.rpc import rpc_server as front_module
from pyspark_tidb_binlog.binlog_source.rpc import unfinished_request as request_module
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods
from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, frame
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import UNKNOWN, Refusal, inflated, message_of
from pyspark_tidb_binlog.binlog_source.rpc.header_block import literal
from pyspark_tidb_binlog.binlog_source.rpc.http1 import HttpResponse
from pyspark_tidb_binlog.binlog_source.rpc.listening import SocketFile
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from tests.support.eventually import eventually
from tests.support.own_host import OWN_HOST

pytestmark = pytest.mark.grpc

MIB = 1 << 20
PATIENCE = 20
"""Seconds after which a test has failed; nothing here takes them."""
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
BACKLOG = 2 * MIB
WINDOW = 65_535
READ = 256 << 10
"""Bytes that asyncio reads at once: by so much a bound may be passed."""
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
REFUSED_STREAM = 7
END_STREAM, END_HEADERS = 0x1, 0x4


class Server:
    """A front whose handlers tell what they see."""

    def __init__(self, max_request=1 << 62, socket_path="", **limits):
        self.front = RpcServer("Test").bind(f"{OWN_HOST}:0", socket_path)
        self.address = f"{OWN_HOST}:{self.front.port}"
        self.messages = queue.Queue()
        self.held = queue.Queue()
        self.calls = queue.Queue()
        self.requests = queue.Queue()
        self.sent = 0
        self.ended = queue.Queue()
        self.go_on = threading.Event()
        unary = {b"/t/Write": self.write, b"/t/Hold": self.hold, b"/t/Refuse": self.refuse, b"/t/Fail": self.fail}
        stream = {b"/t/Down": self.down, b"/t/Wait": self.wait, b"/t/RefuseLate": self.refuse_late, b"/t/FailLate": self.fail}
        stream[b"/t/RefuseAtOnce"] = self.refuse
        self.front.serve(Methods(unary=unary, stream=stream, http=self.http, max_request=max_request, **limits))

    def write(self, data, call):
        self.messages.put(data)
        self.front.answer(((call, None),))

    def hold(self, data, call):
        self.messages.put(data)
        self.held.put(call)

    def answer_one(self, refusal=None):
        self.front.call(self.front.answer, ((self.held.get(timeout=PATIENCE), refusal),))

    def refuse(self, data, call=None):
        message = getattr(data, "message", data)
        raise Refusal(UNKNOWN, message.decode())

    def fail(self, data, call=None):
        raise ValueError("a defect")

    def down(self, call):
        """``count size``: that many messages, numbered."""
        self.calls.put(call)
        count, size = map(int, call.message.split())
        call.start([(b"x-echo", call.headers.get(b"x-say", b"nothing"))])
        try:
            for first in range(0, count, 100):
                call.send([(b"%d " % n).ljust(size, b".") for n in range(first, min(first + 100, count))])
                self.sent = min(first + 100, count)
                if call.cancelled:
                    return
        finally:
            self.ended.put(call.cancelled)

    def wait(self, call):
        woken = threading.Event()
        call.on_cancel(woken.set)
        call.start([])
        call.send([b"here"])
        self.calls.put(call)
        assert woken.wait(PATIENCE)
        call.send([b"nobody hears this"])
        self.ended.put(call.cancelled)

    def refuse_late(self, call):
        call.send([b"one", b"two"])
        raise Refusal(UNKNOWN, call.message.decode())

    def http(self, request):
        self.requests.put(request)
        if request.path == "/slow":
            assert self.go_on.wait(PATIENCE)
        if request.path == "/fail":
            raise ValueError("a defect")
        if request.path == "/large":
            return HttpResponse(body=b"x" * (4 * MIB))
        return HttpResponse(body=f"{request.method} {request.path} ".encode() + request.body)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.go_on.set()
    server.front.stop(0)


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
        yield channel


def unary(channel, method, **more):
    return channel.unary_unary(f"/t/{method}", **more)


def streaming(channel, method):
    return channel.unary_stream(f"/t/{method}")


def block_of(method, *fields):
    return literal([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t/" + method), *fields])


class Raw:
    """A client of bare frames, which reads when it is told to."""

    def __init__(self, server, initial_window=None, source="127.0.0.1"):
        self.socket = socket.create_connection((OWN_HOST, server.front.port), PATIENCE, (source, 0))
        pairs = [] if initial_window is None else [(4, initial_window)]
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs)))

    def call(self, stream_id, method, message, *fields):
        block = block_of(method, *fields)
        body = struct.pack(">BI", 0, len(message)) + message
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream_id, block) + frame(DATA, END_STREAM, stream_id, body))

    def widen(self, more, *stream_ids):
        self.socket.sendall(b"".join(frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", more)) for stream_id in (0, *stream_ids)))

    def frames(self):
        """Every frame until the server closes the connection."""
        data = bytearray()
        while True:
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                end = 9 + int.from_bytes(data[:3], "big")
                yield data[3], data[4], int.from_bytes(data[5:9], "big"), bytes(data[9:end])
                del data[:end]
            more = self.socket.recv(MIB)
            if not more:
                return
            data += more

    def body(self, stream_id):
        """What comes for a stream until it ends."""
        parts = []
        for kind, flags, of, payload in self.frames():
            if of == stream_id and kind == DATA:
                parts.append(payload)
            if of == stream_id and flags & END_STREAM and kind == HEADERS:
                return b"".join(parts)
        raise AssertionError("the stream did not end")

    def kill(self):
        """As when the process dies: no goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def iter_until(client, kind):
    """Frames up to the first of a kind."""
    for found in client.frames():
        yield found
        if found[0] == kind:
            return


def blocked_at(server, size):
    """What the stream handler had sent when it could send no more to a client with one default window: messages of ``size`` bytes."""
    eventually(lambda: server.sent * size > WINDOW + BACKLOG)
    return server.sent


def calm(server):
    """Let the stream handler go on for as long as it can."""
    seen = 0
    while not seen or server.sent != seen:
        seen = server.sent
        time.sleep(0.1)


# What honest clients do.


def test_unary_calls_one_by_one_and_many_at_once(server, channel):
    call = unary(channel, "Write")
    assert call(b"") == b"" and server.messages.get_nowait() == b""
    bodies = [b"%d" % n * 50 for n in range(2000)]
    for future in [call.future(body) for body in bodies]:
        assert future.result(PATIENCE) == b""
    assert sorted(server.messages.get_nowait() for _ in bodies) == sorted(bodies)


def test_a_hundred_megabytes_up(server, channel):
    body = bytes(range(256)) * (100 * MIB // 256)
    assert unary(channel, "Write")(body, timeout=PATIENCE) == b""
    assert server.messages.get_nowait() == body


def test_many_small_messages_down(server, channel):
    answers = streaming(channel, "Down")(b"20000 30", timeout=PATIENCE)
    assert [int(answer.split()[0]) for answer in answers] == list(range(20_000))
    assert server.ended.get(timeout=PATIENCE) is False


def test_large_messages_down(server, channel):
    (first, second) = streaming(channel, "Down")(b"2 %d" % (20 * MIB), timeout=PATIENCE)
    assert first == b"0 ".ljust(20 * MIB, b".") and second.startswith(b"1 ")


@pytest.mark.parametrize(
    "options", [[], [("grpc.http2.bdp_probe", 0)], [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]]
)
def test_no_real_client_widens_its_windows_too_often(server, monkeypatch, options):
    """C-core widens windows by five bytes for each message that it waits for, and with a small lookahead for each message that comes."""
    monkeypatch.setattr(allowance_module, "CALM", 500)
    monkeypatch.setattr(allowance_module, "CALM_RATE", 0)
    with grpc.insecure_channel(server.address, options=UNLIMITED + options) as channel:
        for _ in range(20):
            writes = [unary(channel, "Write").future(b"x" * 200) for _ in range(100)]
            refused = [unary(channel, "Refuse").future(b"no") for _ in range(50)]
            assert [write.result(PATIENCE) for write in writes] == [b""] * 100
            assert all(call.exception(PATIENCE).details() == "no" for call in refused)
        for count, size in ((20_000, 40), (5_000, 1000), (100, MIB)):
            assert sum(1 for _ in streaming(channel, "Down")(b"%d %d" % (count, size))) == count


@pytest.mark.parametrize("size", [1, 5 * MIB])
def test_gzip_both_ways(server, size):
    body = b"z" * size
    with grpc.insecure_channel(server.address, options=UNLIMITED, compression=grpc.Compression.Gzip) as channel:
        assert unary(channel, "Write")(body) == b"" and server.messages.get_nowait() == body
        call = streaming(channel, "Down")(b"300 1000", timeout=PATIENCE)
        assert [answer.split(b" ")[0] for answer in call] == [b"%d" % n for n in range(300)]


def inflating(server):
    """How many calls wait for their message."""
    return sum(len(peer._inflations) for peer in list(server.front._peers))


def test_what_is_inflated_holds_up_nobody_and_is_in_the_budget(monkeypatch):
    """A few bytes may become 2 GiB: neither on the loop's thread, nor more of them than the server has memory for."""
    go_on, begun = threading.Event(), queue.Queue()

    def slowly(packed, limit, wanted):
        begun.put(len(packed))
        assert go_on.wait(PATIENCE)
        return inflated(packed, limit, wanted)

    monkeypatch.setattr(inflater_module, "inflated", slowly)
    server = Server(max_request=8 * MIB, max_unfinished=4 * MIB)
    try:
        with grpc.insecure_channel(server.address, options=UNLIMITED, compression=grpc.Compression.Gzip) as packing:
            writes = [unary(packing, "Write").future(bytes((n,)) * ((n + 1) * MIB), timeout=PATIENCE) for n in range(6)]
            left = unary(packing, "Write").future(b"l" * MIB)
            down = streaming(packing, "Down")(b"3".ljust(MIB) + b"10", timeout=PATIENCE)
            begun.get(timeout=PATIENCE)
            eventually(lambda: inflating(server) == 8)
            left.cancel()
            eventually(lambda: inflating(server) == 7)
            with grpc.insecure_channel(server.address, options=UNLIMITED) as plain:
                assert unary(plain, "Write")(b"others go on", timeout=PATIENCE) == b""
                assert server.messages.get_nowait() == b"others go on"
            assert server.front.budget.held <= 2 * MIB
            go_on.set()
            assert [write.result(PATIENCE) for write in writes] == [b""] * 6
            assert len(list(down)) == 3
            with pytest.raises(grpc.RpcError) as error:
                unary(packing, "Write")(b"x" * (9 * MIB), timeout=PATIENCE)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.RpcError, match="nothing of the kind"):
                unary(packing, "Refuse")(b"nothing of the kind".ljust(MIB), timeout=PATIENCE)
        assert sorted(map(len, server.messages.queue)) == [n * MIB for n in range(1, 7)]
        eventually(lambda: not server.front.budget.held and not server.front.budget.waiting)
    finally:
        go_on.set()
        server.front.stop(0)


def test_inflated_calls_wait_while_it_holds(server):
    """What is inflated meanwhile must not pass by the bound on what waits for the disk."""
    server.front.methods.unary[b"/t/Full"] = lambda data, call: (server.messages.put(data), server.front.hold(True))
    with grpc.insecure_channel(server.address, options=UNLIMITED, compression=grpc.Compression.Gzip) as packing:
        waiting = [unary(packing, "Full").future(bytes((n,)) * MIB) for n in range(3)]
        for seen in (1, 2, 3):
            eventually(lambda seen=seen: server.messages.qsize() == seen and server.front.held)
            server.front.call(server.front.hold, False)
        assert not any(call.done() for call in waiting)


def test_who_asks_in_gzip_is_answered_in_gzip(server):
    client = Raw(server)
    client.call(1, b"Down", b"1 10000", (b"grpc-encoding", b"gzip"))
    body = client.body(1)
    assert len(body) < 200 and message_of(body, {b"grpc-encoding": b"gzip"}, MIB) == b"0 ".ljust(10_000, b".")
    client.socket.close()


@pytest.mark.parametrize("body", [b"x", b"z" * 10_000])
def test_deflate_is_refused_in_a_real_pumps_words(server, body):
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Deflate) as channel, pytest.raises(grpc.RpcError) as error:
        unary(channel, "Write")(body)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.value.details() == 'grpc: Decompressor is not installed for grpc-encoding "deflate"'


def test_an_unknown_method(channel):
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Unheard/of")(b"x")
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "unknown method /t/Unheard/of")


@pytest.mark.parametrize("method", ["Refuse", "RefuseAtOnce", "RefuseLate"])
@pytest.mark.parametrize("text", ["cluster ID are mismatch, 8 vs 7", "100% für 漢字 😀\nsecond line", "%41 \x00 end "])
def test_texts_arrive_as_they_were_said(channel, method, text):
    answers = streaming(channel, method)(text.encode(), timeout=PATIENCE)
    got = []
    with pytest.raises(grpc.RpcError) as error:
        got.extend(answers)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNKNOWN, text)
    assert got == ([b"one", b"two"] if method == "RefuseLate" else [])


def test_a_long_text_does_not_break_the_connection(server, channel):
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Refuse")(("漢" * 100_000).encode())
    assert error.value.details().startswith("漢漢漢")
    assert unary(channel, "Write")(b"next") == b""


def test_metadata_both_ways(server, channel):
    call = streaming(channel, "Down")(b"1 1", metadata=(("x-say", "hello"), ("x-raw-bin", b"\x00\xff")), timeout=PATIENCE)
    assert dict(call.initial_metadata())["x-echo"] == "hello"
    headers = server.calls.get(timeout=PATIENCE).headers
    assert headers[b":path"] == b"/t/Down" and headers[b"x-raw-bin"] and headers[b"grpc-timeout"]
    assert len(list(call)) == 1


def test_a_request_above_the_limit():
    server = Server(max_request=1000)
    try:
        with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
            for body in (b"x" * 1001, b"x" * 10 * MIB):
                with pytest.raises(grpc.RpcError) as error:
                    unary(channel, "Write")(body)
                assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert error.value.details() == f"grpc: received message larger than max ({len(body)} vs. 1000)"
            assert unary(channel, "Write")(b"x" * 1000) == b""
            with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
                unary(channel, "Write")(b"x" * 10 * MIB, compression=grpc.Compression.Gzip)
    finally:
        server.front.stop(0)


def test_a_unix_socket(tmp_path):
    path = tmp_path / "pump.sock"
    for _ in range(2):  # the second time over what a killed process left behind
        server = Server(socket_path=str(path))
        with grpc.insecure_channel(f"unix:{path}") as channel:
            assert unary(channel, "Write")(b"x") == b""
        server.front.stop(0)
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))


# Clients that go away, and slow ones.


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
    monkeypatch.setattr(peer_module, "_DEAF_BYTES", BACKLOG + MIB)
    monkeypatch.setattr(allowance_module, "CALM", 1 << 40)
    client = Raw(server)
    pings = frame(PING, 0, 0, b"are you?") * 10_000
    said = 0
    client.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        while said < 200 * MIB:
            said += client.socket.send(pings)
    client.socket.settimeout(PATIENCE)
    answered = []
    listening = threading.Thread(target=lambda: answered.append(client.body(1)))
    listening.start()
    client.socket.sendall(pings[said % 17 : 17])
    client.call(1, b"Write", b"now that I listen")
    listening.join(PATIENCE)
    assert answered == [b"\0" * 5]
    client.socket.close()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_streams": 2}, "Test: more than 2 streams at the same time"),
        ({"max_streams_per_peer": 2}, "Test: more than 2 streams from 127.0.0.1 at the same time"),
    ],
)
def test_too_many_streams_at_once(limits, said):
    server = Server(**limits)
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


def test_one_address_does_not_lock_the_others_out():
    server = Server(max_streams_per_peer=3)
    try:
        greedy, other = Raw(server), Raw(server, source="127.0.0.2")
        for stream_id in range(1, 21, 2):
            greedy.call(stream_id, b"Wait", b"x")
        other.call(1, b"Wait", b"x")
        eventually(lambda: server.calls.qsize() == 4)
        eventually(lambda: {address: len(calls) for address, calls in server.front._streams_of.items()} == {"127.0.0.1": 3, "127.0.0.2": 1})
        greedy.kill()
        other.kill()
        eventually(lambda: not server.front._streams_of)
    finally:
        server.front.stop(0)


def is_closed(client):
    """Whether the server has closed a connection, and said so in HTTP/2's words."""
    client.socket.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionError):
        return GOAWAY in [f[0] for f in client.frames()]
    return False


def test_idle_connections_make_room():
    server = Server(max_connections=6, max_connections_per_peer=3)
    try:
        busy, *idle = (Raw(server) for _ in range(3))
        busy.call(1, b"Wait", b"x")
        server.calls.get(timeout=PATIENCE)
        eventually(lambda: len(server.front._peers) == 3 and all(peer.connection for peer in server.front._peers))
        own = Raw(server)
        assert is_closed(idle[0]), "of one address the idle one goes that was silent for the longest"
        others = [Raw(server, source="127.0.0.2") for _ in range(3)]
        eventually(lambda: len(server.front._peers) == 6)
        newcomer = Raw(server, source="127.0.0.3")
        newcomer.call(1, b"Write", b"the newcomer is served")
        assert newcomer.body(1) == b"\0" * 5
        eventually(lambda: len(server.front._peers) == 6)
        busy.socket.sendall(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
        assert server.ended.get(timeout=PATIENCE) is True, "who had a call stayed"
        for client in (busy, own, newcomer, *idle, *others):
            client.socket.close()
    finally:
        server.front.stop(0)


def test_where_all_have_calls_the_newcomer_is_refused(caplog, monkeypatch):
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    server = Server(max_connections_per_peer=2)
    try:
        clients = [Raw(server) for _ in range(2)]
        for client in clients:
            client.call(1, b"Wait", b"x")
            server.calls.get(timeout=PATIENCE)
        with contextlib.suppress(ConnectionError), socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as refused:
            while refused.recv(MIB):
                pass
        eventually(lambda: "connections to make room" in caplog.text)
        clients[0].kill()
        eventually(lambda: len(server.front._peers) == 1)
        again = Raw(server)
        again.call(1, b"Write", b"now there is room")
        assert again.body(1) == b"\0" * 5
        again.socket.close()
        clients[1].kill()
    finally:
        server.front.stop(0)


def test_connections_leave_descriptors_for_the_files(server):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2 * max(map(int, os.listdir("/proc/self/fd"))) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    clients = []
    try:
        # the clients live in the same process: half of the descriptors are theirs
        with contextlib.suppress(OSError):
            while len(clients) < limit:
                clients.append(Raw(server, source=f"127.0.0.{2 + len(clients) % 50}"))
                eventually(lambda: server.front._peers)  # the first one gets in, however late the front takes the others
                if len(clients) > 1 and max(map(int, os.listdir("/proc/self/fd"))) >= limit - limit // 4 + 10:
                    break
        eventually(lambda: max(peer._transport.get_extra_info("socket").fileno() for peer in server.front._peers) < limit - limit // 4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for client in clients:
            client.socket.close()


def test_stopping_closes_the_connections_that_were_just_accepted(recwarn):
    """A client that connects while it stops is not left with a socket that nobody closes."""
    for _ in range(20):
        server = Server()
        clients = [socket.create_connection((OWN_HOST, server.front.port), PATIENCE) for _ in range(40)]
        server.front.stop(0)
        for client in clients:
            client.close()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_two_stop_it_at_once():
    """Each returns when it is stopped; neither waits for a loop that the other has ended."""
    front = RpcServer("test").bind(f"{OWN_HOST}:0").serve(Methods())
    is_alive, stopped, looked = front._thread.is_alive, threading.Event(), []

    def slowly():
        alive = is_alive()
        looked.append(alive)
        if len(looked) > 1:
            stopped.wait(PATIENCE / 2)
        return alive

    front._thread.is_alive = slowly
    both = [threading.Thread(target=lambda: (front.stop(0.1), stopped.set()), daemon=True) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(PATIENCE)
    assert not any(one.is_alive() for one in both)
    front.stop(0)


def test_rapid_resets(server, channel):
    client = Raw(server)
    block = block_of(b"Wait")
    with pytest.raises(ConnectionError):
        for n in range(1, 100_001, 2):
            client.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, n, block) + frame(RST_STREAM, 0, n, b"\0\0\0\x08"))
    eventually(lambda: not server.front._handlers)
    assert unary(channel, "Write")(b"others go on") == b""
    client.socket.close()


# Requests that do not become complete.


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
    eventually(lambda: server.front.budget.held > 512 * 59_990)
    # it has not heard of our first window, so that its first frames are counted beside what is granted
    assert server.front.budget.held <= 512 * (60_005 + 16_000)
    assert unary(channel, "Write")(b"others go on") == b""
    client.kill()
    eventually(lambda: server.front.budget.held == 0)


def test_a_newcomer_takes_the_place_of_who_has_many():
    server = Server(max_streams=6, max_streams_per_peer=5)
    try:
        many, few = Raw(server), Raw(server, source="127.0.0.2")
        for stream_id in (1, 3, 5, 7):
            many.call(stream_id, b"Wait", b"x")
        for stream_id in (1, 3):
            few.call(stream_id, b"Wait", b"x")
        calls = [server.calls.get(timeout=PATIENCE) for _ in range(6)]
        of_many = sorted((call for call in calls if call.address == "127.0.0.1"), key=lambda call: call.stream_id)
        of_many[0].send([b"this one moves"])
        eventually(lambda: of_many[0].moved > max(call.moved for call in of_many[1:]))
        newcomer = Raw(server, source="127.0.0.3")
        newcomer.call(1, b"Wait", b"x")
        assert server.calls.get(timeout=PATIENCE).address == "127.0.0.3"
        assert server.ended.get(timeout=PATIENCE) is True
        ended = next(f for f in many.frames() if f[0] == HEADERS and f[1] & END_STREAM)
        assert ended[2] == min(of_many[1:], key=lambda call: call.moved).stream_id and b"this client has 4 of them" in ended[3]
        eventually(lambda: {a: len(c) for a, c in server.front._streams_of.items()} == {"127.0.0.1": 3, "127.0.0.2": 2, "127.0.0.3": 1})
        few.call(5, b"Wait", b"x")
        assert b"more than 6 streams" in next(f[3] for f in few.frames() if f[2] == 5), "who has two already waits for its turn"
        for client in (many, few, newcomer):
            client.kill()
        eventually(lambda: not server.front._streams_of and not server.front._handlers)
    finally:
        server.front.stop(0)


def half_a_request(client, stream_id, size, come):
    """A request that fits into the first window, without its end."""
    client.socket.sendall(frame(HEADERS, END_HEADERS, stream_id, block_of(b"Write")))
    client.socket.sendall(frame(DATA, 0, stream_id, struct.pack(">BI", 0, size) + b"x" * come))


def test_the_client_that_holds_the_most_for_nothing_makes_room():
    server = Server(max_unfinished=2 * MIB)
    try:
        modest, greedy = Raw(server), Raw(server)
        half_a_request(modest, 1, 3000, 2000)
        eventually(lambda: server.front.budget.held > 2000)
        with contextlib.suppress(ConnectionError):
            for stream_id in range(1, 801, 2):
                half_a_request(greedy, stream_id, 4000, 3990)
                assert server.front.budget.held <= 2 * MIB + READ
        eventually(lambda: len(server.front._peers) == 1 and server.front.budget.held < 3000)
        modest.socket.sendall(frame(DATA, END_STREAM, 1, b"x" * 1000))
        assert modest.body(1) == b"\0" * 5
        assert server.messages.get_nowait() == b"x" * 3000
        modest.socket.close()
        greedy.socket.close()
    finally:
        server.front.stop(0)


def test_honest_clients_wait_for_memory_and_are_not_cut_off():
    """More requests at once than there is memory for, of clients that do nothing wrong: all of them are served, on their first connections."""
    server = Server(max_unfinished=8 * MIB)
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
                most = max(most, server.front.budget.held)
                time.sleep(0.001)
            assert [call.exception() for call in calls] == [None] * len(calls)
        assert 0 < most <= 8 * MIB + READ
        eventually(lambda: server.front.budget.held == 0 and not server.front.budget.waiting)
    finally:
        server.front.stop(0)


def test_where_too_many_wait_some_are_refused_and_nobody_is_cut_off():
    """With hardly any memory: who waits is refused in words that say that it may come again."""
    server = Server(max_unfinished=MIB)
    try:
        with contextlib.ExitStack() as stack:
            channels = [stack.enter_context(grpc.insecure_channel(server.address, options=UNLIMITED)) for _ in range(4)]
            for channel in channels:
                assert unary(channel, "Write")(b"hello") == b""
            server.front.call(server.front.hold, True)
            calls = [unary(channel, "Write").future(b"y" * 100_000, timeout=60) for _ in range(400) for channel in channels]
            time.sleep(0.5)
            server.front.call(server.front.hold, False)
            errors = [error for error in (call.exception() for call in calls) if error is not None]
        assert 0 < len(errors) < len(calls)
        assert {(error.code(), error.details().partition(": ")[2]) for error in errors} <= {
            (grpc.StatusCode.UNAVAILABLE, "too many requests wait for memory")
        }
        eventually(lambda: server.front.budget.held == 0 and not server.front.budget.waiting)
    finally:
        server.front.stop(0)


def test_large_requests_come_in_turn_and_all_of_them():
    server = Server(max_unfinished=16 * MIB)
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
                most = max(most, server.front.budget.held)
                time.sleep(0.001)
            assert [call.result(PATIENCE) for call in calls] == [b""] * 23
        assert 0 < most <= 16 * MIB
        assert sorted(map(len, [server.messages.get_nowait() for _ in range(23)])) == [3 * MIB] * 20 + [40 * MIB] * 3
        eventually(lambda: server.front.budget.held == 0 and not server.front.budget.waiting)
    finally:
        server.front.stop(0)


def test_who_announces_much_and_sends_nothing_is_refused_and_the_next_goes_on(server, channel, monkeypatch):
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    monkeypatch.setattr(request_module, "PATIENCE", 0.3)
    monkeypatch.setattr(request_module, "SLOWEST", 32 * MIB)  # what is sent gets through even on a machine that is busy
    client = Raw(server)
    for stream_id in (1, 3):
        unfinished(client, stream_id, 200 * MIB, WINDOW)
    eventually(lambda: server.front.budget.waiting)
    assert unary(channel, "Write")(b"w" * (100 * MIB), timeout=PATIENCE) == b""
    refusal = next(f for f in client.frames() if f[0] == HEADERS and f[2] == 1)
    assert b"the request is not complete after" in refusal[3]
    eventually(lambda: server.front.budget.held == 0)
    client.socket.close()


def test_while_it_holds_nobodys_time_passes(server, monkeypatch):
    monkeypatch.setattr(front_module, "LOOK", 0.02)
    monkeypatch.setattr(request_module, "PATIENCE", 0.3)
    client = Raw(server)
    unfinished(client, 1, 1000, 500)
    eventually(lambda: server.front.budget.held)
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
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    monkeypatch.setattr(peer_module, "FIRST_WORD", 0.1)
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as silent:
        silent.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            while silent.recv(MIB):
                pass
    eventually(lambda: not server.front._peers)


@pytest.mark.parametrize("said", [b"GET /slow HTTP/1.1\r\nHost", b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: 9\r\n\r\nbod"])
def test_an_http_request_that_does_not_become_complete_is_dropped(server, monkeypatch, said):
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    monkeypatch.setattr(http_peer_module, "REQUEST_SECONDS", 0.3)
    with socket.create_connection((OWN_HOST, server.front.port), PATIENCE) as slow, contextlib.suppress(ConnectionError):
        for byte in said:
            slow.sendall(bytes((byte,)))
        while slow.recv(MIB):
            pass
    eventually(lambda: not server.front._peers and server.front.budget.held == 0)


def test_an_idle_http_connection_is_closed_and_a_busy_one_is_not(server, monkeypatch):
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    client = http.client.HTTPConnection(OWN_HOST, server.front.port, PATIENCE)
    for _ in range(3):
        client.request("GET", "/a")
        client.getresponse().read()
    monkeypatch.setattr(http_peer_module, "IDLE_SECONDS", 0.3)
    address = client.sock.getsockname()
    client.request("GET", "/slow")
    time.sleep(1)
    server.go_on.set()
    client.getresponse().read()
    assert client.sock.getsockname() == address
    assert client.sock.recv(1) == b""
    client.close()


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


# Handlers that fail.


@pytest.mark.parametrize("method", ["Fail", "FailLate"])
def test_a_defect_in_a_handler_fails_its_own_call_only(server, channel, caplog, method):
    held = unary(channel, "Hold").future(b"x")
    with pytest.raises(grpc.RpcError) as error:
        next(streaming(channel, method)(b"x"))
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INTERNAL, "ValueError: a defect")
    server.answer_one()
    assert held.result(PATIENCE) == b""
    # In the records: PySpark gives the handlers of a process a format of its own.
    assert any(record.getMessage() == "a call failed" and record.exc_info for record in caplog.records)


def test_a_refusal_that_is_raised_for_ever_gathers_nothing(server, channel):
    kept = Refusal(UNKNOWN, "no")

    def refuse(data, call):
        raise kept

    server.front.methods.unary[b"/t/Kept"] = refuse
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="no"):
            unary(channel, "Kept")(b"x")
    assert kept.__traceback__ is None


# Holding.


def test_while_it_holds_nothing_is_read_and_nothing_is_lost(server, channel):
    call = unary(channel, "Write")
    call(b"before")
    server.front.call(server.front.hold, True)
    futures = [call.future(b"%d" % n) for n in range(100)]
    with grpc.insecure_channel(server.address, options=UNLIMITED) as later:
        futures.append(unary(later, "Write").future(b"from a client that comes meanwhile", wait_for_ready=True))
        time.sleep(0.2)
        assert server.messages.qsize() == 1 and not any(future.done() for future in futures)
        server.front.call(server.front.hold, False)
        assert [future.result(PATIENCE) for future in futures] == [b""] * 101
    assert server.messages.qsize() == 102


# The end.


def test_stop_ends_streams_and_lets_calls_under_way_finish(server, channel):
    waiting = streaming(channel, "Wait")(b"x")
    assert next(waiting) == b"here"
    held = unary(channel, "Hold").future(b"x")
    eventually(lambda: server.held.qsize() == 1)
    stopping = threading.Thread(target=server.front.stop, args=(PATIENCE,))
    stopping.start()
    assert list(waiting) == [] and waiting.code() is grpc.StatusCode.OK
    assert stopping.is_alive()
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Write")(b"too late")
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE and server.messages.qsize() == 1
    server.answer_one()
    assert held.result(PATIENCE) == b""
    stopping.join(PATIENCE)
    assert not stopping.is_alive()


def test_what_was_sent_before_stop_arrives_though_its_client_is_slow(server):
    client = Raw(server)
    client.call(1, b"Down", b"100000 995")
    sent = blocked_at(server, 1000)
    stopping = threading.Thread(target=server.front.stop, args=(PATIENCE,))
    stopping.start()
    assert server.ended.get(timeout=PATIENCE) is True
    client.widen(1 << 30, 1)
    body = client.body(1)
    assert body == b"".join(b"\x00\x00\x00\x03\xe3" + (b"%d " % n).ljust(995, b".") for n in range(sent))
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    client.socket.close()


def test_stop_does_not_wait_for_ever_for_a_client_that_does_not_read(server):
    client = Raw(server, initial_window=(1 << 31) - 1)
    client.widen(1 << 30)
    client.call(1, b"Down", b"100000 10000")
    calm(server)
    server.front.stop(0.1)
    assert server.ended.get_nowait() is True and not server.front._peers
    client.socket.close()
    gc.collect()  # a transport left open would complain here


def test_stop_waits_for_the_handler_of_a_client_that_is_gone(server):
    done = threading.Event()

    def dawdle(call):
        server.calls.put(call)
        eventually(lambda: call.cancelled)
        time.sleep(0.2)
        done.set()

    server.front.methods.stream[b"/t/Dawdle"] = dawdle
    client = Raw(server)
    client.call(1, b"Dawdle", b"")
    server.calls.get(timeout=PATIENCE)
    client.kill()
    server.front.stop(PATIENCE)
    assert done.is_set()


def test_a_handler_that_does_not_end_is_named(server, caplog, monkeypatch):
    monkeypatch.setattr(peer_module, "LINGER", 0.05)
    server.front.methods.stream[b"/t/Deaf"] = lambda call: server.calls.put(call) or server.go_on.wait(PATIENCE)
    client = Raw(server)
    client.call(1, b"Deaf", b"")
    server.calls.get(timeout=PATIENCE)
    with caplog.at_level(logging.ERROR):
        server.front.stop(0)
    assert "1 streams have not ended" in caplog.text
    client.socket.close()


def test_after_stop_nothing_happens(server):
    server.front.stop(0)
    server.front.call(lambda: pytest.fail("the loop is closed"))
    server.front.stop(0)


# HTTP/1 on the same port.


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
    assert (answer.status, answer.read()) == (HTTPStatus.INTERNAL_SERVER_ERROR, b"ValueError: the log has more\n")
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


# Places to listen at.


def test_a_port_in_use(server):
    with pytest.raises(NotUsableYet, match=f"cannot listen on {OWN_HOST}:{server.front.port}"):
        RpcServer("Second").bind(server.address)


def test_a_port_that_another_takes_between_bind_and_serve():
    first = RpcServer("First").bind("127.0.0.1:0")
    second = RpcServer("Second").bind(f"127.0.0.1:{first.port}")
    first.serve(Methods())
    with pytest.raises(NotUsableYet, match="Second cannot listen"):
        second.serve(Methods())
    first.stop(0)
    second.stop(0)


@pytest.mark.parametrize("addr", ["", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", "256.0.0.1:0", "127.0.0.1:-1"])
def test_an_address_that_is_none(addr):
    with pytest.raises(ConfigError, match="Test cannot listen on") as refused:
        RpcServer("Test").bind(addr)
    assert not isinstance(refused.value, NotUsableYet)


@pytest.mark.parametrize("addr", ["192.0.2.1:0", "not-there-yet.invalid:0"])
def test_an_address_that_may_be_there_later(addr):
    with pytest.raises(NotUsableYet, match="Test cannot listen on"):
        RpcServer("Test").bind(addr)


def test_a_file_is_not_taken_for_a_socket(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="precious") as refused:
        RpcServer("Test").bind("127.0.0.1:0", str(path))
    assert path.read_text() == "data" and not isinstance(refused.value, NotUsableYet)


def test_a_socket_at_which_somebody_answers_is_left_alone_and_a_stale_one_is_replaced(tmp_path):
    path = tmp_path / "pump.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    first = Server(socket_path=str(path))
    with pytest.raises(NotUsableYet, match=r"another process listens there: .*pump\.sock"):
        RpcServer("Second").bind("127.0.0.1:0", str(path))
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert unary(channel, "Write")(b"the first goes on", timeout=PATIENCE) == b""
    first.front.stop(0)
    assert not path.exists()


def test_a_stale_socket_of_another_user_is_replaced_and_a_live_one_is_not(tmp_path, monkeypatch):
    path = tmp_path / "pump.sock"

    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    with socket.socket(socket.AF_UNIX) as others:
        others.bind(str(path))
        others.listen()
        with monkeypatch.context() as patched, pytest.raises(OSError, match="another process listens there"):
            patched.setattr(socket.socket, "connect", refuse)
            SocketFile(str(path))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    SocketFile(str(path))


def test_a_socket_that_another_has_replaced_is_told_and_not_removed(tmp_path):
    path = tmp_path / "pump.sock"
    early = RpcServer("Early").bind("127.0.0.1:0", str(path))  # does not listen yet, so nobody answers
    second = Server(socket_path=str(path))
    with pytest.raises(NotUsableYet, match="another process has replaced it"):
        early.serve(Methods())
    early.stop(0)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert unary(channel, "Write")(b"still there", timeout=PATIENCE) == b""
    path.unlink()
    second.front.stop(0)


def test_before_serve_connections_are_refused():
    front = RpcServer("Test").bind("127.0.0.1:0")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", front.port), 1)
    front.stop(0)
