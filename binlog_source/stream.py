"""The source and pairing as data frames of ``stages.TRANSACTIONS``. Spark shell; a query is built for one delivery.

    delivery = resolve_delivery(source)
    transactions(spark, source, delivery)              # a streaming frame: complete transactions and one punctuation per batch
    transactions_between(spark, source, after_ts, upto_ts)  # a batch frame of (after_ts, upto_ts], always sorted delivery

Promises: *sorted* has no stateful operator. *raw* pairs in ``transformWithStateInPandas``. It needs the RocksDB state store, and has
``spark.sql.shuffle.partitions`` state partitions. Its time is the watermark on ``stages.PACKED``'s event_time.
"""

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_tidb_binlog.binlog_source.pairing.processor import PairProcessor
from pyspark_tidb_binlog.binlog_source.source.delivery import resolve_delivery
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.spark_format import BinlogDataSource
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.stages import TRANSACTIONS, ddl_of

__all__ = ["resolve_delivery", "transactions", "transactions_between"]


def transactions(spark: SparkSession, source: SourceConfig, delivery: Delivery, extra: StreamOptions | None = None) -> DataFrame:
    """The stream of complete transactions, with one punctuation row (``tp`` RESOLVED) per batch."""
    _register(spark)
    settled = replace(source, delivery=str(delivery))
    blocks = replace(extra or StreamOptions(), packed=True)
    rows = spark.readStream.format(BinlogDataSource.name()).options(**options_of(settled, blocks)).load()
    if delivery is Delivery.SORTED:
        return rows.select(F.col("rows").alias("transactions"))
    timed = rows.withWatermark("event_time", "0 seconds")
    return timed.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=PairProcessor(settled), outputStructType=ddl_of(TRANSACTIONS), outputMode="append", timeMode="EventTime"
    )


def transactions_between(spark: SparkSession, source: SourceConfig, after_ts: int, upto_ts: int) -> DataFrame:
    """The transactions with commit_ts in (after_ts, upto_ts], and one punctuation row."""
    _register(spark)
    span = replace(source, delivery=str(Delivery.SORTED), starting_commit_ts=after_ts, ending_commit_ts=upto_ts)
    rows = spark.read.format(BinlogDataSource.name()).options(**options_of(span, StreamOptions(packed=True))).load()
    return rows.select(F.col("rows").alias("transactions"))


def look_up(spark: SparkSession, source: SourceConfig) -> None:
    """Have Spark find the source, which takes half a second the first time. Reads nothing."""
    _register(spark)
    spark.read.format(BinlogDataSource.name()).options(**options_of(source, StreamOptions(packed=True))).load()


def _register(spark: SparkSession) -> None:
    """Register the source in this session."""
    spark.dataSource.register(BinlogDataSource)
