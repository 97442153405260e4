"""One HTTP/2 connection of a gRPC client, on its loop's thread: the calls under way. The ``h2`` library speaks the protocol.

Promises: no call waits for another, except when the server limits the number of calls. The streams' windows bound what a server sends; they
are opened as messages are taken (``ClientCall``). The connection's own window is always wide. After GOAWAY the calls that the server still
answers continue, the others fail as ``UNAVAILABLE``, and the connection closes with its last call. A server that violates HTTP/2 fails its
calls, and nothing else.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from pyspark_tidb_binlog.binlog_source.rpc.client_call import WINDOW, ClientCall, Fields
from pyspark_tidb_binlog.binlog_source.rpc.frames import SETTINGS
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import (
    CANCELLED,
    ENCODING,
    GZIP,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
    Refusal,
)
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode

# at the level debug it logs each field of each call, twice
logging.getLogger("hpack").setLevel(logging.INFO)

_WIDE = 1 << 30
"""The connection's window."""
_LAST_ID = 1 << 30
_TYPE_AT = 3
"""Where a frame has its type; a server's first is SETTINGS."""
_MAX_FRAME = 1 << 20
_MAX_HEADERS = 64 << 10
_WRITE_BUFFER = 1 << 20
_MOST_TIMEOUT_MS = 99_999_999
_STATUS_OF_HTTP = {
    b"400": INTERNAL,
    b"404": UNIMPLEMENTED,
    b"429": UNAVAILABLE,
    b"502": UNAVAILABLE,
    b"503": UNAVAILABLE,
    b"504": UNAVAILABLE,
}
_STATUS_OF_RESET = {
    ErrorCode.REFUSED_STREAM: UNAVAILABLE,
    ErrorCode.CANCEL: CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: RESOURCE_EXHAUSTED,
}


class _Http2(h2.connection.H2Connection):
    """The library closes the connection at GOAWAY; gRPC's servers finish their calls after it."""

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[h2.events.Event]]:
        event = h2.events.ConnectionTerminated()
        event.error_code, event.last_stream_id, event.additional_data = frame.error_code, frame.last_stream_id, frame.additional_data
        return [], [event]


class ClientConnection(asyncio.Protocol):
    """One connection. ``lost`` is called when it takes no further calls."""

    def __init__(self, authority: str, lost: Callable[["ClientConnection"], None]) -> None:
        self._authority = authority
        self._lost = lost
        config = h2.config.H2Configuration(
            client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._h2 = _Http2(config)
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                codes.ENABLE_PUSH: 0,
                codes.INITIAL_WINDOW_SIZE: WINDOW,
                codes.MAX_FRAME_SIZE: _MAX_FRAME,
                codes.MAX_HEADER_LIST_SIZE: _MAX_HEADERS,
            },
        )
        self._h2.max_inbound_frame_size = _MAX_FRAME
        self._calls: dict[int, ClientCall] = {}
        self._queue: deque[ClientCall] = deque()  # beyond what the server allows at the same time
        self._transport: asyncio.Transport | None = None
        self._greets = False
        self._greeted = asyncio.get_running_loop().create_future()
        self._paused = False
        self._used = 0  # bytes of the connection's window
        self.leaving = False
        """It takes no further calls."""
        self._why = "the connection was closed"

    # asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection was made."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WIDE)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were received."""
        if not self._greeted.done() and len(data) > _TYPE_AT and data[_TYPE_AT] != SETTINGS:
            self.fail("the server does not speak HTTP/2")
            return
        try:
            for event in self._h2.receive_data(data):
                self._on_event(event)
        except h2.exceptions.ProtocolError as error:
            self.fail(f"the server violated HTTP/2: {type(error).__name__} {error}")
            return
        self._flush()
        self._close_if_done()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection was lost; its calls fail."""
        self._transport = None
        self.fail(f"{self._why}: {exc}" if exc is not None else self._why)

    def pause_writing(self) -> None:
        """asyncio: the write buffer is above its limit."""
        self._paused = True

    def resume_writing(self) -> None:
        """asyncio: the write buffer has drained."""
        self._paused = False
        self._send_all()

    # What the client does with it.

    async def greet(self) -> None:
        """Begin to speak HTTP/2 with a verified server: send what was kept back, and wait for the number of calls that the server allows.

        Raises:
            OSError: the server closed the connection, or does not speak HTTP/2.
        """
        self._greets = True
        self._flush()
        await self._greeted

    def begin(self, call: ClientCall) -> None:
        """Begin a call."""
        if self._transport is None or self.leaving:
            call.end(UNAVAILABLE, self._why)
            return
        if len(self._calls) >= self._h2.remote_settings.max_concurrent_streams:
            self._queue.append(call)
            return
        call.stream_id = self._h2.get_next_available_stream_id()
        if call.stream_id > _LAST_ID:
            self._leave()
        self._calls[call.stream_id] = call
        self._h2.send_headers(call.stream_id, self._head_of(call))
        self.push(call)

    def push(self, call: ClientCall) -> None:
        """Send what the call has to send, as the windows admit."""
        if call.stream_id in self._calls:
            self._send(call)
            self._flush()

    def open_window(self, call: ClientCall) -> None:
        """Let the server send as much as was taken."""
        if call.unread and self._is_open(call):
            self._h2.increment_flow_control_window(call.unread, call.stream_id)
            call.unread = 0
            self._flush()

    def drop(self, call: ClientCall, status: int, text: str) -> None:
        """End a call from here."""
        if call in self._queue:
            self._queue.remove(call)
        if self._calls.get(call.stream_id) is call:
            self._reset(call)
            self._flush()
            self._ended(call, status, text)
        else:
            call.end(status, text)
        self._close_if_done()

    def leave(self) -> None:
        """Take no further calls; close when the last has ended."""
        self._leave()
        self._close_if_done()

    def fail(self, why: str, status: int = UNAVAILABLE) -> None:
        """End all calls and close."""
        self._why = why
        self._leave()
        calls = [*self._calls.values(), *self._queue]
        self._calls.clear()
        self._queue.clear()
        if self._transport is not None:
            self._flush()
            self._transport.abort()
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionResetError(why))
            self._greeted.exception()  # asyncio must not complain if nobody waits for it
        for call in calls:
            call.end(status, why)

    # The rest is its own.

    def _head_of(self, call: ClientCall) -> list[tuple[bytes, bytes]]:
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":path", call.path),
            (b":authority", self._authority.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"grpc-accept-encoding", b"identity,gzip"),
        ]
        if call.compress:
            fields.append((ENCODING, GZIP))
        if call.deadline is not None:
            left = call.deadline - asyncio.get_running_loop().time()
            fields.append((b"grpc-timeout", b"%dm" % min(max(1, int(left * 1000)), _MOST_TIMEOUT_MS)))
        return [*fields, *call.metadata]

    def _on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._on_data(event)
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            if not self._greeted.done() and isinstance(event, h2.events.RemoteSettingsChanged):
                self._greeted.set_result(None)
            self._send_all()
            self._begin_queued()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._on_goaway(event)
        else:
            call = self._calls.get(getattr(event, "stream_id", 0) or 0)
            if call is None:
                return
            if isinstance(event, h2.events.ResponseReceived):
                self._on_head(call, event.headers or ())
            elif isinstance(event, h2.events.TrailersReceived):
                call.trailers = _bare(event.headers or ())
            elif isinstance(event, h2.events.StreamEnded):
                self._on_end(call)
            elif isinstance(event, h2.events.StreamReset):
                self._on_reset(call, event)

    def _on_head(self, call: ClientCall, headers: Any) -> None:
        fields = dict(headers)
        status = fields.get(b":status", b"")
        if status != b"200":
            self.drop(call, _STATUS_OF_HTTP.get(status, UNKNOWN), f"HTTP status {status.decode(errors='replace')} instead of a gRPC answer")
        elif not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            self.drop(
                call, UNKNOWN, f"an answer of type {fields.get(b'content-type', b'').decode(errors='replace')!r}, which is not gRPC's"
            )
        elif b"grpc-status" in fields:
            call.trailers = _bare(headers)
        else:
            call.received_headers(_bare(headers))

    def _on_data(self, event: h2.events.DataReceived) -> None:
        size = event.flow_controlled_length or 0
        self._used += size
        if self._used >= _WIDE // 4:
            self._h2.increment_flow_control_window(self._used)
            self._used = 0
        call = self._calls.get(event.stream_id or 0)
        if call is None:
            return
        call.unread += size
        try:
            goes_on = call.received(event.data or b"")
        except Refusal as error:
            self.drop(call, error.status, error.text)
            return
        if goes_on and call.unread >= WINDOW // 4 and self._is_open(call):
            self._h2.increment_flow_control_window(call.unread, call.stream_id)
            call.unread = 0

    def _on_end(self, call: ClientCall) -> None:
        if not call.closed_here:
            self._reset(call)
        self._ended(call, *call.verdict())

    def _on_reset(self, call: ClientCall, event: h2.events.StreamReset) -> None:
        code = int(event.error_code or 0)
        status = next((status for known, status in _STATUS_OF_RESET.items() if known == code), INTERNAL)
        self._ended(call, status, f"the server reset the call with HTTP/2 error {code}")

    def _on_goaway(self, event: h2.events.ConnectionTerminated) -> None:
        said = bytes(event.additional_data or b"").decode(errors="replace")
        self._why = f"the server closes the connection{f': {said}' if said else ''}"
        self._leave()
        last = event.last_stream_id or 0
        unheard = [call for stream_id, call in self._calls.items() if stream_id > last] + list(self._queue)
        self._queue.clear()
        for call in unheard:
            self._calls.pop(call.stream_id, None)
            call.end(UNAVAILABLE, self._why)

    def _ended(self, call: ClientCall, status: int, text: str) -> None:
        self._calls.pop(call.stream_id, None)
        call.unsent.clear()
        call.end(status, text, call.trailers)
        self._begin_queued()

    def _begin_queued(self) -> None:
        while self._queue and len(self._calls) < self._h2.remote_settings.max_concurrent_streams:
            self.begin(self._queue.popleft())

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = True
            self._lost(self)

    def _close_if_done(self) -> None:
        if self.leaving and not self._calls and not self._queue and self._transport is not None:
            self._transport.close()

    def _is_open(self, call: ClientCall) -> bool:
        """Whether something may be sent on the call's stream: the library may have seen its end, of which the event is still to come."""
        stream = self._h2.streams.get(call.stream_id)
        return stream is not None and not stream.closed

    def _reset(self, call: ClientCall) -> None:
        if self._is_open(call):
            self._h2.reset_stream(call.stream_id, ErrorCode.CANCEL)

    def _send_all(self) -> None:
        for call in list(self._calls.values()):
            self._send(call)
        self._flush()

    def _send(self, call: ClientCall) -> None:
        parts, last = call.next_parts()
        call.unsent.extend(memoryview(part) for part in parts)
        while call.unsent and not self._paused and self._is_open(call):
            room = min(self._h2.local_flow_control_window(call.stream_id), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            part = call.unsent[0]
            self._h2.send_data(call.stream_id, bytes(part[:room]))
            if room < len(part):
                call.unsent[0] = part[room:]
            else:
                call.unsent.popleft()
            self._flush()
        if last and not call.unsent and not call.closed_here and self._is_open(call):
            call.closed_here = True
            self._h2.end_stream(call.stream_id)

    def _flush(self) -> None:
        if self._transport is not None and self._greets:
            data = self._h2.data_to_send()
            if data:
                self._transport.write(data)


def _bare(headers: Any) -> Fields:
    """Fields without HTTP/2's own."""
    return tuple((bytes(name), bytes(value)) for name, value in headers if not name.startswith(b":"))
