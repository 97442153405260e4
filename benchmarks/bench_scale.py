"""How throughput and lag change with Pumps, cores and parts, on a standalone Spark of two worker processes, and a model of it.

    python -m benchmarks.bench_scale [--case DIR] [--repeat 1] [--lag-seconds 20] [--rate 200] [--layouts NAME ...]

Each layout runs in a process of its own, whose descendants have only its cores. In ``1 core`` and ``2 cores``, Spark, Pumps and target share the cores; in
``1 + 1``, Spark has one core, Pumps and target the other. The backlog is the case ``bench``, dealt to 1, 2 or 4 Pumps and applied in 2 or 4 parts, as in
``bench_backlog``: the second run in the session counts, and the target is compared at the end. CPU is sampled by role of the process and stage of the
batch. Lag is measured as in ``bench_lag``. At the end: the constants of ``scale_model`` (from the backlog with 2 Pumps and 2 parts on all cores), the
model's distance from each measured point, and its forecast for larger machines.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.bench_backlog import ROOT, bulk_limit, compare, print_settings
from benchmarks.bench_lag import under_load
from benchmarks.made_cases import spread
from benchmarks.processes import cpu_seconds
from benchmarks.scale_model import PLAN, READ, STAGES, WRITE, Costs, Shape, Spent, StageCost, costs_of, forecast
from benchmarks.standalone_spark import StandaloneSpark
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.lag import percentile
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import RehearsalUpstream, prepare_target, settings_for, staged
from pyspark_tidb_binlog.jobs.spark.spark_session import FRUGAL, build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.mysql.session import connect

_SAMPLE_SECONDS = 0.2
_STAGE_OF = {"read": READ, "history": READ, "plan": PLAN, "apply": WRITE}
"""What progress names -> the stage of the model; anything else is between batches."""
_COMMITS = 300
_SMALL = 4 << 20
"""``max-bytes-per-trigger`` of the small batches: about 25,000 row events each."""
_TARGET, _PUMPS, _UPSTREAM = "MariaDB", "Pumps", "workload"
_BETWEEN = "between"
BUCKETS = 8
"""Pairing buckets, if a point does not say otherwise."""
_TASKS = "spark.sql.shuffle.partitions"
"""Tasks, and stores, of the pairing: each has two buckets."""


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One setting of a backlog."""

    delivery: str
    pumps: int
    parts: int
    max_bytes: int = SourceConfig().max_bytes_per_trigger
    atomic_rows: int = ApplyConfig().atomic_rows
    buckets: int = BUCKETS

    def config(self) -> DrainerConfig:
        """The Drainer's."""
        source = SourceConfig(delivery=self.delivery, max_bytes_per_trigger=self.max_bytes)
        return DrainerConfig(source=source, apply=ApplyConfig(on_finding="stop", parts=self.parts, atomic_rows=self.atomic_rows))


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """One setting of the steady load."""

    delivery: str
    pumps: int
    buckets: int = BUCKETS


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Which cores Spark has, and which Pumps and target, as places among those of the benchmark; and what is measured on them."""

    spark: tuple[int, ...]
    others: tuple[int, ...]
    points: tuple[Point, ...]
    loads: tuple[Load, ...] = ()


_REFERENCE = {delivery: Point(delivery, 2, 2) for delivery in ("sorted", "raw")}
"""Where the constants of the model come from, on ``_ALL``."""
_BY_DRIVER = Point("sorted", 2, 2, _SMALL)
_CUT = {delivery: Point(delivery, 2, 2, _SMALL, atomic_rows=1000) for delivery in _REFERENCE}
"""The same backlog in many batches, each applied in parts."""
_ALL, _ONE, _APART = "2 cores", "1 core", "1 + 1"
LAYOUTS = {
    _ALL: Layout(
        (0, 1),
        (0, 1),
        (
            *(Point("sorted", pumps, parts) for pumps in (1, 2, 4) for parts in (2, 4)),
            *(Point("raw", pumps, 2) for pumps in (1, 2, 4)),
            Point("raw", 2, 4),
            Point("raw", 2, 2, buckets=2),
            _BY_DRIVER,
            *_CUT.values(),
            dataclasses.replace(_CUT["raw"], buckets=2),
        ),
        (Load("sorted", 1), Load("sorted", 2), Load("sorted", 4), Load("raw", 2), Load("raw", 2, buckets=2)),
    ),
    _ONE: Layout(
        (0,),
        (0,),
        (*(Point("sorted", pumps, parts) for pumps in (1, 2, 4) for parts in (2, 4)), Point("raw", 2, 2)),
        (Load("sorted", 2),),
    ),
    _APART: Layout((0,), (1,), (Point("sorted", 2, 2), Point("sorted", 2, 4), Point("raw", 2, 2))),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Backlog:
    """What was measured at one point."""

    point: Point
    seconds: float
    """From ``query.start()`` to the last checkpoint."""
    events: int
    batches: int
    stages: Mapping[str, float]
    """Wall-clock seconds by stage."""
    cpu: Mapping[str, Mapping[str, float]]
    """CPU seconds by stage and role."""

    @property
    def rate(self) -> float:
        """Row events a second."""
        return self.events / self.seconds

    @property
    def in_stages(self) -> float:
        """Wall-clock seconds of all stages."""
        return sum(self.stages.get(stage, 0.0) for stage in STAGES)

    def spent(self) -> Spent:
        """What the model takes from it."""
        return Spent(self.events, self.batches, {stage: self._micros(stage) for stage in STAGES}, self.in_stages, self.seconds)

    def _micros(self, stage: str) -> StageCost:
        each = {role: 1e6 * seconds for role, seconds in self.cpu.get(stage, {}).items()}
        target, pumps = each.pop(_TARGET, 0.0), each.pop(_PUMPS, 0.0)
        return StageCost(sum(each.values()), target, pumps)

    @classmethod
    def parsed(cls, found: Mapping[str, Any]) -> "Backlog":
        """From JSON."""
        return cls(**{**found, "point": Point(**found["point"])})


@dataclasses.dataclass(frozen=True, slots=True)
class Lag:
    """What was measured under one steady load."""

    load: Load
    rate: float
    p50: float
    p99: float
    batches: int
    batch_events: float
    """Median of a batch."""
    batch_seconds: float
    """Median of a batch's own stages."""
    cores: float
    """CPU seconds per second, without the upstream."""

    @classmethod
    def parsed(cls, found: Mapping[str, Any]) -> "Lag":
        """From JSON."""
        return cls(**{**found, "load": Load(**found["load"])})


@dataclasses.dataclass(slots=True)
class Measured:
    """What one layout gave."""

    backlogs: list[Backlog] = dataclasses.field(default_factory=list)
    lags: list[Lag] = dataclasses.field(default_factory=list)
    limits: list[float] = dataclasses.field(default_factory=list)
    """Seconds that the target takes for the final rows in bulk, each time."""
    commit: float = 0.0
    """Seconds of a commit of one row."""

    def at(self, point: Point) -> Backlog | None:
        """The run at ``point`` whose time is the median; None if it was not run."""
        runs = sorted((run for run in self.backlogs if run.point == point), key=lambda run: run.seconds)
        return runs[len(runs) // 2] if runs else None

    def take(self, line: str) -> None:
        """One line of what the layout's process prints."""
        kind, found = json.loads(line)
        match kind:
            case "backlog":
                self.backlogs.append(Backlog.parsed(found))
            case "lag":
                self.lags.append(Lag.parsed(found))
            case "limit":
                self.limits.append(found)
            case "commit":
                self.commit = found


def main() -> None:
    """Measure every layout in a process of its own, print what each gave, then the model."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--case", type=Path, default=ROOT / "tests" / "golden" / "bench")
    options.add_argument("--repeat", type=int, default=1, help="runs of each backlog, of which the median counts")
    options.add_argument("--rate", type=float, default=200.0, help="transactions a second of the steady load")
    options.add_argument("--lag-seconds", type=float, default=20.0, help="how long each is measured")
    options.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    options.add_argument("--inside", choices=LAYOUTS, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.inside:
        inside(LAYOUTS[given.inside], given)
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed")
    found = {name: outside(name, cores) for name in given.layouts}
    for name, measured in found.items():
        for line in tables(name, measured):
            print(line)
    for line in modelled(found):
        print(line)


def outside(name: str, cores: Sequence[int]) -> Measured:
    """Run this program once more for one layout, on its cores only, and collect what it prints."""
    layout, measured = LAYOUTS[name], Measured()
    spark = {cores[place] for place in layout.spark}
    command = [sys.executable, *sys.orig_argv[1:], "--inside", name]
    environ = os.environ | FRUGAL | {"PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environ, preexec_fn=lambda: os.sched_setaffinity(0, spark)
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("["):
                measured.take(line)
                print(f"{name}: {line.strip()}", file=sys.stderr, flush=True)
            else:
                print(line, end="", flush=True)
    if process.returncode:
        raise SystemExit(f"layout {name!r} failed with exit code {process.returncode}")
    return measured


# In the process of a layout.


def inside(layout: Layout, given: argparse.Namespace) -> None:
    """Measure one layout; prints a JSON array of kind and content per line."""
    spare = sorted(_all_cores())
    others = {spare[place] for place in layout.others}
    with contextlib.ExitStack() as stack:
        work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-", ignore_cleanup_errors=True)))
        with on_cores(others):
            target = stack.enter_context(PrivateMariaDB()).target()
        cluster = stack.enter_context(StandaloneSpark(work_dir))
        spark = build_session("bench scale", master=cluster.url, extra=cluster.settings())
        stack.callback(spark.stop)
        print_settings(target, DrainerConfig())
        backlogs(spark, layout, given, target, others)
        tell("commit", commit_seconds(target))
        for wanted in layout.loads:
            tell("lag", dataclasses.asdict(lag(spark, wanted, given)))


def backlogs(spark: SparkSession, layout: Layout, given: argparse.Namespace, target: TargetConfig, others: set[int]) -> None:
    """Every point of the layout, those with the same Pumps one after another, and the target's limit with each number of Pumps."""
    case, warm = load(given.case), False
    for pumps in sorted({point.pumps for point in layout.points}, key=lambda count: (count != 2, count)):
        dealt = spread(case, pumps)
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch, contextlib.ExitStack() as stack:
            with on_cores(others):
                stage = stack.enter_context(staged(dealt, Path(scratch)))
            for _ in feed(dealt, stage.addresses):
                pass
            if not warm:
                for point in _REFERENCE.values():
                    one(spark, stage, point, target)
                warm = True
            for _ in range(given.repeat):
                for point in layout.points:
                    if point.pumps == pumps:
                        tell("backlog", dataclasses.asdict(one(spark, stage, point, target)))
                tell("limit", bulk_limit(target, DrainerConfig()))


def one(spark: SparkSession, stage: RehearsalUpstream, point: Point, target: TargetConfig) -> Backlog:
    """Replicate what is in the Pumps into an emptied target, and compare."""
    config = point.config()
    spark.conf.set(_TASKS, point.buckets // 2)
    prepare_target(target, config, stage.case.databases, drop=True)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        replication = Replication(spark, settings_for(stage, config, target, Path(scratch)))
        with cpu_by_stage(replication) as cpu:
            with replication:
                while not replication.reached(stage.case.end_ts):
                    time.sleep(0.005)
                seconds = time.monotonic() - replication.started_at
                reports = [report for report in replication.reports if report.row_events]
        outcome = compare(stage.case.directory, target)
        if outcome is not None and outcome[1]:
            raise SystemExit(f"the target differs: {outcome[1]}")
    stages: dict[str, float] = {}
    for report in reports:
        for name, spent in report.seconds.items():
            name = PLAN if name == "plan" else name
            stages[name] = stages.get(name, 0.0) + spent
    stages[_BETWEEN] = seconds - sum(stages.values())
    return Backlog(point, seconds, sum(report.row_events for report in reports), len(reports), stages, cpu)


@contextlib.contextmanager
def cpu_by_stage(replication: Replication) -> Iterator[dict[str, dict[str, float]]]:
    """CPU seconds of the processes by stage and role while the block runs; time between two samples counts for the stage at its start."""
    spent: dict[str, dict[str, float]] = {}
    ended = threading.Event()

    def sample() -> None:
        stage, before = _BETWEEN, cpu_seconds()
        while True:
            over = ended.wait(_SAMPLE_SECONDS)
            now = cpu_seconds()
            here = spent.setdefault(stage, {})
            for role, seconds in now.items():
                here[role] = here.get(role, 0.0) + seconds - before.get(role, 0.0)
            if over:
                return
            stage, before = _STAGE_OF.get(replication.progress().holding, _BETWEEN), now

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield spent
    finally:
        ended.set()
        thread.join()


def commit_seconds(target: TargetConfig) -> float:
    """What a transaction of one row costs on one connection: the least that any batch pays at the target."""
    with connect(target, ApplyConfig()) as session:
        session.execute("CREATE TABLE g_bench.commits (id INT PRIMARY KEY)")
        begun = time.monotonic()
        for number in range(_COMMITS):
            session.begin()
            session.execute(f"INSERT INTO g_bench.commits VALUES ({number})")
            session.commit()
        return (time.monotonic() - begun) / _COMMITS


def lag(spark: SparkSession, wanted: Load, given: argparse.Namespace) -> Lag:
    """The steady load into a target of its own: all on the cores of this process."""
    config = DrainerConfig(apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery=wanted.delivery))
    spark.conf.set(_TASKS, wanted.buckets // 2)
    steady = WorkloadConfig(rate=given.rate, sessions=16, ddl_every=0)
    with PrivateMariaDB() as server:
        run = under_load(spark, config, server.target(), steady, given.lag_seconds / 2, given.lag_seconds, wanted.pumps)
    return Lag(
        wanted,
        run.rate,
        percentile(run.lags, 0.5),
        percentile(run.lags, 0.99),
        len(run.batches),
        statistics.median([batch.row_events for batch in run.batches] or [0]),
        statistics.median([sum(batch.seconds.values()) for batch in run.batches] or [0.0]),
        sum(share for role, share in run.cpu.items() if role != _UPSTREAM),
    )


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """What this thread starts in the block has these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _all_cores() -> set[int]:
    """The cores of the program that started this one."""
    return os.sched_getaffinity(os.getppid())


def tell(kind: str, found: object) -> None:
    """One line for the program that started this one."""
    print(json.dumps([kind, found]), flush=True)


# What is printed.


def tables(name: str, measured: Measured) -> Iterator[str]:
    """What was measured on one layout."""
    limit = statistics.median(measured.limits)
    events = measured.backlogs[0].events
    yield ""
    yield f"## {name}: the target's bulk limit {limit:.2f} s ({', '.join(f'{s:.2f}' for s in measured.limits)}), commit {1000 * measured.commit:.1f} ms"
    yield (
        f"{'delivery':<9}{'Pumps':>6}{'parts':>6}{'atomic':>8}{'buckets':>8}{'batches':>8}{'s':>7}{'events/s':>10}{'x limit':>8}"
        + "".join(f"{stage:>12}" for stage in (*STAGES, _BETWEEN))
    )
    for point in dict.fromkeys(run.point for run in measured.backlogs):
        run = measured.at(point)
        assert run is not None
        walls = "".join(f"{run.stages.get(stage, 0.0):>12.2f}" for stage in (*STAGES, _BETWEEN))
        yield f"{point.delivery:<9}{point.pumps:>6}{point.parts:>6}{point.atomic_rows:>8}{point.buckets if point.delivery == 'raw' else '':>8}{run.batches:>8}{run.seconds:>7.2f}{run.rate:>10,.0f}{run.seconds / limit:>8.1f}{walls}"
    for lagged in measured.lags:
        yield (
            f"lag, {lagged.load.delivery}, {lagged.load.pumps} Pumps, {lagged.load.buckets} buckets, {lagged.rate:.0f} transactions/s: p50 {lagged.p50:.2f} s, p99 {lagged.p99:.2f} s; "
            f"{lagged.batches} batches of {lagged.batch_events:.0f} row events and {lagged.batch_seconds:.2f} s; {lagged.cores:.2f} cores"
        )
    yield f"({events:,} row events; seconds by stage on the right)"


def modelled(found: Mapping[str, Measured]) -> Iterator[str]:
    """The constants, the model beside what was measured, and what it gives for larger machines."""
    reference = found.get(_ALL, Measured())
    yield ""
    for name, measured in found.items():
        yield from (f"{name}: {line}" for line in batch_costs(measured))
    for delivery in _REFERENCE:
        whole, cut = reference.at(_REFERENCE[delivery]), reference.at(_CUT[delivery])
        if whole is None or cut is None:
            continue
        costs = costs_of(whole.spent(), cut.spent())
        yield ""
        yield f"## model, {delivery}: CPU in microseconds per row event; a batch {costs.in_stages:.2f} s in its stages, {costs.between:.2f} s beside them"
        for stage in STAGES:
            cost = costs.stages[stage]
            yield f"{stage:<12} Spark {cost.spark:6.2f}  target {cost.target:6.2f}  Pumps {cost.pumps:6.2f}"
        buckets = BUCKETS if delivery == "raw" else 0
        for name, measured in found.items():
            yield from compared(name, measured, delivery, costs, buckets)
        yield from larger(costs, buckets)


def batch_costs(measured: Measured) -> Iterator[str]:
    """What one more batch costs: the same backlog in many batches and in few."""
    for point in dict.fromkeys(run.point for run in measured.backlogs if run.point.max_bytes == _SMALL):
        cut = measured.at(point)
        whole = measured.at(Point(point.delivery, point.pumps, point.parts, buckets=point.buckets))
        if cut is not None and whole is not None and cut.batches > whole.batches:
            how = "by the driver" if point.atomic_rows == ApplyConfig().atomic_rows else "in parts"
            seconds = (cut.seconds - whole.seconds) / (cut.batches - whole.batches)
            yield f"{point.delivery}, {point.buckets} buckets, applied {how}: a batch more costs {seconds:.2f} s"


def compared(name: str, measured: Measured, delivery: str, costs: Costs, buckets: int) -> Iterator[str]:
    """Model and measurement of each point of a layout: row events a second while a batch is in its stages."""
    layout = LAYOUTS[name]
    for point in dict.fromkeys(run.point for run in measured.backlogs if run.point.delivery == delivery):
        run = measured.at(point)
        if run is None or point.max_bytes == _SMALL or point.buckets != BUCKETS:
            continue
        shared, events = layout.spark == layout.others, run.events / run.batches
        shape = Shape(point.pumps, point.parts, len(layout.spark), len(layout.others), shared, events, buckets)
        expected = forecast(dataclasses.replace(costs, between=0.0), shape)
        yield (
            f"{name:<8} {point.pumps} Pumps {point.parts} parts: {run.events / run.in_stages:>9,.0f} events/s in the stages, model {expected.rate:>9,.0f} "
            f"({expected.rate * run.in_stages / run.events:.2f}); "
            + ", ".join(f"{stage} by {limit}" for stage, limit in expected.limits.items())
        )


def larger(costs: Costs, buckets: int) -> Iterator[str]:
    """The model for machines that were not measured."""
    shapes = {
        "4 Pumps, 8 cores, 8 parts, target 8 cores": Shape(4, 8, 8, 8),
        "16 Pumps, 64 cores, 2 parts (default), target 64 cores": Shape(16, 2, 64, 64),
        "16 Pumps, 64 cores, 16 parts, target 64 cores": Shape(16, 16, 64, 64),
        "16 Pumps, 64 cores, 64 parts, target 64 cores": Shape(16, 64, 64, 64),
        "16 Pumps, 64 cores, 64 parts, target 8 cores": Shape(16, 64, 64, 8),
        "the same with batches ten times as large": Shape(16, 64, 64, 8, batch_events=8_000_000.0),
    }
    for name, shape in shapes.items():
        expected = forecast(costs, dataclasses.replace(shape, buckets=buckets))
        parts = ", ".join(f"{stage} {micros:.2f}" for stage, micros in expected.micros.items())
        yield f"extrapolated: {name}: {expected.rate:,.0f} events/s; microseconds: {parts}; write limited by {expected.limits[WRITE]}"


if __name__ == "__main__":
    main()
