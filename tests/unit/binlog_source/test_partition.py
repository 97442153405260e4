"""The partitions of a batch: together they cover its span, and one carries the control rows."""

import pickle

from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.source.partition import sorted_partitions, span_of, stream_partitions
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import LogFingerprint
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import Delivery

ENDPOINTS = {pump: Endpoint(pump, f"{pump}:8250", 7) for pump in ("a", "b")}
IDS = (0, 2, 5)


def offset(resolved: int, a: int, b: int, *, since: int | None = None, clock: int = 0) -> BinlogOffset:
    mark = PumpMark(Position(0, a), None if since is None else Position(0, since), seen_ts=resolved)
    return BinlogOffset(Delivery.RAW, resolved, 5, {"a": mark, "b": PumpMark(Position(0, b))}, clock)


def test_sorted_partitions_read_the_same_span_and_one_has_the_control_row() -> None:
    made = sorted_partitions(ENDPOINTS, 10, 20)
    assert [(p.endpoint.pump, p.after_ts, p.upto_ts, p.bucket_ids) for p in made] == [("a", 10, 20, (0,)), ("b", 10, 20, ())]


def test_a_raw_batch_reads_what_moved_and_its_first_partition_advances_the_watermark() -> None:
    made = stream_partitions(ENDPOINTS, offset(10, 100, 50), offset(20, 100, 90, clock=33), IDS)
    assert [(p.endpoint.pump, p.begin, p.end, p.bucket_ids, p.clock_ts) for p in made] == [("b", Position(0, 50), Position(0, 90), IDS, 33)]
    assert (made[0].after_ts, made[0].upto_ts, made[0].span_after_ts, made[0].anew) == (10, 20, 10, False)


def test_a_batch_without_anything_to_read_has_its_control_rows() -> None:
    (made,) = stream_partitions(ENDPOINTS, offset(10, 100, 50), offset(20, 100, 50), IDS)
    assert (made.endpoint.pump, made.begin, made.end, made.bucket_ids) == ("a", Position(0, 100), Position(0, 100), IDS)
    assert made.seen == LogFingerprint(Position(0, 100), 20)


def test_a_second_since_is_another_log() -> None:
    made = stream_partitions(ENDPOINTS, offset(10, 100, 50), offset(20, 30, 50, since=30), IDS)
    assert [(p.endpoint.pump, p.begin, p.anew) for p in made] == [("a", Position(0, 30), True)]


def test_the_first_batch_begins_at_the_floor_and_skips_what_is_collected() -> None:
    first = BinlogOffset(Delivery.SORTED, 0, 0, {})
    end = BinlogOffset(Delivery.SORTED, 70, 0, {pump: PumpMark(Position(0, 70)) for pump in "ab"}, gone_ts=40)
    assert span_of(first, end) == (0, 40)
    assert {(p.after_ts, p.span_after_ts) for p in stream_partitions(ENDPOINTS, first, end, IDS)} == {(40, 0)}


def test_a_partition_can_be_sent_to_an_executor() -> None:
    (made, _) = sorted_partitions(ENDPOINTS, 10, 20)
    assert pickle.loads(pickle.dumps(made)) == made
