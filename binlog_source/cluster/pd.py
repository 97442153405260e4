"""The registry in PD: node states in its embedded etcd, timestamps and cluster id from its own service (pump.md 1, pd.md).

Promises: those of ``binlog_source.cluster.registry.Registry``. Keys, values and write protocol are a real Pump's. A value that is not a
node status is left out of ``nodes`` and logged once, so that one broken key does not affect other nodes. A listing names it in
``unreadable``, because the node exists.
"""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.endpoints import Endpoints
from pyspark_tidb_binlog.binlog_source.cluster.etcd import Etcd, HistoryCompacted, Range
from pyspark_tidb_binlog.binlog_source.cluster.pd_clock import PdClock
from pyspark_tidb_binlog.binlog_source.cluster.registry import KINDS, Listing, NodeState, NodeStatus
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation
from pyspark_tidb_binlog.schemas.proto import pd_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_ROOTS = {kind: f"/tidb-binlog/v1/{kind}/".encode() for kind in KINDS}
_TIDB_SERVERS = b"/tidb/server/info/"

_log = logging.getLogger(__name__)


class PdRegistry:
    """The registry of the PD at ``urls``, comma separated ``http://host:port`` or ``https://host:port``; any of them may answer."""

    def __init__(self, urls: str, tls: TlsSettings | None = None) -> None:
        self._endpoints = Endpoints("PD", urls, tls)
        self._etcd = Etcd(self._endpoints)
        self._clock = PdClock(self._endpoints)
        self._told: dict[bytes, int] = {}

    @property
    def url(self) -> str:
        """The URLs, comma separated."""
        return self._endpoints.url

    def cluster_id(self) -> int:
        """The cluster's id."""
        return self._clock.cluster_id()

    def tso(self, count: int = 1) -> int:
        """The first of ``count`` consecutive new timestamps."""
        return self._clock.next(count)

    def gc_safe_point(self) -> int:
        """MVCC data up to this ts may be collected, according to PD's leader."""
        request = pd_pb2.GetGCSafePointRequest(header=pd_pb2.RequestHeader(cluster_id=self.cluster_id()))
        answer = self._endpoints.ask("/pdpb.PD/GetGCSafePoint", request, pd_pb2.GetGCSafePointResponse)
        if answer.header.error.type:
            raise self._endpoints.refused("GetGCSafePoint", answer.header.error.message)
        return int(answer.safe_point)

    def hold_gc(self, service_id: str, safe_point: int, seconds: int) -> int:
        """Keep MVCC GC from passing ``safe_point`` for ``seconds``, 0 = no longer; returns the lowest safe point of all services.

        If that is above ``safe_point``, PD has not taken it: GC may have passed it already.
        """
        request = pd_pb2.UpdateServiceGCSafePointRequest(
            header=pd_pb2.RequestHeader(cluster_id=self.cluster_id()), service_id=service_id.encode(), TTL=seconds, safe_point=safe_point
        )
        answer = self._endpoints.ask("/pdpb.PD/UpdateServiceGCSafePoint", request, pd_pb2.UpdateServiceGCSafePointResponse)
        if answer.header.error.type:
            raise self._endpoints.refused("UpdateServiceGCSafePoint", answer.header.error.message)
        return int(answer.min_safe_point)

    def listing(self, kind: str) -> Listing:
        """Every node of ``kind`` that ever registered, by node id."""
        return self._listing(kind, self._etcd.below(_ROOTS[kind]))

    def changes(self, kind: str, after: int, timeout: float) -> Listing:
        """The nodes of ``kind`` written after revision ``after``; see ``Registry``.

        The current state is read, not its history, so compaction loses nothing; a watch only triggers the read. An ``after`` above this
        etcd's revision is from another etcd: all nodes are returned.
        """
        until, life = time.monotonic() + timeout, self._endpoints.life
        while True:
            found = self._etcd.below(_ROOTS[kind], after)
            if found.revision < after:
                return self.listing(kind)
            fresh = self._listing(kind, found)
            left = until - time.monotonic()
            if fresh.nodes or left <= 0:
                return fresh
            self._etcd.wait_for_put(_ROOTS[kind], fresh.revision + 1, left)
            if self._endpoints.life != life:
                raise self._endpoints.unavailable("the registry was closed during the wait")
            after = fresh.revision

    def put_status(self, kind: str, status: NodeStatus) -> None:
        """Register a node; the last writer wins."""
        self._etcd.put(_ROOTS[kind] + status.node_id.encode(), status.to_json().encode())

    def own_state(self, kind: str, node_id: str) -> NodeState | None:
        """The state of the oldest value with the newest one's ``updateTS``, by etcd's history of the key."""
        own: NodeStatus | None = None
        try:
            for pair in self._etcd.versions(_ROOTS[kind] + node_id.encode()):
                status = NodeStatus.from_json(pair.value)
                if own is not None and status.update_ts != own.update_ts:
                    break
                own = status
        except (HistoryCompacted, ProtocolViolation):
            return None
        return own.state if own is not None else None

    def tidb_servers(self) -> Mapping[str, str]:
        """``ip:status_port`` of every running TiDB server, by its id; none for a TiDB on an embedded store (pd.md)."""
        found = self._etcd.below(_TIDB_SERVERS)
        ports = {pair.key: self._status_port(pair.key, pair.value, pair.mod_revision) for pair in found.pairs}
        return {key.removeprefix(_TIDB_SERVERS).decode(errors="replace"): port for key, port in ports.items() if port}

    def tidb_status_ports(self) -> tuple[str, ...]:
        """The status ports of ``tidb_servers``, ascending."""
        return tuple(sorted(set(self.tidb_servers().values())))

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self._clock.close()
        self._endpoints.close()

    def _listing(self, kind: str, found: Range) -> Listing:
        nodes, unreadable = [], []
        for pair in found.pairs:
            try:
                nodes.append(NodeStatus.from_json(pair.value))
            except ProtocolViolation as error:
                self._tell(pair.key, pair.mod_revision, error)
                unreadable.append(pair.key.removeprefix(_ROOTS[kind]).decode(errors="replace"))
        # a node's key is directly below the root
        there = (node_id for node_id in unreadable if "/" not in node_id)
        return Listing(tuple(sorted(nodes, key=lambda status: status.node_id)), found.revision, tuple(sorted(there)))

    def _status_port(self, key: bytes, value: bytes, revision: int) -> str | None:
        try:
            info: Any = json.loads(value)
            address, port = str(info["ip"]), int(info["status_port"])
        except (ValueError, KeyError, TypeError) as error:
            self._tell(key, revision, error)
            return None
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def _tell(self, key: bytes, revision: int, error: Exception) -> None:
        """Log what is wrong with a key, once per value."""
        if self._told.get(key) != revision:
            self._told[key] = revision
            _log.warning("PD %s: key %s is left out: %s", self.url, key.decode(errors="replace"), error)
