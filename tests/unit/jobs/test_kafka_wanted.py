"""Whether the command has to fetch Spark's Kafka sink."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import command, jvm_settings, own_places
from pyspark_tidb_binlog.jobs.command import Given
from pyspark_tidb_binlog.jobs.kafka_wanted import wants_kafka_sink
from pyspark_tidb_binlog.jobs.versions import KAFKA_PACKAGE
from pyspark_tidb_binlog.schemas.errors import ConfigError

CLIENT, OPTIONS = "TIDB_BINLOG__SPARK__KAFKA_CLIENT", "TIDB_BINLOG__SPARK__KAFKA_OPTIONS"


@pytest.mark.parametrize(
    ("text", "options", "environ", "wanted"),
    [
        ("", [], {}, False),
        ('[spark]\nkafka-client = ""\nkafka-options = {}', [], {}, False),
        ('[SPARK]\nKafka-Client = "spark"', [], {}, True),
        ("[spark.kafka-options]\nsecurity.protocol = 'SSL'", [], {}, True),
        ("[spark.kafka-options]\nsecurity.protocol = 'SSL'", ["--spark.kafka-client=own"], {}, False),
        ("[spark]\nkafka-client = 'spark'", [], {CLIENT: "own"}, False),
        ("", ["-kafka-client", "spark"], {CLIENT: "own"}, True),
        ("", [], {OPTIONS: "security.protocol=SSL"}, True),
        ("", ["--kafka-options=a=b"], {}, True),
        ("not = toml =", [], {}, False),
        ("spark = 1", [], {}, False),
    ],
)
def test_by_file_variables_and_flags(text: str, options: list[str], environ: dict[str, str], wanted: bool, tmp_path: Path) -> None:
    file = tmp_path / "drainer.toml"
    file.write_text(text)
    assert wants_kafka_sink([*options, "--config", str(file)], environ) is wanted
    assert wants_kafka_sink([f"-config={file}", *options], environ) is wanted


def test_a_file_that_is_not_there_is_the_jobs_to_refuse() -> None:
    assert not wants_kafka_sink(["--config", "/nowhere/drainer.toml"], {})
    assert not wants_kafka_sink(["--config"], {})


def test_the_command_ships_the_jars_to_whoever_wants_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-sql-kafka.jar").touch()
    (tmp_path / "kafka-clients.jar").touch()
    monkeypatch.setattr(jvm_settings, "kafka_jars_dir", lambda: tmp_path)
    wanted = [str(tmp_path / "kafka-clients.jar"), str(tmp_path / "spark-sql-kafka.jar")]
    by_spark = ["--spark.kafka-client=spark"]
    assert command._kafka_jars(Given("drainer", by_spark), tmp_path, {}) == wanted
    assert command._kafka_jars(Given("drainer"), tmp_path, {}) == []
    assert command._kafka_jars(Given("demo", by_spark), tmp_path, {}) == []
    named = ["--packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"]
    assert command._kafka_jars(Given("drainer", by_spark, named), tmp_path, {}) == [], "the caller's own"


def test_jars_in_the_environment_need_no_place_for_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused() -> Path:
        raise ConfigError("no directory for the cache can be written")

    monkeypatch.setattr(own_places, "downloads", refused)
    monkeypatch.setattr(jvm_settings.sys, "prefix", str(tmp_path))
    with pytest.raises(ConfigError):
        jvm_settings.kafka_jars_dir()
    (tmp_path / "spark-kafka-jars").mkdir()
    (tmp_path / "spark-kafka-jars" / jvm_settings.COMPLETE).write_text(KAFKA_PACKAGE)
    assert jvm_settings.kafka_jars_dir() == tmp_path / "spark-kafka-jars"
