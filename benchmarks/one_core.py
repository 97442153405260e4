"""The common part of the decoding benchmarks: a recorded case in memory, timed on one core, without a Pump and without Spark."""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.schemas.events import BinlogType
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import RAW

ROOT = Path(__file__).parents[1]
SLICE = 2000
"""Transactions at a time, about what a Pump's messages are gathered to."""


@dataclass(frozen=True, slots=True)
class Decodable:
    """A recorded case."""

    payloads: list[bytes]
    transactions: pa.RecordBatch
    """Its transactions (``RAW``), in order."""
    history: SchemaHistory


def begun(description: str, repeat: int) -> tuple[Decodable, int]:
    """The case that the command line names, and how often each piece of work is timed, by default ``repeat`` times."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--case", type=Path, default=ROOT / "tests" / "golden" / "bench")
    options.add_argument("--repeat", type=int, default=repeat)
    args = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    case = load(args.case)
    payloads = [payload for pump in case.pumps for payload in pump]
    commits = [(b.commit_ts, b.start_ts, p) for p in payloads if (b := pb.Binlog.FromString(p)).tp == BinlogType.COMMIT]
    rows = [{"pump": "p", "start_ts": s, "commit_ts": c, "bucket": 0, "payload": p} for c, s, p in sorted(commits)]
    history = HistoryFeed(str(case.history), None, None).refresh()
    return Decodable(payloads, pa.RecordBatch.from_pylist(rows, schema=RAW), history), args.repeat


def parse(payloads: list[bytes]) -> None:
    """What every reader has to do at least."""
    for payload in payloads:
        pb.PrewriteValue.FromString(pb.Binlog.FromString(payload).prewrite_value)


def medians(work: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = [], []
    for _ in range(repeat):
        began, began_cpu = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    return statistics.median(wall), statistics.median(cpu)
