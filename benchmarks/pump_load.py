"""A cheap load generator for WriteBinlog servers: N connections with M calls in flight on each, from one process without gRPC.

A Python gRPC client needs more time for a call than the server, so a benchmark would measure the client. This generator implements just enough HTTP/2:
fixed header blocks, flow control, pings. It works with any server; ``bench_pump`` also runs it against a bare grpcio server.

    python -m benchmarks.pump_load HOST:PORT --cluster-id 7 --clients 64 --in-flight 1 --size 200 --seconds 5 [--first-ts TS]

Prints one JSON object: calls, seconds, failed, p50 and p99 in ms, megabytes. Each client writes transactions: a Prewrite, then its Commit.
"""

import argparse
import itertools
import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, literal
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2

_FRAME = struct.Struct(">IBI")
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_CHUNK = 16_384
_WIDE = (1 << 31) - 1
_HEADER_BLOCK = literal(
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/binlog.Pump/WriteBinlog"), (b":authority", b"pump"),
     (b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"pump_load")]
)  # fmt: skip


class _Call:
    """One call in flight."""

    __slots__ = ("begun", "unsent", "window")

    def __init__(self, body: bytes, window: int) -> None:
        self.begun = time.perf_counter()
        self.unsent = memoryview(body)
        self.window = window


class Client:
    """One connection."""

    def __init__(self, address: str, payloads: Iterator[bytes]) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._payloads = payloads
        self._last_id = -1
        self._window = self._initial = 65_535
        self._calls: dict[int, _Call] = {}
        self._unsent: dict[int, _Call] = {}
        self._out = bytearray(
            PREFACE
            + _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, _WIDE))
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WIDE - 65_535))
        )
        self._rest = b""
        self.failed = 0
        self.sent_bytes = self.calls = 0

    def begin(self) -> None:
        """Begin the next call; ``send`` sends its request."""
        payload = next(self._payloads)
        self._last_id += 2
        call = _Call(b"\x00" + struct.pack(">I", len(payload)) + payload, self._initial)
        self._calls[self._last_id] = self._unsent[self._last_id] = call
        self._out += _frame(_HEADERS, 0x4, self._last_id, _HEADER_BLOCK)
        self.sent_bytes += len(payload)
        self.calls += 1

    def send(self) -> bool:
        """Send what windows and socket accept; returns whether something is left for the socket."""
        for stream_id, call in list(self._unsent.items()):
            while call.unsent:
                room = min(_CHUNK, self._window, call.window, len(call.unsent))
                if room <= 0:
                    break
                self._window -= room
                call.window -= room
                chunk, call.unsent = call.unsent[:room], call.unsent[room:]
                self._out += _frame(_DATA, 0 if call.unsent else 0x1, stream_id, chunk)
            else:
                del self._unsent[stream_id]
        if self._out:
            try:
                del self._out[: self.socket.send(self._out)]
            except BlockingIOError:
                pass
        return bool(self._out)

    def receive(self) -> list[float]:
        """Process what has arrived; returns when the calls that have ended were begun."""
        data = self._rest + self.socket.recv(1 << 18)
        if data == self._rest:
            raise ConnectionError("the server closed the connection")
        at = 0
        ended: list[float] = []
        while len(data) - at >= 9:
            word, flags, stream_id = _FRAME.unpack_from(data, at)
            end = at + 9 + (word >> 8)
            if end > len(data):
                break
            if self._frame(word & 0xFF, flags, stream_id, data[at + 9 : end]):
                ended.append(self._calls.pop(stream_id).begun)
            at = end
        self._rest = data[at:]
        return ended

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> bool:
        if kind == _HEADERS and flags & 0x1:
            # bare grpcio sends its trailers as HPACK table indexes after the first call: an error is longer than that
            self.failed += len(payload) > 40
            return True
        if kind == _WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if not stream_id:
                self._window += more
            elif stream_id in self._calls:
                self._calls[stream_id].window += more
        elif kind == _SETTINGS and not flags & 0x1:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    for call in self._calls.values():
                        call.window += value - self._initial
                    self._initial = value
            self._out += _frame(_SETTINGS, 0x1, 0, b"")
        elif kind == _PING and not flags & 0x1:
            self._out += _frame(_PING, 0x1, 0, payload)
        elif kind in (_RST, _GOAWAY):
            raise ConnectionError(f"the server ended a call: {payload!r}")
        return False


def _frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview) -> bytes:
    return _FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def requests(cluster_id: int, size: int, next_ts: Callable[[], int]) -> Iterator[bytes]:
    """WriteBinlogReq messages: Prewrites of about ``size`` bytes, each followed by its Commit of the same size."""
    filler = b"v" * max(0, size - 40)
    while True:
        start_ts = next_ts()
        prewrite = binlog_pb2.Binlog(
            tp=0, start_ts=start_ts, commit_ts=0, prewrite_key=b"k", prewrite_value=filler, ddl_job_id=0, ddl_schema_state=0
        )
        yield pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=prewrite.SerializeToString()).SerializeToString()
        commit = binlog_pb2.Binlog(tp=1, start_ts=start_ts, commit_ts=next_ts(), prewrite_key=filler, ddl_job_id=0, ddl_schema_state=0)
        yield pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=commit.SerializeToString()).SerializeToString()


def run(address: str, cluster_id: int, clients: int, in_flight: int, size: int, seconds: float, first_ts: int) -> dict[str, float]:
    """Load the server for ``seconds``."""
    counter = itertools.count(first_ts)
    everyone = [Client(address, requests(cluster_id, size, lambda: next(counter))) for _ in range(clients)]
    selector = selectors.DefaultSelector()
    for client in everyone:
        client.socket.setblocking(False)
        selector.register(client.socket, selectors.EVENT_READ, client)
        for _ in range(in_flight):
            client.begin()
        client.send()
    begun = time.perf_counter()
    deadline = begun + seconds
    durations: list[float] = []
    running = clients * in_flight
    while running:
        for key, _ in selector.select(1.0):
            client = key.data
            ended = client.receive()
            now = time.perf_counter()
            for call_begun in ended:
                durations.append(now - call_begun)
                # end the transaction first: an orphan would hold back the Pump's promise
                if now >= deadline and client.calls % 2 == 0:
                    running -= 1
                else:
                    client.begin()
            writing = selectors.EVENT_READ | selectors.EVENT_WRITE if client.send() else selectors.EVENT_READ
            if writing != key.events:
                selector.modify(client.socket, writing, client)
    took = time.perf_counter() - begun
    durations.sort()
    return {
        "calls": len(durations),
        "seconds": took,
        "failed": sum(client.failed for client in everyone),
        "p50": durations[len(durations) // 2] * 1000,
        "p99": durations[len(durations) * 99 // 100] * 1000,
        "megabytes": sum(client.sent_bytes for client in everyone) / 1e6,
        "next_ts": next(counter),
    }


def main() -> None:
    """Run it."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("address")
    options.add_argument("--cluster-id", type=int, default=7)
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--in-flight", type=int, default=1)
    options.add_argument("--size", type=int, default=200)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--first-ts", type=int, default=470604668048769025)
    given = options.parse_args()
    print(json.dumps(run(given.address, given.cluster_id, given.clients, given.in_flight, given.size, given.seconds, given.first_ts)))


if __name__ == "__main__":
    main()
