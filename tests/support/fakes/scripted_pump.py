"""A Pump that does what a test says: gRPC and HTTP on one port of loopback, answers from a list. For what no good Pump would do.

Promises: every pull is recorded; ``script`` is asked once per pull and may be changed between pulls. Without a ``greeting`` it is a real Pump:
it knows no batches of writes, its metadata comes with the first message, and what it has collected stands in its metrics, written as Go writes floats.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods, PendingCall, StreamCall
from pyspark_tidb_binlog.binlog_source.rpc.frames import UNAVAILABLE, Refusal
from pyspark_tidb_binlog.binlog_source.rpc.http1 import NOT_FOUND, OTHER_ERROR, HttpRequest, HttpResponse, node_answer
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2


@dataclass(frozen=True, slots=True)
class Asked:
    """One PullBinlogs request: what was asked for, and from where."""

    delivery: str
    suffix: int
    offset: int


class Broken(Exception):
    """In a script: end this pull with an error, as a killed Pump does."""


Script = Callable[[Asked], Iterator[bytes]]


def metrics_page(gc_ms: str, started: str = "1.795277e+09") -> str:
    """A part of a real Pump's page of metrics."""
    return (
        "# HELP binlog_pump_storage_done_gc_ts gc done ts of storage\n# TYPE binlog_pump_storage_done_gc_ts gauge\n"
        "binlog_pump_storage_done_gc_ts 0\n"
        "# HELP binlog_pump_storage_gc_ts gc ts of storage\n# TYPE binlog_pump_storage_gc_ts gauge\n"
        f"binlog_pump_storage_gc_ts {gc_ms}\n"
        "# HELP binlog_pump_storage_max_commit_ts max commit ts of storage\n# TYPE binlog_pump_storage_max_commit_ts gauge\n"
        "binlog_pump_storage_max_commit_ts 1.795277142123e+12\n"
        f"process_start_time_seconds {started}\n"
    )


@dataclass
class ScriptedPump:
    """Serves ``script`` until its end. ``greeting`` is its initial metadata, empty for a real Pump."""

    script: Script
    greeting: Mapping[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    metrics: str = field(default_factory=lambda: metrics_page("0"))
    """What ``GET /metrics`` answers; empty: there is no such page."""
    node_id: str = ""
    """Empty: it is whoever is asked for."""
    introduced: list[str] = field(default_factory=list)
    """As whom it was asked who it is."""

    def __enter__(self) -> "ScriptedPump":
        """Start serving on a port of its own."""
        self._server = RpcServer("scripted Pump").bind("127.0.0.1:0")
        self.address = f"127.0.0.1:{self._server.port}"
        unary = {b"/binlog.Pump/WriteBinlogBatch": self._take} if self.greeting else {}
        self._server.serve(Methods(unary=unary, stream={b"/binlog.Pump/PullBinlogs": self._pull}, http=self._page))
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0)

    def _take(self, data: bytes, call: PendingCall) -> None:
        self._server.answer(((call, None),))

    def _page(self, request: HttpRequest) -> HttpResponse:
        match request.method, request.path.split("/"):
            case "PUT", ["", "state", node_id, action]:
                self.introduced.append(unquote(node_id))
                is_other = self.node_id and unquote(node_id) != self.node_id
                refused = f"invalide nodeID {node_id}, this pump's nodeID is {self.node_id}" if is_other else f"invalide action {action}"
                return node_answer(refused, OTHER_ERROR)
            case "GET", ["", "metrics"] if self.metrics:
                return HttpResponse(body=self.metrics.encode())
        return NOT_FOUND

    def _pull(self, call: StreamCall) -> None:
        message = pump_pb2.PullBinlogReq.FromString(call.message)
        delivery = call.headers.get(b"tidb-binlog-delivery", b"").decode()
        asked = Asked(delivery, message.startFrom.suffix, message.startFrom.offset)
        self.asked.append(asked)
        if self.greeting:
            call.start([(name.encode(), value.encode()) for name, value in self.greeting.items()])
        try:
            for answer in self.script(asked):
                call.send([answer])
                if call.cancelled:
                    return
        except Broken as error:
            raise Refusal(UNAVAILABLE, str(error)) from error


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


def tip(offset: int, raw_promise: int, sorted_promise: int, suffix: int = 0, max_ts: int = 0) -> bytes:
    """One tip message; ``max_ts`` 0: that of a Pump that does not tell it."""
    response = pump_pb2.PullBinlogResp()
    if max_ts:
        fake = binlog_pb2.Binlog(tp=binlog_pb2.Rollback, start_ts=max_ts, commit_ts=max_ts)
        response.entity.payload = fake.SerializeToString()
    response.entity.meta.startTs, response.entity.meta.commitTs = raw_promise, sorted_promise
    response.entity.pos.suffix, response.entity.pos.offset = suffix, offset
    return response.SerializeToString()
