"""A cheap reader of PullBinlogs: one connection, one pull, one process without gRPC, so that a benchmark measures the Pump and not its client.

grpcio's client needs 30 to 60 us for each message, three times as much as the Pump. This reader takes what the socket holds, walks over the message
prefixes, and parses one message of each read to know its position. Like a Drainer it accepts frames of 16 KiB; its windows are wide. Batched answers are
parsed, to count their binlogs.
"""

import socket
import struct
from collections.abc import Callable, Sequence

from pyspark_tidb_binlog.binlog_source.rpc.frames import (
    ACK,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SET_INITIAL_WINDOW,
    SETTING,
    SETTINGS,
    WIDEST,
    WINDOW_UPDATE,
    frame,
    literal,
    word_frame,
)
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import BATCH_KEY, DELIVERY_KEY, PULL_BINLOGS
from pyspark_tidb_binlog.schemas.proto import pump_pb2

_LENGTH = struct.Struct(">xI")
_READ = 256 << 10
_REFILL = 64 << 20
Mark = Callable[[pump_pb2.Entity], Sequence[int]]


class PullReader:
    """One pull. ``until``, then ``close``."""

    def __init__(self, address: str, cluster_id: int, delivery: str, batched: bool) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._batched = batched
        self._rest = b""
        self._parts: list[bytes] = []  # what has come of the next messages, joined once the first of them is whole
        self._missing = 5
        self._taken = 0
        self.binlogs = 0
        """Binlogs received."""
        self.size = 0
        """Bytes of messages received."""
        told = ((DELIVERY_KEY, delivery), *(((BATCH_KEY, "1"),) if batched else ()))
        head = literal(
            [(b":method", b"POST"), (b":scheme", b"http"), (b":path", PULL_BINLOGS.encode()), (b":authority", b"pump"),
             (b"te", b"trailers"), (b"content-type", b"application/grpc"), *((key.encode(), value.encode()) for key, value in told)]
        )  # fmt: skip
        request = pump_pb2.PullBinlogReq(clusterID=cluster_id).SerializeToString()
        body = b"\x00" + struct.pack(">I", len(request)) + request
        windows = frame(SETTINGS, 0, 0, SETTING.pack(SET_INITIAL_WINDOW, WIDEST)) + word_frame(WINDOW_UPDATE, 0, WIDEST - DEFAULT_WINDOW)
        self._socket.sendall(PREFACE + windows + frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, body))

    def until(self, upto: Sequence[int], mark: Mark) -> None:
        """Read until a message's ``mark`` reaches ``upto``.

        Raises:
            ConnectionError: the Pump ended the pull.
        """
        while True:
            last = self._read()
            if last is not None and mark(last) >= upto:
                return

    def _read(self) -> pump_pb2.Entity | None:
        """Take what has arrived; the last binlog of it, if any is whole."""
        data = self._socket.recv(_READ)
        if not data:
            raise ConnectionError("the Pump closed the connection")
        data = self._rest + data
        at, size = 0, len(data)
        while size - at >= 9:
            word, flags, stream_id = FRAME.unpack_from(data, at)
            end = at + 9 + (word >> 8)
            if end > size:
                break
            if word & 0xFF == DATA:
                self._parts.append(data[at + 9 : end])
                self._missing -= end - at - 9
            else:
                self._other(word & 0xFF, flags, data[at + 9 : end])
            at = end
        self._rest = data[at:]
        return self._messages(b"".join(self._parts)) if self._missing <= 0 else None

    def _messages(self, stream: bytes) -> pump_pb2.Entity | None:
        at, size = 0, len(stream)
        begin = end = 0
        last = None
        while size - at >= 5:
            (length,) = _LENGTH.unpack_from(stream, at)
            after = at + 5 + length
            if after > size:
                self._missing = after - size
                break
            begin, end = at + 5, after
            if self._batched:
                entities = pump_pb2.PullBinlogBatch.FromString(stream[begin:end]).entity
                last = entities[-1]
                self.binlogs += len(entities)
            else:
                self.binlogs += 1
            self.size += length
            at = after
        self._parts = [stream[at:]]
        if size - at < 5:
            self._missing = 5 - (size - at)
        self._taken += at
        if self._taken > _REFILL:
            self._socket.sendall(word_frame(WINDOW_UPDATE, 0, self._taken) + word_frame(WINDOW_UPDATE, 1, self._taken))
            self._taken = 0
        if begin and not self._batched:
            last = pump_pb2.PullBinlogResp.FromString(stream[begin:end]).entity
        return last

    def _other(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._socket.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, payload))
        elif kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
            raise ConnectionError(f"the Pump ended the pull: {payload!r}")

    def close(self) -> None:
        """End the pull."""
        self._socket.close()
