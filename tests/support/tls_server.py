"""A front over TLS whose handlers do what a test asks, and fronts that choose no protocol in ALPN, as real Pumps."""

import contextlib
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods, PendingCall, StreamCall
from pyspark_tidb_binlog.binlog_source.rpc.frames import UNKNOWN, Refusal
from pyspark_tidb_binlog.binlog_source.rpc.http1 import HttpRequest, HttpResponse
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.schemas.tls import TlsSettings

PATIENCE = 120.0


class TlsServer:
    """A front with TLS."""

    def __init__(self, tls: TlsSettings, addr: str = "127.0.0.1:0", socket_path: str = "", **limits: Any) -> None:
        self.front = RpcServer("Test").bind(addr, socket_path, tls)
        self.address = f"127.0.0.1:{self.front.port}"
        self.messages: queue.Queue[bytes] = queue.Queue()
        self.held: queue.Queue[PendingCall] = queue.Queue()
        self.sent = 0
        self.ended: queue.Queue[bool] = queue.Queue()
        self.go_on = threading.Event()
        unary = {b"/t/Write": self.write, b"/t/Hold": self.hold, b"/t/Refuse": self.refuse}
        stream = {b"/t/Down": self.down, b"/t/Wait": self.wait, b"/t/RefuseLate": self.refuse_late}
        self.front.serve(Methods(unary=unary, stream=stream, http=self.http, **limits))

    def write(self, data: bytes, call: PendingCall) -> None:
        self.messages.put(data)
        self.front.answer(((call, None),))

    def hold(self, data: bytes, call: PendingCall) -> None:
        self.held.put(call)

    def answer_one(self) -> None:
        self.front.call(self.front.answer, ((self.held.get(timeout=PATIENCE), None),))

    def refuse(self, data: bytes, call: PendingCall) -> None:
        raise Refusal(UNKNOWN, data.decode())

    def down(self, call: StreamCall) -> None:
        """``count size``: that many messages, numbered."""
        count, size = map(int, call.message.split())
        call.start([(b"x-echo", call.headers.get(b"x-say", b"nothing"))])
        for number in range(count):
            call.send([(b"%d " % number).ljust(size, b".")])
            self.sent = number + 1
            if call.cancelled:
                break
        self.ended.put(call.cancelled)

    def wait(self, call: StreamCall) -> None:
        """One message, then nothing until ``go_on``, or until the client cancels; then another."""
        call.on_cancel(self.go_on.set)
        call.start([])
        call.send([b"here"])
        assert self.go_on.wait(PATIENCE)
        call.send([b"the last"])
        self.ended.put(call.cancelled)

    def refuse_late(self, call: StreamCall) -> None:
        call.send([b"one", b"two"])
        raise Refusal(UNKNOWN, call.message.decode())

    def http(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(
            body=b"x" * (4 << 20) if request.path == "/large" else f"{request.method} {request.path} ".encode() + request.body
        )


@contextlib.contextmanager
def serving(tls: TlsSettings, **more: Any) -> Iterator[TlsServer]:
    """A front that is stopped at the end."""
    server = TlsServer(tls, **more)
    try:
        yield server
    finally:
        server.go_on.set()
        server.front.stop(0)


def without_alpn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every front choose no protocol, as a Go server without ``NextProtos``."""
    plain = TlsSettings.server
    monkeypatch.setattr(TlsSettings, "server", lambda self, *protocols: plain(self))


def connected(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A bare TLS connection."""
    host, _, port = address.rpartition(":")
    bare = socket.create_connection((host, int(port)), timeout=PATIENCE)
    try:
        return context.wrap_socket(bare, server_hostname=host)
    except BaseException:
        bare.close()
        raise
