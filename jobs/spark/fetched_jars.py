"""The jars that Spark needs beside its own, Delta's with that for local files, fetched once by Spark's own Ivy. Needs the standard library only.

Promises: a directory of jars counts only if it has every jar of this release. Two processes may fetch at once: each has a directory of its own, and a
jar appears as a whole.

    python -m pyspark_tidb_binlog.jobs.spark.fetched_jars spark-jars [kafka-jars]     # into this environment, as jobs/setup.sh does
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.jobs.entry import own_places
from pyspark_tidb_binlog.jobs.entry.signals import EXIT_INTERRUPTED
from pyspark_tidb_binlog.jobs.entry.versions import DELTA_PACKAGE, LOCAL_FILES_PACKAGE, spark_home
from pyspark_tidb_binlog.schemas.errors import ConfigError

COMPLETE = ".complete"
"""A file beside jars, which names what they are: nothing of it is missing."""


@dataclass(frozen=True, slots=True)
class FetchedJars:
    """Packages of Maven Central with what these need and Spark does not have."""

    package: str
    """One or more, the last of which names the version."""
    folder: str
    """The directory's name in a virtual environment; where it is fetched to, with the version behind it."""
    excludes: str = ""
    """Dependencies that Spark ships in its own versions, as Spark takes them."""
    wanted: tuple[str, ...] = ("",)
    """The beginnings of the names of the kept jars."""

    def place(self) -> Path | None:
        """The directory of the jars on this machine, in the virtual environment or fetched; None: they are not here yet."""
        if self.are_in(self.in_environment()):
            return self.in_environment()
        fetched = self.place_to_fetch()
        return fetched if self.are_in(fetched) else None

    def in_environment(self) -> Path:
        """Where setting a checkout up puts them. Resolved: the JVM compares class paths as text, and an environment can be reached by two."""
        return Path(sys.prefix).resolve() / self.folder

    def place_to_fetch(self) -> Path:
        """Where a start puts them."""
        return own_places.downloads() / f"{self.folder}-{self.package.rpartition(':')[2]}"

    def are_in(self, place: Path) -> bool:
        """Whether the jars of this release are in ``place``, all of them."""
        try:
            return (place / COMPLETE).read_text() == self.package
        except OSError:
            return False

    def fetch(self, to: Path, spark_home: Path, environ: Mapping[str, str]) -> None:
        """Put them into the directory ``to``, unless they are there.

        Raises:
            ConfigError: Ivy cannot resolve them; the message has what it printed.
        """
        if self.are_in(to):
            return
        say(f"fetching {self.package}")
        ivy = to / f"ivy-{os.getpid()}"
        ivy.mkdir(parents=True, exist_ok=True)
        nothing = ivy / "nothing.py"
        nothing.write_text("")
        excluded = ["--exclude-packages", self.excludes] if self.excludes else []
        command = [str(spark_home / "bin" / "spark-submit"), "--packages", self.package, *excluded, "--conf", f"spark.jars.ivy={ivy}"]
        what = f"fetching {self.package} from Maven Central (a mirror: SPARK_SUBMIT_OPTS=-Dspark.jars.repositories=URL)"
        try:
            run_once([*command, str(nothing)], what, environ)
            jars = [jar for jar in (ivy / "jars").glob("*.jar") if jar.name.startswith(self.wanted)]
            if not jars:
                raise ConfigError(f"Spark resolved {self.package} without a jar; remove {to} and try again")
            for jar in jars:
                jar.replace(to / jar.name)
        finally:
            shutil.rmtree(ivy, ignore_errors=True)
        (to / COMPLETE).write_text(self.package)


DELTA_JARS = FetchedJars(
    f"{LOCAL_FILES_PACKAGE},{DELTA_PACKAGE}",
    "spark-jars",
    # 70 MB less to download
    "org.apache.hadoop:*,org.apache.parquet:*,com.fasterxml.jackson.core:*,com.github.luben:*,org.xerial.snappy:*,org.slf4j:*,org.apache.logging.log4j:*",
    ("io.delta_", "io.unitycatalog_", "com.globalmentor_"),
)
KAFKA_JARS = FetchedJars("org.apache.kafka:kafka_2.13:3.9.1", "kafka-jars")
"""A broker, which only tests run."""


def names_delta(text: str) -> bool:
    """Whether jars or packages that a user names contain Delta's: ``io.delta:delta-spark_4.2_2.13:4.4.0``, ``/jars/delta-spark_4.2_2.13-4.4.0.jar``."""
    return re.search(r"\bdelta-(?:spark|core)(?:_[\d.]+)*\b", text) is not None


def lacks_delta(home: Path, given: str) -> bool:
    """Whether Delta's is neither among the jars of the Spark in ``home`` nor named in ``given``, a user's own settings."""
    return not names_delta(given) and not any(names_delta(jar.name) for jar in (home / "jars").glob("*.jar"))


def jars_in(place: Path) -> list[str]:
    """The paths of the jars, sorted: the JVM's class archive matches only a class path that begins with them, in this order."""
    return sorted(str(jar) for jar in place.glob("*.jar"))


def run_once(command: Sequence[str], what: str, environ: Mapping[str, str]) -> None:
    """Run ``command``, which starts a JVM; its output is shown only if it fails. Ctrl-C ends all that it has started.

    Raises:
        ConfigError: it failed.
    """
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0) as child:
        try:
            printed, _ = child.communicate()
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
                child.wait()
                # a JVM would write its archive first
                os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode != 0:
        raise ConfigError(f"{what} failed (exit code {child.returncode}); it printed:\n{printed.strip()[-3000:]}")


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def spark_of_environment() -> tuple[Path, dict[str, str]]:
    """The Spark that pip has installed here, and the environment of its processes."""
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return spark_home(inherited), inherited | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def set_up(step: Callable[[], None]) -> int:
    """Run a step of setting up; returns its exit code."""
    try:
        step()
    except ConfigError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _fetch_named() -> None:
    for jars in (DELTA_JARS, KAFKA_JARS):
        if jars.folder in sys.argv[1:]:
            jars.fetch(jars.in_environment(), *spark_of_environment())


if __name__ == "__main__":
    sys.exit(set_up(_fetch_named))
