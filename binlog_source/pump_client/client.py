"""The client side of WriteBinlog, as in TiDB (pump_client.md 3 and 6): chooses a Pump for a Prewrite, and sends the outcome to the same
Pump.

    client = PumpClient.from_registry(registry)                                 # follows the registry, probes unavailable Pumps
    client = PumpClient.fixed(["127.0.0.1:8250", "127.0.0.1:8251"], cluster_id)  # no registry
    client.prewrite(start_ts, payload); client.outcome(start_ts, payload); client.flush(); client.close()
    client.write(payload)                                                        # either, awaited: TiDB's WriteBinlog

Promises: a Prewrite is durable when ``prewrite`` returns. ``PumpUnavailable`` means that the Prewrite may be lost. After a failure or a
retry several Pumps may hold the Prewrite: only the Pump that answered gets the outcome, the others ask the upstream. A Commit or Rollback
never fails. Thread-safe. If the registry does not answer, that is logged once, and the Pumps are listed again later, so that no change is
missed. Until then their last known states apply.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, Listing, NodeStatus, Registry
from pyspark_tidb_binlog.binlog_source.pump_client.connection import failure_of, write_group
from pyspark_tidb_binlog.binlog_source.pump_client.pump_set import Dependencies, PumpHandle, PumpSet
from pyspark_tidb_binlog.binlog_source.pump_client.settings import DEFAULTS, ClientStats, Clock, Counters, PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter, WriteFailed
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

_GRACE = 2.0
"""Seconds that the last outcomes may take when the client is closed."""
_PROBE = b""
"""A Pump accepts an empty binlog and discards it."""
_REGISTRY_PAUSE = 1.0
"""Seconds until a registry that did not answer is asked again."""
_log = logging.getLogger(__name__)


class Follower:
    """Applies the registry's changes of Pumps to the set."""

    def __init__(self, registry: Registry, pump_set: PumpSet, revision: int, wait: float) -> None:
        """``revision``: of the listing that ``pump_set`` already has; ``wait``: seconds that one request waits for changes."""
        self._registry = registry
        self._pump_set = pump_set
        self._wait = wait
        self._revision: int | None = revision

    def step(self) -> bool:
        """Wait for changes once and apply them; False when the registry did not answer. The next step then lists all Pumps again."""
        try:
            news = self._news()
        except ReplicationError as error:
            if self._revision is not None:
                _log.warning("registry %s: %s: the client continues with the Pumps known so far", self._registry.url, error)
            self._revision = None
            return False
        self._revision = news.revision
        self._pump_set.register(news.nodes)
        return True

    def _news(self) -> Listing:
        if self._revision is None:
            return self._registry.listing(PUMPS)
        return self._registry.changes(PUMPS, self._revision, self._wait)


@dataclass(slots=True)
class _Attempts:
    """The attempts to write one Prewrite."""

    start_ts: int
    payload: bytes
    begun: float
    retries: int = 0
    first: str = ""
    """The Pump that was tried first."""
    failure: WriteFailed | None = None
    """The last failure."""


class PumpClient:
    """Writes to the Pumps of one cluster."""

    def __init__(
        self, pumps: Iterable[NodeStatus], cluster_id: int, settings: PumpClientSettings, dependencies: Dependencies | None = None
    ) -> None:
        """Without the background loops: callers use ``from_registry`` or ``fixed``. ``dependencies``: for tests."""
        self.cluster_id = cluster_id
        """The cluster's id, which Pumps check."""
        self._settings = settings
        self._counters = Counters()
        self._dependencies = dependencies or Dependencies(
            connect=lambda address: PumpWriter(address, cluster_id, settings.write_timeout, tls=settings.tls),
            clock=Clock(),
            chance=random.Random(),
        )
        self._clock = self._dependencies.clock
        self._pump_set = PumpSet(settings, self._dependencies, self._counters)
        self._pump_set.register(pumps)
        self._threads: list[threading.Thread] = []

    @classmethod
    def from_registry(cls, registry: Registry, settings: PumpClientSettings = DEFAULTS) -> "PumpClient":
        """A client of the Pumps in the registry, now and later. The caller closes ``registry``, after the client.

        ``PumpUnavailable`` when no Pump is registered, in whatever state, or the registry does not answer.
        """
        cluster_id = registry.cluster_id()
        if settings.socket:
            return cls([_local(settings.socket)], cluster_id, settings)._probing()
        listing = registry.listing(PUMPS)
        if not listing.nodes:
            raise PumpUnavailable(f"no pump found in the registry {registry.url}: start a Pump that registers there")
        return cls(listing.nodes, cluster_id, settings)._probing()._following(registry, listing)

    @classmethod
    def fixed(cls, addresses: Sequence[str], cluster_id: int, settings: PumpClientSettings = DEFAULTS) -> "PumpClient":
        """A client of these Pumps only, each known by ``host:port`` or ``unix:///path``. With ``settings.socket``: of that Pump alone."""
        pumps = [_local(settings.socket)] if settings.socket else [NodeStatus(address, address) for address in addresses]
        if not pumps:
            raise PumpUnavailable("no pump found: an upstream with binlog on needs the address of at least one Pump")
        return cls(pumps, cluster_id, settings)._probing()

    def stats(self) -> ClientStats:
        """The counts so far."""
        return self._counters.snapshot()

    def available(self) -> tuple[str, ...]:
        """The ids of the Pumps that Prewrites go to now."""
        return tuple(handle.connection.node_id for handle in self._pump_set.available())

    def write(self, payload: bytes) -> None:
        """TiDB's WriteBinlog: write a serialized ``Binlog`` and wait. A Prewrite may fail, see ``prewrite``; an outcome never does.

        ``ProtocolViolation`` when ``payload`` is not a binlog.
        """
        try:
            binlog = binlog_pb2.Binlog.FromString(payload)
        except DecodeError as error:
            raise ProtocolViolation(f"the payload is no Binlog message: {payload[:40]!r}…") from error
        if binlog.tp == binlog_pb2.Prewrite:
            self.prewrite(binlog.start_ts, payload)
            return
        handle = self._handed_over(binlog.start_ts)
        if handle is not None:
            handle.outcome_queue.put(binlog.start_ts, payload).over.wait()

    def prewrite(self, start_ts: int, payload: bytes) -> None:
        """Write a Prewrite to the next Pump, or to any other that accepts it.

        ``PumpUnavailable`` when none does, after trying for ``write_timeout`` seconds; at once as a ``WriteFailed`` when it is too large.
        """
        attempts = _Attempts(start_ts, payload, self._clock.now())
        handle: PumpHandle | None = None
        try:
            handle = self._try_in_turn(attempts) or self._try_everyone(attempts)
        finally:
            if attempts.failure is not None:
                self._pump_set.demote_unusable()
            self._pump_set.remember(start_ts, handle)
        self._counters.add(prewrites=1, failovers=int(handle.connection.node_id != attempts.first and attempts.first != ""))

    def prewrite_together(self, prewrites: Mapping[int, bytes]) -> Mapping[int, PumpUnavailable]:
        """Write Prewrites by their start_ts, those for one Pump in one call, and those that fail there by ``prewrite``. Returns its failures."""
        groups: dict[str, tuple[PumpHandle, list[int]]] = {}
        alone = []
        for start_ts in prewrites:
            if len(prewrites) == 1 or (handle := self._pump_set.choose(start_ts, 0)) is None:
                alone.append(start_ts)
            else:
                groups.setdefault(handle.connection.node_id, (handle, []))[1].append(start_ts)
        for handle, group in groups.values():
            for start_ts, failure in zip(group, write_group(handle.connection, [prewrites[t] for t in group]), strict=True):
                if failure is None:
                    self._pump_set.remember(start_ts, handle)
                else:
                    alone.append(start_ts)
        self._counters.add(prewrites=len(prewrites) - len(alone))
        refused = {}
        for start_ts in alone:
            try:
                self.prewrite(start_ts, prewrites[start_ts])
            except PumpUnavailable as error:
                refused[start_ts] = error
        return refused

    def outcome(self, start_ts: int, payload: bytes) -> None:
        """Write a Commit or Rollback to the Pump that has the Prewrite, in the background. Never waits, never fails."""
        handle = self._handed_over(start_ts)
        if handle is not None:
            handle.outcome_queue.put(start_ts, payload)

    def forget(self, start_ts: int) -> None:
        """No outcome of this transaction will follow."""
        self._pump_set.remember(start_ts, None)

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every outcome is written or given up; ``PumpUnavailable`` when that takes over ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for handle in self._pump_set.handles():
            if not handle.outcome_queue.flush(max(0.0, deadline - time.monotonic())):
                raise PumpUnavailable(
                    f"Pump {handle.connection.node_id} at {handle.connection.address} did not accept {handle.outcome_queue.open} outcomes within {timeout:g} s: "
                    "check that the Pump runs"
                )

    def probe_unavailable(self) -> None:
        """Probe each unavailable Pump that is registered online; one that answers is available again."""
        for handle in self._pump_set.to_probe():
            self._counters.add(probes=1)
            failure = failure_of(handle.connection, _PROBE)
            if failure is None or failure.answered:
                _log.info("Pump %s answers again and is available", handle.connection.node_id)
                self._pump_set.answered(handle.connection.node_id)

    def close(self) -> None:
        """Stop writing. Queued outcomes are tried once more, for at most ``_GRACE`` seconds; what no Pump accepts is lost."""
        self._clock.close()
        handles = self._pump_set.handles()
        for handle in handles:
            handle.outcome_queue.end()
        deadline = time.monotonic() + _GRACE
        for handle in handles:
            handle.outcome_queue.join(max(0.0, deadline - time.monotonic()))
        for handle in handles:
            handle.connection.close()
            handle.outcome_queue.join()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "PumpClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _try_in_turn(self, attempts: _Attempts) -> PumpHandle | None:
        """The Pump that accepted it; None when it is time to try every Pump."""
        while (handle := self._pump_set.choose(attempts.start_ts, attempts.retries)) is not None:
            attempts.first = attempts.first or handle.connection.node_id
            try:
                handle.connection.write([attempts.payload])
                return handle
            except WriteFailed as failure:
                attempts.failure = failure
                if not self._again(attempts, handle, failure):
                    return None
        return None

    def _again(self, attempts: _Attempts, handle: PumpHandle, failure: WriteFailed) -> bool:
        """Pause; whether to choose once more. Raises when that is useless."""
        elapsed = self._clock.now() - attempts.begun
        _log.info("the Prewrite of start_ts %d failed: %s", attempts.start_ts, failure)
        if failure.too_large:
            raise _too_large(attempts, handle, failure) from failure
        if elapsed > self._settings.write_timeout and attempts.retries > len(self._pump_set.available()):
            return False
        attempts.retries += 1
        self._counters.add(retries=1)
        if self._clock.wait(self._settings.prewrite_pause):
            raise PumpUnavailable(f"the Prewrite of start_ts {attempts.start_ts} was not written: the Pump client was closed") from failure
        return True

    def _try_everyone(self, attempts: _Attempts) -> PumpHandle:
        """The Pump that accepted it after all: each that is registered online is tried once, over a new connection."""
        for handle in self._pump_set.online():
            handle.connection.reset()
            try:
                handle.connection.write([attempts.payload])
            except WriteFailed as failure:
                attempts.failure = failure
                continue
            self._pump_set.answered(handle.connection.node_id)
            return handle
        raise self._untaken(attempts) from attempts.failure

    def _untaken(self, attempts: _Attempts) -> PumpUnavailable:
        waited = self._clock.now() - attempts.begun
        last = attempts.failure or "no available pump to write binlog, none is registered online"
        return PumpUnavailable(
            f"write binlog failed: no Pump accepted the Prewrite of start_ts {attempts.start_ts} within {waited:.1f} s, "
            f"the last error: {last}: start a Pump or set a Pump online, then run the transaction again"
        )

    def _handed_over(self, start_ts: int) -> PumpHandle | None:
        """The Pump that gets the outcome; the client forgets the transaction with that."""
        handle = self._pump_set.pump_of(start_ts)
        if handle is None:
            self._counters.add(outcomes_given_up=1)
            _log.warning("the outcome of start_ts %d is not written, because no Pump accepted the Prewrite from this client", start_ts)
        self._pump_set.remember(start_ts, None)
        return handle

    def _probing(self) -> "PumpClient":
        self._begin("Pump probes", self._probe)
        return self

    def _following(self, registry: Registry, listing: Listing) -> "PumpClient":
        follower = Follower(registry, self._pump_set, listing.revision, self._settings.watch_wait)
        self._begin("Pump watch", partial(self._follow, follower))
        return self

    def _probe(self) -> None:
        """Probe until the clock is closed."""
        while not self._clock.wait(self._settings.probe_interval):
            self.probe_unavailable()

    def _follow(self, follower: Follower) -> None:
        """Follow the registry until the clock is closed."""
        while not self._clock.wait(0 if follower.step() else _REGISTRY_PAUSE):
            pass

    def _begin(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _local(socket: str) -> NodeStatus:
    return NodeStatus("local", socket)


def _too_large(attempts: _Attempts, handle: PumpHandle, failure: WriteFailed) -> WriteFailed:
    return WriteFailed(
        f"the Prewrite of start_ts {attempts.start_ts} is too large for Pump {handle.connection.node_id}, {len(attempts.payload)} bytes: "
        f"{failure.text}; make the transaction smaller or let the Pump accept larger messages",
        failure.code,
        failure.text,
    )
