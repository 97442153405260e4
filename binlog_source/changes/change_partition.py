"""A partition of a batch of changes: a slice of its span of commit_ts, over all Pumps. Pure, but for Spark's class that it must be.

Contract: as of ``source.partition``. The slices of a batch together cover its span; the rows of a slice depend on the slice alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from pyspark_tidb_binlog.binlog_source.source.partition import BinlogPartition
from pyspark_tidb_binlog.schemas.events import physical_ms, tso

_LEAST_MS = 10_000
"""A slice is at least this long: each one is another call of every Pump."""


@dataclass
class ChangePartition(InputPartition):
    """All Pumps' share of the span (after_ts, upto_ts]."""

    pumps: tuple[BinlogPartition, ...]
    after_ts: int
    upto_ts: int
    heartbeat: bool = False
    """Whether it ends with a heartbeat row."""


def change_partitions(pumps: Sequence[BinlogPartition], most: int, *, heartbeat: bool) -> list[ChangePartition]:
    """At most ``most`` slices of the span of ``pumps`` (sorted delivery, one per Pump), in their order."""
    if not pumps:
        return []
    after_ts, upto_ts = pumps[0].after_ts, pumps[0].upto_ts
    bounds = [after_ts, *_cuts(after_ts, upto_ts, most), upto_ts]
    slices = []
    for number, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        # a loss that is known before the read is told once
        parts = tuple(
            replace(p, after_ts=begin, upto_ts=end, bucket_ids=(), anew=p.anew and not number, left=() if number else p.left) for p in pumps
        )
        slices.append(ChangePartition(parts, begin, end))
    slices[-1].heartbeat = heartbeat
    return slices


def _cuts(after_ts: int, upto_ts: int, most: int) -> list[int]:
    """The ts between the slices."""
    begin, end = physical_ms(after_ts), physical_ms(upto_ts)
    count = min(most, (end - begin) // _LEAST_MS)
    return [tso(begin + (end - begin) * place // count) for place in range(1, count)]
