"""The one name under which everything is imported and installed; the directories beside this file are links to the repository's own.

    spark = configured(SparkSession.builder).getOrCreate()    # a session of your own, with what the source and the stream need
    spark.readStream.format("tidb_binlog")                    # found by Spark itself
    Replication(spark, load_drainer(Path("drainer.toml")))    # the stream; build_session(name) gives it the session that a job has

Promises: ``__all__`` is what a program may use (CONTRIBUTING.md, Versions); everything else may change. Each name is imported when it is first used.

Spark looks for a ``DefaultSource`` in modules named ``pyspark_*``, so it finds the source ``tidb_binlog`` without registration. PySpark is
imported only when it looks: the Pump runs without it. Where the source cannot run, its name is found all the same and its use says why; an
error at this point would keep Spark from finding other sources.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tidb_binlog.binlog_source.changes.change_options import source_options
    from pyspark_tidb_binlog.binlog_source.spark_format import BinlogDataSource as DefaultSource
    from pyspark_tidb_binlog.conf.load import load_drainer
    from pyspark_tidb_binlog.jobs.lab.small_cluster import small_cluster
    from pyspark_tidb_binlog.jobs.spark.spark_session import build_session, configured
    from pyspark_tidb_binlog.jobs.stream.replication import Replication

__all__ = ["DefaultSource", "Replication", "build_session", "configured", "load_drainer", "small_cluster", "source_options"]

_HOMES = {
    "Replication": "jobs.stream.replication",
    "build_session": "jobs.spark.spark_session",
    "configured": "jobs.spark.spark_session",
    "load_drainer": "conf.load",
    "small_cluster": "jobs.lab.small_cluster",
    "source_options": "binlog_source.changes.change_options",
}


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from pyspark_tidb_binlog.binlog_source.spark_format import BinlogDataSource
        except ImportError:
            from pyspark_tidb_binlog.binlog_source.source.refused_source import RefusedSource

            return RefusedSource
        return BinlogDataSource
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
