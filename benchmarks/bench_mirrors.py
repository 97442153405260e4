"""Mirrors of many tables: how long it takes until the changes of some are published, without Spark. A part of ``bench_lake``."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.codec.rowwriter import encode_insert, encode_update
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
_AT_ONCE = 50
"""Tables that a step fills."""
_KEY = {**INT, "Tp": 8, "Flag": 4099, "Flen": 20}


def measure_mirrors() -> bool:
    """Fill the tables, then change all of them, and then a few; returns whether the goals were met."""
    count, first = max(GOALS), 100
    made = [
        table(first + n, f"t{n}", [column(1, "id", _KEY), column(2, "n"), column(3, "name", VARCHAR), column(4, "place", VARCHAR)])
        for n in range(count)
    ]
    known = history(*(job(number, 3, one) for number, one in enumerate(made, 1)))
    tables = {i: at for i in range(first, first + count) if (at := known.table_at(i, known.newest_version)) is not None}
    info = tables[first].info
    rows = [{1: i, 2: i % 7, 3: f"name {i}", 4: f"place {i * 7919 % 10_000}"} for i in range(ROWS)]
    inserts = [encode_insert(info, row, row[1]) for row in rows]
    updates = [encode_update(info, row, {**row, 2: 8}) for row in rows[:: ROWS // CHANGES]]
    with tempfile.TemporaryDirectory(prefix="mirrors-") as lake:
        sink, snapshots = LakeSink(LakeSettings(lake, 1, mirror_interval=0.0)), Snapshots(lake)
        sink.open(lambda _, ts: 5 if ts is None else ts, lambda: known)
        applied = None
        for step in steps_of(known, {}):
            sink.apply_ddl(decided(step, known, Selection.of(ApplyConfig())), known, {})
            applied = step.applied
        assert applied is not None

        def publish(ids: Sequence[int], op: Op, images: Sequence[bytes]) -> float:
            """Seconds from the begin of a step until the mirrors have it."""
            begun, ts = time.monotonic(), sink.commit_ts + 10
            step = RowsStep(ts - 10, ts, len(ids) * len(images), {i: tables[i] for i in ids}, applied=applied)
            sink.apply(_events(ids, ts, int(known.newest_version), op, images), step, StageClock())
            while (moment := snapshots.load()) is None or moment.resolved_ts < ts:
                time.sleep(0.02)
            return time.monotonic() - begun

        begun = time.monotonic()
        for at in range(first, first + count, _AT_ONCE):
            publish(range(at, at + _AT_ONCE), Op.INSERT, inserts)
        print(f"{count:,} tables of {ROWS:,} rows filled in {time.monotonic() - begun:.0f} s", flush=True)
        reached = True
        for some, goal in GOALS.items():
            seconds = publish(range(first, first + some), Op.UPDATE, updates)
            print(f"{CHANGES} changes in each of {some:,} tables published in {seconds:.1f} s (goal: at most {goal:.0f})", flush=True)
            reached &= seconds <= goal
        sink.close()
        files = sum(1 for _ in Path(lake).rglob("*"))
        print(f"{files:,} files in the lake")
    return reached


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
