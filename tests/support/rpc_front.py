"""A front to be tested, and the clients that a test needs: gRPC's calls, and bare frames that behave as they are told."""

import queue
import socket
import struct
import threading
import time

from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods
from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, UNKNOWN, Refusal, frame, literal
from pyspark_tidb_binlog.binlog_source.rpc.http1 import HttpResponse
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from tests.support.eventually import eventually
from tests.support.own_host import OWN_HOST

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
