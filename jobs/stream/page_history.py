"""What the page draws over time: figures of each second of an hour and of each minute of a day, and the busiest tables. Pure.

Promises: memory is bounded, however many tables there are. It begins with ``began``, and again if the clock is set back. Times are seconds since 1970.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

SECONDS, MINUTES = 3_600, 1_440
"""How many of them are kept."""
_SET_BACK = 5.0
"""Seconds by which the clock may go back unnoticed."""
_RATE_SECONDS = 10
_TABLE_MINUTES, _RECENT_MINUTES = 60, 5
_MOST_TABLES, _MOST_BEFORE = 500, 100
"""Tables kept of the running minute, and of each minute before it: the busiest."""


class Sample(NamedTuple):
    """One second, or one minute."""

    at: int
    """Its end."""
    lag: float | None
    """Seconds; of a minute the worst. None: nothing was applied yet."""
    rows: float
    """Row events a second."""
    transactions: float
    """Transactions a second."""


@dataclass(frozen=True, slots=True)
class BusyTable:
    """Row events of one table."""

    name: str
    recent: int
    """In the last five minutes."""
    hour: int


class PageHistory:
    """The history since the start of the process."""

    def __init__(self, began: float) -> None:
        self._begin(began)

    def _begin(self, began: float) -> None:
        self.began = began
        self._seconds: deque[Sample] = deque(maxlen=SECONDS)
        self._minutes: deque[Sample] = deque(maxlen=MINUTES)
        self._minute: list[Sample] = []
        self._tables: deque[tuple[int, Counter[str]]] = deque(maxlen=_TABLE_MINUTES)
        self._before: tuple[float, int, int] | None = None

    def look(self, now: float, lag: float | None, row_events: int, transactions: int) -> None:
        """The figures of this second: counts are since the start of the process."""
        if self._before is not None and now < self._before[0] - _SET_BACK:
            self._begin(now)
        before, at = self._before or (now - 1.0, row_events, transactions), int(now)
        if self._seconds and at <= self._seconds[-1].at:
            return
        self._before, seconds = (now, row_events, transactions), max(0.001, now - before[0])
        rates = (round(max(0, count - old) / seconds, 3) for count, old in zip((row_events, transactions), before[1:], strict=True))
        sample = Sample(at, None if lag is None else round(lag, 3), *rates)
        if self._minute and at // 60 != self._minute[0].at // 60:
            # At the first second behind it, so that who has that one has asked for the minute, too.
            lags = [sample.lag for sample in self._minute if sample.lag is not None]
            self._minutes.append(Sample(at, max(lags, default=None), *_rates(list(self._seconds)[-len(self._minute) - 1 :])))
            self._minute = []
        self._seconds.append(sample)
        self._minute.append(sample)

    def count(self, now: float, tables: Mapping[str, int]) -> None:
        """Row events of a batch by table."""
        minute = int(now) // 60
        if not self._tables or self._tables[-1][0] < minute:
            self._keep(_MOST_BEFORE)
            self._tables.append((minute, Counter()))
        counted = self._tables[-1][1]
        counted.update(tables)
        if len(counted) > 2 * _MOST_TABLES:
            self._keep(_MOST_TABLES)

    def _keep(self, most: int) -> None:
        if self._tables:
            minute, counted = self._tables[-1]
            self._tables[-1] = (minute, Counter(dict(counted.most_common(most))))

    def seconds(self, after: int = 0) -> list[Sample]:
        """The seconds behind ``after``."""
        return _behind(self._seconds, after)

    def minutes(self, after: int = 0) -> list[Sample]:
        """The whole minutes behind ``after``."""
        return _behind(self._minutes, after)

    def rates(self) -> tuple[float, float]:
        """Row events and transactions a second, over the last seconds."""
        return _rates(list(self._seconds)[-_RATE_SECONDS - 1 :])

    def busiest(self, now: float, most: int) -> list[BusyTable]:
        """The tables with most row events."""
        recent, hour, minute = Counter[str](), Counter[str](), int(now) // 60
        for at, counted in self._tables:
            if at > minute - _TABLE_MINUTES:
                hour.update(counted)
            if at > minute - _RECENT_MINUTES:
                recent.update(counted)
        names = heapq.nsmallest(most, hour, key=lambda name: (-recent[name], -hour[name], name))
        return [BusyTable(name, recent[name], hour[name]) for name in names]


def _rates(samples: Sequence[Sample]) -> tuple[float, float]:
    """The mean rates behind the first sample; a sample behind a gap counts for all of its time."""
    parts = [(sample.at - before.at, sample) for before, sample in pairwise(samples)]
    seconds = sum(length for length, _ in parts) or 1
    rows, transactions = sum(length * s.rows for length, s in parts), sum(length * s.transactions for length, s in parts)
    return round(rows / seconds, 3), round(transactions / seconds, 3)


def _behind(kept: deque[Sample], after: int) -> list[Sample]:
    """From the newest on: most requests ask for a second."""
    found = []
    for sample in reversed(kept):
        if sample.at <= after:
            break
        found.append(sample)
    return found[::-1]
