"""Sets the project up on a fresh machine: Java, MariaDB, etcd, Kafka, a browser, virtual environment, pinned packages, Delta's jars.

Promises: runs on a bare Python with the standard library only. Installs only what is missing, so a second run is quick. Prints each step, and
the exact packages to install if it may not install them itself. ``spark-submit.sh`` and the Makefile run it. From an installed wheel,
``jobs/command.py`` uses it to fetch Delta's jars.

    python3 -m pyspark_tidb_binlog.jobs.setup [--java] [--mariadb] [--etcd] [--kafka] [--browser] [--dev]

The stamps ``.venv/.requirements*`` are copies of the requirements files that are installed: a shell can compare them without a process.
System packages are installed with apt, only by root on Debian and its derivatives, unless ``TIDB_BINLOG_NO_APT`` is set.
"""

import argparse
import contextlib
import difflib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pyspark_tidb_binlog.conf.entry import CODE, IN_CHECKOUT, PACKAGE
from pyspark_tidb_binlog.conf.entry import HOME as PROJECT
from pyspark_tidb_binlog.conf.version import VERSION
from pyspark_tidb_binlog.jobs.entry.programs import SERVER, server_program
from pyspark_tidb_binlog.jobs.entry.signals import EXIT_INTERRUPTED, ended_by_pipe
from pyspark_tidb_binlog.jobs.entry.versions import JAVA, java_of, java_release
from pyspark_tidb_binlog.jobs.spark.class_archive import ClassArchive
from pyspark_tidb_binlog.jobs.spark.fetched_jars import COMPLETE, DELTA_JARS, FetchedJars
from pyspark_tidb_binlog.schemas.errors import ConfigError

VENV = PROJECT / ".venv"
PYTHON = VENV / "bin" / "python"
KAFKA_JARS = VENV / "kafka-jars"
KAFKA = "org.apache.kafka:kafka_2.13:3.9.1"
"""A broker, which only tests run."""


class SetupError(ConfigError):
    """Something is missing that this program may not or cannot install."""


@dataclass(frozen=True, slots=True)
class SparkOfMachine:
    """A Spark and the Python that runs it."""

    python: Path
    home: Path
    environ: Mapping[str, str]
    """What its processes are started with."""


class _Parser(argparse.ArgumentParser):
    """An error is one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"setup: {message}\n")


def main(argv: Sequence[str]) -> int:
    """Set up what is requested; returns 1 and prints the reason where that is not possible."""
    parser = _Parser("spark-submit.sh setup", description="Set the project up on this machine.", allow_abbrev=False)
    parser.add_argument("-V", "--version", action="version", version=f"Release Version: {VERSION}", help="print the version and exit")
    parser.add_argument("--java", action="store_true", help="Java and Delta's jars too")
    parser.add_argument("--mariadb", action="store_true", help="MariaDB's server too")
    parser.add_argument("--etcd", action="store_true", help="etcd too, which the tests of PD's registry run")
    parser.add_argument("--kafka", action="store_true", help="a Kafka broker too, which the tests of that target run")
    parser.add_argument("--browser", action="store_true", help="Chromium and its driver too, which the tests of the page run")
    parser.add_argument("--dev", action="store_true", help="what tests and lint need too")
    wanted, others = parser.parse_known_args(argv)
    if others:
        near = difflib.get_close_matches(others[0], parser._option_string_actions, 1)
        parser.error(f"unknown flag {others[0]}; " + (f"did you mean {near[0]}?" if near else "--help lists them"))
    try:
        if wanted.java:
            ensure_java()
        if wanted.mariadb:
            ensure_mariadb()
        if wanted.etcd:
            ensure_etcd()
        if wanted.browser:
            ensure_browser()
        ensure_packages(dev=wanted.dev)
        if wanted.java:
            ensure_jars(DELTA_JARS, VENV / DELTA_JARS.folder, spark_of_venv())
            ensure_archive((VENV / DELTA_JARS.folder).resolve(), spark_of_venv())
        if wanted.kafka:
            ensure_kafka()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def ensure_java() -> None:
    """Java 17 or later, from JAVA_HOME or PATH."""
    found = java_version()
    if found is not None and found >= JAVA:
        return
    state = "no Java was found" if found is None else f"Java {found} is too old"
    apt_install(["openjdk-17-jre-headless"], f"{state}; Spark needs Java {JAVA} or later (and JAVA_HOME unset or pointing to it)")
    if (java_version() or 0) < JAVA:
        raise SetupError(f"Java {JAVA} is installed but another one is used: set JAVA_HOME (now {os.environ.get('JAVA_HOME', 'unset')})")


def ensure_mariadb() -> None:
    """MariaDB's server programs; a private instance is started from them, never the system's service."""
    try:
        for name in SERVER:
            server_program(name)
    except ConfigError:
        apt_install(["mariadb-server"], "MariaDB's server was not found")


def ensure_etcd() -> None:
    """The etcd server program; tests start instances of their own from it, never the system's service."""
    if not shutil.which("etcd"):
        apt_install(["etcd-server"], "etcd was not found")


def ensure_browser() -> None:
    """Chromium and its driver, of one release; tests start instances of their own."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        apt_install(["chromium", "chromium-driver"], "Chromium was not found")


def ensure_packages(*, dev: bool) -> None:
    """The virtual environment with every pinned package. Its Python finds the project's from any directory."""
    if not PYTHON.exists():
        say(f"making the virtual environment {VENV}")
        done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(VENV, ignore_errors=True)
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            apt_install([f"python{version}-venv"], f"Python {version} cannot make a virtual environment")
            run([sys.executable, "-m", "venv", str(VENV)], "making the virtual environment")
    for site in VENV.glob("lib/python3*/site-packages"):
        # relative, so that a copy of the environment in another checkout finds the code of that checkout
        (site / "tidb_binlog_checkout.pth").write_text("../../../..\n")
    for name in ("requirements.txt", "requirements-dev.txt")[: 2 if dev else 1]:
        wanted, stamp = PROJECT / name, VENV / f".{name}"
        if not stamp.exists() or stamp.read_text() != wanted.read_text():
            say(f"installing the packages of {name} (the first time this takes a few minutes)")
            # requirements.txt is complete, and overrides what its packages require of each other.
            alone = ["--no-deps"] if name == "requirements.txt" else []
            run(
                [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *alone, "-r", str(wanted)],
                f"installing {name}",
            )
            stamp.write_text(wanted.read_text())


def ensure_jars(jars: FetchedJars, to: Path, spark: SparkOfMachine) -> None:
    """``jars`` in the directory ``to``."""
    ensure_resolved(jars.package, to, spark, ["--exclude-packages", jars.excludes], jars.wanted)


def ensure_kafka() -> None:
    """A broker's jars in ``.venv/kafka-jars``."""
    ensure_java()
    ensure_resolved(KAFKA, KAFKA_JARS, spark_of_venv())


def ensure_resolved(package: str, to: Path, spark: SparkOfMachine, options: Sequence[str] = (), wanted: tuple[str, ...] = ("",)) -> None:
    """The jars of ``package``, and of what it needs, whose names begin with one of ``wanted``, resolved once by Spark's own Ivy.

    Safe for two processes at once: each has a directory of its own, and a jar appears as a whole.
    """
    if (to / COMPLETE).exists() and (to / COMPLETE).read_text() == package:
        return
    say(f"fetching {package}")
    ivy = to / f"ivy-{os.getpid()}"
    ivy.mkdir(parents=True, exist_ok=True)
    nothing = ivy / "nothing.py"
    nothing.write_text("")
    command = [str(spark.home / "bin" / "spark-submit"), "--packages", package, *options]
    command += ["--conf", f"spark.jars.ivy={ivy}", str(nothing)]
    try:
        run(
            command, f"fetching {package} from Maven Central (a mirror: SPARK_SUBMIT_OPTS=-Dspark.jars.repositories=URL)", env=spark.environ
        )
        jars = [jar for jar in (ivy / "jars").glob("*.jar") if jar.name.startswith(wanted)]
        if not jars:
            raise SetupError(f"Spark resolved {package} without a jar; remove {to} and try again")
        for jar in jars:
            jar.replace(to / jar.name)
    finally:
        shutil.rmtree(ivy, ignore_errors=True)
    (to / COMPLETE).write_text(package)


def ensure_archive(jars: Path, spark: SparkOfMachine) -> None:
    """Spark's classes in a class-data archive of the JVM beside ``jars``, made by one warm-up run unless it is there and fits.

    Raises:
        SetupError: Spark does not run.
    """
    java, _ = java_of(spark.environ)
    if java is None or (archive := ClassArchive(jars, spark.home, java)).tried():
        return
    say("trying Spark once, for quicker starts from now on")
    archive.remove()
    aside = jars / f"{os.getpid()}.jsa"
    environ = {**spark.environ, "SPARK_HOME": str(spark.home), "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={aside}"}
    if IN_CHECKOUT:
        environ["PYTHONPATH"] = str(CODE)
    try:
        run([str(spark.python), "-m", "pyspark_tidb_binlog.jobs.spark.warmup"], "the first run of Spark", env=environ, deaf=True)
        archive.replaced_by(aside)
    finally:
        aside.unlink(missing_ok=True)


def write_zip(file: Path) -> None:
    """The project's packages as one archive, for executors on other machines; replaced atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sources():
            archive.write(path, path.relative_to(CODE))
    aside.replace(file)


def sources() -> Iterable[Path]:
    """Every file that executors need, sorted."""
    kinds = (".py", ".toml", ".properties", ".options")
    walked = (Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names)
    return [PACKAGE / "py.typed", *sorted(path for path in walked if path.suffix in kinds)]


def java_version() -> int | None:
    """The feature release of the Java that Spark would run, None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return java_release(shown.stderr + shown.stdout)


def apt_install(packages: Sequence[str], why: str) -> None:
    """Install system packages where that is allowed, else raise an error that names them."""
    command = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise SetupError(f"{why}: install what Debian calls {' '.join(packages)} and start again")
    if os.geteuid() != 0 or "TIDB_BINLOG_NO_APT" in os.environ:
        raise SetupError(f"{why}: run `{command}` as root and start again")
    say(f"{why}: {command}")
    run([str(Path(__file__).resolve().with_name("apt-install")), *packages], command)


def spark_of_venv() -> SparkOfMachine:
    """The virtual environment's."""
    (home,) = VENV.resolve().glob("lib/python3*/site-packages/pyspark")
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return SparkOfMachine(PYTHON, home, inherited | {"PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON)})


def run(command: Sequence[str], what: str, env: Mapping[str, str] | None = None, *, deaf: bool = False) -> None:
    """Run a step; its output is shown only if it fails. Ctrl-C ends it as it ends apt, which may need a while. ``deaf``: what it starts hears no Ctrl-C."""
    own_group = 0 if deaf else None
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=own_group) as child:
        try:
            printed, _ = child.communicate()
        except KeyboardInterrupt:
            if deaf:
                os.killpg(child.pid, signal.SIGTERM)
            child.wait()
            if deaf:
                # A JVM would write its archive first.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode != 0:
        raise SetupError(f"{what} failed (exit code {child.returncode}); it printed:\n{printed.strip()[-3000:]}")


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(ended_by_pipe(lambda: main(sys.argv[1:])))
