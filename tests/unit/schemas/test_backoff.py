"""Pauses between attempts: how they grow, and when attempts end."""

import pytest

from pyspark_tidb_binlog.schemas.backoff import Backoff, Retries, steady


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.at = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (Backoff(0.1, 2.0), [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]),
        (Backoff(1.0, 4.0), [1.0, 2.0, 4.0, 4.0]),
        (Backoff(1.0, 30.0, 3.0), [1.0, 3.0, 9.0, 27.0, 30.0]),
        (steady(0.5), [0.5, 0.5, 0.5]),
    ],
)
def test_pauses_grow_up_to_the_longest(backoff: Backoff, pauses: list[float]) -> None:
    assert [backoff.pause(attempt) for attempt in range(len(pauses))] == pytest.approx(pauses)


def test_no_number_of_attempts_is_too_large() -> None:
    assert Backoff(0.05, 5.0).pause(10**9) == 5.0


@pytest.mark.parametrize(("first", "longest", "factor"), [(0.0, 1.0, 2.0), (2.0, 1.0, 2.0), (1.0, 2.0, 0.5)])
def test_a_schedule_that_shrinks_is_refused(first: float, longest: float, factor: float) -> None:
    with pytest.raises(ValueError, match="first <= longest"):
        Backoff(first, longest, factor)


def test_attempts_end_when_the_time_is_up() -> None:
    clock = Clock()
    retries = Retries(Backoff(1.0, 4.0), 6.0, clock.now, clock.sleep)
    while not retries.over:
        retries.pause()
    assert clock.slept == [1.0, 2.0, 4.0] and retries.elapsed == 7.0


def test_the_last_pause_may_end_with_the_time() -> None:
    clock = Clock()
    retries = Retries(Backoff(1.0, 4.0), 6.0, clock.now, clock.sleep)
    while not retries.over:
        retries.pause_in_time()
    assert clock.slept == [1.0, 2.0, 3.0]
    retries.pause_in_time()
    assert clock.slept[-1] == 0.0, "the time is up"


def test_some_success_starts_anew() -> None:
    clock = Clock()
    retries = Retries(Backoff(1.0, 4.0), 2.5, clock.now, clock.sleep)
    retries.pause()
    retries.pause()
    assert retries.over
    retries.restart()
    assert not retries.over and retries.elapsed == 0.0
    retries.pause()
    assert clock.slept == [1.0, 2.0, 1.0]


def test_no_time_means_one_attempt() -> None:
    assert Retries(steady(1.0), 0.0).over
