"""The settings of a topic for both ways of sending: runs of messages that are sent as one, and when a retry is given up. Pure.

Promises: ``runs`` keeps the order, and gives no run that is bigger than allowed, unless it is a single message.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError

RETRY_SECONDS = 0.5
"""Between two tries."""
RUN_BYTES = 512 * 1024
"""A run of more than one message is no bigger: brokers take 1 MB by default."""
_UNKNOWN_SECONDS = 30.0
"""How long an unknown topic may take to be created."""


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
    """Of Kafka's Java client, where Spark sends; they hold secrets."""

    def __post_init__(self) -> None:
        if not self.addresses():
            raise ConfigError("syncer.to.kafka-addrs is empty: name the brokers, host:port,host:port")
        if self.max_messages < 1 or self.max_message_bytes < 1:
            raise ConfigError("syncer.to.kafka-max-messages and kafka-max-message-size must be at least 1")

    def addresses(self) -> list[tuple[str, int]]:
        """The brokers that are asked first."""
        found = []
        for text in filter(None, (part.strip() for part in self.addrs.split(","))):
            host, colon, port = text.rpartition(":")
            if not colon or not port.isdecimal():
                raise ConfigError(f"syncer.to.kafka-addrs: {text!r} is not of the form host:port")
            found.append((host.strip("[]"), int(port)))
        return found

    @property
    def name(self) -> str:
        """The topic, for people."""
        return f"Kafka topic {self.topic} at {self.addrs}"


def runs(messages: Sequence[bytes], settings: BrokerSettings, most: int = RUN_BYTES) -> Iterator[list[bytes]]:
    """``messages`` in runs of at most ``kafka-max-messages`` and ``most`` bytes.

    Raises:
        ApplyError: a message is bigger than the settings allow; what comes before it was given.
    """
    held: list[bytes] = []
    size = 0
    for message in messages:
        if len(message) > settings.max_message_bytes:
            raise ApplyError(
                f"a transaction is a message of {len(message)} bytes, more than syncer.to.kafka-max-message-size = {settings.max_message_bytes}: raise this setting"
            )
        if held and (size + len(message) > most or len(held) == settings.max_messages):
            yield held
            held, size = [], 0
        held.append(message)
        size += len(message)
    if held:
        yield held


def too_large(name: str, error: object, message: bytes) -> ApplyError:
    """What is said where the brokers refuse a single message."""
    return ApplyError(
        f"{name}: {error}: a transaction is a message of {len(message)} bytes. Raise max.message.bytes of the topic, and "
        "replica.fetch.max.bytes of its brokers, then start again"
    )


class Tries:
    """The tries of one request."""

    def __init__(self, settings: BrokerSettings) -> None:
        """The time begins."""
        self._settings = settings
        self._begun, self._count = time.monotonic(), 0

    def note(self, error: Exception, *, unknown: bool) -> None:
        """``error`` has ended a try. ``unknown``: the brokers do not know the topic.

        Raises:
            ApplyError: it was the last one.
        """
        self._count += 1
        seconds, settings = time.monotonic() - self._begun, self._settings
        if unknown and seconds > _UNKNOWN_SECONDS:
            raise ApplyError(f"{settings.name}: {error}. Create the topic, with one partition") from error
        if self._count > settings.retries and seconds > settings.retry_seconds:
            raise ApplyError(f"{settings.name}: {error}, after {self._count} tries in {seconds:.0f} s") from error
