"""TiDB's side of WriteBinlog: which Pump gets a Prewrite, and that its outcome follows to the same one (pump_client.md, strategy range).

Promises: a Prewrite is durable when ``prewrite`` returns, or ``PumpUnavailable`` says that no Pump took it. ``outcome`` never fails and never
waits: a thread for each Pump writes them, retrying while the Pump is away. ``flush`` waits until all are written.
With ``gather`` above 0, what is begun within so many seconds goes to a Pump in one call; a caller still waits for its own Prewrite.
"""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from binlog_source.pump.writer import PumpWriter
from schemas.errors import PumpUnavailable

_RETRY_OUTCOME = 0.1
_GROUP = 256


@dataclass(frozen=True, slots=True)
class PumpChoice:
    """The Pump that took a Prewrite."""

    number: int


class _Lane:
    """Outcomes on their way to one Pump."""

    def __init__(self, writer: PumpWriter, stopping: threading.Event, gather: float) -> None:
        self._writer = writer
        self._stopping = stopping
        self._gather = gather
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._open = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"outcomes for {writer.address}", daemon=True)
        self._thread.start()

    def put(self, payload: bytes) -> None:
        """Write it some time soon."""
        with self._changed:
            self._open += 1
        self._waiting.put(payload)

    def flush(self, timeout: float) -> bool:
        """Whether all outcomes were acknowledged within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout)

    def close(self) -> None:
        """End the thread; what is not written yet is lost, as when a TiDB dies."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            # what gathered while the last group was on its way goes out together: their order does not matter
            group = [self._waiting.get()]
            if self._gather and group[0] is not None:
                self._stopping.wait(self._gather)
            while len(group) < _GROUP and not self._waiting.empty():
                group.append(self._waiting.get())
            payloads = [payload for payload in group if payload is not None]
            if payloads:
                self._write(payloads)
            if None in group:
                return

    def _write(self, payloads: list[bytes]) -> None:
        while True:
            try:
                self._writer.start_many(payloads).result()
                break
            except PumpUnavailable:
                if self._stopping.wait(_RETRY_OUTCOME):
                    break
        with self._changed:
            self._open -= len(payloads)
            self._changed.notify_all()


class _Group:
    """Prewrites that go to a Pump together."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.written = threading.Event()
        self.error: PumpUnavailable | None = None


class _Gate:
    """Prewrites on their way to one Pump: the first of a group waits for others, then writes for all of them."""

    def __init__(self, writer: PumpWriter, gather: float) -> None:
        self._writer = writer
        self._gather = gather
        self._lock = threading.Lock()
        self._group = _Group()

    def write(self, payload: bytes) -> None:
        """Return when it is durable; ``PumpUnavailable`` when it is not."""
        if not self._gather:
            self._writer.write(payload)
            return
        with self._lock:
            group = self._group
            group.payloads.append(payload)
            first = len(group.payloads) == 1
        if first:
            time.sleep(self._gather)
            self._write(group)
        group.written.wait()
        if group.error is not None:
            raise PumpUnavailable(str(group.error)) from group.error

    def _write(self, group: _Group) -> None:
        with self._lock:
            self._group = _Group()
        try:
            self._writer.start_many(group.payloads).result()
        except PumpUnavailable as error:
            group.error = error
        finally:
            group.written.set()


class PumpClient:
    """Writes to several Pumps, each Prewrite to the next one."""

    def __init__(self, addresses: Sequence[str], cluster_id: int, write_timeout: float = 15.0, gather: float = 0.0) -> None:
        if not addresses:
            raise PumpUnavailable("no pump found: an upstream with binlog on needs at least one")
        self._stopping = threading.Event()
        self._writers = [PumpWriter(address, cluster_id, write_timeout) for address in addresses]
        self._gates = [_Gate(writer, gather) for writer in self._writers]
        self._lanes = [_Lane(writer, self._stopping, gather) for writer in self._writers]
        self._lock = threading.Lock()
        self._next = 0

    def prewrite(self, payload: bytes) -> PumpChoice:
        """Write a Prewrite to the next Pump, or to any other that takes it."""
        with self._lock:
            first = self._next
            self._next = (self._next + 1) % len(self._writers)
        failures = []
        for step in range(len(self._writers)):
            number = (first + step) % len(self._writers)
            try:
                self._gates[number].write(payload)
                return PumpChoice(number)
            except PumpUnavailable as error:
                failures.append(str(error))
        raise PumpUnavailable("write binlog failed, no Pump took the Prewrite: " + "; ".join(failures))

    def outcome(self, payload: bytes, choice: PumpChoice) -> None:
        """Write a Commit or Rollback to the Pump that has the Prewrite."""
        self._lanes[choice.number].put(payload)

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every outcome is written; ``PumpUnavailable`` when a Pump stays away."""
        deadline = time.monotonic() + timeout
        for lane, writer in zip(self._lanes, self._writers, strict=True):
            if not lane.flush(max(0.0, deadline - time.monotonic())):
                raise PumpUnavailable(f"Pump {writer.address} did not take all Commits within {timeout:g} s; is it running?")

    def close(self) -> None:
        """Stop writing."""
        self._stopping.set()
        for lane in self._lanes:
            lane.close()
        for writer in self._writers:
            writer.close()
