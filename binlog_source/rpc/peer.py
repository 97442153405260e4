"""One connection: its protocol, detected by the first bytes, and its calls or requests. Everything here runs on the loop's thread.

Promises: while a client does not read its answers, nothing is read from it. A client that owes something, its first words or the rest of a
request, and neither sends nor reads for ``IDLE_SECONDS`` is closed. A client that violates HTTP/2 receives GOAWAY and is closed. While the
server holds (``RpcServer.hold``), received calls wait, and no timeout runs. Then only HTTP/1 is read, and clients of streams until their next
call.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pyspark_tidb_binlog.binlog_source.rpc.calls import BACKLOG_BYTES, Loop, Methods, PendingCall, StreamCall, StreamHandler
from pyspark_tidb_binlog.binlog_source.rpc.frames import ErrorCode, ProtocolError
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import INTERNAL, UNIMPLEMENTED, Refusal, message_of
from pyspark_tidb_binlog.binlog_source.rpc.header_block import Fields
from pyspark_tidb_binlog.binlog_source.rpc.http1 import HttpRequest, HttpResponse
from pyspark_tidb_binlog.binlog_source.rpc.http2 import Call, Connection, Event
from pyspark_tidb_binlog.binlog_source.rpc.http_peer import HttpPeer
from pyspark_tidb_binlog.binlog_source.rpc.request_memory import RequestMemory

_log = logging.getLogger(__name__)

_DEAF_BYTES = 16 << 20
"""A peer is not read from while more bytes than this wait to be sent to it. Far above ``BACKLOG_BYTES``, which a slow client may reach."""
IDLE_SECONDS = 60.0
"""Seconds within which a client that owes something must send or read some bytes."""
LINGER = 1.0
"""Seconds that a closing connection may take to send what is buffered."""


class PeerServer(Loop, Protocol):
    """What a connection uses of its server. On the loop's thread."""

    methods: Methods
    held: bool
    memory: RequestMemory

    def joined(self, peer: "Peer") -> None:
        """A connection was made."""

    def left(self, peer: "Peer") -> None:
        """A connection was lost."""

    def run_stream(self, handler: StreamHandler, call: StreamCall) -> None:
        """Answer a call from a thread of its own."""

    def run_http(self, request: HttpRequest, answered: Callable[[HttpRequest, HttpResponse], None]) -> None:
        """Answer a request from another thread; ``answered`` is called on the loop's."""

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Have ``act`` called after a while."""


class Peer(asyncio.Protocol):
    """One connection. Everything here runs on the loop's thread."""

    def __init__(self, server: PeerServer) -> None:
        self.server = server
        self._transport: asyncio.Transport | None = None
        self.address = ""
        """The client's host; "" on a Unix socket."""
        self._moved = 0.0  # when the client last sent or read something, or owed nothing
        self._unsent = 0  # bytes that it had not read then
        self._head = b""
        self.connection: Connection | None = None
        self._http: HttpPeer | None = None
        self.streams: dict[int, StreamCall] = {}
        self._events: deque[Event] = deque()
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection was made."""
        assert isinstance(transport, asyncio.Transport)
        self._use(transport)
        self._join(transport)

    def _use(self, transport: asyncio.Transport) -> None:
        """Send through this transport."""
        self._transport = transport
        transport.set_write_buffer_limits(high=BACKLOG_BYTES)

    def _join(self, transport: asyncio.Transport) -> None:
        """Be one of the server's connections."""
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if isinstance(name, tuple) else ""
        self._moved = self.server.now()
        self.server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection was lost; its calls are cancelled."""
        self.server.left(self)
        self._give_up()
        self._transport = None

    def look(self, now: float) -> None:
        """Check the timeout."""
        if self._transport is None:
            return
        if self._paused:
            self._relieve()
        unsent = self._transport.get_write_buffer_size()
        if self.server.held or unsent != self._unsent or not self._owes():
            self._moved, self._unsent = now, unsent
        elif now - self._moved > IDLE_SECONDS:
            _log.info("closing the connection of client %s, which was silent for %g s", self.address, IDLE_SECONDS)
            self._transport.abort()

    def _owes(self) -> bool:
        """Whether the client has to send something, or over HTTP/1 to read its answer."""
        if self._http is not None:
            return not self._http.answering
        return self.connection is None or self.connection.awaits

    def _give_up(self) -> None:
        """Cancel the calls: the client no longer waits for answers."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self._events.clear()
        for call in self.streams.values():
            call.cancel()
        self.streams.clear()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were received."""
        self._moved = self.server.now()
        if self.connection is not None:
            self._h2_received(self.connection, data)
        elif self._http is not None:
            self._http.received(data)
        else:
            self._sniff(self._head + data)

    def eof_received(self) -> bool:
        """asyncio: the client sends no more. Whether to keep the connection: an HTTP/1 client may still wait for its answer."""
        return self._http is not None and self._http.ended()

    def _sniff(self, head: bytes) -> None:
        self._head = head
        if len(head) < 3:
            return
        if head.startswith(b"PRI"):
            self.connection = Connection(self.server.methods.max_request, self.server.memory, self.flush)
            self._h2_received(self.connection, head)
        elif self._transport is not None:
            self._http = HttpPeer(self.server.run_http, self._transport)
            self._http.received(head)

    def _h2_received(self, connection: Connection, data: bytes) -> None:
        try:
            self._events.extend(connection.receive(data))
        except ProtocolError as error:
            self._fail(connection, error.code, str(error))
            return
        self._act()

    def _fail(self, connection: Connection, code: ErrorCode, text: str) -> None:
        """Send GOAWAY with the reason, and close."""
        _log.warning("closing the connection of client %s: %s", self.address or "on the Unix socket", text)
        connection.goaway(code, text)
        self.flush()
        self._give_up()
        self.close()

    def go_on(self) -> None:
        """The server no longer holds: process the events that waited; the timeout starts again."""
        self._moved = self.server.now()
        if self._events:
            self._act()

    def _act(self) -> None:
        """Process the client's events; while the server holds, they wait here."""
        while self._events and not self.server.held and self.connection is not None:
            event = self._events.popleft()
            if isinstance(event, Call):
                self._called(self.connection, event)
            else:
                self._cancelled(event.stream_id)
        self.flush()
        self._relieve()
        if self._paused or self.server.held:
            self.attend()

    def _called(self, connection: Connection, call: Call) -> None:
        methods = self.server.methods
        path = call.headers.get(b":path", b"")
        try:
            if path not in methods.unary and path not in methods.stream:
                raise Refusal(UNIMPLEMENTED, f"unknown method {path.decode(errors='replace')}")
            self._handle(path, call, message_of(call.body, call.headers, methods.max_request))
        except Exception as error:  # last resort: a failed call must not affect the others on this connection
            refusal = refusal_of(error)
            connection.refuse(call.stream_id, refusal.status, refusal.text)

    def _handle(self, path: bytes, call: Call, message: bytes) -> None:
        methods = self.server.methods
        unary = methods.unary.get(path)
        if unary is not None:
            unary(message, PendingCall(self, call.stream_id))
            return
        stream = StreamCall(self, call.stream_id, message, call.headers)
        self.server.run_stream(methods.stream[path], stream)
        self.streams[call.stream_id] = stream

    def _cancelled(self, stream_id: int) -> None:
        call = self.streams.pop(stream_id, None)
        if call is not None:
            call.cancel()

    def stream_start(self, stream_id: int, metadata: Fields) -> None:
        """Send a stream's initial metadata."""
        if self.connection is not None:
            self.connection.start(stream_id, metadata)
            self.flush()

    def stream_send(self, call: StreamCall, data: bytes) -> None:
        """Send more of a stream."""
        if self.connection is not None:
            self.connection.send(call.stream_id, data)
            self.flush()
            self._relieve(call, len(data))

    def stream_finish(self, stream_id: int, status: int, text: str) -> None:
        """End a stream."""
        self.streams.pop(stream_id, None)
        if self.connection is not None:
            self.connection.finish(stream_id, status, text)
            self.flush()

    def pause_writing(self) -> None:
        """asyncio: the write buffer is above its limit."""
        self._paused = True

    def resume_writing(self) -> None:
        """asyncio: the write buffer has drained."""
        self._paused = False
        self._relieve()
        self.attend()
        if self._http is not None:
            self._http.received(b"")

    def _relieve(self, sender: StreamCall | None = None, taken: int = 0) -> None:
        """Report to each stream how many bytes are not sent yet; ``taken`` bytes were just taken over from ``sender``."""
        if self.streams and self.connection is not None and self._transport is not None:
            buffered = self._transport.get_write_buffer_size() if self._paused else 0
            for stream_id, call in self.streams.items():
                call.left(buffered + self.connection.queued(stream_id), taken if call is sender else 0)

    def flush(self) -> None:
        """Write the connection's output to the transport."""
        if self._transport is not None and self.connection is not None:
            out = self.connection.output()
            if out:
                # joined here: in some Python versions ``writelines`` ignores the limits of the write buffer
                self._transport.write(b"".join(out))

    def attend(self) -> None:
        """Pause reading while this client's calls wait or it does not read its answers; else resume it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_held() or self._is_deaf():
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _is_held(self) -> bool:
        """Whether the server holds this client. A slow disk must stop neither the pages nor the streams: their clients' windows are read."""
        return self.server.held and self.connection is not None and (not self.streams or bool(self._events))

    def _is_deaf(self) -> bool:
        """Whether too many answers wait because this client does not read them."""
        return self._paused and self._transport is not None and self._transport.get_write_buffer_size() > _DEAF_BYTES

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        if self._http is not None:
            return self._http.answering
        return self.connection is not None and self.connection.busy

    def leave(self) -> None:
        """The server stops: cancel the streams, accept no further call."""
        for call in list(self.streams.values()):
            call.cancel()
        if self.connection is not None:
            self.connection.goaway()
            self.flush()

    def close(self) -> None:
        """Close the connection once everything is sent, after ``LINGER`` seconds at the latest."""
        if self._transport is not None:
            self._transport.close()
            self.server.later(LINGER, self._transport.abort)


def refusal_of(error: Exception) -> Refusal:
    """The refusal that reports a handler's error to the client."""
    if isinstance(error, Refusal):
        # a handler may raise the same instance again and again: its traceback must not grow with every call
        return error.with_traceback(None)
    _log.error("a call failed", exc_info=error)
    return Refusal(INTERNAL, f"{type(error).__name__}: {error}")
