"""Partition 0 of a topic at real brokers (``sinks.kafka.kafka_sink.Topic``), written and read by Spark's Kafka sink and source, which support TLS, SASL
and compression. [spark]

A consumer of the same Java client on the driver reads the ends of the topic, because Spark's source gives no offset of an empty topic.

Promises: a run of messages is one job of one task, and one batch of its producer, so brokers store it as a whole or not at all. (If a task ends between two
messages, Spark's sink sends those before.) Before and after a run the end of the topic is compared with the expected offset; a difference is an error that
names both. Nothing is sent again here: a task that Spark retries fails before its first message, and after a failed job only the next life, which reads the
end of the topic, knows what arrived. No value of an option appears in an error, in Spark's log or UI.

Not promised: an executor that outlives its driver during a send may still send that run after the next life has read the end of the topic. Then the
topic has the run twice, and the next comparison fails.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.engine.spark_jvm import is_a, jvm_of
from pyspark_tidb_binlog.sinks.kafka import cut_off
from pyspark_tidb_binlog.sinks.kafka.java_options import (
    ASK_SECONDS,
    BROKERS_LIMIT,
    delivery_ms,
    driver_options,
    producer_options,
    reader_options,
    run_bytes,
    without_secrets,
)
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import Topic
from pyspark_tidb_binlog.sinks.kafka.topic_settings import RETRY_SECONDS, BrokerSettings, Tries, runs, too_large

T = TypeVar("T")

_log = logging.getLogger(__name__)

_RECORD = pa.schema([pa.field("value", pa.binary()), pa.field("partition", pa.int32())])
_TASK = "replace(concat(reflect('org.slf4j.MDC', 'get', 'task_name'), reflect('org.slf4j.MDC', 'get', 'mdc.taskName')), 'null')"
"""``task 0.0 in stage 12.0 (TID 34)``: index and attempt of a task, number and attempt of a stage. The second name is that of an older form of the log."""
_FIRST = "task [0-9]+[.]0 in stage [0-9]+[.]0 "
_AGAIN = "another attempt of this task began this send and may have sent messages: the send is not tried again"
_SLOW_SECONDS = 5.0
"""After which a send is said to be waited for."""
_HIDING = ("spark.sql.redaction.options.regex", "^kafka[.]|(?i)url")
"""Spark shows the options of a write in the plan: all options of the Java client are hidden, whatever their names are."""
_BY_V1 = ("spark.sql.sources.useV1SourceList", "kafka")
_TRANSIENT = "org.apache.kafka.common.errors.RetriableException"
_UNRESOLVED = "No resolvable bootstrap urls"
_GIVEN_UP = re.compile(r"^(?!InterruptException)\w+Exception: ")
"""What the Java client itself says of messages that it sends no more; an interrupt is of Spark, which cancels a job."""
_OF_KAFKA = re.compile(r"org\.apache\.kafka\.[\w.$]*?(\w+Exception): ([^\n]*)")


class SparkTopic(Topic):
    """Partition 0 of a topic. One thread at a time."""

    def __init__(self, spark: SparkSession, settings: BrokerSettings, pause: Callable[[float], None] = time.sleep) -> None:
        """No connection is made. ``spark`` has the jars of Spark's Kafka sink. ``pause`` sleeps between retries; it may raise to stop them."""
        self._spark = spark
        self._settings = settings
        self._pause = pause
        self._own_session: SparkSession | None = None
        self._consumer: Any = None
        self._waiting_for: object | None = None
        self._sending_since: float | None = None
        self._end = -1
        """The offset after the last message, once it is known."""
        self._run_bytes = 0
        """Of one send, at most; 0: not known yet."""

    def begin(self) -> int:
        """The offset of the first message that the brokers still hold."""
        return self._asked(lambda consumer: consumer.beginningOffsets)

    def end(self) -> int:
        """The offset after the last message."""
        cut_off.require_none(self._settings)
        self._end = self._asked(lambda consumer: consumer.endOffsets)
        return self._end

    def read(self, begin: int, end: int) -> Sequence[bytes]:
        """The messages with these offsets; those that the brokers have deleted are left out."""
        tries = Tries(self._settings)
        while True:
            first = max(begin, self.begin())
            if first >= end:
                return []
            try:
                found = self._read(first, end)
            except (PySparkException, Py4JJavaError) as error:
                # Reading may be repeated as often as one likes.
                tries.note(OSError(self._words(error)), unknown=False)
                self._wait(self._words(error))
            else:
                self._waiting_for = None
                return found

    def send(self, messages: Sequence[bytes]) -> None:
        """Append ``messages`` in their order (``Topic.send``)."""
        if self._end < 0:
            self.end()
        self._run_bytes = self._run_bytes or run_bytes(self._limit())
        for run in runs(messages, self._settings, self._run_bytes):
            self._send(run)

    @property
    def waiting_for(self) -> object | None:
        """The transient error that is being retried, or a send that takes long."""
        since = self._sending_since
        if since is not None and time.monotonic() - since > _SLOW_SECONDS:
            return f"{self._settings.name}: a send through Spark has been running for {time.monotonic() - since:.0f} s"
        return self._waiting_for

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.close(self._jvm.java.time.Duration.ofSeconds(1))
            except Py4JJavaError as error:
                _log.info("%s: %s", self._settings.name, self._words(error))

    # Sending.

    def _send(self, run: Sequence[bytes]) -> None:
        self._expect(self._end, "before a send")
        after = self._end + len(run)
        cut_off.begins(self._settings, delivery_ms(self._settings) / 1000)
        self._sending_since = time.monotonic()
        try:
            self._write(run)
        except (PySparkException, Py4JJavaError) as error:
            words = self._words(error)
            if _GIVEN_UP.match(words):
                cut_off.is_over(self._settings)
            # Spark cancels the job of a stream that is stopped.
            self._pause(0.0)
            raise self._failed(words, run, after) from None
        finally:
            self._sending_since = None
        cut_off.is_over(self._settings)
        self._expect(after, f"after {len(run)} messages were sent at {self._end}")
        self._end = after

    def _write(self, run: Sequence[bytes]) -> None:
        rows = pa.Table.from_arrays([pa.array(run, pa.binary()), pa.array([0] * len(run), pa.int32())], schema=_RECORD)
        frame = of_first_attempt(self._session.createDataFrame(rows).coalesce(1))
        writer = frame.write.format("kafka").options(**producer_options(self._settings, self._run_bytes))
        writer.option("topic", self._settings.topic).mode("append").save()

    def _expect(self, expected: int, when: str) -> None:
        found = self._asked(lambda consumer: consumer.endOffsets)
        if found != expected:
            raise ApplyError(
                f"{self._settings.name} ends at offset {found} {when}, where {expected} was expected. Another program sends to the topic, which must be "
                "this Drainer's alone, or the topic was created again. The next start reads what the topic holds"
            )

    def _failed(self, words: str, run: Sequence[bytes], after: int) -> ApplyError:
        if "RecordTooLargeException" in words and len(run) == 1:
            return too_large(self._settings.name, words, run[0])
        if _AGAIN in words:
            words += ". Spark's log says how the first attempt ended"
        return ApplyError(
            f"{self._settings.name}: a send of {len(run)} messages failed, after which the topic should end at offset {after}, before at {self._end}: "
            f"{words}. This life does not send them again: the next start reads what the topic holds, and continues there"
        )

    def _limit(self) -> int:
        """``max.message.bytes`` of the topic; the default where this user may not ask."""
        jvm, name = self._jvm, self._settings.topic
        config = jvm.org.apache.kafka.common.config
        what = config.ConfigResource(getattr(config, "ConfigResource$Type").TOPIC, name)
        try:
            admin = jvm.org.apache.kafka.clients.admin.Admin.create(self._map(driver_options(self._settings)))
            try:
                found = admin.describeConfigs(jvm.java.util.Collections.singletonList(what)).all().get().get(what)
                return int(found.get("max.message.bytes").value())
            finally:
                admin.close(jvm.java.time.Duration.ofSeconds(1))
        except Py4JJavaError as error:
            _log.warning(
                "%s: its max.message.bytes cannot be read; %d is assumed: %s", self._settings.name, BROKERS_LIMIT, self._words(error)
            )
            return BROKERS_LIMIT

    # Reading and asking.

    def _read(self, begin: int, end: int) -> list[bytes]:
        name = self._settings.topic
        reader = self._session.read.format("kafka").options(**reader_options(self._settings))
        reader = reader.option("assign", json.dumps({name: [0]})).option("failOnDataLoss", "true")
        for option, offset in (("startingOffsets", begin), ("endingOffsets", end)):
            reader = reader.option(option, json.dumps({name: {"0": offset}}))
        return [bytes(row[0]) for row in reader.load().select("value").toLocalIterator()]

    def _asked(self, question: Callable[[Any], Any]) -> int:
        """What a consumer answers about partition 0, once it does."""
        tries = Tries(self._settings)
        while True:
            try:
                part = self._jvm.org.apache.kafka.common.TopicPartition(self._settings.topic, 0)
                seconds = self._jvm.java.time.Duration.ofSeconds(ASK_SECONDS)
                found = int(question(self._opened())(self._jvm.java.util.Collections.singletonList(part), seconds).get(part))
            except Py4JJavaError as error:
                words = self._words(error)
                if not self._passes(error):
                    self.close()
                    raise ApplyError(f"{self._settings.name}: {words}") from None
                unknown = self._is_unknown()
                self.close()
                tries.note(OSError("unknown topic or partition" if unknown else words), unknown=unknown)
                self._wait(words)
            else:
                self._waiting_for = None
                return found

    def _is_unknown(self) -> bool:
        """Whether the brokers answer, and have no such topic; they make it where they do so."""
        if self._consumer is None:
            return False
        try:
            return not self._consumer.partitionsFor(self._settings.topic, self._jvm.java.time.Duration.ofSeconds(1))
        except Py4JJavaError:
            return False

    def _wait(self, words: str) -> None:
        self._waiting_for = f"{self._settings.name}: {words}"
        self._pause(RETRY_SECONDS)

    def _opened(self) -> Any:
        if self._consumer is None:
            made = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self._map(driver_options(self._settings)))
            self._consumer = made
        return self._consumer

    def _passes(self, error: Py4JJavaError) -> bool:
        cause = error.java_exception
        while cause is not None:
            if is_a(self._spark, cause, _TRANSIENT) or _UNRESOLVED in str(cause.getMessage()):
                return True
            cause = cause.getCause()
        return False

    def _words(self, error: PySparkException | Py4JJavaError) -> str:
        """What an error of Java says, in a line, and without a secret."""
        text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        if isinstance(error, Py4JJavaError) and error.java_exception.getCause() is not None:
            text += f"\n{error.java_exception.getCause()}"
        found = _OF_KAFKA.findall(text)
        words = ": ".join(found[-1]) if found else text.strip().splitlines()[0]
        return without_secrets(words, self._settings.options)[:500]

    @property
    def _session(self) -> SparkSession:
        """A session of its own, which shares nothing but Spark with the caller's."""
        if self._own_session is None:
            session = self._spark.newSession()
            for name, value in (_HIDING, _BY_V1):
                session.conf.set(name, value)
            self._own_session = session
        return self._own_session

    @property
    def _jvm(self) -> Any:
        return jvm_of(self._spark)

    def _map(self, options: dict[str, str]) -> Any:
        found = self._jvm.java.util.HashMap()
        for name, value in options.items():
            found.put(name, value)
        return found


def of_first_attempt(frame: DataFrame) -> DataFrame:
    """``frame``, whose rows only the first attempt of a task, in the first attempt of its stage, receives; any other attempt fails.

    Spark has no setting against retries of single tasks, and ``spark.task.maxFailures`` does not count a lost executor. The context of the JVM's log has the
    name of the running task. If it does not, all attempts fail.
    """
    return frame.selectExpr(f"CASE WHEN {_TASK} RLIKE '^{_FIRST}' THEN value ELSE raise_error('{_AGAIN}') END AS value", "partition")
