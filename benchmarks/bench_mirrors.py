"""Mirrors without a stream, parts of ``bench_lake``: how long it takes until the changes of some of many tables are published, and to read a large table
whose mirror is behind.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import RowEncoder
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.moments import Snapshots
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, VARCHAR, column, history, job, steps_of, table

GOALS = {1000: 60.0, 10: 2.0}
"""Seconds in which the changes of so many tables are published."""
ROWS, CHANGES = 10_000, 50
"""Of each table."""
LEDGER_ROWS, READ_ROWS, UNMERGED, READ_GOAL = 10_000_000, 1_000_000, 50_000, 3.0
"""Changes in the ledger, rows of the table that is read, those of them that changed since its mirror was published, and seconds."""
FIRST = 100
"""Id of the first table."""
_AT_ONCE = 50
"""Tables that a step fills."""
_PIECE = 100_000
"""Rows of a step that fills a large table."""
_KEY = {**INT, "Tp": 8, "Flag": 4099, "Flen": 20}


class FilledLake:
    """A lake of equal tables ``d.t0``, ``t1`` … that is written without Spark."""

    def __init__(self, lake: str, count: int) -> None:
        """``count``: tables. They are made."""
        made = [
            table(FIRST + n, f"t{n}", [column(1, "id", _KEY), column(2, "n"), column(3, "name", VARCHAR), column(4, "place", VARCHAR)])
            for n in range(count)
        ]
        self._lake, self._snapshots = lake, Snapshots(lake)
        self._known = history(*(job(number, 3, one) for number, one in enumerate(made, 1)))
        found = {i: self._known.table_at(i, self._known.newest_version) for i in range(FIRST, FIRST + count)}
        self._tables = {i: at for i, at in found.items() if at is not None}
        self.open(0.0)
        for step in steps_of(self._known, {}):
            self._sink.apply_ddl(decided(step, self._known, Selection.of(ApplyConfig())), self._known, {})
            self._applied = step.applied

    def open(self, mirror_interval: float | None) -> None:
        """Write on with this ``LakeSettings.mirror_interval``."""
        self._sink = LakeSink(LakeSettings(self._lake, 1, mirror_interval=mirror_interval))
        self._sink.open(lambda _, ts: 5 if ts is None else ts, lambda: self._known)

    def close(self) -> None:
        """End the writer."""
        self._sink.close()

    def images(self, rows: int, every: int = 0) -> list[bytes]:
        """The inserts of so many rows of a table; or the updates, of one in ``every``, which set ``n`` to 8."""
        info = self._tables[FIRST].info
        made = ({1: i, 2: i % 7, 3: f"name {i}", 4: f"place {i * 7919 % 10_000}"} for i in range(0, rows, every or 1))
        encoder = RowEncoder(info)
        return [encoder.update(row, {**row, 2: 8}) if every else encoder.insert(row, row[1]) for row in made]

    def write(self, ids: Sequence[int], op: Op, images: Sequence[bytes]) -> int:
        """Commit a step with these images for each of the tables; returns its commit_ts."""
        ts = self._sink.commit_ts + 10
        step = RowsStep(ts - 10, ts, len(ids) * len(images), {i: self._tables[i] for i in ids}, applied=self._applied)
        self._sink.apply(_events(ids, ts, int(self._known.newest_version), op, images), step, StageClock())
        return ts

    def publish(self, ids: Sequence[int], op: Op, images: Sequence[bytes]) -> float:
        """``write``, and the seconds from its begin until the mirrors have it."""
        begun = time.monotonic()
        self.await_mirrors(self.write(ids, op, images))
        return time.monotonic() - begun

    def await_mirrors(self, ts: int) -> None:
        """Wait until a moment at ``ts`` is published."""
        while (moment := self._snapshots.load()) is None or moment.resolved_ts < ts:
            time.sleep(0.02)


def measure_mirrors() -> bool:
    """Fill the tables, then change all of them, and then a few; returns whether the goals were met."""
    count = max(GOALS)
    with tempfile.TemporaryDirectory(prefix="mirrors-") as lake:
        filled = FilledLake(lake, count)
        inserts, updates = filled.images(ROWS), filled.images(ROWS, ROWS // CHANGES)
        begun = time.monotonic()
        for at in range(FIRST, FIRST + count, _AT_ONCE):
            filled.publish(range(at, at + _AT_ONCE), Op.INSERT, inserts)
        print(f"{count:,} tables of {ROWS:,} rows filled in {time.monotonic() - begun:.0f} s", flush=True)
        reached = True
        for some, goal in GOALS.items():
            seconds = filled.publish(range(FIRST, FIRST + some), Op.UPDATE, updates)
            print(f"{CHANGES} changes in each of {some:,} tables published in {seconds:.1f} s (goal: at most {goal:.0f})", flush=True)
            reached &= seconds <= goal
        filled.close()
        files = sum(1 for _ in Path(lake).rglob("*"))
        print(f"{files:,} files in the lake")
    return reached


def measure_read(spark: SparkSession) -> bool:
    """Read a large table of a large ledger, with changes that no mirror has; returns whether the goal was met."""
    with tempfile.TemporaryDirectory(prefix="read-") as lake:
        filled = FilledLake(lake, LEDGER_ROWS // READ_ROWS)
        inserts, updates = filled.images(READ_ROWS), filled.images(READ_ROWS, READ_ROWS // UNMERGED)
        begun, ts = time.monotonic(), 0
        for at in range(FIRST, FIRST + LEDGER_ROWS // READ_ROWS):
            for row in range(0, READ_ROWS, _PIECE):
                ts = filled.write([at], Op.INSERT, inserts[row : row + _PIECE])
        filled.await_mirrors(ts)
        filled.close()
        filled.open(None)
        filled.write([FIRST], Op.UPDATE, updates)
        filled.close()
        print(f"{LEDGER_ROWS:,} changes written and published in {time.monotonic() - begun:.0f} s", flush=True)
        times = [_read(spark, lake) for _ in range(6)]
        seconds = statistics.median(times[1:])
        print(
            f"a table of {READ_ROWS:,} rows with {UNMERGED:,} unmerged changes in a ledger of {LEDGER_ROWS:,}: all columns read in {seconds:.2f} s "
            f"(goal: at most {READ_GOAL:.0f}), {min(times[1:]):.2f} to {max(times[1:]):.2f}; the first time {times[0]:.2f} s"
        )
    return seconds <= READ_GOAL


def _read(spark: SparkSession, lake: str) -> float:
    """Seconds for the whole table ``t0``, from making the lake."""
    begun = time.monotonic()
    row = (
        Lake(spark, lake)
        .table("d.t0")
        .selectExpr("count(*)", "count_if(n = 8)", "sum(id)", "sum(length(name))", "sum(length(place))")
        .collect()[0]
    )
    seconds = time.monotonic() - begun
    assert list(row)[:3] == [READ_ROWS, UNMERGED, READ_ROWS * (READ_ROWS - 1) // 2], row
    return seconds


def _events(ids: Sequence[int], ts: int, version: int, op: Op, images: Sequence[bytes]) -> pa.Table:
    count = len(ids) * len(images)
    made = {
        "commit_ts": np.full(count, ts),
        "start_ts": np.full(count, ts - 1),
        "seq": np.arange(count),
        "op": np.full(count, int(op)),
        "table_id": np.repeat(np.array(ids), len(images)),
        "schema_version": np.full(count, version),
        "row": [*images] * len(ids),
    }
    return pa.Table.from_arrays(
        [pa.array(made[f.name], f.type) if f.name in made else pa.nulls(count, f.type) for f in ROW_EVENT], schema=ROW_EVENT
    )
