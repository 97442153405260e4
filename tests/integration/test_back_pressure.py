"""One of three Pumps is dead while the others are written to: what waits is bounded, also over a restart, and all of it comes out in bounded steps."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery, tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import COLLECTS
from pyspark_tidb_binlog.sinks.apply import collected_upto
from tests.support.fine_pump import FinePump
from tests.support.pump_writes import CLUSTER, config_of, fake, send
from tests.support.spark_queries import end, rows_of, run, until

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

MIB = 1 << 20
ALL, PENDING, BATCH = 6 * MIB, 3 * MIB // 2, MIB
VALUE, STEP = 32 << 10, 64 << 10


@dataclass
class Released:
    """What came out: start_ts by commit_ts, and the bytes of each batch."""

    found: dict[int, bytes] = field(default_factory=dict)
    resolved: int = 0
    sizes: list[int] = field(default_factory=list)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = rows_of(frame)
        self.sizes.append(sum(len(row["payload"] or b"") for row in rows))
        for row in rows:
            if row["control"] == ControlType.RESOLVED:
                self.resolved = max(self.resolved, row["commit_ts"])
            else:
                value = binlog_pb2.Binlog.FromString(row["payload"]).prewrite_value
                assert self.found.setdefault(row["commit_ts"], value[:16]) == value[:16]


def reported(query: StreamingQuery) -> dict[str, Any]:
    """What the source says of itself in the query's progress."""
    progress = query.lastProgress
    found = json.loads(progress.sources[0].latestOffset or "null") if progress is not None else None
    return found or {}


def is_full(query: StreamingQuery) -> bool:
    return bool(reported(query).get("holding"))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[PumpProcess]]:
    made = [FinePump(config_of(tmp_path, number), span=STEP) for number in (1, 2, 3)]
    for pump in made:
        pump.start()
    yield made
    for pump in made:
        pump.stop()


def transaction(ms: int) -> tuple[bytes, bytes, bytes]:
    """The Prewrite and the Commit, and how its value begins."""
    value = os.urandom(VALUE)
    written = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=tso(ms), prewrite_key=b"k", prewrite_value=value)
    done = binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=tso(ms), commit_ts=tso(ms, 1))
    return written.SerializeToString(), done.SerializeToString(), value[:16]


@pytest.mark.shows("spark.max-bytes-per-trigger", "spark.max-pending-bytes", "drainer gotcha 1")
def test_a_dead_pump_bounds_what_the_others_are_read_ahead(spark: SparkSession, tmp_path: Path, three: list[PumpProcess]) -> None:
    pumps = ",".join(pump.address for pump in three)
    source = SourceConfig(pumps, CLUSTER, "raw", 0, max_bytes_per_trigger=BATCH, max_pending_bytes=PENDING)
    taken, wanted = Released(), {}
    for pump in three:
        send(pump, fake(tso(1000)))
    query = run(spark, source, taken, tmp_path)
    until(query, lambda: taken.resolved >= tso(1000))
    three[2].kill()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(contextlib.closing(PumpWriter(pump.address, CLUSTER, tls=None))) for pump in three[:2]]
        for number in range(ALL // VALUE):
            ms = 2000 + 20 * number
            *records, head = transaction(ms)
            for record in records:
                writers[number % 2].write(record)
            wanted[tso(ms, 1)] = head
    last = 2000 + 20 * (ALL // VALUE)
    for pump in three[:2]:
        send(pump, fake(tso(last)))
    until(query, lambda: is_full(query))
    full = reported(query)
    assert PENDING <= full["pending_bytes"] <= PENDING + 2 * STEP + 2 * VALUE
    assert full["held_by"] == three[2].address and full["unread_bytes"] > ALL / 2
    batches = len(taken.sizes)
    time.sleep(1)
    assert len(taken.sizes) == batches, "nothing more is read, and nothing turns in vain"
    end(query, tmp_path / "stop")

    three[2].start()
    query = run(spark, source, taken, tmp_path)  # the third Pump is there, and says nothing new
    until(query, lambda: three[2].address in reported(query).get("pumps", {}))
    assert sum(taken.sizes) == 0 and PENDING - STEP <= reported(query)["pending_bytes"] <= PENDING + 3 * STEP + 2 * VALUE

    send(three[2], fake(tso(last)))
    until(query, lambda: taken.resolved >= tso(last))
    # What Spark shows may be of the batch before.
    until(query, lambda: reported(query)["pending_bytes"] <= 3 * (STEP + VALUE))
    end(query, tmp_path / "stop")
    assert taken.found == wanted
    assert max(taken.sizes) <= BATCH + 3 * (STEP + 2 * VALUE)
    assert query.lastProgress is not None and query.lastProgress.stateOperators[0].numRowsTotal <= 40


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_batch_far_above_the_limit_does_not_come_to_the_driver(spark: SparkSession, tmp_path: Path, delivery: Delivery) -> None:
    """A batch may be one transaction of gigabytes, in values of some megabytes each. It is then read whole where it is applied."""
    found, resolved, fits = set[int](), [0], set[tuple[bool, bool]]()

    def values(frame: DataFrame, most: int | None) -> list[bytes]:
        spark.sparkContext.setLocalProperty(COLLECTS, None if most is None else str(most))  # type: ignore[arg-type]
        try:
            return frame.toArrow().column("transactions").to_pylist()
        finally:
            spark.sparkContext.setLocalProperty(COLLECTS, None)  # type: ignore[arg-type]

    def take(frame: DataFrame, batch_id: int) -> None:
        few, fitting = values(frame, MIB), collected_upto(frame, 1 << 30, MIB) is not None
        assert sum(map(len, few)) <= MIB and (b"" not in few) == fitting
        whole = values(frame, None)
        assert b"" not in whole and (not fitting or sorted(few) == sorted(whole))
        fits.add((fitting, sum(map(len, whole)) > MIB))
        for row in rows_of(frame):
            if row["control"] == ControlType.RESOLVED:
                resolved[0] = max(resolved[0], row["commit_ts"])
            else:
                found.add(row["commit_ts"])

    def inserted(rows: int) -> bytes:
        images = [os.urandom(3000) for _ in range(rows)]
        value = binlog_pb2.PrewriteValue(mutations=[binlog_pb2.TableMutation(table_id=5, inserted_rows=images, sequence=[0] * rows)])
        return value.SerializeToString()

    pump = PumpServer(config_of(tmp_path, 1))
    pump.start()
    try:
        query = run(spark, SourceConfig(pump.address, CLUSTER, str(delivery), 0), take, tmp_path)
        for ms in (1000, 2000, 3000, 4000):
            value = inserted(4000 if ms in (2000, 3000) else 4)
            _, commit, _ = transaction(ms)
            prewrite = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=tso(ms), prewrite_key=b"k", prewrite_value=value)
            for record in (prewrite.SerializeToString(), commit, fake(tso(ms + 10))):
                send(pump, record)
            until(query, lambda ms=ms: resolved[0] >= tso(ms + 10))  # type: ignore[misc]
        end(query, tmp_path / "stop")
    finally:
        pump.stop()
    assert found == {tso(ms, 1) for ms in (1000, 2000, 3000, 4000)}
    assert fits == {(True, False), (False, True)}
