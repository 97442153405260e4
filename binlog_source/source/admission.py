"""How much the next batch reads: from the driver's view of the Pumps' logs to an end offset. Pure.

A tail describes a Pump's log as steps (``LogStep``): a position, the promises T that hold there, and the bytes since the previous step.
``plan_raw`` and ``plan_sorted`` choose an end offset such that

- R, the end's resolved_ts, is at most the minimum of the promises over all Pumps, and never above ``ceiling``;
- the batch reads at most ``max_bytes``, but always at least one step; a larger step is admitted if it is its Pump's first;
- it releases at most ``max_bytes`` of log, but always something: R is cut to the largest ts of a step;
- ``start`` itself is returned when there is nothing to gain.

A raw batch reads by log position and releases by R; the pairing state keeps what is between. When that amounts to ``max_pending``, only those
Pumps are read further whose own promise holds R back, so the stream cannot lock up. Every Pump may also be read ``ahead_ms`` beyond R, so that an
orphan becomes old enough to be resolved. A restart plans the same. A sorted batch reads by commit_ts, up to R only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import Delivery, tso

_FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogStep:
    """One step of a Pump's log: its end, the promises there, its bytes. ``max_ts``: the largest ts of a fake or Commit before it."""

    position: Position
    raw_promise: int
    sorted_promise: int
    size: int
    max_ts: int = 0


@dataclass(frozen=True, slots=True)
class TailView:
    """What is known about one Pump's log beyond the start offset.

    ``origin``: where reading its log begins (raw). ``promise``: a T known to hold there. ``max_ts``: as in ``LogStep``, at ``origin``.
    ``steps``: ascending, all past the origin. ``joined``: the start offset does not contain this Pump.
    ``waiting``: raw; the steps before the origin that hold something not yet released.
    ``anew``: the start offset contains it, but its log was replaced and is read from ``origin`` on, as if the Pump had just joined.
    ``seen_ts``: the largest commit_ts in its log up to the start offset; ``tells``: whether its steps give that ts exactly.
    """

    origin: Position
    promise: int
    steps: Sequence[LogStep]
    joined: bool = False
    max_ts: int = 0
    waiting: Sequence[LogStep] = ()
    anew: bool = False
    seen_ts: int = 0
    tells: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a raw batch, in bytes; None = no bound. ``ahead_ms``: how far beyond R each Pump may always be read."""

    max_bytes: int | None = None
    max_pending: int | None = None
    ahead_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeldBy:
    """The Pump that holds R back, and its newest promise."""

    pump: str
    promise: int


def newest_promise(view: TailView, delivery: Delivery) -> int:
    """The highest T that the Pump of ``view`` has reported."""
    promises = (s.raw_promise if delivery is Delivery.RAW else s.sorted_promise for s in view.steps)
    return max((view.promise, *promises))


def holder(views: Mapping[str, TailView], delivery: Delivery) -> HeldBy:
    """The Pump with the lowest newest promise."""
    promise, pump = min((newest_promise(view, delivery), pump) for pump, view in views.items())
    return HeldBy(pump, promise)


def plan_raw(start: BinlogOffset, views: Mapping[str, TailView], limits: Limits, ceiling: int | None) -> BinlogOffset:
    """The end offset of a raw batch: positions as far as the limits allow, R as far as the promises there and ``max_bytes`` allow."""
    reading = _Reading(start, views, limits)
    reading.admit()
    goal = _capped(min(reading.promises.values()), ceiling)
    reached = _cut(start.resolved_ts, goal, reading.spans, limits.max_bytes)
    moved = any(reading.ends[pump] != view.origin for pump, view in views.items())
    if reached == start.resolved_ts and not moved:
        return start
    marks = {pump: PumpMark(reading.ends[pump], _since(view, view.origin), reading.seen[pump]) for pump, view in views.items()}
    clock_ts = max(start.clock, min(reading.clocks.values()))
    return BinlogOffset(start.delivery, reached, start.floor, marks, clock_ts)


def plan_sorted(start: BinlogOffset, views: Mapping[str, TailView], max_bytes: int | None, ceiling: int | None) -> BinlogOffset:
    """The end offset of a sorted batch: the highest R whose span holds at most ``max_bytes``."""
    goal = min(newest_promise(view, Delivery.SORTED) for view in views.values())
    spans = [(s.sorted_promise, s.size) for v in views.values() for s in v.steps]
    reached = _cut(start.resolved_ts, _capped(goal, ceiling), spans, max_bytes)
    if reached <= start.resolved_ts:
        return start
    before = Position(0, start.resolved_ts)
    marks = {pump: PumpMark(Position(0, reached), before if view.anew else None, _seen_upto(view, reached)) for pump, view in views.items()}
    return BinlogOffset(start.delivery, reached, start.floor, marks)


def _since(view: TailView, origin: Position) -> Position | None:
    return origin if view.joined or view.anew else None


def _seen_upto(view: TailView, reached: int) -> int:
    """Sorted: the largest commit_ts that the Pump has reported, up to ``reached``."""
    told = [step.sorted_promise for step in view.steps if view.tells and step.sorted_promise <= reached]
    return max(view.seen_ts, *told, 0)


def unread_bytes(views: Mapping[str, TailView]) -> int:
    """Bytes of log that the steps cover and no batch has read yet."""
    return sum(step.size for view in views.values() for step in view.steps)


def pending_bytes(views: Mapping[str, TailView]) -> int:
    """Bytes of log that were read and hold something not yet released: an upper bound of the pairing state."""
    return sum(step.size for view in views.values() for step in view.waiting)


class _Reading:
    """How far the next raw batch reads: the end position of each Pump's log in it, and the promise and the largest ts there."""

    def __init__(self, start: BinlogOffset, views: Mapping[str, TailView], limits: Limits) -> None:
        self.ends = {pump: view.origin for pump, view in views.items()}
        self.promises = {pump: view.promise for pump, view in views.items()}
        self.clocks = {pump: max(view.max_ts, view.promise) for pump, view in views.items()}
        self.seen = {pump: view.seen_ts for pump, view in views.items()}
        self.spans = [(step.max_ts, step.size) for view in views.values() for step in view.waiting]
        self._views, self._limits, self._start_ts = views, limits, start.resolved_ts
        self._pending = pending_bytes(views)
        self._near = start.resolved_ts + tso(limits.ahead_ms)
        # A promise above this ts would not advance R: what is read already is as much as one batch may release.
        self._within_reach = _cut(start.resolved_ts, _FOREVER, self.spans, limits.max_bytes)

    def admit(self) -> None:
        """Add steps as far as the limits allow, those that R needs first coming first; if R advances, only those that it needs."""
        used, most = 0, self._limits.max_bytes
        stopped: set[str] = set()
        begun: set[str] = set()
        for before, pump, step in _by_promise(self._views):
            if self._start_ts < min(self.promises.values()) < before:
                # Nothing that follows, by promise, advances R further; it would only wait in the pairing state.
                return
            if pump in stopped or not self._allowed(before, pump):
                stopped.add(pump)
                continue
            # A huge step need not fit: otherwise other Pumps' small steps would keep it out forever, and with it an outcome that R needs.
            fits = most is None or not used or used + step.size <= most or (step.size > most and pump not in begun)
            if not fits:
                return
            begun.add(pump)
            used += step.size
            self._take(pump, step)

    def _allowed(self, promise: int, pump: str) -> bool:
        """Whether the Pump, read up to ``promise``, may be read further: there is room, it holds R back, or it is only just ahead of R."""
        most = self._limits.max_pending
        stops_r = promise <= min(self._within_reach, min(self.promises.values()))
        return most is None or self._pending < most or stops_r or self.clocks[pump] < self._near

    def _take(self, pump: str, step: LogStep) -> None:
        self.ends[pump] = step.position
        self.promises[pump] = max(self.promises[pump], step.raw_promise)
        self.clocks[pump] = max(self.clocks[pump], step.max_ts, step.raw_promise)
        self.seen[pump] = step.max_ts if self._views[pump].tells else 0
        self.spans.append((step.max_ts, step.size))
        self._pending += step.size


def _by_promise(views: Mapping[str, TailView]) -> list[tuple[int, str, LogStep]]:
    """All steps, each with the promise before it, lowest promise first, since it holds R back; each Pump's own order is kept."""
    keyed: list[tuple[int, str, int, LogStep]] = []
    for pump, view in views.items():
        highest = view.promise
        for place, step in enumerate(view.steps):
            keyed.append((highest, pump, place, step))
            highest = max(highest, step.raw_promise)
    return [(before, pump, step) for before, pump, _, step in sorted(keyed, key=lambda entry: entry[:3])]


def _cut(floor: int, goal: int, spans: Iterable[tuple[int, int]], max_bytes: int | None) -> int:
    """The highest R up to ``goal`` with at most ``max_bytes`` in the ``spans`` (largest ts, bytes) above ``floor``; one always fits."""
    if max_bytes is None or goal <= floor:
        return max(floor, goal)
    reached, used = floor, 0
    for ts, size in sorted(span for span in spans if span[0] > floor):
        used += size
        if used > max_bytes and reached > floor:
            return reached
        reached = min(ts, goal)
        if reached == goal:
            break
    return goal


def _capped(resolved: int, ceiling: int | None) -> int:
    return resolved if ceiling is None else min(resolved, ceiling)
