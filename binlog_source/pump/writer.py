"""The writing side of a Pump's gRPC: one binlog or many, awaited or not.

Promises: an answer means durable. A refusal or a lost Pump is ``PumpUnavailable`` and names the Pump. ``write_many`` needs our Pump's
``WriteBinlogBatch``; a Pump that lacks it gets the binlogs one by one, in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from schemas.errors import PumpUnavailable
from schemas.proto import pump_pb2

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Pending:
    """A write under way."""

    result: Callable[[], None]
    """Waits for it; raises ``PumpUnavailable`` when it failed."""


class PumpWriter:
    """A client of one Pump's WriteBinlog."""

    def __init__(self, address: str, cluster_id: int, timeout: float = _TIMEOUT) -> None:
        self.address = address
        self._cluster_id = cluster_id
        self._timeout = timeout
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._one = self._channel.unary_unary(
            "/binlog.Pump/WriteBinlog",
            request_serializer=pump_pb2.WriteBinlogReq.SerializeToString,
            response_deserializer=pump_pb2.WriteBinlogResp.FromString,
        )
        self._many = self._channel.unary_unary(
            "/binlog.Pump/WriteBinlogBatch",
            request_serializer=pump_pb2.WriteBinlogBatchReq.SerializeToString,
            response_deserializer=pump_pb2.WriteBinlogResp.FromString,
        )

    def write(self, payload: bytes) -> None:
        """Write one binlog and wait until it is durable."""
        self.start(payload).result()

    def start(self, payload: bytes) -> Pending:
        """Write one binlog without waiting. Two writes under way may change places."""
        call = self._one.future(pump_pb2.WriteBinlogReq(clusterID=self._cluster_id, payload=payload), timeout=self._timeout)
        return Pending(lambda: self._finish(call))

    def start_many(self, payloads: Sequence[bytes]) -> Pending:
        """Write binlogs in this order without waiting for the last."""
        call = self._many.future(pump_pb2.WriteBinlogBatchReq(clusterID=self._cluster_id, payload=payloads), timeout=self._timeout)

        def finish() -> None:
            if call.code() == grpc.StatusCode.UNIMPLEMENTED:
                for payload in payloads:
                    self.write(payload)
            else:
                self._finish(call)

        return Pending(finish)

    def _finish(self, call: "grpc.CallFuture[pump_pb2.WriteBinlogResp]") -> None:
        try:
            answer = call.result()
        except grpc.RpcError as error:
            raise PumpUnavailable(f"Pump {self.address} did not take a binlog: {call.code().name} {call.details()}") from error
        except grpc.FutureCancelledError as error:
            raise PumpUnavailable(f"Pump {self.address} did not take a binlog: the call was cancelled") from error
        if answer.errmsg:
            raise PumpUnavailable(f"Pump {self.address} refused a binlog: {answer.errmsg}")

    def close(self) -> None:
        """Give the connection back."""
        self._channel.close()
