"""The jars that Spark needs beside its own: Delta's with that for local files. Imports neither Spark nor any package.

Promises: a directory of jars counts only if it has every jar of this release.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.jobs.entry import own_places
from pyspark_tidb_binlog.jobs.entry.versions import DELTA_PACKAGE, LOCAL_FILES_PACKAGE

COMPLETE = ".complete"
"""A file beside jars, which names what they are: nothing of it is missing."""


@dataclass(frozen=True, slots=True)
class FetchedJars:
    """Packages of Maven Central with what these need and Spark does not have."""

    package: str
    """One or more, the last of which names the version."""
    folder: str
    """The directory's name in a virtual environment; where it is fetched to, with the version behind it."""
    excludes: str
    """Dependencies that Spark ships in its own versions, as Spark takes them."""
    wanted: tuple[str, ...]
    """The beginnings of the names of the kept jars."""
    named: re.Pattern[str]
    """The part of a jar's or package's name by which a user's own copy is recognized."""

    def place(self) -> Path | None:
        """The directory of the jars on this machine, in the virtual environment or fetched; None: they are not here yet."""
        # Resolved: the JVM compares class paths as text, and an environment can be reached by two.
        in_environment = Path(sys.prefix).resolve() / self.folder
        if self.are_in(in_environment):
            return in_environment
        fetched = self.place_to_fetch()
        return fetched if self.are_in(fetched) else None

    def place_to_fetch(self) -> Path:
        """Where the jars are put once they are fetched."""
        return own_places.downloads() / f"{self.folder}-{self.package.rpartition(':')[2]}"

    def are_in(self, place: Path) -> bool:
        """Whether the jars of this release are in ``place``, all of them."""
        try:
            return (place / COMPLETE).read_text() == self.package
        except OSError:
            return False

    def are_named_in(self, text: str) -> bool:
        """Whether jars or packages that a user names contain it: ``io.delta:delta-spark_4.2_2.13:4.4.0``, ``/jars/delta-spark_4.2_2.13-4.4.0.jar``."""
        return bool(self.named.search(text))

    def ship_with(self, spark_home: Path) -> bool:
        """Whether it is among Spark's own jars."""
        return any(self.are_named_in(jar.name) for jar in (spark_home / "jars").glob("*.jar"))


DELTA_JARS = FetchedJars(
    f"{LOCAL_FILES_PACKAGE},{DELTA_PACKAGE}",
    "spark-jars",
    # 70 MB less to download
    "org.apache.hadoop:*,org.apache.parquet:*,com.fasterxml.jackson.core:*,com.github.luben:*,org.xerial.snappy:*,org.slf4j:*,org.apache.logging.log4j:*",
    ("io.delta_", "io.unitycatalog_", "com.globalmentor_"),
    re.compile(r"\bdelta-(?:spark|core)(?:_[\d.]+)*\b"),
)


def jars_in(place: Path) -> list[str]:
    """The paths of the jars, sorted: the JVM's class archive matches only a class path that begins with them, in this order."""
    return sorted(str(jar) for jar in place.glob("*.jar"))
