"""A topic of a real Kafka broker as the target: what our client promises of it, and the real stream into it, killed on the way."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.emulator.rehearsal import load
from pyspark_tidb_binlog.conf.model import KafkaConfig
from pyspark_tidb_binlog.jobs.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ApplyError, Stopped
from pyspark_tidb_binlog.sinks.kafka import kafka_wire, topic_settings
from pyspark_tidb_binlog.sinks.kafka.broker_topic import BrokerTopic
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings
from tests.support.arena import Arena, Cut, counted, numbered
from tests.support.golden_case import GOLDEN
from tests.support.golden_messages import checksums, checksums_from_drainer, from_drainer
from tests.support.kafka_broker import PrivateKafka
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PARTS = Cut(step_bytes=500, max_bytes=3000, atomic_rows=3, parts=3)
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
def opened(kafka: PrivateKafka, name: str) -> Iterator[Callable[..., BrokerTopic]]:
    """Makes clients of the test's topic, and closes them."""
    made: list[BrokerTopic] = []

    def make(pause: Callable[[float], None] = time.sleep, addrs: str = kafka.address, **settings: Any) -> BrokerTopic:
        made.append(BrokerTopic(BrokerSettings(addrs, name, **settings), pause))
        return made[-1]

    yield make
    for topic in made:
        topic.close()


def messages(kafka: PrivateKafka, name: str) -> list[bytes]:
    """All of a topic."""
    topic = BrokerTopic(BrokerSettings(kafka.address, name))
    try:
        return list(topic.read(0, topic.end()))
    finally:
        topic.close()


@pytest.mark.parametrize("fetch", ["of 0.11", "of 2.1"])
def test_what_is_sent_is_there_in_order(fetch: str, opened: Callable[..., BrokerTopic], monkeypatch: pytest.MonkeyPatch) -> None:
    if fetch == "of 0.11":
        monkeypatch.setattr(kafka_wire, "FETCH_ZSTD", 99)
    topic = opened(max_messages=700)
    assert (topic.begin(), topic.end()) == (0, 0)
    topic.send(MESSAGES)
    assert (topic.begin(), topic.end()) == (0, len(MESSAGES))
    assert topic.read(0, len(MESSAGES)) == MESSAGES
    assert topic.read(2500, 2502) == MESSAGES[2500:2502] and topic.read(5, 5) == []
    assert topic.waiting_for is None


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_topic_that_the_broker_compresses(codec: str, kafka: PrivateKafka, name: str, opened: Callable[..., BrokerTopic]) -> None:
    opened().end()
    to = ("--bootstrap-server", kafka.address, "--entity-type", "topics", "--entity-name", name)
    kafka.tool("kafka.admin.ConfigCommand", *to, "--alter", "--add-config", f"compression.type={codec}")
    opened().send(MESSAGES)
    assert messages(kafka, name) == MESSAGES
    files = [f for d in kafka.data_dir.glob(f"{name}-0") for f in d.glob("*.log")]
    assert sum(f.stat().st_size for f in files) < sum(map(len, MESSAGES))


def test_a_message_that_the_broker_does_not_take(kafka: PrivateKafka, name: str, opened: Callable[..., BrokerTopic]) -> None:
    topic = opened(max_message_bytes=3 << 20)
    topic.send([b"a", b"x" * 1_000_000, b"b"])
    with pytest.raises(ApplyError, match=r"message too large .* a message of 2000000 bytes. Raise max.message.bytes"):
        topic.send([b"x" * 2_000_000])
    with pytest.raises(ApplyError, match=r"a message of 4000000 bytes, more than syncer.to.kafka-max-message-size = 3145728"):
        topic.send([b"x" * 4_000_000])
    topic.send([b"c"])
    assert [m[:1] for m in messages(kafka, name)] == [b"a", b"x", b"b", b"c"]


def test_a_small_limit_of_the_topic_halves_batches(kafka: PrivateKafka, name: str, opened: Callable[..., BrokerTopic]) -> None:
    opened().end()
    to = ("--bootstrap-server", kafka.address, "--entity-type", "topics", "--entity-name", name)
    kafka.tool("kafka.admin.ConfigCommand", *to, "--alter", "--add-config", "max.message.bytes=5000")
    opened().send(MESSAGES)
    assert messages(kafka, name) == MESSAGES


def test_another_program_that_sends_is_noticed(opened: Callable[..., BrokerTopic]) -> None:
    ours, other = opened(), opened()
    ours.send([b"a"])
    other.send([b"b"])
    with pytest.raises(ApplyError, match="stored at offset 2, where 1 was expected: another program sends to the topic"):
        ours.send([b"c"])


def test_a_broker_that_is_away_is_waited_for(kafka: PrivateKafka, name: str, opened: Callable[..., BrokerTopic]) -> None:
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
    assert pauses and all(f"broker {kafka.address}: " in str(words) for words in pauses[:1])
    assert (messages(kafka, name), topic.waiting_for) == (MESSAGES, None)


def test_a_wait_ends_when_the_stream_is_stopped_or_time_is_up(opened: Callable[..., BrokerTopic], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(seconds: float) -> None:
        raise Stopped("stopped while waiting for the target")

    with pytest.raises(Stopped):
        opened(stopped, "127.0.0.1:1").end()
    with pytest.raises(ApplyError, match=r"broker 127.0.0.1:1: .*refused, after 3 tries"):
        opened(lambda seconds: None, "127.0.0.1:1", retries=2, retry_seconds=0).end()
    monkeypatch.setattr(topic_settings, "_UNKNOWN_SECONDS", 0.0)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.kafka.kafka_wire.metadata_request", without_creating)
    with pytest.raises(ApplyError, match=r"unknown topic or partition \(3\): create it"):
        opened().end()


def without_creating(topic: str) -> bytes:
    return b"\x00\x00\x00\x01" + len(topic).to_bytes(2, "big") + topic.encode() + b"\x00"


def test_an_answer_that_is_lost_sends_nothing_twice(
    kafka: PrivateKafka, name: str, opened: Callable[..., BrokerTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends after the broker has taken a batch: the same number again, and the broker knows it."""
    topic = opened()
    topic.send([b"a"])
    leader = topic._connected()
    ask, lost = leader.ask, []

    def ask_and_lose(key: int, body: bytes) -> bytes:
        answer = ask(key, body)
        lost.append(answer)
        raise OSError("lost")

    monkeypatch.setattr(leader, "ask", ask_and_lose)
    topic.send([b"b", b"c"])
    topic.send([b"d"])
    assert len(lost) == 1
    assert messages(kafka, name) == [b"a", b"b", b"c", b"d"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("case", "delivery"),
    [
        ("keys", "sorted"),
        ("types", "raw"),
        # the sink gets the same transactions in both deliveries
        pytest.param("keys", "raw", marks=pytest.mark.slow),
        pytest.param("types", "sorted", marks=pytest.mark.slow),
    ],
)
def test_the_messages_are_those_of_the_real_drainer(
    case: str, delivery: str, kafka: PrivateKafka, name: str, spark: SparkSession, tmp_path: Path
) -> None:
    with Arena(load(GOLDEN / case), None, tmp_path, delivery, PARTS) as arena:
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
    ("delivery", "deadly"), [("raw", DEADLY), pytest.param("sorted", TWICE, marks=pytest.mark.slow)], ids=["raw", "sorted-twice"]
)
def test_deaths_of_the_drainer_and_of_the_broker(
    delivery: str, deadly: dict[str, tuple[int, ...]], kafka: PrivateKafka, tmp_path: Path
) -> None:
    """The messages are in the topic once; after every second death the broker is killed too, and Spark's directory is lost at the third."""

    def after_death(deaths: int) -> None:
        if deaths % 2 == 0:
            kafka.kill()
            kafka.start()
        if deaths == 3:
            arena.forget(delta=False)

    more = {"syncer.db-type": "kafka", "syncer.to.kafka-addrs": kafka.address, "data-dir": tmp_path / "data"}
    more["syncer.to.topic-name"] = f"bank-{delivery}"
    with Arena(load(GOLDEN / "bank"), None, tmp_path, delivery, BANK, more) as arena:
        arena.write()
        died = arena.live_and_die(numbered(deadly), after_death)
        assert (died, arena.deaths()) == (sum(map(len, deadly.values())), counted(deadly))
    assert checksums(messages(kafka, f"bank-{delivery}")) == checksums_from_drainer("bank", "drainer.slave")
