"""Binlogs as TiDB sends them to a Pump: bytes of the protobuf message ``Binlog``."""

from typing import Any

from pyspark_tidb_binlog.schemas.proto import binlog_pb2


def payload(tp: int, start_ts: int, commit_ts: int = 0, **more: Any) -> bytes:
    """One binlog; ``tp`` 0 = Prewrite, 1 = Commit, 2 = Rollback, and a fake binlog where ``commit_ts`` is the ``start_ts`` of a Rollback."""
    return binlog_pb2.Binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts, **more).SerializeToString()  # type: ignore[arg-type]
