"""How much the next batch takes: from what the tails know to an end offset. Pure.

A tail tells a Pump's log as steps (``Step``): a position, the promises T that hold there, and the bytes since the step
before. ``plan_raw`` and ``plan_sorted`` choose an end offset so that

- R, the end's resolved_ts, is the minimum of the promises over all Pumps and never above ``ceiling``;
- the batch holds at most ``max_bytes`` by the steps' sizes, but always at least one step;
- ``start`` itself comes back when there is nothing to gain.

Raw reads log positions and releases by R, so a Pump may be read far ahead of R. Sorted reads by commit_ts up to R alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from binlog_source.offset import BinlogOffset, Position, PumpMark
from schemas.events import Delivery


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a Pump's log: where it ends, what is promised there, how many bytes it holds."""

    position: Position
    raw_promise: int
    sorted_promise: int
    size: int


@dataclass(frozen=True, slots=True)
class TailView:
    """What is known of one Pump beyond the start offset.

    ``origin``: where reading its log begins (raw). ``promise``: a T known to hold at ``origin``.
    ``steps``: ascending, all past the origin. ``joined``: the start offset does not name this Pump.
    """

    origin: Position
    promise: int
    steps: Sequence[Step]
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """The Pump that holds R back, and the promise that it is at."""

    pump: str
    promise: int


def newest_promise(view: TailView, delivery: Delivery) -> int:
    """The highest T that the Pump of ``view`` has reported."""
    promises = (s.raw_promise if delivery is Delivery.RAW else s.sorted_promise for s in view.steps)
    return max((view.promise, *promises))


def holder(views: Mapping[str, TailView], delivery: Delivery) -> Holder:
    """The Pump with the lowest newest promise."""
    promise, pump = min((newest_promise(view, delivery), pump) for pump, view in views.items())
    return Holder(pump, promise)


def plan_raw(start: BinlogOffset, views: Mapping[str, TailView], max_bytes: int | None, ceiling: int | None) -> BinlogOffset:
    """The end offset of a raw batch: positions as far as the bytes allow, R as far as the promises there."""
    ends = {pump: view.origin for pump, view in views.items()}
    promises = {pump: view.promise for pump, view in views.items()}
    for pump, step in _admit(_by_promise(views), max_bytes):
        ends[pump] = step.position
        promises[pump] = max(promises[pump], step.raw_promise)
    reached = _capped(min(promises.values()), ceiling)
    reached = max(reached, start.resolved_ts)
    moved = any(ends[pump] != view.origin for pump, view in views.items())
    if reached == start.resolved_ts and not moved:
        return start
    marks = {pump: PumpMark(ends[pump], view.origin if view.joined else None) for pump, view in views.items()}
    return BinlogOffset(start.delivery, reached, start.floor, marks)


def plan_sorted(start: BinlogOffset, views: Mapping[str, TailView], max_bytes: int | None, ceiling: int | None) -> BinlogOffset:
    """The end offset of a sorted batch: the highest R whose span holds at most ``max_bytes``."""
    goal = min(newest_promise(view, Delivery.SORTED) for view in views.values())
    spans = [(s.sorted_promise, s.size) for v in views.values() for s in v.steps if s.sorted_promise > start.resolved_ts]
    reached, used = start.resolved_ts, 0
    for promise, size in sorted(spans):
        used += size
        if max_bytes is not None and used > max_bytes and reached > start.resolved_ts:
            break
        reached = min(promise, goal)
    else:
        reached = max(reached, goal)
    reached = _capped(reached, ceiling)
    if reached <= start.resolved_ts:
        return start
    marks = {pump: PumpMark(Position(0, reached)) for pump in views}
    return BinlogOffset(start.delivery, reached, start.floor, marks)


def pending_bytes(views: Mapping[str, TailView]) -> int:
    """Bytes of log that the steps know and no batch has taken yet."""
    return sum(step.size for view in views.values() for step in view.steps)


def _by_promise(views: Mapping[str, TailView]) -> list[tuple[str, Step]]:
    """All steps, so that what R needs first comes first; each Pump's own order is kept."""
    keyed: list[tuple[int, str, int, Step]] = []
    for pump, view in views.items():
        highest = view.promise
        for place, step in enumerate(view.steps):
            keyed.append((highest, pump, place, step))
            highest = max(highest, step.raw_promise)
    return [(pump, step) for _, pump, _, step in sorted(keyed, key=lambda entry: entry[:3])]


def _admit(steps: Sequence[tuple[str, Step]], max_bytes: int | None) -> Sequence[tuple[str, Step]]:
    if max_bytes is None:
        return steps
    used = 0
    for count, (_, step) in enumerate(steps):
        used += step.size
        if used > max_bytes and count > 0:
            return steps[:count]
    return steps


def _capped(resolved: int, ceiling: int | None) -> int:
    return resolved if ceiling is None else min(resolved, ceiling)
