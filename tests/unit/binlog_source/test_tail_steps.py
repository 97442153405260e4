"""A tail's steps while another Pump holds R: thousands, not millions, and each as valid as those that it was made of."""

import itertools
import random
import time

import pytest

from pyspark_tidb_binlog.binlog_source.source.admission import Limits, LogStep, TailView, holder, plan_raw, unread_bytes
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.tails import _MOST_AT_ALL, _MOST_STEPS, Tail, Tails, _Steps
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import Delivery, tso

FILE = 500 << 20


def steps_of(count: int, seed: int, largest: int = 1 << 17) -> list[LogStep]:
    """A log as a tip tells it: promises that rise and stand still, records of all sizes."""
    rng, steps = random.Random(seed), []
    at = raw = max_ts = in_order = 0
    for _ in range(count):
        size = rng.randint(1, largest)
        at += size
        max_ts += rng.randint(1, 9)
        raw = max(raw, max_ts - rng.randint(0, 50))
        in_order = max(in_order, max_ts - rng.randint(0, 90))
        steps.append(LogStep(Position(at // FILE, at % FILE), raw, in_order, size, max_ts))
    return steps


@pytest.mark.parametrize(("coarsest", "bound"), [(64 << 20, _MOST_STEPS), (1 << 17, _MOST_AT_ALL), (1000, _MOST_AT_ALL)])
def test_they_are_thousands_and_as_valid_as_those_they_were_made_of(coarsest: int, bound: int) -> None:
    fine = steps_of(120_000, 7)
    joined = _Steps(coarsest)
    most = 0
    for step in fine:
        joined.add(step)
        most = max(most, len(joined))
    assert most <= bound + 1 and len(joined) > bound // 8
    by_position = {step.position: step for step in fine}
    assert sum(step.size for step in joined) == sum(step.size for step in fine)
    assert joined[-1].position == fine[-1].position
    upto = dict(zip(by_position, itertools.accumulate(step.size for step in fine), strict=True))
    ends = itertools.accumulate(step.size for step in joined)
    for step, end in zip(joined, ends, strict=True):
        there = by_position[step.position]
        assert (step.raw_promise, step.sorted_promise, step.max_ts) == (there.raw_promise, there.sorted_promise, there.max_ts)
        assert end == upto[step.position]
    assert max(step.size for step in joined) < (1 << 17) + max(64 << 20, coarsest)


def test_few_stay_as_they_are() -> None:
    """Where they are not many they are joined no further than to 64 KiB: a batch is cut between them."""
    joined = _Steps(64 << 20)
    for step in steps_of(_MOST_STEPS, 3):
        joined.add(step)
    assert max(step.size for step in joined) <= 1 << 17


def test_once_all_are_taken_new_ones_are_fine_again() -> None:
    joined = _Steps(64 << 20)
    for step in steps_of(100_000, 3):
        joined.add(step)
    assert max(step.size for step in joined) > 1 << 18
    joined.clear()
    for step in steps_of(1000, 4):
        joined.add(step)
    assert max(step.size for step in joined) <= 1 << 17


def test_hours_with_a_dead_pump_is_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MB/s in steps of 64 KiB, for three hours; what a look and a plan cost grows no more with it."""
    monkeypatch.setattr(Tail, "_run", lambda self: None)
    tails, begun = Tails(True, 64 << 20), tso(1_700_000_000_000)
    tails.follow({"a": Endpoint("a", "h:1", 7), "dead": Endpoint("dead", "h:2", 7)}, begun)
    alive, dead = tails._tails["a"], tails._tails["dead"]
    for tail in (alive, dead):
        tail._base = tail._end = Position(0, 0)
    count = 3 * 3600 * 16
    for n in range(1, count + 1):
        at, ts = n * 65536, begun + tso(n * 62)
        alive._steps.add(LogStep(Position(at // FILE, at % FILE), ts, ts, 65536, ts))
    alive._end = alive._steps[-1].position
    start = BinlogOffset(Delivery.RAW, begun, begun, dict.fromkeys(("a", "dead"), PumpMark(Position(0, 0))), begun)
    clock = time.process_time()
    for _ in range(10):
        views = tails.views(start)
        assert views is not None and len(views["a"].steps) <= _MOST_STEPS + 1
        assert holder(views, Delivery.RAW).pump == "dead" and unread_bytes(views) == count * 65536
        plan = plan_raw(start, views, Limits(256 << 20, 1 << 30, 2000), None)
    assert time.process_time() - clock < 1.0
    at = plan.pumps["a"].position
    assert 128 << 20 < at.offset + at.suffix * FILE <= 256 << 20
    tails.stop()


def test_what_was_read_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in the pairing state while R stands still; its bytes stay exact."""
    monkeypatch.setattr(Tail, "_run", lambda self: None)
    tails = Tails(True, 64 << 20)
    tails.follow({"a": Endpoint("a", "h:1", 7)}, 0)
    tail = tails._tails["a"]
    tail._base = tail._end = Position(0, 0)
    fine = steps_of(60_000, 5)
    view: TailView | None = None
    for number, step in enumerate(fine):
        tail._steps.add(step)
        tail._end = step.position
        if number % 10 == 9:
            view = tail.view(BinlogOffset(Delivery.RAW, 0, 0, {"a": PumpMark(step.position)}))
    assert view is not None and not view.steps and len(view.waiting) <= _MOST_STEPS + 1
    assert sum(step.size for step in view.waiting) == sum(step.size for step in fine)
    last = fine[-1].max_ts
    view = tail.view(BinlogOffset(Delivery.RAW, last, 0, {"a": PumpMark(fine[-1].position)}))
    assert view is not None
    tails.stop()
