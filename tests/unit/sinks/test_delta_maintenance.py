"""When the Delta tables are compacted and vacuumed, and when the background writer has the time for it."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.sinks.delta.checkpoint_table import CheckpointRow, DeltaCheckpoint, Newest
from pyspark_tidb_binlog.sinks.delta.maintenance import DeltaMaintenance, Elapsed, Operation, Retention, due

WEEK = Retention(retention=7 * 86_400.0)
BOTH = (Operation.OPTIMIZE, Operation.VACUUM)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (Elapsed(start=59, commits=1000), ()),
        (Elapsed(start=60), BOTH),
        (Elapsed(start=9000, optimize=300, vacuum=10, commits=100), (Operation.OPTIMIZE,)),
        (Elapsed(start=9000, optimize=299, vacuum=10, commits=5000), ()),
        (Elapsed(start=9000, optimize=5000, vacuum=10, commits=99), ()),
        (Elapsed(start=9000, optimize=10, vacuum=3600, commits=1), (Operation.VACUUM,)),
        (Elapsed(start=9000, optimize=10, vacuum=3599, commits=1), ()),
        (Elapsed(start=9000, optimize=900, vacuum=3600, commits=100), BOTH),
        (Elapsed(start=9000, optimize=900, vacuum=math.inf, commits=100), BOTH),
    ],
)
def test_what_is_due(since: Elapsed, expected: tuple[Operation, ...]) -> None:
    assert due(since, WEEK) == expected


@pytest.mark.parametrize(
    ("put_off", "quiet", "expected"),
    [
        (math.inf, [True] * 20, BOTH),
        (math.inf, [True] * 19 + [False], ()),
        (math.inf, [False], ()),
        (0.0, [False], BOTH),
    ],
)
def test_under_load_it_waits_for_a_second_without_one_but_not_forever(
    put_off: float, quiet: list[bool], expected: tuple[Operation, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Operation] = []
    looks = iter(quiet)
    maintenance = DeltaMaintenance(cast("SparkSession", None), (), replace(WEEK, settle=0.0, put_off=put_off), lambda: next(looks))
    monkeypatch.setattr(maintenance, "_do", done.append)
    maintenance.look()
    assert tuple(done) == expected
    if not expected:
        looks = iter([True] * 20)
        maintenance.look()
        assert tuple(done) == BOTH, "what was put off is done later"


def test_the_first_operations_of_a_run_that_is_always_busy_are_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives of ten minutes, one after another, would have none."""
    clock, done = [0.0], list[tuple[float, Operation]]()
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.delta.maintenance.time.monotonic", lambda: clock[0])
    maintenance = DeltaMaintenance(cast("SparkSession", None), (), replace(WEEK, settle=60.0, put_off=900.0), lambda: False)
    monkeypatch.setattr(maintenance, "_do", lambda operation: done.append((clock[0], operation)))
    for second in range(600):
        clock[0] = float(second)
        maintenance.look()
    assert {operation for _, operation in done} == set(BOTH)
    assert max(at for at, _ in done) <= 60 + 180


@pytest.mark.parametrize(("retention", "every"), [(7 * 86_400.0, 3600.0), (3600.0, 900.0), (60.0, 300.0)])
def test_a_short_retention_is_looked_after_more_often(retention: float, every: float) -> None:
    assert Retention(retention).vacuum_every == every


def test_the_log_is_kept_as_long_as_the_files() -> None:
    properties = Retention(90.5).properties
    assert properties["delta.deletedFileRetentionDuration"] == properties["delta.logRetentionDuration"] == "interval 91 seconds"


class Table:
    """Fails the first ``failures`` times; each append waits for ``gate``."""

    def __init__(self, order: list[str], failures: int = 0) -> None:
        self._order = order
        self._failures = failures
        self.begun = threading.Event()
        self.gate = threading.Event()

    def newest(self) -> Newest:
        return Newest()

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        self.begun.set()
        self.gate.wait()
        self._failures -= 1
        if self._failures >= 0:
            raise OSError("no space")
        self._order.append("append")


class Watched:
    """Takes its time, until it is ended."""

    def __init__(self, order: list[str]) -> None:
        self._order = order
        self.looked = threading.Event()
        self.ended = threading.Event()

    def look(self) -> None:
        self._order.append("look")
        self.looked.set()
        self.ended.wait()

    def end(self) -> None:
        self.ended.set()


def test_maintenance_follows_a_commit_and_does_not_hold_the_end_up() -> None:
    order: list[str] = []
    table, watched = Table(order, failures=1), Watched(order)
    table.gate.set()
    writer = DeltaCheckpoint(None, "p", "app", "target", interval=0.0, retry_after=0.0, table=table, maintenance=watched)
    writer.record(CheckpointRow(0, 1, 2))
    assert watched.looked.wait(60)
    assert order == ["append", "look"], "not after the commit that failed"
    writer.record(CheckpointRow(1, 2, 3))
    writer.close()
    assert (writer.pending, writer.failure) == (0, None)


def test_no_maintenance_while_somebody_waits_for_the_next_commit() -> None:
    order: list[str] = []
    table, watched = Table(order), Watched(order)
    writer = DeltaCheckpoint(None, "p", "app", "target", interval=0.0, retry_after=0.0, table=table, maintenance=watched)
    writer.record(CheckpointRow(0, 1, 2))
    assert table.begun.wait(60)
    writer.record(CheckpointRow(1, 2, 3))
    writer.hurry()
    table.gate.set()
    assert watched.looked.wait(60)
    assert order == ["append", "append", "look"]
    writer.close()
