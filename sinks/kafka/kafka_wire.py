"""Kafka's requests and responses that a sink needs, in versions that every broker from 0.11 to 4.x supports. Pure.

Promises: each response is read completely, so a missing or additional field is an error here, not a wrong number later.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.sinks.kafka.record_batch import Producer

T = TypeVar("T")

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22
VERSIONS: Mapping[int, int] = {PRODUCE: 3, FETCH: 4, LIST_OFFSETS: 1, METADATA: 4, API_VERSIONS: 0, INIT_PRODUCER_ID: 0}
"""The version of each request that is sent."""
FETCH_ZSTD = 10
"""The version of ``FETCH`` that is sent where the broker takes it (2.1): an older one does not bring records compressed by zstd."""
INT = struct.Struct(">i")
"""The length in front of a request or response, and the number of a response."""
EARLIEST, LATEST = -2, -1
"""Times that ``ListOffsets`` takes for the ends of a partition."""

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, MESSAGE_TOO_LARGE, OUT_OF_ORDER, DUPLICATE, INVALID_EPOCH, UNKNOWN_PRODUCER = 1, 3, 10, 45, 46, 47, 59
_NAMES: Mapping[int, str] = {
    -1: "unknown error of the broker",
    OFFSET_OUT_OF_RANGE: "offset out of range",
    2: "corrupt message",
    UNKNOWN_TOPIC: "unknown topic or partition",
    5: "leader not available",
    6: "not the leader",
    7: "request timed out",
    8: "broker not available",
    MESSAGE_TOO_LARGE: "message too large",
    13: "network exception",
    17: "invalid topic",
    18: "record list too large",
    19: "not enough replicas",
    20: "not enough replicas after append",
    29: "topic authorization failed",
    31: "cluster authorization failed",
    35: "unsupported version",
    41: "not the controller",
    OUT_OF_ORDER: "out of order sequence",
    DUPLICATE: "duplicate sequence",
    INVALID_EPOCH: "invalid producer epoch",
    56: "storage error of the broker",
    UNKNOWN_PRODUCER: "unknown producer",
    74: "fenced leader epoch",
    75: "unknown leader epoch",
    89: "throttling quota exceeded",
}
TRANSIENT = frozenset({2, UNKNOWN_TOPIC, 5, 6, 7, 8, 13, 14, 15, 16, 19, 20, 41, 51, 56, 74, 75, 89})
"""Errors that pass: another leader, missing replicas, a broker that starts."""


class BrokerError(Exception):
    """A broker's answer is an error."""

    def __init__(self, code: int, what: str) -> None:
        """``what``: for people, what was asked for."""
        super().__init__(f"{what}: {_NAMES.get(code, 'error')} ({code})")
        self.code = code


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch of one partition."""

    error: int
    records: bytes


@dataclass(frozen=True, slots=True)
class Leader:
    """Where one partition is written to."""

    error: int
    host: str
    port: int


def frame(key: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """A request as it is sent."""
    head = struct.pack(">hhi", key, version, correlation_id) + _text(client_id)
    return struct.pack(">i", len(head) + len(body)) + head + body


def metadata_request(topic: str) -> bytes:
    """Asks for the leaders of ``topic``, which is created where the brokers do so."""
    return struct.pack(">i", 1) + _text(topic) + b"\x01"


def produce_request(topic: str, batch: bytes, timeout_ms: int) -> bytes:
    """Sends one batch to partition 0; all replicas acknowledge it."""
    return b"".join((_text(None), struct.pack(">hii", -1, timeout_ms, 1), _text(topic), struct.pack(">iii", 1, 0, len(batch)), batch))


def fetch_request(topic: str, offset: int, most: int, version: int) -> bytes:
    """Asks for about ``most`` bytes of partition 0 from ``offset`` on; at least one batch comes."""
    head = struct.pack(">iiiib", -1, 500, 1, most, 0)
    if version < FETCH_ZSTD:
        return head + struct.pack(">i", 1) + _text(topic) + struct.pack(">iiqi", 1, 0, offset, most)
    # No session, no leader epoch, no replica's log start, no topic to forget.
    return head + struct.pack(">iii", 0, -1, 1) + _text(topic) + struct.pack(">iiiqqii", 1, 0, -1, offset, -1, most, 0)


def offsets_request(topic: str, time: int) -> bytes:
    """Asks for an end of partition 0: ``EARLIEST`` or ``LATEST``."""
    return struct.pack(">ii", -1, 1) + _text(topic) + struct.pack(">iiq", 1, 0, time)


def producer_request() -> bytes:
    """Asks for a producer id without transactions."""
    return _text(None) + struct.pack(">i", 60_000)


def leader_in(response: bytes) -> Leader:
    """From the answer to a metadata request for one topic: where its partition 0 is led."""

    def read(r: _Reader) -> Leader:
        r.number(4)
        brokers = dict(r.array(lambda: (r.number(4), (r.text(), r.number(4), r.text())[:2])))
        r.text()
        r.number(4)
        ((error, partitions),) = r.array(lambda: (r.number(2), (r.text(), r.number(1), r.array(lambda: _partition(r)))[2]))
        found = next((p for p in partitions if p[1] == 0), (error or UNKNOWN_TOPIC, 0, -1))
        host, port = brokers.get(found[2], ("", 0))
        return Leader(error or found[0] or (0 if host else 5), host or "", port)

    return _read(response, read)


def produced_in(response: bytes) -> tuple[int, int]:
    """From the answer to a produce request: (error, offset of the first record)."""

    def read(r: "_Reader") -> tuple[int, int]:
        ((found,),) = r.array(lambda: (r.text(), r.array(lambda: (r.number(4), r.number(2), r.number(8), r.number(8))))[1])
        r.number(4)
        return found[1], found[2]

    return _read(response, read)


def fetched_in(response: bytes, version: int) -> Fetched:
    """From the answer to a fetch request of ``version``."""

    def read(r: "_Reader") -> Fetched:
        r.number(4)
        failed = r.number(2) if version >= FETCH_ZSTD else 0
        r.take(4 if version >= FETCH_ZSTD else 0)

        def partition() -> Fetched:
            _, error, _, _ = r.number(4), r.number(2), r.number(8), r.number(8)
            r.take(8 if version >= FETCH_ZSTD else 0)
            r.array(lambda: (r.number(8), r.number(8)))
            return Fetched(error, r.octets())

        found = [one for topic in r.array(lambda: (r.text(), r.array(partition))[1]) for one in topic]
        return Fetched(failed, b"") if failed else found[0]

    return _read(response, read)


def offset_in(response: bytes) -> tuple[int, int]:
    """From the answer to an offsets request: (error, offset)."""

    def read(r: "_Reader") -> tuple[int, int]:
        ((found,),) = r.array(lambda: (r.text(), r.array(lambda: (r.number(4), r.number(2), r.number(8), r.number(8))))[1])
        return found[1], found[3]

    return _read(response, read)


def producer_in(response: bytes) -> tuple[int, Producer]:
    """From the answer to a producer request: (error, producer)."""

    def read(r: "_Reader") -> tuple[int, Producer]:
        _, error = r.number(4), r.number(2)
        return error, Producer(r.number(8), r.number(2))

    return _read(response, read)


def taken_in(response: bytes) -> dict[int, tuple[int, int]]:
    """From the answer to an API versions request: the lowest and the highest version of each request that the broker takes."""

    def read(r: "_Reader") -> dict[int, tuple[int, int]]:
        r.number(2)
        return {key: (least, most) for key, least, most in r.array(lambda: (r.number(2), r.number(2), r.number(2)))}

    return _read(response, read)


class _Reader:
    """Takes fields from a response, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str | None:
        size = self.number(2)
        return None if size < 0 else self.take(size).decode()

    def octets(self) -> bytes:
        return self.take(max(self.number(4), 0))

    def array(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.number(4))]

    def take(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        if len(found) < size:
            raise Corruption("a broker's answer ends early")
        self.at += size
        return found


def _partition(r: _Reader) -> tuple[int, int, int]:
    """Error, number and leader of a partition."""
    found = r.number(2), r.number(4), r.number(4)
    for _ in ("replicas", "in sync"):
        r.array(lambda: r.number(4))
    return found


def _read(response: bytes, read: Callable[[_Reader], T]) -> T:
    r = _Reader(response)
    found = read(r)
    if r.at != len(response):
        raise Corruption(f"a broker's answer is {len(response) - r.at} bytes too long")
    return found


def _text(text: str | None) -> bytes:
    data = (text or "").encode()
    return struct.pack(">h", -1 if text is None else len(data)) + data
