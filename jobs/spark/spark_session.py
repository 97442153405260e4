"""The SparkSession of every job, with settings tuned for small, frequent micro-batches. [spark]

Promises: a setting given on the command line of ``spark-submit`` or in ``extra`` wins over ours; ``session_settings`` is pure.
Works inside ``spark-submit`` (a gateway exists) and in a plain interpreter (tests, benchmarks, notebooks), which starts its own JVM. The output of that
JVM and of Spark's Python processes goes to the log; the console has only the program's own lines.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.entry import document
from pyspark_tidb_binlog.jobs.entry import own_places
from pyspark_tidb_binlog.jobs.entry.logs import log_file, spark_level, spark_log_file
from pyspark_tidb_binlog.jobs.entry.signals import REQUEST, take_back
from pyspark_tidb_binlog.jobs.entry.versions import DELTA_PACKAGE, java_of, require_delta, require_java, require_spark
from pyspark_tidb_binlog.jobs.spark import jvm, pyspark_insides
from pyspark_tidb_binlog.jobs.spark.class_archive import ClassArchive
from pyspark_tidb_binlog.jobs.spark.fetched_jars import DELTA_JARS, jars_in, lacks_delta
from pyspark_tidb_binlog.jobs.spark.jvm_settings import FRUGAL, is_local, jvm_options
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import CHECKPOINT_FILE_MANAGER, LOCAL_FILES
from pyspark_tidb_binlog.jobs.spark.worker_forks import FORKED_BY, PYTHON, WorkerForks
from pyspark_tidb_binlog.schemas.errors import ConfigError

_log = logging.getLogger(__name__)

EXTENSION = ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
CATALOG = ("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
STATE_STORE = (
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)
_SHOWN = 50
"""Lines of the output of a JVM that did not start."""


def build_session(app_name: str, *, master: str | None = None, delta: bool = True, extra: Mapping[str, str] | None = None) -> SparkSession:
    """The process's session, created if there is none. ``master`` None: spark-submit's, else all local cores."""
    require_spark(pyspark.__version__)
    _require_java_to_start()
    submitted = jvm.connect(REQUEST.asked.is_set)
    if submitted:
        pyspark_insides.use_jvm()
    conf = SparkConf(loadDefaults=submitted)
    chosen = master or conf.get("spark.master") or "local[*]"
    settings = {"spark.master": chosen, **session_settings(jvm.local_cores(chosen), delta=delta)}
    if not submitted:
        for name, value in FRUGAL.items():
            os.environ.setdefault(name, value)
        settings.update(
            _launch_settings(chosen, delta=delta and lacks_delta(_spark_home(), _named_in(dict(conf.getAll()) | dict(extra or {}))))
        )
    for key, value in settings.items():
        conf.setIfMissing(key, value)
    conf.setAll(list((extra or {}).items()))
    pyspark_insides.quiet_console()
    with contextlib.ExitStack() as until_started:
        if not submitted and not pyspark_insides.has_jvm():
            if is_local(chosen):
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            until_started.enter_context(_workers_as_forks(chosen))
            pyspark_insides.use_jvm(_jvm_of_our_own(conf))
        session: SparkSession = SparkSession.builder.appName(app_name).config(conf=conf).getOrCreate()
    take_back()  # PySpark has installed its own SIGINT handler
    pyspark_insides.expect_the_jvm_to_end(session.sparkContext)
    if submitted:
        session.sparkContext.setLogLevel(spark_level())
    return session


def configured(builder: SparkSession.Builder, *, delta: bool = True) -> SparkSession.Builder:
    """``builder`` with the settings that the source and the stream need. Given settings stay. Call it before the process has its first session.

    That is RocksDB for state, Delta (unless ``delta`` is false), and on a local master this interpreter for Spark's Python workers, whatever
    ``python3`` is on ``PATH``; ``PYSPARK_PYTHON`` wins.

    Raises:
        ConfigError: PySpark, or the Java that the session would start, is another than this release runs with.
    """
    require_spark(pyspark.__version__)
    given: dict[str, str] = {**dict(SparkConf().getAll()), **pyspark_insides.given_to(builder)}
    if "spark.remote" not in given and "SPARK_REMOTE" not in os.environ:
        _require_java_to_start()
    local = is_local(given.get("spark.master", "local[*]"))
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = dict([STATE_STORE, *([EXTENSION, CATALOG] if delta else [])])
    if delta and lacks_delta(_spark_home(), _named_in(given)):
        wanted |= _jars(DELTA_JARS.place(), local=local)
    for name, value in additions(given, wanted).items():
        builder = builder.config(name, value)
    return builder


def require_session(spark: SparkSession, *, delta: bool) -> None:
    """Check a session that a program has made, and set what it still accepts, with a line in the log. ``delta``: the stream writes a lake.

    Raises:
        ConfigError: it is another Spark or Delta, or lacks Delta (the error names the lines to add), or Python's threads have no threads of their own in its JVM.
    """
    require_spark(spark.version)
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise ConfigError(
            "PYSPARK_PIN_THREAD is not true: what one thread of Python tells Spark about its jobs would reach those of others. Unset this variable"
        )
    if delta and "DATABRICKS_RUNTIME_VERSION" not in os.environ:
        version = pyspark_insides.delta_version(spark)
        lines = missing_delta(version, spark.conf.get(EXTENSION[0], "") or "", spark.conf.get(CATALOG[0], "") or "")
        if lines:
            said = "".join(f"\n    .config({name!r}, {value!r})" for name, value in lines)
            raise ConfigError(
                f"this Spark session has no Delta, of which a lake's tables are ({document('installed')}). Make the session with "
                f"configured(SparkSession.builder) from pyspark_tidb_binlog, or add before getOrCreate(), in a process that has no session yet:{said}"
            )
        require_delta(version)
    name, value = STATE_STORE
    if "RocksDB" not in (spark.conf.get(name, "") or ""):
        spark.conf.set(name, value)
        _log.info("%s is %s in this session from now on", name, value)


def missing_delta(version: str, extensions: str, catalog: str) -> list[tuple[str, str]]:
    """The settings that a session with this Delta jar, these extensions and this catalog lacks."""
    lacks = [] if version else [("spark.jars.packages", DELTA_PACKAGE)]
    if EXTENSION[1] not in extensions:
        lacks.append((EXTENSION[0], ",".join(filter(None, [extensions, EXTENSION[1]]))))
    if catalog != CATALOG[1]:
        lacks.append(CATALOG)
    return lacks


def additions(given: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """The settings to add to ``given``: those of ``wanted`` that are missing, and missing entries of lists. Pure."""
    lists = {name: f"{given[name]}{_LISTS[name]}{value}" for name, value in wanted.items() if name in _LISTS and given.get(name)}
    missing = {name: value for name, value in wanted.items() if not given.get(name)}
    return missing | {name: text for name, text in lists.items() if wanted[name] not in given[name]}


_LISTS = {"spark.driver.extraClassPath": ":", "spark.jars": ",", "spark.jars.packages": ",", EXTENSION[0]: ","}
"""Settings to which something is added, and what stands between two entries."""


def _named_in(given: Mapping[str, str]) -> str:
    return " ".join(given.get(name, "") for name in _LISTS)


def _require_java_to_start() -> None:
    """Check Java first: PySpark itself reports only that the JVM exited before it sent its port number."""
    if not pyspark_insides.has_jvm() and not pyspark_insides.is_reached():
        require_java(*java_of(os.environ))


def _spark_home() -> Path:
    """The Spark whose JVM PySpark starts: with links resolved, unless ``SPARK_HOME`` names it."""
    return Path(os.environ.get("SPARK_HOME") or os.path.realpath(pyspark.__path__[0]))


def session_settings(cores: int | None, *, delta: bool = True) -> dict[str, str]:
    """Our settings. ``cores`` None: not a local master, so nothing that depends on the machine is set."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        # An empty batch would cost as much as a full one and achieve nothing.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # What the source reports while there is no batch: a Pump that has died is named after a second, not after ten.
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        STATE_STORE[0]: STATE_STORE[1],
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Each store has off-heap write buffers for every kind of state: this limits their total.
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
        # Batches to which Spark could return; it returns at most one, and beyond that the target's own row says where to resume. The
        # default, 100, means five times as many files of offsets, commits and state. They are purged after each batch, state once a minute.
        "spark.sql.streaming.minBatchesToRetain": "20",
        # A snapshot of the pairing state holds up its batch by 50 ms, and they are uploaded only once a minute: with the default, one per ten
        # batches, most are made for nothing. A restart reads at most these batches' small changelogs and those of a minute.
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "50",
        # Ended jobs that Spark keeps for its UI: with the defaults (1000, 1000, 100000, 1000) memory grows for hours.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "100",
        # Shuffle files of finished batches are deleted when the JVM collects their handles: at least this often.
        "spark.cleaner.periodicGC.interval": "10min",
        # Plans are small and fixed: re-planning between stages only adds latency.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A Python worker holds one Arrow batch at a time, and starts when the first arrives.
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
        "spark.locality.wait": "0s",
        # Persisted values have megabytes, and Java's serializer keeps the last hundred of them alive by default.
        "spark.serializer.objectStreamReset": "1",
        # How long a stream may take to stop; the default waits forever.
        "spark.sql.streaming.stopTimeout": "5s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if cores is None:
        # Only pairing is shuffled, into this many partitions and state stores. Fixed for the life of a checkpoint.
        settings["spark.sql.shuffle.partitions"] = "8"
    else:
        settings |= {
            "spark.sql.shuffle.partitions": str(cores),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Other users of this machine reach these ports, where Spark reads serialized Java objects: the JVM makes a secret that only it has.
            "spark.authenticate": "true",
            # Each broadcast, of which a batch has several of some KiB, allocates and clears a block: 4 MiB by default.
            "spark.broadcast.blockSize": "128k",
            # Shuffled data stays on this machine, and most of it is already compressed (sinks/engine/keyed.py).
            "spark.shuffle.compress": "false",
            # Hadoop's other rename starts a `readlink` process per path: 0.1 s a batch. Locally, both rename the file, then its checksum.
            CHECKPOINT_FILE_MANAGER[0]: CHECKPOINT_FILE_MANAGER[1],
        }
    if delta:
        settings |= {
            EXTENSION[0]: EXTENSION[1],
            CATALOG[0]: CATALOG[1],
            # Of tables with few files.
            "spark.databricks.delta.snapshotPartitions": "1",
        }
    return settings


@contextlib.contextmanager
def _workers_as_forks(master: str) -> Iterator[None]:
    """In the block, a new JVM and context use forks as Spark's Python processes, if ``PYSPARK_PYTHON`` is this interpreter.

    The environment is restored afterwards: other programs that this process starts have workers of their own.
    """
    before = {name: os.environ.get(name) for name in FORKED_BY}
    forks: WorkerForks | None = None
    try:
        if before["PYSPARK_PYTHON"] == sys.executable and is_local(master) and os.access(PYTHON, os.X_OK):
            with contextlib.suppress(OSError), log_file().open("ab") as out:
                forks = WorkerForks()
                forks.begin(out)
        yield
    except BaseException:
        if forks is not None:
            forks.close()
        raise
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _jvm_of_our_own(conf: SparkConf) -> Any:
    """A JVM as PySpark starts it, with its output, which Spark's Python processes inherit, in the log.

    Raises:
        ConfigError: it exited instead; the message has its output.
    """
    with log_file().open("ab") as out:
        before = out.tell()
        try:
            return pyspark_insides.start_jvm(conf, out)
        except PySparkRuntimeError as error:
            printed = log_file().read_bytes()[before:].decode(errors="replace").splitlines()[-_SHOWN:]
            raise ConfigError("Spark did not start:\n" + "\n".join(printed)) from error


def _launch_settings(master: str, *, delta: bool) -> dict[str, str]:
    """Settings that matter only if this process starts the JVM itself; ``jobs/command.py`` passes the same on its command line."""
    local, jars = is_local(master), DELTA_JARS.place()
    java, _ = java_of(os.environ)
    archive = ClassArchive(jars, _spark_home(), java) if local and jars is not None and java is not None else None
    options = jvm_options(archive, local=local, given=os.environ.get("SPARK_SUBMIT_OPTS", ""))
    settings = {"spark.driver.extraJavaOptions": f"{options} -Dtidb.binlog.log={spark_log_file()}"}
    return settings | (_jars(jars, local=local) if delta else {})


def _jars(jars: Path | None, *, local: bool) -> dict[str, str]:
    """How Spark gets Delta's jars: those in ``jars``, else from Maven Central."""
    if jars is None:
        ivy = str(own_places.downloads() / "ivy")
        return {"spark.jars.packages": DELTA_JARS.package, "spark.jars.excludes": DELTA_JARS.excludes, "spark.jars.ivy": ivy}
    if not local:
        return {"spark.jars": ",".join(jars_in(jars))}
    return {"spark.driver.extraClassPath": ":".join(jars_in(jars)), LOCAL_FILES[0]: LOCAL_FILES[1]}
