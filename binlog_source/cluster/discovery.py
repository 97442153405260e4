"""Pump discovery: the Pumps of a fixed list, of the registry (standalone or PD), or of a recorded case. IO shell.

In a fixed list a Pump's id is its ``host:port``. In a registry it is the Pump's node id, so that the address may change.

Promises: ``pumps()`` reads the registry each time.

* A Pump that is registered as offline and has nothing above ``resolved_ts`` is omitted. ``offline()`` names it, and whether it left by
  itself: then every Drainer has read its whole log. A Pump that somebody else set offline (binlogctl, ``ctl update-pump``) may have
  acknowledged more than its last heartbeat says.
* Paused and unreachable Pumps are included: they may have binlogs that were not read.
* A Pump that the registry does not list at all is a matter of ``source.departed``.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import now_by_pumps
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus, Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RECORDED, facts_of
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.backoff import Backoff, Retries
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.tls import TlsSettings, is_refused

A = TypeVar("A")
_BACKOFF = Backoff(0.1, 2.0)
_HEARTBEAT_SECONDS = 10.0
"""Some heartbeats of a Pump, which sends one every 2 s. A real Pump that closes first ends its heartbeats, and may stay registered as online
(pump.md 2). It gets no fakes, because it waits until every Drainer has read its whole log."""
_IN_FLIGHT_MS = 600_000
"""How long after a Pump's last heartbeat its transactions may have committed. The Pump takes binlogs until it dies, and the Commit of its
Prewrite comes up to minutes later."""
_log = logging.getLogger(__name__)


Waiting = Callable[[str], None]
"""Called after an attempt that failed and will be repeated, with the reason. It raises to end the wait."""


def log_waiting(why: str) -> None:
    """The ``Waiting`` that goes on."""
    _log.warning("waiting for the upstream: %s", why)


def patiently(ask: Callable[[], A], patience: float, waiting: Waiting = log_waiting) -> A:
    """The result of ``ask``, repeated for ``patience`` seconds while the registry does not answer.

    Raises:
        PumpUnavailable: it did not answer within that time, or a certificate is refused.
    """
    retries = Retries(_BACKOFF, patience)
    while True:
        try:
            return ask()
        except PumpUnavailable as error:
            if retries.over or is_refused(str(error)):
                raise
            waiting(str(error))
        retries.pause()


@dataclass(frozen=True, slots=True)
class OfflinePump:
    """A Pump that is registered as offline."""

    address: str
    upto_ts: int
    """Up to which ts this Pump may have had binlogs."""
    left: bool = True
    """Whether the Pump itself registered as offline; True also if the registry no longer knows."""
    successor: str = ""
    """The Pump in service that has its address now; empty: none."""


class PumpDiscovery(Protocol):
    """The Pumps of a cluster, its id and its clock."""

    tls: TlsSettings | None
    """How the Pumps are called; None: without TLS."""

    @property
    def registry(self) -> Registry | None:
        """Where the Pumps are registered; ``close`` closes its connections, too."""
        return None

    def pumps(self, resolved_ts: int = 0) -> Mapping[str, str]:
        """Pump id -> ``host:port`` of every Pump that may have binlogs above ``resolved_ts``."""

    def online(self) -> Mapping[str, str]:
        """Pump id -> ``host:port`` of every Pump that is in service by what ``pumps`` read last; none without a registry. Sends no request."""
        return {}

    def offline(self) -> Mapping[str, OfflinePump]:
        """Every Pump that is registered as offline by what ``pumps`` read last, by its id. Sends no request."""
        return {}

    def states(self) -> Mapping[str, str]:
        """Pump id -> registered state by what ``pumps`` read last; none without a registry. Sends no request."""
        return {}

    def cluster_id(self) -> int:
        """The id that Pumps check."""

    def now(self) -> int:
        """A timestamp of the cluster's clock, above every commit_ts that was delivered to anybody before.

        Raises:
            PumpUnavailable: it cannot be asked.
        """

    def close(self) -> None:
        """Close the connections; the next request opens them again."""


class ConfiguredDiscovery(PumpDiscovery):
    """The Pumps named in the settings. They also report the time."""

    def __init__(self, addresses: str, cluster_id: int, tls: TlsSettings | None = None) -> None:
        self.tls = tls
        named = [part.strip() for part in addresses.split(",") if part.strip()]
        wrong = [name for name in named if not name.rpartition(":")[0] or not name.rpartition(":")[2].isdigit()]
        if not named or wrong:
            raise ConfigError(
                f"source option pumps is {addresses!r}: give host:port,host:port, or the registry's URL: http://host:port, https://host:port or pd://host:port"
            )
        if len(set(named)) != len(named):
            raise ConfigError(f"source option pumps names a Pump twice: {addresses!r}. Name each Pump once")
        self._pumps = {name: name for name in named}
        self._cluster_id = cluster_id

    def pumps(self, resolved_ts: int = 0) -> Mapping[str, str]:
        """The addresses, each its own id."""
        return self._pumps

    def cluster_id(self) -> int:
        """The id in the settings."""
        return self._cluster_id

    def now(self) -> int:
        """The upstream's time as the Pumps report it: this machine's clock may be wrong.

        Raises:
            PumpUnavailable: none of them answers.
        """
        return now_by_pumps(self._pumps.values(), self.tls)

    def close(self) -> None:
        """There is nothing to close."""


class RegistryDiscovery:
    """The Pumps in the registry."""

    def __init__(self, url: str, cluster_id: int, clock: Callable[[], float] = time.monotonic, tls: TlsSettings | None = None) -> None:
        self.tls = tls
        self.registry = open_registry(url, tls)
        self._cluster_id = cluster_id
        self._clock = clock
        self._heartbeats: dict[str, tuple[NodeStatus, float]] = {}
        """The newest status of each Pump, and when its ``update_ts`` was seen to change."""
        self._offline: dict[str, tuple[NodeStatus, OfflinePump]] = {}

    def pumps(self, resolved_ts: int = 0) -> Mapping[str, str]:
        """Every registered Pump that may have binlogs above ``resolved_ts``."""
        listing = self.registry.listing(PUMPS)
        known = listing.nodes
        if listing.unreadable:
            raise PumpUnavailable(
                f"the registry {self.registry.url} has Pump {', '.join(listing.unreadable)} with a state that cannot be read: restart this "
                "Pump, which then writes its state again. If the Pump no longer exists, remove its key from the registry"
            )
        if not known:
            raise PumpUnavailable(f"the registry {self.registry.url} has no Pump: start a Pump with this registry and try again")
        self._note(known)
        serving = {status.host: status.node_id for status in known if status.state is NodeState.ONLINE}
        left = [(status, self._gone(status)) for status in known if status.state is NodeState.OFFLINE]
        self._offline = {status.node_id: (status, replace(gone, successor=serving.get(status.host, ""))) for status, gone in left}
        passed = {pump for pump, (_, gone) in self._offline.items() if gone.upto_ts <= resolved_ts}
        return {status.node_id: status.host for status in known if status.node_id not in passed}

    def online(self) -> Mapping[str, str]:
        """Every Pump that was registered as online and had a heartbeat within ``_HEARTBEAT_SECONDS``."""
        since = self._clock() - _HEARTBEAT_SECONDS
        seen = list(self._heartbeats.values())
        return {status.node_id: status.host for status, at in seen if status.state is NodeState.ONLINE and at >= since}

    def offline(self) -> Mapping[str, OfflinePump]:
        """Every Pump that was registered as offline."""
        return {pump: gone for pump, (_, gone) in self._offline.items()}

    def states(self) -> Mapping[str, str]:
        """The registered state of each Pump."""
        return {pump: status.state.value for pump, (status, _) in self._heartbeats.items()}

    def _gone(self, status: NodeStatus) -> OfflinePump:
        """What is known of a Pump that is registered as ``status``, offline; the registry is asked once for each status."""
        known = self._offline.get(status.node_id)
        if known is not None and known[0] == status:
            return known[1]
        own_state = self.registry.own_state(PUMPS, status.node_id)
        if own_state is None:
            _log.warning(
                "Pump %s is registered as offline, and the registry no longer knows who set it offline. The stream assumes that the Pump left by itself, "
                "when every Drainer had read its log. If an operator set it offline, the Pump may hold acknowledged binlogs above commit_ts %d that no Drainer has read",
                status.node_id,
                status.max_commit_ts,
            )
        if own_state is None or own_state is NodeState.OFFLINE:
            return OfflinePump(status.host, status.max_commit_ts)
        return OfflinePump(status.host, max(status.max_commit_ts, status.update_ts + tso(_IN_FLIGHT_MS)), left=False)

    def _note(self, known: Iterable[NodeStatus]) -> None:
        now, fresh = self._clock(), dict[str, tuple[NodeStatus, float]]()
        for status in known:
            former, since = self._heartbeats.get(status.node_id, (status, now))
            fresh[status.node_id] = status, since if former.update_ts == status.update_ts else now
        self._heartbeats = fresh

    def cluster_id(self) -> int:
        """The id in the settings, or the registry's."""
        if not self._cluster_id:
            self._cluster_id = self.registry.cluster_id()
        return self._cluster_id

    def now(self) -> int:
        """A fresh timestamp of the registry's oracle."""
        return self.registry.tso()

    def close(self) -> None:
        """Close the connection to the registry."""
        self.registry.close()


class RecordedDiscovery(ConfiguredDiscovery):
    """The files of a recorded case in the place of its Pumps; its end is the present."""

    def __init__(self, folder: Path) -> None:
        facts = facts_of(folder)
        self.tls = None
        self._pumps = {pump: f"{RECORDED}{path}" for pump, path in facts.files.items()}
        self._cluster_id = facts.cluster_id
        self._end_ts = facts.end_ts

    def now(self) -> int:
        """The end of what was recorded."""
        return self._end_ts


def discovery_of(config: SourceConfig) -> PumpDiscovery:
    """The discovery that ``config.pumps`` names.

    Raises:
        ConfigError: it is neither a list of addresses nor a registry's URL, nor the folder of a case.
    """
    if config.pumps.startswith(RECORDED):
        return RecordedDiscovery(Path(config.pumps.removeprefix(RECORDED)))
    tls = TlsSettings.of(config.security)
    if names_registry(config):
        return RegistryDiscovery(config.pumps, config.cluster_id, tls=tls)
    return ConfiguredDiscovery(config.pumps, config.cluster_id, tls)


def names_registry(config: SourceConfig) -> bool:
    """Whether ``config.pumps`` is a registry's URL."""
    return "://" in config.pumps
