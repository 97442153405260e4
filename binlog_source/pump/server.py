"""The Pump as a gRPC server: wiring, metadata, lifecycle. The answers are made in ``service.py``.

Promises: an embedded Pump serves from ``start`` to ``stop``; ``stop`` ends open pulls cleanly (OK), finishes the log and registers ``paused``.
Bytes pass through: no answer of PullBinlogs is parsed or marshalled here.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc

from binlog_source.pump.heart import Beat, FakeBinlogs, own_clock
from binlog_source.pump.orphans import ASK_AFTER, OrphanResolver
from binlog_source.pump.service import Flush, PumpService
from binlog_source.pump.storage.pointer import Pointer
from binlog_source.pump.storage.store import Store
from binlog_source.registry import PUMPS, NodeState, NodeStatus
from binlog_source.upstream.registry_client import RegistryClient
from conf.model import PumpConfig
from schemas.errors import ConfigError, ReplicationError
from schemas.proto import pump_pb2

DELIVERY_KEY = "tidb-binlog-delivery"
BATCH_KEY = "tidb-binlog-batch"
PUMP_KEY = "tidb-binlog-pump"
GC_TS_KEY = "tidb-binlog-gc-ts"
DELIVERIES = ("sorted", "raw", "tip")

_THREADS = 96
"""A pull holds one while it lasts, a write one until it is durable."""
_BATCH_BYTES = 1 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


class _Handlers:
    """The three methods, from bytes to bytes."""

    def __init__(self, service: PumpService, stopping: threading.Event) -> None:
        self._service = service
        self._stopping = stopping

    def write(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        message = pump_pb2.WriteBinlogReq.FromString(request)
        return self._write(message.clusterID, [message.payload], context)

    def write_batch(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        message = pump_pb2.WriteBinlogBatchReq.FromString(request)
        return self._write(message.clusterID, list(message.payload), context)

    def _write(self, cluster_id: int, payloads: list[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            self._service.write(cluster_id, payloads)
        except (ReplicationError, OSError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return b""

    def pull(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        message = pump_pb2.PullBinlogReq.FromString(request)
        asked = dict(context.invocation_metadata())
        delivery = str(asked.get(DELIVERY_KEY, "sorted"))
        batched = asked.get(BATCH_KEY) == "1"
        echo: tuple[tuple[str, str], ...] = (
            (DELIVERY_KEY, delivery),
            (PUMP_KEY, self._service.node_id),
            (GC_TS_KEY, str(self._service.store.gc_ts)),
        )
        if batched:
            echo = (*echo, (BATCH_KEY, "1"))
        if delivery not in DELIVERIES:
            context.abort(grpc.StatusCode.UNKNOWN, f"{DELIVERY_KEY}: {delivery!r} is not one of {', '.join(DELIVERIES)}")
        try:
            self._service.check_cluster(message.clusterID)
            context.send_initial_metadata(echo)
            flushes = self._flushes(delivery, message.startFrom, context)
            yield from _batches(flushes) if batched else (one for flush in flushes for one in flush)
        except (ReplicationError, OSError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))

    def _flushes(self, delivery: str, start: pump_pb2.Pos, context: grpc.ServicerContext) -> Iterator[Flush]:
        service = self._service
        context.add_callback(service.store.wake)

        def stop() -> bool:
            return self._stopping.is_set() or not context.is_active()

        if delivery == "raw":
            return service.pull_raw(Pointer(start.suffix, start.offset), stop)
        return service.pull_tip(start.offset, stop) if delivery == "tip" else service.pull_sorted(start.offset, stop)

    def generic(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """The methods under their wire names; without serializers bytes pass through."""
        return grpc.method_handlers_generic_handler(
            "binlog.Pump",
            {
                "WriteBinlog": grpc.unary_unary_rpc_method_handler(self.write),
                "WriteBinlogBatch": grpc.unary_unary_rpc_method_handler(self.write_batch),
                "PullBinlogs": grpc.unary_stream_rpc_method_handler(self.pull),
            },
        )


def _batches(flushes: Iterator[Flush]) -> Iterator[bytes]:
    """Each flush as one or more PullBinlogBatch messages of about 1 MiB."""
    for flush in flushes:
        batch: list[bytes] = []
        size = 0
        for message in flush:
            batch.append(message)
            size += len(message)
            if size >= _BATCH_BYTES:
                yield b"".join(batch)
                batch, size = [], 0
        if batch:
            yield b"".join(batch)


class EmbeddedPump:
    """A Pump in this process.

    ``oracle`` gives the timestamps of fake binlogs; by default the registry does, and without one the Pump's own clock.
    """

    def __init__(self, config: PumpConfig, oracle: Callable[[], int] | None = None) -> None:
        self.config = config
        self._oracle = oracle
        self._stopping = threading.Event()
        self._beats: list[Beat] = []
        self._registry: RegistryClient | None = None
        self._server: grpc.Server | None = None
        self._service: PumpService | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """host:port that it serves at."""
        return f"{self.config.addr.rpartition(':')[0]}:{self._port}"

    @property
    def service(self) -> PumpService:
        """The answers, for a look from inside the process."""
        if self._service is None:
            raise ConfigError("the Pump is not started")
        return self._service

    def start(self) -> "EmbeddedPump":
        """Open the store and serve."""
        config = self.config
        cluster_id = config.cluster_id
        if config.registry:
            self._registry = RegistryClient(config.registry)
            cluster_id = cluster_id or self._registry.cluster_id()
        store = Store(Path(config.data_dir), max_file_size=config.max_file_size, sync=config.sync_log, span=config.step_bytes)
        self._service = service = PumpService(store, cluster_id, config.node_id)
        self._stopping.clear()
        self._server = grpc.server(futures.ThreadPoolExecutor(_THREADS, thread_name_prefix=config.node_id), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handlers(service, self._stopping).generic(),))
        try:
            self._port = self._server.add_insecure_port(config.addr)
        except RuntimeError as error:
            store.close()
            raise ConfigError(f"Pump {config.node_id} cannot listen on {config.addr}: {error}") from error
        self._server.start()
        self._start_beats(service)
        return self

    def _start_beats(self, service: PumpService) -> None:
        config, registry = self.config, self._registry
        if registry is not None:
            self._register(NodeState.ONLINE)
            self._beats.append(Beat(f"{config.node_id} heartbeat", config.heartbeat_interval, lambda: self._register(NodeState.ONLINE)))
            self._beats.append(Beat(f"{config.node_id} orphans", ASK_AFTER, OrphanResolver(service, registry.mvcc)))
        if config.fake_binlog_interval > 0:
            if self._oracle is not None:
                oracle = self._oracle
            elif registry is not None:
                oracle = registry.tso
            else:
                oracle = lambda: own_clock(service)  # noqa: E731
            self._beats.append(Beat(f"{config.node_id} fake binlogs", config.fake_binlog_interval, FakeBinlogs(service, oracle)))

    def _register(self, state: NodeState) -> None:
        if self._registry is None or self._service is None:
            return
        host = self.config.advertise_addr or self.address
        promised = self._service.store.state.sorted_promise
        self._registry.put_status(PUMPS, NodeStatus(self.config.node_id, host, state, promised, self._registry.tso()))

    def stop(self) -> None:
        """Stop serving: pulls end with OK, writes under way are answered, the log is finished."""
        for beat in self._beats:
            beat.stop()
        self._beats.clear()
        self._stopping.set()
        if self._service is not None:
            self._service.store.wake()
        if self._server is not None:
            self._server.stop(grace=10).wait()
            self._server = None
        if self._registry is not None:
            self._register(NodeState.PAUSED)
            self._registry.close()
        if self._service is not None:
            self._service.store.close()
            self._service = None
