"""The archive of Spark's classes, without which a start takes 4 s more (10.4 s to the first batch instead of 6.4 s, on two cores).

Promises: an archive is used only with its own Java, Spark and jars, at the same paths, which its name has. With others a JVM would silently load every
class anew, after it has mapped the archive for nothing. Imports neither Spark nor any package.
"""

import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import CODE, IN_CHECKOUT
from pyspark_tidb_binlog.jobs.entry.versions import java_of
from pyspark_tidb_binlog.jobs.spark.fetched_jars import DELTA_JARS, run_once, say, set_up, spark_of_environment


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The class-data archive beside Delta's jars."""

    jars: Path
    """The directory of Delta's jars, with which the class path begins."""
    spark_home: Path
    java: Path
    """The program that is started, or a link to it."""

    @property
    def file(self) -> Path:
        """Where it is, of which each look reads the directories of jars. Empty: this Java could make none, as some lack the base archive of their own
        classes.
        """
        return self.jars / f"spark-{zlib.crc32(self._made_for().encode()):08x}.jsa"

    def fits(self) -> bool:
        """Whether there is one for exactly this."""
        try:
            return self.file.stat().st_size > 0
        except OSError:
            return False

    def make(self, environ: Mapping[str, str]) -> None:
        """Have Spark run once with a JVM that writes the archive, unless that was done; other archives go.

        Raises:
            ConfigError: Spark does not run.
        """
        made = self.file
        if made.exists():
            return
        say("trying Spark once, for quicker starts from now on")
        for other in self.jars.glob("*.jsa"):
            # one that another process makes at this moment has its number
            if not Path("/proc", other.stem).exists():
                other.unlink(missing_ok=True)
        aside = self.jars / f"{os.getpid()}.jsa"
        environ = {**environ, "SPARK_HOME": str(self.spark_home), "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={aside}"}
        if IN_CHECKOUT:
            environ["PYTHONPATH"] = str(CODE)
        try:
            run_once([sys.executable, "-m", "pyspark_tidb_binlog.jobs.spark.warmup"], "the first run of Spark", environ)
            aside.touch()
            aside.replace(made)
        finally:
            aside.unlink(missing_ok=True)

    def _made_for(self) -> str:
        """What a JVM compares when it maps an archive: its own build, and the path, size and time of each jar."""
        program = self.java.resolve()
        modules = program.parents[1] / "lib" / "modules"
        java = f"{program} {_size_and_time(modules if modules.exists() else program)}"
        return "\n".join([java, *(f"{directory} {_listed(directory)}" for directory in (self.jars, self.spark_home / "jars"))])


def _listed(directory: Path) -> list[tuple[str, tuple[int, int]]]:
    with os.scandir(directory) as entries:
        return sorted((entry.name, _size_and_time(entry.path)) for entry in entries if entry.name.endswith(".jar"))


def _size_and_time(path: Path | str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _prepare() -> None:
    """Make the one of this environment; a part of setting a checkout up."""
    home, environ = spark_of_environment()
    jars, (java, _) = DELTA_JARS.place(), java_of(environ)
    if jars is not None and java is not None:
        ClassArchive(jars, home, java).make(environ)


if __name__ == "__main__":
    sys.exit(set_up(_prepare))
