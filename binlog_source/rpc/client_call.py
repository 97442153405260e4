"""One call of ``H2Client``: its caller's side, for any thread, and its connection's side, for the client's loop.

    call.send(message); call.end_sending()
    while (message := call.take()) is not None: ...
    call.status, call.text

Promises: messages arrive whole and in order; compressed messages are unpacked. A call holds at most ``WINDOW`` bytes of messages that
nobody has taken, plus one message and HTTP/2's window. Then the server waits. A call ends exactly once, and always with a status.
"""

import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import unquote_to_bytes

from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import (
    ENCODING,
    GZIP,
    INTERNAL,
    OK,
    UNKNOWN,
    Refusal,
    inflated,
    prefixed,
    prefixed_gzip,
)

Fields = Sequence[tuple[bytes, bytes]]

WINDOW = 4 << 20
"""Bytes that a server may send on one stream before they are taken."""
_PREFIX = struct.Struct(">BI")
_LARGEST = (1 << 32) - 1


class CallOwner(Protocol):
    """What a call uses of its client. From any thread."""

    def push(self, call: "ClientCall") -> None:
        """There is more to send."""

    def open_window(self, call: "ClientCall") -> None:
        """Messages were taken after the server had to wait."""

    def give_up(self, call: "ClientCall") -> None:
        """The caller wants no more of it."""


class MessageCutter:
    """Cuts a stream of bytes into gRPC messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @property
    def rest(self) -> int:
        """Bytes of a message that is not complete."""
        return len(self._bytes)

    def cut(self, data: bytes, encoding: bytes) -> list[bytes]:
        """The messages that ``data`` completes.

        Raises:
            Refusal: one is compressed in a way that was not agreed.
        """
        kept, found, at = self._bytes, [], 0
        kept += data
        while len(kept) - at >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(kept, at)
            end = at + _PREFIX.size + length
            if end > len(kept):
                break
            with memoryview(kept) as view:
                message = bytes(view[at + _PREFIX.size : end])
            found.append(_unpacked(message, encoding) if compressed else message)
            at = end
        del kept[:at]
        return found


def _unpacked(message: bytes, encoding: bytes) -> bytes:
    if encoding != GZIP:
        raise Refusal(INTERNAL, f"a compressed message of encoding {encoding.decode(errors='replace')!r}")
    return inflated(message, _LARGEST)


class ClientCall:
    """One call. ``take`` and the waits are for one thread at a time."""

    def __init__(self, owner: CallOwner, path: bytes, metadata: Fields, *, waits: bool = False, compress: bool = False) -> None:
        """``waits``: for a server that cannot be reached; ``compress``: also asks for compressed answers."""
        self.path = path
        self.metadata = metadata
        self.waits = waits
        self.compress = compress
        self._owner = owner
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._queued = 0
        self._held = False
        self._to_send: deque[bytes] = deque()
        self._sent_all = False
        self._callbacks: list[Callable[[], None]] = []
        self._cutter = MessageCutter()
        self._encoding = b""
        self.headers: Fields | None = None
        """The initial metadata; None while they have not come."""
        self.trailers: Fields = ()
        self.status: int | None = None
        """The gRPC status; None while the call goes on."""
        self.text = ""
        """What the status says more."""
        self.deadline: float | None = None
        """On the loop: when it must have ended, by the loop's clock."""
        self.stream_id = 0
        """On the loop: 0 before it is begun."""
        self.closed_here = False
        """On the loop: everything is sent, and the server was told so."""
        self.unread = 0
        """On the loop: bytes that came and for which the stream's window is not opened again."""
        self.unsent: deque[memoryview] = deque()
        """On the loop: what the windows have not admitted yet."""

    # The caller's side.

    def send(self, message: bytes) -> None:
        """Send a message; nothing once the call has ended."""
        framed = prefixed_gzip(message) if self.compress else prefixed(message)
        with self._changed:
            self._to_send.append(framed)
        self._owner.push(self)

    def end_sending(self) -> None:
        """Say that no more messages follow."""
        with self._changed:
            self._sent_all = True
        self._owner.push(self)

    def take(self) -> bytes | None:
        """The next message; waits for it. None: the call has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self.status is not None)
            if not self._messages:
                return None
            message = self._messages.popleft()
            self._queued -= len(message)
            goes_on = self._held and self._queued < WINDOW
            self._held = self._held and not goes_on
        if goes_on:
            self._owner.open_window(self)
        return message

    def await_headers(self) -> Fields:
        """The initial metadata; none if the call ends without."""
        with self._changed:
            self._changed.wait_for(lambda: self.headers is not None or self.status is not None)
            return self.headers or ()

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self.status is not None, timeout)

    def cancel(self) -> None:
        """Want no more of it: it ends as cancelled unless it has ended."""
        self._owner.give_up(self)

    def on_end(self, callback: Callable[[], None]) -> bool:
        """Have ``callback`` called once when it ends, by the loop's thread; False: it has ended."""
        with self._changed:
            if self.status is None:
                self._callbacks.append(callback)
                return True
        return False

    # The loop's side.

    def next_parts(self) -> tuple[Sequence[bytes], bool]:
        """The messages to send, framed, and whether they are the last."""
        with self._changed:
            parts, self._to_send = self._to_send, deque()
            return parts, self._sent_all

    def received_headers(self, fields: Fields) -> None:
        """The initial metadata came."""
        self._encoding = dict(fields).get(ENCODING, b"")
        with self._changed:
            self.headers = fields
            self._changed.notify_all()

    def received(self, data: bytes) -> bool:
        """More bytes came. Whether the server may send as much again: else ``open_window`` is called when it may.

        Raises:
            Refusal: they are no gRPC messages.
        """
        messages = self._cutter.cut(data, self._encoding)
        with self._changed:
            if messages:
                self._messages.extend(messages)
                self._queued += sum(map(len, messages))
                self._changed.notify_all()
            self._held = self._queued >= WINDOW
            return not self._held

    def verdict(self) -> tuple[int, str]:
        """Status and text of a call that the server has ended, from its trailers."""
        fields = dict(self.trailers)
        status, text = fields.get(b"grpc-status", b""), fields.get(b"grpc-message", b"")
        if not status.isdigit():
            return UNKNOWN, "the server ended the call without a status"
        if int(status) == OK and self._cutter.rest:
            return INTERNAL, f"the server ended the call {self._cutter.rest} bytes into a message"
        return int(status), unquote_to_bytes(text).decode(errors="replace")

    def end(self, status: int, text: str, trailers: Fields = ()) -> bool:
        """End it; False: it had ended."""
        with self._changed:
            if self.status is not None:
                return False
            self.text, self.trailers, self.status = text, trailers, status
            if self.headers is None and status:
                self.headers = ()
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback()
        return True
