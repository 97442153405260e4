"""Admission: R is the minimum, bytes are bounded, something is always admitted."""

from hypothesis import given
from hypothesis import strategies as st

from binlog_source.admission import Step, TailView, holder, newest_promise, plan_raw, plan_sorted
from binlog_source.offset import BinlogOffset, Position, PumpMark
from schemas.events import Delivery


def raw_start(resolved: int = 10, **pumps: int) -> BinlogOffset:
    return BinlogOffset(Delivery.RAW, resolved, 0, {p: PumpMark(Position(0, o)) for p, o in pumps.items()})


def view(origin: int, promise: int, *steps: tuple[int, int], joined: bool = False) -> TailView:
    """Steps as (offset, promise in both deliveries)."""
    made, before = [], origin
    for offset, ts in steps:
        made.append(Step(Position(0, offset), ts, ts, offset - before))
        before = offset
    return TailView(Position(0, origin), promise, made, joined)


def test_nothing_new_gives_start_itself() -> None:
    start = raw_start(a=5)
    assert plan_raw(start, {"a": view(5, 10)}, 100, None) is start
    assert plan_sorted(start, {"a": view(5, 10)}, 100, None) is start


def test_r_is_the_lowest_promise_and_positions_go_ahead_of_it() -> None:
    end = plan_raw(raw_start(a=0, b=0), {"a": view(0, 10, (50, 90)), "b": view(0, 10, (20, 30))}, None, None)
    assert end.resolved_ts == 30
    assert {p: m.position.offset for p, m in end.pumps.items()} == {"a": 50, "b": 20}


def test_a_pump_that_says_nothing_new_holds_r_but_the_others_are_read() -> None:
    end = plan_raw(raw_start(a=0, b=0), {"a": view(0, 10, (50, 90)), "b": view(0, 10)}, None, None)
    assert end.resolved_ts == 10
    assert end.pumps["a"].position.offset == 50


def test_a_promise_at_the_origin_counts_without_a_step() -> None:
    assert plan_raw(raw_start(a=0), {"a": view(0, 40)}, None, None).resolved_ts == 40


def test_bytes_are_bounded_but_one_step_is_always_taken() -> None:
    steps = [(100, 20), (200, 30), (300, 40)]
    assert plan_raw(raw_start(a=0), {"a": view(0, 10, *steps)}, 1, None).pumps["a"].position.offset == 100
    assert plan_raw(raw_start(a=0), {"a": view(0, 10, *steps)}, 250, None).resolved_ts == 30
    assert plan_sorted(raw_start(a=0), {"a": view(0, 10, *steps)}, 1, None).resolved_ts == 20
    assert plan_sorted(raw_start(a=0), {"a": view(0, 10, *steps)}, 250, None).resolved_ts == 30


def test_within_the_limit_the_pump_behind_is_read_first() -> None:
    views = {"a": view(0, 100, (100, 200), (200, 300)), "b": view(0, 10, (100, 20), (200, 150))}
    end = plan_raw(raw_start(a=0, b=0), views, 200, None)
    assert {p: m.position.offset for p, m in end.pumps.items()} == {"a": 0, "b": 200}
    assert end.resolved_ts == 100


def test_the_ceiling_caps_r() -> None:
    views = {"a": view(0, 10, (100, 200))}
    assert plan_raw(raw_start(a=0), views, None, 150).resolved_ts == 150
    assert plan_sorted(raw_start(a=0), views, None, 150).resolved_ts == 150


def test_a_joining_pump_is_marked_with_where_reading_begins() -> None:
    end = plan_raw(raw_start(a=0), {"a": view(0, 10, (5, 30)), "b": view(70, 10, (90, 40), joined=True)}, None, None)
    assert end.pumps["b"] == PumpMark(Position(0, 90), Position(0, 70))
    assert end.pumps["a"].since is None


def test_a_pump_that_left_is_not_in_the_end() -> None:
    assert set(plan_raw(raw_start(a=0, b=0), {"a": view(0, 10, (5, 30))}, None, None).pumps) == {"a"}


def test_sorted_never_passes_the_pump_behind() -> None:
    views = {"a": view(0, 10, (100, 20), (200, 80)), "b": view(0, 10, (10, 50))}
    assert plan_sorted(raw_start(a=0, b=0), views, None, None).resolved_ts == 50
    assert plan_sorted(raw_start(a=0, b=0), views, 100, None).resolved_ts == 20


def test_holder_is_the_pump_behind() -> None:
    views = {"a": view(0, 10, (100, 20), (200, 80)), "b": view(0, 10, (10, 50))}
    assert (holder(views, Delivery.RAW).pump, holder(views, Delivery.RAW).promise) == ("b", 50)


STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), max_size=6)


def grown(origin: int, deltas: list[tuple[int, int]]) -> TailView:
    steps, offset, ts = [], origin, 10
    for more, later in deltas:
        offset, ts = offset + more, ts + later
        steps.append((offset, ts))
    return view(origin, 10, *steps)


@given(st.dictionaries(st.sampled_from("abc"), STEPS, min_size=1), st.none() | st.integers(1, 200))
def test_repeated_planning_reaches_everything_within_the_limit(logs: dict[str, list[tuple[int, int]]], limit: int | None) -> None:
    start = raw_start(**{pump: 0 for pump in logs})
    for _ in range(100):
        views = {}
        for pump, deltas in logs.items():
            whole = grown(0, deltas)
            at = start.pumps[pump].position
            done = [s for s in whole.steps if s.position <= at]
            views[pump] = TailView(at, max([10, *(s.raw_promise for s in done)]), [s for s in whole.steps if s.position > at])
        end = plan_raw(start, views, limit, None)
        if end is start:
            break
        taken = {p: sum(s.size for s in v.steps if s.position <= end.pumps[p].position) for p, v in views.items()}
        largest = max(s.size for v in views.values() for s in v.steps) if any(v.steps for v in views.values()) else 0
        assert limit is None or sum(taken.values()) <= max(limit, largest)
        start = end
    assert start.resolved_ts == min(newest_promise(grown(0, deltas), Delivery.RAW) for deltas in logs.values())
    assert all(start.pumps[p].position.offset == sum(m for m, _ in deltas) for p, deltas in logs.items())
