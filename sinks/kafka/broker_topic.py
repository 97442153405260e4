"""Partition 0 of a topic at real brokers (``sinks.kafka.kafka_sink.Topic``), over one connection to its leader, which is reopened when lost.

Promises: ``send`` returns when all replicas in sync have acknowledged. A batch whose answer was lost is sent again under the same number, which the broker
knows: the topic has the batch once, and in order. Transient errors are retried for as long as the settings say. No other program may send to the topic:
if one does, the offsets show it, and the sink fails.
"""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption
from pyspark_tidb_binlog.sinks.kafka import cut_off
from pyspark_tidb_binlog.sinks.kafka import kafka_wire as wire
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import Topic
from pyspark_tidb_binlog.sinks.kafka.kafka_wire import BrokerError, Leader
from pyspark_tidb_binlog.sinks.kafka.record_batch import Producer, record_batch, records_of
from pyspark_tidb_binlog.sinks.kafka.topic_settings import RETRY_SECONDS, BrokerSettings, Tries, runs, too_large

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 45.0
_PRODUCE_SECONDS = 30.0
"""How long a broker may wait for the other replicas."""
_FETCH_BYTES = 16 << 20
_SEQUENCES = 1 << 31
"""After the last sequence number comes 0."""


class BrokerTopic(Topic):
    """Partition 0 of a topic. One thread at a time."""

    def __init__(self, settings: BrokerSettings, pause: Callable[[float], None] = time.sleep) -> None:
        """No connection is made. ``pause`` sleeps between retries; it may raise to stop them."""
        self._settings = settings
        self._pause = pause
        self._leader: _Connection | None = None
        self._waiting_for: Exception | None = None
        self._producer: Producer | None = None
        self._sequence = 0
        self._end = -1
        """The offset after the last message, once it is known."""

    def begin(self) -> int:
        """The offset of the first message that the brokers still hold."""
        return self._retried(lambda leader: self._offset(leader, wire.EARLIEST))

    def end(self) -> int:
        """The offset after the last message."""
        cut_off.require_none(self._settings)
        self._end = self._retried(lambda leader: self._offset(leader, wire.LATEST))
        return self._end

    def read(self, begin: int, end: int) -> Sequence[bytes]:
        """The messages with these offsets; those that the brokers have deleted are left out."""
        found: list[bytes] = []
        at = begin
        while at < end:
            fetched = self._retried(lambda leader, at=at: self._fetched(leader, at))  # type: ignore[misc]
            if fetched is None:
                first = self.begin()
                if first <= at:
                    raise ApplyError(f"{self._settings.name} does not hold offset {at}, although messages up to {end} are expected")
                at = first
                continue
            records = [one for one in records_of(fetched) if at <= one.offset < end]
            found += [one.value for one in records]
            if not records:
                # Only control records, or what compaction has left.
                return found
            at = records[-1].offset + 1
        return found

    def send(self, messages: Sequence[bytes]) -> None:
        """Append ``messages`` in their order (``Topic.send``)."""
        if self._end < 0:
            self.end()
        for batch in runs(messages, self._settings):
            self._send(batch)

    @property
    def waiting_for(self) -> object | None:
        """The transient error that is being retried."""
        return self._waiting_for

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.close()

    # Sending.

    def _send(self, messages: Sequence[bytes]) -> None:
        try:
            offset = self._retried(_Sending(self, messages, time.time_ns() // 1_000_000))
        except BrokerError as error:
            if error.code != wire.MESSAGE_TOO_LARGE or len(messages) == 1:
                raise self._refused(error, messages) from error
            middle = len(messages) // 2
            self._send(messages[:middle])
            self._send(messages[middle:])
            return
        if offset not in (-1, self._end):
            raise ApplyError(
                f"{self._settings.name}: a message was stored at offset {offset} instead of {self._end}: another program sends to the topic. The topic must be "
                "this Drainer's alone"
            )
        self._sequence = (self._sequence + len(messages)) % _SEQUENCES
        self._end += len(messages)

    def _refused(self, error: BrokerError, messages: Sequence[bytes]) -> ApplyError:
        if error.code == wire.MESSAGE_TOO_LARGE:
            return too_large(self._settings.name, error, messages[0])
        return ApplyError(f"{self._settings.name}: {error}")

    def begun_producer(self, leader: "_Connection") -> Producer:
        """The producer of this life."""
        if self._producer is None:
            code, self._producer = wire.producer_in(leader.ask(wire.INIT_PRODUCER_ID, wire.producer_request()))
            self._sequence = 0
            if code:
                self._producer = None
                raise BrokerError(code, "asking for a producer id")
        return self._producer

    def forget_producer(self) -> None:
        """The next batch asks for another one."""
        self._producer = None

    @property
    def place(self) -> tuple[str, int]:
        """Topic and sequence number of the next batch."""
        return self._settings.topic, self._sequence

    # Asking.

    def _offset(self, leader: "_Connection", end: int) -> int:
        code, offset = wire.offset_in(leader.ask(wire.LIST_OFFSETS, wire.offsets_request(self._settings.topic, end)))
        if code:
            raise BrokerError(code, "asking for the ends of the topic")
        return offset

    def _fetched(self, leader: "_Connection", at: int) -> bytes | None:
        """None: the brokers have deleted it."""
        version = leader.versions[wire.FETCH]
        found = wire.fetched_in(leader.ask(wire.FETCH, wire.fetch_request(self._settings.topic, at, _FETCH_BYTES, version)), version)
        if found.error == wire.OFFSET_OUT_OF_RANGE:
            return None
        if found.error:
            raise BrokerError(found.error, "reading the topic")
        return found.records

    def _retried(self, work: "Callable[[_Connection], T]") -> T:
        tries = Tries(self._settings)
        while True:
            try:
                found = work(self._connected())
            except (OSError, BrokerError) as error:
                if isinstance(error, BrokerError) and error.code not in wire.TRANSIENT:
                    raise
                self.close()
                tries.note(error, unknown=isinstance(error, BrokerError) and error.code == wire.UNKNOWN_TOPIC)
                self._waiting_for = error
                self._pause(RETRY_SECONDS)
            except Corruption as error:
                self.close()
                raise ApplyError(f"{self._settings.name}: {error}") from error
            else:
                self._waiting_for = None
                return found

    def _connected(self) -> "_Connection":
        if self._leader is None:
            led = self._led()
            self._leader = _Connection(led.host, led.port, self._settings.client_id)
        return self._leader

    def _led(self) -> Leader:
        failed: Exception = OSError("no broker")
        for host, port in self._settings.addresses():
            try:
                asked = _Connection(host, port, self._settings.client_id)
                try:
                    found = wire.leader_in(asked.ask(wire.METADATA, wire.metadata_request(self._settings.topic)))
                finally:
                    asked.close()
            except OSError as error:
                failed = error
                continue
            if not found.error:
                return found
            failed = BrokerError(found.error, "asking for the leader")
        raise failed


@dataclass(slots=True)
class _Sending:
    """One batch on its way, over any number of tries."""

    topic: BrokerTopic
    messages: Sequence[bytes]
    time_ms: int
    uncertain: bool = False
    """Whether it may be in the topic, although no answer said so."""

    def __call__(self, leader: "_Connection") -> int:
        """One try: the offset of the first message; -1 where only that they are there is known."""
        producer = self.topic.begun_producer(leader)
        name, sequence = self.topic.place
        batch = record_batch(self.messages, producer, sequence, self.time_ms)
        uncertain, self.uncertain = self.uncertain, True
        code, offset = wire.produced_in(leader.ask(wire.PRODUCE, wire.produce_request(name, batch, int(_PRODUCE_SECONDS * 1000))))
        if code in (0, wire.DUPLICATE):
            return offset
        if code in (wire.OUT_OF_ORDER, wire.INVALID_EPOCH, wire.UNKNOWN_PRODUCER) and not uncertain and sequence:
            # The broker has forgotten a producer that was quiet for long; this batch is not there.
            self.topic.forget_producer()
            self.uncertain = False
            return self(leader)
        raise BrokerError(code, "sending")


class _Connection:
    """To one broker; an ``OSError`` ends it."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self._client_id = client_id
        self._where = f"{host}:{port}"
        self._number = 0
        self.versions = dict(wire.VERSIONS)
        """The version of each request that this broker is sent."""
        try:
            self._socket = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError as error:
            raise OSError(f"broker {self._where}: {error}") from error
        try:
            self._socket.settimeout(_ANSWER_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._choose(wire.taken_in(self.ask(wire.API_VERSIONS, b"")))
        except BaseException:
            self.close()
            raise

    def ask(self, key: int, body: bytes) -> bytes:
        """Send a request and return the body of its answer."""
        self._number += 1
        try:
            self._socket.sendall(wire.frame(key, self.versions[key], self._number, self._client_id, body))
            (size,) = wire.INT.unpack(self._take(4))
            answer = self._take(size)
        except OSError as error:
            raise OSError(f"broker {self._where}: {error}") from error
        (number,) = wire.INT.unpack_from(answer)
        if number != self._number:
            raise OSError(f"broker {self._where} gave answer {number} to request {self._number}")
        return answer[4:]

    def close(self) -> None:
        self._socket.close()

    def _choose(self, taken: dict[int, tuple[int, int]]) -> None:
        least, most = taken.get(wire.FETCH, (0, 0))
        if least <= wire.FETCH_ZSTD <= most:
            self.versions[wire.FETCH] = wire.FETCH_ZSTD
        missing = [key for key, version in self.versions.items() if key not in taken or not taken[key][0] <= version <= taken[key][1]]
        if missing:
            raise ApplyError(
                f"broker {self._where} does not support requests {missing} as Kafka 0.11 to 4 does: it is older, or not a Kafka broker"
            )

    def _take(self, size: int) -> bytes:
        held = bytearray()
        while len(held) < size:
            part = self._socket.recv(min(size - len(held), 1 << 20))
            if not part:
                raise OSError("the connection was closed")
            held += part
        return bytes(held)
