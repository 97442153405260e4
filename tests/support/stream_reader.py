"""The source's reader driven without Spark, batch by batch."""

from typing import Any

from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from tests.support.eventually import eventually


def next_offset(reader: BinlogStreamReader, at: dict[str, Any], read_limit: Any = None) -> dict[str, Any]:
    """The end of the batch that begins at ``at``, once there is one."""
    limit = read_limit or reader.getDefaultReadLimit()
    found: list[dict[str, Any]] = []

    def planned() -> bool:
        found[:] = [reader.latestOffset(at, limit)]
        return found[0] != at

    # latestOffset waits a little itself
    eventually(planned, what=f"a batch after {at}", seen=reader.reportLatestOffset, pause=0)
    return found[0]


def advance(reader: BinlogStreamReader, at: dict[str, Any], upto: int) -> dict[str, Any]:
    """Take batches from ``at`` until R is ``upto``; gives the last offset."""
    while from_json(at).resolved_ts < upto:
        at = next_offset(reader, at)
    assert from_json(at).resolved_ts == upto
    return at


def commits_between(reader: BinlogStreamReader, begin: dict[str, Any], end: dict[str, Any]) -> set[int]:
    """The commit_ts of the transactions that a batch reads (in raw delivery also of some that a later R releases)."""
    rows = (row for part in reader.partitions(begin, end) for batch in reader.read(part) for row in batch.to_pylist())
    return {row["commit_ts"] for row in rows if row["tp"] == 1}
