"""Checks that a program's own session has what the stream needs; the error names the line to add. [spark]

Promises: settings that an existing session accepts (the state store) are set, with a line in the log. Missing Delta (its extension, its jar) is one
error, before anything is opened. ``missing_delta`` is pure.
"""

import logging
import os

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.entry import document
from pyspark_tidb_binlog.jobs.entry.versions import DELTA_PACKAGE, require_delta, require_spark
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import delta_version
from pyspark_tidb_binlog.schemas.errors import ConfigError

_log = logging.getLogger(__name__)

EXTENSION = ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
CATALOG = ("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
STATE_STORE = (
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)


def require_session(spark: SparkSession) -> None:
    """Set what the stream needs in ``spark``.

    Raises:
        ConfigError: it is another Spark or Delta, or lacks Delta, or Python's threads have no threads of their own in its JVM.
    """
    require_spark(spark.version)
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise ConfigError(
            "PYSPARK_PIN_THREAD is not true: what one thread of Python tells Spark about its jobs would reach those of others. Unset this variable"
        )
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ:
        version = delta_version(spark)
        lines = missing_delta(version, spark.conf.get(EXTENSION[0], "") or "", spark.conf.get(CATALOG[0], "") or "")
        if lines:
            said = "".join(f"\n    .config({name!r}, {value!r})" for name, value in lines)
            raise ConfigError(
                f"this Spark session has no Delta, whose tables have the checkpoints ({document('installed')}). Make the session with "
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
