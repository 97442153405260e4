"""What Kafka's Java client is told."""

import pytest

from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.kafka.java_options import driver_options, producer_options, reader_options, run_bytes, without_secrets
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings

GIVEN = (("security.protocol", "SSL"), ("compression.type", "zstd"), ("acks", "0"))


def settings(options: tuple[tuple[str, str], ...] = GIVEN, **more: object) -> BrokerSettings:
    return BrokerSettings("b:1", "t", options=options, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("retry_seconds", [0.0, 3600.0, 1e9])
@pytest.mark.parametrize("most", [1, 4 << 20])
@pytest.mark.parametrize("largest", [1, 1 << 30, 1 << 40])
def test_a_run_is_one_batch_that_only_the_end_of_the_send_closes(retry_seconds: float, most: int, largest: int) -> None:
    found = producer_options(settings(retry_seconds=retry_seconds, max_message_bytes=largest), most)
    number = {name.removeprefix("kafka."): int(value) for name, value in found.items() if value.isdecimal()}
    assert number["batch.size"] > 2 * most
    assert number["delivery.timeout.ms"] >= number["linger.ms"] + number["request.timeout.ms"], "or the producer does not start"
    assert number["linger.ms"] >= number["request.timeout.ms"]
    assert number["max.request.size"] > min(max(most, largest), (1 << 31) - 2)
    assert number["buffer.memory"] > number["max.request.size"] + number["batch.size"]
    assert all(number[name] < 1 << 31 for name in number if name != "buffer.memory"), "they are Java's int"
    assert found["kafka.acks"] == "all" and found["kafka.enable.idempotence"] == "true"
    assert found["kafka.max.in.flight.requests.per.connection"] == "1"
    assert found["kafka.security.protocol"] == "SSL" and found["kafka.compression.type"] == "zstd"


def test_whoever_reads_is_told_how_to_connect() -> None:
    assert reader_options(settings(GIVEN[:2])) == {"kafka.security.protocol": "SSL", "kafka.bootstrap.servers": "b:1"}
    found = driver_options(settings(GIVEN[:2]))
    assert found["security.protocol"] == "SSL" and found["bootstrap.servers"] == "b:1" and "compression.type" not in found


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="request.timeout.ms is not a number of milliseconds"):
        producer_options(settings((("request.timeout.ms", "30s"),)), 1)


def test_a_run_fits_what_the_topic_takes() -> None:
    assert [run_bytes(limit) for limit in (1, 5000, 1_048_588, 1 << 30)] == [1, 2976, 837_846, 4 << 20]


def test_an_error_is_rid_of_secrets() -> None:
    jaas = 'x.PlainLoginModule required username="me" password="a\\"b";'
    options = (("sasl.jaas.config", jaas), ("ssl.key.password", "pw1"), ("security.protocol", "SSL"))
    text = without_secrets(f'SSL: {jaas} and pw1 and a\\"b', options)
    assert text == "SSL: … and … and …"
