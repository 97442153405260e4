"""The gRPC client of a Pump's WriteBinlog: one binlog or many, awaited or not.

Promises: an answer means durable. A refusal or a lost connection raises ``WriteFailed``, which names the Pump. ``start_many`` uses our
Pump's ``WriteBinlogBatch``; a Pump without that method gets the binlogs one by one, in order. The first write opens the connection. It is
shared with no other writer to the same address, so that a new writer connects at once. ``address`` is ``host:port`` or ``unix:///path``.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from pyspark_tidb_binlog.binlog_source.cluster.channels import details, open_channel
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import WRITE_BINLOG, WRITE_BINLOG_BATCH
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import pump_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # a shared subchannel would keep the reconnect backoff of a connection that was given up
    ("grpc.use_local_subchannel_pool", 1),
)
_TIMEOUT = 60.0
_CONNECT_SECONDS = 20.0
"""How long a connection may take: gRPC's own default."""
OUTCOME_TIMEOUT = 5.0
"""Timeout of writing an outcome that the upstream reported. Seconds."""
OUTCOME_CONNECT_SECONDS = 0.1
"""How long a connection for such an outcome may take: a host that takes connections and is silent must not hold up the other Pumps."""
_Call = Callable[[], "grpc.CallFuture[pump_pb2.WriteBinlogResp]"]
_Answer = Callable[[], pump_pb2.WriteBinlogResp]


class WriteFailed(PumpUnavailable):
    """A Pump did not acknowledge a binlog. The Pump may have stored it all the same.

    ``code`` is the name of the gRPC status (``UNAVAILABLE``, ``DEADLINE_EXCEEDED``, ``UNKNOWN``, …). ``OK`` means that the Pump answered with an
    errmsg, which is a failure, too (wire.md 1). ``text`` is the text of the status or the errmsg.
    """

    def __init__(self, message: str, code: str = "UNKNOWN", text: str = "") -> None:
        """``code`` and ``text`` become attributes, which pickling keeps."""
        super().__init__(message)
        self.code = code
        self.text = text

    @property
    def answered(self) -> bool:
        """Whether the Pump answered: the call as such succeeded."""
        return self.code == "OK"

    @property
    def too_large(self) -> bool:
        """Whether the message is larger than the Pump accepts."""
        return self.code == "RESOURCE_EXHAUSTED" or "ResourceExhausted" in self.text


@dataclass(frozen=True, slots=True)
class Pending:
    """A write under way."""

    result: Callable[[], None]
    """Waits for it; raises ``WriteFailed`` when it failed."""


class PumpWriter:
    """A client of one Pump's WriteBinlog. Safe for many threads."""

    def __init__(
        self,
        address: str,
        cluster_id: int,
        timeout: float = _TIMEOUT,
        pump: str = "",
        connect_seconds: float = _CONNECT_SECONDS,
        *,
        tls: TlsSettings | None,
    ) -> None:
        """``timeout``: seconds that one call may take; ``pump``: the Pump's node id, for messages; ``tls``: the cluster's."""
        self.address = address
        self._name = f"{pump} at {address}" if pump not in ("", address) else address
        self._cluster_id = cluster_id
        self._timeout = timeout
        self._offers_batch = True
        # In gRPC this is also the time after which an attempt to connect is given up.
        connect = ("grpc.min_reconnect_backoff_ms", int(connect_seconds * 1000))
        self._channel = open_channel(address, tls, (*_OPTIONS, connect), connect_seconds)
        self._one = self._channel.unary_unary(
            WRITE_BINLOG,
            request_serializer=pump_pb2.WriteBinlogReq.SerializeToString,
            response_deserializer=pump_pb2.WriteBinlogResp.FromString,
        )
        self._many = self._channel.unary_unary(
            WRITE_BINLOG_BATCH,
            request_serializer=pump_pb2.WriteBinlogBatchReq.SerializeToString,
            response_deserializer=pump_pb2.WriteBinlogResp.FromString,
        )

    # A call that is awaited takes half the time of one whose future is asked: grpcio needs no thread that waits for it.

    def write(self, payload: bytes) -> None:
        """Write one binlog and wait until it is durable."""
        request = self._request(payload)
        self._require(lambda: self._one(request, timeout=self._timeout))

    def write_many(self, payloads: Sequence[bytes]) -> None:
        """Write binlogs, stored in this order, and wait until they are durable."""
        if not self._offers_batch:
            self._write_each(payloads)
            return
        request = self._request_of(payloads)
        self._written_together(payloads, lambda: self._many(request, timeout=self._timeout))

    def start(self, payload: bytes) -> Pending:
        """Write one binlog without waiting. Two writes under way may be stored in either order."""
        request = self._request(payload)
        call = self._begun(lambda: self._one.future(request, timeout=self._timeout))
        return Pending(lambda: self._require(call.result))

    def start_many(self, payloads: Sequence[bytes]) -> Pending:
        """Write binlogs, stored in this order, without waiting."""
        if not self._offers_batch:
            return Pending(lambda: self._write_each(payloads))
        request = self._request_of(payloads)
        call = self._begun(lambda: self._many.future(request, timeout=self._timeout))
        return Pending(lambda: self._written_together(payloads, call.result))

    def close(self) -> None:
        """Close the connection; writes under way fail."""
        self._channel.close()

    def _request(self, payload: bytes) -> pump_pb2.WriteBinlogReq:
        return pump_pb2.WriteBinlogReq(clusterID=self._cluster_id, payload=payload)

    def _request_of(self, payloads: Sequence[bytes]) -> pump_pb2.WriteBinlogBatchReq:
        return pump_pb2.WriteBinlogBatchReq(clusterID=self._cluster_id, payload=payloads)

    def _written_together(self, payloads: Sequence[bytes], answer: _Answer) -> None:
        try:
            self._require(answer)
        except WriteFailed as failure:
            if failure.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            self._offers_batch = False
            self._write_each(payloads)

    def _write_each(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.write(payload)

    def _begun(self, begin: _Call) -> "grpc.CallFuture[pump_pb2.WriteBinlogResp]":
        try:
            return begin()
        except ValueError as error:
            # what grpcio raises on a closed channel
            raise self._failed("CANCELLED", str(error)) from error

    def _require(self, answer: _Answer) -> None:
        try:
            answered = answer()
        except ValueError as error:
            raise self._failed("CANCELLED", str(error)) from error
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            raise self._failed(error.code().name, details(error)) from error
        except grpc.FutureCancelledError as error:
            raise self._failed("CANCELLED", "the call was cancelled") from error
        if answered.errmsg:
            raise WriteFailed(f"Pump {self._name} refused a binlog: {answered.errmsg}", "OK", answered.errmsg)

    def _failed(self, code: str, text: str) -> WriteFailed:
        return WriteFailed(f"Pump {self._name} did not accept a binlog: {code} {text}", code, text)


def write_binlog(address: str, cluster_id: int, payload: bytes, timeout: float = OUTCOME_TIMEOUT, *, tls: TlsSettings | None) -> None:
    """Write one binlog over a connection of its own, and wait until it is durable; ``WriteFailed`` when it is not."""
    with contextlib.closing(PumpWriter(address, cluster_id, timeout, connect_seconds=OUTCOME_CONNECT_SECONDS, tls=tls)) as writer:
        writer.write(payload)
