"""The gate of a stream: shut, open, and when the stream rests behind it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.source.outage import Outage
from pyspark_tidb_binlog.binlog_source.source.stream_end import StreamEnd
from pyspark_tidb_binlog.jobs.stream import batch_gate
from pyspark_tidb_binlog.jobs.stream.batch_gate import BatchGate


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock: the last item."""
    times = [100.0]
    monkeypatch.setattr(batch_gate, "monotonic", lambda: times[-1])
    return times


@pytest.fixture
def gate() -> Iterator[BatchGate]:
    made = BatchGate()
    yield made
    made.remove()


@pytest.fixture
def source(gate: BatchGate) -> StreamEnd:
    return StreamEnd(0, str(gate.file), Outage(1.0))


def test_a_stream_rests_once_no_batch_was_under_way_for_a_while(gate: BatchGate, now: list[float]) -> None:
    assert not gate.rested(busy=False), "it is open"
    gate.shut()
    assert not gate.rested(busy=False)
    now.append(101.0)
    assert gate.rested(busy=False)
    assert not gate.rested(busy=True) and not gate.rested(busy=False), "a batch was under way after all"
    now.append(102.0)
    assert gate.rested(busy=False)


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


def test_a_second_shut_begins_no_second_wait(gate: BatchGate, now: list[float]) -> None:
    gate.shut()
    gate.rested(busy=False)
    now.append(200.0)
    gate.shut()
    assert gate.rested(busy=False)
    gate.shut_for_good()
    gate.open()
    assert gate.is_shut


def age(path: Path) -> None:
    os.utime(path, (1.0, 1.0))


def test_a_cleaner_finds_nothing_old_and_what_was_removed_is_there_again(gate: BatchGate, source: StreamEnd, now: list[float]) -> None:
    gate.shut()
    age(gate.file)
    age(gate.file.parent)
    gate.keep()
    assert gate.file.stat().st_mtime > 1.0 and gate.file.parent.stat().st_mtime > 1.0
    gate.rested(busy=False)
    now.append(200.0)
    assert gate.rested(busy=False)
    gate.file.unlink()
    gate.keep()
    assert source.stopping() and not gate.rested(busy=False), "a batch may have gone through meanwhile"
    shutil.rmtree(gate.file.parent)
    assert source.stopping() and gate.is_shut, "no batch goes through meanwhile"
    gate.keep()
    assert source.stopping()
    gate.open()
    assert not source.stopping()
    shutil.rmtree(gate.file.parent)
    gate.keep()
    assert not source.stopping(), "one that is open is open again"


def test_without_its_directory_it_is_shut_and_opened_all_the_same(gate: BatchGate, source: StreamEnd) -> None:
    shutil.rmtree(gate.file.parent)
    gate.shut()
    assert source.stopping()
    shutil.rmtree(gate.file.parent)
    gate.open()
    assert not source.stopping()
    shutil.rmtree(gate.file.parent)
    gate.shut_for_good()
    gate.keep()
    assert source.stopping()
    gate.remove()
    gate.keep()
    assert not gate.file.parent.exists(), "the stream has ended"


def test_what_cannot_be_made_changes_nothing_and_does_not_keep_a_stream_from_ending(gate: BatchGate) -> None:
    shutil.rmtree(gate.file.parent)
    gate.file.parent.touch()  # also where another user has made one of this name
    with pytest.raises(OSError, match="exists"):
        gate.shut()
    assert not gate.is_shut
    gate.shut_for_good()
    assert gate.is_shut
    gate.file.parent.unlink()


def test_a_rest_ends_by_itself_or_when_it_is_told(gate: BatchGate, source: StreamEnd, now: list[float]) -> None:
    gate.rest(60.0)
    assert gate.is_shut and source.stopping()
    gate.keep()
    now.append(160.0)
    gate.keep()
    assert not gate.is_shut and not source.stopping()
    gate.rest(60.0)
    gate.rest(0.0)
    assert not gate.is_shut


def test_a_pause_outlasts_a_rest(gate: BatchGate, now: list[float]) -> None:
    gate.rest(60.0)
    gate.shut()
    now.append(200.0)
    gate.keep()
    assert gate.is_shut
    gate.rest(0.0)
    gate.rest(1.0)
    now.append(300.0)
    gate.keep()
    assert gate.is_shut, "whoever paused it did not ask for a rest"
    gate.open()
    assert not gate.is_shut
