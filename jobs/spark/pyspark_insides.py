"""The private parts of PySpark, Spark and Delta that ``jobs`` uses. To port ``jobs`` to another Spark, read this file. [spark]

Promises: no other file of ``jobs`` names a private part (``tests/test_layout.py``). Each docstring names the part, as of Spark 4.2.1 and Delta 4.4.0.
``sinks/engine/spark_jvm.py`` has the private parts that ``sinks`` uses. Importing this file imports no PySpark: the JVM starts first.
"""

import logging
import os
import struct
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

# Settings and variables that Spark's documentation does not have.

CHECKPOINT_FILE_MANAGER = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""The setting by which Spark renames files of a checkpoint through Hadoop's ``FileSystem``."""
LOCAL_FILES = ("spark.hadoop.fs.file.impl", "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem")
"""The setting by which Hadoop sets modes of local files itself. Without its native library, which PySpark lacks, it starts a process ``chmod`` for each
file that it makes: four per batch, 20 to 70 ms. The class is in ``DELTA_JARS``.
"""
_WHERE_TO_TELL = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def telling(file: Path) -> dict[str, str]:
    """Variables with which ``spark-submit … pyspark-shell`` writes to ``file`` how it is reached: ``_PYSPARK_DRIVER_CONN_INFO_PATH``."""
    return {_WHERE_TO_TELL: str(file), "SPARK_CONNECT_MODE": "0"}


def reach(told: bytes) -> None:
    """Have PySpark use the JVM that has written ``told``: a port, the length of a secret, the secret; ``PYSPARK_GATEWAY_PORT``, ``…_SECRET``."""
    port, length = struct.unpack(">ii", told[:8])
    os.environ |= {_PORT: str(port), _SECRET: told[8 : 8 + length].decode()}


def is_reached() -> bool:
    """Whether PySpark will use a JVM that is there, which ``reach`` or ``spark-submit`` has named: ``PYSPARK_GATEWAY_PORT``."""
    return _PORT in os.environ


# PySpark on the driver.


def has_jvm() -> bool:
    """Whether PySpark is connected to a JVM: ``SparkContext._gateway``."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def start_jvm(conf: "SparkConf", out: IO[bytes]) -> "JavaGateway":
    """A JVM as PySpark starts it, printing to ``out``: ``pyspark.java_gateway.launch_gateway`` and its ``popen_kwargs``.

    Raises:
        PySparkRuntimeError: it exited.
    """
    from pyspark.java_gateway import launch_gateway

    gateway: JavaGateway = launch_gateway(conf, {"stdout": out, "stderr": subprocess.STDOUT})  # type: ignore[no-untyped-call]
    return gateway


def use_jvm(gateway: "JavaGateway | None" = None) -> None:
    """Connect PySpark before the first session, to ``gateway`` or to the JVM that ``is_reached``: ``SparkContext._ensure_initialized``."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=gateway)


def end_jvm(seconds: float) -> None:
    """End PySpark's own JVM and wait until it has exited, which it does once nobody holds its standard input: ``SparkContext._gateway.proc``."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(seconds)


def given_to(builder: "SparkSession.Builder") -> dict[str, str]:
    """The settings of a builder: ``SparkSession.Builder._options``."""
    return {name: str(value) for name, value in builder._options.items()}


def quiet_console() -> None:
    """PySpark prints every analysis error as JSON on stderr, in addition to raising it; leave it to the log file: its loggers' names."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).handlers[:] = [logging.NullHandler()]


def expect_the_jvm_to_end(context: "SparkContext") -> None:
    """The JVM ends before the job does; PySpark would print a trace when it closes its connection: ``SparkContext._accumulatorServer.handle_error``."""
    server = context._accumulatorServer
    if server is not None:
        server.handle_error = lambda request, client_address: logging.debug("the JVM has closed %s", client_address)  # type: ignore[method-assign]


# Classes of Spark and Delta in the JVM: ``SparkSession._jvm``.


def checkpoint_file_manager(spark: "SparkSession", root: Any) -> Any:
    """Spark's own for the directory ``root``, a Hadoop ``Path``: ``CheckpointFileManager.create``, ``SparkContext._jsc.hadoopConfiguration()``.

    The context's configuration, not the session's: with ``CHECKPOINT_FILE_MANAGER`` a file cannot be replaced.
    """
    jvm: Any = spark._jvm
    managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    return managers.create(root, hadoop_configuration(spark))


def hadoop_configuration(spark: "SparkSession") -> Any:
    """Hadoop's settings of the context: ``SparkContext._jsc``."""
    return spark.sparkContext._jsc.hadoopConfiguration()


def delta_version(spark: "SparkSession") -> str:
    """The version of the Delta jar that the JVM has; empty: it has none: ``io.delta.VERSION``, of a package object of Scala."""
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm
    try:
        return str(getattr(jvm.io.delta, "package").VERSION())  # noqa: B009
    except (TypeError, Py4JError):
        return ""


# Spark's Python processes.

WORKER_MODULES = (
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
)
"""What the JVM runs by ``python -m``: a data source in four steps, and the parent of the workers, which runs ``pyspark.worker.main`` for each task."""
