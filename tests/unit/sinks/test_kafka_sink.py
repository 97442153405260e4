"""The settings of a topic: wrong ones, runs of messages, and what an error must not show."""

import pytest

from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.sinks.kafka import kafka_sink
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import LARGEST, BrokerSettings, consumer_options, producer_options, runs, without_secrets


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"addrs": " , "}, "kafka-addrs is empty"),
        ({"addrs": "a"}, "'a' is not of the form host:port"),
        ({"addrs": "[::1]:2, a:x"}, "'a:x' is not of the form host:port"),
        ({"max_messages": 0}, "kafka-max-messages and kafka-max-message-size must be at least 1"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerSettings(**{"addrs": "a:1", "topic": "t"} | settings)  # type: ignore[arg-type]


def test_a_run_is_bounded_in_messages_and_bytes() -> None:
    messages = [b"1", b"2", b"3", b"4" * 1000, b"5", b"6"]
    assert list(runs(messages, BrokerSettings("a:1", "t", max_messages=2), 500)) == [[b"1", b"2"], [b"3"], [b"4" * 1000], [b"5", b"6"]]
    assert list(runs([], BrokerSettings("a:1", "t"), 1)) == []


def test_a_message_that_librdkafka_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "LARGEST", 3)
    with pytest.raises(ApplyError, match="a message of 4 bytes, more than .* = 1073741824: raise this setting; librdkafka takes 3 at most"):
        list(runs([b"1234"], BrokerSettings("a:1", "t"), 9))


@pytest.mark.parametrize("largest", [1, 1 << 30, 1 << 40])
def test_a_run_is_one_batch_whatever_the_settings_say(largest: int) -> None:
    found = producer_options(BrokerSettings("a:1", "t", max_message_bytes=largest, options=(("compression.type", "zstd"), ("acks", "0"))))
    assert found["batch.size"] > kafka_sink.RUN_BYTES < found["message.max.bytes"] <= LARGEST
    assert found["enable.idempotence"] and found["compression.type"] == "zstd"
    assert "enable.idempotence" not in consumer_options(BrokerSettings("a:1", "t"))


def test_an_error_is_rid_of_secrets() -> None:
    options = (("sasl.password", "pw"), ("ssl.key.password", "pw1"), ("ssl.key.location", "/key.pem"), ("security.protocol", "SSL"))
    assert without_secrets("SSL: pw1, pw, /key.pem", options) == "SSL: …, …, /key.pem"
