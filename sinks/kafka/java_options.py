"""The options of Kafka's Java client for a topic that Spark writes, and what its errors must not show. Pure.

Promises: a send is one batch of the producer, which brokers store as a whole or not at all, however many messages it has. Only the end of the send,
also of a failed one, closes the batch. The batch is sent again under its number until all replicas in sync acknowledge it, or it is given up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.redaction import HIDDEN
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings

ASK_SECONDS = 5
"""How long one question about the ends of the topic may take."""
MOST_BYTES = 4 << 20
"""A send of more than one message is no bigger, whatever the topic takes."""
BROKERS_LIMIT = 1_048_588
"""``max.message.bytes`` of a topic by default."""
_REQUEST_MS = 30_000
_MOST_MS = (1 << 31) - 1
_ROOM = 1 << 20
"""For what frames messages."""
_PRODUCER_ONLY = "compression."
_SECRET = ("password", "key", "jaas", "secret", "token", "credential")
_OURS_TO_ASK = {"allow.auto.create.topics": "true"}
"""A topic that is not there is made where the brokers do so, as a real Drainer's client has them do it."""
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def run_bytes(limit: int) -> int:
    """How many bytes of messages may be sent as one where the topic takes batches of ``limit`` bytes."""
    return max(1, min(MOST_BYTES, limit * 4 // 5 - 1024))


def delivery_ms(settings: BrokerSettings) -> int:
    """After how many milliseconds a producer gives a message up."""
    # Above the time of a request, or the producer refuses to start.
    return min(_MOST_MS, max(int(settings.retry_seconds * 1000), 2 * _milliseconds(dict(settings.options), "request.timeout.ms")))


def producer_options(settings: BrokerSettings, most: int) -> dict[str, str]:
    """Of the producer, as Spark's sink takes them. ``most``: bytes of messages that are sent as one."""
    given = dict(settings.options)
    request = _milliseconds(given, "request.timeout.ms")
    delivery = delivery_ms(settings)
    largest = min(_MOST_MS, max(settings.max_message_bytes, most) + _ROOM)
    ours = {
        "bootstrap.servers": settings.addrs,
        "client.id": settings.client_id,
        "acks": "all",
        "enable.idempotence": "true",
        "max.in.flight.requests.per.connection": "1",
        "request.timeout.ms": str(request),
        "delivery.timeout.ms": str(delivery),
        "max.block.ms": str(delivery),
        # The end of a send flushes; nothing else is to close a batch.
        "linger.ms": str(delivery - request),
        # Twice: what is compressed is estimated, and may be estimated to grow.
        "batch.size": str(min(_MOST_MS, 2 * most + _ROOM)),
        "buffer.memory": str(2 * (largest + 2 * most + _ROOM)),
        "max.request.size": str(largest),
    }
    return _for_spark(given | ours)


def reader_options(settings: BrokerSettings) -> dict[str, str]:
    """Of the consumer, as Spark's source takes them."""
    return _for_spark({**_of_both(settings), "bootstrap.servers": settings.addrs})


def driver_options(settings: BrokerSettings) -> dict[str, str]:
    """Of the consumer that asks for the ends of the topic, as the Java client takes them."""
    asked = str(ASK_SECONDS * 1000)
    ours = {
        "bootstrap.servers": settings.addrs,
        "client.id": settings.client_id,
        "request.timeout.ms": asked,
        "default.api.timeout.ms": asked,
        "key.deserializer": _BYTES,
        "value.deserializer": _BYTES,
        "enable.auto.commit": "false",
    }
    return _of_both(settings) | ours | _OURS_TO_ASK


def without_secrets(text: str, options: Iterable[tuple[str, str]]) -> str:
    """``text`` without anything secret that stands in a value of ``options``."""
    for secret in sorted(set(_secrets(options)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(options: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in options:
        if any(word in name for word in _SECRET):
            yield from filter(None, (value, *re.findall(r'"((?:[^"\\]|\\.)+)"', value)))


def _of_both(settings: BrokerSettings) -> dict[str, str]:
    return {name: value for name, value in settings.options if not name.startswith(_PRODUCER_ONLY)}


def _for_spark(options: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options.items()}


def _milliseconds(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, str(_REQUEST_MS))
    if not text.isdecimal() or not 0 < int(text) <= _MOST_MS // 2:
        raise ConfigError(f"spark.kafka-options: {name} is not a number of milliseconds")
    return int(text)
