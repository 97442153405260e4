"""HTTP/2 for a gRPC server: bytes in, calls out; answers in, bytes out (RFC 9113, what grpc-go and gRPC's C-core need of it).

    connection = Connection(max_request, memory)
    for event in connection.receive(data): ...       # Call: a whole request; Cancelled: a call ended by its client
    connection.answer(stream_id, message)            # or start, send, finish for a stream of answers
    transport.write(b"".join(connection.output()))

Rules
-----
* A stream's first window, 64 KiB, admits most requests whole. gRPC announces a message's length at its beginning. For a longer message the
  window is opened for the rest when the server's ``BoundedMemory`` admits it. The connection's window is refilled as it is used.
* A request that announces more than ``max_request`` is refused at once, and its rest is discarded.
* Bytes of answers that the client's windows do not admit are queued; ``queued`` returns how many. Streams take turns at the connection's
  window. Answers do not use the dynamic header table, so their encoding does not depend on earlier answers.
* Frames of a call that is over are ignored, and so are answers to it. Only header blocks still change the header table.
* After ``goaway``, calls under way continue and new calls are ignored: their client may retry them elsewhere.

Promises: pure: no socket, thread or clock. A violation that would leave the two sides in different states raises ``ProtocolError``,
which ends the connection. Others, such as PING as the first frame, are accepted. A connection holds at most ``CONNECTION_WINDOW`` bytes of
unfinished requests, and what ``BoundedMemory`` admits of them.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pyspark_tidb_binlog.binlog_source.rpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_MAX_FRAME,
    DEFAULT_TABLE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME,
    GOAWAY,
    HEADERS,
    LARGEST_MAX_FRAME,
    MAX_BLOCK,
    PADDED,
    PING,
    PREFACE,
    PREFIX_SIZE,
    PRIORITIZED,
    RST_STREAM,
    SET_INITIAL_WINDOW,
    SET_MAX_FRAME,
    SET_MAX_HEADERS,
    SET_MAX_STREAMS,
    SET_TABLE,
    SETTING,
    SETTINGS,
    SIZES,
    WIDEST,
    WINDOW_UPDATE,
    WORD,
    ErrorCode,
    Fields,
    HeaderReader,
    ProtocolError,
    announced,
    cut,
    frame,
    literal,
    percent,
    prefixed,
    too_large,
    unpadded,
    word_frame,
)
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory

MAX_STREAMS = 512
"""Concurrent calls on one connection; a client delays further ones."""
CONNECTION_WINDOW = MAX_STREAMS * DEFAULT_WINDOW
MAX_FRAME = 1 << 16
_STATUS_200 = b"\x88"
_NO_TABLE = b"\x20"
HEAD = _STATUS_200 + literal([(b"content-type", b"application/grpc")])
"""The first header block of a gRPC answer."""
_OK = literal([(b"grpc-status", b"0")])
_HEAD_START = FRAME.pack(len(HEAD) << 8 | HEADERS, END_HEADERS, 0)[:5]
_OK_START = FRAME.pack(len(_OK) << 8 | HEADERS, END_HEADERS | END_STREAM, 0)[:5]


class Call(NamedTuple):
    """A complete request."""

    stream_id: int
    headers: Mapping[bytes, bytes]
    body: bytes | bytearray


class Cancelled(NamedTuple):
    """The client cancelled the call."""

    stream_id: int


Event = Call | Cancelled


class _OpenStream:
    """One call, from its first header to the end of its answer."""

    __slots__ = ("asked", "body", "complete", "headers", "queue", "queued", "room", "started", "trailers", "waits", "window")

    def __init__(self, headers: Mapping[bytes, bytes], window: int) -> None:
        self.headers = headers
        self.body = bytearray()
        self.room = DEFAULT_WINDOW  # bytes that the client may still send
        self.asked = self.waits = False  # whether it has asked for memory, and whether it has not been admitted since
        self.complete = False  # whether the whole request has arrived
        self.window = window  # bytes that the client still reads
        self.started = False
        self.queue: deque[memoryview] | None = None
        self.queued = 0
        self.trailers: bytes | None = None


class Connection:
    """The server side of one connection."""

    def __init__(self, max_request: int, memory: BoundedMemory, wake: Callable[[], None] = lambda: None) -> None:
        """``max_request``: maximum bytes of a message; ``memory``: the server's; ``wake`` is called when output arises by itself."""
        self._max_request = min(max_request, WIDEST - PREFIX_SIZE)  # a longer one does not fit a window
        self._memory = memory
        self._wake = wake
        self._rest = b""
        self._greeted = self._settled = self._leaving = False
        self._reader = HeaderReader()
        self._block: tuple[int, int, bytearray] | None = None
        self._streams: dict[int, _OpenStream] = {}
        self._last_id = 0
        self._room = CONNECTION_WINDOW
        self._window = self._stream_window = DEFAULT_WINDOW
        self._max_frame = DEFAULT_MAX_FRAME
        self._table_update = b""
        self._queued: dict[int, _OpenStream] = {}  # streams with bytes that the windows do not admit; the next one first
        self._widened = False
        settings = {SET_MAX_STREAMS: MAX_STREAMS, SET_MAX_FRAME: MAX_FRAME, SET_MAX_HEADERS: MAX_BLOCK}
        self._out: list[bytes | memoryview] = [
            frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings.items())),
            word_frame(WINDOW_UPDATE, 0, CONNECTION_WINDOW - DEFAULT_WINDOW),
        ]

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._streams)

    @property
    def awaits(self) -> bool:
        """Whether the client's next bytes are awaited: its SETTINGS, or the rest of a request."""
        return not self._settled or any(not stream.complete and not stream.waits for stream in self._streams.values())

    @property
    def sends(self) -> bool:
        """Whether bytes wait until the client widens its windows."""
        return bool(self._queued)

    def close(self) -> None:
        """Release what the requests hold of the server's memory."""
        for stream_id in list(self._streams):
            self._drop(stream_id)

    def output(self) -> list[bytes | memoryview]:
        """Take the bytes to send now."""
        out, self._out = self._out, []
        return out

    # What comes in.

    def receive(self, data: bytes) -> list[Event]:
        """Process the client's bytes; the resulting events.

        Raises:
            ProtocolError: send it by ``goaway`` and close.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        events: list[Event] = []
        at, size = 0, len(data)
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
            if size < len(PREFACE):
                self._rest = data
                return events
            at, self._greeted = len(PREFACE), True
        while size - at >= 9:
            word, flags, stream_id = FRAME.unpack_from(data, at)
            length = word >> 8
            if length > MAX_FRAME:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            end = at + 9 + length
            if end > size:
                break
            self._frame(word & 0xFF, flags, stream_id & WIDEST, data[at + 9 : end], events)
            at = end
        if at < size:
            self._rest = data[at:]
        if self._widened:
            self._flow()
        return events

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted by another frame")
        if SIZES.get(kind, len(payload)) != len(payload):
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"frame of type {kind} with {len(payload)} bytes")
        if kind == DATA:
            self._on_data(flags, stream_id, payload, events)
        elif kind == HEADERS:
            block = unpadded(payload, flags)
            self._on_block_part(stream_id, flags, bytearray(), block[5:] if flags & PRIORITIZED else block, events)
        elif kind == CONTINUATION:
            if self._block is None or self._block[0] != stream_id:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS on the same stream before it")
            _, first_flags, block_so_far = self._block
            self._on_block_part(stream_id, first_flags | flags & END_HEADERS, block_so_far, payload, events)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(stream_id, WORD.unpack(payload)[0] & WIDEST)
        elif kind == PING and not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._on_settings(payload)
        elif kind == RST_STREAM:
            self._require_opened(stream_id)
            if self._drop(stream_id):
                events.append(Cancelled(stream_id))
        # PRIORITY, GOAWAY and frames of unknown types need no action

    def _require_opened(self, stream_id: int) -> None:
        if not stream_id or (stream_id > self._last_id and not self._leaving):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which was never opened")

    def _on_block_part(self, stream_id: int, flags: int, before: bytearray, part: bytes, events: list[Event]) -> None:
        """HEADERS or CONTINUATION; ``flags``: of HEADERS, with the END_HEADERS of this frame."""
        if len(before) + len(part) > MAX_BLOCK:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"header block of more than {MAX_BLOCK} bytes")
        if not flags & END_HEADERS:
            self._block = stream_id, flags, before + part
            return
        self._block = None
        headers = self._reader.read(bytes(before) + part if before else part)
        if not stream_id % 2:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"even stream id {stream_id} from a client")
        if stream_id > self._last_id and not self._leaving:
            self._open(stream_id, flags, headers, events)
        elif (stream := self._streams.get(stream_id)) is not None:
            if stream.complete or not flags & END_STREAM:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"HEADERS that do not end the request on stream {stream_id}")
            self._complete(stream_id, stream, stream.body, events)

    def _open(self, stream_id: int, flags: int, headers: Mapping[bytes, bytes], events: list[Event]) -> None:
        self._last_id = stream_id
        if len(self._streams) >= MAX_STREAMS:
            self._out.append(word_frame(RST_STREAM, stream_id, ErrorCode.REFUSED_STREAM))
            return
        stream = self._streams[stream_id] = _OpenStream(headers, self._stream_window)
        if flags & END_STREAM:
            self._complete(stream_id, stream, b"", events)

    def _on_data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        size = len(payload)
        self._room -= size
        if self._room < CONNECTION_WINDOW // 2:
            self._out.append(word_frame(WINDOW_UPDATE, 0, CONNECTION_WINDOW - self._room))
            self._room = CONNECTION_WINDOW
        stream = self._streams.get(stream_id)
        if stream is None:
            self._require_opened(stream_id)
            return
        if flags & PADDED:
            payload = unpadded(payload, flags)
            self._out.append(word_frame(WINDOW_UPDATE, stream_id, size - len(payload)))
        stream.room -= len(payload)
        if stream.room < 0 or stream.complete:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"more DATA than allowed on stream {stream_id}")
        body = stream.body
        if flags & END_STREAM and not body:
            self._on_body(stream_id, stream, payload, events, ended=True)
        else:
            body += payload
            self._on_body(stream_id, stream, body, events, ended=bool(flags & END_STREAM))

    def _on_body(self, stream_id: int, stream: _OpenStream, body: bytes | bytearray, events: list[Event], *, ended: bool) -> None:
        """A request's body has grown."""
        length = announced(body)
        whole = PREFIX_SIZE + length
        if max(whole, len(body)) > PREFIX_SIZE + self._max_request:
            refusal = too_large(length, self._max_request)
            self.refuse(stream_id, refusal.status, refusal.text)
        elif ended:
            self._complete(stream_id, stream, body, events)
        elif whole - len(body) > stream.room and not stream.asked:
            stream.asked = stream.waits = True
            self._memory.ask(stream, whole, partial(self._admit, stream_id, stream, whole))

    def _admit(self, stream_id: int, stream: _OpenStream, whole: int) -> None:
        """Open a request's window for its rest."""
        missing = whole - len(stream.body) - stream.room
        stream.room += missing
        stream.waits = False
        self._out.append(word_frame(WINDOW_UPDATE, stream_id, missing))
        self._wake()

    def _complete(self, stream_id: int, stream: _OpenStream, body: bytes | bytearray, events: list[Event]) -> None:
        stream.complete = True
        stream.body = bytearray()
        if stream.asked:
            self._memory.forget(stream)
        events.append(Call(stream_id, stream.headers, body))

    def _drop(self, stream_id: int) -> bool:
        """Forget a call; whether it was open."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return False
        self._queued.pop(stream_id, None)
        if stream.asked and not stream.complete:
            self._memory.forget(stream)
        return True

    # Settings and windows.

    def _on_settings(self, payload: bytes) -> None:
        if len(payload) % SETTING.size:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self._settled = True
        self._out.append(frame(SETTINGS, ACK, 0, b""))
        for name, value in SETTING.iter_unpack(payload):
            if name == SET_INITIAL_WINDOW:
                change, self._stream_window = value - self._stream_window, value
                for stream in self._streams.values():
                    stream.window += change
                self._widened = True
            elif name == SET_MAX_FRAME:
                if not DEFAULT_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                    raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"largest frame {value}")
                self._max_frame = value
            elif name == SET_TABLE and value < DEFAULT_TABLE:
                # for good: from the next header block on
                self._table_update = _NO_TABLE

    def _on_window_update(self, stream_id: int, more: int) -> None:
        if not stream_id:
            self._window += more
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.window += more
        else:
            self._require_opened(stream_id)
        self._widened = True

    def _flow(self) -> None:
        """Send what the windows admit after they have grown: however often they did, each stream sends once."""
        self._widened = False
        for stream_id, stream in list(self._queued.items()):
            if self._window <= 0:
                return
            self._drain(stream_id, stream)

    # What goes out.

    def goaway(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Send GOAWAY: no further call is accepted."""
        self._leaving = True
        self._out.append(frame(GOAWAY, 0, 0, WORD.pack(self._last_id) + WORD.pack(code) + cut(text)))

    def answer(self, stream_id: int, message: bytes) -> None:
        """Send the answer of a unary call, with status OK."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        length = len(message) + PREFIX_SIZE
        if length > min(stream.window, self._window, self._max_frame) or self._table_update:
            self.send(stream_id, prefixed(message))
            self.finish(stream_id, 0, "")
            return
        del self._streams[stream_id]
        self._window -= length
        number = WORD.pack(stream_id)
        head = FRAME.pack(length << 8 | DATA, 0, stream_id)
        self._out.append(b"".join((_HEAD_START, number, HEAD, head, prefixed(message), _OK_START, number, _OK)))

    def refuse(self, stream_id: int, status: int, text: str) -> None:
        """Fail a call before anything was answered."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._headers(stream_id, HEAD + _trailers(status, text), END_STREAM)
        if not stream.complete:
            # asks the client not to send the rest of the body
            self._out.append(word_frame(RST_STREAM, stream_id, ErrorCode.NO_ERROR))
        self._drop(stream_id)

    def start(self, stream_id: int, metadata: Fields) -> None:
        """Begin a stream of answers with metadata; otherwise ``send`` begins it without."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.started:
            stream.started = True
            self._headers(stream_id, HEAD + literal(metadata), 0)

    def send(self, stream_id: int, data: bytes) -> None:
        """Send more bytes of a stream of answers: framed messages, split anywhere."""
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
        """Bytes of a stream that the client's windows have not admitted yet."""
        stream = self._streams.get(stream_id)
        return stream.queued if stream is not None else 0

    def _headers(self, stream_id: int, block: bytes, flags: int) -> None:
        update, self._table_update = self._table_update, b""
        self._out.append(frame(HEADERS, END_HEADERS | flags, stream_id, update + block))

    def _drain(self, stream_id: int, stream: _OpenStream) -> None:
        """Send what the windows admit of a stream."""
        self._queued.pop(stream_id, None)
        queue = stream.queue
        while queue:
            room = min(stream.window, self._window, self._max_frame)
            if room <= 0:
                self._queued[stream_id] = stream
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
            self._out.append(FRAME.pack(count << 8 | DATA, 0, stream_id))
            self._out.append(chunk)
        if stream.trailers is not None:
            self._headers(stream_id, stream.trailers, END_STREAM)
            self._drop(stream_id)


def _trailers(status: int, text: str) -> bytes:
    if not status:
        return _OK
    return literal([(b"grpc-status", b"%d" % status), (b"grpc-message", percent(text))])
