"""PD's timestamps, over one stream to PD's leader that stays open (pd.md: ``Tso``).

Promises: every timestamp is above all that PD issued before. If the stream breaks, or PD has another leader, the members are asked for the
leader and a new stream is opened. After ``REQUEST_SECONDS`` of this the call fails. Thread-safe; calls are serialized.
"""

import queue
import threading
from typing import Any

import grpc

from pyspark_tidb_binlog.binlog_source.cluster.channels import reason
from pyspark_tidb_binlog.binlog_source.cluster.endpoints import REQUEST_SECONDS, Endpoints, servers_of
from pyspark_tidb_binlog.schemas.backoff import Retries, steady
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import pd_pb2

_MEMBERS = "/pdpb.PD/GetMembers"
_TSO = "/pdpb.PD/Tso"
_ANSWER_SECONDS = 3.0
"""Timeout of one answer on an open stream: short enough to try a second stream before giving up."""
_BACKOFF = steady(0.1)


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
