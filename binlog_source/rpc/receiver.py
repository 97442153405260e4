"""The receiving side of HTTP/2: requests under way, and the flow-control windows that admit them (RFC 9113, section 5.2).

A connection's window is refilled as it is used, so only its streams' windows limit a client. A stream's first window is HTTP/2's default,
64 KiB, and admits most requests whole. gRPC announces a message's length at its beginning. For a longer message the window is opened for
the rest when the server's ``RequestMemory`` admits it.

Promises: pure. A request under way has an open stream and a wanted body. A request that is too large, or longer than announced, is returned
before it ends. The rest of its body is discarded as it arrives.
"""

from collections.abc import Callable, Mapping
from functools import partial

from pyspark_tidb_binlog.binlog_source.rpc.frames import DEFAULT_WINDOW, END_STREAM, PADDED, WIDEST, WINDOW_UPDATE, unpadded, word_frame
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import announced
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode, RemoteConnectionError, RemoteStreamError
from pyspark_tidb_binlog.binlog_source.rpc.http2_events import Call, Event
from pyspark_tidb_binlog.binlog_source.rpc.request_memory import RequestMemory
from pyspark_tidb_binlog.binlog_source.rpc.stream_states import DATA_RECEIVED, END_STREAM_RECEIVED, MAX_STREAMS, StreamStates
from pyspark_tidb_binlog.binlog_source.rpc.unfinished_request import BEGINNING, UnfinishedRequest

CONNECTION_WINDOW = MAX_STREAMS * DEFAULT_WINDOW


class Receiver:
    """The requests of one connection that are not complete."""

    def __init__(
        self, max_request: int, memory: RequestMemory, states: StreamStates, say: Callable[[bytes], None], wake: Callable[[], None]
    ) -> None:
        """``say`` sends a frame, ``wake`` is called when it was called outside ``data``; for the others see ``Connection``."""
        self._max_request = min(max_request, WIDEST - 1)
        self._memory = memory
        self._states = states
        self._say = say
        self._wake = wake
        self._requests: dict[int, UnfinishedRequest] = {}
        self._room = CONNECTION_WINDOW

    @property
    def awaits(self) -> bool:
        """Whether the client may send the rest of a request now."""
        return any(not request.waits for request in self._requests.values())

    def close(self) -> None:
        """Release what the requests hold of the server's memory."""
        for stream_id in list(self._requests):
            self.drop(stream_id)

    def begin(self, stream_id: int, headers: Mapping[bytes, bytes]) -> None:
        """A request whose header block has come, and whose body follows."""
        self._requests[stream_id] = UnfinishedRequest(headers)

    def get(self, stream_id: int) -> UnfinishedRequest | None:
        """The request under way on a stream."""
        return self._requests.get(stream_id)

    def drop(self, stream_id: int) -> None:
        """Release what a request holds: it is complete or abandoned."""
        request = self._requests.pop(stream_id, None)
        if request is not None and request.asked:
            self._memory.forget(request)

    def end(self, stream_id: int, request: UnfinishedRequest, events: list[Event]) -> None:
        """A request's END_STREAM has come: return it as a call.

        Raises:
            RemoteStreamError: its body is not as long as its content-length.
        """
        events.append(whole_call(stream_id, request))
        self.drop(stream_id)
        self._states.apply(stream_id, END_STREAM_RECEIVED)

    def data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> bool:
        """Process DATA; whether it carried nothing of a request, nor its end.

        Raises:
            RemoteConnectionError: it exceeds the connection's window, or the stream was never opened.
            RemoteStreamError: it exceeds the stream's window, or the stream is closed for it.
        """
        size = len(payload)
        self._room -= size
        if self._room < 0:
            raise RemoteConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"{-self._room} bytes more than the connection's window")
        if self._room < CONNECTION_WINDOW // 2:
            self._say(word_frame(WINDOW_UPDATE, 0, CONNECTION_WINDOW - self._room))
            self._room = CONNECTION_WINDOW
        part = unpadded(payload, flags) if flags & PADDED else payload
        request = self._requests.get(stream_id)
        if request is None:
            self._discard(flags, stream_id)
            return False
        request.room -= size
        if request.room < 0:
            raise RemoteStreamError(ErrorCode.FLOW_CONTROL_ERROR, "more than the stream's window")
        if len(part) < size:
            # padding is discarded at once
            request.room += size - len(part)
            self._say(word_frame(WINDOW_UPDATE, stream_id, size - len(part)))
        if part:
            request.add(part)
            if self._is_too_much(stream_id, request, flags, events):
                return False
        if flags & END_STREAM:
            self.end(stream_id, request, events)
            return False
        if request.whole - request.size > request.room and not request.asked:
            request.asked = request.waits = True
            self._memory.ask(request, request.whole, partial(self._admit, stream_id, request))
        return not part

    def _discard(self, flags: int, stream_id: int) -> None:
        """DATA of no request under way: abandoned here, or an error."""
        self._states.apply(stream_id, DATA_RECEIVED)
        if flags & END_STREAM:
            self._states.apply(stream_id, END_STREAM_RECEIVED)

    def _is_too_much(self, stream_id: int, request: UnfinishedRequest, flags: int, events: list[Event]) -> bool:
        """Return a request that is too large, or longer than announced, before it ends; its rest is discarded. Whether it is."""
        if not request.whole and request.size >= BEGINNING:
            request.whole = BEGINNING + announced(request.beginning())
        too_large = max(request.size, request.whole) > self._max_request
        if not too_large and not 0 < request.whole < request.size:
            return False
        self.drop(stream_id)
        if flags & END_STREAM:
            self._states.apply(stream_id, END_STREAM_RECEIVED)
        events.append(Call(stream_id, request.headers, request.beginning() if too_large else request.body(), too_large))
        return True

    def _admit(self, stream_id: int, request: UnfinishedRequest) -> None:
        """Open a request's window for its rest."""
        missing = request.whole - request.size - request.room
        request.room += missing
        request.waits = False
        self._say(word_frame(WINDOW_UPDATE, stream_id, missing))
        self._wake()


def whole_call(stream_id: int, request: UnfinishedRequest) -> Call:
    """The call of a complete request.

    Raises:
        RemoteStreamError: its body is not as long as its content-length.
    """
    length = request.headers.get(b"content-length")
    if length is not None and int(length) != request.size:
        text = f"body of {request.size} bytes with content-length {length.decode()}"
        raise RemoteStreamError(ErrorCode.PROTOCOL_ERROR, text)
    return Call(stream_id, request.headers, request.body() if request.parts else b"")
