"""The Drainer as a node of the cluster: its registration, its states, ``/binlog.Cistern/Notify`` and its HTTP pages (``pages.py``), on one
port. ``Cistern`` is the Drainer's name on the wire.

A Pump that was offline notifies every online Drainer before it serves (pump.md 2.1). The answer promises that this Drainer will not pass a
commit_ts that the Pump will hold. The Pump is already in the registry, and the source reads the registry after the promises of a batch
(``BinlogStreamReader._next_offset``). So the handler only checks that the Pumps' states can be read from the registry.

Promises:

* From ``start`` on the Drainer is registered as ``online``, with the checkpoint as maxCommitTS. Every ``HEARTBEAT`` seconds the entry is
  renewed with its state. After ``stop`` it is ``paused``, or ``offline`` if an operator asked for ``close``.
* A pause takes effect between two batches. A close does, too, and then ends the stream. An action that fails leaves the state, and the
  answer says why.
* A registry that does not answer is logged and retried: replication does not depend on it here. Without a registry the pages are served.
"""

import logging
import threading
from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.cluster.node_tasks import PeriodicTask
from pyspark_tidb_binlog.binlog_source.cluster.registration import DRAINER_TRANSITIONS, Action, Registration, advertised, last_state
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, Registry
from pyspark_tidb_binlog.binlog_source.drainer.pages import SYNCED_CHECK_SECONDS, DrainerPages, ServedStream
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods, StreamCall
from pyspark_tidb_binlog.binlog_source.rpc.frames import UNKNOWN, Refusal
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import NOTIFY
from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError
from pyspark_tidb_binlog.schemas.tls import TlsSettings

HEARTBEAT = 1.0
"""Seconds between two registrations."""
_LARGEST_REQUEST = 1 << 20
"""Bytes of a gRPC message: Notify's is empty, or nearly so."""
LEAVE_SECONDS = 3.0
"""Seconds that ``stop`` waits for the registry."""
_log = logging.getLogger(__name__)


class DrainerNode:
    """One Drainer's registration, states, Notify service and pages."""

    def __init__(
        self,
        registry: Registry | None,
        node_id: str,
        addr: str,
        advertise_addr: str,
        stream: ServedStream,
        *,
        synced_check_seconds: float = SYNCED_CHECK_SECONDS,
        told: Callable[[NodeState], None] = lambda state: None,
        tls: TlsSettings | None = None,
    ) -> None:
        """``addr``: host:port to listen on, port 0 for any, with ``tls`` if given. ``told`` is called with each new state."""
        self._tls = tls
        self._registry = registry
        self._node_id = node_id
        self._addr = addr
        self._advertise_addr = advertise_addr
        self._stream = stream
        self._told = told
        self._pages = DrainerPages(node_id, stream, self.act, synced_check_seconds)
        self._server = RpcServer(f"Drainer {node_id}")
        self.address = ""
        """The host:port at which others reach it, once started."""
        self.state = NodeState.ONLINE
        """Its state, which is registered with the next heartbeat at the latest."""
        self._changing = threading.Lock()
        self._registration: Registration | None = None
        self._heartbeat: PeriodicTask | None = None

    def start(self) -> "DrainerNode":
        """Serve and register.

        Raises:
            NotUsableYet: the port is taken, or this machine has not got the address.
            ConfigError: other nodes could not reach the address.
        """
        self._server.bind(self._addr, tls=self._tls)
        self.address = self._advertise_addr or f"{self._addr.rpartition(':')[0]}:{self._server.port}"
        if self._registry is not None:
            try:
                self.address = advertised(self._addr, self._advertise_addr, self._server.port, self._registry.url)
            except ConfigError:
                self._server.stop(0)
                raise
            self._registration = Registration(self._registry, DRAINERS, self._node_id, self.address, self._stream.commit_ts)
        self._server.serve(Methods(stream={NOTIFY.encode(): self._notify}, http=self._pages.answer, max_request=_LARGEST_REQUEST))
        self._register(NodeState.ONLINE)
        self._heartbeat = PeriodicTask(f"Drainer {self._node_id} heartbeat", HEARTBEAT, self._beat)
        return self

    def act(self, action: Action) -> str:
        """Do an operator's action. Returns "" if it is accepted, else the state in which it is refused.

        Raises:
            ReplicationError: the action failed; the state is as before.
        """
        with self._changing:
            before = self.state
            after = DRAINER_TRANSITIONS.get((before, action))
            if after is None:
                return before.value
            try:
                if action is Action.RESUME:
                    self._stream.resume()
                else:
                    self._stream.pause()
            except OSError as error:
                _log.warning("Drainer %s stays %s, because %s failed: %s", self._node_id, before.value, action, error)
                raise ReplicationError(f"Drainer {self._node_id} stays {before.value}, because {action} failed: {error}") from error
            self._become(after)
        _log.info("Drainer %s: an operator asked to %s, %s -> %s", self._node_id, action, before.value, after.value)
        return ""

    def stop(self) -> None:
        """Register the last state and stop serving. Waits at most ``LEAVE_SECONDS`` for the registry."""
        leave = threading.Thread(target=self._leave, name=f"Drainer {self._node_id} leaves", daemon=True)
        leave.start()
        leave.join(LEAVE_SECONDS)
        if leave.is_alive():
            _log.warning("Drainer %s could not be registered as %s within %g s", self._node_id, self.state.value, LEAVE_SECONDS)
        self._server.stop(1.0)

    def _become(self, state: NodeState) -> None:
        self.state = state
        self._told(state)

    def _beat(self) -> None:
        with self._changing:
            try:
                self._stream.keep()
            except OSError as error:
                _log.warning(
                    "Drainer %s is registered as %s, but its stream may be in another state: %s", self._node_id, self.state.value, error
                )
            if self.state in (NodeState.PAUSING, NodeState.CLOSING) and self._stream.resting():
                if self.state is NodeState.PAUSING:
                    self._become(NodeState.PAUSED)
                else:
                    self._stream.end()
            state = self.state
        self._register(state)

    def _leave(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        with self._changing:
            self._become(last_state(self.state))
        self._register(self.state)

    def _register(self, state: NodeState) -> None:
        if self._registration is None:
            return
        try:
            self._registration.put(state)
        except ReplicationError as error:
            _log.warning("Drainer %s could not be registered as %s: %s", self._node_id, state.value, error)

    def _notify(self, call: StreamCall) -> None:
        if self._registry is None:
            raise Refusal(UNKNOWN, f"Drainer {self._node_id} reads a fixed list of Pumps: add the Pump to spark.pumps of this Drainer")
        try:
            known = self._registry.listing(PUMPS).nodes
        except ReplicationError as error:
            raise Refusal(UNKNOWN, f"Drainer {self._node_id} cannot read the Pumps from the registry: {error}") from error
        _log.info("notified: the Pumps are %s", ", ".join(f"{pump.node_id} {pump.state.value}" for pump in known))
        call.start(())
        call.send([b""])
