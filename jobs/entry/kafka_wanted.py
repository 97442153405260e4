"""Whether a Drainer's settings ask for Spark's Kafka sink, whose jars must be present before the JVM starts.

Promises: imports the standard library only, and raises nothing: the job itself refuses wrong settings. ``wants_kafka_sink`` is pure, except that it reads
the settings file.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FLAG = re.compile(r"--?(?:spark\.)?kafka-options(?:=(.*))?", re.S)
_FILE = re.compile(r"--?config(?:=(.*))?", re.S)
_VARIABLE = "TIDB_BINLOG__SPARK__KAFKA_OPTIONS"


def wants_kafka_sink(options: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a Drainer with these options and variables sends through Spark (``KafkaConfig.by_spark``)."""
    given = [*_of_file(options), *filter(None, [environ.get(_VARIABLE)]), *_of_options(options, _FLAG)]
    return bool(given and given[-1])


def _of_options(options: Sequence[str], form: re.Pattern[str]) -> Iterator[str]:
    for at, option in enumerate(options):
        if given := form.fullmatch(option):
            yield given[1] if given[1] is not None else next(iter(options[at + 1 :]), "")


def _of_file(options: Sequence[str]) -> Iterator[object]:
    for name in _of_options(options, _FILE):
        try:
            table = tomllib.loads(Path(name).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        ours: object = next((value for key, value in table.items() if key.lower() == "spark"), {})
        for key, value in ours.items() if isinstance(ours, dict) else ():
            if key.lower() == "kafka-options":
                yield value
