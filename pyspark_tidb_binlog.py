"""Lets Spark find the source ``tidb_binlog`` without registering: Spark imports modules named ``pyspark_*`` for a ``DefaultSource``."""

from binlog_source.source.datasource import BinlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
