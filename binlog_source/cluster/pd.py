"""The registry in PD: node states in its embedded etcd, timestamps and cluster id from its own service (pump.md 1, pd.md).

Promises: those of ``binlog_source.cluster.registry.Registry``. Keys, values and write protocol are a real Pump's. A value that is not a
node status is left out of ``nodes`` and logged once, so that one broken key does not affect other nodes. A listing names it in
``unreadable``, because the node exists.

Timestamps come over one stream to PD's leader that stays open (pd.md: ``Tso``). Every timestamp is above all that PD issued before. If the
stream breaks, or PD has another leader, the members are asked for the leader and a new stream is opened. After ``REQUEST_SECONDS`` of this
the call fails. Thread-safe; calls are serialized.
"""

import json
import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

import grpc

from pyspark_tidb_binlog.binlog_source.cluster.channels import reason
from pyspark_tidb_binlog.binlog_source.cluster.endpoints import REQUEST_SECONDS, Endpoints, servers_of
from pyspark_tidb_binlog.binlog_source.cluster.etcd import Etcd, HistoryCompacted, Range
from pyspark_tidb_binlog.binlog_source.cluster.registry import KINDS, Listing, NodeState, NodeStatus
from pyspark_tidb_binlog.schemas.backoff import Retries, steady
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import pd_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_ROOTS = {kind: f"/tidb-binlog/v1/{kind}/".encode() for kind in KINDS}
_TIDB_SERVERS = b"/tidb/server/info/"
_MEMBERS = "/pdpb.PD/GetMembers"
_TSO = "/pdpb.PD/Tso"
_ANSWER_SECONDS = 3.0
"""Timeout of one answer on an open stream: short enough to try a second stream before giving up."""
_BACKOFF = steady(0.1)

_log = logging.getLogger(__name__)
_told: dict[tuple[str, bytes], int] = {}
"""The revision of each key that was logged as left out."""


class PdRegistry:
    """The registry of the PD at ``urls``, comma separated ``http://host:port`` or ``https://host:port``; any of them may answer."""

    def __init__(self, urls: str, tls: TlsSettings | None) -> None:
        self._endpoints = Endpoints("PD", urls, tls)
        self.url = self._endpoints.url
        self._etcd = Etcd(self._endpoints)
        self._clock = PdClock(self._endpoints)

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
        if _told.get((self.url, key)) != revision:
            _told[self.url, key] = revision
            _log.warning("PD %s: key %s is left out: %s", self.url, key.decode(errors="replace"), error)


class _Broken(Exception):
    """The stream does not answer; the text says why."""


class PdClock:
    """The timestamps of the PD behind ``endpoints``, and the cluster's id."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._cluster_id: int | None = None

    def cluster_id(self) -> int:
        """The cluster's id, requested once.

        Raises:
            PumpUnavailable: no member answers.
        """
        if self._cluster_id is None:
            self._members()
        return self._cluster_id or 0

    def next(self, count: int) -> int:
        """The first of ``count`` consecutive timestamps.

        Raises:
            PumpUnavailable: no member answers, or they have no leader that does.
            ProtocolViolation: PD returned another number of timestamps than requested, or not consecutive ones.
        """
        with self._lock:
            retries = Retries(_BACKOFF, REQUEST_SECONDS)
            while True:
                try:
                    return _first(self._ask(count), count)
                except _Broken as error:
                    self._drop()
                    # a member that is partitioned from the others may still name the former leader
                    self._endpoints.ask_another_first()
                    if retries.over:
                        raise self._endpoints.unavailable(f"no timestamps: {error}") from error
                    retries.pause()

    def close(self) -> None:
        """End the stream; the next request opens another one."""
        stream = self._stream
        if stream is not None:
            stream.close()

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            # its connection may be broken, too; other calls that use it open a new one
            self._endpoints.discard(self._stream.channel)
            self._stream = None

    def _ask(self, count: int) -> pd_pb2.TsoResponse:
        if self._stream is None:
            self._stream = self._open()
        return self._stream.ask(count)

    def _open(self) -> "_Stream":
        members = self._members()
        if not members.leader.client_urls:
            raise _Broken("PD has no leader at the moment")
        (server, *_) = servers_of(members.leader.client_urls[0])
        try:
            return _Stream(self._endpoints.channel(server), members.header.cluster_id)
        except ValueError as error:  # another thread is closing the channel
            raise _Broken(f"{server}: {error}") from error

    def _members(self) -> pd_pb2.GetMembersResponse:
        members = self._endpoints.ask(_MEMBERS, pd_pb2.GetMembersRequest(header=pd_pb2.RequestHeader()), pd_pb2.GetMembersResponse)
        if members.header.error.type:
            raise self._endpoints.refused("GetMembers", members.header.error.message)
        if self._cluster_id is None:
            self._cluster_id = members.header.cluster_id
        elif self._cluster_id != members.header.cluster_id:
            raise ConfigError(
                f"PD {self._endpoints.url} belonged to cluster {self._cluster_id}, and now answers as cluster {members.header.cluster_id}: "
                "give the URLs of one cluster's PD and start again"
            )
        return members


class _Stream:
    """One Tso call. A thread reads it, because waiting for an answer needs a timeout and the call has none."""

    def __init__(self, channel: grpc.Channel, cluster_id: int) -> None:
        self.channel = channel
        self._header = pd_pb2.RequestHeader(cluster_id=cluster_id)
        self._requests: queue.SimpleQueue[pd_pb2.TsoRequest | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[pd_pb2.TsoResponse | str] = queue.SimpleQueue()
        method = channel.stream_stream(
            _TSO, request_serializer=pd_pb2.TsoRequest.SerializeToString, response_deserializer=pd_pb2.TsoResponse.FromString
        )
        self._call: Any = method(iter(self._requests.get, None))
        threading.Thread(target=self._read, name="pd timestamps", daemon=True).start()

    def ask(self, count: int) -> pd_pb2.TsoResponse:
        """One request and its answer; ``_Broken`` if there is none: the stream must not be used any more."""
        self._requests.put(pd_pb2.TsoRequest(header=self._header, count=count))
        try:
            answer = self._answers.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            raise _Broken(f"the leader did not answer for {_ANSWER_SECONDS:.0f} s") from None
        if isinstance(answer, str):
            raise _Broken(answer)
        if answer.header.error.type:
            raise _Broken(answer.header.error.message)
        return answer

    def close(self) -> None:
        """End the call and its threads."""
        self._requests.put(None)
        self._call.cancel()

    def _read(self) -> None:
        ended = "the leader ended the stream"
        try:
            for answer in self._call:
                self._answers.put(answer)
        except grpc.RpcError as error:
            ended = reason(error)
        self._answers.put(ended)


def _first(answer: pd_pb2.TsoResponse, count: int) -> int:
    stamp = answer.timestamp
    if answer.count != count:
        raise ProtocolViolation(f"PD returned {answer.count} timestamps instead of {count}")
    if stamp.suffix_bits and count > 1:
        raise ProtocolViolation(
            f"PD cannot issue {count} consecutive timestamps, because Local TSO is enabled ({stamp.suffix_bits} suffix bits): disable Local TSO"
        )
    return tso(stamp.physical, stamp.logical) - count + 1
