"""The one name under which everything is imported and installed; the directories beside this file are links to the repository's own.

    spark = configured(SparkSession.builder).getOrCreate()    # a session of your own, with what the source and the stream need
    spark.readStream.format("tidb_binlog")                    # found by Spark itself

Spark looks for a ``DefaultSource`` in modules named ``pyspark_*``, so it finds the source ``tidb_binlog`` without registration. PySpark is
imported only when it looks: the Pump runs without it. Where the source cannot run, its name is found all the same and its use says why; an
error at this point would keep Spark from finding other sources.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tidb_binlog.binlog_source.spark_format import BinlogDataSource as DefaultSource
    from pyspark_tidb_binlog.jobs.spark.spark_session import configured

__all__ = ["DefaultSource", "configured"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from pyspark_tidb_binlog.binlog_source.spark_format import BinlogDataSource
        except ImportError:
            from pyspark_tidb_binlog.binlog_source.source.refused_source import RefusedSource

            return RefusedSource
        return BinlogDataSource
    if name == "configured":
        from pyspark_tidb_binlog.jobs.spark.spark_session import configured

        return configured
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
