"""A partition of a batch: one Pump's share of the span of commit_ts (after_ts, upto_ts]. Pure, but it is a Spark class.

Contract: an executor needs only the partition and the options to read its share. A partition gives the same rows however often and wherever
it is read. The partitions of a batch together cover its span. At least one of them carries the control rows, even if there is nothing to
read, so that R arrives at the following stages. The first partition advances the query's watermark.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, seen_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import LogFingerprint
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import Delivery


@dataclass
class BinlogPartition(InputPartition):
    """One Pump's share of a batch: what to read, and which control rows to add."""

    endpoint: Endpoint
    delivery: Delivery
    after_ts: int
    upto_ts: int
    begin: Position
    end: Position
    bucket_ids: tuple[int, ...]
    """The buckets for which this partition emits a control row."""
    clock_ts: int = 0
    """The ts to which this partition advances the query's watermark; 0 = none."""
    seen: LogFingerprint | None = None
    """What the Pump's log must contain at the batch's end; otherwise the log was replaced since the batch was planned."""
    span_after_ts: int | None = None
    """Where the span begins for the following stages, if not at ``after_ts``: a stream from 0 on skips what the Pumps have collected."""
    left: tuple[tuple[str, int], ...] = ()
    """Pumps that the stream leaves out from this batch on, and up to which ts they may have had binlogs, which are lost."""
    newest_ts: int = 0
    """The newest ts of the upstream that the driver knew; 0 = none. It decides only on questions to the Pump, never on what is read."""
    anew: bool = False
    """The Pump's log was replaced before this batch: what the former log held and the stream had not read is lost."""


def span_of(before: BinlogOffset, after: BinlogOffset) -> tuple[int, int]:
    """Where the batch from ``before`` to ``after`` begins for the following stages, and from where on the Pumps are read."""
    span_after_ts = after.floor if before.initial else before.resolved_ts
    return span_after_ts, max(span_after_ts, after.gone_ts if before.initial else 0)


def sorted_partitions(endpoints: Mapping[str, Endpoint], after_ts: int, upto_ts: int) -> list[BinlogPartition]:
    """One partition per Pump; the first one carries the only control row."""
    nowhere = Position(0, 0)
    return [
        BinlogPartition(endpoint, Delivery.SORTED, after_ts, upto_ts, nowhere, nowhere, (0,) if place == 0 else ())
        for place, endpoint in enumerate(endpoints.values())
    ]


def stream_partitions(
    endpoints: Mapping[str, Endpoint],
    before: BinlogOffset,
    after: BinlogOffset,
    bucket_ids: tuple[int, ...],
    given_up: Collection[str] = (),
) -> list[BinlogPartition]:
    """The partitions of the batch from ``before`` to ``after``; ``bucket_ids``: those of the pairing, for raw delivery.

    ``given_up``: Pumps of ``after`` that are gone since the batch was planned.
    """
    span_after_ts, after_ts = span_of(before, after)
    if after.delivery is Delivery.SORTED:
        made = [_with_seen(partition, before, after) for partition in sorted_partitions(endpoints, after_ts, after.resolved_ts)]
    else:
        made = _raw_partitions(endpoints, before, after, after_ts, bucket_ids)
    lost = {pump: upto_ts for pump, upto_ts in after.left.items() if pump not in before.left}
    lost |= {pump: after.resolved_ts for pump in after.pumps if pump not in endpoints and pump in given_up}
    made[:1] = [replace(partition, left=tuple(sorted(lost.items()))) for partition in made[:1]]
    return [replace(partition, span_after_ts=span_after_ts) for partition in made]


def _raw_partitions(
    endpoints: Mapping[str, Endpoint], before: BinlogOffset, after: BinlogOffset, after_ts: int, bucket_ids: tuple[int, ...]
) -> list[BinlogPartition]:
    """One partition per Pump whose position moved, at least one, for the control rows; the first one advances the watermark."""
    made = []
    for pump in endpoints:
        mark = after.pumps[pump]
        earlier = before.pumps.get(pump)
        begin = mark.since or (earlier.position if earlier is not None else mark.position)
        partition = BinlogPartition(endpoints[pump], Delivery.RAW, after_ts, after.resolved_ts, begin, mark.position, bucket_ids)
        made.append(_with_seen(partition, before, after))
    moved = [partition for partition in made if partition.begin < partition.end or partition.anew] or made[:1]
    moved[0] = replace(moved[0], clock_ts=after.clock)
    return moved


def _with_seen(partition: BinlogPartition, before: BinlogOffset, after: BinlogOffset) -> BinlogPartition:
    """``partition`` with what the stream has read of its log; a second ``since`` for a Pump means that its log was replaced."""
    pump = partition.endpoint.pump
    return replace(partition, seen=seen_of(after, pump), anew=pump in before.pumps and after.pumps[pump].since is not None)
