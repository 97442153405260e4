"""Whether the command has to fetch Spark's Kafka sink."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry.kafka_wanted import wants_kafka_sink

OPTIONS = "TIDB_BINLOG__SPARK__KAFKA_OPTIONS"


@pytest.mark.parametrize(
    ("text", "options", "environ", "wanted"),
    [
        ("", [], {}, False),
        ("[spark]\nkafka-options = {}", [], {}, False),
        ('[SPARK]\nKafka-Options = "a=b"', [], {}, True),
        ("[spark.kafka-options]\nsecurity.protocol = 'SSL'", [], {}, True),
        ("[spark.kafka-options]\nsecurity.protocol = 'SSL'", ["--spark.kafka-options="], {}, False),
        ("[spark]\nkafka-options = {}", [], {OPTIONS: "security.protocol=SSL"}, True),
        ("", ["-kafka-options", "a=b"], {}, True),
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
