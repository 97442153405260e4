"""One connection: what its first bytes say it is, and its calls or requests from there on. Everything here happens on the loop's thread.

Promises: a client that does not take its answers is not read either; one that says nothing for ``_FIRST_WORD`` seconds is closed; one that breaks
HTTP/2 is told so and closed.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from binlog_source.rpc import http1, http2
from binlog_source.rpc.calls import BACKLOG_BYTES, Fields, StreamCall, Ticket
from binlog_source.rpc.grpc_message import (
    INTERNAL,
    UNIMPLEMENTED,
    Refusal,
    announced,
    message_of,
    too_large,
)

if TYPE_CHECKING:
    from binlog_source.rpc.front import Front

_log = logging.getLogger(__name__)

_DEAF_BYTES = 16 << 20
"""A peer is not read while more than this waits for it. Far above the backlog of a stream, whose client is slow but honest."""
_FIRST_WORD = 10.0
"""Seconds in which a client must begin to speak, as with a real Pump."""
LINGER = 1.0
"""Seconds that last words may take to leave."""


class Peer(asyncio.Protocol):
    """One connection. Everything here happens on the loop's thread."""

    def __init__(self, front: "Front") -> None:
        self.front = front
        self._transport: asyncio.Transport | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._head = b""
        self.connection: http2.Connection | None = None
        self._http: HttpPeer | None = None
        self.streams: dict[int, StreamCall] = {}
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=BACKLOG_BYTES)
        self.front.joined(self)
        self._await_word()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone, and with it its calls."""
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
        """asyncio: bytes came."""
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
            self._http = HttpPeer(self.front, self._transport)
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
            refusal = refusal_of(error)
            connection.refuse(stream_id, refusal.status, refusal.text)

    def _cancelled(self, stream_id: int) -> None:
        call = self.streams.pop(stream_id, None)
        if call is not None:
            call.cancel()

    def stream_start(self, stream_id: int, metadata: Fields) -> None:
        """Send a stream's metadata."""
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
        """asyncio: the client is behind."""
        self._paused = True

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
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
            self.front.later(LINGER, self._transport.abort)


def refusal_of(error: Exception) -> Refusal:
    """What a client is told of an error in its call's handler."""
    if isinstance(error, Refusal):
        # a handler may raise the same one for ever; it must not gather the frames of every call
        return error.with_traceback(None)
    _log.error("a call failed", exc_info=error)
    return Refusal(INTERNAL, f"{type(error).__name__}: {error}")


class HttpPeer:
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
        if self.answering or self._transport.is_closing() or self._transport.get_write_buffer_size() > BACKLOG_BYTES:
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
