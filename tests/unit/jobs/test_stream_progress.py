"""What a stream's progress says of where it is held, without a stream."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyspark_tidb_binlog.binlog_source.source.read_notes import ReadNote, note_away
from pyspark_tidb_binlog.jobs.stream.batch_gate import BatchGate
from pyspark_tidb_binlog.jobs.stream.stream_progress import StreamProgress
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import BinlogWatch
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.engine.batch_report import REFUSED, BatchReport, DdlNote, Stage, StageClock, Written

TS = tso(1_790_000_000_000)
REPORT = {"held_by": "p2", "resolved_ts": TS, "promises": {"p1": TS + 5, "p2": TS - 9}, "states": {"p1": "online"}}


class Scene:
    """A stream that stands where the test says."""

    def __init__(self, gate: BatchGate) -> None:
        self.sink, self.clock, self.gate = SimpleNamespace(commit_ts=TS, waiting_for=None), StageClock(), gate
        self.counts = StreamProgress(cast(Any, self.sink), self.clock, show_row_data=False, binlogs=BinlogWatch("none", None))
        self.query = SimpleNamespace(
            lastProgress={"sources": [{"latestOffset": json.dumps(REPORT)}]}, status={"message": "Processing new data"}
        )

    def held(self) -> tuple[str, str]:
        found = self.counts.progress(cast(Any, self.query), self.gate)
        return found.held_stage, found.held_pump


@pytest.fixture
def scene() -> Iterator[Scene]:
    gate = BatchGate()
    yield Scene(gate)
    gate.remove()


def test_between_two_batches_a_pump_holds_progress_and_in_one_its_stage(scene: Scene) -> None:
    scene.clock.stage = Stage.WAIT
    assert scene.held() == ("source", "p2")
    scene.clock.stage = Stage.DDL
    assert scene.held() == ("ddl", "")
    scene.sink.waiting_for = "db1:3306: read-only"
    assert scene.held() == ("apply", "")


def test_a_read_that_waits_names_its_pump(scene: Scene) -> None:
    scene.clock.stage = Stage.READ
    assert scene.held() == ("read", "")
    ReadNote(str(scene.gate.file), "p/1:8250").waits("refused")
    assert scene.held() == ("read", "p/1:8250")


def test_a_dead_pump_is_known_while_a_batch_is_applied(scene: Scene) -> None:
    scene.clock.stage = Stage.APPLY
    note_away(str(scene.gate.file), "p1", "refused")
    pumps = scene.counts.progress(cast(Any, scene.query), scene.gate).pumps
    assert [(pump.name, pump.trouble) for pump in pumps] == [("p1", "refused"), ("p2", "")]
    note_away(str(scene.gate.file), "p1", "")
    assert not any(pump.trouble for pump in scene.counts.progress(cast(Any, scene.query), scene.gate).pumps)


def test_every_pump_was_read_up_to_where_the_target_is(scene: Scene) -> None:
    """What the source has reported is older, in a long batch."""
    pumps = scene.counts.progress(cast(Any, scene.query), scene.gate).pumps
    assert [pump.read_upto for pump in pumps] == [TS + 5, TS]


def test_a_step_of_a_batch_is_progress(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    scene.counts.progress(None, scene.gate)
    monkeypatch.setattr(time, "monotonic", lambda: begun + 300.0)
    assert scene.counts.progress(None, scene.gate).still_seconds > 299
    scene.sink.commit_ts += 1
    assert scene.counts.progress(None, scene.gate).still_seconds == 0


@pytest.mark.parametrize(
    ("stage", "least"), [(Stage.WAIT, 10.0), (Stage.APPLY, 3.0)], ids=["an idle Pump promises something every 3 seconds", "in a batch"]
)
def test_a_holder_is_named_once_it_has_held_something_for_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, stage: Stage, least: float
) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    scene.clock.stage = stage

    def held(seconds: float) -> float:
        now[0] += seconds
        return scene.counts.progress(cast(Any, scene.query), scene.gate).held_seconds

    assert (held(0), held(least - 0.5), held(1)) == (0, 0, pytest.approx(least + 0.5))
    scene.sink.commit_ts += 1
    assert (held(60), held(1), held(least)) == (0, 0, pytest.approx(least + 1)), "a busy stream is found at one place again and again"


def test_the_steps_of_the_start_and_the_rows_of_a_batch_are_named(scene: Scene) -> None:
    scene.query.lastProgress = None

    def at_work(query: Any = scene.query) -> str:
        return scene.counts.progress(query, scene.gate).at_work

    assert at_work(None) == "the start opens the target and the DDL history"
    for message, words in (
        ("Initializing StreamExecution", "Spark opens the stream"),
        ("Getting offsets from PythonMicroBatchStream@41c4961b", "the start asks the Pumps what they have"),
        ("Processing new data", "Spark plans the first batch"),
    ):
        scene.query.status = {"message": message}
        assert at_work() == words
    scene.clock.restart()
    counts = scene.clock.counts
    scene.clock.stage = Stage.READ
    assert at_work() == "binlogs are read"
    counts.transactions, counts.row_events = 18, 279_016
    scene.clock.stage = Stage.APPLY
    counts.add(Written(50_000))
    assert at_work() == "rows are written (279,016 rows read, 50,000 written)"
    scene.clock.stage = Stage.WAIT
    assert at_work() == ""


def test_the_newest_ddl_is_one_that_the_target_has_and_is_counted_at_once(scene: Scene) -> None:
    scene.counts.note_ddl(DdlNote(TS, "CREATE TABLE\n t (a INT)", "executed"))
    scene.counts.note_ddl(DdlNote(TS, "DROP TABLE t", REFUSED))
    shown = scene.counts.progress(None, scene.gate)
    assert (shown.last_ddl, shown.ddls) == ("CREATE TABLE t (a INT)", 1)
    scene.counts.take(BatchReport(1, TS, TS + 1, 5, 0, 0, 0, 0, 1))
    assert scene.counts.progress(None, scene.gate).ddls == 1


def test_a_jvm_that_hangs_takes_no_thread_of_the_pages(scene: Scene) -> None:
    """They have four, and Prometheus asks again and again."""
    assert scene.counts.pump_positions() is None
    scene.counts.progress(cast(Any, scene.query), scene.gate)
    assert scene.counts.pump_positions() == REPORT["promises"], "as it was read last, without the JVM"
    assert b'binlog_drainer_pump_position{nodeID="p1"}' in scene.counts.metrics.text()
