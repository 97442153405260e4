"""A handler's side of a call (``PendingCall`` for one answer, ``StreamCall`` for a stream of answers), and a server's ``Methods``.

Promises: only a handler's thread uses a ``StreamCall``, except for ``left`` and ``cancel``, which the loop's thread uses.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark_tidb_binlog.binlog_source.rpc import http1
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import ENCODING, GZIP, prefixed, prefixed_gzip
from pyspark_tidb_binlog.binlog_source.rpc.header_block import Fields
from pyspark_tidb_binlog.binlog_source.rpc.http2 import Connection

BACKLOG_BYTES = 2 << 20
"""A stream handler waits while more bytes than this of its answers are not sent yet."""


class Loop(Protocol):
    """What a call uses of the loop that serves it."""

    def call(self, act: Callable[..., None], *arguments: object) -> None:
        """Have ``act`` called on the loop's thread."""

    def now(self) -> float:
        """The loop's clock."""


class CallPeer(Protocol):
    """What a call uses of its connection. Everything but ``server`` is for the loop's thread."""

    @property
    def server(self) -> Loop:
        """Where it is served."""

    @property
    def connection(self) -> Connection | None:
        """None once the client has disconnected."""

    def flush(self) -> None:
        """Send what the connection has to say."""

    def stream_start(self, stream_id: int, metadata: Fields) -> None:
        """Send a stream's metadata."""

    def stream_send(self, call: "StreamCall", data: bytes) -> None:
        """Send more of a stream."""

    def stream_finish(self, stream_id: int, status: int, text: str) -> None:
        """End a stream."""


class PendingCall:
    """The right to answer one unary call, once."""

    __slots__ = ("peer", "stream_id")

    def __init__(self, peer: CallPeer, stream_id: int) -> None:
        self.peer = peer
        self.stream_id = stream_id


class StreamCall:
    """One call with a stream of answers, as its handler sees it. For one thread."""

    def __init__(self, peer: CallPeer, stream_id: int, message: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.stream_id = stream_id
        """Its HTTP/2 stream id."""
        self.message = message
        """The request."""
        self.headers = headers
        """The request's metadata."""
        self._peer = peer
        self._frame = prefixed_gzip if headers.get(ENCODING) == GZIP else prefixed
        self._changed = threading.Condition()
        self._handed = 0
        self._backlog = 0
        self._cancelled = False
        self._wakes: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether the client cancelled or disconnected, or the server stops."""
        return self._cancelled

    @property
    def _behind(self) -> int:
        """Bytes of answers that are not sent yet."""
        return self._handed + self._backlog

    def on_cancel(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when the call is cancelled, on the loop's thread; here and now if it already is."""
        self._wakes.append(wake)
        if self._cancelled:
            wake()

    def start(self, metadata: Fields) -> None:
        """Send the initial metadata."""
        extra = ((ENCODING, GZIP),) if self._frame is prefixed_gzip else ()
        self._peer.server.call(self._peer.stream_start, self.stream_id, (*metadata, *extra))

    def send(self, messages: Sequence[bytes]) -> None:
        """Send messages; waits while the client is behind. Does nothing once the call is cancelled."""
        data = b"".join(map(self._frame, messages))
        with self._changed:
            self._changed.wait_for(lambda: self._behind <= BACKLOG_BYTES or self._cancelled)
            if self._cancelled:
                return
            self._handed += len(data)
        self._peer.server.call(self._peer.stream_send, self, data)

    def settle(self) -> None:
        """Wait until all answers are sent, or the call is cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: not self._behind or self._cancelled)

    def finish(self, status: int, text: str) -> None:
        """End the stream."""
        self._peer.server.call(self._peer.stream_finish, self.stream_id, status, text)

    def left(self, backlog: int, taken: int) -> None:
        """On the loop: it took over ``taken`` more bytes; of all that it took over, ``backlog`` bytes are not sent yet."""
        with self._changed:
            self._handed -= taken
            self._backlog = backlog
            self._changed.notify_all()

    def cancel(self) -> None:
        """On the loop: the client cancelled or disconnected, or the server stops."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        for wake in self._wakes:
            wake()


UnaryHandler = Callable[[bytes, PendingCall], None]
StreamHandler = Callable[[StreamCall], None]
HttpHandler = Callable[[http1.HttpRequest], http1.HttpResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """A server's handlers and limits. A handler may raise ``Refusal``."""

    unary: Mapping[bytes, UnaryHandler] = field(default_factory=dict)
    """By path, such as ``/binlog.Pump/WriteBinlog``; called on the loop's thread."""
    stream: Mapping[bytes, StreamHandler] = field(default_factory=dict)
    """By path; each call runs in a thread of its own."""
    http: HttpHandler = lambda request: http1.NOT_FOUND
    """Called in a thread of a pool."""
    http_threads: int = 4
    """Maximum HTTP requests answered at the same time; others wait."""
    max_request: int = 1 << 62
    """Maximum bytes of a request message."""
    request_memory: int = 256 << 20
    """Maximum bytes of unfinished large requests; a single one may be larger (``RequestMemory``)."""
    max_streams: int = 512
    """Maximum concurrent streams of answers, a thread each."""
    max_connections: int = 4096
    """Maximum open connections; at most half of the process's descriptors."""
