"""One connection: what its first bytes say it is, and its calls or requests from there on. Everything here happens on the loop's thread.

Promises: a client that does not take its answers is not read either; one that does not finish its first words in ``FIRST_WORD`` seconds is
closed; one that breaks HTTP/2 is told so and closed. While the front holds, calls that have come wait unread like all that is still in the
socket, and nobody's time passes.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from binlog_source.rpc import http2
from binlog_source.rpc.budget import Share
from binlog_source.rpc.calls import BACKLOG_BYTES, Fields, StreamCall, Ticket
from binlog_source.rpc.crowds import address_of
from binlog_source.rpc.frames import ENHANCE_YOUR_CALM, ProtocolFailure
from binlog_source.rpc.grpc_message import (
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Refusal,
    announced,
    message_of,
    too_large,
)
from binlog_source.rpc.http_peer import ENDLESS, HttpPeer, Turn

if TYPE_CHECKING:
    from binlog_source.rpc.front import Front

_log = logging.getLogger(__name__)

_DEAF_BYTES = 16 << 20
"""A peer is not read while more than this waits for it. Far above the backlog of a stream, whose client is slow but honest."""
FIRST_WORD = 10.0
"""Seconds in which a client must say what it speaks, HTTP/2's preface and SETTINGS included."""
LINGER = 1.0
"""Seconds that last words may take to leave."""


class Peer(asyncio.Protocol):
    """One connection. Everything here happens on the loop's thread."""

    def __init__(self, front: "Front") -> None:
        self.front = front
        self._transport: asyncio.Transport | None = None
        self.address = ""
        """The client's host, or network; "" on a Unix socket."""
        self.heard = 0.0
        """When it said something last."""
        self._turn = Turn(FIRST_WORD)
        self._since = 0.0  # when the turn was first seen
        self._head = b""
        self.connection: http2.Connection | None = None
        self._http: HttpPeer | None = None
        self.streams: dict[int, StreamCall] = {}
        self._events: deque[http2.Event] = deque()
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=BACKLOG_BYTES)
        name = transport.get_extra_info("peername")
        self.address = address_of(str(name[0])) if isinstance(name, tuple) else ""
        self._since = self.heard = self.front.now()
        self.front.joined(self, transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone, and with it its calls."""
        self.front.left(self)
        self._give_up()
        if self._http is not None:
            self._http.share.close()
        self._transport = None

    @property
    def share(self) -> Share | None:
        """Its share of the memory for requests that are not complete."""
        if self.connection is not None:
            return self.connection.share
        return self._http.share if self._http is not None else None

    def make_room(self) -> bool:
        """Refuse one of its requests that wait for memory; False: none does."""
        made = self.connection is not None and self.connection.make_room()
        self.flush()
        return made

    def look(self, now: float, deaf: bool) -> None:
        """Time has passed; ``deaf``: we did not listen meanwhile."""
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

    def _awaited(self) -> Turn:
        if self._http is not None:
            return self._http.turn
        return Turn(FIRST_WORD if self.connection is None or not self.connection.settled else ENDLESS)

    def evict(self) -> None:
        """The server's memory for unfinished requests is used up, mostly by this client."""
        if self.connection is not None:
            text = f"{self.connection.share.held} bytes of unfinished requests are more than the server has room for"
            self._fail(self.connection, ProtocolFailure(ENHANCE_YOUR_CALM, text))
        elif self._http is not None and self._transport is not None:
            self._http.share.close()
            self._transport.abort()

    def _give_up(self) -> None:
        """Nobody waits for the answers any more."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self._events.clear()
        for call in self.streams.values():
            call.cancel()
        self.streams.clear()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self.heard = self.front.now()
        if self.connection is not None:
            self._h2_received(self.connection, data)
        elif self._http is not None:
            self._http.received(data)
        else:
            self._sniff(self._head + data)
        self.front.relieve_memory()

    def eof_received(self) -> bool:
        """Whether to keep the connection: who has said all there is to say may still wait for HTTP's answer."""
        return self._http is not None and self._http.ended()

    def _sniff(self, head: bytes) -> None:
        self._head = head
        if len(head) < 3:
            return
        if head.startswith(b"PRI"):
            self.connection = http2.Connection(self.front.methods.max_request + 5, self.front.budget, self.flush, self.address)
            self._h2_received(self.connection, head)
        elif self._transport is not None:
            self._http = HttpPeer(self.front, self._transport)
            self._http.received(head)

    def _h2_received(self, connection: http2.Connection, data: bytes) -> None:
        try:
            self._events.extend(connection.receive(data, self.heard))
        except ProtocolFailure as failure:
            self._fail(connection, failure)
            return
        self._act()

    def _fail(self, connection: http2.Connection, failure: ProtocolFailure) -> None:
        """Tell the client what it did, and close."""
        _log.warning("the client %s is cut off: %s", self.address or "on the Unix socket", failure)
        connection.goaway(failure.code, str(failure))
        self.flush()
        self._give_up()
        self.close()

    def go_on(self) -> None:
        """The front holds no more: do what has waited."""
        if self._events:
            self._act()

    def _act(self) -> None:
        """Do what the client said, unless the front holds: then it waits here."""
        while self._events and not self.front.held and self.connection is not None:
            event = self._events.popleft()
            if isinstance(event, http2.Call):
                self._called(self.connection, event)
            else:
                self._cancelled(event.stream_id)
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

    def stream_end(self, stream_id: int, text: str) -> None:
        """End a stream whose client does not take it; what waits for it is dropped."""
        if self.connection is None or self._transport is None or stream_id not in self.streams:
            return
        _log.warning("a stream of %s is ended: %s", self.address or "the Unix socket", text)
        self.connection.cut_off(stream_id, RESOURCE_EXHAUSTED, text)
        self._cancelled(stream_id)
        if self._transport.get_write_buffer_size() > BACKLOG_BYTES:
            # what waits is out of the connection's hands, and goes only with it
            self._transport.abort()
        else:
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
        if self.front.held or self._is_deaf():
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _is_deaf(self) -> bool:
        """Whether this client lets its answers pile up."""
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
        """Another needs the room: close, at once where its client does not read."""
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
