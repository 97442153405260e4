"""The one name under which everything is imported and installed; the directories beside this file are links to the repository's own.

Spark looks for a ``DefaultSource`` in modules named ``pyspark_*``, so it finds the source ``tidb_binlog`` without registration. PySpark is
imported only when it looks: the Pump runs without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tidb_binlog.binlog_source.spark_format import BinlogDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_tidb_binlog.binlog_source.spark_format import BinlogDataSource

        return BinlogDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
