"""Which steps are in the relay log before the sink behind it is asked to apply them."""

import random
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.binlogfile import walk
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTable
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayLog, RelayStream, read_cover
from pyspark_tidb_binlog.sinks.relay.relayed_sink import RelayedSink, RelaySettings
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink, TargetProgress, UnfinishedSpan
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from tests.support.ddl_jobs import column, database, job, steps_of, table
from tests.support.ddl_jobs import history as history_of
from tests.support.row_worlds import RowHistory, clustered


class Behind:
    """Notes what is durable in the log when it is asked to apply."""

    def __init__(self, directory: Path, found: TargetProgress) -> None:
        self.directory = directory
        self.found = found
        self.seen: list[list[int]] = []
        self.fails = False

    def open(self, *_: object) -> Opened:
        return Opened(self.found, AppliedJobs(0), {})

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        self.seen.append([commit_ts_of(r.payload) for r in walk(self.directory)])
        cover = read_cover(self.directory)
        assert not (rows.num_rows and self.seen[-1]) or (cover is not None and cover.holds(step.after_ts, step.upto_ts))
        if self.fails:
            raise ApplyError("the target refuses it")
        return Written(rows.num_rows)

    def apply_ddl(self, step: DdlStep, *_: object) -> DdlResult:
        self.seen.append([commit_ts_of(r.payload) for r in walk(self.directory)])
        return DdlResult()

    def close(self) -> None:
        pass


def opened(directory: Path, found: TargetProgress, *, every_step: bool) -> tuple[Behind, RelayedSink]:
    behind = Behind(directory, found)
    sink = RelayedSink(cast(Sink, behind), RelayLog(directory, 1000, RelayStream(1, "")), SecondaryBinlogs(), RelaySettings(every_step))
    sink.open(cast(Any, None), SchemaHistory)
    return behind, sink


CLEAN = TargetProgress(1000, True, 1, None)


@pytest.mark.parametrize(
    ("found", "every_step", "written"),
    [
        (CLEAN, True, True),
        (CLEAN, False, False),
        (TargetProgress(1000, False, 1, None), False, True),
        (TargetProgress(1000, False, 1, UnfinishedSpan(1000, 1 << 40, 1, frozenset())), False, True),
    ],
)
def test_steps_that_may_end_half_applied_are_durable_first(tmp_path: Path, found: TargetProgress, every_step: bool, written: bool) -> None:
    history = RowHistory((clustered("c", 1),), random.Random("relayed"))
    behind, sink = opened(tmp_path, found, every_step=every_step)
    after_ts, stamps = 1000, []
    for _ in range(3):
        rows = history.batch(5)
        stamps = sorted(set(rows.column("commit_ts").to_pylist()))
        sink.apply(rows, history.step(after_ts, rows), StageClock())
        assert behind.seen[-1][-len(stamps) :] == (stamps if written else [])
        after_ts = history.ts
    empty = history.batch(0)
    sink.apply(empty, history.step(after_ts, empty, after_ts + 5), StageClock())
    sink.close()


def test_a_step_that_is_applied_again_is_written_once(tmp_path: Path) -> None:
    history = RowHistory((clustered("c", 1),), random.Random("again"))
    behind, sink = opened(tmp_path, CLEAN, every_step=True)
    rows = history.batch(5)
    behind.fails = True
    for _ in range(2):
        with pytest.raises(ApplyError, match="refuses"):
            sink.apply(rows, history.step(1000, rows), StageClock())
    assert behind.seen[0] == behind.seen[1] == sorted(set(rows.column("commit_ts").to_pylist()))
    sink.close()


def test_nothing_reaches_the_target_that_is_not_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = RowHistory((clustered("c", 1),), random.Random("full"))
    behind, sink = opened(tmp_path, CLEAN, every_step=True)
    rows = history.batch(5)

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched, pytest.raises(ApplyError, match="Input/output error"):
        patched.setattr("os.fsync", fails)
        sink.apply(rows, history.step(1000, rows), StageClock())
    assert behind.seen == []
    sink.close()


def test_a_ddl_of_a_frozen_table_is_not_in_the_log(tmp_path: Path) -> None:
    """The target does not execute it, so a replay of the log must not either."""
    h = history_of(database(1), job(2, 3, table(10, "t")), job(300, 5, table(10, "t", [column(1, "id"), column(2, "v")])))
    *_, step = steps_of(h)
    behind, sink = opened(tmp_path, CLEAN, every_step=True)
    sink.apply_ddl(step, h, {10: FrozenTable(2, "d", "t", {1: "id"})})
    sink.apply_ddl(step, h, {})
    assert behind.seen == [[], [3000]]
    sink.close()
