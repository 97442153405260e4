"""What Spark's JVM is started with: options, environment, Delta's jars, those of Spark's Kafka sink. Needs neither Spark nor Python's packages to be imported.

Promises: a session that a program makes itself (``jobs/spark_session.py``) and one that the command starts (``jobs/command.py``) get the
same. Options that the caller gives win.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import HOME
from pyspark_tidb_binlog.jobs import own_places
from pyspark_tidb_binlog.jobs.class_archive import ClassArchive
from pyspark_tidb_binlog.jobs.versions import DELTA_PACKAGE, EXACT_DELTA, KAFKA_PACKAGE

FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Environment variables that make the JVM and Python workers return memory after a large batch.

The last is glibc's own default; setting it keeps glibc from raising it to 32 MiB as large blocks are freed: RocksDB in the JVM held 450 MiB
more without it. Python processes raise it themselves, and give memory back after each task instead (``jobs/allocator.py``).
"""
NOT_NEEDED = (
    "org.apache.hadoop:*,org.apache.parquet:*,com.fasterxml.jackson.core:*,com.github.luben:*,org.xerial.snappy:*,org.slf4j:*,"
    "org.apache.logging.log4j:*"
)
"""Dependencies of Delta that Spark ships in its own versions: 70 MB less to download."""
NOT_NEEDED_FOR_KAFKA = "org.apache.hadoop:*,org.slf4j:*,at.yawk.lz4:*,org.xerial.snappy:*,com.github.luben:*,com.google.code.findbugs:*,org.scala-lang.modules:*"
"""The same of Spark's Kafka sink."""
COMPLETE = ".complete"
"""A file beside jars, which names what they are: nothing of it is missing."""
_OF_KAFKA_SINK = re.compile(r"\bspark-sql-kafka-0-10(?:_|\b)")
_OF_DELTA = re.compile(r"\bdelta-(?:spark|core)(?:_[\d.]+)*\b")


def jvm_options(archive: ClassArchive | None, *, local: bool, given: str) -> str:
    """JVM options that keep Spark's log off the console and make the JVM start quickly and silently.

    With a ``local`` master those of ``conf/jvm.options`` come first, unless ``given`` names a collector: a JVM accepts only one.
    ``archive`` is used if it fits.
    """
    log = f"-Dlog4j2.configurationFile={(HOME / 'conf' / 'log4j2.properties').as_uri()}"
    ours = (HOME / "conf" / "jvm.options").read_text().strip() if local and not re.search(r"-XX:\+Use\w*GC\b", given) else ""
    classes = f"-XX:SharedArchiveFile={archive.file}" if archive is not None and archive.fits() else ""
    return f"{ours} {log} -Xlog:disable -Xlog:all=error:stderr {classes}".strip()


def jars_dir() -> Path | None:
    """The directory of Delta's jars on this machine, in the virtual environment or fetched; None: they are not here yet."""
    return _complete_one("spark-jars", new_jars_dir, DELTA_PACKAGE)


def kafka_jars_dir() -> Path | None:
    """The directory of the jars of Spark's Kafka sink, likewise."""
    return _complete_one("spark-kafka-jars", new_kafka_jars_dir, KAFKA_PACKAGE)


def new_jars_dir() -> Path:
    """Where Delta's jars are put once they are fetched."""
    return own_places.downloads() / f"spark-jars-{EXACT_DELTA}"


def new_kafka_jars_dir() -> Path:
    """Where the jars of Spark's Kafka sink are put once they are fetched."""
    return own_places.downloads() / f"spark-kafka-jars-{KAFKA_PACKAGE.rpartition(':')[2]}"


def _complete_one(beside: str, fetched: Callable[[], Path], package: str) -> Path | None:
    """``beside``: its name in the virtual environment, where no place for downloads is needed."""
    # Resolved: the JVM compares class paths as text, and an environment can be reached by two.
    in_environment = Path(sys.prefix).resolve() / beside
    if is_complete(in_environment, package):
        return in_environment
    place = fetched()
    return place if is_complete(place, package) else None


def is_complete(place: Path, package: str = DELTA_PACKAGE) -> bool:
    """Whether the jars of ``package``, of this release, are in ``place``."""
    try:
        return (place / COMPLETE).read_text() == package
    except OSError:
        return False


def jars_in(place: Path) -> list[str]:
    """The paths of the jars, sorted: the JVM's class archive matches only a class path that begins with them, in this order."""
    return sorted(str(jar) for jar in place.glob("*.jar"))


def names_delta(text: str) -> bool:
    """Whether jars or packages that a user names contain Delta: ``io.delta:delta-spark_4.2_2.13:4.4.0``, ``/jars/delta-spark_4.2_2.13-4.4.0.jar``."""
    return bool(_OF_DELTA.search(text))


def names_kafka_sink(text: str) -> bool:
    """Whether jars or packages that a user names contain Spark's Kafka sink."""
    return bool(_OF_KAFKA_SINK.search(text))


def ships_delta(spark_home: Path) -> bool:
    """Whether Delta is among Spark's own jars."""
    return any(names_delta(jar.name) for jar in (spark_home / "jars").glob("*delta-*.jar"))
