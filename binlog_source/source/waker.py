"""Wakes idle Pumps that hold R back, while the stream waits for R. Shell around ``wake.choose``: a thread, a registry, calls of
WriteBinlog.

Promises: the stream never waits for the waker. Its thread has its own connection to the registry and to each Pump, and every call a short
timeout. A Pump gets a fake under three conditions: ``asked`` is active, the registry has the Pump in service, and the Pump has promised
less than the fake's ts. The ts is fetched just before the fake is sent. A Pump gets at most one fake per interval. A failure is logged once
per outage and tried again after ``_RETRY_SECONDS``. Without a registry there is no TSO, and nothing is woken.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.cluster.discovery import PumpDiscovery, discovery_of, names_registry
from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import require_pump
from pyspark_tidb_binlog.binlog_source.pump_client.writer import Pending, PumpWriter, WriteFailed
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.binlog_source.source.wake import LastWake, choose, fake_payload, is_of_now
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import Delivery

_SEND_SECONDS = 1.0
"""How long a Pump may take to answer, and the age that a timestamp may have when it is sent."""
_RETRY_SECONDS = 3.0
"""A pause after a failure. An idle Pump writes its own fakes at this interval."""

_log = logging.getLogger(__name__)


class PumpWaker:
    """Wakes the Pumps of one stream."""

    def __init__(
        self, online: Callable[[], Mapping[str, str]], open_discovery: Callable[[], PumpDiscovery], tails: Tails, interval: float
    ) -> None:
        """``online``: the Pumps in service, without a request; ``interval``: seconds between two fakes to one Pump.

        ``open_discovery`` is called once, by the thread; its clock is the thread's own connection to the registry.
        """
        self._online = online
        self._open_discovery = open_discovery
        self._discovery: PumpDiscovery | None = None
        self._tails = tails
        self._interval = interval
        self._asked: Delivery | None = None
        self._asking = threading.Event()
        self._stopped = False
        self._woken: dict[str, LastWake] = {}
        self._failing: set[str] = set()
        self._writers: dict[tuple[str, str], PumpWriter] = {}
        """By node id and address."""
        self._counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="waker of idle Pumps", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def asked(self, delivery: Delivery) -> Iterator[None]:
        """While the block runs, the stream waits for R, by the promises of ``delivery``."""
        self._asked = delivery
        self._asking.set()
        try:
            yield
        finally:
            self._asking.clear()

    def counts(self) -> dict[str, int]:
        """How many fakes each Pump has acknowledged."""
        return dict(sorted(self._counts.copy().items()))

    def stop(self) -> None:
        """Make the thread end soon; does not wait for it."""
        self._stopped = True
        self._asking.set()
        with self._tails.changed:
            self._tails.changed.notify_all()

    def _run(self) -> None:
        try:
            while targets := self._next():
                self._wake(targets)
        finally:
            for writer in self._writers.values():
                writer.close()
            if self._discovery is not None:
                self._discovery.close()

    def _next(self) -> "tuple[_Target, ...]":
        """Wait until there are Pumps to wake; empty: the stream has stopped."""
        while not self._stopped:
            self._asking.wait()
            with self._tails.changed:
                while self._asking.is_set() and not self._stopped:
                    assert self._asked is not None
                    heads = self._tails.heads(self._asked)
                    choice = choose(heads, self._woken, time.monotonic(), self._interval)
                    if choice.pumps:
                        return tuple(_Target(pump, heads[pump].promise, choice.wanted) for pump in choice.pumps)
                    self._tails.changed.wait(choice.again_in)
        return ()

    def _wake(self, targets: "tuple[_Target, ...]") -> None:
        """Send a fake to each of the Pumps that are online."""
        for target in targets:
            self._woken[target.pump] = LastWake(0, time.monotonic() + _RETRY_SECONDS)
        under_way: list[_Sent] = []
        online = self._online()
        for target in targets:
            with self._noting("the registry"):
                if target.pump in online and not self._stopped:
                    under_way += self._send(self._known_discovery(), target, online[target.pump])
        for sent in under_way:
            with self._noting(f"Pump {sent.pump}"):
                self._finish(sent)

    def _send(self, discovery: PumpDiscovery, target: "_Target", address: str) -> "Iterator[_Sent]":
        """Start the call; nothing where the timestamp is not near the transaction that waits."""
        pump = target.pump
        if (pump, address) not in self._writers:
            require_pump(pump, address, discovery.tls, _SEND_SECONDS)
            self._writers[pump, address] = PumpWriter(address, discovery.cluster_id(), _SEND_SECONDS, pump, tls=discovery.tls)
        begun = time.monotonic()
        ts = discovery.now()
        if time.monotonic() - begun > _SEND_SECONDS:
            raise PumpUnavailable(f"the registry needed {time.monotonic() - begun:.1f} s for a timestamp, which is now too old to send")
        if ts <= target.promise:
            raise ProtocolViolation(
                f"the registry's timestamp {ts} is not above the promise {target.promise} of Pump {pump}: check that both are of one cluster"
            )
        if not is_of_now(ts, target.wanted):
            return
        yield _Sent(pump, address, ts, begun, self._writers[pump, address].start(fake_payload(ts)))

    def _finish(self, sent: "_Sent") -> None:
        try:
            sent.call.result()
        except WriteFailed:
            self._writers.pop((sent.pump, sent.address)).close()
            raise
        self._counts[sent.pump] += 1
        self._woken[sent.pump] = LastWake(sent.ts, sent.begun + self._interval)

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Log what fails inside, once until it succeeds again."""
        try:
            yield
        except ReplicationError as error:
            if what not in self._failing and not self._stopped:
                _log.warning("idle Pumps cannot be woken, so resolved_ts waits for the Pumps' own fake binlogs: %s: %s", what, error)
            self._failing.add(what)
        else:
            self._failing.discard(what)

    def _known_discovery(self) -> PumpDiscovery:
        if self._discovery is None:
            self._discovery = self._open_discovery()
        return self._discovery


@dataclass(frozen=True, slots=True)
class _Target:
    """A Pump to wake: its present promise, and the commit_ts that it should promise."""

    pump: str
    promise: int
    wanted: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """A fake on its way to a Pump."""

    pump: str
    address: str
    ts: int
    begun: float
    """When its timestamp was asked for; seconds of the monotonic clock."""
    call: Pending


def waker_of(config: SourceConfig, online: Callable[[], Mapping[str, str]], tails: Tails) -> PumpWaker | None:
    """The waker that the settings ask for; None: never wake, or there is no registry that gives a TSO. ``online``: see ``PumpWaker``."""
    if not config.wake_interval or not names_registry(config):
        return None
    return PumpWaker(online, lambda: discovery_of(config), tails, config.wake_interval)
