"""One port for gRPC and HTTP/1: asyncio in a thread of its own. IO shell around ``http2``, ``grpc_message`` and ``http1``.

    socket bytes -> first bytes say which -> http2.Connection -> Call -> unary handler (on the loop) | stream handler (a thread each)
                                          -> http1 request    -> http handler (in a pool)

Promises: a unary handler is called on the loop's thread and must not block: it keeps the ``Ticket``, and ``Front.answer`` answers
it later, many at once, if its client is still there. A stream handler runs in a thread, is slowed down by its client's flow control and
learns of a client that goes away. What a handler raises refuses its own call and harms no other. ``hold`` stops reading from all sockets, so
that what is not stored yet stays in the clients. A client that does not take its answers is not read either, so that memory stays bounded.
``stop`` returns when no handler is at work any more, unless one does not end in time.
"""

import asyncio
import functools
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus

from binlog_source.rpc import http1, http2
from binlog_source.rpc.grpc_message import (
    ENCODING,
    GZIP,
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Refusal,
    announced,
    message_of,
    prefixed,
    prefixed_gzip,
    too_large,
)
from schemas.errors import ConfigError

Fields = Sequence[tuple[bytes, bytes]]
_log = logging.getLogger(__name__)

_BACKLOG_BYTES = 2 << 20
"""A stream handler waits while more than this of its answers is on the way."""
_DEAF_BYTES = 16 << 20
"""A peer is not read while more than this waits for it. Far above the backlog of a stream, whose client is slow but honest."""
_LISTEN_BACKLOG = 512
_HTTP_THREADS = 4
_STREAM_THREADS = 512
_FIRST_WORD = 10.0
"""Seconds in which a client must begin to speak, as with a real Pump."""
_POLL = 0.005
_LINGER = 1.0
"""Seconds that last words may take to leave."""
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),
)
"""As Go's listeners set it: a client whose machine died is noticed within minutes."""


class Ticket:
    """The right to answer one unary call, once."""

    __slots__ = ("peer", "stream_id")

    def __init__(self, peer: "_Peer", stream_id: int) -> None:
        self.peer = peer
        self.stream_id = stream_id


class StreamCall:
    """One call with a stream of answers, as its handler sees it. For one thread."""

    def __init__(self, peer: "_Peer", stream_id: int, message: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.stream_id = stream_id
        """Its name on its connection."""
        self.message = message
        """The request."""
        self.headers = headers
        """The request's metadata."""
        self._peer = peer
        self._frame = prefixed_gzip if headers.get(ENCODING) == GZIP else prefixed
        self._changed = threading.Condition()
        self._handed = 0
        self._backlog = 0
        self._cancelled = False
        self._wakes: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone, or the server stops."""
        return self._cancelled

    def on_cancel(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, on the loop's thread, when the client goes or the server stops."""
        self._wakes.append(wake)
        if self._cancelled:
            wake()

    def start(self, metadata: Fields) -> None:
        """Send the initial metadata."""
        extra = ((ENCODING, GZIP),) if self._frame is prefixed_gzip else ()
        self._peer.front.call(self._peer.stream_start, self.stream_id, (*metadata, *extra))

    def send(self, messages: Sequence[bytes]) -> None:
        """Send messages; waits while the client is behind. Nothing happens once it has gone."""
        data = b"".join(map(self._frame, messages))
        with self._changed:
            self._changed.wait_for(lambda: self._handed + self._backlog <= _BACKLOG_BYTES or self._cancelled)
            if self._cancelled:
                return
            self._handed += len(data)
        self._peer.front.call(self._peer.stream_send, self, data)

    def finish(self, status: int, text: str) -> None:
        """End the stream."""
        self._peer.front.call(self._peer.stream_finish, self.stream_id, status, text)

    def left(self, backlog: int, taken: int) -> None:
        """On the loop: ``taken`` more bytes were handed over to it; of all that were, ``backlog`` bytes have not left yet."""
        with self._changed:
            self._handed -= taken
            self._backlog = backlog
            self._changed.notify_all()

    def cancel(self) -> None:
        """On the loop: the client has gone, or the server stops."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        for wake in self._wakes:
            wake()


UnaryHandler = Callable[[bytes, Ticket], None]
StreamHandler = Callable[[StreamCall], None]
HttpHandler = Callable[[http1.Request], http1.Answer]


@dataclass(frozen=True, slots=True)
class Methods:
    """What a server answers. A handler may raise ``Refusal``."""

    unary: Mapping[bytes, UnaryHandler] = field(default_factory=dict)
    """By path, ``/binlog.Pump/WriteBinlog``; called on the loop's thread."""
    stream: Mapping[bytes, StreamHandler] = field(default_factory=dict)
    """By path; called in a thread of its own."""
    http: HttpHandler = lambda request: http1.NOT_FOUND
    """Called in a thread."""
    max_request: int = 1 << 62
    """Bytes of a request message."""


class _Peer(asyncio.Protocol):
    """One connection. Everything here happens on the loop's thread."""

    def __init__(self, front: "Front") -> None:
        self.front = front
        self._transport: asyncio.Transport | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._head = b""
        self.connection: http2.Connection | None = None
        self._http: _HttpPeer | None = None
        self.streams: dict[int, StreamCall] = {}
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_BACKLOG_BYTES)
        self.front.joined(self)
        self._await_word()

    def connection_lost(self, exc: Exception | None) -> None:
        self.front.left(self)
        self._heard()
        self._give_up()
        self._transport = None

    def _await_word(self) -> None:
        self._silence = self.front.later(_FIRST_WORD, self._silent)

    def _silent(self) -> None:
        if self.front.held:
            # it may well have spoken
            self._await_word()
        elif self._transport is not None:
            self._transport.abort()

    def _heard(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _give_up(self) -> None:
        """Nobody waits for the answers any more."""
        self.connection = None
        for call in self.streams.values():
            call.cancel()
        self.streams.clear()

    def data_received(self, data: bytes) -> None:
        if self.connection is not None:
            self._h2_received(self.connection, data)
        elif self._http is not None:
            self._http.received(data)
        else:
            self._sniff(self._head + data)

    def eof_received(self) -> bool:
        """Whether to keep the connection: who has said all there is to say may still wait for HTTP's answer."""
        return self._http is not None and self._http.ended()

    def _sniff(self, head: bytes) -> None:
        self._head = head
        if len(head) < 3:
            return
        self._heard()
        if head.startswith(b"PRI"):
            self.connection = http2.Connection(self.front.methods.max_request + 5)
            self._h2_received(self.connection, head)
        elif self._transport is not None:
            self._http = _HttpPeer(self.front, self._transport)
            self._http.received(head)

    def _h2_received(self, connection: http2.Connection, data: bytes) -> None:
        try:
            for event in connection.receive(data):
                if isinstance(event, http2.Call):
                    self._called(connection, event)
                else:
                    self._cancelled(event.stream_id)
        except http2.ProtocolFailure as failure:
            _log.warning("a client is cut off: %s", failure)
            connection.goaway(failure.code, str(failure))
            self.flush()
            self._give_up()
            self.close()
            return
        self.flush()
        self._relieve()
        if self._paused:
            self.attend()

    def _called(self, connection: http2.Connection, call: http2.Call) -> None:
        methods, stream_id = self.front.methods, call.stream_id
        path = call.headers.get(b":path", b"")
        try:
            if call.too_large:
                raise too_large(announced(call.body), methods.max_request)
            unary = methods.unary.get(path)
            if unary is not None:
                unary(message_of(call.body, call.headers, methods.max_request), Ticket(self, stream_id))
                return
            if path not in methods.stream:
                raise Refusal(UNIMPLEMENTED, f"unknown method {path.decode(errors='replace')}")
            message = message_of(call.body, call.headers, methods.max_request)
            stream = StreamCall(self, stream_id, message, call.headers)
            self.front.run_stream(methods.stream[path], stream)
            self.streams[stream_id] = stream
        except Exception as error:  # the call's last resort: the others on this connection must not fall with it
            refusal = _refusal_of(error)
            connection.refuse(stream_id, refusal.status, refusal.text)

    def _cancelled(self, stream_id: int) -> None:
        call = self.streams.pop(stream_id, None)
        if call is not None:
            call.cancel()

    def stream_start(self, stream_id: int, metadata: Fields) -> None:
        if self.connection is not None:
            self.connection.start(stream_id, metadata)
            self.flush()

    def stream_send(self, call: StreamCall, data: bytes) -> None:
        if self.connection is not None:
            self.connection.send(call.stream_id, data)
            self.flush()
            self._relieve(call, len(data))

    def stream_finish(self, stream_id: int, status: int, text: str) -> None:
        self.streams.pop(stream_id, None)
        if self.connection is not None:
            self.connection.finish(stream_id, status, text)
            self.flush()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._relieve()
        self.attend()
        if self._http is not None:
            self._http.received(b"")

    def _relieve(self, sender: StreamCall | None = None, taken: int = 0) -> None:
        """Tell the stream handlers how far behind their client is; ``taken`` bytes just came from ``sender``."""
        if self.streams and self.connection is not None and self._transport is not None:
            buffered = self._transport.get_write_buffer_size() if self._paused else 0
            for stream_id, call in self.streams.items():
                call.left(buffered + self.connection.queued(stream_id), taken if call is sender else 0)

    def flush(self) -> None:
        """Send what the connection has to say."""
        if self._transport is not None and self.connection is not None:
            out = self.connection.output()
            if out:
                # joined here: some versions of ``writelines`` do not heed the limits of the buffer
                self._transport.write(b"".join(out))

    def attend(self) -> None:
        """Read, or not: not while the front holds, nor while this client lets its answers pile up."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.front.held or (self._paused and transport.get_write_buffer_size() > _DEAF_BYTES):
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
        """The server stops: streams are to end, no further call is taken."""
        for call in list(self.streams.values()):
            call.cancel()
        if self.connection is not None:
            self.connection.goaway()
            self.flush()

    def close(self) -> None:
        """Close the connection once everything is sent, or soon."""
        if self._transport is not None:
            self._transport.close()
            self.front.later(_LINGER, self._transport.abort)


def _refusal_of(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        # a handler may raise the same one for ever; it must not gather the frames of every call
        return error.with_traceback(None)
    _log.error("a call failed", exc_info=error)
    return Refusal(INTERNAL, f"{type(error).__name__}: {error}")


class _HttpPeer:
    """One connection that speaks HTTP/1: one request at a time."""

    def __init__(self, front: "Front", transport: asyncio.Transport) -> None:
        self._front = front
        self._transport = transport
        self._buffer = b""
        self._ended = False
        self.answering = False
        """Whether a request is under way."""

    def received(self, data: bytes) -> None:
        """More bytes, or room for more answers."""
        self._buffer += data
        self._next()
        if len(self._buffer) > http1.MAX_REQUEST:
            _log.warning("a client is cut off: it asks on and on and does not wait for the answers")
            self._transport.abort()

    def ended(self) -> bool:
        """The client says no more: whether it still waits for an answer."""
        self._ended = True
        return self.answering

    def _next(self) -> None:
        if self.answering or self._transport.is_closing() or self._transport.get_write_buffer_size() > _BACKLOG_BYTES:
            return
        try:
            found = http1.split(self._buffer)
        except http1.BadRequest as error:
            self._transport.write(http1.encode(http1.Answer(HTTPStatus.BAD_REQUEST, str(error).encode()), False))
            self._transport.close()
            return
        if found is not None:
            request, self._buffer = found
            self.answering = True
            self._front.run_http(request, self._answered)

    def _answered(self, request: http1.Request, answer: http1.Answer) -> None:
        self.answering = False
        if not self._transport.is_closing():
            self._transport.write(http1.encode(answer, request.keep_alive, bodiless=request.method == "HEAD"))
            if request.keep_alive:
                self._next()
            if not request.keep_alive or (self._ended and not self.answering):
                self._transport.close()


class Front:
    """The listening sockets and their loop. ``bind``, ``serve``, then ``stop`` once."""

    def __init__(self, name: str) -> None:
        self.methods = Methods()
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"{name} front", daemon=True)
        self._pool = ThreadPoolExecutor(_HTTP_THREADS, thread_name_prefix=f"{name} http")
        self._servers: list[asyncio.Server] = []
        self._peers: dict[_Peer, None] = {}
        self._handlers: set[threading.Thread] = set()
        self.held = False
        """Whether nothing is read."""
        self._socket_path = ""
        self.port = 0
        """The TCP port it listens on."""

    def bind(self, addr: str, socket_path: str = "") -> "Front":
        """Take ``host:port`` (0: any port), and a Unix socket if one is named; connections are refused until ``serve``."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._bind(addr, socket_path), self._loop).result()
        except (OSError, ValueError, OverflowError) as error:
            self.stop(0)
            raise ConfigError(f"{self._name} cannot listen on {addr}{' or ' + socket_path if socket_path else ''}: {error}") from error
        return self

    def serve(self, methods: Methods) -> "Front":
        """Accept connections, and answer with ``methods``."""
        self.methods = methods
        try:
            asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        except OSError as error:
            # another process took the port too, and was the first to listen
            raise ConfigError(f"{self._name} cannot listen on port {self.port}: {error}") from error
        return self

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _bind(self, addr: str, socket_path: str) -> None:
        host, _, port = addr.rpartition(":")
        create = functools.partial(self._loop.create_server, lambda: _Peer(self), backlog=_LISTEN_BACKLOG, start_serving=False)
        server = await create(host.strip("[]") or None, int(port))
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        for listener in server.sockets:
            # the connections inherit it
            for level, option, value in _KEEPALIVE:
                listener.setsockopt(level, option, value)
        if socket_path:
            # a socket that was left behind is replaced, another file is not
            unix = self._loop.create_unix_server(lambda: _Peer(self), socket_path, backlog=_LISTEN_BACKLOG, start_serving=False)
            self._servers.append(await unix)
            self._socket_path = socket_path

    async def _serve(self) -> None:
        for server in self._servers:
            await server.start_serving()

    def call(self, act: Callable[..., None], *arguments: object) -> None:
        """Have ``act`` called on the loop's thread; nothing happens once the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            _log.debug("%s: the loop is closed", self._name)

    def soon(self, act: Callable[[], None]) -> None:
        """On the loop's thread: ``act`` after everything that is ready now."""
        self._loop.call_soon(act)

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """On the loop's thread: ``act`` after a while."""
        return self._loop.call_later(seconds, act)

    def answer(self, answers: Sequence[tuple[Ticket, Refusal | None]]) -> None:
        """On the loop's thread: answer unary calls with an empty message, or refuse them."""
        touched: dict[_Peer, None] = {}
        for ticket, refusal in answers:
            peer = ticket.peer
            connection = peer.connection
            if connection is None:
                continue
            if refusal is None:
                connection.answer(ticket.stream_id, b"")
            else:
                connection.refuse(ticket.stream_id, refusal.status, refusal.text)
            touched[peer] = None
        for peer in touched:
            peer.flush()

    def hold(self, held: bool) -> None:
        """On the loop's thread: stop or go on reading from all sockets."""
        if held != self.held:
            self.held = held
            for peer in self._peers:
                peer.attend()

    def joined(self, peer: _Peer) -> None:
        """A connection was made."""
        self._peers[peer] = None
        if self.held:
            peer.attend()

    def left(self, peer: _Peer) -> None:
        """A connection was lost."""
        self._peers.pop(peer, None)

    def run_stream(self, handler: StreamHandler, call: StreamCall) -> None:
        """Answer a call from a thread of its own.

        Raises:
            Refusal: too many are at work.
        """
        if len(self._handlers) >= _STREAM_THREADS:
            raise Refusal(RESOURCE_EXHAUSTED, f"more than {_STREAM_THREADS} streams at the same time")
        thread = threading.Thread(target=self._stream_main, args=(handler, call), name=f"{self._name} stream", daemon=True)
        thread.start()
        self._handlers.add(thread)

    def _stream_main(self, handler: StreamHandler, call: StreamCall) -> None:
        try:
            handler(call)
            call.finish(OK, "")
        except Exception as error:  # the thread's last resort: the client must not wait for ever
            refusal = _refusal_of(error)
            call.finish(refusal.status, refusal.text)
        finally:
            self.call(self._handlers.discard, threading.current_thread())

    def run_http(self, request: http1.Request, answered: Callable[[http1.Request, http1.Answer], None]) -> None:
        """Answer a request from the pool; ``answered`` is called on the loop's thread."""
        self._pool.submit(lambda: self.call(answered, request, self._http_answer(request)))

    def _http_answer(self, request: http1.Request) -> http1.Answer:
        try:
            return self.methods.http(request)
        except Exception as error:  # the thread's last resort: the client must not wait for ever
            _log.exception("%s %s failed", request.method, request.path)
            return http1.Answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}\n".encode())

    def stop(self, grace: float) -> None:
        """Take no further call, let those under way end for ``grace`` seconds, close."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._wind_up(grace), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._pool.shutdown()

    async def _wind_up(self, grace: float) -> None:
        for server in self._servers:
            server.close()
        for peer in list(self._peers):
            peer.leave()
        deadline = self._loop.time() + grace
        await self._until(deadline, lambda: not self._handlers and not any(peer.busy for peer in self._peers))
        for peer in list(self._peers):
            peer.close()
        await self._until(self._loop.time() + 2 * _LINGER, lambda: not self._handlers and not self._peers)
        if self._handlers:
            _log.error("%s stops, but %d streams do not end", self._name, len(self._handlers))
        if self._socket_path and os.path.exists(self._socket_path):
            os.unlink(self._socket_path)

    async def _until(self, deadline: float, done: Callable[[], bool]) -> None:
        while not done() and self._loop.time() < deadline:
            await asyncio.sleep(_POLL)
