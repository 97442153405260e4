"""Whether a Drainer's settings ask for Spark's Kafka sink, whose jars have to be there before its JVM is started.

Promises: imports the standard library only, and raises nothing: settings that are wrong are the job's to refuse. ``wants_kafka_sink`` is pure but for
reading the file that the options name.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FLAG = re.compile(r"--?(?:spark\.)?kafka-(client|options)(?:=(.*))?", re.S)
_FILE = re.compile(r"--?config(?:=(.*))?", re.S)
_VARIABLE = "TIDB_BINLOG__SPARK__KAFKA_"


def wants_kafka_sink(options: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a Drainer with these options and variables sends through Spark (``KafkaConfig.by_spark``)."""
    found: dict[str, object] = {}
    for name, value in [*_of_file(options), *_of_environ(environ), *_of_options(options, _FLAG)]:
        found[name] = value
    client = str(found.get("client") or "")
    return client == "spark" or (not client and bool(found.get("options")))


def _of_options(options: Sequence[str], form: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for at, option in enumerate(options):
        if given := form.fullmatch(option):
            name, value = given[1] if form.groups > 1 else "", given[form.groups]
            yield name, value if value is not None else next(iter(options[at + 1 :]), "")


def _of_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in ("client", "options"):
        if value := environ.get(_VARIABLE + name.upper(), ""):
            yield name, value


def _of_file(options: Sequence[str]) -> Iterator[tuple[str, object]]:
    for _, name in _of_options(options, _FILE):
        try:
            table = tomllib.loads(Path(name).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        ours: object = next((value for key, value in table.items() if key.lower() == "spark"), {})
        for key, value in ours.items() if isinstance(ours, dict) else ():
            if key.lower() in ("kafka-client", "kafka-options"):
                yield key.lower().removeprefix("kafka-"), value
