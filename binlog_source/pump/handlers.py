"""The Pump's gRPC methods on the RPC server: wiring between ``rpc.rpc_server`` and ``service.PumpService``.

    WriteBinlog, WriteBinlogBatch   parsed on the loop; the requests of one iteration go to the store together; answered in groups
    PullBinlogs                     a thread each; bytes pass through: no answer is parsed or serialized here

While requests come one by one and the disk is quick, the loop writes them itself. A single call takes as long as its fdatasync, and two
hand-overs between threads would double that time.

Promises: OK means durable. A refusal is UNKNOWN with a real Pump's text. While more than ``HOLD_BYTES`` wait for the disk, nothing is read
from writers, so memory is bounded. The memory for large binlogs is bounded over all pulls together.
"""

import threading
import time
from collections.abc import Callable, Iterator

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.binlog_source.pump.messages import in_pieces
from pyspark_tidb_binlog.binlog_source.pump.service import CAPACITY, STALL, MessageGroup, PumpService, Reservation, holds
from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_writer import WriteRequest
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods, PendingCall, StreamCall
from pyspark_tidb_binlog.binlog_source.rpc.frames import DATA_LOSS, UNKNOWN, Refusal
from pyspark_tidb_binlog.binlog_source.rpc.http1 import HttpRequest, HttpResponse
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import seen_in
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import (
    BATCH_KEY,
    DELIVERIES,
    DELIVERY_KEY,
    END_KEY,
    GC_TS_KEY,
    KNOWN_KEY,
    NO,
    PIECE_KEY,
    PULL_BINLOGS,
    PUMP_KEY,
    SEEN_KEY,
    TIP,
    WRITE_BINLOG,
    WRITE_BINLOG_BATCH,
    YES,
)
from pyspark_tidb_binlog.schemas.errors import DamagedLog, ReplicationError
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.proto import pump_pb2

HOLD_BYTES = 48 << 20
_BATCH_BYTES = 1 << 20
_ALONE = 16
"""After so many calls in a row, each of which had the Pump for itself, the next one is written at once."""
_DECODE_ERROR = Refusal(UNKNOWN, "unexpected EOF")


class Handlers:
    """The three methods of one Pump."""

    def __init__(self, service: PumpService, server: RpcServer, stopping: threading.Event) -> None:
        """``stopping``: ends the pulls once it is set."""
        self._service = service
        self._server = server
        self._stopping = stopping
        self._memory = BoundedMemory(CAPACITY, STALL)
        self._gathered: list[WriteRequest] = []
        self._waiting_bytes = 0
        self._alone = 0

    def methods(self, http: Callable[[HttpRequest], HttpResponse], max_request: int) -> Methods:
        """The methods under their gRPC paths, and the HTTP endpoints; ``max_request``: bytes."""
        unary = {WRITE_BINLOG.encode(): self._write, WRITE_BINLOG_BATCH.encode(): self._write_batch}
        return Methods(unary=unary, stream={PULL_BINLOGS.encode(): self._pull}, http=http, max_request=max_request)

    def _write(self, data: bytes, call: PendingCall) -> None:
        try:
            message = pump_pb2.WriteBinlogReq.FromString(data)
        except DecodeError:
            raise _DECODE_ERROR from None
        self._store(message.clusterID, [message.payload], call)

    def _write_batch(self, data: bytes, call: PendingCall) -> None:
        try:
            message = pump_pb2.WriteBinlogBatchReq.FromString(data)
        except DecodeError:
            raise _DECODE_ERROR from None
        self._store(message.clusterID, list(message.payload), call)

    def _store(self, cluster_id: int, payloads: list[bytes], call: PendingCall) -> None:
        begun = time.perf_counter()
        try:
            records = self._service.accept(cluster_id, payloads)
        except ReplicationError as error:
            self._service.metrics.rpc("WriteBinlog", "fail", (time.perf_counter() - begun,))
            raise Refusal(UNKNOWN, str(error)) from error
        if not records:
            self._server.answer(((call, None),))
            return
        request = WriteRequest(records, self._written, call)
        if not self._gathered:
            self._server.loop.call_soon(self._submit)
        self._gathered.append(request)
        self._waiting_bytes += request.size
        if self._waiting_bytes > HOLD_BYTES:
            self._server.hold(True)

    def _submit(self) -> None:
        gathered, self._gathered = self._gathered, []
        # several calls at a time are faster in a group of the writer's thread, while the loop reads the next ones
        self._alone = self._alone + 1 if len(gathered) == 1 and self._waiting_bytes == gathered[0].size else 0
        if self._alone <= _ALONE or not self._service.store.write_now(gathered[0], self._answer):
            self._service.store.submit(gathered)

    def _written(self, requests: list[WriteRequest]) -> None:
        """On the writer's thread: a group is durable, or refused."""
        self._server.call(self._answer, requests)

    def _answer(self, requests: list[WriteRequest]) -> None:
        now = time.perf_counter()
        answers: list[tuple[PendingCall, Refusal | None]] = []
        for request in requests:
            assert isinstance(request.call, PendingCall)
            refusal = Refusal(UNKNOWN, f"the binlog was not written: {request.error}") if request.error is not None else None
            answers.append((request.call, refusal))
            self._waiting_bytes -= request.size
        self._server.answer(answers)
        if self._waiting_bytes <= HOLD_BYTES // 2:
            self._server.hold(False)
        label = "succ" if requests[0].error is None else "fail"
        self._service.metrics.rpc("WriteBinlog", label, [now - request.begun for request in requests])

    def _pull(self, call: StreamCall) -> None:
        begun = time.perf_counter()
        try:
            message = pump_pb2.PullBinlogReq.FromString(call.message)
        except DecodeError:
            raise _DECODE_ERROR from None
        delivery = _metadata(call, DELIVERY_KEY, Delivery.SORTED)
        batched = _metadata(call, BATCH_KEY) == "1"
        piece = _metadata(call, PIECE_KEY)
        store = self._service.store
        reservation = Reservation(self._memory)
        call.on_cancel(store.wake)
        try:
            if delivery not in DELIVERIES:
                raise Refusal(UNKNOWN, f"{DELIVERY_KEY} {delivery!r} is none of {', '.join(DELIVERIES)}")
            self._service.check_cluster(message.clusterID)
            call.start(self._initial_metadata(call, delivery, batched))
            for group in self._groups(delivery, message.startFrom, call, reservation):
                for batch in ([m] for m in _batches(group, piece)) if batched else (group,):
                    call.send(batch)
                if reservation.holds:
                    call.settle()
        except (ReplicationError, OSError) as error:
            self._service.metrics.rpc("PullBinlogs", "fail", (time.perf_counter() - begun,))
            raise Refusal(DATA_LOSS if isinstance(error, DamagedLog) else UNKNOWN, str(error)) from error
        finally:
            reservation.give()
        self._service.metrics.rpc("PullBinlogs", "succ", (time.perf_counter() - begun,))

    def _initial_metadata(self, call: StreamCall, delivery: str, batched: bool) -> list[tuple[bytes, bytes]]:
        """The initial metadata of a pull."""
        store, end, seen = self._service.store, self._service.store.state.at, seen_in(_metadata(call, SEEN_KEY))
        told = {
            DELIVERY_KEY: delivery,
            PUMP_KEY: self._service.node_id,
            GC_TS_KEY: str(store.gc_ts),
            END_KEY: f"{end.file_id}:{end.offset}",
        }
        if seen is not None:
            told[SEEN_KEY] = YES if holds(store, seen) else NO
        if batched:
            told[BATCH_KEY] = "1"
        return [(key.encode(), value.encode()) for key, value in told.items()]

    def _groups(self, delivery: str, start: pump_pb2.Pos, call: StreamCall, reservation: Reservation) -> Iterator[MessageGroup]:
        service = self._service
        known = frozenset(_metadata(call, KNOWN_KEY).split(","))

        def stop() -> bool:
            return self._stopping.is_set() or call.cancelled

        if delivery == Delivery.RAW:
            return service.pull_raw(Pointer(start.suffix, start.offset), stop, reservation, known)
        return (
            service.pull_tip(start.offset, stop, known) if delivery == TIP else service.pull_sorted(start.offset, stop, reservation, known)
        )


def _metadata(call: StreamCall, key: str, default: str = "") -> str:
    """The value of a pull's metadata; ``default`` if there is none."""
    value = call.headers.get(key.encode())
    return default if value is None else value.decode(errors="replace")


def _batches(group: MessageGroup, piece: str) -> Iterator[bytes]:
    """A group as PullBinlogBatch messages of about 1 MiB; messages above ``piece`` bytes (a number as text, or empty) in pieces."""
    limit = int(piece) if piece.isascii() and piece.isdigit() else 0
    batch: list[bytes] = []
    size = 0
    for message in group:
        for part in in_pieces(message, limit) if limit and len(message) > limit else (message,):
            batch.append(part)
            size += len(part)
            if size >= _BATCH_BYTES:
                yield b"".join(batch)
                batch, size = [], 0
    if batch:
        yield b"".join(batch)
