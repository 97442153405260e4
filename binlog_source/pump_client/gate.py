"""Prewrites on their way to one Pump: with ``gather`` above 0 the first of a group waits for others, then writes for all of them.

Promises: safe for many threads; every caller gets the fate of its own Prewrite, and none is lost or written twice.
"""

import threading
from collections.abc import Callable

from binlog_source.pump_client.clock import Clock
from binlog_source.pump_client.link import Link, unheard, write_group
from binlog_source.pump_client.writer import WriteFailed


class _Group:
    """Prewrites that go together."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.heard: list[Callable[[], None]] = []
        self.failures: list[WriteFailed | None] = []
        self.over = threading.Event()

    def tell_sent(self) -> None:
        """Every caller hears that the group was sent."""
        for hear in self.heard:
            hear()


class Gate:
    """The way of Prewrites to one Pump."""

    def __init__(self, link: Link, clock: Clock, gather: float) -> None:
        """``gather``: seconds; 0 = nobody waits for anybody."""
        self._link = link
        self._clock = clock
        self._gather = gather
        self._lock = threading.Lock()
        self._group = _Group()

    def write(self, payload: bytes, sent: Callable[[], None] = unheard) -> None:
        """Return when it is durable; ``WriteFailed`` when it is not. ``sent`` is called between sending and the answer."""
        if not self._gather:
            self._link.write([payload], sent)
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
            # an error of its own for each: a shared one would gather the tracebacks of all threads
            raise WriteFailed(str(failure), failure.code, failure.text) from failure

    def _lead(self, group: _Group) -> None:
        self._clock.wait(self._gather)
        with self._lock:
            self._group = _Group()
        try:
            group.failures = write_group(self._link, group.payloads, group.tell_sent)
        finally:
            # whatever went wrong, the others must not wait for ever
            group.failures = group.failures or [WriteFailed("the group was not written", "CANCELLED")] * len(group.payloads)
            group.over.set()
