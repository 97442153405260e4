"""What a handler holds of a call, and what a server is made of: ``Ticket`` for one answer, ``StreamCall`` for a stream of them, ``Methods``.

Promises: a ``StreamCall`` is for one handler's thread; ``left`` and ``cancel`` are for the loop's.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from binlog_source.rpc import http1
from binlog_source.rpc.budget import DEFAULT_CAPACITY
from binlog_source.rpc.grpc_message import ENCODING, GZIP, prefixed, prefixed_gzip

if TYPE_CHECKING:
    from binlog_source.rpc.peer import Peer

Fields = Sequence[tuple[bytes, bytes]]

BACKLOG_BYTES = 2 << 20
"""A stream handler waits while more than this of its answers is on the way."""


class Ticket:
    """The right to answer one unary call, once."""

    __slots__ = ("peer", "stream_id")

    def __init__(self, peer: "Peer", stream_id: int) -> None:
        self.peer = peer
        self.stream_id = stream_id


class StreamCall:
    """One call with a stream of answers, as its handler sees it. For one thread."""

    def __init__(self, peer: "Peer", stream_id: int, message: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.stream_id = stream_id
        """Its name on its connection."""
        self.message = message
        """The request."""
        self.headers = headers
        """The request's metadata."""
        self._peer = peer
        self._frame = prefixed_gzip if headers.get(ENCODING) == GZIP else prefixed
        self._changed = threading.Condition()
        self._handed = 0
        self._backlog = 0
        self._sent = 0
        self._cancelled = False
        self.moved = 0.0
        """On the loop: when something left for its client last, or when it began."""
        self._wakes: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone, or the server stops."""
        return self._cancelled

    @property
    def address(self) -> str:
        """The client's address."""
        return self._peer.address

    @property
    def behind(self) -> int:
        """Bytes of answers that have not left yet."""
        return self._handed + self._backlog

    @property
    def taken(self) -> int:
        """Bytes of answers that have left."""
        return self._sent - self.behind

    def on_cancel(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, on the loop's thread, when the client goes or the server stops."""
        self._wakes.append(wake)
        if self._cancelled:
            wake()

    def start(self, metadata: Fields) -> None:
        """Send the initial metadata."""
        extra = ((ENCODING, GZIP),) if self._frame is prefixed_gzip else ()
        self._peer.front.call(self._peer.stream_start, self.stream_id, (*metadata, *extra))

    def send(self, messages: Sequence[bytes]) -> None:
        """Send messages; waits while the client is behind. Nothing happens once it has gone."""
        data = b"".join(map(self._frame, messages))
        with self._changed:
            self._changed.wait_for(lambda: self.behind <= BACKLOG_BYTES or self._cancelled)
            if self._cancelled:
                return
            self._sent += len(data)
            self._handed += len(data)
        self._peer.front.call(self._peer.stream_send, self, data)

    def settle(self) -> None:
        """Wait until all that was sent has left, or the client has gone."""
        with self._changed:
            self._changed.wait_for(lambda: not self.behind or self._cancelled)

    def finish(self, status: int, text: str) -> None:
        """End the stream."""
        self._peer.front.call(self._peer.stream_finish, self.stream_id, status, text)

    def end(self, text: str) -> None:
        """From any thread: end the stream now, and drop what has not left; the client is told why."""
        self._peer.front.call(self.end_now, text)

    def end_now(self, text: str) -> None:
        """On the loop: the same."""
        self._peer.stream_end(self.stream_id, text)

    def left(self, backlog: int, taken: int) -> None:
        """On the loop: ``taken`` more bytes were handed over to it; of all that were, ``backlog`` bytes have not left yet."""
        with self._changed:
            if backlog < self._backlog + taken:
                self.moved = self._peer.front.now()
            self._handed -= taken
            self._backlog = backlog
            self._changed.notify_all()

    def cancel(self) -> None:
        """On the loop: the client has gone, or the server stops."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        for wake in self._wakes:
            wake()


UnaryHandler = Callable[[bytes, Ticket], None]
StreamHandler = Callable[[StreamCall], None]
HttpHandler = Callable[[http1.Request], http1.Answer]


@dataclass(frozen=True, slots=True)
class Methods:
    """What a server answers. A handler may raise ``Refusal``."""

    unary: Mapping[bytes, UnaryHandler] = field(default_factory=dict)
    """By path, ``/binlog.Pump/WriteBinlog``; called on the loop's thread."""
    stream: Mapping[bytes, StreamHandler] = field(default_factory=dict)
    """By path; called in a thread of its own."""
    http: HttpHandler = lambda request: http1.NOT_FOUND
    """Called in a thread."""
    max_request: int = 1 << 62
    """Bytes of a request message."""
    max_unfinished: int = DEFAULT_CAPACITY
    """Bytes of requests that are not complete, beside one very large one."""
    max_streams: int = 512
    """Streams of answers at the same time, a thread each."""
    max_streams_per_peer: int = 64
    """And for one client's address."""
    max_connections: int = 4096
    """Connections at the same time; fewer where the process has few descriptors (``crowds``)."""
    max_connections_per_peer: int = 512
    """And from one client's address."""
