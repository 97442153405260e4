"""Writes Prewrites to one Pump. With ``gather`` above 0, the first caller of a group waits for others, then writes for all of them.

Promises: thread-safe. Every caller gets the result of its own Prewrite. No Prewrite is lost or written twice.
"""

import threading
from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.pump_client.clock import Clock
from pyspark_tidb_binlog.binlog_source.pump_client.connection import PumpConnection, ignore_sent, write_group
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed


class _Group:
    """Prewrites that are sent in one call."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.heard: list[Callable[[], None]] = []
        self.failures: list[WriteFailed | None] = []
        self.over = threading.Event()

    def tell_sent(self) -> None:
        """Notify every caller that the group was sent."""
        for hear in self.heard:
            hear()


class PrewriteWriter:
    """Writes Prewrites to one Pump, in groups if ``gather`` is set."""

    def __init__(self, connection: PumpConnection, clock: Clock, gather: float) -> None:
        """``gather``: seconds to wait for a group; 0 = no groups."""
        self._connection = connection
        self._clock = clock
        self._gather = gather
        self._lock = threading.Lock()
        self._group = _Group()

    def write(self, payload: bytes, sent: Callable[[], None] = ignore_sent) -> None:
        """Return when it is durable; ``WriteFailed`` when it is not. ``sent`` is called between sending and the answer."""
        if not self._gather:
            self._connection.write([payload], sent)
            return
        with self._lock:
            group = self._group
            place = len(group.payloads)
            group.payloads.append(payload)
            group.heard.append(sent)
        if place == 0:
            self._lead(group)
        group.over.wait()
        failure = group.failures[place]
        if failure is not None:
            # one exception per caller: a shared one would collect the tracebacks of all threads
            raise WriteFailed(str(failure), failure.code, failure.text) from failure

    def _lead(self, group: _Group) -> None:
        self._clock.wait(self._gather)
        with self._lock:
            self._group = _Group()
        try:
            group.failures = write_group(self._connection, group.payloads, group.tell_sent)
        finally:
            # whatever failed, the other callers must not wait for ever
            group.failures = group.failures or [WriteFailed("the group was not written", "CANCELLED")] * len(group.payloads)
            group.over.set()
