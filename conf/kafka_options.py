"""Options of Kafka's Java client: the names that operators may not set, and encrypted parts in the values of the others. Pure.

A value may hold ``encrypted(TEXT)`` anywhere; ``ctl encrypt`` prints TEXT. This may be a whole password, or a part within the quotes of
``sasl.jaas.config``. There the decrypted password is escaped, so that its own quotes end nothing.

Promises: no error contains a value.
"""

import re
from collections.abc import Callable

_ORDER = "this program sends each message once and in order"
_BYTES = "this program writes messages as bytes to partition 0"
_READ = "this program reads the end of the topic itself"
CHOSEN: dict[str, str] = {
    "bootstrap.servers": "name the brokers in syncer.to.kafka-addrs",
    "client.id": "use syncer.to.kafka-client-id",
    "max.request.size": "use syncer.to.kafka-max-message-size",
    "delivery.timeout.ms": "use spark.retry-seconds",
    "max.block.ms": "use spark.retry-seconds",
    **dict.fromkeys(
        (
            "acks",
            "batch.size",
            "buffer.memory",
            "enable.idempotence",
            "linger.ms",
            "max.in.flight.requests.per.connection",
            "retries",
            "transactional.id",
        ),
        _ORDER,
    ),
    **dict.fromkeys(
        (
            "interceptor.classes",
            "key.deserializer",
            "key.serializer",
            "partitioner.class",
            "partitioner.ignore.keys",
            "value.deserializer",
            "value.serializer",
        ),
        _BYTES,
    ),
    **dict.fromkeys(("auto.offset.reset", "enable.auto.commit", "group.id", "isolation.level"), _READ),
}
"""Options that are chosen here, and why or by which setting."""

JAAS = "sasl.jaas.config"
_ENCRYPTED = re.compile(r"encrypted\(([A-Za-z0-9+/=\s]*)\)")


def revealed(name: str, value: str, decrypt: Callable[[str], str]) -> str:
    """``value`` of the option ``name``, with every ``encrypted(…)`` decrypted."""

    def plain(found: re.Match[str]) -> str:
        text = decrypt(found[1])
        return text.replace("\\", "\\\\").replace('"', '\\"') if name == JAAS else text

    return _ENCRYPTED.sub(plain, value)


def holds_encrypted(value: str) -> bool:
    """Whether some of it is encrypted."""
    return bool(_ENCRYPTED.search(value))
