"""Admission: R is the minimum, bytes are bounded, something is always admitted."""

from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.source.admission import (
    Limits,
    LogStep,
    TailView,
    holder,
    newest_promise,
    pending_bytes,
    plan_raw,
    plan_sorted,
    unread_bytes,
)
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import Delivery, tso


def raw_start(resolved: int = 10, **pumps: int) -> BinlogOffset:
    return BinlogOffset(Delivery.RAW, resolved, 0, {p: PumpMark(Position(0, o)) for p, o in pumps.items()})


FREE = Limits()


def view(origin: int, promise: int, *steps: tuple[int, int], joined: bool = False) -> TailView:
    """Steps as (offset, promise in both deliveries)."""
    made, before = [], origin
    for offset, ts in steps:
        made.append(LogStep(Position(0, offset), ts, ts, offset - before, ts))
        before = offset
    return TailView(Position(0, origin), promise, made, joined, promise)


def test_nothing_new_gives_start_itself() -> None:
    start = raw_start(a=5)
    assert plan_raw(start, {"a": view(5, 10)}, Limits(100), None) is start
    assert plan_sorted(start, {"a": view(5, 10)}, 100, None) is start


def test_r_is_the_lowest_promise_and_positions_go_ahead_of_it() -> None:
    end = plan_raw(raw_start(a=0, b=0), {"a": view(0, 10, (50, 90)), "b": view(0, 10, (20, 30))}, FREE, None)
    assert end.resolved_ts == 30
    assert {p: m.position.offset for p, m in end.pumps.items()} == {"a": 50, "b": 20}


def test_a_pump_that_says_nothing_new_holds_r_but_the_others_are_read() -> None:
    end = plan_raw(raw_start(a=0, b=0), {"a": view(0, 10, (50, 90)), "b": view(0, 10)}, FREE, None)
    assert end.resolved_ts == 10
    assert end.pumps["a"].position.offset == 50


def test_what_r_cannot_reach_in_this_batch_is_left_at_the_pump() -> None:
    views = {"a": view(0, 10, (50, 20), (100, 40), (150, 60)), "b": view(0, 10, (30, 30))}
    end = plan_raw(raw_start(a=0, b=0), views, FREE, None)
    assert end.resolved_ts == 30
    assert {p: m.position.offset for p, m in end.pumps.items()} == {"a": 100, "b": 30}, "a promises 40 at 100: more cannot raise R"


def test_a_promise_at_the_origin_counts_without_a_step() -> None:
    assert plan_raw(raw_start(a=0), {"a": view(0, 40)}, FREE, None).resolved_ts == 40


def test_bytes_are_bounded_but_one_step_is_always_taken() -> None:
    steps = [(100, 20), (200, 30), (300, 40)]
    assert plan_raw(raw_start(a=0), {"a": view(0, 10, *steps)}, Limits(1), None).pumps["a"].position.offset == 100
    assert plan_raw(raw_start(a=0), {"a": view(0, 10, *steps)}, Limits(250), None).resolved_ts == 30
    assert plan_sorted(raw_start(a=0), {"a": view(0, 10, *steps)}, 1, None).resolved_ts == 20
    assert plan_sorted(raw_start(a=0), {"a": view(0, 10, *steps)}, 250, None).resolved_ts == 30


def test_what_trickles_in_elsewhere_does_not_keep_a_huge_step_out() -> None:
    """A huge Prewrite has a copy on the Pump that holds R; its outcome lies behind it on the other one, which is read only if it is let in."""
    views = {"a": view(900, 10, (910, 10), (920, 10)), "b": view(0, 11, (900, 11), (910, 30))}
    end = plan_raw(raw_start(a=900, b=0), views, Limits(100), None)
    assert {p: m.position.offset for p, m in end.pumps.items()} == {"a": 920, "b": 900}


def test_within_the_limit_the_pump_behind_is_read_first() -> None:
    views = {"a": view(0, 100, (100, 200), (200, 300)), "b": view(0, 10, (100, 20), (200, 150))}
    end = plan_raw(raw_start(a=0, b=0), views, Limits(200), None)
    assert {p: m.position.offset for p, m in end.pumps.items()} == {"a": 0, "b": 200}
    assert end.resolved_ts == 100


def test_the_ceiling_caps_r() -> None:
    views = {"a": view(0, 10, (100, 200))}
    assert plan_raw(raw_start(a=0), views, FREE, 150).resolved_ts == 150
    assert plan_sorted(raw_start(a=0), views, None, 150).resolved_ts == 150


def test_a_joining_pump_is_marked_with_where_reading_begins() -> None:
    end = plan_raw(raw_start(a=0), {"a": view(0, 10, (5, 30)), "b": view(70, 10, (90, 40), joined=True)}, FREE, None)
    assert end.pumps["b"] == PumpMark(Position(0, 90), Position(0, 70))
    assert end.pumps["a"].since is None


def test_a_pump_that_left_is_not_in_the_end() -> None:
    assert set(plan_raw(raw_start(a=0, b=0), {"a": view(0, 10, (5, 30))}, FREE, None).pumps) == {"a"}


def test_sorted_never_passes_the_pump_behind() -> None:
    views = {"a": view(0, 10, (100, 20), (200, 80)), "b": view(0, 10, (10, 50))}
    assert plan_sorted(raw_start(a=0, b=0), views, None, None).resolved_ts == 50
    assert plan_sorted(raw_start(a=0, b=0), views, 100, None).resolved_ts == 20


def test_holder_is_the_pump_behind() -> None:
    views = {"a": view(0, 10, (100, 20), (200, 80)), "b": view(0, 10, (10, 50))}
    assert (holder(views, Delivery.RAW).pump, holder(views, Delivery.RAW).promise) == ("b", 50)


def read_ahead(origin: int, promise: int, *steps: tuple[int, int], waiting: tuple[tuple[int, int], ...] = ()) -> TailView:
    """A view whose log was read up to ``origin`` while R stood still; ``waiting``: bytes and largest ts of the steps before."""
    plain = view(origin, promise, *steps)
    made = [LogStep(Position(0, origin), ts, ts, size, ts) for size, ts in waiting]
    return TailView(plain.origin, promise, plain.steps, False, max(promise, *(ts for _, ts in waiting)) if waiting else promise, made)


def test_what_waits_bounds_what_is_read_ahead_of_r() -> None:
    """R is held by b, which says nothing; a is read until 250 bytes wait."""
    start = raw_start(a=0, b=0)
    views = {"a": view(0, 10, *((100 * n, 10 + n) for n in range(1, 9))), "b": view(0, 10)}
    end = plan_raw(start, views, Limits(None, 250), None)
    assert (end.resolved_ts, end.pumps["a"].position.offset) == (10, 300)
    full = {"a": read_ahead(300, 13, (400, 14), waiting=((100, 11), (100, 12), (100, 13))), "b": view(0, 10)}
    assert (pending_bytes(full), unread_bytes(full)) == (300, 100)
    assert plan_raw(end, full, Limits(None, 250), None) is end


def test_the_pump_that_stops_r_is_read_whatever_waits() -> None:
    """B is back: its log, of whatever length, is what brings R on."""
    a = read_ahead(300, 13, (400, 14), waiting=((100, 11), (100, 12), (100, 13)))
    back = {"a": a, "b": view(0, 10, (5000, 10), (9000, 12))}
    end = plan_raw(raw_start(a=300, b=0), back, Limits(None, 250), None)
    assert (end.resolved_ts, end.pumps["a"].position.offset, end.pumps["b"].position.offset) == (12, 300, 9000)


def test_an_orphan_far_before_its_outcome_is_read_through() -> None:
    """A Prewrite of b holds b's promise at 10 for 9000 bytes; nothing but its outcome can move R, so it is reached, batch by batch."""
    start = raw_start(a=300, b=0)
    a = read_ahead(300, 99, waiting=((300, 99),))
    offset = 0
    for _ in range(20):
        rest = [(end, 10 if end < 9000 else 40) for end in range(offset + 500, 9001, 500)]
        start = plan_raw(start, {"a": a, "b": view(offset, 10, *rest)}, Limits(1000, 250), None)
        if start.resolved_ts > 10:
            break
        offset = start.pumps["b"].position.offset
    assert start.resolved_ts == 40


def test_one_step_bigger_than_every_bound_passes() -> None:
    start = raw_start(a=0)
    assert plan_raw(start, {"a": view(0, 10, (10_000, 20))}, Limits(100, 50), None).resolved_ts == 20


def test_every_pump_may_be_read_as_far_beyond_r_as_an_orphan_needs() -> None:
    start = BinlogOffset(Delivery.RAW, tso(1000), 0, {p: PumpMark(Position(0, 0)) for p in "ab"})
    views = {"a": view(0, tso(1000), (100, tso(1500)), (200, tso(2000)), (300, tso(2500)), (400, tso(3500))), "b": view(0, tso(1000))}
    assert plan_raw(start, views, Limits(None, 1, 0), None).pumps["a"].position.offset == 100
    assert plan_raw(start, views, Limits(None, 1, 1200), None).pumps["a"].position.offset == 300


def test_a_release_is_cut_to_what_a_batch_may_hold() -> None:
    a = read_ahead(400, 14, waiting=((100, 11), (100, 12), (100, 13), (100, 14)))
    b = view(0, 10, (10, 60))
    end = plan_raw(raw_start(a=400, b=0), {"a": a, "b": b}, Limits(250, 1000), None)
    assert end.resolved_ts == 12
    assert plan_raw(raw_start(a=400, b=0), {"a": a, "b": b}, Limits(50, 1000), None).resolved_ts == 11, "something always goes out"
    assert plan_raw(raw_start(a=400, b=0), {"a": a, "b": b}, Limits(5000, 1000), None).resolved_ts == 14


def test_while_a_release_is_cut_no_more_is_read_than_may_wait() -> None:
    """What R would release is enough for a batch: reading on, even the Pump behind, would only let more wait."""
    a = read_ahead(400, 14, (500, 15), waiting=((100, 11), (100, 12), (100, 13), (100, 14)))
    b = read_ahead(400, 14, (9000, 60), waiting=((100, 11), (100, 12), (100, 13), (100, 14)))
    end = plan_raw(raw_start(a=400, b=400), {"a": a, "b": b}, Limits(250, 500), None)
    assert (end.resolved_ts, end.pumps["a"].position.offset, end.pumps["b"].position.offset) == (11, 400, 400)


def test_the_clock_is_that_of_the_pump_that_has_shown_least() -> None:
    """Not its promise: a Prewrite that waits holds that, and must come of age."""
    held = LogStep(Position(0, 50), 20, 20, 50, 90)
    views = {"a": TailView(Position(0, 0), 10, [held], max_ts=10), "b": view(0, 10, (20, 70))}
    end = plan_raw(raw_start(a=0, b=0), views, FREE, None)
    assert (end.resolved_ts, end.clock) == (20, 70)
    silent = plan_raw(raw_start(a=0, b=0), {"a": view(0, 10), "b": view(0, 10, (20, 70))}, FREE, None)
    assert (silent.resolved_ts, silent.clock) == (10, 10)


STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), max_size=6)


def grown(origin: int, deltas: list[tuple[int, int]]) -> TailView:
    steps, offset, ts = [], origin, 10
    for more, later in deltas:
        offset, ts = offset + more, ts + later
        steps.append((offset, ts))
    return view(origin, 10, *steps)


BOUND = st.none() | st.integers(1, 200)


def seen(log: TailView, at: Position, resolved: int, silent: bool) -> TailView:
    """What a tail shows of ``log`` when it is read up to ``at``; a silent Pump shows nothing new."""
    done = [step for step in log.steps if step.position <= at]
    promise = max([10, *(step.raw_promise for step in done)])
    ahead = [] if silent else [step for step in log.steps if step.position > at]
    return TailView(at, promise, ahead, False, promise, [step for step in done if step.max_ts > resolved])


@given(st.dictionaries(st.sampled_from("abc"), STEPS, min_size=1), BOUND, BOUND, st.booleans())
@example({"a": [(1, 0)], "b": [(2, 0)]}, 1, None, False)
def test_repeated_planning_reaches_everything_within_the_limits(
    logs: dict[str, list[tuple[int, int]]], limit: int | None, pending: int | None, dies: bool
) -> None:
    """With one Pump silent for a while, the others are read as far as may wait; then all comes out, and no batch is above its bounds."""
    whole = {pump: grown(0, deltas) for pump, deltas in logs.items()}
    largest = max((s.size for v in whole.values() for s in v.steps), default=0)
    start = raw_start(**{pump: 0 for pump in logs})
    for silent in (True, False) if dies else (False,):
        for _ in range(200):
            views = {p: seen(log, start.pumps[p].position, start.resolved_ts, silent and p == min(logs)) for p, log in whole.items()}
            end = plan_raw(start, views, Limits(limit, pending), None)
            assert pending is None or not silent or pending_bytes(views) <= pending + len(logs) * largest
            if end is start:
                break
            taken = {p: [s.size for s in v.steps if s.position <= end.pumps[p].position] for p, v in views.items()}
            huge = sum(sizes[0] for sizes in taken.values() if sizes and limit is not None and sizes[0] > limit)
            assert limit is None or sum(map(sum, taken.values())) - huge <= limit
            released = sum(s.size for log in whole.values() for s in log.steps if start.resolved_ts < s.max_ts < end.resolved_ts)
            assert limit is None or released <= limit
            assert end.resolved_ts <= end.clock and start.clock <= end.clock
            start = end
    assert start.resolved_ts == min(newest_promise(log, Delivery.RAW) for log in whole.values())
    assert all(start.pumps[p].position.offset == sum(m for m, _ in deltas) for p, deltas in logs.items()) or pending is not None
