"""The Drainer as the cluster sees it: registered, and answering ``/binlog.Cistern/Notify`` (``Cistern`` is the Drainer's name on the wire).

A Pump that was offline notifies every online Drainer before it serves (pump.md 2.1). The answer says that this Drainer will not pass a
commit_ts which that Pump will hold: the Pump is in the registry already, and the source reads the registry after the promises of a
batch (``datasource._next_offset``). So all there is to do is to see that the registry answers, and knows the Pump's state.

Promises: registered ``online`` with the checkpoint as maxCommitTS from ``start`` on, renewed every ``HEARTBEAT`` seconds, ``paused`` after
``stop``. A registry that is away is logged and tried again; replication does not depend on it here.
"""

import logging
import threading
from collections.abc import Callable

from binlog_source.cluster.advertise import advertised
from binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, NodeStatus, Registry
from binlog_source.rpc.calls import Methods, StreamCall
from binlog_source.rpc.front import Front
from binlog_source.rpc.grpc_message import UNKNOWN, Refusal
from schemas.errors import ConfigError, ReplicationError

HEARTBEAT = 2.0
"""Seconds between two registrations."""
LEAVE_SECONDS = 3.0
"""How long ``stop`` waits for the registry."""
_log = logging.getLogger(__name__)


class Cistern:
    """One Drainer's place in its cluster."""

    def __init__(self, registry: Registry, node_id: str, addr: str, advertise_addr: str, commit_ts: Callable[[], int]) -> None:
        """``addr``: host:port to listen on, port 0 for any; ``commit_ts``: everything up to there is in the target."""
        self._registry = registry
        self._node_id = node_id
        self._addr = addr
        self._advertise_addr = advertise_addr
        self._commit_ts = commit_ts
        self._front = Front(f"Drainer {node_id}")
        self.address = ""
        """host:port that is registered, once it is started."""
        self._stopped = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"Drainer {node_id} heartbeat", daemon=True)

    def start(self) -> "Cistern":
        """Serve and register.

        Raises:
            ConfigError: the port is taken, or others could not reach the address.
        """
        self._front.bind(self._addr)
        try:
            self.address = advertised(self._addr, self._advertise_addr, self._front.port, self._registry.url)
        except ConfigError:
            self._front.stop(0)
            raise
        self._front.serve(Methods(stream={b"/binlog.Cistern/Notify": self._notify}))
        self._register(NodeState.ONLINE)
        self._heart.start()
        return self

    def stop(self) -> None:
        """Register as paused and stop serving. A registry that hangs is waited for only so long."""
        self._stopped.set()
        leave = threading.Thread(target=self._leave, name=f"Drainer {self._node_id} leaves", daemon=True)
        leave.start()
        leave.join(LEAVE_SECONDS)
        if leave.is_alive():
            _log.warning("Drainer %s could not be registered as paused within %g s", self._node_id, LEAVE_SECONDS)
        self._front.stop(1.0)
        self._registry.close()

    def _leave(self) -> None:
        self._heart.join()
        self._register(NodeState.PAUSED)

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT):
            self._register(NodeState.ONLINE)

    def _register(self, state: NodeState) -> None:
        try:
            status = NodeStatus(self._node_id, self.address, state, self._commit_ts(), self._registry.tso())
            self._registry.put_status(DRAINERS, status)
        except ReplicationError as error:
            _log.warning("Drainer %s is not registered as %s: %s", self._node_id, state.value, error)

    def _notify(self, call: StreamCall) -> None:
        try:
            known = self._registry.listing(PUMPS).nodes
        except ReplicationError as error:
            raise Refusal(UNKNOWN, f"Drainer {self._node_id} cannot read the Pumps: {error}") from error
        _log.info("notified: the Pumps are %s", ", ".join(f"{pump.node_id} {pump.state.value}" for pump in known))
        call.start(())
        call.send([b""])
