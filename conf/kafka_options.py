"""Options of librdkafka, Kafka's client: those that operators may not set, and encrypted parts in the values of the others. Pure.

A value may hold ``encrypted(TEXT)`` anywhere; ``ctl encrypt`` prints TEXT.

Promises: no error contains a value.
"""

import re
from collections.abc import Callable

_BROKERS = "name the brokers in syncer.to.kafka-addrs"
_SIZE = "use syncer.to.kafka-max-message-size"
_PEM = "librdkafka reads PEM files: use ssl.certificate.location and ssl.key.location"
_KERBEROS = "Kerberos is not supported: use sasl.mechanism = PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
_CHOSEN: dict[str, str] = {
    "bootstrap.servers": _BROKERS,
    "metadata.broker.list": _BROKERS,
    "client.id": "use syncer.to.kafka-client-id",
    "message.max.bytes": _SIZE,
    "max.request.size": _SIZE,
    "batch.num.messages": "use syncer.to.kafka-max-messages",
    "log_level": "this program logs what concerns the topic",
    **dict.fromkeys(("message.timeout.ms", "delivery.timeout.ms", "max.block.ms"), "use spark.retry-seconds"),
    **dict.fromkeys(
        "acks batch.size buffer.memory enable.gapless.guarantee enable.idempotence linger.ms max.in.flight max.in.flight.requests.per.connection "
        "message.send.max.retries partitioner queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms queuing.strategy "
        "request.required.acks retries transactional.id".split(),
        "this program sends each message once and in order",
    ),
    **dict.fromkeys(
        "allow.auto.create.topics auto.commit.enable auto.offset.reset check.crcs enable.auto.commit enable.partition.eof group.id isolation.level "
        "receive.message.max.bytes".split(),
        "this program reads the end of the topic itself",
    ),
}
"""Options that are chosen here, and why or by which setting."""
_OF_JAVA: dict[str, str] = {
    "sasl.jaas.config": "librdkafka reads no JAAS: use sasl.username and sasl.password",
    "sasl.kerberos.": _KERBEROS,
    "ssl.keystore.": _PEM,
    "ssl.truststore.": "librdkafka reads PEM files: use ssl.ca.location",
}
"""Beginnings of the names of Kafka's Java client that librdkafka does not read, and what it reads."""

_ENCRYPTED = re.compile(r"encrypted\(([A-Za-z0-9+/=\s]*)\)")


def refused(name: str, value: str) -> str | None:
    """Why this option cannot be set, and what to set instead; None: it can."""
    if name in ("sasl.mechanism", "sasl.mechanisms") and value.strip().upper() == "GSSAPI":
        return _KERBEROS
    return _CHOSEN.get(name) or next((why for begin, why in _OF_JAVA.items() if name.startswith(begin)), None)


def revealed(value: str, decrypt: Callable[[str], str]) -> str:
    """``value`` with every ``encrypted(…)`` decrypted."""
    return _ENCRYPTED.sub(lambda found: decrypt(found[1]), value)
