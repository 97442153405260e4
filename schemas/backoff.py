"""Pauses between attempts: a schedule of pauses, and attempts that follow the schedule until a time is up.

Promises: ``Backoff`` is pure. ``Retries`` uses only the clock and the sleep that its caller gives, so a test needs no time.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow from ``first`` by ``factor`` up to ``longest``. Seconds."""

    first: float
    longest: float
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.longest or self.factor < 1:
            raise ValueError(f"{self}: 0 < first <= longest, and factor is at least 1")

    def pause(self, attempt: int) -> float:
        """Seconds to wait after ``attempt``, counted from 0, has failed."""
        try:
            return min(self.first * self.factor**attempt, self.longest)
        except OverflowError:
            return self.longest


def steady(seconds: float) -> Backoff:
    """The schedule of a poll: the same pause each time."""
    return Backoff(seconds, seconds, 1.0)


class Retries:
    """Attempts with the pauses of ``backoff``, until ``seconds`` have passed since the first one, or since ``restart``. For one thread."""

    def __init__(
        self,
        backoff: Backoff,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._backoff = backoff
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self.restart()

    def restart(self) -> None:
        """An attempt had some success: the time, and the pauses, begin again."""
        self._begun = self._clock()
        self._attempt = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the first attempt."""
        return self._clock() - self._begun

    @property
    def over(self) -> bool:
        """Whether the time is up: the last failure is final."""
        return self.elapsed >= self._seconds

    def pause(self) -> None:
        """Wait before the next attempt, even if the time is up meanwhile."""
        self._wait(math.inf)

    def pause_in_time(self) -> None:
        """``pause``, but not beyond the time: the last attempt is made just when it is up."""
        self._wait(max(0.0, self._seconds - self.elapsed))

    def _wait(self, most: float) -> None:
        self._sleep(min(self._backoff.pause(self._attempt), most))
        self._attempt += 1
