"""The tables of a lake (``db-type = "lake"``) as DataFrames, all as they were upstream at one moment.

    from pyspark_tidb_binlog.lake import Lake

    lake = Lake(spark, "/data/lake")                                # spark: a session with Delta, as build_session and configured make it
    lake.table("shop.orders")                                       # at the newest moment, the same one for all tables of this Lake
    lake.at("2026-11-20T12:00:00").table("shop.orders")             # at any moment since the lake began
    lake.changes("shop.orders"); lake.snapshots(); lake.tables()

Promises: nothing is written; docs/lake.md has the rest.
"""

from pyspark_tidb_binlog.sinks.lake.lake_reader import Lake, LakeAt

__all__ = ["Lake", "LakeAt"]
