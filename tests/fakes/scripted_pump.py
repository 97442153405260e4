"""A Pump that does what a test says: real gRPC on loopback, answers from a list. For what no good Pump would do.

Promises: every pull is recorded; ``script`` is asked once per pull and may be changed between pulls.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field

import grpc

from schemas.proto import binlog_pb2, pump_pb2


@dataclass(frozen=True, slots=True)
class Asked:
    """One PullBinlogs request: what was asked for, and from where."""

    delivery: str
    suffix: int
    offset: int


class Broken(Exception):
    """In a script: end this pull with an error, as a killed Pump does."""


Script = Callable[[Asked], Iterator[bytes]]


@dataclass
class ScriptedPump:
    """Serves ``script`` until ``stop``. ``greeting`` is its initial metadata, empty for a real Pump."""

    script: Script
    greeting: Mapping[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> "ScriptedPump":
        """Start serving on a port of its own."""
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        handler = grpc.unary_stream_rpc_method_handler(self._pull)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("binlog.Pump", {"PullBinlogs": handler}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop at once."""
        self._server.stop(grace=0).wait()

    def _pull(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        message = pump_pb2.PullBinlogReq.FromString(request)
        delivery = str(dict(context.invocation_metadata()).get("tidb-binlog-delivery", ""))
        self.asked.append(Asked(delivery, message.startFrom.suffix, message.startFrom.offset))
        if self.greeting:
            context.send_initial_metadata(tuple(self.greeting.items()))
        try:
            yield from self.script(self.asked[-1])
        except Broken as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def message(tp: int, start_ts: int, commit_ts: int, suffix: int = 0, offset: int = 0, value: bytes = b"") -> bytes:
    """One PullBinlogResp. ``value`` is the prewrite_value."""
    binlog = binlog_pb2.Binlog(start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k")
    binlog.tp = (binlog_pb2.Prewrite, binlog_pb2.Commit, binlog_pb2.Rollback)[tp]
    if value:
        binlog.prewrite_value = value
    response = pump_pb2.PullBinlogResp()
    response.entity.payload = binlog.SerializeToString()
    response.entity.meta.startTs, response.entity.meta.commitTs = start_ts, commit_ts
    response.entity.pos.suffix, response.entity.pos.offset = suffix, offset
    return response.SerializeToString()


def tip(offset: int, raw_promise: int, sorted_promise: int, suffix: int = 0) -> bytes:
    """One tip message."""
    response = pump_pb2.PullBinlogResp()
    response.entity.meta.startTs, response.entity.meta.commitTs = raw_promise, sorted_promise
    response.entity.pos.suffix, response.entity.pos.offset = suffix, offset
    return response.SerializeToString()
