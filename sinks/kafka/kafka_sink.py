"""Binlogs as messages of one Kafka topic (``db-type = "kafka"``): what a real Drainer's Kafka sink sends (wire.md 2.4, drainer.md 9).

One message per transaction and DDL, without a key, in partition 0, in the order of commit_ts.

Promises: those of the contract, as long as no other program sends to the topic. Messages that were sent before a crash but not recorded are
read from the end of the topic and not sent again. So the end of the topic must be readable: brokers may not have deleted those messages yet. A
consumer should skip messages that are not above the last commit_ts, as it does with a real Drainer.

A topic's settings are here, too: runs of messages that are sent as one, when a retry is given up, and librdkafka's options. ``runs`` keeps the order, and gives
no run that is bigger than allowed, unless it is a single message.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.redaction import HIDDEN
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.column_values import process_zone
from pyspark_tidb_binlog.sinks.translate.local_record import LocalProgress, TargetPlace
from pyspark_tidb_binlog.sinks.translate.message_sink import LastBinlog, MessageSettings, MessageSink, Outlet
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Message

_log = logging.getLogger(__name__)

_LOOK_BACK = 64
"""Messages read at a time while the end of the record is searched."""
_SEND_BYTES = 16 << 20
"""Approximate bytes of messages that are sent at a time."""
RETRY_SECONDS = 0.5
"""Between two tries."""
RUN_BYTES = 4 << 20
"""A run of more than one message is no bigger, whatever the topic takes."""
LARGEST = 10**9
"""Bytes of the largest message that librdkafka takes."""
_MOST_MESSAGES = 1_000_000
"""Of a batch, in librdkafka."""
_FRAME = 64
"""Bytes that frame a message, at most."""
_ROOM = 1 << 20
_UNKNOWN_SECONDS = 30.0
"""How long an unknown topic may take to be created."""
_SECRET = ("password", "key", "secret", "token", "credential")


class Topic(Protocol):
    """Partition 0 of a topic."""

    def begin(self) -> int:
        """The offset of the first message that the brokers still hold."""

    def end(self) -> int:
        """The offset after the last message."""

    def read(self, begin: int, end: int) -> Sequence[bytes]:
        """The messages with these offsets; those that the brokers have deleted are left out."""

    def send(self, messages: Sequence[bytes]) -> None:
        """Append ``messages`` in their order; acknowledged by all replicas when it returns.

        Raises:
            ApplyError: it failed; a leading part of ``messages`` may be there all the same.
        """

    @property
    def waiting_for(self) -> object | None:
        """The transient error that is being retried."""

    def close(self) -> None:
        """Release connections; safe to call twice."""


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()


def kafka_sink(topic: Topic, settings: MessageSettings) -> MessageSink:
    """The sink of a stream into a topic. TIMESTAMP values are in the zone of this process."""
    return MessageSink(settings, SecondaryBinlogs(process_zone()), TopicEnd(topic))


class TopicEnd(Outlet):
    """The end of a topic, to which messages are sent once."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._sent: Counter[bytes] = Counter()
        """Digests of the messages beyond the record."""
        self._offset = 0

    def open(self, progress: LocalProgress | None, commit_ts: int) -> None:
        """Read what was sent beyond the record."""
        end = self._topic.end()
        if progress is not None and progress.place is not None:
            self._offset = progress.place["offset"]
            if self._offset > end:
                raise ApplyError(
                    f"the topic ends at offset {end}, but {self._offset} messages are recorded as sent: it is another topic, or was created again. Name the "
                    "right topic, or begin with an empty data-dir"
                )
            beyond = list(self._topic.read(self._offset, end))
        else:
            beyond = self._beyond(commit_ts, end)
            self._offset = end - len(beyond)
        self._sent = Counter(map(_digest, beyond))
        if beyond:
            _log.warning(
                "the topic holds %d messages beyond %d. They were sent before the last stop and are not sent again",
                len(beyond),
                commit_ts,
            )

    def put(self, messages: Iterable[Message]) -> int:
        """Send what is not there already."""
        done, held, size = 0, [], 0
        for message in messages:
            done += message.events
            if self._sent_before(message.payload):
                continue
            held.append(message.payload)
            size += len(message.payload)
            if size >= _SEND_BYTES:
                self._send(held)
                held, size = [], 0
        self._send(held)
        return done

    def last(self) -> LastBinlog | None:
        """The last message that the brokers hold."""
        first, end = self._topic.begin(), self._topic.end()
        for begin in range(end - _LOOK_BACK, first - _LOOK_BACK, -_LOOK_BACK):
            if held := self._topic.read(max(begin, first), begin + _LOOK_BACK):
                return LastBinlog("the topic", commit_ts_of(held[-1]))
        return LastBinlog("the topic", 0) if end else None

    @property
    def place(self) -> TargetPlace:
        """The offset after the last message of the record."""
        return {"offset": self._offset}

    @property
    def waiting_for(self) -> object | None:
        """The topic's transient error."""
        return self._topic.waiting_for

    def close(self) -> None:
        """Release the topic."""
        self._topic.close()

    def _send(self, messages: list[bytes]) -> None:
        if messages:
            self._topic.send(messages)
            self._offset += len(messages)

    def _sent_before(self, payload: bytes) -> bool:
        if not self._sent:
            return False
        known = _digest(payload)
        if not self._sent[known]:
            return False
        self._sent[known] -= 1
        self._sent += Counter()
        self._offset += 1
        return True

    def _beyond(self, commit_ts: int, end: int) -> list[bytes]:
        """The messages at the end of the topic with a higher commit_ts."""
        messages: list[bytes] = []
        first = self._topic.begin()
        while end > first:
            begin = max(first, end - _LOOK_BACK)
            part = list(self._topic.read(begin, end))
            beyond = [m for m in part if commit_ts_of(m) > commit_ts]
            messages = beyond + messages
            if len(beyond) < len(part):
                break
            end = begin
        return messages


# A topic's settings.


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The topic's place, and how it is written."""

    addrs: str
    """``host:port,host:port``."""
    topic: str
    client_id: str = "tidb_binlog"
    max_messages: int = 1024
    """Messages of one request, at most."""
    max_message_bytes: int = 1 << 30
    retries: int = 60
    retry_seconds: float = 3600.0
    """A request is given up after so many retries and so much time."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of librdkafka; they hold secrets."""

    def __post_init__(self) -> None:
        addresses = [part for part in map(str.strip, self.addrs.split(",")) if part]
        if not addresses:
            raise ConfigError("syncer.to.kafka-addrs is empty: name the brokers, host:port,host:port")
        for text in addresses:
            _, colon, port = text.rpartition(":")
            if not colon or not port.isdecimal():
                raise ConfigError(f"syncer.to.kafka-addrs: {text!r} is not of the form host:port")
        if self.max_messages < 1 or self.max_message_bytes < 1:
            raise ConfigError("syncer.to.kafka-max-messages and kafka-max-message-size must be at least 1")

    @property
    def name(self) -> str:
        """The topic, for people."""
        return f"Kafka topic {self.topic} at {self.addrs}"


def runs(messages: Sequence[bytes], settings: BrokerSettings, most: int) -> Iterator[list[bytes]]:
    """``messages`` in runs of at most ``kafka-max-messages``, which take at most ``most`` bytes as a batch.

    Raises:
        ApplyError: a message is bigger than the settings or librdkafka allow; what comes before it was given.
    """
    held: list[bytes] = []
    size = 0
    for message in messages:
        if len(message) > min(settings.max_message_bytes, LARGEST):
            raise ApplyError(
                f"a transaction is a message of {len(message)} bytes, more than syncer.to.kafka-max-message-size = {settings.max_message_bytes}: "
                f"raise this setting; librdkafka takes {LARGEST} at most"
            )
        if held and (size + len(message) + _FRAME > most or len(held) == min(settings.max_messages, _MOST_MESSAGES)):
            yield held
            held, size = [], 0
        held.append(message)
        size += len(message) + _FRAME
    if held:
        yield held


def too_large(name: str, error: object, message: bytes) -> ApplyError:
    """Return the error for a single message that the brokers refuse."""
    return ApplyError(
        f"{name}: {error}: a transaction is a message of {len(message)} bytes. Raise max.message.bytes of the topic, and "
        "replica.fetch.max.bytes of its brokers, then start again"
    )


def client_options(settings: BrokerSettings) -> dict[str, Any]:
    """Return the options of every client. librdkafka's own log repeats what clients hear of: only its worst lines are written."""
    return {**dict(settings.options), "bootstrap.servers": settings.addrs, "client.id": settings.client_id, "log_level": 2}


def producer_options(settings: BrokerSettings) -> dict[str, Any]:
    """Return the producer's options: a run is one batch, which brokers store as a whole or not at all, and which only ``flush`` closes.

    The producer never gives a message up: it would give up the messages of a batch one by one. The sink purges the whole run instead.
    """
    return client_options(settings) | {
        "enable.idempotence": True,
        "message.timeout.ms": 0,
        "linger.ms": 900_000,
        "batch.num.messages": _MOST_MESSAGES,
        "batch.size": 2 * RUN_BYTES,
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": (1 << 31) - 1,
        "message.max.bytes": min(LARGEST, max(settings.max_message_bytes, 2 * RUN_BYTES) + _ROOM),
    }


def consumer_options(settings: BrokerSettings) -> dict[str, Any]:
    """Return the options of the consumer, which belongs to no group: it is assigned what it reads, and commits nothing."""
    return client_options(settings) | {
        "group.id": settings.client_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
        "check.crcs": True,
        "receive.message.max.bytes": (1 << 31) - 1,
        # A topic that is not there is made where the brokers do so, as a real Drainer's client has them do it.
        "allow.auto.create.topics": True,
    }


def without_secrets(text: str, options: Iterable[tuple[str, str]]) -> str:
    """``text`` without the values of those ``options`` that are secret; names of files are not."""
    secrets = {value for name, value in options if any(word in name for word in _SECRET) and not name.endswith(".location")}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


class Tries:
    """The tries of one request."""

    def __init__(self, settings: BrokerSettings) -> None:
        """The time begins."""
        self._settings = settings
        self._begun, self._count = time.monotonic(), 0

    def note(self, error: str, *, unknown: bool) -> None:
        """``error`` has ended a try. ``unknown``: the brokers do not know the topic.

        Raises:
            ApplyError: it was the last one.
        """
        self._count += 1
        seconds, settings = time.monotonic() - self._begun, self._settings
        if unknown and seconds > _UNKNOWN_SECONDS:
            raise ApplyError(f"{settings.name}: {error}. Create the topic, with one partition")
        if self._count > settings.retries and seconds > settings.retry_seconds:
            raise ApplyError(f"{settings.name}: {error}, after {self._count} tries in {seconds:.0f} s")
