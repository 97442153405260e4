"""When the next batch is worthwhile, and where a stream from 0 on begins."""

from unittest import mock

import pytest

from pyspark_tidb_binlog.binlog_source.source.admission import LogStep, TailView
from pyspark_tidb_binlog.binlog_source.source.batch_planner import HELD_SECONDS, BatchPlanner, future_text, in_the_future
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.source.stream_report import outage_report, report
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation
from pyspark_tidb_binlog.schemas.events import Delivery, tso

PLANNER = BatchPlanner(max_pending_bytes=100)


def before(delivery: Delivery = Delivery.RAW, resolved: int = 10) -> BinlogOffset:
    return BinlogOffset(delivery, resolved, 5, {"a": PumpMark(Position(0, 0))})


def view(promise: int, *steps: tuple[int, int], waiting: int = 0) -> TailView:
    """Steps as (promise, bytes), one after the other."""
    made, at = [], 0
    for ts, size in steps:
        at += size
        made.append(LogStep(Position(0, at), ts, ts, size, ts))
    return TailView(Position(0, 0), promise, made, waiting=[LogStep(Position(0, 0), 0, 0, waiting)] if waiting else ())


@pytest.mark.parametrize("delivery", Delivery)
def test_a_batch_that_releases_something_is_worthwhile(delivery: Delivery) -> None:
    assert PLANNER.is_worthwhile({"a": view(10, (11, 5))}, before(delivery), 1000, 0.0)
    assert not PLANNER.is_worthwhile({"a": view(10)}, before(delivery), 1000, 99.0)


def test_while_r_is_held_a_batch_waits_for_enough_bytes_or_for_an_orphan() -> None:
    held = {"a": view(10, (10, 40)), "b": view(10, (90, 40))}
    assert PLANNER.is_worthwhile(held, before(), None, HELD_SECONDS)
    assert not PLANNER.is_worthwhile(held, before(), None, HELD_SECONDS / 2)
    mute = {"a": view(10), "b": view(10, (90, 80))}
    assert not PLANNER.is_worthwhile(mute, before(), 81, HELD_SECONDS)
    assert PLANNER.is_worthwhile(mute, before(), 80, HELD_SECONDS)
    assert not PLANNER.is_worthwhile(mute, before(), 80, HELD_SECONDS / 2), "a answers a moment later: nothing is read ahead of it"
    assert not PLANNER.is_worthwhile(held, before(Delivery.SORTED), 80, HELD_SECONDS)


def test_while_the_pairing_state_is_full_no_batch_is_read_for_its_bytes() -> None:
    full = {"a": view(10, waiting=100), "b": view(10, (90, 80))}
    assert PLANNER.is_full(full) and not PLANNER.is_worthwhile(full, before(), 80, HELD_SECONDS)


def test_a_stream_from_0_leaves_out_what_the_pumps_have_collected() -> None:
    first = BinlogOffset(Delivery.SORTED, 0, 0, {})
    end = PLANNER.plan({"a": view(0, (70, 5))}, first, None, None, gc_ts=40)
    assert (end.resolved_ts, end.gone_ts) == (70, 40)
    assert PLANNER.plan({"a": view(0, (70, 5))}, first, None, 30, gc_ts=40).gone_ts == 0, "nothing is left below the ceiling"
    later = BinlogOffset(Delivery.SORTED, 50, 50, {})
    assert PLANNER.plan({"a": view(0, (70, 5))}, later, None, None, gc_ts=40).gone_ts == 0


def test_without_anything_new_the_end_is_the_beginning_itself() -> None:
    start = before()
    assert PLANNER.plan({"a": view(10)}, start, None, None, gc_ts=0) is start


def test_the_report_names_the_pump_that_holds_r_back() -> None:
    views = {"a": view(30, (40, 5)), "b": view(20, waiting=7)}
    told = report(before(), views, {"b": "UNAVAILABLE"}, {"b": 3}, {"a": (1, 5)}, full=True)
    assert (told["held_by"], told["resolved_ts"], told["unread_bytes"], told["pending_bytes"]) == ("b", 20, 5, 7)
    assert told["pumps"] == {"a": {"offset": 5, "suffix": 0}, "b": {"offset": 0, "suffix": 0}}
    assert (told["holding"], told["unreachable"], told["woken"]) == ("pending bytes", {"b": "UNAVAILABLE"}, {"b": 3})
    assert (told["promises"], told["received"], told["unread_steps"]) == ({"a": 40, "b": 20}, {"a": (1, 5)}, 1)
    assert told["reached"].keys() == {"a", "b"} and min(told["reached"].values()) > 0, "40 is long ago"
    assert report(before(Delivery.SORTED), views, {}, {}, {}, full=True)["holding"] == ""


def test_the_report_while_nobody_answers() -> None:
    assert report(before(), None, {"a": "away"}, {}, {}, full=False) == before().to_json() | {"unreachable": {"a": "away"}}
    assert outage_report(before(), "the registry is away")["registry"] == "the registry is away"


def test_a_promise_far_ahead_of_the_upstreams_time_is_told_by_pump() -> None:
    now, hour = tso(10_000_000), tso(3_600_000)
    views = {"a": view(now), "b": view(10, (now + hour, 5)), "c": view(10, (now + hour + 1, 5))}
    assert in_the_future(views, Delivery.RAW, now) == in_the_future(views, Delivery.SORTED, now) == {"c": now + hour + 1}
    text = future_text({"c": now + hour + 1}, now)
    assert f"Pump c promises that nothing up to ts {now + hour + 1}" in text and f"the upstream's time is {now} (" in text


@pytest.mark.parametrize("present", [0, tso(4_000_000_000_000)])
def test_the_upstreams_time_is_asked_once_before_a_promise_is_refused(present: int) -> None:
    reader = BinlogStreamReader({"pumps": "h:1", "clusterId": "7"})
    asked = []
    reader._discovery = mock.Mock(now=lambda: asked.append(1) or present)
    reader._require_present({"a": view(tso(1_000_000_000_000))}, before())
    assert not asked, "this machine's clock is beyond it"
    views = {"a": view(tso(4_000_000_000_000))}
    for _ in range(2):
        if present:
            reader._require_present(views, before())
        else:
            with pytest.raises(ProtocolViolation, match="Pump a promises"):
                reader._require_present(views, before())
    assert len(asked) == (1 if present else 2)
