"""When a target is taken to have a backlog, whose batches go to the executors without being tried on the driver."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.apply import BatchApplier


@pytest.fixture
def ways() -> list[str]:
    """The ways that batches took: ``local``, ``big``."""
    return []


def applier(seconds_behind: float, events: list[int], ways: list[str], monkeypatch: pytest.MonkeyPatch) -> BatchApplier:
    """One whose target stays so far behind, and whose batches have so many row events."""
    sink = SimpleNamespace(commit_ts=tso(int((time.time() - seconds_behind) * 1000)))
    made = BatchApplier(cast(Any, None), DrainerConfig(), cast(Any, sink), cast(Any, None), lambda report: None)

    def big(transactions: object) -> None:
        ways.append("big")
        made.clock.counts.row_events = events.pop(0)

    def local(transactions: object) -> object:
        ways.append("local")
        made.clock.counts.row_events = events[0]
        fits = events[0] <= DrainerConfig().apply.atomic_rows
        if fits:
            events.pop(0)
        return ((), None) if fits else None

    monkeypatch.setattr(made, "_apply_big", big)
    monkeypatch.setattr(made, "_small", local)
    return made


@pytest.mark.parametrize(
    ("seconds_behind", "events", "expected"),
    [
        (1, [1, 1], ["local", "local"]),
        (1, [100_000, 100_000, 1, 1], ["local", "big", "big", "big", "local"]),
        (3600, [1, 100_000, 100_000, 1, 1], ["big"] * 5),
        # a clock that is ahead, or a recording
        (3600, [1, 1, 1, 1, 1], ["big", "big", "big", "local", "local"]),
        (3600, [1, 1, 1, 1, 100_000, 1], ["big", "big", "big", "local", "local", "big", "big"]),
        # a clock that is behind
        (-3600, [1, 100_000, 1], ["local", "local", "big", "big"]),
    ],
)
def test_a_backlog_is_not_tried_on_the_driver(
    seconds_behind: float, events: list[int], expected: list[str], ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = applier(seconds_behind, [*events], ways, monkeypatch)
    for number in range(len(events)):
        made(cast(Any, None), number)
    assert ways == expected
