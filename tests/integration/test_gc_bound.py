"""What a real Pump has collected is learnt from its metrics: a start below it is an error, or a finding; never a gap in silence."""

import time
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.binlog_source.source.gc_bound import gc_ts_in
from pyspark_tidb_binlog.binlog_source.source.loss import LossPolicy
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.source.partition import BinlogPartition
from pyspark_tidb_binlog.binlog_source.source.partition_rows import raw_rows_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_sorted
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery, tso
from tests.support.fakes.scripted_pump import Asked, ScriptedPump, message, metrics_page

pytestmark = pytest.mark.grpc

GC_MS = 1_795_277_142_123
GC_TS = tso(GC_MS)
TEXT = metrics_page("1.795277142123e+12")


def after_gc(asked: Asked) -> Iterator[bytes]:
    """As a real Pump: it starts at its gc ts, whatever is asked for."""
    for commit_ts in (GC_TS + 100, GC_TS + 200):
        if commit_ts > asked.offset:
            yield message(1, commit_ts - 10, commit_ts)
    time.sleep(0.2)


def rows(pump: ScriptedPump, after_ts: int, fail: bool, patience: float = 10.0) -> list[tuple[int, int, int]]:
    nowhere = Position(0, 0)
    part = BinlogPartition(Endpoint("p7", pump.address, 7), Delivery.SORTED, after_ts, GC_TS + 200, nowhere, nowhere, (0,))
    config = SourceConfig(pumps="127.0.0.1:1", cluster_id=7, fail_on_data_loss=fail)
    found = [row for batch in raw_rows_of(part, config, StreamOptions(read_patience=patience)) for row in batch.to_pylist()]
    return [(row["control"] or row["tp"], row["start_ts"], row["commit_ts"]) for row in found if row["control"] != ControlType.RESOLVED]


@pytest.mark.parametrize(
    ("text", "lowest", "highest"),
    [
        ("0", 0, 0),
        ("1.795277142123e+12", GC_TS, tso(GC_MS + 1) - 1),
        ("1795277142123", GC_TS, tso(GC_MS + 1) - 1),
        ("1.79528e+12", tso(1_795_280_000_000), tso(1_795_290_000_001)),
        ("4.7e+17", 470_000_000_000_000_000, 480_000_000_000_000_000),
        ("470629131234567890", 470629131234567890, 470629131234567890),
    ],
)
def test_the_bound_is_never_below_what_was_meant(text: str, lowest: int, highest: int) -> None:
    found = gc_ts_in(metrics_page(text))
    assert found is not None and lowest <= found <= highest
    if text.startswith(("1.79", "4.7e")):
        assert found >= highest - (1 << 18) - 1, "what the digits leave out is rounded up"


def test_a_page_that_does_not_say() -> None:
    assert gc_ts_in("binlog_pump_storage_done_gc_ts 5\n# TYPE binlog_pump_storage_gc_ts gauge\n") is None


def test_a_start_below_the_gc_ts_is_an_error() -> None:
    with ScriptedPump(after_gc, metrics=TEXT) as pump:
        with pytest.raises(BinlogPurged, match=f"Pump p7 has collected .* wanted above ts {GC_TS - 1} .*failOnDataLoss=false"):
            rows(pump, GC_TS - 1, fail=True)


def test_a_start_above_it_is_none() -> None:
    with ScriptedPump(after_gc, metrics=metrics_page("1.795277142122e+12")) as pump:
        assert rows(pump, GC_TS, fail=True) == [(1, GC_TS + 90, GC_TS + 100), (1, GC_TS + 190, GC_TS + 200)]


@pytest.mark.shows("spark.fail-on-data-loss")
def test_with_fail_on_data_loss_off_it_is_a_finding() -> None:
    with ScriptedPump(after_gc, metrics=TEXT) as pump:
        found = rows(pump, GC_TS - 1, fail=False)
    assert [row for row in found if row[0] == ControlType.LOST] == [(ControlType.LOST, GC_TS - 1, tso(GC_MS + 1) - 1)]
    assert [commit_ts for tp, _, commit_ts in found if tp == 1] == [GC_TS + 100, GC_TS + 200]


def test_gc_that_overtakes_a_read_is_an_error() -> None:
    def collected_meanwhile(asked: Asked) -> Iterator[bytes]:
        yield message(1, GC_TS + 90, GC_TS + 100)
        time.sleep(0.3)
        pump.metrics = metrics_page("1.795277142124e+12")
        yield message(1, GC_TS + 190, GC_TS + 200)

    with ScriptedPump(collected_meanwhile) as pump, pytest.raises(BinlogPurged, match="Pump p7 has collected"):
        rows(pump, GC_TS, fail=True)


def test_a_pump_that_does_not_say_is_an_error_after_a_while() -> None:
    with (
        ScriptedPump(after_gc, metrics="") as pump,
        pytest.raises(PumpUnavailable, match="does not report binlog_pump_storage_gc_ts at http://"),
    ):
        rows(pump, GC_TS, fail=True, patience=0.5)


def test_near_the_present_nobody_is_asked() -> None:
    now = tso(time.time_ns() // 1_000_000)
    with ScriptedPump(lambda asked: iter([message(1, now, now + 5)]), metrics="") as pump:
        read = read_sorted(Endpoint("p7", pump.address, 7), now, now + 5, ReadTerms(5, LossPolicy(fail=True).lost))
        assert [ts for run in read for ts in run.commit_ts.tolist()] == [now + 5]


def test_the_drivers_tail_learns_of_it() -> None:
    offset = BinlogOffset(Delivery.SORTED, GC_TS - 1, GC_TS - 1, {})
    with ScriptedPump(after_gc, metrics=TEXT) as pump:
        tails = Tails(fail_on_data_loss=True)
        tails.follow({"p7": Endpoint("p7", pump.address, 7)}, GC_TS - 1)
        with pytest.raises(BinlogPurged, match="Pump p7 has collected"):
            tails.wait(lambda: tails.views(offset) is None and False, 5)
        tails.stop()
