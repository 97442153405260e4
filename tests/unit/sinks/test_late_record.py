"""When the record of a step in which nothing was applied is put off."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.sinks.engine.late_record import AT_ONCE, SECONDS, LateRecord
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep

JOBS = AppliedJobs(7)


class Life:
    """A record whose row said 5 when the life began."""

    def __init__(self) -> None:
        self.now = 0.0
        self.notes: list[tuple[int, int]] = []
        self.late = LateRecord(lambda: self.now)
        self.late.note = lambda recorded, upto: self.notes.append((recorded, upto))
        self.late.found(5, JOBS)

    def saves(self, upto_ts: int, jobs: AppliedJobs = JOBS) -> bool:
        """Whether a step without rows is saved at once; it then is."""
        if self.late.put_off(replace(RowsStep(0, upto_ts, 0, {}), applied=jobs)):
            return False
        self.late.saved(upto_ts, jobs)
        return True


@pytest.fixture
def life() -> Life:
    return Life()


def test_the_first_steps_of_a_life_are_saved_at_once(life: Life) -> None:
    """Pumps answer one after the other: the first batch of a start often ends short of the tip, and the second is the one that people wait for."""
    assert [life.saves(upto) for upto in (6, 7, 8, 9)] == [True, True, False, False]
    assert life.notes == [(7, 8), (7, 9)]


def test_an_idle_stream_saves_every_few_seconds(life: Life) -> None:
    saved = 0
    for tick in range(1, 1001):
        life.now = tick * 0.1
        saved += life.saves(5 + tick)
    assert 100 / (SECONDS + 0.2) <= saved <= AT_ONCE + 100 / SECONDS


def test_what_the_life_before_has_left_is_none_of_its_steps(life: Life) -> None:
    """It is saved before the first step."""
    life.late.saved(6, JOBS)
    life.late.found(6, JOBS)
    assert [life.saves(upto) for upto in (7, 8, 9)] == [True, True, False]


def test_steps_with_data_count(life: Life) -> None:
    for upto in range(6, 6 + AT_ONCE):
        life.late.saved(upto, JOBS)
    assert not life.saves(9)


def test_another_state_of_the_ddls_is_saved_at_once(life: Life) -> None:
    assert [life.saves(upto) for upto in (6, 7, 8)] == [True, True, False]
    assert life.saves(9, AppliedJobs(8))


def test_nothing_is_put_off_without_a_note(life: Life) -> None:
    life.late.note = None
    assert all(life.saves(upto) for upto in range(6, 12))
