"""A topic of a real Kafka broker as the target: what our client promises of it, and the real stream into it, killed on the way."""

import contextlib
import dataclasses
import logging
import signal
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import KafkaConfig
from pyspark_tidb_binlog.conf.setting import PAIRS, text_of
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, Stopped
from pyspark_tidb_binlog.sinks.kafka import confluent_topic, kafka_sink
from pyspark_tidb_binlog.sinks.kafka.confluent_topic import ConfluentTopic
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import LARGEST, RUN_BYTES, BrokerSettings, Topic, TopicEnd
from pyspark_tidb_binlog.sinks.translate.local_record import LocalProgress
from tests.support.arena import Arena, Cut, counted, numbered
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.golden_messages import checksums, checksums_from_drainer, from_drainer
from tests.support.kafka_broker import PASSWORD, PrivateKafka
from tests.support.losing_front import LosingFront
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PARTS = Cut(step_bytes=500, max_bytes=3000, atomic_rows=3, parts=3)
CUTS = {"keys": PARTS, "types": Cut(step_bytes=8_000, max_bytes=60_000, atomic_rows=3, parts=3)}
BANK = Cut(step_bytes=8_000, max_bytes=60_000, atomic_rows=300)
"""Some of its batches in parts, some not."""
DEADLY = {"before-deletes": (3,), "before-downstream-commit": (5,), "after-downstream-commit": (2,), "after-spark-commit": (5,)}
TWICE = dict.fromkeys(DEADLY, (2, 5))
"""Points, and the passes that kill."""
MESSAGES = [b"%d" % n * (n % 50 + 1) for n in range(3000)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateKafka]:
    with PrivateKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone that the real Drainer ran in."""
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    """Closes what a test has opened."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def opened(kafka: PrivateKafka, name: str, closing: contextlib.ExitStack) -> Callable[..., Any]:
    """Makes clients of the test's topic; ``options`` of librdkafka."""

    def make(
        pause: Callable[[float], None] = time.sleep, addrs: str = kafka.address, options: Mapping[str, str] | None = None, **settings: Any
    ) -> ConfluentTopic:
        made = ConfluentTopic(BrokerSettings(addrs, name, options=tuple((options or {}).items()), **settings), pause)
        closing.callback(made.close)
        return made

    return make


@pytest.fixture
def admin(kafka: PrivateKafka) -> AdminClient:
    """What an operator has."""
    return AdminClient({"bootstrap.servers": kafka.address})


@pytest.fixture
def configure(admin: AdminClient, name: str) -> Callable[[str, str], None]:
    """Sets one of the settings of the test's topic, which is there."""

    def alter(setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        (done,) = admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])]).values()
        done.result(60)

    return alter


def messages(kafka: PrivateKafka, name: str) -> list[bytes]:
    """All of a topic."""
    topic = ConfluentTopic(BrokerSettings(kafka.address, name))
    try:
        return list(topic.read(0, topic.end()))
    finally:
        topic.close()


def batches(kafka: PrivateKafka, name: str) -> list[int]:
    """How many messages each batch of a topic has, as the broker stores them."""
    (segment,) = kafka.data_dir.glob(f"{name}-0/*.log")
    stored, at, found = segment.read_bytes(), 0, []
    while at < len(stored):
        found.append(struct.unpack_from(">i", stored, at + 57)[0])
        at += 12 + struct.unpack_from(">i", stored, at + 8)[0]
    return found


@pytest.mark.shows("syncer.to.kafka-max-messages")
def test_what_is_sent_is_there_in_order(kafka: PrivateKafka, name: str, opened: Callable[..., Topic]) -> None:
    """Each run is one batch, which brokers store as a whole or not at all."""
    topic = opened(max_messages=1200)
    assert (topic.begin(), topic.end()) == (0, 0)
    topic.send(MESSAGES)
    assert (topic.begin(), topic.end()) == (0, len(MESSAGES))
    assert topic.read(0, len(MESSAGES)) == MESSAGES
    assert topic.read(2500, 2502) == MESSAGES[2500:2502] and topic.read(5, 5) == []
    assert topic.waiting_for is None
    assert batches(kafka, name) == [1200, 1200, 600]


def test_what_is_no_message_is_not_read(kafka: PrivateKafka, opened: Callable[..., Topic], name: str) -> None:
    """Marks of another program's transactions have offsets, too."""
    topic = opened()
    topic.send([b"a", b"b"])
    other = Producer({"bootstrap.servers": kafka.address, "transactional.id": name})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(name, b"c", partition=0)
    other.commit_transaction(60)
    eventually(lambda: topic.end() == 4)
    assert (topic.read(1, 4), topic.read(3, 4), topic.read(0, 2)) == ([b"b", b"c"], [], [b"a", b"b"])
    with pytest.raises(ApplyError, match="does not hold offset [34], although messages up to 6 are expected"):
        topic.read(0, 6)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_topic_that_the_broker_compresses(
    codec: str, kafka: PrivateKafka, name: str, opened: Callable[..., Topic], configure: Callable[[str, str], None]
) -> None:
    opened().end()
    configure("compression.type", codec)
    opened().send(MESSAGES)
    assert messages(kafka, name) == MESSAGES
    files = [f for d in kafka.data_dir.glob(f"{name}-0") for f in d.glob("*.log")]
    assert sum(f.stat().st_size for f in files) < sum(map(len, MESSAGES))


@pytest.mark.shows("syncer.to.kafka-max-message-size")
def test_a_message_that_the_broker_does_not_take(kafka: PrivateKafka, name: str, opened: Callable[..., Topic]) -> None:
    topic = opened(max_message_bytes=3 << 20)
    topic.send([b"a", b"x" * 1_000_000, b"b"])
    with pytest.raises(ApplyError, match=r"(?i)too large.* a message of 2000000 bytes. Raise max.message.bytes"):
        topic.send([b"x" * 2_000_000])
    with pytest.raises(ApplyError, match=r"a message of 4000000 bytes, more than syncer.to.kafka-max-message-size = 3145728"):
        topic.send([b"x" * 4_000_000])
    topic.send([b"c"])
    assert [m[:1] for m in messages(kafka, name)] == [b"a", b"x", b"b", b"c"]


@pytest.mark.parametrize("lowered", ["before", "while running"])
def test_a_small_limit_of_the_topic_halves_batches(
    lowered: str, kafka: PrivateKafka, name: str, opened: Callable[..., Topic], configure: Callable[[str, str], None]
) -> None:
    topic = opened()
    topic.end()
    if lowered == "while running":
        topic.send(MESSAGES[:2])
    configure("max.message.bytes", "5000")
    topic.send(MESSAGES[topic.end() : 200])
    assert messages(kafka, name) == MESSAGES[:200]


def test_a_broker_that_is_away_is_waited_for(kafka: PrivateKafka, name: str, opened: Callable[..., Topic]) -> None:
    pauses: list[object] = []

    def pause(seconds: float) -> None:
        pauses.append(str(topic.waiting_for))
        if len(pauses) == 1 and not kafka.running:
            kafka.start()

    topic = opened(pause)
    topic.end()
    topic.send(MESSAGES[:10])
    pauses.clear()
    kafka.kill()
    topic.send(MESSAGES[10:])
    assert pauses and kafka.address in str(pauses[0])
    assert (messages(kafka, name), topic.waiting_for) == (MESSAGES, None)


def test_a_wait_ends_when_the_stream_is_stopped_or_time_is_up(opened: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_topic, "ASK_SECONDS", 1.0)

    def stopped(seconds: float) -> None:
        raise Stopped("stopped while waiting for the target")

    with pytest.raises(Stopped):
        opened(stopped, "127.0.0.1:1").end()
    with pytest.raises(ApplyError, match=r"127.0.0.1:1: .*, after 2 tries"):
        opened(lambda seconds: None, "127.0.0.1:1", retries=1, retry_seconds=0).end()


def test_a_topic_that_does_not_exist(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers make it where they do so; where they do not, the error says what to do."""
    assert opened().end() == 0
    monkeypatch.setattr(kafka_sink, "_UNKNOWN_SECONDS", 0.0)
    asking = kafka_sink.consumer_options
    monkeypatch.setattr(confluent_topic, "consumer_options", lambda settings: asking(settings) | {"allow.auto.create.topics": False})
    absent = opened()
    absent._settings = dataclasses.replace(absent._settings, topic="nowhere")
    with pytest.raises(ApplyError, match=r"(?i)Kafka topic nowhere at .*unknown topic or partition.*create the topic"):
        absent.end()


def test_a_topic_that_was_made_again(name: str, opened: Callable[..., Topic], admin: AdminClient) -> None:
    topic = opened()
    topic.send([b"a", b"b", b"c"])
    admin.delete_topics([name])[name].result(60)
    eventually(lambda: opened().end() == 0, seconds=300)
    with pytest.raises(ApplyError, match=r"offset 0 instead of 3"):
        topic.send([b"d"])
    with pytest.raises(ApplyError, match="the topic ends at offset [01], but 3 messages are recorded as sent"):
        TopicEnd(opened()).open(LocalProgress(1, 0, frozenset(), {"offset": 3}), 1)


def test_an_answer_that_is_lost_sends_nothing_twice(kafka: PrivateKafka, name: str, opened: Callable[..., Topic]) -> None:
    """The connection ends after the broker has taken a batch: the same number again, and the broker knows it."""
    with LosingFront(kafka.front_port, kafka.behind_port) as front:
        topic = opened(addrs=front.address)
        topic.send([b"a"])
        front.lose = True
        topic.send([b"b", b"c"])
        topic.send([b"d"])
        assert front.lost == 1
        assert messages(kafka, name) == [b"a", b"b", b"c", b"d"]
        topic.close()


def test_an_offset_that_is_lost_is_looked_up(kafka: PrivateKafka, name: str, opened: Callable[..., Any]) -> None:
    """A broker that knows a batch already may acknowledge it without its offset."""
    topic, other = opened(), opened()
    topic.send([b"a"])
    producer = topic._producer

    class Forgetful:
        def produce(self, topic: str, value: bytes, partition: int, on_delivery: Callable[..., None]) -> None:
            told = lambda error, message: on_delivery(error, type("Message", (), {"offset": staticmethod(lambda: None)}))  # noqa: E731
            producer.produce(topic, value, partition=partition, on_delivery=told)

        def __getattr__(self, method: str) -> Any:
            return getattr(producer, method)

    topic._producer = Forgetful()
    topic.send([b"b", b"c"])
    other.send([b"x"])
    with pytest.raises(ApplyError, match="offset 4 instead of 3"):
        topic.send([b"d"])
    assert messages(kafka, name) == [b"a", b"b", b"c", b"x", b"d"]


@pytest.mark.shows("spark.kafka-options")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_tls_sasl_and_compression(
    mechanism: str, kafka: PrivateKafka, name: str, opened: Callable[..., Topic], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = opened(addrs=kafka.secure_address, options=kafka.login(mechanism, PASSWORD) | {"compression.type": "gzip"})
    topic.send(MESSAGES)
    assert topic.read(0, 10) == MESSAGES[:10] and topic.read(2999, 3000) == MESSAGES[2999:]
    assert messages(kafka, name) == MESSAGES
    (segment,) = kafka.data_dir.glob(f"{name}-0/*.log")
    assert segment.stat().st_size < sum(map(len, MESSAGES)) / 2
    with pytest.raises(ApplyError, match="SASL authentication error") as refused:
        opened(addrs=kafka.secure_address, options=kafka.login(mechanism, "wrong-but-secret")).end()
    assert "wrong-but-secret" not in str(refused.value) + caplog.text and PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "ssl.ca.location failed"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password must be set"),
        ({"compression": "gzip"}, 'No such configuration property: "compression"'),
        (
            {"ssl.key.password": "hunter2", "security.protocol": "hunter2"},
            'Invalid value "…" for configuration property "security.protocol"',
        ),
    ],
)
def test_options_that_librdkafka_refuses(options: dict[str, str], words: str, opened: Callable[..., Topic]) -> None:
    with pytest.raises(ConfigError, match=f"^spark.kafka-options: .*{words}"):
        opened(options={"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"} | options).end()


def test_a_broker_that_is_not_trusted_is_no_reason_to_wait(kafka: PrivateKafka, opened: Callable[..., Topic]) -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    with pytest.raises(ApplyError, match="certificate verify failed"):
        opened(addrs=kafka.secure_address, options=options).end()


def test_a_message_that_is_larger_than_what_is_sent_at_once(
    kafka: PrivateKafka, name: str, opened: Callable[..., Topic], configure: Callable[[str, str], None]
) -> None:
    opened().end()
    configure("max.message.bytes", "8000000")
    assert (6 << 20) > RUN_BYTES > (3 << 20)
    sent = [b"a" * 10, b"b" * (6 << 20), b"c" * (3 << 20), b"d" * (3 << 20), b"e"]
    topic = opened()
    topic.send(sent)
    assert topic.end() == 5 and list(topic.read(1, 3)) == sent[1:3]
    assert messages(kafka, name) == sent
    assert batches(kafka, name) == [1, 1, 1, 2]


def test_more_than_librdkafka_takes_is_said_once(opened: Callable[..., Topic], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    opened(max_message_bytes=1 << 30).send([b"a"])
    assert caplog.text.count(f"kafka-max-message-size = {1 << 30}: librdkafka takes {LARGEST} at most") == 1


def test_nothing_is_sent_after_an_error(kafka: PrivateKafka, name: str, opened: Callable[..., Any]) -> None:
    """What was given up, or stopped, stays away, though the process goes on; what another client sends is there."""

    def stopped(seconds: float) -> None:
        raise Stopped("stopped while waiting for the target")

    gives_up, is_stopped = opened(), opened(stopped)
    gives_up.send([b"a"])
    gives_up._settings = dataclasses.replace(gives_up._settings, retries=1, retry_seconds=0)
    is_stopped.end()
    kafka.kill()
    with pytest.raises(
        ApplyError, match=r"a send of 2 messages failed, after which the topic should end at offset 3, before at 1: .*, after 2 tries"
    ):
        gives_up.send([b"lost", b"lost too"])
    with pytest.raises(Stopped):
        is_stopped.send([b"stopped"])
    kafka.start()
    topic = opened()
    topic.send([b"b"])
    assert messages(kafka, name) == [b"a", b"b"]


def test_a_broker_that_goes_away_amid_a_send(
    kafka: PrivateKafka, name: str, opened: Callable[..., Topic], closing: contextlib.ExitStack
) -> None:
    """It hangs with the messages before it, and dies: they are there once when it is back."""
    pauses: list[str] = []

    def pause(seconds: float) -> None:
        pauses.append(str(topic.waiting_for))
        if hangs and len(pauses) == 1:
            kafka.kill()
            kafka.start()

    hangs = False
    topic = opened(pause)
    topic.send([b"a"])
    pauses.clear()
    hangs = True
    closing.callback(kafka.signal, signal.SIGCONT)
    kafka.signal(signal.SIGSTOP)
    topic.send([b"b", b"c"])
    assert kafka.address in pauses[0]
    assert messages(kafka, name) == [b"a", b"b", b"c"]


@pytest.mark.shows("syncer.to.kafka-addrs", "syncer.to.topic-name", "Kafka messages")
@pytest.mark.spark
@pytest.mark.parametrize(
    ("case", "delivery"),
    [
        ("keys", "sorted"),
        # the sink gets the same transactions in both deliveries, and makes the messages of every type that ``tests/unit/sinks/test_relay_log.py`` compares
        pytest.param("types", "raw", marks=pytest.mark.slow),
        pytest.param("keys", "raw", marks=pytest.mark.slow),
        pytest.param("types", "sorted", marks=pytest.mark.slow),
    ],
)
def test_the_messages_are_those_of_the_real_drainer(
    case: str, delivery: str, kafka: PrivateKafka, name: str, spark: SparkSession, tmp_path: Path
) -> None:
    with Arena(load(GOLDEN / case), None, tmp_path, delivery, CUTS[case]) as arena:
        arena.write()
        settings = arena.settings()
        settings = dataclasses.replace(
            settings,
            apply=dataclasses.replace(settings.apply, db_type="kafka"),
            kafka=KafkaConfig(addrs=kafka.address, topic=name),
            data_dir=str(tmp_path / "data"),
        )
        for batches in (2, 1 << 30):
            with Replication(spark, settings) as replication:
                replicated(replication, arena.case.end_ts, batches)
    assert messages(kafka, name) == from_drainer(case, "drainer.slave")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("delivery", "ways", "deadly"),
    [
        pytest.param("raw", ("plain", "secure"), DEADLY, marks=pytest.mark.slow),
        pytest.param("sorted", ("plain",), TWICE, marks=pytest.mark.slow),
        pytest.param("sorted", ("secure",), TWICE, marks=pytest.mark.slow),
    ],
    ids=["raw-in-turn", "sorted-twice-plain", "sorted-twice-secure"],
)
def test_deaths_of_the_drainer_and_of_the_broker(
    delivery: str, ways: tuple[str, ...], deadly: dict[str, tuple[int, ...]], kafka: PrivateKafka, tmp_path: Path
) -> None:
    """The messages are in the topic once; after every second death the broker is killed too, and Spark's directory is lost at the third. Each life
    sends in the next one of ``ways``; "secure" is over TLS and with a password, which is in no file afterwards.
    """

    def after_death(deaths: int) -> None:
        if deaths % 2 == 0:
            kafka.kill()
            kafka.start()
        if deaths == 3:
            arena.forget(delta=False)

    more = {"syncer.db-type": "kafka", "syncer.to.kafka-addrs": kafka.address, "data-dir": tmp_path / "data"}
    options = text_of(PAIRS, tuple(kafka.login("SCRAM-SHA-512", PASSWORD).items()))
    flags = {
        "plain": [],
        "secure": [f"--spark.kafka-options={options}", f"--syncer.to.kafka-addrs={kafka.secure_address}"],
    }
    name = f"bank-{delivery}-{'-'.join(ways)}"
    more["syncer.to.topic-name"] = name
    with Arena(load(GOLDEN / "bank"), None, tmp_path, delivery, BANK, more) as arena:
        arena.write()
        died = arena.live_and_die(numbered(deadly), after_death, lambda deaths: flags[ways[deaths % len(ways)]])
        assert (died, arena.deaths()) == (sum(map(len, deadly.values())), counted(deadly))
    assert checksums(messages(kafka, name)) == checksums_from_drainer("bank", "drainer.slave")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
