"""The command: ``tidb-binlog [spark options] JOB [options]`` where the wheel is installed, ``./spark-submit.sh`` in a checkout.

Options of ``spark-submit`` (``--master``, ``--conf``, ``--name``…) go to Spark in any position; all others go to the job, as do ``-c`` after the job and
everything after ``--``. The command checks for packages, Java and Delta's jars before it starts anything. Then this process becomes the job
(``jobs/launch.py``), with a new environment: some variables are read only when a process starts.

Promises: imports the standard library only, so that it can report missing packages. ``parsed`` is pure.
"""

import contextlib
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from pyspark_tidb_binlog.conf.entry import CODE, COMMAND, HOME, IN_CHECKOUT, PACKAGE, PROGRAM
from pyspark_tidb_binlog.conf.setting import did_you_mean
from pyspark_tidb_binlog.conf.version import VERSION
from pyspark_tidb_binlog.jobs.entry import own_places
from pyspark_tidb_binlog.jobs.entry.programs import require_server_programs
from pyspark_tidb_binlog.jobs.entry.signals import EXIT_INTERRUPTED, ended_by_pipe
from pyspark_tidb_binlog.jobs.entry.versions import JAVA, java_of, require_java, spark_home
from pyspark_tidb_binlog.jobs.lab.recorded_cases import require_case
from pyspark_tidb_binlog.jobs.spark import jvm_settings
from pyspark_tidb_binlog.jobs.spark.class_archive import ClassArchive
from pyspark_tidb_binlog.jobs.spark.code_zip import write_zip
from pyspark_tidb_binlog.jobs.spark.fetched_jars import DELTA_JARS, jars_in, lacks_delta
from pyspark_tidb_binlog.jobs.spark.jvm_settings import FRUGAL, PUMPS
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import LOCAL_FILES
from pyspark_tidb_binlog.schemas.errors import ConfigError

EXIT_WRONG = 2
_WITH_SERVER = ("demo", "playground", "rehearse")
"""Jobs that, if they run in Spark, start a private MariaDB, unless ``--to`` names a server."""
_OF_A_MOMENT = (["tables"], ["versions"], ["snapshots"], ["show"])
"""Commands of ``lake`` that run without Spark."""
_HTTP = ("h11", "hpack", "prometheus_client")
_SPARK = ("pyspark", "py4j", "pandas", "rich", "deltalake", *_HTTP)


@dataclass(frozen=True, slots=True)
class Offered:
    """A job that a person can start."""

    text: str
    """What it is; its first option."""
    extra: str = ""
    """The extra of the wheel that has its packages."""
    packages: tuple[str, ...] = ()
    """Modules of these packages, beyond those of the wheel itself."""
    spark: bool = False
    """Whether it runs in Spark."""
    spark_with: str = ""
    """The switch with which alone it runs in Spark."""


JOBS = {
    "ctl": Offered("binlogctl's commands, and the state of a Drainer (ctl status, ctl ddl, ctl findings; see ctl --help)"),
    "demo": Offered(
        "private MariaDB, two Pumps, a workload and the drainer: see it work (--seconds 60)", "demo", (*_SPARK, "rocksdict"), spark=True
    ),
    "docs": Offered("the documents: a list, or one of them (docs runbook)"),
    "drainer": Offered(
        "the replication stream (--config drainer.toml; --check: only report what would stop it; --bootstrap-all: first fill an empty target)",
        "drainer",
        _SPARK,
        spark=True,
    ),
    "lake": Offered(
        "the tables of a lake (lake tables | versions | snapshots | show DB.TABLE [--at T] [--limit N] --dir DIR)",
        "drainer",
        _SPARK,
        spark=True,
    ),
    "playground": Offered(
        "a small cluster that stays up, to try things on (--target: also the drainer, into a private MariaDB)",
        "demo",
        ("rocksdict", *_HTTP),
        spark_with="target",
    ),
    "pump": Offered("a Pump server (--config pump.toml)", "pump", ("rocksdict", *_HTTP)),
    "rehearse": Offered(
        "a recorded case through Pumps and drainer (rehearse CASE [--to mysql://user:pw@host:port])",
        "demo",
        (*_SPARK, "rocksdict"),
        spark=True,
    ),
    "replay": Offered(
        "Reparo: what a file sink wrote, printed or applied (replay -data-dir DIR [-start-datetime T] [-stop-datetime T] [-dest-type mysql])"
    ),
    "verify": Offered(
        "is the target the same as the upstream? Exact, beside a running drainer (--config drainer.toml [--tables PATTERN] [--json])"
    ),
    "setup": Offered("install what a job or the tests need, and end (--java --mariadb --etcd --kafka --browser --dev)"),
}
"""The jobs that ``--help`` lists. ``setup`` exists only in a checkout; ``spark-submit.sh`` runs it."""

WITH_VALUE = frozenset(
    "--master --deploy-mode --name --conf -c --jars --packages --exclude-packages --repositories --py-files --files --archives --properties-file "
    "--driver-memory --driver-java-options --driver-library-path --driver-class-path --executor-memory --executor-cores --driver-cores "
    "--total-executor-cores --num-executors --queue --proxy-user --principal --keytab".split()
)
"""Options of ``spark-submit`` that take a value."""
SWITCHES = frozenset({"--verbose", "--supervise"})
BEFORE_THE_JOB = (*sorted(WITH_VALUE), *sorted(SWITCHES), "--help", "--version")


@dataclass(slots=True)
class Given:
    """A command line."""

    job: str = ""
    options: list[str] = field(default_factory=list)
    """The job's."""
    spark: list[str] = field(default_factory=list)
    """Spark's, but for those below."""
    master: str = ""
    jars: str = ""
    py_files: str = ""
    class_path: str = ""


def main() -> int:
    """Become the job; returns 2 after one line on stderr where that is not possible."""
    _open_streams()
    try:
        return ended_by_pipe(lambda: _run(parsed(sys.argv[1:])))
    except ConfigError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_WRONG
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED


def parsed(argv: Sequence[str]) -> Given:
    """``argv`` split into Spark's and the job's options. ``--help`` and ``--version`` before a job are jobs of their own.

    Raises:
        ConfigError: an option is unknown or lacks its value, or the job is unknown.
    """
    given, words = Given(), list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            given.options += words
            break
        if word in SWITCHES:
            given.spark.append(word)
        elif name in WITH_VALUE and not (word == "-c" and given.job) and not (name == "-c" and equals):
            if not equals and not words:
                raise ConfigError(f"{word} needs a value")
            _keep(given, name, value if equals else words.pop(0))
        elif given.job:
            given.options.append(word)
        elif word.startswith("-") and word not in ("-h", "--help", "-V", "--version"):
            raise ConfigError(
                f"unknown option {word} before the job{did_you_mean(name, BEFORE_THE_JOB) or ';'} {COMMAND} --help lists the jobs"
            )
        else:
            given.job = word
    return given


def _keep(given: Given, name: str, value: str) -> None:
    if value == "--":
        # it ends Spark's options where they are handed on
        raise ConfigError(f"{name} needs a value")
    match name:
        case "--deploy-mode" if value != "client":
            raise ConfigError(f"the job is Spark's driver and runs where it is started: --deploy-mode {value} is not possible")
        case "--master":
            given.master = value
        case "--jars":
            given.jars = value
        case "--py-files":
            given.py_files = value
        case "--driver-class-path":
            given.class_path = value
        case _:
            given.spark += [name, value]


def _run(given: Given) -> int:
    if given.job in ("-h", "--help", "help", ""):
        print(usage(), file=sys.stdout if given.job else sys.stderr)
        return 0 if given.job else EXIT_WRONG
    if given.job in ("-V", "--version"):
        print(f"Release Version: {VERSION}")
        return 0
    if given.job == "setup" and IN_CHECKOUT:
        _become([str(HOME / PROGRAM), "setup", *given.options], os.environ)
    if given.job not in offered():
        raise ConfigError(f"there is no job {given.job!r}{did_you_mean(given.job, offered()) or ';'} {COMMAND} --help lists them")
    job = JOBS[given.job]
    if job.spark_with and _is_on(job.spark_with, given.options):
        job = replace(job, packages=(*_SPARK, *job.packages), spark=True)
    # What would hinder a stream is found without Spark, and so is what --help prints.
    checks = given.job == "drainer" and _is_on("check", given.options)
    alone = given.job == "lake" and _without_spark(given.options)
    asks = any(re.fullmatch(r"-h|-V|--?(help|help-all|version)", option) for option in given.options)
    spark = job.spark and not checks and not alone and not asks
    server = spark and given.job in _WITH_SERVER and not any(re.match(r"--?to(=|$)", option) for option in given.options)
    if IN_CHECKOUT:
        # The lines that a playground prints are for Spark.
        failed = _set_up(java=spark or (given.job == "playground" and not asks), server=server)
        if failed:
            return failed
    require_packages(given.job, job)
    environ = {**(PUMPS if given.job == "pump" else FRUGAL), **os.environ, "LC_ALL": "C.UTF-8", "PYTHONSAFEPATH": "1"}
    if IN_CHECKOUT:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CODE), *_without(str(CODE), environ.get("PYTHONPATH", ""))]))
    name = "preflight" if checks else given.job
    if not environ.get("TIDB_BINLOG_LOG"):
        environ["TIDB_BINLOG_LOG"] = str(own_places.logs() / f"{name}.log")
    if environ.get("TIDB_BINLOG_DIE"):
        # A fault point must kill the whole application (conf/failpoints.py), which is this process.
        environ.setdefault("TIDB_BINLOG_DIE_PID", str(os.getpid()))
    # A name below `jobs` (launch.py).
    arguments = ["check.preflight" if checks else given.job, *given.options]
    if spark:
        if given.job == "rehearse":
            require_case(given.options)
        if server:
            require_server_programs()
        arguments = [*_in_spark(given, environ), "--", *arguments]
    _become([sys.executable, "-m", "pyspark_tidb_binlog.jobs.launch", *arguments], environ)


def _set_up(*, java: bool, server: bool) -> int:
    """Install what this checkout lacks; returns the exit code. Goes on as the environment's Python if this is another one."""
    environment = HOME / ".venv"
    found, release = java_of(os.environ)
    flags = []
    if java and (found is None or (release or JAVA) < JAVA or DELTA_JARS.place() is None):
        flags.append("--java")
    if server:
        try:
            require_server_programs()
        except ConfigError:
            flags.append("--mariadb")
    wanted, stamp = HOME / "requirements.txt", environment / ".requirements.txt"
    if flags or not stamp.exists() or stamp.read_text() != wanted.read_text():
        with subprocess.Popen([str(HOME / PROGRAM), "setup", *flags], stdout=sys.stderr) as setup:
            while setup.returncode is None:
                # Ctrl-C ends it, too, once apt has ended
                with contextlib.suppress(KeyboardInterrupt):
                    setup.wait()
        if setup.returncode:
            return setup.returncode
    if Path(sys.prefix).resolve() != environment.resolve():
        _become([str(environment / "bin" / "python"), "-m", __spec__.name, *sys.argv[1:]], os.environ)
    return 0


def offered() -> dict[str, Offered]:
    """The jobs that can be started here."""
    return {name: job for name, job in JOBS.items() if name != "setup" or IN_CHECKOUT}


def usage() -> str:
    """What ``--help`` prints."""
    lines = [f"  {name:<11} {job.text}" for name, job in offered().items()]
    return "\n".join(
        [
            f"usage: {COMMAND} [spark options] JOB [options]",
            "",
            "jobs:",
            *lines,
            "",
            f"{COMMAND} JOB --help shows a job's own options, --version the version. Options of Spark's spark-submit are passed on; --master defaults to local[*].",
        ]
    )


def require_packages(name: str, job: Offered, found: Callable[[str], object] = find_spec) -> None:
    """Raise ConfigError if this environment lacks a package of ``job``."""
    lacking = [package for package in job.packages if found(package) is None]
    if lacking:
        raise ConfigError(
            f"{name} needs packages that this environment ({sys.prefix}) lacks: {', '.join(lacking)}. "
            f"Install the wheel with its extra: pip install 'tidb_binlog_spark-{VERSION}-py3-none-any.whl[{job.extra}]'"
        )


def _is_on(switch: str, options: Sequence[str]) -> bool:
    return any(re.fullmatch(rf"--?{switch}(=(1|t|true))?", option, re.IGNORECASE) for option in options)


def _without_spark(options: Sequence[str]) -> bool:
    """Whether options of ``lake`` ask for what needs no JVM. A command that is not the first word gets one in any case."""
    by_sql = "verify" in options and any(re.match(r"--?config(=|$)", option) for option in options)
    return by_sql or options[:1] in _OF_A_MOMENT


def _in_spark(given: Given, environ: dict[str, str]) -> list[str]:
    """Spark's arguments; completes the environment."""
    home = spark_home(environ)
    java, release = java_of(environ)
    require_java(java, release)
    master = given.master or environ.get("MASTER") or "local[*]"
    local = jvm_settings.is_local(master)
    jars = _jars(given, home, environ)
    archive = ClassArchive(jars, home, java) if jars is not None and java is not None and local else None
    if archive is not None and os.access(archive.jars, os.W_OK):
        try:
            archive.make(environ)
        except (ConfigError, OSError) as error:
            print(f"{PROGRAM}: Spark's class archive in {archive.jars} could not be made, so starts take longer: {error}", file=sys.stderr)
    named = jars_in(jars) if jars is not None else []
    class_path, all_jars, py_files = given.class_path, given.jars, given.py_files
    if local:
        # Driver and executors are one JVM and see this code: nothing to copy, nothing to ship.
        environ["PYSPARK_PYTHON"] = sys.executable
        class_path = ":".join(filter(None, [*named, class_path]))
    else:
        if master.startswith("local-cluster"):
            # Its executors are on this machine; those of other clusters have their own Python.
            environ["PYSPARK_PYTHON"] = environ.get("PYSPARK_PYTHON") or sys.executable
        # Executors that join later fetch it, too: an installation of another version must not replace it.
        code = own_places.downloads() / "py-files" / f"{zlib.crc32(str(PACKAGE).encode()):08x}" / "tidb_binlog_spark.zip"
        write_zip(code)
        py_files = ",".join(filter(None, [str(code), py_files]))
        all_jars = ",".join(filter(None, [*named, all_jars]))
    options = environ.get("SPARK_SUBMIT_OPTS", "")
    ours = jvm_settings.jvm_options(archive, local=local, given=f"{options} {' '.join(given.spark)}")
    # Strings hash alike in driver and workers, as spark-submit sets it.
    environ |= {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": f"{ours} {options}".strip(), "PYTHONHASHSEED": "0"}
    settings = ["spark.ui.showConsoleProgress=false"]
    if local:
        settings += ["=".join(LOCAL_FILES)] if jars is not None else []
    arguments = ["--master", master, "--name", f"tidb-binlog {given.job}"]
    for setting in settings:
        arguments += ["--conf", setting]
    arguments += given.spark
    for name, text in (("--driver-class-path", class_path), ("--jars", all_jars), ("--py-files", py_files)):
        arguments += [name, text] if text else []
    return arguments


def _jars(given: Given, home: Path, environ: Mapping[str, str]) -> Path | None:
    """The directory of Delta's jars, fetched if they are not there; None if Spark has them, or the caller names others."""
    if not lacks_delta(home, " ".join([given.jars, given.class_path, *given.spark])):
        return None
    found = DELTA_JARS.place()
    if found is None:
        found = DELTA_JARS.place_to_fetch()
        DELTA_JARS.fetch(found, home, environ)
    return found


def _without(part: str, path: str) -> list[str]:
    return [one for one in path.split(os.pathsep) if one != part]


def _open_streams() -> None:
    """Open closed standard streams on ``/dev/null``: the next opened file would get their descriptors."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)


def _become(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    os.execve(command[0], list(command), environ)


if __name__ == "__main__":
    sys.exit(main())
