"""Lets Spark find the source ``tidb_binlog`` without registration: Spark looks for a ``DefaultSource`` in modules named ``pyspark_*``."""

from binlog_source.source.datasource import BinlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
