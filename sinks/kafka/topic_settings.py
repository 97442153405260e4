"""The settings of a topic: runs of messages that are sent as one, when a retry is given up, and librdkafka's options. Pure.

Promises: ``runs`` keeps the order, and gives no run that is bigger than allowed, unless it is a single message.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.redaction import HIDDEN

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


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Where the topic is, and how it is written."""

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
    """Of librdkafka; they hold secrets."""

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
    """What is said where the brokers refuse a single message."""
    return ApplyError(
        f"{name}: {error}: a transaction is a message of {len(message)} bytes. Raise max.message.bytes of the topic, and "
        "replica.fetch.max.bytes of its brokers, then start again"
    )


def client_options(settings: BrokerSettings) -> dict[str, Any]:
    """Of every client. librdkafka's own log repeats what clients hear of: only its worst lines are written."""
    return {**dict(settings.options), "bootstrap.servers": settings.addrs, "client.id": settings.client_id, "log_level": 2}


def producer_options(settings: BrokerSettings) -> dict[str, Any]:
    """Of the producer: a run is one batch, which brokers store as a whole or not at all, and which only ``flush`` closes.

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
    """Of the consumer, which belongs to no group: it is assigned what it reads, and commits nothing."""
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
