"""HTTP/2 for a gRPC server: bytes in, calls out; answers in, bytes out (RFC 9113).

    connection = Connection(max_request, memory)
    for event in connection.receive(data, now): ...  # Call: a whole request; Cancelled: a call ended by its client
    connection.answer(stream_id, message)            # or start, send, finish for a stream of answers
    transport.writelines(connection.output())

    frames.py          types, flags, sizes            stream_states.py   the life cycle of a stream, a table
    header_block.py    HPACK; fields.py: validity     http2_errors.py    the client's errors and our own
    receiver.py        requests under way, their windows and memory (unfinished_request.py, request_memory.py)
    sender.py          answers under way, the client's windows

Rules
-----
* A request is returned when it is complete, or as soon as it is too large.
* A connection holds at most ``CONNECTION_WINDOW`` bytes of unfinished requests, and what the server's ``RequestMemory`` admits of them.
* Frames without request data (``COSTS``) use up an allowance, which time and our own DATA frames refill: a flood ends the connection.
  WINDOW_UPDATE frames are free as far as our answers call for them (``Sender.worth``).
* After ``goaway``, calls under way continue and new calls are ignored: their client may retry them elsewhere.

Promises: pure: no socket, thread or clock; ``now`` is any clock's seconds. A client's protocol violation raises ``RemoteConnectionError``
with the code for GOAWAY, or resets its stream (tests/unit/binlog_source/test_rpc_rfc9113.py is the table of RFC 9113's rules).
Frames of a call that was abandoned here are ignored. The memory of one connection is bounded.
"""

from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.rpc.fields import trailers_fault
from pyspark_tidb_binlog.binlog_source.rpc.frames import (
    ACK,
    CONTINUATION,
    COSTS,
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
    PING,
    PREFACE,
    PRIORITIZED,
    RST_STREAM,
    SET_INITIAL_WINDOW,
    SET_MAX_FRAME,
    SET_MAX_HEADERS,
    SET_MAX_STREAMS,
    SET_PUSH,
    SET_TABLE,
    SETTING,
    SETTINGS,
    UNKNOWN_COST,
    WIDEST,
    WINDOW_UPDATE,
    WORD,
    check,
    frame,
    unpadded,
    word_frame,
)
from pyspark_tidb_binlog.binlog_source.rpc.header_block import MAX_BLOCK, BadBlock, Block, HeaderReader
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode, RemoteConnectionError, RemoteStreamError
from pyspark_tidb_binlog.binlog_source.rpc.http2_events import Cancelled, Event
from pyspark_tidb_binlog.binlog_source.rpc.receiver import CONNECTION_WINDOW, Receiver, whole_call
from pyspark_tidb_binlog.binlog_source.rpc.request_memory import RequestMemory
from pyspark_tidb_binlog.binlog_source.rpc.sender import Sender, cut
from pyspark_tidb_binlog.binlog_source.rpc.stream_states import (
    END_STREAM_RECEIVED,
    HALF_CLOSED_LOCAL,
    HEADERS_RECEIVED,
    IDLE,
    MAX_STREAMS,
    RST_STREAM_RECEIVED,
    RST_STREAM_SENT,
    WINDOW_UPDATE_RECEIVED,
    StreamStates,
)
from pyspark_tidb_binlog.binlog_source.rpc.unfinished_request import UnfinishedRequest

CALM = 8192
"""Maximum allowance."""
CALM_RATE = 256
"""Its refill per second."""


class Allowance:
    """An allowance (a token bucket) of frames without request data, refilled by time and by what the server sends (RFC 9113, section 10.5)."""

    __slots__ = ("_at", "_earned", "_left")

    def __init__(self) -> None:
        self._left = float(CALM)
        self._at = 0.0
        self._earned = 0

    def spend(self, cost: int, now: float, earned: int) -> bool:
        """Spend ``cost``; whether the allowance sufficed. ``earned``: what the server's sending has refilled in total so far."""
        self._left -= cost
        if self._left < 0:
            self._left = min(CALM, self._left + max((now - self._at) * CALM_RATE + earned - self._earned, 0.0))
            self._at, self._earned = now, earned
        return self._left >= 0


MAX_FRAME = 1 << 16
_MAX_CONTINUATIONS = 32


class Connection:
    """The server side of one connection."""

    def __init__(self, max_request: int = 1 << 62, memory: RequestMemory | None = None, wake: Callable[[], None] = lambda: None) -> None:
        """``wake`` is called when output arises outside ``receive``; ``memory``: the server's.

        ``max_request``: maximum bytes of a request's body, at most what a stream's window can admit: a longer one could never be complete.
        """
        self._now = 0.0
        self._rest = b""
        self._greeted = False
        self.settled = False
        """Whether the client has sent its preface, SETTINGS included."""
        self._reader = HeaderReader()
        self._states = StreamStates()
        self._sender = Sender(self._states)
        self._receiver = Receiver(max_request, memory or RequestMemory(), self._states, self._sender.say, wake)
        self._block: tuple[int, int, bytearray] | None = None
        self._continued = 0
        self._calm = Allowance()
        self._windows = Allowance()
        self.start, self.send, self.finish = self._sender.start, self._sender.send, self._sender.finish
        self.answer, self.queued, self.output = self._sender.answer, self._sender.queued, self._sender.output
        """See ``Sender``."""
        self.close = self._receiver.close
        """See ``Receiver``."""
        settings = {SET_MAX_STREAMS: MAX_STREAMS, SET_MAX_FRAME: MAX_FRAME, SET_MAX_HEADERS: MAX_BLOCK}
        self._sender.say(frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings.items())))
        self._sender.say(word_frame(WINDOW_UPDATE, 0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._sender)

    @property
    def awaits(self) -> bool:
        """Whether the client's next bytes are awaited: its SETTINGS, or the rest of a request."""
        return not self.settled or self._receiver.awaits

    def receive(self, data: bytes, now: float = 0.0) -> list[Event]:
        """Process the peer's bytes; the resulting events.

        Raises:
            RemoteConnectionError: send it by ``goaway`` and close.
        """
        self._now = now
        if self._rest:
            data = self._rest + data
            self._rest = b""
        events: list[Event] = []
        at, size = 0, len(data)
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
            if size < len(PREFACE):
                self._rest = data
                return events
            at, self._greeted = len(PREFACE), True
        while size - at >= 9:
            word, flags, stream_id = FRAME.unpack_from(data, at)
            length = word >> 8
            if length > MAX_FRAME:
                raise RemoteConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            end = at + 9 + length
            if end > size:
                break
            self._frame(word & 0xFF, flags, stream_id & WIDEST, data[at + 9 : end], events)
            at = end
        if at < size:
            self._rest = data[at:]
        self._sender.flow()
        return events

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted by another frame")
        if not self.settled:
            if kind != SETTINGS or flags & ACK:
                raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, f"the first frame is of type {kind}, not SETTINGS")
            self.settled = True
        try:
            if kind == DATA and stream_id:
                if self._receiver.data(flags, stream_id, payload, events):
                    self._spend(1, DATA)
                return
            check(kind, stream_id, len(payload))
            if kind == HEADERS:
                self._on_headers(flags, stream_id, payload, events)
            elif kind == WINDOW_UPDATE:
                self._on_window_update(stream_id, payload)
            elif kind == CONTINUATION:
                self._on_continuation(flags, stream_id, payload, events)
            else:
                self._on_other(kind, flags, stream_id, payload, events)
        except RemoteStreamError as error:
            self._reset(stream_id, error.code, events)

    def _on_other(self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        self._spend(COSTS.get(kind, UNKNOWN_COST), kind)
        if kind == PING:
            if not flags & ACK:
                self._sender.say(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS:
            self._on_settings(flags, payload)
        elif kind == RST_STREAM:
            self._states.apply(stream_id, RST_STREAM_RECEIVED)
            self._receiver.drop(stream_id)
            if self._sender.drop(stream_id):
                events.append(Cancelled(stream_id))
        # PRIORITY and GOAWAY need no action

    def _spend(self, cost: int, kind: int) -> None:
        if not self._calm.spend(cost, self._now, self._sender.data_frames):
            raise RemoteConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM, f"too many frames that carry no request data; the last is of type {kind}"
            )

    # Header blocks.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        block = unpadded(payload, flags)
        if flags & PRIORITIZED:
            if len(block) < 5:
                raise RemoteConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without the priority that its flags announce")
            block = block[5:]
        if flags & END_HEADERS:
            self._on_block(stream_id, flags, block, events)
        else:
            self._block, self._continued = (stream_id, flags, bytearray(block)), 0

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS on the same stream before it")
        _, first_flags, block = self._block
        block += payload
        self._continued += 1
        if len(block) > MAX_BLOCK or self._continued > _MAX_CONTINUATIONS:
            raise RemoteConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM, f"header block of more than {MAX_BLOCK} bytes or {_MAX_CONTINUATIONS} CONTINUATION frames"
            )
        if flags & END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block), events)

    def _on_block(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        if not stream_id % 2:
            raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, f"even stream id {stream_id} from a client")
        try:
            read = self._reader.read(block)
        except BadBlock as error:
            raise RemoteConnectionError(ErrorCode.COMPRESSION_ERROR, f"header block cannot be decoded: {error}") from error
        ended = bool(flags & END_STREAM)
        if self._states.apply(stream_id, HEADERS_RECEIVED) is IDLE:
            self._on_request(stream_id, ended, read, events)
            return
        request = self._receiver.get(stream_id)
        if request is not None:
            self._on_trailers(stream_id, ended, read, request, events)
        elif ended:
            self._states.apply(stream_id, END_STREAM_RECEIVED)

    def _on_request(self, stream_id: int, ended: bool, read: Block, events: list[Event]) -> None:
        if ended:
            self._states.apply(stream_id, END_STREAM_RECEIVED)
        if len(self._sender) >= MAX_STREAMS:
            raise RemoteStreamError(ErrorCode.REFUSED_STREAM, "too many streams")
        if read.fault:
            raise RemoteStreamError(ErrorCode.PROTOCOL_ERROR, read.fault)
        self._sender.open(stream_id)
        if ended:
            events.append(whole_call(stream_id, UnfinishedRequest(read.fields)))
        else:
            self._receiver.begin(stream_id, read.fields)

    def _on_trailers(self, stream_id: int, ended: bool, read: Block, request: UnfinishedRequest, events: list[Event]) -> None:
        fault = trailers_fault(read.fields) if ended else "trailers without END_STREAM"
        if fault:
            raise RemoteStreamError(ErrorCode.PROTOCOL_ERROR, fault)
        self._receiver.end(stream_id, request, events)

    # Calls that end before they are answered.

    def _reset(self, stream_id: int, code: ErrorCode, events: list[Event]) -> None:
        self._spend(COSTS[RST_STREAM], RST_STREAM)
        self._sender.say(word_frame(RST_STREAM, stream_id, code))
        self._receiver.drop(stream_id)
        self._states.apply(stream_id, RST_STREAM_SENT)
        if self._sender.drop(stream_id):
            events.append(Cancelled(stream_id))

    def refuse(self, stream_id: int, status: int, text: str) -> None:
        """Fail a call before anything was answered."""
        if self._sender.refuse(stream_id, status, text) and self._states.of(stream_id) is HALF_CLOSED_LOCAL:
            # asks the client not to send the rest of the body
            self._sender.say(word_frame(RST_STREAM, stream_id, ErrorCode.NO_ERROR))
            self._states.apply(stream_id, RST_STREAM_SENT)

    def goaway(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Send GOAWAY: no further call is accepted."""
        self._states.leaving = True
        self._sender.say(frame(GOAWAY, 0, 0, WORD.pack(self._states.last_id) + WORD.pack(code) + cut(text)))

    # Settings and windows.

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise RemoteConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if flags & ACK:
            return
        window = None
        for name, value in SETTING.iter_unpack(payload):
            if name == SET_INITIAL_WINDOW:
                if value > WIDEST:
                    raise RemoteConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"initial window {value}")
                window = value
            elif name == SET_MAX_FRAME:
                if not DEFAULT_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                    raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, f"largest frame {value}")
                self._sender.max_frame = value
            elif name == SET_PUSH and value > 1:
                raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
            elif name == SET_TABLE and value < DEFAULT_TABLE:
                self._sender.use_no_table()
        self._sender.say(frame(SETTINGS, ACK, 0, b""))
        if window is not None:
            self._sender.set_stream_window(window)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if not self._windows.spend(1, self._now, self._sender.worth):
            raise RemoteConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many WINDOW_UPDATE frames for what was sent")
        more = WORD.unpack(payload)[0] & WIDEST
        if stream_id:
            self._states.apply(stream_id, WINDOW_UPDATE_RECEIVED)
        if not more:
            error = RemoteStreamError if stream_id in self._sender else RemoteConnectionError
            raise error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        self._sender.widen(stream_id, more)
