"""One connection: its protocol, detected by the first bytes, and its calls or requests. Everything here runs on the loop's thread.

Promises: while a client does not read its answers, nothing is read from it. A client that does not open the protocol within ``FIRST_WORD``
seconds is closed. A client that violates HTTP/2 receives GOAWAY and is closed. While the server holds (``RpcServer.hold``), received calls
wait, nothing more is read from the socket, and no timeout runs.
"""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyspark_tidb_binlog.binlog_source.rpc.budget import Share
from pyspark_tidb_binlog.binlog_source.rpc.calls import BACKLOG_BYTES, Fields, Loop, Methods, PendingCall, StreamCall, StreamHandler
from pyspark_tidb_binlog.binlog_source.rpc.connection_limits import address_of
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import (
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Packed,
    Refusal,
    announced,
    message_of,
    too_large,
)
from pyspark_tidb_binlog.binlog_source.rpc.http2 import Connection
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode, RemoteConnectionError
from pyspark_tidb_binlog.binlog_source.rpc.http2_events import Call, Event
from pyspark_tidb_binlog.binlog_source.rpc.http_peer import ENDLESS, AwaitedInput, HttpPeer, HttpServer
from pyspark_tidb_binlog.binlog_source.rpc.inflater import Inflater, Inflation

_log = logging.getLogger(__name__)

_DEAF_BYTES = 16 << 20
"""A peer is not read from while more bytes than this wait to be sent to it. Far above ``BACKLOG_BYTES``, which a slow client may reach."""
FIRST_WORD = 10.0
"""Seconds within which a client must show its protocol; with HTTP/2, send its preface and SETTINGS."""
LINGER = 1.0
"""Seconds that a closing connection may take to send what is buffered."""
_AT_ONCE = 64 << 10
"""Bytes up to which a compressed request is inflated on the loop's thread."""


class Inflated(NamedTuple):
    """A call whose compressed message is inflated, or why it is not."""

    call: Call
    found: bytes | Refusal


class PeerServer(Loop, HttpServer, Protocol):
    """What a connection uses of its server. On the loop's thread."""

    methods: Methods
    held: bool
    inflater: Inflater

    def joined(self, peer: "Peer", descriptor: int) -> None:
        """A connection was made."""

    def left(self, peer: "Peer") -> None:
        """A connection was lost."""

    def relieve_memory(self) -> None:
        """Bytes of unfinished requests have come."""

    def run_stream(self, handler: StreamHandler, call: StreamCall) -> None:
        """Answer a call from a thread of its own."""

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Have ``act`` called after a while."""


class Peer(asyncio.Protocol):
    """One connection. Everything here runs on the loop's thread."""

    def __init__(self, server: PeerServer) -> None:
        self.server = server
        self._transport: asyncio.Transport | None = None
        self.address = ""
        """The client's host, or its IPv6 network (``address_of``); "" on a Unix socket."""
        self.heard = 0.0
        """When it last received something."""
        self._turn = AwaitedInput(FIRST_WORD)
        self._since = 0.0  # when that input was first awaited
        self._head = b""
        self.connection: Connection | None = None
        self._http: HttpPeer | None = None
        self.streams: dict[int, StreamCall] = {}
        self._events: deque[Event | Inflated] = deque()
        self._inflations: dict[int, Inflation] = {}
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
        self.address = address_of(str(name[0])) if isinstance(name, tuple) else ""
        self._since = self.heard = self.server.now()
        self.server.joined(self, transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection was lost; its calls are cancelled."""
        self.server.left(self)
        self._give_up()
        if self._http is not None:
            self._http.share.close()
        self._transport = None

    @property
    def share(self) -> Share | None:
        """Its share of the memory for unfinished requests; None before its protocol is known."""
        if self.connection is not None:
            return self.connection.share
        return self._http.share if self._http is not None else None

    def make_room(self) -> bool:
        """Refuse one of its requests that wait for memory; False: none waits."""
        made = self.connection is not None and self.connection.make_room()
        self.flush()
        return made

    def look(self, now: float, deaf: bool) -> None:
        """Check the timeouts; ``deaf``: reading was paused since the last check, so they start again."""
        deaf = deaf or self._is_deaf()
        if self.connection is not None:
            if deaf:
                self.connection.excuse()
            else:
                self.connection.expire(now)
                self.flush()
            if self._paused:
                self._relieve()
        turn = self._awaited()
        if turn != self._turn or deaf:
            self._turn, self._since = turn, now
        elif now - self._since > turn.seconds and self._transport is not None:
            self._transport.abort()

    def _awaited(self) -> AwaitedInput:
        if self._http is not None:
            return self._http.turn
        return AwaitedInput(FIRST_WORD if self.connection is None or not self.connection.settled else ENDLESS)

    def evict(self) -> None:
        """Close the connection: the server's memory for unfinished requests is used up, mostly by this client."""
        if self.connection is not None:
            text = f"no memory for {self.connection.share.held} bytes of unfinished requests"
            self._fail(self.connection, ErrorCode.ENHANCE_YOUR_CALM, text)
        elif self._http is not None and self._transport is not None:
            self._http.share.close()
            self._transport.abort()

    def _give_up(self) -> None:
        """Cancel the calls: the client no longer waits for answers."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self._events.clear()
        for inflation in self._inflations.values():
            inflation.end()
        self._inflations.clear()
        for call in self.streams.values():
            call.cancel()
        self.streams.clear()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were received."""
        self.heard = self.server.now()
        if self.connection is not None:
            self._h2_received(self.connection, data)
        elif self._http is not None:
            self._http.received(data)
        else:
            self._sniff(self._head + data)
        self.server.relieve_memory()

    def eof_received(self) -> bool:
        """asyncio: the client sends no more. Whether to keep the connection: an HTTP/1 client may still wait for its answer."""
        return self._http is not None and self._http.ended()

    def _sniff(self, head: bytes) -> None:
        self._head = head
        if len(head) < 3:
            return
        if head.startswith(b"PRI"):
            self.connection = Connection(self.server.methods.max_request + 5, self.server.budget, self.flush, self.address)
            self._h2_received(self.connection, head)
        elif self._transport is not None:
            self._http = HttpPeer(self.server, self._transport)
            self._http.received(head)

    def _h2_received(self, connection: Connection, data: bytes) -> None:
        try:
            self._events.extend(connection.receive(data, self.heard))
        except RemoteConnectionError as error:
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
        """The server no longer holds: process the events that waited."""
        if self._events:
            self._act()

    def _act(self) -> None:
        """Process the client's events; while the server holds, they wait here."""
        while self._events and not self.server.held and self.connection is not None:
            event = self._events.popleft()
            if isinstance(event, Call):
                self._called(self.connection, event)
            elif isinstance(event, Inflated):
                self._unpacked(self.connection, event)
            else:
                self._cancelled(event.stream_id)
        self.flush()
        self._relieve()
        if self._paused:
            self.attend()

    def _called(self, connection: Connection, call: Call) -> None:
        methods = self.server.methods
        path = call.headers.get(b":path", b"")
        try:
            if call.too_large:
                raise too_large(announced(call.body), methods.max_request)
            if path not in methods.unary and path not in methods.stream:
                raise Refusal(UNIMPLEMENTED, f"unknown method {path.decode(errors='replace')}")
            message = message_of(call.body, call.headers, methods.max_request, _AT_ONCE)
            if isinstance(message, Packed):
                later = functools.partial(self._inflated, call._replace(body=b""))
                self._inflations[call.stream_id] = self.server.inflater.take(self.address, message.data, message.limit, later)
            else:
                self._handle(path, call, message)
        except Exception as error:  # last resort: a failed call must not affect the others on this connection
            _refuse(connection, call, error)

    def _handle(self, path: bytes, call: Call, message: bytes) -> None:
        methods = self.server.methods
        unary = methods.unary.get(path)
        if unary is not None:
            unary(message, PendingCall(self, call.stream_id))
            return
        stream = StreamCall(self, call.stream_id, message, call.headers)
        self.server.run_stream(methods.stream[path], stream)
        self.streams[call.stream_id] = stream

    def _inflated(self, call: Call, found: bytes | Refusal) -> None:
        """The server has inflated a call's message: process it in its turn, after those that wait while the server holds."""
        if call.stream_id in self._inflations:
            self._events.append(Inflated(call, found))
            self._act()

    def _unpacked(self, connection: Connection, event: Inflated) -> None:
        call, found = event
        inflation = self._inflations.pop(call.stream_id, None)
        if inflation is None:
            return
        try:
            if isinstance(found, Refusal):
                raise found
            self._handle(call.headers.get(b":path", b""), call, found)
        except Exception as error:  # last resort, as in ``_called``
            _refuse(connection, call, error)
        finally:
            inflation.end()

    def _cancelled(self, stream_id: int) -> None:
        inflation = self._inflations.pop(stream_id, None)
        if inflation is not None:
            inflation.end()
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

    def stream_end(self, stream_id: int, text: str) -> None:
        """End a stream whose client does not read it; what waits to be sent is dropped."""
        if self.connection is None or self._transport is None or stream_id not in self.streams:
            return
        _log.warning("ending a stream of client %s: %s", self.address or "on the Unix socket", text)
        self.connection.cut_off(stream_id, RESOURCE_EXHAUSTED, text)
        self._cancelled(stream_id)
        if self._transport.get_write_buffer_size() > BACKLOG_BYTES:
            # what waits is in the transport's buffer: only an abort drops it
            self._transport.abort()
        else:
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
        """Pause reading while the server holds or this client does not read its answers; else resume it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.server.held or self._is_deaf():
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _is_deaf(self) -> bool:
        """Whether too many answers wait because this client does not read them."""
        return self._paused and self._transport is not None and self._transport.get_write_buffer_size() > _DEAF_BYTES

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        if self._http is not None:
            return self._http.answering
        return self.connection is not None and self.connection.busy

    @property
    def idle(self) -> bool:
        """Whether no call is under way whose request is complete."""
        return self.connection.idle if self.connection is not None else not self.busy

    def dismiss(self) -> None:
        """Close to make room for another connection; abort if the client does not read."""
        if self._transport is None:
            return
        if self.connection is not None:
            self.connection.goaway()
            self.flush()
        self._give_up()
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

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


def _refuse(connection: Connection, call: Call, error: Exception) -> None:
    refusal = refusal_of(error)
    connection.refuse(call.stream_id, refusal.status, refusal.text)


def refusal_of(error: Exception) -> Refusal:
    """The refusal that reports a handler's error to the client."""
    if isinstance(error, Refusal):
        # a handler may raise the same instance again and again: its traceback must not grow with every call
        return error.with_traceback(None)
    _log.error("a call failed", exc_info=error)
    return Refusal(INTERNAL, f"{type(error).__name__}: {error}")
