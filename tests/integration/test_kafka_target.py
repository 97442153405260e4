"""A topic of a real Kafka broker as the target: what our client promises of it, and the real stream into it, killed on the way."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.kinds import PAIRS, text_of
from pyspark_tidb_binlog.conf.model import KafkaConfig
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ApplyError, Stopped
from pyspark_tidb_binlog.sinks.engine.spark_jvm import jvm_of
from pyspark_tidb_binlog.sinks.kafka import kafka_wire, spark_topic, topic_settings
from pyspark_tidb_binlog.sinks.kafka.broker_topic import BrokerTopic
from pyspark_tidb_binlog.sinks.kafka.java_options import MOST_BYTES
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import Topic, TopicEnd
from pyspark_tidb_binlog.sinks.kafka.spark_topic import SparkTopic
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings
from pyspark_tidb_binlog.sinks.translate.local_record import Stand
from tests.support.arena import Arena, Cut, counted, numbered
from tests.support.drainer_process import ROOT
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.golden_messages import checksums, checksums_from_drainer, from_drainer
from tests.support.kafka_broker import PASSWORD, PrivateKafka
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


@pytest.fixture(params=["own", "spark"])
def client(request: pytest.FixtureRequest) -> Callable[..., Topic]:
    """Either client of a topic: this project's own, and Spark's Kafka sink."""
    if request.param == "own":
        return BrokerTopic
    # Only who needs Spark waits for it.
    spark = request.getfixturevalue("spark")
    return lambda settings, pause=time.sleep: SparkTopic(spark, settings, pause)


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    """Closes what a test has opened."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def opened(client: Callable[..., Topic], kafka: PrivateKafka, name: str, closing: contextlib.ExitStack) -> Callable[..., Any]:
    """Makes clients of the test's topic."""

    def make(pause: Callable[[float], None] = time.sleep, addrs: str = kafka.address, **settings: Any) -> Topic:
        made = client(BrokerSettings(addrs, name, **settings), pause)
        closing.callback(made.close)
        return made

    return make


@pytest.fixture
def ours(kafka: PrivateKafka, name: str, closing: contextlib.ExitStack) -> Callable[..., BrokerTopic]:
    """Makes clients of this project's own."""

    def make(pause: Callable[[float], None] = time.sleep, **settings: Any) -> BrokerTopic:
        made = BrokerTopic(BrokerSettings(kafka.address, name, **settings), pause)
        closing.callback(made.close)
        return made

    return make


@pytest.fixture
def by_spark(spark: SparkSession, kafka: PrivateKafka, name: str, closing: contextlib.ExitStack) -> Callable[..., SparkTopic]:
    """Makes clients that send by Spark; ``options`` of the Java client."""

    def make(addrs: str = kafka.address, options: Mapping[str, str] | None = None, **settings: Any) -> SparkTopic:
        made = SparkTopic(spark, BrokerSettings(addrs, name, options=tuple((options or {}).items()), **settings))
        closing.callback(made.close)
        return made

    return make


@pytest.fixture
def admin(spark: SparkSession, kafka: PrivateKafka) -> Iterator[Any]:
    """Kafka's own client for what an operator does, in Spark's JVM."""
    jvm: Any = spark.sparkContext._jvm
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", kafka.address)
    made = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    yield made
    made.close()


@pytest.fixture
def configure(admin: Any, spark: SparkSession, name: str) -> Callable[[str, str], None]:
    """Sets one of the settings of the test's topic, which is there."""
    jvm: Any = spark.sparkContext._jvm

    def alter(setting: str, value: str) -> None:
        config, clients = jvm.org.apache.kafka.common.config.ConfigResource, jvm.org.apache.kafka.clients.admin
        op = clients.AlterConfigOp(clients.ConfigEntry(setting, value), clients.AlterConfigOp.OpType.SET)
        topic = config(config.Type.TOPIC, name)
        admin.incrementalAlterConfigs(
            jvm.java.util.Collections.singletonMap(topic, jvm.java.util.Collections.singletonList(op))
        ).all().get()

    return alter


def messages(kafka: PrivateKafka, name: str) -> list[bytes]:
    """All of a topic."""
    topic = BrokerTopic(BrokerSettings(kafka.address, name))
    try:
        return list(topic.read(0, topic.end()))
    finally:
        topic.close()


def test_a_broker_of_0_11_is_read(ours: Callable[..., BrokerTopic], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_wire, "FETCH_ZSTD", 99)
    topic = ours()
    topic.send(MESSAGES)
    assert topic.read(0, len(MESSAGES)) == MESSAGES


@pytest.mark.shows("syncer.to.kafka-max-messages")
def test_what_is_sent_is_there_in_order(opened: Callable[..., Topic]) -> None:
    topic = opened(max_messages=1200)
    assert (topic.begin(), topic.end()) == (0, 0)
    topic.send(MESSAGES)
    assert (topic.begin(), topic.end()) == (0, len(MESSAGES))
    assert topic.read(0, len(MESSAGES)) == MESSAGES
    assert topic.read(2500, 2502) == MESSAGES[2500:2502] and topic.read(5, 5) == []
    assert topic.waiting_for is None


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_topic_that_the_broker_compresses(
    codec: str, kafka: PrivateKafka, name: str, ours: Callable[..., BrokerTopic], configure: Callable[[str, str], None]
) -> None:
    ours().end()
    configure("compression.type", codec)
    ours().send(MESSAGES)
    assert messages(kafka, name) == MESSAGES
    files = [f for d in kafka.data_dir.glob(f"{name}-0") for f in d.glob("*.log")]
    assert sum(f.stat().st_size for f in files) < sum(map(len, MESSAGES))


@pytest.mark.shows("syncer.to.kafka-max-message-size")
def test_a_message_that_the_broker_does_not_take(kafka: PrivateKafka, name: str, opened: Callable[..., Topic]) -> None:
    topic = opened(max_message_bytes=3 << 20)
    topic.send([b"a", b"x" * 1_000_000, b"b"])
    with pytest.raises(ApplyError, match=r"(?i)(too large|RecordTooLarge).* a message of 2000000 bytes. Raise max.message.bytes"):
        topic.send([b"x" * 2_000_000])
    with pytest.raises(ApplyError, match=r"a message of 4000000 bytes, more than syncer.to.kafka-max-message-size = 3145728"):
        topic.send([b"x" * 4_000_000])
    topic.send([b"c"])
    assert [m[:1] for m in messages(kafka, name)] == [b"a", b"x", b"b", b"c"]


def test_a_small_limit_of_the_topic_halves_batches(
    kafka: PrivateKafka, name: str, opened: Callable[..., Topic], configure: Callable[[str, str], None]
) -> None:
    opened().end()
    configure("max.message.bytes", "5000")
    opened().send(MESSAGES[:200])
    assert messages(kafka, name) == MESSAGES[:200]


def test_another_program_that_sends_is_noticed(opened: Callable[..., Topic], ours: Callable[..., BrokerTopic]) -> None:
    topic, other = opened(), ours()
    topic.send([b"a"])
    other.send([b"b"])
    with pytest.raises(ApplyError, match=r"offset 2.* instead of 1|offset 2.*, where 1 was expected"):
        topic.send([b"c"])


# In `make test` both clients wait in ``test_a_broker_that_goes_away_amid_a_send_of_spark``.
@pytest.mark.slow
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
    monkeypatch.setattr(spark_topic, "ASK_SECONDS", 1)

    def stopped(seconds: float) -> None:
        raise Stopped("stopped while waiting for the target")

    with pytest.raises(Stopped):
        opened(stopped, "127.0.0.1:1").end()
    with pytest.raises(ApplyError, match=r"127.0.0.1:1: .*, after 2 tries"):
        opened(lambda seconds: None, "127.0.0.1:1", retries=1, retry_seconds=0).end()


def test_a_topic_that_does_not_exist(
    opened: Callable[..., Topic], ours: Callable[..., BrokerTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers make it where they do so; where they do not, the error says what to do."""
    assert opened().end() == 0
    monkeypatch.setattr(spark_topic, "ASK_SECONDS", 1)
    monkeypatch.setattr(topic_settings, "_UNKNOWN_SECONDS", 0.0)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.kafka.kafka_wire.metadata_request", without_creating)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.kafka.java_options._OURS_TO_ASK", {"allow.auto.create.topics": "false"})
    absent = opened()
    absent._settings = dataclasses.replace(absent._settings, topic="nowhere")
    with pytest.raises(ApplyError, match=r"(?i)Kafka topic nowhere at .*unknown topic or partition.*create the topic"):
        absent.end()


def test_a_topic_that_was_made_again(
    kafka: PrivateKafka, name: str, opened: Callable[..., Topic], ours: Callable[..., BrokerTopic], admin: Any, spark: SparkSession
) -> None:
    topic = opened()
    topic.send([b"a", b"b", b"c"])
    jvm = jvm_of(spark)
    admin.deleteTopics(jvm.java.util.Collections.singletonList(name)).all().get()
    eventually(lambda: ours().end() == 0, seconds=300)
    with pytest.raises(ApplyError, match=r"offset 0.*( instead of 3|, where 3 was expected)"):
        topic.send([b"d"])
    with pytest.raises(ApplyError, match="the topic ends at offset [01], but 3 messages are recorded as sent"):
        TopicEnd(opened()).open(Stand(1, 0, frozenset(), {"offset": 3}), 1)


def without_creating(topic: str) -> bytes:
    return b"\x00\x00\x00\x01" + len(topic).to_bytes(2, "big") + topic.encode() + b"\x00"


def test_an_answer_that_is_lost_sends_nothing_twice(
    kafka: PrivateKafka, name: str, ours: Callable[..., BrokerTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends after the broker has taken a batch: the same number again, and the broker knows it."""
    topic = ours()
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


@pytest.mark.shows("spark.kafka-options")
@pytest.mark.spark
@pytest.mark.parametrize(
    ("mechanism", "module"),
    [pytest.param("PLAIN", "plain.PlainLoginModule", marks=pytest.mark.slow), ("SCRAM-SHA-512", "scram.ScramLoginModule")],
)
def test_tls_sasl_and_compression(
    mechanism: str, module: str, kafka: PrivateKafka, name: str, by_spark: Callable[..., SparkTopic], spark: SparkSession
) -> None:
    def login(password: str) -> dict[str, str]:
        return kafka.login(mechanism, module, password) | {"compression.type": "gzip"}

    topic = by_spark(kafka.secure_address, login(PASSWORD))
    topic.send(MESSAGES)
    assert topic.read(0, 10) == MESSAGES[:10] and topic.read(2999, 3000) == MESSAGES[2999:]
    assert messages(kafka, name) == MESSAGES
    (segment,) = kafka.data_dir.glob(f"{name}-0/*.log")
    assert segment.stat().st_size < sum(map(len, MESSAGES)) / 2
    with pytest.raises(ApplyError, match=r"SaslAuthenticationException") as refused:
        by_spark(kafka.secure_address, login("wrong-but-secret")).end()
    assert "wrong-but-secret" not in str(refused.value)
    assert PASSWORD not in plans_of(spark)


def plans_of(spark: SparkSession) -> str:
    """What Spark's UI shows of its last plans; the writes to Kafka are among them."""
    shown = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [shown.apply(at).physicalPlanDescription() for at in range(shown.size())]
    written = [plan for plan in plans if "KafkaSourceProvider" in plan]
    assert written and all("kafka.bootstrap.servers=*********(redacted)" in plan for plan in written)
    return "\n".join(plans)


@pytest.mark.spark
def test_a_message_that_is_larger_than_what_is_sent_at_once(
    kafka: PrivateKafka, name: str, by_spark: Callable[..., SparkTopic], configure: Callable[[str, str], None]
) -> None:
    by_spark().end()
    configure("max.message.bytes", "8000000")
    assert (6 << 20) > MOST_BYTES > (3 << 20)
    sent = [b"a" * 10, b"b" * (6 << 20), b"c" * (3 << 20), b"d" * (3 << 20), b"e"]
    topic = by_spark()
    topic.send(sent)
    assert topic.end() == 5 and list(topic.read(1, 3)) == sent[1:3]
    assert messages(kafka, name) == sent


@pytest.mark.spark
def test_a_broker_that_goes_away_amid_a_send_of_spark(
    kafka: PrivateKafka,
    name: str,
    by_spark: Callable[..., SparkTopic],
    ours: Callable[..., BrokerTopic],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task waits for it, and the messages are there once; where it is away for longer, nothing is sent again, and the error names both ends.
    Our own client waits before its send.
    """
    topic = by_spark()
    topic.send([b"a"])
    write = topic._write

    def without_broker(run: Sequence[bytes]) -> None:
        kafka.kill()
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(kafka.start)
            write(run)
            started.result()

    monkeypatch.setattr(topic, "_write", without_broker)
    topic.send([b"b", b"c"])
    assert messages(kafka, name) == [b"a", b"b", b"c"]

    pauses: list[str] = []

    def pause(seconds: float) -> None:
        pauses.append(str(own.waiting_for))
        if not kafka.running:
            kafka.start()

    own = ours(pause)
    own.end()
    short = by_spark(options={"request.timeout.ms": "1000"}, retry_seconds=0)
    short.end()
    write_short = short._write

    def killed_before(run: Sequence[bytes]) -> None:
        kafka.kill()
        write_short(run)

    monkeypatch.setattr(short, "_write", killed_before)
    with pytest.raises(
        ApplyError, match=r"a send of 1 messages failed, after which the topic should end at offset 4, before at 3: .*Timeout"
    ):
        short.send([b"lost"])
    pauses.clear()
    own.send([b"d"])
    assert kafka.address in pauses[0] and own.waiting_for is None
    assert messages(kafka, name) == [b"a", b"b", b"c", b"d"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "end", "there"),
    [
        # Spark's sink flushes what a task that fails has given it
        ("local[1,3]", "raise_error('the task fails')", [b"a"]),
        # the producer dies with its batch, which nothing but the end of a task closes
        ("local-cluster[1,1,1024]", "reflect('java.lang.System', 'exit', 1)", []),
    ],
    ids=["failed-task", "lost-executor"],
)
def test_a_send_that_was_begun_is_not_tried_again(
    master: str, end: str, there: list[bytes], kafka: PrivateKafka, name: str, tmp_path: Path
) -> None:
    """A task that ends amid its send: Spark tries it again, and no message comes twice, or before another that is missing."""
    script = Path(__file__).parents[1] / "support" / "broken_send.py"
    command = [sys.executable, str(script), master, kafka.address, name, end]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "TIDB_BINLOG_LOG": str(tmp_path / "job.log"), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a send of 3 messages failed" in done.stdout and "another attempt of this task began this send" in done.stdout
    assert messages(kafka, name) == there


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
    ("delivery", "clients", "deadly"),
    [
        pytest.param("raw", ("own", "spark"), DEADLY, marks=pytest.mark.slow),
        pytest.param("raw", ("spark",), DEADLY, marks=pytest.mark.slow),
        pytest.param("sorted", ("own",), TWICE, marks=pytest.mark.slow),
        pytest.param("sorted", ("spark",), TWICE, marks=pytest.mark.slow),
    ],
    ids=["raw-in-turn", "raw-spark", "sorted-twice-own", "sorted-twice-spark"],
)
def test_deaths_of_the_drainer_and_of_the_broker(
    delivery: str, clients: tuple[str, ...], deadly: dict[str, tuple[int, ...]], kafka: PrivateKafka, tmp_path: Path
) -> None:
    """The messages are in the topic once; after every second death the broker is killed too, and Spark's directory is lost at the third. Each life
    sends by the next one of ``clients``; Spark over TLS and with a password, which is in no file afterwards.
    """

    def after_death(deaths: int) -> None:
        if deaths % 2 == 0:
            kafka.kill()
            kafka.start()
        if deaths == 3:
            arena.forget(delta=False)

    more = {"syncer.db-type": "kafka", "syncer.to.kafka-addrs": kafka.address, "data-dir": tmp_path / "data"}
    options = text_of(PAIRS, tuple(kafka.login("SCRAM-SHA-512", "scram.ScramLoginModule", PASSWORD).items()))
    ways = {
        "own": [],
        "spark": [f"--spark.kafka-options={options}", f"--syncer.to.kafka-addrs={kafka.secure_address}"],
    }
    name = f"bank-{delivery}-{'-'.join(clients)}"
    more["syncer.to.topic-name"] = name
    with Arena(load(GOLDEN / "bank"), None, tmp_path, delivery, BANK, more) as arena:
        arena.write()
        died = arena.live_and_die(numbered(deadly), after_death, lambda deaths: ways[clients[deaths % len(clients)]])
        assert (died, arena.deaths()) == (sum(map(len, deadly.values())), counted(deadly))
    assert checksums(messages(kafka, name)) == checksums_from_drainer("bank", "drainer.slave")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
