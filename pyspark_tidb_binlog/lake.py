"""The tables of a lake (``db-type = "lake"``) as DataFrames, all as they were upstream at one moment, and what the lake knows of their past.

    from pyspark_tidb_binlog.lake import Lake

    lake = Lake(spark, "/data/lake")                                # spark: a session with Delta, as build_session and configured make it
    lake.table("shop.orders")                                       # at the newest moment, the same one for all tables of this Lake
    lake.at("2026-11-20T12:00:00").table("shop.orders")             # at any moment since the lake began
    lake.views("shop"); spark.sql("SELECT count(*) FROM orders")    # each table of a database
    lake.changes("shop.orders"); lake.snapshots(); lake.tables(); lake.versions()
    lake.stream(after=commit_ts)                                    # the ledger as a stream
    lake.life("shop.orders", id=42); lake.history("shop.orders"); lake.transaction(commit_ts)
    lake.diff("shop.orders", t1, t2); lake.undo((t1, t2), tables=["shop.orders"])

Promises: nothing of the lake is written; docs/lake.md has the rest.
"""

from pyspark_tidb_binlog.sinks.lake.lake_reader import LakeAt
from pyspark_tidb_binlog.sinks.past.lake_past import Lake, LakeUndo

__all__ = ["Lake", "LakeAt", "LakeUndo"]
