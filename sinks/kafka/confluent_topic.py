"""Partition 0 of a topic at real brokers (``sinks.kafka.kafka_sink.Topic``), by librdkafka.

Promises: a run of messages is one batch of an idempotent producer, so brokers store it once, and as a whole or not at all. The next run follows when all
replicas in sync have acknowledged this one, at the offset where it was expected; else the send ends with an error, and with everything that the producer
still holds thrown away: only the next life, which reads the end of the topic, knows what arrived. No other program may send to the topic: if one does, the
offsets show it. No error contains a secret of an option.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import (
    LARGEST,
    RETRY_SECONDS,
    RUN_BYTES,
    BrokerSettings,
    Topic,
    Tries,
    client_options,
    consumer_options,
    producer_options,
    runs,
    too_large,
    without_secrets,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""How long one question may take."""
BROKERS_LIMIT = 1_048_588
"""``max.message.bytes`` of a topic by default."""
_READ_AT_ONCE = 10_000
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_TRANSIENT = _UNKNOWN | {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._SSL,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""What passes: another leader, a broker that starts. librdkafka sends again by itself; these concern questions and reads."""
_NOT_THERE = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.TOPIC_AUTHORIZATION_FAILED)
_UNTRUSTED = "certificate verify failed"
"""In librdkafka's text where TLS fails for good; it has no code of its own."""


class ConfluentTopic(Topic):
    """Partition 0 of a topic. One thread at a time."""

    def __init__(self, settings: BrokerSettings, pause: Callable[[float], None] = time.sleep) -> None:
        """Make no connection. ``pause`` sleeps between retries; it may raise to stop them."""
        self._settings = settings
        self._pause = pause
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._heard: KafkaError | None = None
        """The last error of a connection since the last request."""
        self._waiting_for: str | None = None
        self._end = -1
        """The offset after the last message, once it is known."""
        self._most = 0
        """Bytes of a run; 0: not known yet."""
        if settings.max_message_bytes > LARGEST:
            _log.info("syncer.to.kafka-max-message-size = %d: librdkafka takes %d at most", settings.max_message_bytes, LARGEST)

    def begin(self) -> int:
        """The offset of the first message that the brokers still hold."""
        return self._ends()[0]

    def end(self) -> int:
        """The offset after the last message."""
        self._end = self._ends()[1]
        return self._end

    def read(self, begin: int, end: int) -> Sequence[bytes]:
        """The messages with these offsets; those that the brokers have deleted are left out.

        Raises:
            ApplyError: the topic ends before ``end``, or may not be read.
        """
        at = max(begin, self.begin())
        if at >= end:
            return []
        consumer = self._opened()
        consumer.assign([TopicPartition(self._settings.topic, 0, at)])
        messages: list[bytes] = []
        tries = Tries(self._settings)
        try:
            while at < end:
                self._heard = None
                arrived = consumer.consume(min(end - at, _READ_AT_ONCE), RETRY_SECONDS)
                for message in arrived:
                    error, offset = message.error(), message.offset() or 0
                    if error is None:
                        messages += [message.value() or b""] if offset < end else []
                        at = offset + 1
                    elif error.code() == KafkaError._PARTITION_EOF and offset >= end:
                        # What is left are no messages: marks of transactions, or what compaction has taken.
                        at = end
                    elif error.code() in _NOT_THERE:
                        raise ApplyError(
                            f"{self._settings.name} does not hold offset {at}, although messages up to {end} are expected: {error.str()}"
                        )
                    else:
                        self._hear(error)
                if arrived and self._heard is None:
                    tries = Tries(self._settings)
                else:
                    self._wait(tries, self._words(self._heard) if self._heard else "no messages arrive", unknown=False, seconds=0.0)
        finally:
            consumer.unassign()
        self._waiting_for = None
        return messages

    def send(self, messages: Sequence[bytes]) -> None:
        """Append ``messages`` in their order (``Topic.send``)."""
        if self._end < 0:
            self.end()
        self._most = self._most or min(RUN_BYTES, self._limit())
        for run in runs(messages, self._settings, self._most):
            self._send(run)

    @property
    def waiting_for(self) -> object | None:
        """The transient error that is being retried, or acknowledgements that take long."""
        return self._waiting_for

    def close(self) -> None:
        """Close the connections; nothing is sent afterwards. Safe to call twice."""
        producer, self._producer = self._producer, None
        consumer, self._consumer = self._consumer, None
        if producer is not None:
            producer.purge()
            producer.close()
        if consumer is not None:
            consumer.close()

    # Sending.

    def _send(self, run: Sequence[bytes]) -> None:
        try:
            offset = self._stored(run)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise self._failed(self._words(error), run) from None
            if len(run) == 1:
                raise too_large(self._settings.name, self._words(error), run[0]) from None
            middle = len(run) // 2
            self._send(run[:middle])
            self._send(run[middle:])
            return
        except ApplyError as given_up:
            raise self._failed(str(given_up).removeprefix(f"{self._settings.name}: "), run) from None
        if offset != self._end:
            raise ApplyError(
                f"{self._settings.name}: a message was stored at offset {offset} instead of {self._end}: another program sends to the topic. The topic must be "
                "this Drainer's alone"
            )
        self._end += len(run)

    def _stored(self, run: Sequence[bytes]) -> int:
        """The offset of the first message of ``run``, all of which are acknowledged. If it raises, no other message of ``run`` is sent from here.

        Raises:
            KafkaException: the brokers, or librdkafka, refuse it.
            ApplyError: time is up.
        """
        reports: list[tuple[KafkaError | None, int | None]] = []

        def report(error: KafkaError | None, message: Message) -> None:
            reports.append((error, message.offset()))

        tries = Tries(self._settings)
        self._heard = None
        try:
            if self._producer is None:
                self._producer = self._client(Producer, producer_options(self._settings))
            for message in run:
                self._producer.produce(self._settings.topic, message, partition=0, on_delivery=report)
            while left := self._producer.flush(RETRY_SECONDS):
                words = self._words(self._heard) if self._heard else f"{left} messages are not acknowledged"
                self._wait(tries, words, unknown=False, seconds=0.0)
            for error, _ in reports:
                if error is not None:
                    raise KafkaException(error)
        except BaseException:
            self.close()
            raise
        self._waiting_for = None
        last = reports[-1][1]
        # A broker that knows the batch already may not say where it is.
        return (self._ends()[1] if last is None or last < 0 else last + 1) - len(run)

    def _failed(self, words: str, run: Sequence[bytes]) -> ApplyError:
        return ApplyError(
            f"{self._settings.name}: a send of {len(run)} messages failed, after which the topic should end at offset {self._end + len(run)}, before at "
            f"{self._end}: {words}. This life does not send them again: the next start reads what the topic holds, and continues there"
        )

    def _limit(self) -> int:
        """``max.message.bytes`` of the topic; the default where this user may not ask."""
        admin = self._client(AdminClient, client_options(self._settings))
        try:
            (described,) = admin.describe_configs(
                [ConfigResource(ResourceType.TOPIC, self._settings.topic)], request_timeout=ASK_SECONDS
            ).values()
            return int(described.result()["max.message.bytes"].value)
        except KafkaException as error:
            words = self._words(error.args[0])
            _log.warning("%s: its max.message.bytes cannot be read; %d is assumed: %s", self._settings.name, BROKERS_LIMIT, words)
            return BROKERS_LIMIT

    # Asking.

    def _ends(self) -> tuple[int, int]:
        """Return the offsets of the first message and after the last one; the brokers are asked again while they are away.

        Raises:
            ApplyError: the error does not pass, or time is up.
        """
        tries = Tries(self._settings)
        while True:
            consumer = self._opened()
            self._heard = None
            try:
                ends = self._watermarks(consumer)
            except KafkaException as raised:
                # Only a poll tells of what connections have met.
                consumer.poll(0)
                error: KafkaError = self._heard or raised.args[0]
                words = self._words(error)
                if error.code() not in _TRANSIENT or _UNTRUSTED in words:
                    raise ApplyError(f"{self._settings.name}: {words}") from None
                self._wait(tries, words, unknown=error.code() in _UNKNOWN, seconds=RETRY_SECONDS)
            else:
                self._waiting_for = None
                return ends

    def _watermarks(self, consumer: Consumer) -> tuple[int, int]:
        topic = self._settings.topic
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, 0), ASK_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in _UNKNOWN:
                raise
            # Brokers that make topics do so when they are asked for one.
            described = consumer.list_topics(topic, ASK_SECONDS).topics[topic]
            raise KafkaException(described.error or error.args[0]) from None

    def _wait(self, tries: Tries, words: str, *, unknown: bool, seconds: float) -> None:
        tries.note(words, unknown=unknown)
        self._waiting_for = f"{self._settings.name}: {words}"
        self._pause(seconds)

    def _opened(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._client(Consumer, consumer_options(self._settings))
        return self._consumer

    def _client(self, kind: Callable[[dict[str, Any]], T], options: dict[str, Any]) -> T:
        try:
            return kind(options | {"error_cb": self._hear})
        except KafkaException as error:
            raise ConfigError(f"spark.kafka-options: {self._words(error.args[0])}") from None

    def _hear(self, error: KafkaError) -> None:
        # That all are down says less than why one is, and the consumer belongs to no group.
        if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and (self._heard is None or error.code() != KafkaError._ALL_BROKERS_DOWN):
            self._heard = error

    def _words(self, error: KafkaError) -> str:
        return without_secrets(error.str(), self._settings.options)
