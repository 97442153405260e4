"""The lake beside the MySQL sink: ``python -m benchmarks.bench_lake [--repeat 3] [--minutes 2] [--rate 500] [--only backlog|lag|mirrors|read|forced]``.

Backlog: the case ``bench`` from two Pumps into an empty MariaDB and into an empty lake, in turns, on one session. Measured as ``bench_backlog`` does.
Prints row events a second of both, and their ratio with its goal; also the time until the mirrors are published, the stream's end included.

Lag: the workload at ``--rate`` transactions a second and one probe row per 100 ms. Lag is the time from a probe's commit upstream until a reader that
follows the lake's log has read the row. Prints p50 and p99 of all and of each minute, with the live files, the versions in the log and the time of a
step, so that an hour shows whether its end is as quick as its begin. Exit code 0 only if every goal is met.

Mirrors: 1,000 tables of 10,000 rows with 50 changes each, and 10 of them, until they are published (``bench_mirrors``).

Read: a table of a million rows with 50,000 changes that its mirror does not have yet, in a ledger of ten million.

Forced: commits of 100 rows to a ledger, each forced to the disk and not, in turns.
"""

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.bench_backlog import ROOT, be_frugal, memory_samples
from benchmarks.bench_backlog import one as mysql_run
from benchmarks.bench_lag import run_for
from benchmarks.bench_mirrors import measure_mirrors, measure_read
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, FileConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs import rehearse
from pyspark_tidb_binlog.jobs.demo import catch_up
from pyspark_tidb_binlog.jobs.lab import small_cluster
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed
from pyspark_tidb_binlog.jobs.lab.emulator.workload import PROBE, WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.lag import LakeWatch, Probes, lags, percentile
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.lake.commit_log import CommitLog
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState, Ledger, LedgerWrite
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LEDGER

RATIO_GOAL, MIRRORS_GOAL = 0.8, 2.5
LAG_GOALS = (0.5, 3.0)
"""p50, where batches follow each other at once, and p99, in seconds."""
DRIFT_GOAL = 1.5
"""How many times the first minute's p50 the last one's may be."""
FORCED_GOAL = 20.0
"""Milliseconds that forcing adds to a commit."""
_FORCED = 100
"""Commits in each way."""
EVENTS = 279_016
"""Row events of the case ``bench``."""


def main(argv: Sequence[str]) -> int:
    """Measure both."""
    options = argparse.ArgumentParser(description="The lake beside the MySQL sink.", allow_abbrev=False)
    options.add_argument("--repeat", type=int, default=3, help="backlogs of each sink")
    options.add_argument("--minutes", type=float, default=2.0, help="how long to measure the lag")
    options.add_argument("--warm", type=float, default=15.0, help="seconds of the same load before measuring")
    options.add_argument("--rate", type=float, default=500.0, help="transactions a second")
    options.add_argument("--delivery", choices=("sorted", "raw"), default="sorted")
    options.add_argument(
        "--interval", type=float, default=ApplyConfig().lake_interval, help="spark.lake-interval, when the lag is measured"
    )
    options.add_argument("--only", choices=("backlog", "lag", "read", "mirrors", "forced"), help="one of them")
    given = options.parse_args(argv)
    spark, reached = build_session("bench lake", master="local[2]"), True
    if given.only in (None, "backlog"):
        reached &= compare_backlogs(spark, given.delivery, given.repeat)
    if given.only in (None, "lag"):
        load_ = WorkloadConfig(rate=given.rate, sessions=16, ddl_every=0)
        reached &= measure_lag(spark, given.delivery, load_, given.warm, given.minutes, given.interval)
    if given.only in (None, "read"):
        reached &= measure_read(spark)
    spark.stop()
    if given.only in (None, "mirrors"):
        reached &= measure_mirrors()
    if given.only in (None, "forced"):
        reached &= measure_forced()
    return 0 if reached else 1


def _settings(delivery: str, lake: Path | None = None) -> DrainerConfig:
    apply = ApplyConfig(on_finding="stop") if lake is None else ApplyConfig(on_finding="stop", db_type="lake")
    return DrainerConfig(apply=apply, source=SourceConfig(delivery=delivery), files=FileConfig(dir=str(lake or "")))


def compare_backlogs(spark: SparkSession, delivery: str, repeat: int) -> bool:
    """Both sinks in turns; returns whether the ledger is quick enough."""
    cases = ROOT / "tests" / "golden"
    case, warm_up = load(cases / "bench"), load(cases / "txn")
    mysql, lake, mirrors = list[float](), list[float](), list[float]()
    with PrivateMariaDB() as server:
        mysql_run(spark, warm_up, _settings(delivery), server.target())
        lake_run(spark, warm_up, delivery)
        for number in range(repeat):
            mysql.append(mysql_run(spark, case, _settings(delivery), server.target()).seconds)
            seconds, published, files, peak = lake_run(spark, case, delivery)
            lake.append(seconds)
            mirrors.append(published)
            print(
                f"run {number + 1}: MySQL sink {mysql[-1]:.2f} s, ledger {seconds:.2f} s with {files} live files, mirrors {published:.2f} s, "
                f"peak {peak:,.0f} MiB",
                flush=True,
            )
    theirs, ours = (EVENTS / statistics.median(seconds) for seconds in (mysql, lake))
    times = statistics.median(mirrors) / statistics.median(mysql)
    print(
        f"{delivery}: ledger {ours:,.0f} row events/s, MySQL sink {theirs:,.0f}/s; ratio {ours / theirs:.2f} (goal: at least {RATIO_GOAL}); ledger "
        f"and mirrors in {times:.2f} times the MySQL sink's time (goal: at most {MIRRORS_GOAL})",
        flush=True,
    )
    return ours >= RATIO_GOAL * theirs and times <= MIRRORS_GOAL


def lake_run(spark: SparkSession, case: RecordedCase, delivery: str) -> tuple[float, float, int, float]:
    """Load the case into fresh Pumps, then replicate it into a new lake: seconds, seconds with the mirrors, live files, MiB."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, rehearse.staged(case, Path(scratch)) as stage:
        for _ in feed(case, stage.addresses):
            pass
        lake = Path(scratch) / "lake"
        replication = Replication(spark, rehearse.settings_for(stage, _settings(delivery, lake), TargetConfig(), Path(scratch)))
        with memory_samples() as samples:
            with replication:
                while not replication.reached(case.end_ts):
                    time.sleep(0.005)
                seconds = time.monotonic() - replication.started_at
            published = time.monotonic() - replication.started_at
        return seconds, published, live_files(lake), max((mib for _, mib in samples), default=0.0)


def live_files(lake: Path) -> int:
    """Files of the ledger's newest version."""
    return len(DeltaTable(lake / "changes").file_uris())


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The ledger at one time."""

    at_ns: int
    files: int
    versions: int


def sample_of(lake: Path) -> Sample:
    """How large the ledger is."""
    versions = sum(1 for _ in (lake / "changes" / "_delta_log").glob("*.json"))
    return Sample(time.monotonic_ns(), live_files(lake), versions)


def measure_lag(spark: SparkSession, delivery: str, load_: WorkloadConfig, warm: float, minutes: float, interval: float) -> bool:
    """Commit upstream until visible in the lake; returns whether the goals were met."""
    with contextlib.ExitStack() as stack:
        work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lag-", ignore_cleanup_errors=True)))
        workload = stack.enter_context(small_cluster.upstream(work_dir, load_))
        settings = _settings(delivery, work_dir / "lake")
        settings = dataclasses.replace(settings, apply=dataclasses.replace(settings.apply, lake_interval=interval))
        config = small_cluster.settings_for(workload, settings, TargetConfig(), work_dir)
        opened = workload.open(small_cluster.PUMPS)
        with Replication(spark, config) as replication, LakeWatch(work_dir / "lake", PROBE) as watch:
            catch_up(replication, opened.upto_ts)
            workload.begin()
            run_for(replication, warm)
            before, begun, seen = workload.status(), time.monotonic(), len(workload.probes())
            samples, probes = [sample_of(work_dir / "lake")], list[tuple[int, int]]()

            def lags_of_minute(number: int) -> list[float]:
                begin, end = samples[number - 1 : number + 1]
                return lags(within(probes, begin.at_ns, end.at_ns), watch.sightings)

            def tell_minute(number: int) -> None:
                found, end = lags_of_minute(number), samples[number]
                print(
                    f"  minute {number}: p50 {percentile(found, 0.5):.2f} s, p99 {percentile(found, 0.99):.2f} s; {end.files} live files, "
                    f"{end.versions} versions in the log",
                    flush=True,
                )

            while (left := 60.0 * minutes - (time.monotonic() - begun)) > 0:
                run_for(replication, min(60.0, left))
                samples.append(sample_of(work_dir / "lake"))
                probes += workload.probes(seen + len(probes))
                if len(samples) > 2:
                    # The rows of the minute that has just ended may not all be there yet.
                    tell_minute(len(samples) - 2)
            rate = (workload.status().transactions - before.transactions) / (time.monotonic() - begun)
            catch_up(replication, workload.end().upto_ts)
            steps = [sum(report.seconds.values()) for report in replication.reports]
        probes += workload.probes(seen + len(probes))
    tell_minute(len(samples) - 1)
    by_minute = [lags_of_minute(number) for number in range(1, len(samples))]
    measured = [one for found in by_minute for one in found]
    p50, p99 = (percentile(measured, share) for share in (0.5, 0.99))
    goal = LAG_GOALS[0] + interval / 2
    first, last = (percentile(found, 0.5) for found in (by_minute[0], by_minute[-1]))
    print(
        f"{delivery}: p50 {p50:.2f} s (goal < {goal}), p99 {p99:.2f} s (goal < {LAG_GOALS[1]}), max {max(measured, default=0.0):.2f} s; "
        f"{len(measured)} of {len(probes)} probes, {rate:.0f} of {load_.rate:.0f} transactions/s; our part of a batch p50 "
        f"{1000 * percentile(steps, 0.5):.0f} ms; last minute {last / (first or 1.0):.2f} times the first (goal < {DRIFT_GOAL})",
        flush=True,
    )
    return bool(measured) and p50 < goal and p99 < LAG_GOALS[1] and last < DRIFT_GOAL * first


def measure_forced() -> bool:
    """Commits to a ledger with and without a force, in turns; returns whether a force is quick enough."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="bench-forced-") as place:
        ledger, state = Ledger(place), LakeState("bench", 1, 1, held=True)
        ledger.create(state)
        rows = pa.RecordBatch.from_pylist([{"commit_ts": n, "op": "insert", "database": "d", "table": "t"} for n in range(100)], LEDGER)
        for number in range(2 * _FORCED):
            fresh, begun = dataclasses.replace(state, number=state.number + 1), time.perf_counter()
            with unittest.mock.patch.object(CommitLog, "force") if number % 2 else contextlib.nullcontext():
                ledger.commit(state, fresh, LedgerWrite([rows]))
            taken[number % 2 == 0].append(1000 * (time.perf_counter() - begun))
            state = fresh
    forced, not_forced = (statistics.median(taken[way]) for way in (True, False))
    print(
        f"a commit of 100 rows: {forced:.1f} ms forced, {not_forced:.1f} ms not; {forced - not_forced:.1f} ms more (goal: {FORCED_GOAL:g})"
    )
    return forced - not_forced <= FORCED_GOAL


def within(probes: Probes, begin: int, end: int) -> Probes:
    """Those that were committed from ``begin`` until ``end``; pure."""
    return [(number, at) for number, at in probes if begin <= at < end]


if __name__ == "__main__":
    be_frugal()
    sys.exit(main(sys.argv[1:]))
