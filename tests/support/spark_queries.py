"""Spark queries over Pumps: the source and pairing, and what every batch gave; a whole replication, a drainer. Imports pyspark."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.stream import transactions
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs import drainer
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery
from pyspark_tidb_binlog.schemas.packed import unpacked
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from tests.support.drainer_process import RUN_SECONDS
from tests.support.eventually import eventually
from tests.support.pump_writes import CLUSTER

WAIT = 400.0
"""Seconds that a query may take for anything."""


def source_of_pumps(pumps: list[PumpServer], **more: object) -> SourceConfig:
    """These Pumps from the beginning on; ``more``: other settings."""
    config = SourceConfig(",".join(p.address for p in pumps), CLUSTER, starting_commit_ts=0)
    return replace(config, **more)  # type: ignore[arg-type]


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The transactions of a batch, unpacked."""
    return unpacked(frame.toArrow().column("transactions"), TRANSACTION).to_pylist()


class Taken:
    """What a query gave, batch by batch: spans and payloads by commit_ts; a batch that comes again must be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int, int, bytes | None]]] = {}
        self.replays = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted((r["control"] or 0, r["start_ts"], r["commit_ts"], r["payload"]) for r in rows_of(frame))
        if batch_id in self.batches:
            assert self.batches[batch_id] == rows
            self.replays += 1
        self.batches[batch_id] = rows

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(s, c) for _, rows in sorted(self.batches.items()) for control, s, c, _ in rows if control == ControlType.RESOLVED]

    @property
    def resolved(self) -> int:
        return max((c for _, c in self.spans), default=-1)

    @property
    def payloads(self) -> dict[int, bytes | None]:
        found: dict[int, bytes | None] = {}
        # Spark runs a new stream's first batch even when the source has nothing to give yet.
        for rows in filter(None, self.batches.values()):
            (span,) = [(s, c) for control, s, c, _ in rows if control == ControlType.RESOLVED]
            for control, _, commit_ts, payload in rows:
                if control != ControlType.RESOLVED:
                    assert span[0] < commit_ts <= span[1] and commit_ts not in found
                    found[commit_ts] = payload
        return found


def until(query: StreamingQuery, done: Callable[[], bool]) -> None:
    """Wait until ``done``; a query that has failed ends the wait."""

    @functools.wraps(done)
    def done_or_failed() -> bool:
        met = done()
        if not met and query.exception() is not None:
            raise AssertionError(str(query.exception())[:3000])
        return met

    eventually(done_or_failed, seconds=WAIT, seen=lambda: query.lastProgress, pause=0.05)


def end(query: StreamingQuery, stop_file: Path) -> None:
    """Stop while idle."""
    stop_file.touch()
    eventually(lambda: not (query.status["isTriggerActive"] and query.status["isDataAvailable"]), seconds=WAIT, pause=0.05)
    time.sleep(0.5)
    query.stop()
    stop_file.unlink()


def run(spark: SparkSession, source: SourceConfig, taken: Callable[[DataFrame, int], None], directory: Path) -> StreamingQuery:
    """Start a query whose checkpoint and stop file lie in ``directory``."""
    frame = transactions(spark, source, Delivery(source.delivery), StreamOptions(str(directory / "stop"), 20.0))
    return frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(directory / "checkpoint")).start()


def replicated(replication: Replication, end_ts: int, batches: int = 1 << 30) -> bool:
    """Wait for everything up to ``end_ts``, or for that many batches; whether it is everything. What ended the stream is raised as itself."""
    eventually(lambda: len(replication.reports) >= batches or replication.reached(end_ts), seconds=RUN_SECONDS)
    return replication.reached(end_ts)


def drained(spark: SparkSession, flags: Sequence[str], environ: Mapping[str, str], stop: threading.Event | None = None) -> None:
    """A life of the drainer up to ``spark.ending-commit-ts``: the command's own ``main``, in this session instead of a JVM of its own, which takes
    ten seconds of CPU. What ends it is raised as itself; ``flags`` and ``environ`` are those of the command (``drainer_process.py``). ``stop``: set
    instead of a signal.
    """
    root = logging.getLogger()
    level = root.level
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setattr(drainer, "build_session", lambda name, delta: spark)
        patch.setattr(drainer, "stop_on_signals", lambda: stop or threading.Event())
        try:
            assert drainer.main(flags) == 0
        finally:
            root.setLevel(level)
