"""The sending side of HTTP/2: gRPC answers, split into frames that fit the client's flow-control windows (RFC 9113, section 5.2).

Promises: pure. Bytes that the windows do not admit are queued; ``queued`` returns how many. A window increase takes effect at the next
``flow``: however many there were, each stream sends once. Answers do not use the dynamic header table, so their encoding does not depend on
earlier answers. An answer to a call that is no longer open is ignored; for a call that its client never opened it is a
``LocalProtocolError``.
"""

from collections import deque
from urllib.parse import quote

from pyspark_tidb_binlog.binlog_source.rpc.frames import (
    DATA,
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME,
    HEADERS,
    WIDEST,
    WORD,
    frame,
)
from pyspark_tidb_binlog.binlog_source.rpc.header_block import Fields, literal
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode, LocalProtocolError, RemoteConnectionError, RemoteStreamError
from pyspark_tidb_binlog.binlog_source.rpc.stream_states import END_STREAM_SENT, IDLE, StreamStates

_MAX_TEXT = 2048
"""Maximum bytes of a status text: C-core refuses header lists above 8 KiB, and percent-encoding may triple it."""
_UNQUOTED = bytes(set(range(0x20, 0x7F)) - {0x25})
"""What gRPC over HTTP/2 leaves as it is in a status text: printable ASCII but the percent sign."""
_WORTH = 4
"""WINDOW_UPDATE frames per whole message: a client of gRPC's C-core increases two windows, by five bytes, for each that it waits for."""
_WORTH_ONE = 256
"""Bytes of DATA per further WINDOW_UPDATE frame."""
_STATUS_200 = b"\x88"
_NO_TABLE = b"\x20"
HEAD = _STATUS_200 + literal([(b"content-type", b"application/grpc")])
"""The first header block of a gRPC answer."""
_OK = literal([(b"grpc-status", b"0")])
_HEAD_START = FRAME.pack(len(HEAD) << 8 | HEADERS, END_HEADERS, 0)[:5]
_OK_START = FRAME.pack(len(_OK) << 8 | HEADERS, END_HEADERS | END_STREAM, 0)[:5]


class _Answering:
    """One call, from its first header to the end of its answer."""

    __slots__ = ("queue", "queued", "started", "trailers", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.started = False
        self.queue: deque[memoryview] | None = None
        self.queued = 0
        self.trailers: bytes | None = None


class Sender:
    """The calls of one connection whose answers are not finished, and the client's windows."""

    def __init__(self, states: StreamStates) -> None:
        self._states = states
        self._streams: dict[int, _Answering] = {}
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self.max_frame = DEFAULT_MAX_FRAME
        self._table_update = b""
        self._blocked: dict[int, None] = {}  # streams that wait for the connection's window, in order
        self._widened: dict[int, None] = {}  # streams (0: the connection) whose windows grew since the last flow
        self._out: list[bytes | memoryview] = []
        self.data_frames = 0
        """DATA frames sent so far."""
        self.worth = 0
        """WINDOW_UPDATE frames that a client may have sent in response to what was sent so far."""

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def output(self) -> list[bytes | memoryview]:
        """Take the bytes to send now."""
        out, self._out = self._out, []
        return out

    def say(self, data: bytes) -> None:
        """Send a whole frame that is not subject to flow control."""
        self._out.append(data)

    def open(self, stream_id: int) -> None:
        """Begin a call."""
        self._streams[stream_id] = _Answering(self._stream_window)

    def drop(self, stream_id: int) -> bool:
        """Send nothing more for a call; whether it was open."""
        self._blocked.pop(stream_id, None)
        return self._streams.pop(stream_id, None) is not None

    def use_no_table(self) -> None:
        """Set the dynamic table's size to 0 in the next header block, for good."""
        self._table_update = _NO_TABLE

    def set_stream_window(self, window: int) -> None:
        """Change the client's initial window of streams, and with it the windows of the open ones."""
        change, self._stream_window = window - self._stream_window, window
        for stream in self._streams.values():
            if stream.window + change > WIDEST:
                raise RemoteConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {stream.window + change} bytes")
            stream.window += change
        if change > 0:
            self._widened |= dict.fromkeys(stream_id for stream_id, stream in self._streams.items() if stream.queue)

    def widen(self, stream_id: int, more: int) -> None:
        """Increase a stream's window by ``more`` bytes; stream 0: the connection's."""
        if not stream_id:
            if self._window + more > WIDEST:
                raise RemoteConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {self._window + more} bytes")
            self._window += more
            self._widened[0] = None
            return
        stream = self._streams.get(stream_id)
        if stream is not None:
            if stream.window + more > WIDEST:
                raise RemoteStreamError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {stream.window + more} bytes")
            stream.window += more
            if stream.queue:
                self._widened[stream_id] = None

    def flow(self) -> None:
        """Send what the windows admit after they have grown."""
        if not self._widened:
            return
        widened, self._widened = self._widened, {}
        if 0 in widened:
            self._unblock()
        for stream_id in widened:
            stream = self._streams.get(stream_id)
            if stream is not None and stream.queue:
                self._drain(stream_id, stream)

    def answer(self, stream_id: int, message: bytes) -> None:
        """Send the answer of a unary call, with status OK."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._require_opened(stream_id)
            return
        length = len(message) + 5
        if length > min(stream.window, self._window, self.max_frame) or self._table_update:
            self.send(stream_id, b"\x00" + WORD.pack(len(message)) + message)
            self.finish(stream_id, 0, "")
            return
        del self._streams[stream_id]
        self._states.apply(stream_id, END_STREAM_SENT)
        self._window -= length
        self.data_frames += 1
        self.worth += _WORTH
        number = WORD.pack(stream_id)
        head = FRAME.pack(length << 8 | DATA, 0, stream_id)
        self._out.append(b"".join((_HEAD_START, number, HEAD, head, b"\x00", WORD.pack(len(message)), message, _OK_START, number, _OK)))

    def refuse(self, stream_id: int, status: int, text: str) -> bool:
        """Fail a call before anything was answered; whether it was open."""
        if self._streams.pop(stream_id, None) is None:
            self._require_opened(stream_id)
            return False
        self._states.apply(stream_id, END_STREAM_SENT)
        self.worth += _WORTH
        self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, self._headed(HEAD + _trailers(status, text))))
        return True

    def _require_opened(self, stream_id: int) -> None:
        if self._states.of(stream_id) is IDLE:
            raise LocalProtocolError(f"an answer on stream {stream_id}, which no client has opened")

    def _headed(self, block: bytes) -> bytes:
        update, self._table_update = self._table_update, b""
        return update + block

    def start(self, stream_id: int, metadata: Fields) -> None:
        """Begin a stream of answers with metadata; otherwise ``send`` begins it without."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.started:
            stream.started = True
            self._out.append(frame(HEADERS, END_HEADERS, stream_id, self._headed(HEAD + literal(metadata))))

    def send(self, stream_id: int, data: bytes) -> None:
        """Send more bytes of a stream of answers: framed messages, split anywhere."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._require_opened(stream_id)
            return
        if not data:
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

    def _unblock(self) -> None:
        for stream_id in list(self._blocked):
            if self._window <= 0:
                return
            del self._blocked[stream_id]
            self._drain(stream_id, self._streams[stream_id])

    def _drain(self, stream_id: int, stream: _Answering) -> None:
        queue = stream.queue
        while queue:
            room = min(stream.window, self._window, self.max_frame)
            if room <= 0:
                if stream.window > 0:
                    self._blocked[stream_id] = None
                return
            chunk = queue[0]
            if len(chunk) <= room:
                queue.popleft()
                self.worth += _WORTH
            else:
                queue[0], chunk = chunk[room:], chunk[:room]
            count = len(chunk)
            stream.window -= count
            self._window -= count
            stream.queued -= count
            self.data_frames += 1
            self.worth += count // _WORTH_ONE
            self._out.append(FRAME.pack(count << 8 | DATA, 0, stream_id))
            self._out.append(chunk)
        self._blocked.pop(stream_id, None)
        if stream.trailers is not None:
            del self._streams[stream_id]
            self._states.apply(stream_id, END_STREAM_SENT)
            self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, self._headed(stream.trailers)))


def _trailers(status: int, text: str) -> bytes:
    if not status:
        return _OK
    return literal([(b"grpc-status", b"%d" % status), (b"grpc-message", percent(text))])


def percent(text: str) -> bytes:
    """A status text as ``grpc-message`` carries it, percent-encoded; a very long one is truncated."""
    return quote(cut(text), _UNQUOTED).encode()


def cut(text: str) -> bytes:
    """A text in UTF-8, truncated between characters to a bounded length."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= _MAX_TEXT:
        return encoded
    return encoded[:_MAX_TEXT].decode(errors="ignore").encode()
