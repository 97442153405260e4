"""The life cycle of a stream as the server sees it (RFC 9113, section 5.1), as a table.

                     +---------- idle ----------+
                     |   HEADERS received       |
                     v                          |
                    open                        |
      END_STREAM    |   |   END_STREAM          |
      received      v   v   sent                |
    half-closed (remote)  half-closed (local)   |
      END_STREAM    |   |   END_STREAM          |
      sent          v   v   received            |
                   closed  <--- RST_STREAM -----+

A client's END_STREAM is a flag of its HEADERS or DATA: it is applied after the frame itself. PRIORITY is allowed in every state and changes
none. ``RESET`` is the part of "closed" in which a client may not have received our RST_STREAM yet. Frames that it sends meanwhile are
ignored; they change only the header table and the connection's window.

Promises: pure. A frame from a client is a transition of ``NEXT`` or raises the error of ``VIOLATIONS``. A frame of this program is a
transition or raises ``LocalProtocolError``. The memory of a connection's streams is bounded, however many there were: a stream without an
entry is idle if its id is above the highest so far, else closed.
"""

from enum import IntEnum
from typing import NamedTuple

from pyspark_tidb_binlog.binlog_source.rpc.frames import DATA, RST_STREAM, WINDOW_UPDATE
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteConnectionError,
    RemoteProtocolError,
    RemoteStreamError,
)

MAX_STREAMS = 512
"""Concurrent calls on one connection; a client delays further ones (5.1.2)."""
_MAX_ENDED_HERE = 4096
"""Streams whose client may still send, although its call has ended here."""


class StreamState(IntEnum):
    """A stream's state. ``LOCAL`` is this server, ``REMOTE`` the client."""

    IDLE = 0
    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4
    RESET = 5


class StreamEvent(IntEnum):
    """What may change a stream's state."""

    HEADERS_RECEIVED = 0
    DATA_RECEIVED = 1
    END_STREAM_RECEIVED = 2
    RST_STREAM_RECEIVED = 3
    WINDOW_UPDATE_RECEIVED = 4
    END_STREAM_SENT = 5
    RST_STREAM_SENT = 6


class Violation(NamedTuple):
    """The error that a frame is in a state that forbids it; ``text`` may name ``{stream_id}`` and ``{last_id}``."""

    error: type[RemoteProtocolError]
    code: ErrorCode
    text: str


IDLE, OPEN, HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, CLOSED, RESET = StreamState
(
    HEADERS_RECEIVED,
    DATA_RECEIVED,
    END_STREAM_RECEIVED,
    RST_STREAM_RECEIVED,
    WINDOW_UPDATE_RECEIVED,
    END_STREAM_SENT,
    RST_STREAM_SENT,
) = StreamEvent

NEXT: dict[tuple[StreamState, StreamEvent], StreamState] = {
    (IDLE, HEADERS_RECEIVED): OPEN,
    (IDLE, RST_STREAM_SENT): IDLE,  # for a PRIORITY of a wrong size (6.3): no HEADERS has opened the stream
    (OPEN, HEADERS_RECEIVED): OPEN,  # trailers
    (OPEN, DATA_RECEIVED): OPEN,
    (OPEN, END_STREAM_RECEIVED): HALF_CLOSED_REMOTE,
    (OPEN, RST_STREAM_RECEIVED): CLOSED,
    (OPEN, WINDOW_UPDATE_RECEIVED): OPEN,
    (OPEN, END_STREAM_SENT): HALF_CLOSED_LOCAL,
    (OPEN, RST_STREAM_SENT): RESET,
    (HALF_CLOSED_LOCAL, HEADERS_RECEIVED): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, DATA_RECEIVED): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, END_STREAM_RECEIVED): CLOSED,
    (HALF_CLOSED_LOCAL, RST_STREAM_RECEIVED): CLOSED,
    (HALF_CLOSED_LOCAL, WINDOW_UPDATE_RECEIVED): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, RST_STREAM_SENT): RESET,
    (HALF_CLOSED_REMOTE, RST_STREAM_RECEIVED): CLOSED,
    (HALF_CLOSED_REMOTE, WINDOW_UPDATE_RECEIVED): HALF_CLOSED_REMOTE,
    (HALF_CLOSED_REMOTE, END_STREAM_SENT): CLOSED,
    (HALF_CLOSED_REMOTE, RST_STREAM_SENT): CLOSED,
    (CLOSED, RST_STREAM_RECEIVED): CLOSED,
    (CLOSED, WINDOW_UPDATE_RECEIVED): CLOSED,
    (CLOSED, RST_STREAM_SENT): CLOSED,
    (RESET, HEADERS_RECEIVED): RESET,
    (RESET, DATA_RECEIVED): RESET,
    (RESET, END_STREAM_RECEIVED): CLOSED,
    (RESET, RST_STREAM_RECEIVED): CLOSED,
    (RESET, WINDOW_UPDATE_RECEIVED): RESET,
    (RESET, RST_STREAM_SENT): RESET,
}
"""The state after an event. Of the events that are sent, those without an entry are errors of this program."""

_PROTOCOL_ERROR, _STREAM_CLOSED = ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED
_NEVER_OPENED = "on stream {stream_id}, which was never opened"
VIOLATIONS: dict[tuple[StreamState, StreamEvent], Violation] = {
    (IDLE, DATA_RECEIVED): Violation(RemoteConnectionError, _PROTOCOL_ERROR, f"frame of type {DATA} {_NEVER_OPENED}"),
    (IDLE, END_STREAM_RECEIVED): Violation(RemoteConnectionError, _PROTOCOL_ERROR, f"END_STREAM {_NEVER_OPENED}"),
    (IDLE, RST_STREAM_RECEIVED): Violation(RemoteConnectionError, _PROTOCOL_ERROR, f"frame of type {RST_STREAM} {_NEVER_OPENED}"),
    (IDLE, WINDOW_UPDATE_RECEIVED): Violation(RemoteConnectionError, _PROTOCOL_ERROR, f"frame of type {WINDOW_UPDATE} {_NEVER_OPENED}"),
    (HALF_CLOSED_REMOTE, HEADERS_RECEIVED): Violation(RemoteStreamError, _STREAM_CLOSED, "HEADERS after the request's end"),
    (HALF_CLOSED_REMOTE, DATA_RECEIVED): Violation(RemoteStreamError, _STREAM_CLOSED, "DATA after the request's end"),
    (HALF_CLOSED_REMOTE, END_STREAM_RECEIVED): Violation(RemoteStreamError, _STREAM_CLOSED, "END_STREAM after the request's end"),
    (CLOSED, HEADERS_RECEIVED): Violation(RemoteConnectionError, _PROTOCOL_ERROR, "stream {stream_id} opened after stream {last_id}"),
    (CLOSED, DATA_RECEIVED): Violation(RemoteStreamError, _STREAM_CLOSED, "DATA after the request's end"),
    (CLOSED, END_STREAM_RECEIVED): Violation(RemoteStreamError, _STREAM_CLOSED, "END_STREAM after the request's end"),
}
"""What a client must not send: every pair of a state and an event received that ``NEXT`` does not have."""


class StreamStates:
    """The states of one connection's streams."""

    __slots__ = ("_answering", "_ended_here", "last_id", "leaving")

    def __init__(self) -> None:
        self._answering: dict[int, StreamState] = {}  # OPEN and HALF_CLOSED_REMOTE, neither of them 0: the answer is not finished
        self._ended_here: dict[int, StreamState] = {}  # HALF_CLOSED_LOCAL and RESET, in the order in which they ended
        self.last_id = 0
        """The highest stream id that a client has opened."""
        self.leaving = False
        """GOAWAY was sent: streams above ``last_id`` are ignored, as if they had been reset (6.8)."""

    def of(self, stream_id: int) -> StreamState:
        """A stream's state."""
        return self._answering.get(stream_id) or self._of_others(stream_id)

    def _of_others(self, stream_id: int) -> StreamState:
        """The state of a stream whose answer is finished or not begun."""
        if not stream_id % 2:
            return IDLE  # a client opens streams with odd ids only (5.1.1)
        if stream_id > self.last_id:
            return RESET if self.leaving else IDLE
        return self._ended_here.get(stream_id, CLOSED)

    def apply(self, stream_id: int, event: StreamEvent) -> StreamState:
        """Change a stream's state; the state before.

        Raises:
            RemoteConnectionError: the client must not send this; it ends the connection.
            RemoteStreamError: the client must not send this; the stream must be reset.
            LocalProtocolError: this program must not send this.
        """
        state = self._answering.get(stream_id) or self._of_others(stream_id)
        after = NEXT.get((state, event))
        if after is OPEN or after is HALF_CLOSED_REMOTE:
            self._answering[stream_id] = after
            if state is IDLE:
                self.last_id = stream_id
        elif after is None:
            raise self._error(stream_id, state, event)
        elif after is not state:
            self._end(stream_id, after)
        return state

    def _end(self, stream_id: int, state: StreamState) -> None:
        """Enter a state in which the answer is finished."""
        self._answering.pop(stream_id, None)
        if state is not CLOSED:
            self._ended_here.pop(stream_id, None)
            self._ended_here[stream_id] = state
            if len(self._ended_here) > _MAX_ENDED_HERE:
                del self._ended_here[next(iter(self._ended_here))]
        elif self._ended_here:
            self._ended_here.pop(stream_id, None)

    def _error(self, stream_id: int, state: StreamState, event: StreamEvent) -> Exception:
        violation = VIOLATIONS.get((state, event))
        if violation is None:
            return LocalProtocolError(f"{event.name} on stream {stream_id}, which is {state.name}")
        return violation.error(violation.code, violation.text.format(stream_id=stream_id, last_id=self.last_id))
