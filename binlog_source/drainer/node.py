"""The Drainer as a node: it registers itself and answers ``/binlog.Cistern/Notify`` (``Cistern`` is the Drainer's name on the wire).

A Pump that was offline notifies every online Drainer before it serves (pump.md 2.1). The answer promises that this Drainer will not pass a
commit_ts which that Pump will hold: the Pump is already in the registry, and the source reads the registry after the promises of a
batch (``BinlogStreamReader._next_offset``). So the handler only checks that the Pumps' states can be read from the registry.

Promises: registered as ``online`` with the checkpoint as maxCommitTS from ``start`` on, renewed every ``HEARTBEAT`` seconds, and as
``paused`` after ``stop``. A registry that does not answer is logged and retried; replication does not depend on it here.
"""

import logging
import threading
from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.cluster.advertise import advertised
from pyspark_tidb_binlog.binlog_source.cluster.periodic_task import PeriodicTask
from pyspark_tidb_binlog.binlog_source.cluster.registration import Registration
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, Registry
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods, StreamCall
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import UNKNOWN, Refusal
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import NOTIFY
from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError
from pyspark_tidb_binlog.schemas.tls import TlsSettings

HEARTBEAT = 2.0
"""Seconds between two registrations."""
LEAVE_SECONDS = 3.0
"""Seconds that ``stop`` waits for the registry."""
_log = logging.getLogger(__name__)


class DrainerNode:
    """One Drainer's registration and its Notify service."""

    def __init__(
        self,
        registry: Registry,
        node_id: str,
        addr: str,
        advertise_addr: str,
        commit_ts: Callable[[], int],
        tls: TlsSettings | None = None,
    ) -> None:
        """``addr``: host:port to listen on, port 0 for any, with ``tls`` if given.

        ``commit_ts`` returns the ts up to which everything is in the target.
        """
        self._tls = tls
        self._registry = registry
        self._node_id = node_id
        self._addr = addr
        self._advertise_addr = advertise_addr
        self._commit_ts = commit_ts
        self._server = RpcServer(f"Drainer {node_id}")
        self.address = ""
        """The registered host:port, once started."""
        self._registration: Registration | None = None
        self._heartbeat: PeriodicTask | None = None

    def start(self) -> "DrainerNode":
        """Serve and register.

        Raises:
            ConfigError: the port is taken, or other nodes could not reach the address.
        """
        self._server.bind(self._addr, tls=self._tls)
        try:
            self.address = advertised(self._addr, self._advertise_addr, self._server.port, self._registry.url)
        except ConfigError:
            self._server.stop(0)
            raise
        self._server.serve(Methods(stream={NOTIFY.encode(): self._notify}))
        self._registration = Registration(self._registry, DRAINERS, self._node_id, self.address, self._commit_ts)
        self._register(NodeState.ONLINE)
        self._heartbeat = PeriodicTask(f"Drainer {self._node_id} heartbeat", HEARTBEAT, lambda: self._register(NodeState.ONLINE))
        return self

    def stop(self) -> None:
        """Register as paused and stop serving. Waits at most ``LEAVE_SECONDS`` for the registry."""
        leave = threading.Thread(target=self._leave, name=f"Drainer {self._node_id} leaves", daemon=True)
        leave.start()
        leave.join(LEAVE_SECONDS)
        if leave.is_alive():
            _log.warning("Drainer %s could not be registered as paused within %g s", self._node_id, LEAVE_SECONDS)
        self._server.stop(1.0)
        self._registry.close()

    def _leave(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._register(NodeState.PAUSED)

    def _register(self, state: NodeState) -> None:
        if self._registration is None:
            return
        try:
            self._registration.put(state)
        except ReplicationError as error:
            _log.warning("Drainer %s could not be registered as %s: %s", self._node_id, state.value, error)

    def _notify(self, call: StreamCall) -> None:
        try:
            known = self._registry.listing(PUMPS).nodes
        except ReplicationError as error:
            raise Refusal(UNKNOWN, f"Drainer {self._node_id} cannot read the Pumps from the registry: {error}") from error
        _log.info("notified: the Pumps are %s", ", ".join(f"{pump.node_id} {pump.state.value}" for pump in known))
        call.start(())
        call.send([b""])
