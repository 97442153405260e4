"""A front under fire: valid HTTP/2 and HTTP/1 sessions, broken at random, from a seed that is printed; beside them a good client.

Promises: ``Fuzz(seed).run(seconds)`` fails when an exception escapes into the loop, memory for unfinished requests passes its bound or is not
given back, the process grows, a thread stays, or the good client is not answered. The same seed gives the same sessions.
"""

import contextlib
import logging
import os
import random
import socket
import struct
import threading
import time

import grpc
import h2.config
import h2.connection

from pyspark_tidb_binlog.binlog_source.rpc import calls as calls_module
from pyspark_tidb_binlog.binlog_source.rpc import rpc_server as front_module
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods, PendingCall, StreamCall
from pyspark_tidb_binlog.binlog_source.rpc.frames import frame
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from tests.support.eventually import eventually
from tests.support.own_host import OWN_HOST

CAPACITY = 4 << 20
GROWTH = 200 << 20
"""Bytes that a process may grow by: allocators keep what they had at the worst moment."""
PATIENCE = 60
_HTTP = (
    b"GET /status HTTP/1.1\r\nHost: p\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nbody",
    b"PUT /a HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
)


class Errors(logging.Handler):
    """What was logged as an error: an exception that escaped, or a call's defect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.found.append(f"{record.name}: {record.getMessage()} {record.exc_info}")


class Fuzz:
    """One front and its enemies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.front = RpcServer("Fuzzed").bind(f"{OWN_HOST}:0")
        self.sessions = self.answered = 0

    def _serve(self) -> None:
        def write(data: bytes, call: PendingCall) -> None:
            self.front.answer(((call, None),))

        def down(call: StreamCall) -> None:
            call.start([(b"x", b"y")])
            call.send([call.message[:100]] * 50)

        unary, stream = {b"/t/Write": write}, {b"/t/Down": down}
        limits = {"max_request": 1 << 20, "request_memory": CAPACITY, "max_streams": 32}
        self.front.serve(Methods(unary=unary, stream=stream, **limits))

    def run(self, seconds: float) -> None:
        """Fire for so long."""
        errors = Errors()
        patience, look = calls_module.IDLE_SECONDS, front_module.LOOK
        calls_module.IDLE_SECONDS, front_module.LOOK = 0.5, 0.1
        loggers = logging.getLogger(), logging.getLogger("pyspark_tidb_binlog.binlog_source.rpc")
        for logger in loggers:
            logger.addHandler(errors)
        # A test runner keeps every record, and with it the session that its exception has in its frames.
        loggers[1].propagate = False
        try:
            self._serve()
            threads, memory, end = threading.active_count(), 0, time.monotonic() + seconds
            while time.monotonic() < end or not self.sessions:
                for _ in range(50):
                    self._session()
                    held = self.front.memory.held
                    assert held <= CAPACITY, held
                self._good_client()
                memory = memory or _resident()
                assert not errors.found, errors.found
            assert _resident() - memory < GROWTH
            eventually(lambda: not self.front._peers and not self.front._handlers, seconds=PATIENCE)
            memory_of_requests = self.front.memory
            assert memory_of_requests.held == 0 and not memory_of_requests._waiting
            # the front's pool, and gRPC's own
            eventually(lambda: threading.active_count() <= threads + 8, seconds=PATIENCE, seen=threading.active_count)
        finally:
            self.front.stop(0)
            calls_module.IDLE_SECONDS, front_module.LOOK = patience, look
            loggers[1].propagate = True
            for logger in loggers:
                logger.removeHandler(errors)
        assert not errors.found, errors.found

    def _good_client(self) -> None:
        with grpc.insecure_channel(f"{OWN_HOST}:{self.front.port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            size = self.random.choice([0, 10, 70_000, 1 << 20])
            assert channel.unary_unary("/t/Write")(b"x" * (size - 5 if size else 0), timeout=PATIENCE) == b""
            assert len(list(channel.unary_stream("/t/Down")(b"x", timeout=PATIENCE))) == 50
        self.answered += 1

    def _session(self) -> None:
        data = self._mutated(self._valid() if self.random.random() < 0.85 else b"".join(self.random.choices(_HTTP, k=3)))
        self.sessions += 1
        with contextlib.suppress(OSError), socket.create_connection((OWN_HOST, self.front.port), 5) as client:
            client.settimeout(0.02)
            while data:
                cut = self.random.choice([1, 9, 100, 20_000, len(data)])
                client.sendall(data[:cut])
                data = data[cut:]
                if self.random.random() < 0.05:
                    with contextlib.suppress(TimeoutError):
                        client.recv(100_000)
            end = self.random.random()
            if end < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end < 0.5:
                client.shutdown(socket.SHUT_WR)
                with contextlib.suppress(TimeoutError):
                    client.recv(100_000)

    def _valid(self) -> bytes:
        """What the ``h2`` library says for some calls, some of them not ended."""
        draw = self.random
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        client.initiate_connection()
        for number in range(draw.randint(1, 12)):
            stream_id, method = 2 * number + 1, draw.choice(["/t/Write", "/t/Down", "/t/None"])
            fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "p"), ("te", "trailers")]
            client.send_headers(stream_id, [*fields, ("grpc-timeout", f"{draw.randint(1, 9999)}u")])
            size = draw.choice([0, 10, 3000])
            announced = size if draw.random() < 0.8 else draw.choice([0, 100_000, 900_000, 1 << 31])
            client.send_data(stream_id, struct.pack(">BI", draw.random() < 0.05, announced) + draw.randbytes(size), draw.random() < 0.7)
            if draw.random() < 0.1:
                client.reset_stream(stream_id)
            if draw.random() < 0.1:
                client.ping(b"12345678")
            if draw.random() < 0.1:
                client.update_settings({draw.choice([1, 4]): draw.choice([0, 1, 4096, 70_000])})
        return client.data_to_send()

    def _mutated(self, data: bytes) -> bytes:
        draw, out = self.random, bytearray(data)
        for _ in range(draw.choice([0, 1, 1, 2, 5, 20])):
            at = draw.randrange(len(out) + 1)
            kind = draw.randrange(5)
            if kind == 0 and at < len(out):
                out[at] = draw.randrange(256)
            elif kind == 1:
                flags, stream_id = draw.choice([0, 1, 4, 5, 8, 9, 0x2D]), draw.choice([0, 1, 3, 8, 99])
                stray = frame(draw.randrange(11), flags, stream_id, draw.randbytes(draw.choice([0, 4, 8, 30])))
                out[at:at] = stray * draw.choice([1, 1, 2, 3000])
            elif kind == 2:
                del out[at : at + draw.choice([1, 5, 100])]
            elif kind == 3:
                out[at:at] = out[at : at + draw.choice([9, 50, 500])]
            else:
                out[at:at] = draw.randbytes(draw.choice([1, 9, 70]))
        return bytes(out)


def _resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fire(seconds: float) -> None:
    """A run whose seed is printed, or given by TIDB_BINLOG_FUZZ_SEED."""
    seed = int(os.environ.get("TIDB_BINLOG_FUZZ_SEED") or time.time_ns() % (1 << 32))
    print(f"\nTIDB_BINLOG_FUZZ_SEED={seed}", flush=True)
    fuzz = Fuzz(seed)
    fuzz.run(seconds)
    print(f"{fuzz.sessions} sessions in {seconds:g} s; the good client was answered {fuzz.answered} times")
