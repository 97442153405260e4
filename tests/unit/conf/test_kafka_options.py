"""Options of Kafka's client librdkafka: how they are written, which are refused, what may be encrypted, and that no error tells them."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.encrypted import encrypted
from pyspark_tidb_binlog.conf.load import flags_of, load_drainer
from pyspark_tidb_binlog.conf.model import DrainerConfig, KafkaConfig

KEY = {"BINLOG_SECRET_KEY": "00c0ffee" * 8}


@pytest.mark.parametrize(
    "text",
    [
        '[spark]\nkafka-options = { "security.protocol" = "SSL", "ssl.key.password" = "p,=\\"x" }',
        '[spark.kafka-options]\nsecurity.protocol = "SSL"\nssl.key.password = "p,=\\"x"',
    ],
)
def test_a_name_with_dots_may_be_quoted_or_not(text: str, tmp_path: Path) -> None:
    file = tmp_path / "drainer.toml"
    file.write_text(text.replace("[spark", '[syncer]\ndb-type = "kafka"\n[spark', 1))
    found = load_drainer(file, environ={})
    assert dict(found.kafka.options) == {"security.protocol": "SSL", "ssl.key.password": 'p,="x'}
    assert load_drainer(environ={}, flags=flags_of(found)).kafka == found.kafka


@pytest.mark.shows("spark.kafka-options")
def test_a_part_of_a_value_may_be_encrypted(caplog: pytest.LogCaptureFixture) -> None:
    text = encrypted('a"b\\c', KEY)
    options = {"sasl.password": f"encrypted({text})", "sasl.username": f"d-encrypted({text})", "ssl.ca.location": "ca.pem"}
    flags = {"syncer.db-type": "kafka", "spark.kafka-options": tuple(options.items())}
    found = dict(load_drainer(environ=KEY, flags=flags).kafka.options)
    assert found == {"sasl.password": 'a"b\\c', "sasl.username": 'd-a"b\\c', "ssl.ca.location": "ca.pem"}
    assert caplog.text == ""
    with pytest.raises(
        ValueError, match=r"^spark.kafka-options: ssl.key.password: the value is not base64: write what `ctl encrypt` prints$"
    ):
        load_drainer(environ=KEY, flags=flags | {"spark.kafka-options": (("ssl.key.password", "encrypted(abc)"),)})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"spark.kafka-options": "acks=1"}, "spark.kafka-options: acks cannot be set: this program sends each message once and in order"),
        ({"spark.kafka-options": "bootstrap.servers=x:1"}, "cannot be set: name the brokers in syncer.to.kafka-addrs"),
        ({"spark.kafka-options": "metadata.broker.list=hidden"}, "cannot be set: name the brokers in syncer.to.kafka-addrs"),
        ({"spark.kafka-options": "sasl.jaas.config=hidden"}, "librdkafka reads no JAAS: use sasl.username and sasl.password"),
        ({"spark.kafka-options": "ssl.truststore.location=hidden.jks"}, "librdkafka reads PEM files: use ssl.ca.location"),
        ({"spark.kafka-options": "ssl.keystore.type=JKS"}, "PEM files: use ssl.certificate.location and ssl.key.location"),
        ({"spark.kafka-options": "sasl.mechanism=GSSAPI"}, "Kerberos is not supported: use sasl.mechanism = PLAIN, SCRAM-SHA-256"),
        ({"spark.kafka-options": "sasl.kerberos.service.name=hidden"}, "Kerberos is not supported"),
        ({"spark.kafka-options": "hidden"}, "the value is not a table of names and values"),
        ({"spark.kafka-options": '{a = "hidden}'}, "the value is not a table of names and values"),
    ],
)
def test_what_is_refused_says_why_and_tells_no_value(flags: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        load_drainer(environ={}, flags={"syncer.db-type": "kafka"} | flags)
    assert "hidden" not in str(refused.value)


def test_no_value_is_shown() -> None:
    assert "SSL" not in repr(DrainerConfig(kafka=KafkaConfig(options=(("security.protocol", "SSL"),))))
