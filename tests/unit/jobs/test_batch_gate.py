"""The gate of a stream: shut, open, and when the stream rests behind it."""

import pytest

from pyspark_tidb_binlog.jobs import batch_gate
from pyspark_tidb_binlog.jobs.batch_gate import BatchGate


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock: the last item."""
    times = [100.0]
    monkeypatch.setattr(batch_gate, "monotonic", lambda: times[-1])
    return times


@pytest.fixture
def gate() -> BatchGate:
    return BatchGate()


def test_a_stream_rests_once_no_batch_was_under_way_for_a_while(gate: BatchGate, now: list[float]) -> None:
    assert not gate.rested(busy=False), "it is open"
    gate.shut()
    assert not gate.rested(busy=False)
    now.append(101.0)
    assert gate.rested(busy=False)
    assert not gate.rested(busy=True) and not gate.rested(busy=False), "a batch was under way after all"
    now.append(102.0)
    assert gate.rested(busy=False)
    gate.remove()


def test_each_pause_waits_anew(gate: BatchGate, now: list[float]) -> None:
    """Between two pauses batches went through, and one may just be planned."""
    gate.shut()
    gate.rested(busy=False)
    now.append(200.0)
    assert gate.rested(busy=False)
    gate.open()
    gate.shut()
    assert not gate.rested(busy=False)
    now.append(201.0)
    assert gate.rested(busy=False)
    gate.remove()


def test_a_second_shut_begins_no_second_wait(gate: BatchGate, now: list[float]) -> None:
    gate.shut()
    gate.rested(busy=False)
    now.append(200.0)
    gate.shut()
    assert gate.rested(busy=False)
    gate.shut_for_good()
    gate.open()
    assert gate.is_shut
    gate.remove()
