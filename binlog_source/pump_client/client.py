"""TiDB's side of WriteBinlog (pump_client.md 3 and 6): which Pump gets a Prewrite, and that its outcome follows to the same one.

    client = PumpClient.from_registry(registry)                                 # follows the registry, probes what fails
    client = PumpClient.fixed(["127.0.0.1:8250", "127.0.0.1:8251"], cluster_id)  # no registry
    client.prewrite(start_ts, payload); client.outcome(start_ts, payload); client.flush(); client.close()
    client.write(payload)                                                        # either, awaited: TiDB's WriteBinlog

Promises: a Prewrite is durable when ``prewrite`` returns; ``PumpUnavailable`` says that it may be lost. It may then, or after a retry, lie on
several Pumps: only the one that answered gets the outcome, the others ask for it. A Commit or Rollback never fails. Safe for many threads.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from google.protobuf.message import DecodeError

from binlog_source.cluster.registry import PUMPS, Listing, NodeStatus, Registry
from binlog_source.pump_client.clock import WallClock
from binlog_source.pump_client.fleet import Fleet, Surroundings, Way
from binlog_source.pump_client.link import failure_of
from binlog_source.pump_client.protocol import Sent, unheard
from binlog_source.pump_client.retry import Next, after_failed_prewrite
from binlog_source.pump_client.settings import DEFAULTS, PumpClientSettings
from binlog_source.pump_client.stats import Counters, Stats
from binlog_source.pump_client.watch import Follower, detect, follow
from binlog_source.pump_client.writer import PumpWriter, WriteFailed
from schemas.errors import ProtocolViolation, PumpUnavailable
from schemas.proto import binlog_pb2

_GRACE = 2.0
"""Seconds that a closed client lets the last outcomes take."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempts:
    """One Prewrite on its way."""

    start_ts: int
    payload: bytes
    sent: Sent
    begun: float
    retries: int = 0
    first: str = ""
    """The Pump that was tried first."""
    failure: WriteFailed | None = None
    """The last one."""


class PumpClient:
    """Writes to the Pumps of one cluster."""

    def __init__(
        self, pumps: Iterable[NodeStatus], cluster_id: int, settings: PumpClientSettings, surroundings: Surroundings | None = None
    ) -> None:
        """Without the two loops; ``from_registry`` and ``fixed`` are for callers. ``surroundings``: what a test puts in the world's place."""
        self._cluster_id = cluster_id
        self._settings = settings
        self._counters = Counters()
        self._surroundings = surroundings or Surroundings(
            connect=lambda address: PumpWriter(address, cluster_id, settings.write_timeout), clock=WallClock(), chance=random.Random()
        )
        self._clock = self._surroundings.clock
        self._fleet = Fleet(settings, self._surroundings, self._counters)
        self._fleet.register(pumps)
        self._threads: list[threading.Thread] = []

    @classmethod
    def from_registry(cls, registry: Registry, settings: PumpClientSettings = DEFAULTS) -> "PumpClient":
        """The Pumps that the registry lists and will list. ``registry`` stays the caller's, to be closed after the client.

        ``PumpUnavailable`` when it lists none, not even one that is away, or does not answer.
        """
        cluster_id = registry.cluster_id()
        if settings.socket:
            return cls([_local(settings.socket)], cluster_id, settings)._probing()
        listing = registry.listing(PUMPS)
        if not listing.nodes:
            raise PumpUnavailable(f"no pump found in the registry {registry.url}: start a Pump that registers there, then this again")
        return cls(listing.nodes, cluster_id, settings)._probing()._following(registry, listing)

    @classmethod
    def fixed(cls, addresses: Sequence[str], cluster_id: int, settings: PumpClientSettings = DEFAULTS) -> "PumpClient":
        """These Pumps and no others, each known by its ``host:port`` or ``unix:///path``; with ``settings.socket`` that one alone."""
        pumps = [_local(settings.socket)] if settings.socket else [NodeStatus(address, address) for address in addresses]
        if not pumps:
            raise PumpUnavailable("no pump found: an upstream with binlog on needs the address of at least one")
        return cls(pumps, cluster_id, settings)._probing()

    @property
    def cluster_id(self) -> int:
        """The cluster's id, that Pumps check."""
        return self._cluster_id

    def stats(self) -> Stats:
        """The counts so far."""
        return self._counters.snapshot()

    def available(self) -> tuple[str, ...]:
        """The ids of the Pumps that Prewrites go to now."""
        return tuple(way.link.node_id for way in self._fleet.available())

    def write(self, payload: bytes) -> None:
        """TiDB's WriteBinlog: write a serialized ``Binlog`` and wait. A Prewrite may fail, see ``prewrite``; anything else never does.

        ``ProtocolViolation`` when ``payload`` is no binlog.
        """
        try:
            binlog = binlog_pb2.Binlog.FromString(payload)
        except DecodeError as error:
            raise ProtocolViolation(f"what is to be written is no Binlog message: {payload[:40]!r}…") from error
        if binlog.tp == binlog_pb2.Prewrite:
            self.prewrite(binlog.start_ts, payload)
            return
        taker = self._handed_over(binlog.start_ts)
        if taker is not None:
            taker.lane.put(binlog.start_ts, payload).over.wait()

    def prewrite(self, start_ts: int, payload: bytes, sent: Sent = unheard) -> None:
        """Write a Prewrite to the next Pump, or to any other that takes it.

        ``PumpUnavailable`` when none does, after trying for ``write_timeout`` seconds; at once as a ``WriteFailed`` when it is too large.
        """
        attempts = _Attempts(start_ts, payload, sent, self._clock.now())
        taker: Way | None = None
        try:
            taker = self._try_in_turn(attempts) or self._try_everyone(attempts)
        finally:
            if attempts.failure is not None:
                self._fleet.demote_unusable()
            self._fleet.remember(start_ts, taker)
        self._counters.add(prewrites=1, failovers=int(taker.link.node_id != attempts.first and attempts.first != ""))

    def outcome(self, start_ts: int, payload: bytes) -> None:
        """Write a Commit or Rollback to the Pump that has the Prewrite, in the background. Never waits, never fails."""
        taker = self._handed_over(start_ts)
        if taker is not None:
            taker.lane.put(start_ts, payload)

    def duplicate(self, start_ts: int, payload: bytes) -> bool:
        """Write a Prewrite, that a Pump has, to another available one too; whether there is one that took it. The outcome goes to the first."""
        taker = self._fleet.taker(start_ts)
        others = [way for way in self._fleet.available() if way is not taker]
        return any(failure_of(way.link, payload) is None for way in others)

    def forget(self, start_ts: int) -> None:
        """No outcome of this transaction will follow."""
        self._fleet.remember(start_ts, None)

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every outcome is written or given up; ``PumpUnavailable`` when a Pump stays away for ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for way in self._fleet.ways():
            if not way.lane.flush(max(0.0, deadline - time.monotonic())):
                raise PumpUnavailable(
                    f"Pump {way.link.node_id} at {way.link.address} did not take {way.lane.open} outcomes within {timeout:g} s; is it running?"
                )

    def close(self) -> None:
        """Stop writing. Outcomes that wait are tried once more, for a moment; what no Pump takes is lost."""
        self._clock.close()
        ways = self._fleet.ways()
        for way in ways:
            way.lane.end()
        deadline = time.monotonic() + _GRACE
        for way in ways:
            way.lane.join(max(0.0, deadline - time.monotonic()))
        for way in ways:
            way.link.close()
            way.lane.join()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "PumpClient":
        """The client itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _try_in_turn(self, attempts: _Attempts) -> Way | None:
        """The Pump that took it; None when it is time to try everyone."""
        while (way := self._fleet.choose(attempts.start_ts, attempts.retries)) is not None:
            attempts.first = attempts.first or way.link.node_id
            try:
                way.gate.write(attempts.payload, partial(attempts.sent, way.link.node_id))
                return way
            except WriteFailed as failure:
                attempts.failure = failure
                if not self._again(attempts, way, failure):
                    return None
        return None

    def _again(self, attempts: _Attempts, way: Way, failure: WriteFailed) -> bool:
        """Whether to choose once more, after the pause; raises when that is of no use."""
        elapsed = self._clock.now() - attempts.begun
        _log.info("the Prewrite of start_ts %d failed: %s", attempts.start_ts, failure)
        match after_failed_prewrite(failure, elapsed, attempts.retries, len(self._fleet.available()), self._settings):
            case Next.REFUSE:
                raise _too_large(attempts, way, failure) from failure
            case Next.EVERYONE:
                return False
        attempts.retries += 1
        self._counters.add(retries=1)
        if self._clock.wait(self._settings.prewrite_pause):
            raise PumpUnavailable(f"the Prewrite of start_ts {attempts.start_ts} was not written: the Pump client was closed") from failure
        return True

    def _try_everyone(self, attempts: _Attempts) -> Way:
        """The Pump that took it after all: each that is registered online is dialled anew and asked once."""
        for way in self._fleet.online():
            way.link.reset()
            try:
                way.link.write([attempts.payload], partial(attempts.sent, way.link.node_id))
            except WriteFailed as failure:
                attempts.failure = failure
                continue
            self._fleet.answered(way.link.node_id)
            return way
        raise self._untaken(attempts) from attempts.failure

    def _untaken(self, attempts: _Attempts) -> PumpUnavailable:
        waited = self._clock.now() - attempts.begun
        last = attempts.failure or "no available pump to write binlog, none is registered online"
        return PumpUnavailable(
            f"write binlog failed: no Pump took the Prewrite of start_ts {attempts.start_ts} within {waited:.1f} s, the last error: {last}; "
            "start a Pump or put one online, then run the transaction again"
        )

    def _handed_over(self, start_ts: int) -> Way | None:
        """The Pump that gets the outcome; with that the client has nothing more to remember."""
        taker = self._fleet.taker(start_ts)
        if taker is None:
            self._counters.add(outcomes_given_up=1)
            _log.warning("the outcome of start_ts %d is not written: no Pump took its Prewrite from this client", start_ts)
        self._fleet.remember(start_ts, None)
        return taker

    def _probing(self) -> "PumpClient":
        self._begin("Pump probes", partial(detect, self._fleet, self._clock, self._settings, self._counters))
        return self

    def _following(self, registry: Registry, listing: Listing) -> "PumpClient":
        follower = Follower(registry, self._fleet, listing.revision, self._settings.watch_wait)
        self._begin("Pump watch", partial(follow, follower, self._clock))
        return self

    def _begin(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _local(socket: str) -> NodeStatus:
    return NodeStatus("local", socket)


def _too_large(attempts: _Attempts, way: Way, failure: WriteFailed) -> WriteFailed:
    return WriteFailed(
        f"the Prewrite of start_ts {attempts.start_ts} is too large for Pump {way.link.node_id}, {len(attempts.payload)} bytes: {failure.text}; "
        "make the transaction smaller or let the Pump take larger messages",
        failure.code,
        failure.text,
    )
