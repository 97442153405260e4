"""Times binlogs to changes, as ``format("tidb_binlog")`` gives them, beside what a Drainer decodes of the same binlogs, on one core.

    python -m benchmarks.bench_changes [--case tests/golden/bench] [--repeat 3]

Prints the medians and rates of: all tables with their images as VARIANT; one table with its own columns; and what both begin with, as a Drainer
does, the row events and their images as Arrow columns. No Pump and no Spark: what these cost is ``bench`` and ``bench-pump``.
CPU seconds are the ones to compare on a busy machine. Ends with exit code 1 if a goal is missed.
"""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.bench_decode import medians, parse, payloads_of
from pyspark_tidb_binlog.binlog_source.changes.change_decoder import ChangeDecoder, DecodedAs
from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions, InvalidDates, SchemaEvolution
from pyspark_tidb_binlog.binlog_source.changes.change_rows import before_and_after
from pyspark_tidb_binlog.binlog_source.changes.row_choice import chosen_rows
from pyspark_tidb_binlog.binlog_source.changes.table_names import NamedTable
from pyspark_tidb_binlog.binlog_source.changes.table_shape import shape_of
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobReader
from pyspark_tidb_binlog.schemas.events import BinlogType
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import RAW, TRANSACTION

ROOT = Path(__file__).parents[1]
SLICE = 2000
"""Transactions at a time, about what a Pump's messages are gathered to."""
IMAGES = "images, as a Drainer's"
GOALS = {"all tables, VARIANT": 2.5, "one table, its columns": 2.0}
"""Times the CPU seconds of a change's images."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A history that has everything."""

    history: SchemaHistory

    def job(self, job_id: int, timeout: float) -> Job:
        """The job of a DDL binlog."""
        return self.history.jobs[job_id]

    def covering(self, versions: Iterable[int], table_ids: Iterable[int], options: ChangeOptions) -> SchemaHistory:
        """The history."""
        return self.history


@dataclass(slots=True)
class Case:
    """A recorded case."""

    payloads: list[bytes]
    transactions: pa.RecordBatch
    known: Recorded
    rows: dict[NamedTable, int] = field(default_factory=dict)
    """How many changes each table has."""


def case_of(folder: Path) -> Case:
    """The case in ``folder``, in memory."""
    payloads = [p for path in sorted(folder.glob("pump-*.binlogs.gz")) for p in payloads_of(path)]
    commits = [(b.commit_ts, b.start_ts, p) for p in payloads if (b := pb.Binlog.FromString(p)).tp == BinlogType.COMMIT]
    commits.sort()
    rows = [{"pump": "p", "start_ts": s, "commit_ts": c, "bucket": 0, "payload": p} for c, s, p in commits]
    history = SchemaHistory.of(JobReader().read(json.loads(gzip.decompress((folder / "ddl_history.json.gz").read_bytes()))))
    case = Case(payloads, pa.RecordBatch.from_pylist(rows, schema=RAW), Recorded(history))
    for batch in changed(case, DecodedAs()):
        for database, table, op in zip(*(batch.column(name).to_pylist() for name in ("database", "table", "op")), strict=True):
            if op != "ddl":
                name = NamedTable(database, table)
                case.rows[name] = case.rows.get(name, 0) + 1
    return case


def changed(case: Case, decoded_as: DecodedAs) -> list[pa.RecordBatch]:
    """The changes of the case, a slice of transactions at a time."""
    first = int(case.transactions.column("commit_ts")[0].as_py())
    decoder = ChangeDecoder(decoded_as, case.known, int(case.known.history.version_at(first)))
    slices = (case.transactions.slice(begin, SLICE) for begin in range(0, len(case.transactions), SLICE))
    return [rows for part in slices if (rows := decoder.changes_of(part)) is not None]


def decoded(case: Case) -> None:
    """Row events, and their images as Arrow columns."""
    for begin in range(0, len(case.transactions), SLICE):
        rows = explode(case.transactions.slice(begin, SLICE).select(TRANSACTION.names)).rows
        newest = np.full(len(rows), int(case.known.history.newest_version))
        for group in chosen_rows(rows, newest, case.known.history, lambda table: True, ("insert", "update", "delete")):
            before_and_after(group)


def main() -> int:
    """Print the measurement."""
    options = argparse.ArgumentParser(description="time binlogs to changes against the protobuf parse")
    options.add_argument("--case", type=Path, default=ROOT / "tests" / "golden" / "bench")
    options.add_argument("--repeat", type=int, default=3)
    args = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    case = case_of(args.case)
    every = sum(case.rows.values())
    table, count = max(case.rows.items(), key=lambda one: one[1])
    history = case.known.history
    shape = shape_of(table, history, int(history.newest_version), InvalidDates.NULL)
    of_table = ChangeOptions(table=table, evolution=SchemaEvolution.IGNORE)
    work: dict[str, tuple[int, Callable[[], object]]] = {
        "protobuf parse": (every, lambda: parse(case.payloads)),
        IMAGES: (every, lambda: decoded(case)),
        "all tables, VARIANT": (every, lambda: changed(case, DecodedAs())),
        "one table, its columns": (count, lambda: changed(case, DecodedAs(of_table, shape))),
    }
    timed = {name: (rows, *medians(run, args.repeat)) for name, (rows, run) in work.items()}
    times = {name: cpu / rows * every / timed[IMAGES][2] for name, (rows, _, cpu) in timed.items()}
    print(f"{len(case.payloads)} binlogs, {every} changes, {count} of them of {table}; medians of {args.repeat}, one core")
    for name, (rows, wall, cpu) in timed.items():
        print(f"  {name:24} {wall:6.3f} s, CPU {cpu:6.3f} s, {rows / cpu:10,.0f} changes a CPU second, {times[name]:.2f} times the images")
    missed = [name for name, goal in GOALS.items() if times[name] > goal]
    goals = ", ".join(f"{name}: {goal:g}" for name, goal in GOALS.items())
    print(f"goals, times the images: {goals}; {'missed by ' + ' and '.join(missed) if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
