"""HTTP/2 as a gRPC server needs it: bytes in, calls out; answers in, bytes out (RFC 9113; header blocks by ``header_block``).

    connection = Connection(max_request)
    for event in connection.receive(data): ...      # Call: a whole request; Cancelled: its client has gone
    connection.answer(stream_id, message)           # or start, send, finish for a stream of answers
    transport.writelines(connection.output())

Rules
-----
* A request is handed out when it is complete, or as soon as it is too large; PullBinlogs too is one message up and many down.
* Answers use no dynamic header table, so what they look like depends on nothing that was said before.
* What the peer's flow-control windows do not admit waits here; ``queued`` says how much, the caller slows down by it.
* Our own windows are as wide as they go: the shell stops reading the socket when too much waits to be stored.
* After ``goaway`` calls under way go on, new ones are passed over: their client knows that it may make them elsewhere.

Promises: pure: no socket, thread or clock. A peer that breaks the protocol is a ``ProtocolFailure`` with the code for GOAWAY, unless what it
did harms nobody: a frame for a call that is over is passed over. What one connection may hold open is bounded.
"""

import struct
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from binlog_source.rpc.header_block import MAX_BLOCK, BadBlock, Fields, HeaderReader, literal

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_WITHOUT_STREAM = (_SETTINGS, _PING, _GOAWAY)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
_NO_ERROR, _PROTOCOL_ERROR, _FLOW_CONTROL_ERROR, _FRAME_SIZE_ERROR, _REFUSED_STREAM = 0x0, 0x1, 0x3, 0x6, 0x7
_COMPRESSION_ERROR, _ENHANCE_YOUR_CALM = 0x9, 0xB
_SET_TABLE, _SET_MAX_STREAMS, _SET_INITIAL_WINDOW, _SET_MAX_FRAME, _SET_MAX_HEADERS = 0x1, 0x3, 0x4, 0x5, 0x6

_FRAME = struct.Struct(">IBI")
_SETTING = struct.Struct(">HI")
_WORD = struct.Struct(">I")
_WIDEST = (1 << 31) - 1
_MAX_FRAME = 1 << 20
_MAX_STREAMS = 4096
_REFILL = 1 << 29
_DEFAULT_WINDOW = 65_535
_DEFAULT_MAX_FRAME = 16_384
_LARGEST_MAX_FRAME = (1 << 24) - 1
_DEFAULT_TABLE = 4096
_MAX_TEXT = 2048
"""Bytes of a status text: C-core refuses header lists above 8 KiB, and percent-encoding may triple it."""
_BEGINNING = 5
_PING_BYTES = 8


class ProtocolFailure(Exception):
    """The peer broke HTTP/2; ``code`` is the error code that it is told."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Call(NamedTuple):
    """A complete request."""

    stream_id: int
    headers: Mapping[bytes, bytes]
    body: bytes
    too_large: bool = False
    """The body is longer than ``max_request``: it was thrown away but for its first bytes, and its rest will be."""


class Cancelled(NamedTuple):
    """The client of a call has given it up."""

    stream_id: int


Event = Call | Cancelled


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame."""
    return _FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


_STATUS_200 = b"\x88"
_NO_TABLE = b"\x20"
HEAD = _STATUS_200 + literal([(b"content-type", b"application/grpc")])
"""The first header block of a gRPC answer."""
_OK = literal([(b"grpc-status", b"0")])
_HEAD_START = _FRAME.pack(len(HEAD) << 8 | _HEADERS, _END_HEADERS, 0)[:5]
_OK_START = _FRAME.pack(len(_OK) << 8 | _HEADERS, _END_HEADERS | _END_STREAM, 0)[:5]


class _Stream:
    """One call, from its first header to the end of its answer."""

    __slots__ = ("complete", "headers", "parts", "queue", "queued", "size", "started", "trailers", "window")

    def __init__(self, headers: Mapping[bytes, bytes], window: int) -> None:
        self.headers = headers
        self.parts: list[bytes] = []
        self.size = 0
        self.complete = False
        self.window = window
        self.started = False
        self.queue: deque[memoryview] | None = None
        self.queued = 0
        self.trailers: bytes | None = None


class Connection:
    """The server side of one connection."""

    def __init__(self, max_request: int = 1 << 62) -> None:
        """``max_request``: bytes of a request's body. Never more than a stream's window admits: nobody waits for what cannot come."""
        self._max_request = min(max_request, _WIDEST - 1)
        self._rest = b""
        self._greeted = False
        self._reader = HeaderReader()
        self._streams: dict[int, _Stream] = {}
        self._block: tuple[int, int, bytearray] | None = None
        self._data_left = 0
        self._data_of = (0, 0)
        self._last_id = 0
        self._taken = 0
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._max_frame = _DEFAULT_MAX_FRAME
        self._leaving = False
        self._table_update = b""
        self._blocked: dict[int, None] = {}  # streams that wait for the connection's window, in turn
        settings = {_SET_MAX_STREAMS: _MAX_STREAMS, _SET_INITIAL_WINDOW: _WIDEST, _SET_MAX_FRAME: _MAX_FRAME, _SET_MAX_HEADERS: MAX_BLOCK}
        self._out: list[bytes | memoryview] = [
            frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings.items())),
            frame(_WINDOW_UPDATE, 0, 0, _WORD.pack(_WIDEST - _DEFAULT_WINDOW)),
        ]

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._streams)

    def output(self) -> list[bytes | memoryview]:
        """The bytes to send now; they are forgotten here."""
        out, self._out = self._out, []
        return out

    def receive(self, data: bytes) -> list[Event]:
        """What the peer's bytes mean.

        Raises:
            ProtocolFailure: tell the peer by ``goaway`` and close.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        events: list[Event] = []
        at, size = 0, len(data)
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ProtocolFailure(_PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
            if size < len(PREFACE):
                self._rest = data
                return events
            at, self._greeted = len(PREFACE), True
        if self._data_left:
            at = self._more_data(data, at, size, events)
        while size - at >= 9:
            word, flags, stream_id = _FRAME.unpack_from(data, at)
            stream_id &= _WIDEST
            length, kind = word >> 8, word & 0xFF
            if length > _MAX_FRAME:
                raise ProtocolFailure(_FRAME_SIZE_ERROR, f"frame of {length} bytes")
            if self._block is not None and kind != _CONTINUATION:
                raise ProtocolFailure(_PROTOCOL_ERROR, "a header block was interrupted")
            end = at + 9 + length
            if kind == _DATA and not flags & _PADDED:
                if end > size:
                    # the payload need not be here as a whole
                    self._data_left, self._data_of = length, (stream_id, flags)
                    end = self._more_data(data, at + 9, size, events)
                else:
                    self._take(stream_id, data[at + 9 : end], flags, length, events)
            elif end > size:
                break
            else:
                self._frame(kind, flags, stream_id, data[at + 9 : end], events)
            at = end
        if at < size:
            self._rest = data[at:]
        return events

    def _more_data(self, data: bytes, at: int, size: int, events: list[Event]) -> int:
        end = min(size, at + self._data_left)
        self._data_left -= end - at
        stream_id, flags = self._data_of
        self._take(stream_id, data[at:end], flags if not self._data_left else flags & ~_END_STREAM, end - at, events)
        return end

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if kind == _HEADERS:
            self._on_headers(flags, stream_id, payload, events)
        elif kind == _DATA:
            self._take(stream_id, _unpadded(payload, flags), flags, len(payload), events)
        elif kind == _WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif stream_id and kind in _WITHOUT_STREAM:
            raise ProtocolFailure(_PROTOCOL_ERROR, f"frame of kind {kind} on stream {stream_id}")
        elif kind == _PING:
            if len(payload) != _PING_BYTES:
                raise ProtocolFailure(_FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
            if not flags & _ACK:
                self._out.append(frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS:
            self._on_settings(flags, payload)
        elif kind == _RST_STREAM:
            if len(payload) != _WORD.size:
                raise ProtocolFailure(_FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
            self._blocked.pop(stream_id, None)
            if self._streams.pop(stream_id, None) is not None:
                events.append(Cancelled(stream_id))
        elif kind == _CONTINUATION:
            self._on_continuation(flags, stream_id, payload, events)
        elif kind == _PUSH_PROMISE:
            raise ProtocolFailure(_PROTOCOL_ERROR, "a client pushes nothing")
        # PRIORITY and GOAWAY ask for nothing; frames of unknown kind are to be passed over

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        block = _unpadded(payload, flags)
        if flags & _PRIORITIZED:
            if len(block) < 5:
                raise ProtocolFailure(_FRAME_SIZE_ERROR, "HEADERS without the priority that they announce")
            block = block[5:]
        if len(block) > MAX_BLOCK:
            raise ProtocolFailure(_ENHANCE_YOUR_CALM, f"header block of more than {MAX_BLOCK} bytes")
        if flags & _END_HEADERS:
            self._on_block(stream_id, flags, block, events)
        else:
            self._block = (stream_id, flags, bytearray(block))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise ProtocolFailure(_PROTOCOL_ERROR, "CONTINUATION continues nothing")
        _, first_flags, block = self._block
        block += payload
        if len(block) > MAX_BLOCK:
            raise ProtocolFailure(_ENHANCE_YOUR_CALM, f"header block of more than {MAX_BLOCK} bytes")
        if flags & _END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block), events)

    def _on_block(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        try:
            headers = self._reader.read(block)
        except BadBlock as error:
            raise ProtocolFailure(_COMPRESSION_ERROR, f"header block cannot be read: {error}") from error
        stream = self._streams.get(stream_id)
        if stream is None:
            if not stream_id % 2:
                raise ProtocolFailure(_PROTOCOL_ERROR, f"stream id {stream_id}")
            if stream_id <= self._last_id or self._leaving:
                return  # trailers of a call that is over, or a call after goaway
            self._last_id = stream_id
            if len(self._streams) >= _MAX_STREAMS:
                self._out.append(frame(_RST_STREAM, 0, stream_id, _WORD.pack(_REFUSED_STREAM)))
                return
            stream = self._streams[stream_id] = _Stream(headers, self._stream_window)
        if flags & _END_STREAM:
            self._complete(stream_id, stream, events)

    def _take(self, stream_id: int, part: bytes, flags: int, counted: int, events: list[Event]) -> None:
        self._taken += counted
        if self._taken >= _REFILL:
            self._out.append(frame(_WINDOW_UPDATE, 0, 0, _WORD.pack(self._taken)))
            self._taken = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            if not stream_id % 2 or (stream_id > self._last_id and not self._leaving):
                raise ProtocolFailure(_PROTOCOL_ERROR, f"DATA on stream {stream_id}, which was never opened")
            return
        if stream.complete:
            return
        if part:
            stream.size += len(part)
            stream.parts.append(part)
            if stream.size > self._max_request:
                self._throw_away(stream_id, stream, events)
                return
        if flags & _END_STREAM:
            self._complete(stream_id, stream, events)

    def _throw_away(self, stream_id: int, stream: _Stream, events: list[Event]) -> None:
        """Nothing more is taken of a body that is too large; nor need it end."""
        stream.complete = True
        beginning = b"".join(stream.parts[:_BEGINNING])[:_BEGINNING]
        stream.parts = []
        events.append(Call(stream_id, stream.headers, beginning, True))

    def _complete(self, stream_id: int, stream: _Stream, events: list[Event]) -> None:
        if stream.complete:
            return
        stream.complete = True
        body = stream.parts[0] if len(stream.parts) == 1 else b"".join(stream.parts)
        stream.parts = []
        events.append(Call(stream_id, stream.headers, body))

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % _SETTING.size:
            raise ProtocolFailure(_FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if flags & _ACK:
            return
        window = self._stream_window
        for name, value in _SETTING.iter_unpack(payload):
            if name == _SET_INITIAL_WINDOW:
                if value > _WIDEST:
                    raise ProtocolFailure(_FLOW_CONTROL_ERROR, f"initial window {value}")
                window = value
            elif name == _SET_MAX_FRAME:
                if not _DEFAULT_MAX_FRAME <= value <= _LARGEST_MAX_FRAME:
                    raise ProtocolFailure(_PROTOCOL_ERROR, f"largest frame {value}")
                self._max_frame = value
            elif name == _SET_TABLE and value < _DEFAULT_TABLE:
                # our next header block has to say that we keep to it; to say that we use no table at all holds for ever
                self._table_update = _NO_TABLE
        change, self._stream_window = window - self._stream_window, window
        for stream in self._streams.values():
            stream.window += change
        self._out.append(frame(_SETTINGS, _ACK, 0, b""))
        if change > 0:
            for stream_id, stream in list(self._streams.items()):
                if stream.queue:
                    self._drain(stream_id, stream)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != _WORD.size:
            raise ProtocolFailure(_FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
        more = _WORD.unpack(payload)[0] & _WIDEST
        if not stream_id:
            self._window = _widened(self._window, more)
            self._unblock()
            return
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.window = _widened(stream.window, more)
            if stream.queue:
                self._drain(stream_id, stream)

    def answer(self, stream_id: int, message: bytes) -> None:
        """The only answer of a call, and that it went well."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        length = len(message) + 5
        if length > min(stream.window, self._window, self._max_frame) or self._table_update:
            self.send(stream_id, b"\x00" + _WORD.pack(len(message)) + message)
            self.finish(stream_id, 0, "")
            return
        del self._streams[stream_id]
        self._window -= length
        number = _WORD.pack(stream_id)
        head = _FRAME.pack(length << 8 | _DATA, 0, stream_id)
        self._out.append(b"".join((_HEAD_START, number, HEAD, head, b"\x00", _WORD.pack(len(message)), message, _OK_START, number, _OK)))

    def refuse(self, stream_id: int, status: int, text: str) -> None:
        """The call failed before anything was answered."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        self._out.append(frame(_HEADERS, _END_HEADERS | _END_STREAM, stream_id, self._headed(HEAD + _trailers(status, text))))
        if stream.size > self._max_request:
            # the rest of the body is not wanted
            self._out.append(frame(_RST_STREAM, 0, stream_id, _WORD.pack(_NO_ERROR)))

    def _headed(self, block: bytes) -> bytes:
        update, self._table_update = self._table_update, b""
        return update + block

    def start(self, stream_id: int, metadata: Fields) -> None:
        """Begin a stream of answers; ``send`` does it by itself, without metadata."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.started:
            stream.started = True
            self._out.append(frame(_HEADERS, _END_HEADERS, stream_id, self._headed(HEAD + literal(metadata))))

    def send(self, stream_id: int, data: bytes) -> None:
        """More bytes of a stream of answers: framed messages, cut anywhere."""
        stream = self._streams.get(stream_id)
        if stream is None or not data:
            return
        if stream.queue is None:
            self.start(stream_id, ())
            stream.queue = deque()
        stream.queue.append(memoryview(data))
        stream.queued += len(data)
        self._drain(stream_id, stream)

    def finish(self, stream_id: int, status: int, text: str) -> None:
        """End a stream of answers, once all of it is sent."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            trailers = _trailers(status, text)
            stream.trailers = trailers if stream.started else HEAD + trailers
            self._drain(stream_id, stream)

    def queued(self, stream_id: int) -> int:
        """Bytes of a stream that the peer's windows did not admit yet."""
        stream = self._streams.get(stream_id)
        return stream.queued if stream is not None else 0

    def goaway(self, code: int = _NO_ERROR, text: str = "") -> None:
        """Say that no further call is taken."""
        self._leaving = True
        self._out.append(frame(_GOAWAY, 0, 0, _WORD.pack(self._last_id) + _WORD.pack(code) + _cut(text)))

    def _unblock(self) -> None:
        for stream_id in list(self._blocked):
            if self._window <= 0:
                return
            del self._blocked[stream_id]
            self._drain(stream_id, self._streams[stream_id])

    def _drain(self, stream_id: int, stream: _Stream) -> None:
        queue = stream.queue
        while queue:
            room = min(stream.window, self._window, self._max_frame)
            if room <= 0:
                if stream.window > 0:
                    self._blocked[stream_id] = None
                return
            chunk = queue[0]
            if len(chunk) <= room:
                queue.popleft()
            else:
                queue[0], chunk = chunk[room:], chunk[:room]
            count = len(chunk)
            stream.window -= count
            self._window -= count
            stream.queued -= count
            self._out.append(_FRAME.pack(count << 8 | _DATA, 0, stream_id))
            self._out.append(chunk)
        self._blocked.pop(stream_id, None)
        if stream.trailers is not None:
            del self._streams[stream_id]
            self._out.append(frame(_HEADERS, _END_HEADERS | _END_STREAM, stream_id, self._headed(stream.trailers)))


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolFailure(_PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def _widened(window: int, more: int) -> int:
    if window + more > _WIDEST:
        raise ProtocolFailure(_FLOW_CONTROL_ERROR, f"a window of {window + more} bytes")
    return window + more


def _trailers(status: int, text: str) -> bytes:
    if not status:
        return _OK
    return literal([(b"grpc-status", b"%d" % status), (b"grpc-message", percent(text))])


def percent(text: str) -> bytes:
    """A status text as ``grpc-message`` carries it; a very long one is cut."""
    return b"".join(bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in _cut(text))


def _cut(text: str) -> bytes:
    encoded = text.encode(errors="replace")
    if len(encoded) <= _MAX_TEXT:
        return encoded
    return encoded[:_MAX_TEXT].decode(errors="ignore").encode()
