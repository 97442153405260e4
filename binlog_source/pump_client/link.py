"""The connection to one Pump: opened by the first write, opened anew after a reset, when a call found it lost, or when the Pump has moved.

Promises: safe for many threads. A reset spares the calls that are under way: the old connection is closed when its last one is over. Every call
is counted as a success or failure of its Pump. After ``close`` a write is a ``WriteFailed`` with code ``CANCELLED``.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from binlog_source.pump_client.retry import ANSWERED, DISCONNECTED, too_large
from binlog_source.pump_client.writer import Pending, WriteFailed


class Transport(Protocol):
    """Calls to one address; ``PumpWriter`` is the real one."""

    def start(self, payload: bytes) -> Pending:
        """Send one binlog."""

    def start_many(self, payloads: Sequence[bytes]) -> Pending:
        """Send binlogs that are stored in this order."""

    def close(self) -> None:
        """Give the connection back."""


Connect = Callable[[str], Transport]
"""Makes the transport to an address; it must not block."""


def unheard() -> None:
    """Nobody wants to know that a call was sent."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Who counts the calls."""

    success: Callable[[], None]
    failure: Callable[[], None]


@dataclass(slots=True)
class _Opened:
    transport: Transport
    address: str
    users: int = 0
    dropped: bool = False


class Link:
    """Writes to one Pump."""

    def __init__(self, node_id: str, address: str, connect: Connect, tally: Tally) -> None:
        self.node_id = node_id
        self._address = address
        self._connect = connect
        self._tally = tally
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """Where the next call goes."""
        return self._address

    def move_to(self, address: str) -> None:
        """The Pump registered another address."""
        self._address = address

    def write(self, payloads: Sequence[bytes], sent: Callable[[], None] = unheard) -> None:
        """Write binlogs in one call and wait; ``WriteFailed`` when it failed. ``sent`` is called between sending and the answer."""
        with self._borrowed() as opened:
            try:
                _call(opened.transport, payloads, sent)
            except WriteFailed as failure:
                self._note(opened, failure)
                raise
        self._tally.success()

    def reset(self) -> None:
        """Dial anew at the next write."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Write no more; what is under way fails."""
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.transport.close()
                self._opened = None

    def _note(self, opened: _Opened, failure: WriteFailed) -> None:
        (self._tally.success if failure.code == ANSWERED else self._tally.failure)()
        if failure.code == DISCONNECTED:
            with self._lock:
                # another caller may have dialled anew already
                if self._opened is opened:
                    self._drop()

    @contextmanager
    def _borrowed(self) -> Iterator[_Opened]:
        with self._lock:
            opened = self._open()
            opened.users += 1
        try:
            yield opened
        finally:
            with self._lock:
                opened.users -= 1
                if opened.dropped and not opened.users:
                    opened.transport.close()

    def _open(self) -> _Opened:
        if self._closed:
            raise WriteFailed(f"Pump {self.node_id} was not asked: the Pump client is closed", "CANCELLED")
        if self._opened is not None and self._opened.address != self._address:
            self._drop()
        if self._opened is None:
            self._opened = _Opened(self._connect(self._address), self._address)
        return self._opened

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened.dropped = True
            if not self._opened.users:
                self._opened.transport.close()
            self._opened = None


def _call(transport: Transport, payloads: Sequence[bytes], sent: Callable[[], None]) -> None:
    call = transport.start(payloads[0]) if len(payloads) == 1 else transport.start_many(payloads)
    sent()
    call.result()


def write_group(link: Link, payloads: Sequence[bytes], sent: Callable[[], None] = unheard) -> list[WriteFailed | None]:
    """Write binlogs of several callers in one call; what became of each.

    A group that is too large as a whole is written one by one: each of it may be small enough.
    """
    try:
        link.write(payloads, sent)
    except WriteFailed as failure:
        if len(payloads) > 1 and too_large(failure):
            return [failure_of(link, payload) for payload in payloads]
        return [failure] * len(payloads)
    return [None] * len(payloads)


def failure_of(link: Link, payload: bytes) -> WriteFailed | None:
    """Write one binlog; why it failed, None when it did not."""
    try:
        link.write([payload])
    except WriteFailed as failure:
        return failure
    return None
