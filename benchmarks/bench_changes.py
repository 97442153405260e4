"""Times the decoding of binlogs to changes (``format("tidb_binlog")``), and a Drainer's decoding of the same binlogs, on one core.

    python -m benchmarks.bench_changes [--case tests/golden/bench] [--repeat 3]

Prints medians and rates of three pieces of work: all tables with their images as VARIANT; one table with its own columns; and the common first step, also
a Drainer's, the row events and their images as Arrow columns. No Pump and no Spark run: ``bench`` and ``bench-pump`` measure those. On a busy machine,
compare CPU seconds. Exit code 1 if a goal is missed.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from benchmarks.one_core import SLICE, Decodable, begun, medians, parse
from pyspark_tidb_binlog.binlog_source.changes.change_decoder import ChangeDecoder, DecodedAs
from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions, SchemaEvolution
from pyspark_tidb_binlog.schemas.changes.row_choice import chosen_rows
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable
from pyspark_tidb_binlog.schemas.changes.table_shape import shape_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.decoder import images
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import TRANSACTION

IMAGES = "images, as a Drainer's"
GOALS = {"all tables, VARIANT": 2.5, "one table, its columns": 2.0}
"""Times the CPU seconds of a change's images."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A history that has everything."""

    history: SchemaHistory

    def job(self, job_id: int) -> Job:
        """The job of a DDL binlog."""
        return self.history.jobs[job_id]

    def covering(self, versions: Iterable[int], tables: Mapping[int, int], options: ChangeOptions) -> SchemaHistory:
        """The history."""
        return self.history


@dataclass(slots=True)
class Case:
    """A recorded case."""

    transactions: pa.RecordBatch
    known: Recorded
    rows: dict[NamedTable, int] = field(default_factory=dict)
    """How many changes each table has."""


def case_of(decodable: Decodable) -> Case:
    """The case with its changes counted."""
    case = Case(decodable.transactions, Recorded(decodable.history))
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
    return [rows for part in slices for rows in decoder.changes_of(part)]


def decoded(case: Case) -> None:
    """Row events, and their images as Arrow columns."""
    for begin in range(0, len(case.transactions), SLICE):
        rows = explode(case.transactions.slice(begin, SLICE).select(TRANSACTION.names)).rows
        newest = np.full(len(rows), int(case.known.history.newest_version))
        for group in chosen_rows(rows, newest, case.known.history, lambda table: True, ("insert", "update", "delete")):
            images(group.table, group.ops, group.rows, group.versions)


def main() -> int:
    """Print the measurement."""
    decodable, repeat = begun("time binlogs to changes against a Drainer's images", 3)
    case = case_of(decodable)
    every = sum(case.rows.values())
    table, count = max(case.rows.items(), key=lambda one: one[1])
    history = case.known.history
    shape = shape_of(table, history, int(history.newest_version), InvalidDates.NULL)
    of_table = ChangeOptions(table=table, evolution=SchemaEvolution.IGNORE)
    work: dict[str, tuple[int, Callable[[], object]]] = {
        "protobuf parse": (every, lambda: parse(decodable.payloads)),
        IMAGES: (every, lambda: decoded(case)),
        "all tables, VARIANT": (every, lambda: changed(case, DecodedAs())),
        "one table, its columns": (count, lambda: changed(case, DecodedAs(of_table, shape))),
    }
    timed = {name: (rows, *medians(run, repeat)) for name, (rows, run) in work.items()}
    times = {name: cpu / rows * every / timed[IMAGES][2] for name, (rows, _, cpu) in timed.items()}
    print(f"{len(decodable.payloads)} binlogs, {every} changes, {count} of them of {table}; medians of {repeat}, one core")
    for name, (rows, wall, cpu) in timed.items():
        print(f"  {name:24} {wall:6.3f} s, CPU {cpu:6.3f} s, {rows / cpu:10,.0f} changes a CPU second, {times[name]:.2f} times the images")
    missed = [name for name, goal in GOALS.items() if times[name] > goal]
    goals = ", ".join(f"{name}: {goal:g}" for name, goal in GOALS.items())
    print(f"goals, times the images: {goals}; {'missed by ' + ' and '.join(missed) if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
