"""The part of etcd 3 that a registry needs, over gRPC: read a range, write a key as TiDB's tools do, wait for a write.

Promises: reads are linearizable. ``put`` follows the write protocol of pump.md 1. A request without an answer raises ``PumpUnavailable``.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from pyspark_tidb_binlog.binlog_source.cluster.endpoints import Endpoints
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import etcd_pb2

_KV = "/etcdserverpb.KV/"
_WATCH = "/etcdserverpb.Watch/Watch"
_WRITE_ATTEMPTS = 10
_BROKEN_PAUSE = 0.2
"""Seconds between two reads while watches fail."""
_NO_SUCH_REVISION = ("required revision has been compacted", "required revision is a future revision")


class HistoryCompacted(Exception):
    """What a key was before is not known any more."""


@dataclass(frozen=True, slots=True)
class Range:
    """Some keys, ascending, and the store's revision at which they were read."""

    pairs: Sequence[etcd_pb2.KeyValue]
    revision: int


class Etcd:
    """An etcd behind ``endpoints``."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def below(self, prefix: bytes, after: int = 0) -> Range:
        """The keys that begin with ``prefix`` and were last written after revision ``after``."""
        request = etcd_pb2.RangeRequest(key=prefix, range_end=_end_of(prefix), min_mod_revision=after + 1)
        answer = self._endpoints.ask(f"{_KV}Range", request, etcd_pb2.RangeResponse)
        return Range(answer.kvs, answer.header.revision)

    def versions(self, key: bytes) -> Iterator[etcd_pb2.KeyValue]:
        """The values that a key has had since it was created, newest first, a request each; none if it is not there.

        Raises:
            HistoryCompacted: etcd has dropped the earlier values (PD's etcd keeps an hour), or is another etcd, without this revision.
        """
        revision = 0
        while True:
            request = etcd_pb2.RangeRequest(key=key, revision=revision)
            try:
                answer = self._endpoints.ask(f"{_KV}Range", request, etcd_pb2.RangeResponse)
            except PumpUnavailable as error:
                if revision and any(said in str(error) for said in _NO_SUCH_REVISION):
                    raise HistoryCompacted from error
                raise
            if not answer.kvs:
                return
            (pair,) = answer.kvs
            yield pair
            if pair.create_revision == pair.mod_revision:
                return
            revision = pair.mod_revision - 1

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key: create it if a read finds it absent, else update it; the last writer wins.

        Raises:
            PumpUnavailable: no server answers, or the key was created or deleted in between at each attempt.
        """
        for _ in range(_WRITE_ATTEMPTS):
            found = self._endpoints.ask(f"{_KV}Range", etcd_pb2.RangeRequest(key=key), etcd_pb2.RangeResponse)
            request = _write(key, value, present=bool(found.kvs))
            if self._endpoints.ask(f"{_KV}Txn", request, etcd_pb2.TxnResponse).succeeded:
                return
        raise PumpUnavailable(
            f"etcd {self._endpoints.url} refused {key!r} {_WRITE_ATTEMPTS} times: stop the client that keeps creating and deleting it"
        )

    def wait_for_put(self, prefix: bytes, revision: int, seconds: float) -> None:
        """Return when a key below ``prefix`` was written at ``revision`` or later, and in any case after ``seconds``.

        It may return early, if a watch breaks or etcd has compacted that revision: read again.
        """
        until = time.monotonic() + seconds
        if not self._saw_put(prefix, revision, seconds):
            time.sleep(max(0.0, min(_BROKEN_PAUSE, until - time.monotonic())))

    def _saw_put(self, prefix: bytes, revision: int, seconds: float) -> bool:
        create = etcd_pb2.WatchCreateRequest(
            key=prefix, range_end=_end_of(prefix), start_revision=revision, filters=[etcd_pb2.WatchCreateRequest.NODELETE]
        )
        try:
            watch = self._endpoints.last_good().stream_stream(
                _WATCH,
                request_serializer=etcd_pb2.WatchRequest.SerializeToString,
                response_deserializer=etcd_pb2.WatchResponse.FromString,
            )
            # etcd keeps answering after the request stream has ended: its JSON gateway depends on that
            call: Any = watch(iter((etcd_pb2.WatchRequest(create_request=create),)), timeout=seconds)
        except ValueError:  # another thread is closing the channel
            return False
        try:
            for answer in call:
                if answer.canceled or answer.events:
                    return not answer.canceled
        except grpc.RpcError:
            pass
        finally:
            call.cancel()
        return False


def _write(key: bytes, value: bytes, *, present: bool) -> etcd_pb2.TxnRequest:
    result = etcd_pb2.Compare.GREATER if present else etcd_pb2.Compare.EQUAL
    compare = etcd_pb2.Compare(result=result, target=etcd_pb2.Compare.MOD, key=key, mod_revision=0)
    put = etcd_pb2.PutRequest(key=key, value=value)
    return etcd_pb2.TxnRequest(compare=[compare], success=[etcd_pb2.RequestOp(request_put=put)])


def _end_of(prefix: bytes) -> bytes:
    """The first key above every key that begins with ``prefix``, whose last byte is not 0xFF."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
