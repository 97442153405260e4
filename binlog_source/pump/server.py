"""The Pump as a server in this process: its parts, and its life cycle from ``start`` to ``stop`` or ``close`` (pump.md 2).

    start   bind -> lock and open the store -> register online -> notify the Drainers if none of them reads from it yet -> serve
    stop    pausing -> registered paused  -> pulls end with OK, writes under way are answered -> the log is finished
    close   closing -> wait until every Drainer has read everything -> registered offline -> as for stop; a stop meanwhile ends it as paused

``service.py`` is the service, ``handlers.py`` has the gRPC methods, ``status.py`` the HTTP endpoints, ``periodic.py`` the periodic tasks.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.cluster.node_tasks import PeriodicTask, push_regularly
from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import require_pump
from pyspark_tidb_binlog.binlog_source.cluster.registration import PUMP_TRANSITIONS, Move, Registration, advertised
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, NodeStatus, Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import PD_SCHEME, open_registry, tidb_status_ports
from pyspark_tidb_binlog.binlog_source.cluster.status_port import StatusPorts, mvcc_safe_point, own_cluster, status_ports
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import ASK_AFTER
from pyspark_tidb_binlog.binlog_source.pump.data_dir import keep_cluster, node_id_in
from pyspark_tidb_binlog.binlog_source.pump.handlers import Handlers
from pyspark_tidb_binlog.binlog_source.pump.metrics import PumpMetrics, StoreFigures
from pyspark_tidb_binlog.binlog_source.pump.orphans import OrphanResolver
from pyspark_tidb_binlog.binlog_source.pump.periodic import Collector, FakeBinlogs, notify, own_clock
from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.status import PumpControls, StatusPages
from pyspark_tidb_binlog.binlog_source.pump.storage.env import LOOK_EVERY, RealFileSystem, Space
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.conf.units import days_or_duration, size_of
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_log = logging.getLogger(__name__)

_GRACE = 10.0
_GC_EVERY = 3600.0
_DRAINERS_EVERY = 600.0
_SAFE_POLL = 1.0
_FAKE_AGAIN = 10.0
"""Seconds without progress of a Drainer after which a closing Pump writes another fake binlog."""


class PumpServer:
    """A Pump in this process."""

    def __init__(self, config: PumpConfig) -> None:
        self.config = config
        self._tls = TlsSettings.of(config.security)
        self.node_id = config.node_id
        """Final once it is started."""
        self.ended = threading.Event()
        """Set when it has stopped, for whatever reason."""
        self._registry: Registry | None = None
        self._server: RpcServer | None = None
        self._store: Store | None = None
        self._service: PumpService | None = None
        self._tasks: list[PeriodicTask] = []
        self._orphans: PeriodicTask | None = None
        self._waiting: Callable[[], list[dict[str, object]]] = list
        self._stopping = threading.Event()
        self._stop_asked = threading.Event()
        self._stop_lock = threading.Lock()
        self._port = 0
        self._registration: Registration | None = None

    @property
    def address(self) -> str:
        """The host:port that it listens on."""
        return f"{self.config.addr.rpartition(':')[0]}:{self._port}"

    @property
    def service(self) -> PumpService:
        """The service, for use inside the process."""
        if self._service is None:
            raise ConfigError("the Pump is not started")
        return self._service

    def start(self) -> "PumpServer":
        """Open the store, become online and serve.

        Raises:
            ConfigError: a setting, the port or the data directory is not usable.
            PumpUnavailable: the registry, or a Drainer that must be notified, does not answer.
        """
        config = self.config
        self.ended.clear()
        self._stopping.clear()
        self._stop_asked.clear()
        url = f"{PD_SCHEME}{config.pd_urls}" if config.pd_urls else config.registry
        self._registry, self._registration = open_registry(url, self._tls) if url else None, None
        try:
            server = self._server = RpcServer("Pump").bind(config.addr, config.socket.removeprefix("unix://"), self._tls)
            self._port = server.port
            before = self._open(config)
            self._go_online(before)
            self._start_tasks(self.service)
            self._serve(self.service, server)
        except BaseException:
            self._abandon()
            raise
        return self

    def _open(self, config: PumpConfig) -> NodeState | None:
        """Open the store and the service over it; the state that was registered last."""
        registry = self._registry
        cluster_id = config.cluster_id or (registry.cluster_id() if registry is not None else 0)
        directory = Path(config.data_dir)
        metrics = PumpMetrics()
        settings = StoreSettings(sync=config.sync_log, backlog=config.kv_chan_cap)
        store = Store(directory, settings, observe=lambda group: metrics.written(group, time.perf_counter()))
        self._store = store
        if cluster_id:
            keep_cluster(directory, cluster_id)
        self.node_id = node_id_in(directory, config.node_id, self._port)
        space = Space(RealFileSystem(), directory, size_of(config.stop_write_at_available_space))
        self._service = service = PumpService(store, cluster_id, self.node_id, metrics, space)
        metrics.watch(lambda: _figures(store, space))
        self._tasks.append(PeriodicTask(f"{self.node_id} space", LOOK_EVERY, space.look))
        self._collector = Collector(service, days_or_duration(config.gc), self._drainers, self._gc_clock)
        if registry is None:
            return NodeState.ONLINE
        known = {status.node_id: status.state for status in registry.listing(PUMPS).nodes}
        return known.get(self.node_id)

    def _serve(self, service: PumpService, server: RpcServer) -> None:
        controls = PumpControls(self._move, self._collector.trigger, self._mvcc_text, self._timestamp, lambda: self._waiting())
        pages = StatusPages(service, self._registry, controls, shows_rows=self.config.log_row_data)
        server.serve(Handlers(service, server, self._stopping).methods(pages.answer, self.config.max_message_size))

    def _go_online(self, before: NodeState | None) -> None:
        registry = self._registry
        if registry is None:
            return
        config = self.config
        address = advertised(config.addr, config.advertise_addr, self._port, registry.url)
        store = self.service.store
        require_no_twin(registry.listing(PUMPS).nodes, self.node_id, address, self._tls)
        self._registration = Registration(
            registry, PUMPS, self.node_id, address, lambda: store.state.sorted_promise, config.score, dict(config.labels)
        )
        self._register(NodeState.ONLINE)
        if before is None or before is NodeState.OFFLINE:  # no Drainer reads from it yet
            try:
                notify(registry.listing(DRAINERS).nodes, self._tls)
            except PumpUnavailable:
                self._register(NodeState.OFFLINE)
                raise

    def _abandon(self) -> None:
        """Clean up after a failed start."""
        self._stop_tasks()
        self._stop_orphans()
        self._release(0)

    def _start_tasks(self, service: PumpService) -> None:
        config, registry, name = self.config, self._registry, self.node_id
        if registry is not None:
            self._tasks.append(PeriodicTask(f"{name} heartbeat", config.heartbeat_interval, lambda: self._register(service.state)))
            self._tasks.append(PeriodicTask(f"{name} drainers", _DRAINERS_EVERY, self._collector.check_drainers))
        if registry is not None or config.tidb_status:
            address = self._registration.address if self._registration is not None else self.address
            resolver = OrphanResolver(
                service,
                self._status_ports,
                safe_point=partial(mvcc_safe_point, registry),
                address=address,
                tls=self._tls,
                cluster=partial(own_cluster, registry, service.cluster_id),
            )
            self._waiting = resolver.waiting
            self._orphans = PeriodicTask(f"{name} orphans", ASK_AFTER, resolver)
        if config.fake_binlog_interval > 0:
            self._tasks.append(PeriodicTask(f"{name} fake binlogs", config.fake_binlog_interval, FakeBinlogs(service, self._timestamp)))
        self._tasks.append(PeriodicTask(f"{name} gc", _GC_EVERY, self._collector))
        if (pushing := push_regularly(config.metrics_addr, config.metrics_interval, name, service.metrics.text)) is not None:
            self._tasks.append(pushing)

    def _timestamp(self) -> int:
        """The timestamp of a fake binlog: the registry's, without one by the Pump's own clock."""
        return self._registry.tso() if self._registry is not None else own_clock(self.service)

    def _gc_clock(self) -> int:
        """The time that ages are counted from, in ms: the upstream's where it can be asked. With a clock set ahead all would be too old."""
        return physical_ms(self._registry.tso()) if self._registry is not None else time.time_ns() // 1_000_000

    def _drainers(self) -> Sequence[NodeStatus]:
        return self._registry.listing(DRAINERS).nodes if self._registry is not None else ()

    def _status_ports(self) -> Sequence[str]:
        """Where to ask about orphans: the configured ports, else those registered in PD, else the standalone registry."""
        if self.config.tidb_status:
            return status_ports(self.config.tidb_status)
        known = tidb_status_ports(self._registry) if self._registry is not None else ()
        return known or status_ports(self.config.registry)

    def _mvcc_text(self, key: bytes) -> str:
        if self._registry is None and not self.config.tidb_status:
            return "no status port is known: set tidb-status"
        try:
            return json.dumps(StatusPorts(self._status_ports(), self._tls).look_up(key))
        except ReplicationError as error:
            return str(error)

    def _register(self, state: NodeState) -> None:
        if self._registration is not None:
            self._registration.put(state)

    def _move(self, move: Move) -> None:
        """``PUT /state``: change the state now, stop in the background."""
        new = PUMP_TRANSITIONS.get((self.service.state, move))
        if new is not None:
            self.service.state = new
            threading.Thread(target=self._end, name=f"{self.node_id} {new}", daemon=True).start()

    def close(self) -> None:
        """Leave the cluster: wait until every Drainer has read everything, then register offline and stop."""
        self.service.state = PUMP_TRANSITIONS.get((self.service.state, Move.CLOSE), self.service.state)
        self._end()

    def stop(self) -> None:
        """Stop serving, registered as paused. A closing Pump, too, stops without waiting for the Drainers any longer."""
        self._stop_asked.set()
        self._end()

    def _end(self) -> None:
        """Stop serving. The Pump is registered as paused, or as offline if it is closing and nobody asks for a stop meanwhile."""
        with self._stop_lock:
            service = self._service
            if service is None:
                return
            if service.state is not NodeState.CLOSING:
                service.state = PUMP_TRANSITIONS.get((service.state, Move.PAUSE), service.state)
            self._stop_tasks()
            if service.state is NodeState.CLOSING and not self._is_safe(service):
                _log.warning(
                    "Pump %s stops before it has left the cluster, and is registered as paused: the next start registers this Pump as online",
                    self.node_id,
                )
                service.state = PUMP_TRANSITIONS.get((service.state, Move.PAUSE), service.state)
            self._stop_orphans()
            service.state = PUMP_TRANSITIONS.get((service.state, Move.DONE), service.state)
            try:
                self._register(service.state)
            except ReplicationError as error:
                _log.error("Pump %s stops, but its registration as %s failed: %s", self.node_id, service.state.value, error)
            self._stopping.set()
            service.store.wake()
            self._release(_GRACE)
        self.ended.set()

    def _release(self, grace: float) -> None:
        """Close what was opened; calls under way get ``grace`` seconds."""
        if self._server is not None:
            self._server.stop(grace)
            self._server = None
        if self._store is not None:
            self._store.close()
        self._service = self._store = None
        if self._registry is not None:
            self._registry.close()

    def _stop_orphans(self) -> None:
        if self._orphans is not None:
            self._orphans.stop()
            self._orphans = None

    def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.stop()
        self._tasks.clear()

    def _is_safe(self, service: PumpService) -> bool:
        """Wait until no Prewrite waits for its outcome and every Drainer that is not offline has read the whole log (pump.md 2.3).

        False: somebody asked for a stop meanwhile.

        A Drainer always lags a little, so it would never reach the end of a growing log. Therefore another fake binlog follows the first only when
        a Drainer makes no progress: a real Drainer may save its position only when it receives something.
        """
        goal, again_at, behind, told = 0, 0.0, dict[str, int](), False
        while not self._stop_asked.is_set():
            try:
                if not told:
                    # no heartbeat will, and who writes to an idle Pump must stop
                    self._register(service.state)
                    told = True
                state = service.store.state
                if time.monotonic() >= again_at or state.low != state.at or state.max_ts > goal:
                    goal = self._all_complete(service)
                    again_at = time.monotonic() + _FAKE_AGAIN
                states = ((d.node_id, d.max_commit_ts) for d in self._drainers() if d.state is not NodeState.OFFLINE)
                held = {node_id: ts for node_id, ts in states if ts < goal}
                if not held:
                    return not self._stop_asked.is_set()
                if held != behind:
                    behind, again_at = held, time.monotonic() + _FAKE_AGAIN
                _log.warning("Pump %s closes once Drainer %s has read up to %d", self.node_id, ", ".join(held), goal)
            except (ReplicationError, OSError) as error:
                _log.warning("Pump %s still waits to close, because a check failed and is retried: %s", self.node_id, error)
            self._stop_asked.wait(_SAFE_POLL)
        return False

    def _all_complete(self, service: PumpService) -> int:
        """Write a fake binlog and wait until no Prewrite in the log lacks its outcome; the largest commit_ts in the log.

        More fakes follow while a Prewrite waits: a Drainer asks about it once it is old enough by the timestamps that every Pump has shown.
        """
        ts, again_at = self._timestamp(), time.monotonic() + _SAFE_POLL
        service.store.write([fake(ts)])
        state = service.store.state
        while (state.max_ts < ts or state.low != state.at) and not self._stop_asked.is_set():
            state = service.store.wait_past(state, _SAFE_POLL)
            if time.monotonic() >= again_at:
                service.store.write([fake(self._timestamp())])
                again_at = time.monotonic() + _SAFE_POLL
        return state.max_ts


def _figures(store: Store, space: Space) -> StoreFigures:
    return StoreFigures(
        store.gc_ts,
        store.gc_done_ts,
        store.state.sorted_promise,
        store.deleted_keys,
        space.capacity,
        space.available,
        store.index_errors,
        store.damaged_bytes,
        store.chaser.counts,
        store.chaser.last_catch_up,
    )


def require_no_twin(known: Iterable[NodeStatus], node_id: str, address: str, tls: TlsSettings | None) -> None:
    """Refuse to serve at ``address`` as ``node_id`` if a Pump with that id is registered at another address, and answers there: on a copy of its machine.

    Two Pumps with one id overwrite each other's entry in the registry, and readers jump between two logs. After a crash nobody answers at the
    registered address; at the former address of a Pump that has moved, a Pump with another id may answer.

    Raises:
        NotUsableYet: there is such a Pump; it may be about to end.
    """
    for status in known:
        if status.node_id == node_id and status.host != address and _answers_as(node_id, status.host, tls):
            raise NotUsableYet(
                f"Pump {node_id} already runs at {status.host}, and this Pump at {address} has the same node id. The machine or its data-dir may be a copy. "
                f"Give a new Pump an empty data-dir and its own node-id. If this Pump replaces the other Pump, stop the Pump at {status.host} first"
            )


def _answers_as(node_id: str, address: str, tls: TlsSettings | None) -> bool:
    try:
        require_pump(node_id, address, tls)
    except PumpUnavailable:
        return False
    return True
