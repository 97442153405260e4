"""HTTP/2 for a gRPC server: bytes in, calls out; answers in, bytes out (RFC 9113; header blocks by ``header_block``).

    connection = Connection(max_request, budget)
    for event in connection.receive(data, now): ...  # Call: a whole request; Cancelled: a call ended by its client
    connection.answer(stream_id, message)            # or start, send, finish for a stream of answers
    transport.writelines(connection.output())

Rules
-----
* A request is returned when it is complete, or as soon as it is too large; PullBinlogs, too, has one request message and many answers.
* A stream's initial window admits most requests whole. gRPC announces a message's length at its beginning: for a longer one, the window is
  opened for the rest when the server's ``Budget`` grants it. So a connection holds at most ``MAX_STREAMS * FIRST_WINDOW`` bytes of
  unfinished requests (HTTP/2's default window, until its client has acknowledged ours), and what it was granted.
* A request must be complete ``PATIENCE`` seconds after it began. One that was granted memory must make progress instead: in every
  ``PATIENCE`` seconds it must be completed or receive ``SLOWEST`` bytes a second, and it must not pause for ``SILENCE`` seconds, because
  others wait for its memory. A large announced length does not extend the time.
* Frames that carry no request data (``COSTS``) use up an allowance, which time and our own DATA frames refill: a flood ends the connection,
  normal use does not. So do WINDOW_UPDATE frames, of which the client may send as many as our answers call for (``Sender.worth``), which
  excludes one per byte. The window increases in one read take effect together.
* After ``goaway``, calls under way continue and new ones are ignored: GOAWAY tells their client that it may retry them elsewhere.

Promises: pure: no socket, thread or clock; ``now`` is any clock's seconds. A peer's protocol violation raises ``ProtocolFailure`` with the
code for GOAWAY, or resets its stream, as RFC 9113 says (tests/unit/binlog_source/test_rpc_rfc9113.py is the table of its rules); frames of
a call that was abandoned here are ignored. What one connection may hold is bounded.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from binlog_source.rpc.budget import Budget, Share
from binlog_source.rpc.fields import trailers_fault
from binlog_source.rpc.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    COSTS,
    DATA,
    DEFAULT_MAX_FRAME,
    DEFAULT_TABLE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    LARGEST_MAX_FRAME,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SET_INITIAL_WINDOW,
    SET_MAX_FRAME,
    SET_MAX_HEADERS,
    SET_MAX_STREAMS,
    SET_PUSH,
    SET_TABLE,
    SETTING,
    SETTINGS,
    STREAM_CLOSED,
    UNKNOWN_COST,
    WIDEST,
    WINDOW_UPDATE,
    WORD,
    ProtocolFailure,
    StreamFailure,
    check,
    frame,
    unpadded,
    word_frame,
)
from binlog_source.rpc.grpc_message import DEADLINE_EXCEEDED, UNAVAILABLE, announced
from binlog_source.rpc.header_block import MAX_BLOCK, BadBlock, Block, HeaderReader
from binlog_source.rpc.sender import Sender, cut

MAX_STREAMS = 512
"""Concurrent calls on one connection; a client delays further ones."""
MAX_FRAME = 1 << 16
_WINDOW = MAX_STREAMS * DEFAULT_WINDOW
"""A connection's window, refilled as it is used: only the streams' windows limit a client."""
FIRST_WINDOW = 4096
"""A stream's initial window: small, so that thousands of large requests may wait for memory."""
_BEGINNING = 5
_MAX_CONTINUATIONS = 32
_SMALL_PART = 1024
_MAX_ABANDONED = 4096
PATIENCE = 30.0
"""Seconds within which a request must be complete or, if it was granted memory, make progress."""
SILENCE = 10.0
"""Maximum seconds without any byte of a request that was granted memory."""
GRANT_PATIENCE = 60.0
"""Maximum seconds that a large request waits for the server's memory."""
SLOWEST = 256 << 10
"""Minimum bytes a second of a large request."""
CALM = 8192
"""Maximum allowance of frames that carry no request data."""
CALM_RATE = 256
"""Its refill per second."""


class Call(NamedTuple):
    """A complete request."""

    stream_id: int
    headers: Mapping[bytes, bytes]
    body: bytes
    too_large: bool = False
    """The body is longer than ``max_request``: all but its first bytes was discarded, and its rest will be."""


class Cancelled(NamedTuple):
    """The client cancelled the call, or violated HTTP/2 on its stream."""

    stream_id: int


Event = Call | Cancelled


class _Allowance:
    """An allowance of frames (a token bucket), refilled by time and by what the server sends."""

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


class _Request:
    """An unfinished request."""

    __slots__ = ("before", "counted", "headers", "heard", "missing", "parts", "patience", "room", "seen", "since", "size", "waits", "whole")

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self.headers = headers
        self.parts: list[bytes | bytearray] = []
        self.size = 0
        self.room = FIRST_WINDOW
        self.whole = 0  # its announced bytes; 0: not known yet
        self.counted = 0
        self.missing = 0  # bytes that its initial window does not admit; 0: none, or not asked for yet
        self.waits = False  # whether these are asked for and not granted yet
        self.patience = PATIENCE
        self.since = -1.0  # when ``patience`` began to run; negative: from the next check on
        self.before = 0  # its size at ``since``
        self.heard = 0.0  # time of the last check at which it had grown
        self.seen = 0  # its size at ``heard``

    def add(self, part: bytes) -> None:
        """Append to the body; small parts are merged, because an object takes more memory than its few bytes."""
        self.size += len(part)
        if len(part) >= _SMALL_PART:
            self.parts.append(part)
        elif self.parts and isinstance(self.parts[-1], bytearray):
            self.parts[-1] += part
        else:
            self.parts.append(bytearray(part))

    def beginning(self) -> bytes:
        """The first bytes of the body."""
        return b"".join(self.parts[:_BEGINNING])[:_BEGINNING]

    def body(self) -> bytes:
        """The whole body."""
        return bytes(self.parts[0]) if len(self.parts) == 1 else b"".join(self.parts)

    def be_patient(self, seconds: float) -> None:
        """Restart its timeout, with ``seconds``."""
        self.patience, self.since = seconds, -1.0

    def overdue(self, now: float) -> str:
        """Why it is refused; "" if it may continue."""
        if self.since < 0:
            self._go_on(now)
        if self.size > self.seen:
            self.heard, self.seen = now, self.size
        granted = self.missing > 0 and not self.waits
        if granted and now - self.heard > SILENCE:
            return f"the request is not complete, and no byte of it was received for {SILENCE:g} s, after {self.size} bytes"
        if now - self.since <= self.patience:
            return ""
        if self.waits:
            return f"no memory for a request of {self.whole} bytes within {self.patience:g} s: other large requests are under way"
        if granted and self.size - self.before >= SLOWEST * self.patience:
            self._go_on(now)
            return ""
        return f"the request is not complete after {self.patience:g} s: {self.size - self.before} bytes were received"

    def _go_on(self, now: float) -> None:
        self.since = self.heard = now
        self.before = self.seen = self.size


class Connection:
    """The server side of one connection."""

    def __init__(
        self, max_request: int = 1 << 62, budget: Budget | None = None, wake: Callable[[], None] = lambda: None, owner: str = ""
    ) -> None:
        """``wake`` is called when output arises outside ``receive``; ``owner``: the client's address.

        ``max_request``: maximum bytes of a request's body, at most what a stream's window can admit: a longer one could never be complete.
        """
        self._max_request = min(max_request, WIDEST - 1)
        self.share = Share(budget or Budget(), self._granted, owner)
        """Its share of the server's memory for unfinished requests."""
        self._wake = wake
        self._now = 0.0
        self._rest = b""
        self._greeted = False
        self.settled = False
        """Whether the client has sent its preface, SETTINGS included."""
        self._reader = HeaderReader()
        self._sender = Sender()
        self._requests: dict[int, _Request] = {}
        self._abandoned: dict[int, None] = {}  # requests abandoned here before their clients had sent all
        self._block: tuple[int, int, bytearray] | None = None
        self._continued = 0
        self._last_id = 0
        self._room = _WINDOW
        self._calm = _Allowance()
        self._windows = _Allowance()
        self._leaving = False
        self.start, self.send, self.finish = self._sender.start, self._sender.send, self._sender.finish
        self.answer, self.queued, self.output = self._sender.answer, self._sender.queued, self._sender.output
        self.cut_off = self._sender.cut_off
        """See ``Sender``."""
        self._overshoot = DEFAULT_WINDOW - FIRST_WINDOW  # allowed beyond a stream's window until the client acknowledges our SETTINGS
        settings = {SET_MAX_STREAMS: MAX_STREAMS, SET_INITIAL_WINDOW: FIRST_WINDOW, SET_MAX_FRAME: MAX_FRAME, SET_MAX_HEADERS: MAX_BLOCK}
        self._sender.say(frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings.items())))
        self._sender.say(word_frame(WINDOW_UPDATE, 0, _WINDOW - DEFAULT_WINDOW))

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._sender)

    @property
    def idle(self) -> bool:
        """Whether no call is under way whose request is complete."""
        return len(self._sender) <= len(self._requests)

    def close(self) -> None:
        """Release what the connection holds of the server's memory."""
        self._requests.clear()
        self.share.close()

    def receive(self, data: bytes, now: float = 0.0) -> list[Event]:
        """Process the peer's bytes; the resulting events.

        Raises:
            ProtocolFailure: send it by ``goaway`` and close.
        """
        self._now = now
        if self._rest:
            data = self._rest + data
            self._rest = b""
        events: list[Event] = []
        at, size = 0, len(data)
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ProtocolFailure(PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
            if size < len(PREFACE):
                self._rest = data
                return events
            at, self._greeted = len(PREFACE), True
        while size - at >= 9:
            word, flags, stream_id = FRAME.unpack_from(data, at)
            length = word >> 8
            if length > MAX_FRAME:
                raise ProtocolFailure(FRAME_SIZE_ERROR, f"frame of {length} bytes")
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
            raise ProtocolFailure(PROTOCOL_ERROR, "a header block was interrupted by another frame")
        if not self.settled:
            if kind != SETTINGS or flags & ACK:
                raise ProtocolFailure(PROTOCOL_ERROR, f"the first frame is of type {kind}, not SETTINGS")
            self.settled = True
        try:
            if kind == DATA and stream_id:
                self._on_data(flags, stream_id, payload, events)
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
        except StreamFailure as failure:
            self._reset(stream_id, failure.code, events)

    def _on_other(self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        self._spend(COSTS.get(kind, UNKNOWN_COST), kind)
        if kind == PING:
            if not flags & ACK:
                self._sender.say(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS:
            self._on_settings(flags, payload)
        elif kind == RST_STREAM:
            self._require_known(stream_id, kind)
            self._drop(stream_id)
            self._abandoned.pop(stream_id, None)
            if self._sender.drop(stream_id):
                events.append(Cancelled(stream_id))
        # PRIORITY and GOAWAY need no action

    def _spend(self, cost: int, kind: int) -> None:
        if not self._calm.spend(cost, self._now, self._sender.data_frames):
            raise ProtocolFailure(ENHANCE_YOUR_CALM, f"too many frames that carry no request data; the last is of type {kind}")

    def _require_known(self, stream_id: int, kind: int) -> None:
        """Refuse a frame on a stream that was never opened."""
        if not stream_id % 2 or (stream_id > self._last_id and not self._leaving):
            raise ProtocolFailure(PROTOCOL_ERROR, f"frame of type {kind} on stream {stream_id}, which was never opened")

    # Header blocks.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        block = unpadded(payload, flags)
        if flags & PRIORITIZED:
            if len(block) < 5:
                raise ProtocolFailure(FRAME_SIZE_ERROR, "HEADERS without the priority that its flags announce")
            block = block[5:]
        if flags & END_HEADERS:
            self._on_block(stream_id, flags, block, events)
        else:
            self._block, self._continued = (stream_id, flags, bytearray(block)), 0

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise ProtocolFailure(PROTOCOL_ERROR, "CONTINUATION without HEADERS on the same stream before it")
        _, first_flags, block = self._block
        block += payload
        self._continued += 1
        if len(block) > MAX_BLOCK or self._continued > _MAX_CONTINUATIONS:
            raise ProtocolFailure(
                ENHANCE_YOUR_CALM, f"header block of more than {MAX_BLOCK} bytes or {_MAX_CONTINUATIONS} CONTINUATION frames"
            )
        if flags & END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block), events)

    def _on_block(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        if not stream_id % 2:
            raise ProtocolFailure(PROTOCOL_ERROR, f"even stream id {stream_id} from a client")
        try:
            read = self._reader.read(block)
        except BadBlock as error:
            raise ProtocolFailure(COMPRESSION_ERROR, f"header block cannot be decoded: {error}") from error
        if stream_id > self._last_id:
            if not self._leaving:
                self._on_request(stream_id, flags, read, len(block), events)
        elif stream_id in self._requests:
            self._on_trailers(stream_id, flags, read, events)
        elif stream_id in self._abandoned:
            if flags & END_STREAM:
                del self._abandoned[stream_id]
        elif stream_id in self._sender:
            raise StreamFailure(STREAM_CLOSED, "HEADERS after the request's end")
        else:
            raise ProtocolFailure(PROTOCOL_ERROR, f"stream {stream_id} opened after stream {self._last_id}")

    def _on_request(self, stream_id: int, flags: int, read: Block, size: int, events: list[Event]) -> None:
        self._last_id = stream_id
        if len(self._sender) >= MAX_STREAMS:
            self._give_up(stream_id, ended=bool(flags & END_STREAM))
            raise StreamFailure(REFUSED_STREAM, "too many streams")
        if read.fault:
            self._give_up(stream_id, ended=bool(flags & END_STREAM))
            raise StreamFailure(PROTOCOL_ERROR, read.fault)
        self._sender.open(stream_id)
        request = _Request(read.fields)
        if flags & END_STREAM:
            self._complete(stream_id, request, events)
            return
        self._requests[stream_id] = request
        if size > _SMALL_PART:
            self._count(request, size)

    def _on_trailers(self, stream_id: int, flags: int, read: Block, events: list[Event]) -> None:
        fault = trailers_fault(read.fields) if flags & END_STREAM else "trailers without END_STREAM"
        if fault:
            raise StreamFailure(PROTOCOL_ERROR, fault)
        self._complete(stream_id, self._requests[stream_id], events)

    # Bodies.

    def _on_data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        size = len(payload)
        self._room -= size
        if self._room < 0:
            raise ProtocolFailure(FLOW_CONTROL_ERROR, f"{-self._room} bytes more than the connection's window")
        if self._room < _WINDOW // 2:
            self._sender.say(word_frame(WINDOW_UPDATE, 0, _WINDOW - self._room))
            self._room = _WINDOW
        part = unpadded(payload, flags) if flags & PADDED else payload
        request = self._requests.get(stream_id)
        if request is None:
            self._on_data_of_none(flags, stream_id)
            return
        request.room -= size
        if size and request.room < -self._overshoot:
            raise StreamFailure(FLOW_CONTROL_ERROR, "more than the stream's window")
        if len(part) < size:
            # padding is discarded at once
            request.room += size - len(part)
            self._sender.say(word_frame(WINDOW_UPDATE, stream_id, size - len(part)))
        if part:
            request.add(part)
            if self._is_too_much(stream_id, request, flags, events):
                return
        elif not flags & END_STREAM:
            self._spend(1, DATA)
        if flags & END_STREAM:
            self._complete(stream_id, request, events)
        else:
            self._make_room(stream_id, request, len(part))

    def _on_data_of_none(self, flags: int, stream_id: int) -> None:
        """DATA of no unfinished request: late, or an error."""
        self._require_known(stream_id, DATA)
        if stream_id in self._abandoned:
            if flags & END_STREAM:
                del self._abandoned[stream_id]
        elif not (self._leaving and stream_id > self._last_id):
            raise StreamFailure(STREAM_CLOSED, "DATA after the request's end")

    def _is_too_much(self, stream_id: int, request: _Request, flags: int, events: list[Event]) -> bool:
        """Return a request that is too large, or longer than announced, before it ends; its rest is discarded. Whether it is."""
        if not request.whole and request.size >= _BEGINNING:
            request.whole = _BEGINNING + announced(request.beginning())
        too_large = max(request.size, request.whole) > self._max_request
        if not too_large and not 0 < request.whole < request.size:
            return False
        self._drop(stream_id)
        self._give_up(stream_id, ended=bool(flags & END_STREAM))
        events.append(Call(stream_id, request.headers, request.beginning() if too_large else request.body(), too_large))
        return True

    def _make_room(self, stream_id: int, request: _Request, came: int) -> None:
        """Count what arrived without a grant; ask for what the initial window does not admit."""
        first = FIRST_WINDOW if request.missing and not request.waits else DEFAULT_WINDOW
        fresh = min(came, first - (request.size - came))
        if fresh > 0:
            self._count(request, fresh)
        missing = request.whole - request.size - request.room
        if missing > 0 and not request.missing and request.size < request.whole:
            request.missing = missing
            self.share.excuse(request.counted)
            if self.share.ask(stream_id, missing):
                self._open(stream_id, request)
            else:
                request.waits = True
                request.be_patient(GRANT_PATIENCE)

    def _granted(self, stream_id: int) -> None:
        self._open(stream_id, self._requests[stream_id])
        self._wake()

    def _open(self, stream_id: int, request: _Request) -> None:
        request.waits = False
        request.room += request.missing
        request.be_patient(PATIENCE)
        self._sender.say(word_frame(WINDOW_UPDATE, stream_id, request.missing))

    def _count(self, request: _Request, size: int) -> None:
        request.counted += size
        self.share.count(size, asked=bool(request.missing))

    def make_room(self) -> bool:
        """Refuse the request that has waited for memory for the shortest time; False: none waits."""
        for stream_id, request in reversed(self._requests.items()):
            if request.waits:
                self._drop(stream_id)
                self._give_up(stream_id, ended=False)
                self.refuse(stream_id, UNAVAILABLE, f"no memory for a request of {request.whole} bytes: too many requests wait for memory")
                return True
        return False

    def _drop(self, stream_id: int) -> None:
        """Release what a request holds: it is complete or abandoned."""
        request = self._requests.pop(stream_id, None)
        if request is not None and (request.counted or request.missing):
            self.share.release(stream_id, request.counted, asked=bool(request.missing))

    def _complete(self, stream_id: int, request: _Request, events: list[Event]) -> None:
        length = request.headers.get(b"content-length")
        if length is not None and int(length) != request.size:
            raise StreamFailure(PROTOCOL_ERROR, f"body of {request.size} bytes with content-length {length.decode()}")
        self._drop(stream_id)
        events.append(Call(stream_id, request.headers, request.body() if request.parts else b""))

    def _give_up(self, stream_id: int, *, ended: bool) -> None:
        """Have the rest of a request ignored."""
        if not ended:
            self._abandoned[stream_id] = None
            if len(self._abandoned) > _MAX_ABANDONED:
                del self._abandoned[next(iter(self._abandoned))]

    def _reset(self, stream_id: int, code: int, events: list[Event]) -> None:
        self._spend(COSTS[RST_STREAM], RST_STREAM)
        self._sender.say(word_frame(RST_STREAM, stream_id, code))
        if stream_id in self._requests:
            self._drop(stream_id)
            self._give_up(stream_id, ended=False)
        if self._sender.drop(stream_id):
            events.append(Cancelled(stream_id))

    def excuse(self) -> None:
        """Restart all timeouts: reading was paused."""
        for request in self._requests.values():
            request.since = -1.0

    def expire(self, now: float) -> None:
        """Refuse the requests that have timed out by ``now``."""
        for stream_id, request in list(self._requests.items()):
            why = request.overdue(now)
            if why:
                self._drop(stream_id)
                self._give_up(stream_id, ended=False)
                self.refuse(stream_id, UNAVAILABLE if request.waits else DEADLINE_EXCEEDED, why)

    # Settings and windows.

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise ProtocolFailure(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if flags & ACK:
            self._overshoot = 0
            return
        window = None
        for name, value in SETTING.iter_unpack(payload):
            if name == SET_INITIAL_WINDOW:
                if value > WIDEST:
                    raise ProtocolFailure(FLOW_CONTROL_ERROR, f"initial window {value}")
                window = value
            elif name == SET_MAX_FRAME:
                if not DEFAULT_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                    raise ProtocolFailure(PROTOCOL_ERROR, f"largest frame {value}")
                self._sender.max_frame = value
            elif name == SET_PUSH and value > 1:
                raise ProtocolFailure(PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
            elif name == SET_TABLE and value < DEFAULT_TABLE:
                self._sender.use_no_table()
        self._sender.say(frame(SETTINGS, ACK, 0, b""))
        if window is not None:
            self._sender.set_stream_window(window)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if not self._windows.spend(1, self._now, self._sender.worth):
            raise ProtocolFailure(ENHANCE_YOUR_CALM, "too many WINDOW_UPDATE frames for what was sent")
        more = WORD.unpack(payload)[0] & WIDEST
        if stream_id:
            self._require_known(stream_id, WINDOW_UPDATE)
        if not more:
            failure = StreamFailure if stream_id in self._sender else ProtocolFailure
            raise failure(PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        self._sender.widen(stream_id, more)

    def refuse(self, stream_id: int, status: int, text: str) -> None:
        """Fail a call before anything was answered."""
        if self._sender.refuse(stream_id, status, text) and stream_id in self._abandoned:
            # asks the client not to send the rest of the body
            self._sender.say(word_frame(RST_STREAM, stream_id, NO_ERROR))

    def goaway(self, code: int = NO_ERROR, text: str = "") -> None:
        """Send GOAWAY: no further call is accepted."""
        self._leaving = True
        self._sender.say(frame(GOAWAY, 0, 0, WORD.pack(self._last_id) + WORD.pack(code) + cut(text)))
