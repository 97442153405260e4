"""Checks that a program's own session has what the stream needs; the error names the line to add. [spark]

Promises: settings that an existing session accepts (the state store) are set, with a line in the log. For a lake, missing Delta (its extension, its
jar) is one error, before anything is opened.
"""

import logging
import os

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.entry import document
from pyspark_tidb_binlog.jobs.entry.versions import require_delta, require_spark
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import delta_version
from pyspark_tidb_binlog.schemas.errors import ConfigError

_log = logging.getLogger(__name__)

EXTENSION = ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
CATALOG = ("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
STATE_STORE = (
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)


def require_session(spark: SparkSession, *, delta: bool) -> None:
    """Set what the stream needs in ``spark``; ``delta``: it writes a lake.

    Raises:
        ConfigError: it is another Spark or Delta, or lacks the Delta that a lake needs, or Python's threads have no threads of their own in its JVM.
    """
    require_spark(spark.version)
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise ConfigError(
            "PYSPARK_PIN_THREAD is not true: what one thread of Python tells Spark about its jobs would reach those of others. Unset this variable"
        )
    if delta and "DATABRICKS_RUNTIME_VERSION" not in os.environ:
        version = delta_version(spark)
        if not version or any(value not in (spark.conf.get(name, "") or "") for name, value in (EXTENSION, CATALOG)):
            raise ConfigError(
                f"this Spark session has no Delta, with which Spark writes large tables of a lake ({document('installed')}). In a process without a "
                "session, make it with configured(SparkSession.builder) from pyspark_tidb_binlog"
            )
        require_delta(version)
    name, value = STATE_STORE
    if "RocksDB" not in (spark.conf.get(name, "") or ""):
        spark.conf.set(name, value)
        _log.info("%s is %s in this session from now on", name, value)
