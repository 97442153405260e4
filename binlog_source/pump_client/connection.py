"""The connection to one Pump. It is opened by the first write, reopened after a reset, a lost connection or a change of the Pump's address.

Promises: thread-safe. A reset does not end calls under way: the old connection closes when its last call has ended. Every call counts as a
success or failure of its Pump. After ``close`` a write raises ``WriteFailed`` with code ``CANCELLED``.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter, WriteFailed

Connect = Callable[[str], PumpWriter]
"""Creates the writer to an address; must not block."""
Count = Callable[[bool], None]
"""Called after each call: whether the Pump answered."""


@dataclass(slots=True)
class _Opened:
    writer: PumpWriter
    address: str
    users: int = 0
    dropped: bool = False


class PumpConnection:
    """Writes to one Pump."""

    def __init__(self, node_id: str, address: str, connect: Connect, count: Count) -> None:
        self.node_id = node_id
        self.address = address
        """The address of the next call."""
        self._connect = connect
        self._count = count
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._closed = False

    def write(self, payloads: Sequence[bytes]) -> None:
        """Write binlogs in one call and wait; ``WriteFailed`` when it failed."""
        with self._borrowed() as opened:
            try:
                if len(payloads) == 1:
                    opened.writer.write(payloads[0])
                else:
                    opened.writer.write_many(payloads)
            except WriteFailed as failure:
                self._note(opened, failure)
                raise
        self._count(True)

    def reset(self) -> None:
        """Open a new connection at the next write."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Close the connection; calls under way fail, and so do later ones."""
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.writer.close()
                self._opened = None

    def _note(self, opened: _Opened, failure: WriteFailed) -> None:
        self._count(failure.answered)
        if failure.code == "UNAVAILABLE":
            with self._lock:
                # another caller may have reset the connection already
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
                    opened.writer.close()

    def _open(self) -> _Opened:
        if self._closed:
            raise WriteFailed(f"the binlog was not sent to Pump {self.node_id}, because the Pump client is closed", "CANCELLED")
        if self._opened is not None and self._opened.address != self.address:
            self._drop()
        if self._opened is None:
            self._opened = _Opened(self._connect(self.address), self.address)
        return self._opened

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened.dropped = True
            if not self._opened.users:
                self._opened.writer.close()
            self._opened = None


def write_group(connection: PumpConnection, payloads: Sequence[bytes]) -> list[WriteFailed | None]:
    """Write binlogs of several callers in one call. Returns the failure of each, None if it was written.

    If the group as a whole is too large, the binlogs are written one by one: each may be small enough.
    """
    try:
        connection.write(payloads)
    except WriteFailed as failure:
        if len(payloads) > 1 and failure.too_large:
            return [failure_of(connection, payload) for payload in payloads]
        return [failure] * len(payloads)
    return [None] * len(payloads)


def failure_of(connection: PumpConnection, payload: bytes) -> WriteFailed | None:
    """Write one binlog; why it failed, None when it did not."""
    try:
        connection.write([payload])
    except WriteFailed as failure:
        return failure
    return None
