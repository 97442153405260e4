"""Calls and the connections that they come over: a handler's side (``PendingCall`` for one answer, ``StreamCall`` for a stream of answers),
a server's ``Methods``, and ``Peer``, one connection, whose protocol is detected by its first bytes.

Promises: only a handler's thread uses a ``StreamCall``, except for ``left`` and ``cancel``. All else here runs on the loop's thread. While a
client does not read its answers, nothing is read from it. A client that owes something, its first words or the rest of a request, and
neither sends nor reads for ``IDLE_SECONDS`` is closed. A ``ProtocolError`` closes the connection, after a GOAWAY. While the server holds
(``Connections.held``), received calls wait, and no timeout runs. Then only HTTP/1 is read, and clients of streams until their next call.
"""

import asyncio
import logging
import resource
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus

from pyspark_tidb_binlog.binlog_source.rpc.frames import (
    ENCODING,
    GZIP,
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    ErrorCode,
    Fields,
    ProtocolError,
    Refusal,
    message_of,
    prefixed,
    prefixed_gzip,
)
from pyspark_tidb_binlog.binlog_source.rpc.http1 import BACKLOG_BYTES, NOT_FOUND, HttpPeer, HttpRequest, HttpResponse
from pyspark_tidb_binlog.binlog_source.rpc.http2 import Call, Connection, Event
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory

_log = logging.getLogger(__name__)

_DEAF_BYTES = 16 << 20
"""A peer is not read from while more bytes than this wait to be sent to it. Far above ``BACKLOG_BYTES``, which a slow client may reach."""
IDLE_SECONDS = 60.0
"""Seconds within which a client that owes something must send or read some bytes."""
LINGER = 1.0
"""Seconds that a closing connection may take to send what is buffered."""


class PendingCall:
    """The right to answer one unary call, once."""

    __slots__ = ("peer", "stream_id")

    def __init__(self, peer: "Peer", stream_id: int) -> None:
        self.peer = peer
        self.stream_id = stream_id


class StreamCall:
    """One call with a stream of answers, as its handler sees it. For one thread."""

    def __init__(self, peer: "Peer", stream_id: int, message: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.stream_id = stream_id
        """Its HTTP/2 stream id."""
        self.message = message
        """The request."""
        self.headers = headers
        """The request's metadata."""
        self._peer = peer
        self._frame = prefixed_gzip if headers.get(ENCODING) == GZIP else prefixed
        self._changed = threading.Condition()
        self._handed = 0
        self._backlog = 0
        self.cancelled = False
        """Whether the client cancelled or disconnected, or the server stops."""
        self._wakes: list[Callable[[], None]] = []

    @property
    def _behind(self) -> int:
        """Bytes of answers that are not sent yet."""
        return self._handed + self._backlog

    def on_cancel(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when the call is cancelled, on the loop's thread; here and now if it already is."""
        self._wakes.append(wake)
        if self.cancelled:
            wake()

    def start(self, metadata: Fields) -> None:
        """Send the initial metadata."""
        extra = ((ENCODING, GZIP),) if self._frame is prefixed_gzip else ()
        self._peer.server.call(self._peer.stream_start, self.stream_id, (*metadata, *extra))

    def send(self, messages: Sequence[bytes]) -> None:
        """Send messages; waits while the client is behind. Does nothing once the call is cancelled."""
        data = b"".join(map(self._frame, messages))
        with self._changed:
            self._changed.wait_for(lambda: self._behind <= BACKLOG_BYTES or self.cancelled)
            if self.cancelled:
                return
            self._handed += len(data)
        self._peer.server.call(self._peer.stream_send, self, data)

    def settle(self) -> None:
        """Wait until all answers are sent, or the call is cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: not self._behind or self.cancelled)

    def finish(self, status: int, text: str) -> None:
        """End the stream."""
        self._peer.server.call(self._peer.stream_finish, self.stream_id, status, text)

    def left(self, backlog: int, taken: int) -> None:
        """On the loop: it took over ``taken`` more bytes; of all that it took over, ``backlog`` bytes are not sent yet."""
        with self._changed:
            self._handed -= taken
            self._backlog = backlog
            self._changed.notify_all()

    def cancel(self) -> None:
        """On the loop: the client cancelled or disconnected, or the server stops."""
        with self._changed:
            self.cancelled = True
            self._changed.notify_all()
        for wake in self._wakes:
            wake()


UnaryHandler = Callable[[bytes, PendingCall], None]
StreamHandler = Callable[[StreamCall], None]
HttpHandler = Callable[[HttpRequest], HttpResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """A server's handlers and limits. A handler may raise ``Refusal``."""

    unary: Mapping[bytes, UnaryHandler] = field(default_factory=dict)
    """By path, such as ``/binlog.Pump/WriteBinlog``; called on the loop's thread."""
    stream: Mapping[bytes, StreamHandler] = field(default_factory=dict)
    """By path; each call runs in a thread of its own."""
    http: HttpHandler = lambda request: NOT_FOUND
    """Called in a thread of a pool."""
    http_threads: int = 4
    """Maximum HTTP requests answered at the same time; others wait."""
    max_request: int = 1 << 62
    """Maximum bytes of a request message."""
    request_memory: int = 256 << 20
    """Maximum bytes of unfinished large requests; a single one may be larger (``BoundedMemory``)."""
    max_streams: int = 512
    """Maximum concurrent streams of answers, a thread each."""
    max_connections: int = 4096
    """Maximum open connections; at most half of the process's descriptors."""


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "Connections") -> None:
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
        self._moved = self.server.loop.time()
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
        self._moved = self.server.loop.time()
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
        self._moved = self.server.loop.time()
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
        # a slow disk must stop neither the pages nor the streams, nor their last bytes: their clients' windows are read
        connection = self.connection
        waits = self.server.held and connection is not None and (bool(self._events) or not (self.streams or connection.sends))
        if waits or (self._paused and transport.get_write_buffer_size() > _DEAF_BYTES):
            transport.pause_reading()
        else:
            transport.resume_reading()

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
            self.server.loop.call_later(LINGER, self._transport.abort)


class Connections:
    """The connections of one server, what they share, and the threads that answer their calls."""

    def __init__(self, name: str) -> None:
        """``name``: the server's, for messages."""
        self._name = name
        self.loop = asyncio.new_event_loop()
        """Runs everything but the handlers of streams and HTTP."""
        self.methods = Methods()
        """Its handlers and limits."""
        self.memory = BoundedMemory()
        """The memory for large unfinished requests."""
        self.held = False
        """Whether reading of unary calls is paused."""
        self._peers: dict[Peer, None] = {}
        self._refused = 0
        self._handlers: set[threading.Thread] = set()
        self._pool: ThreadPoolExecutor | None = None

    def call(self, act: Callable[..., None], *arguments: object) -> None:
        """From any thread: have ``act`` called on the loop's; does nothing once the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            _log.debug("%s: the loop is closed", self._name)

    def joined(self, peer: Peer) -> None:
        """A connection was made; it is closed if there are too many."""
        self._peers[peer] = None
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = self.methods.max_connections if descriptors < 0 else min(self.methods.max_connections, descriptors // 2)
        if len(self._peers) > most:
            self._refused += 1
            peer.close()

    def left(self, peer: Peer) -> None:
        """A connection was lost."""
        self._peers.pop(peer, None)

    def run_stream(self, handler: StreamHandler, call: StreamCall) -> None:
        """Run a stream handler in a thread of its own.

        Raises:
            Refusal: too many streams are open.
        """
        if len(self._handlers) >= self.methods.max_streams:
            raise Refusal(RESOURCE_EXHAUSTED, f"{self._name}: more than {self.methods.max_streams} streams at the same time")
        thread = threading.Thread(target=self._stream_main, args=(handler, call), name=f"{self._name} stream", daemon=True)
        thread.start()
        self._handlers.add(thread)

    def _stream_main(self, handler: StreamHandler, call: StreamCall) -> None:
        try:
            handler(call)
            call.finish(OK, "")
        except Exception as error:  # last resort of the thread: the client must not wait for ever
            refusal = refusal_of(error)
            call.finish(refusal.status, refusal.text)
        finally:
            self.call(self._handlers.discard, threading.current_thread())

    def run_http(self, request: HttpRequest, answered: Callable[[HttpRequest, HttpResponse], None]) -> None:
        """Answer a request from the pool; ``answered`` is called on the loop's thread."""
        assert self._pool is not None, "connections are refused until serve"
        self._pool.submit(lambda: self.call(answered, request, self._http_answer(request)))

    def _http_answer(self, request: HttpRequest) -> HttpResponse:
        try:
            return self.methods.http(request)
        except Exception as error:  # last resort of the thread: the client must not wait for ever
            _log.exception("%s %s failed", request.method, request.path)
            # not its text, which may hold anything
            return HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log of this process\n".encode())


def refusal_of(error: Exception) -> Refusal:
    """The refusal that reports a handler's error to the client."""
    if isinstance(error, Refusal):
        # a handler may raise the same instance again and again: its traceback must not grow with every call
        return error.with_traceback(None)
    _log.error("a call failed", exc_info=error)
    return Refusal(INTERNAL, f"{type(error).__name__}: {error}")
