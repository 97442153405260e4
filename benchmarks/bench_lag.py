"""Lag under a steady load, or of single rows: ``python -m benchmarks.bench_lag [--seconds 120] [--rate 500] [--deliveries sorted raw | --idle]``.

Per delivery: a private MariaDB, two Pumps, the workload at ``--rate`` transactions a second and one probe row per 100 ms. Lag is the
time from a probe's commit upstream until it is visible on a second connection that polls the target every 5 ms.
Prints p50 and p99 with their goals, the rate achieved, the largest lag of the Delta checkpoint, where the time of a batch goes, what
bounds the lag (Spark's own part of a batch, and one commit of the target), and for how long the machine stalled. Exit code 0 only if every
goal is met.

``--idle``: two Pumps deliver like real Pumps and write a fake binlog every 3 s; the only load is one probe row per ``--every`` seconds. Prints the lag of
the probe rows with ``wake-idle-pumps`` off and on, and the number of fakes.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import host_stalls, plain_pump
from benchmarks.processes import cpu_seconds
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.demo import catch_up
from pyspark_tidb_binlog.jobs.lab.emulator.workload import PROBE, WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.lag import ServerWatch, lags, percentile
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.small_cluster import PUMPS, settings_for, upstream
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from pyspark_tidb_binlog.sinks.mysql.session import connect

GOALS = {"sorted": (0.5, 1.0), "raw": (0.7, 1.3)}
"""p50 and p99 that each delivery must stay below, in seconds."""
DELTA_GOAL = 30.0
IDLE_GOAL = 0.35
"""p50 of single rows that must not be exceeded with waking, in seconds."""
REAL_FAKE_INTERVAL = 3.0
"""A real Pump's default. Seconds."""


def main(argv: Sequence[str]) -> int:
    """Measure each delivery."""
    options = argparse.ArgumentParser(description="Lag of the target under a steady load.", allow_abbrev=False)
    options.add_argument("--seconds", type=float, default=120.0, help="how long to measure")
    options.add_argument("--warm", type=float, default=15.0, help="seconds of the same load before measuring")
    options.add_argument("--rate", type=float, default=500.0, help="transactions a second")
    options.add_argument("--sessions", type=int, default=16, help="concurrent transactions")
    options.add_argument("--deliveries", nargs="+", default=["sorted", "raw"], choices=["sorted", "raw"])
    options.add_argument("--idle", action="store_true", help="single rows over Pumps like real ones, without and with waking them")
    options.add_argument("--every", type=float, default=3.7, help="--idle: seconds between two rows")
    given = options.parse_args(argv)
    spark = build_session("tidb-binlog bench lag")
    if given.idle:
        reached = compare_idle(spark, given.every, given.seconds)
        spark.stop()
        return 0 if reached else 1
    load = WorkloadConfig(rate=given.rate, sessions=given.sessions, ddl_every=0)
    reached = [measure(spark, delivery, load, given.warm, given.seconds) for delivery in given.deliveries]
    spark.stop()
    return 0 if all(reached) else 1


@dataclasses.dataclass(frozen=True, slots=True)
class LagRun:
    """What was measured under a steady load."""

    lags: Sequence[float]
    """Seconds of each probe row."""
    rate: float
    """Transactions a second that the upstream wrote."""
    delta_age: float
    """The largest lag of the Delta checkpoint. Seconds."""
    shares: Sequence[str]
    """Where the time of a batch goes, as text."""
    batches: Sequence[BatchReport]
    cpu: Mapping[str, float]
    """CPU seconds per second, by role."""


def measure(spark: SparkSession, delivery: str, load: WorkloadConfig, warm: float, seconds: float) -> bool:
    """Measure one delivery; returns whether it met its goals."""
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(PrivateMariaDB()).target()
        run = under_load(
            spark, DrainerConfig(apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery=delivery)), target, load, warm, seconds
        )
    p50, p99 = percentile(run.lags, 0.5), percentile(run.lags, 0.99)
    goals = GOALS[delivery]
    print(
        f"{delivery:<7} p50 {p50:.2f} s (goal < {goals[0]}), p99 {p99:.2f} s (goal < {goals[1]}), max {max(run.lags, default=0.0):.2f} s; ",
        end="",
    )
    print(
        f"{len(run.lags)} probes, {run.rate:.0f} of {load.rate:.0f} transactions/s; Delta at most {run.delta_age:.1f} s behind "
        f"(goal < {DELTA_GOAL:.0f})"
    )
    for line in run.shares:
        print(f"        {line}")
    sys.stdout.flush()
    return p50 < goals[0] and p99 < goals[1] and run.delta_age < DELTA_GOAL


def under_load(
    spark: SparkSession, config: DrainerConfig, target: TargetConfig, load: WorkloadConfig, warm: float, seconds: float, pumps: int = PUMPS
) -> LagRun:
    """Run ``load`` into an empty target for ``warm`` seconds, then measure it for ``seconds``."""
    with contextlib.ExitStack() as stack:
        work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lag-", ignore_cleanup_errors=True)))
        workload = stack.enter_context(upstream(work_dir, load, pumps))
        config = settings_for(workload, config, target, work_dir)
        opened = workload.open(pumps)
        with Replication(spark, config) as replication, ServerWatch(target, config.apply, PROBE) as watch:
            catch_up(replication, opened.upto_ts)
            workload.begin()
            run_for(replication, warm)
            before, begun, skipped, used = workload.status(), time.time(), len(replication.reports), cpu_seconds()
            seen = len(workload.probes())
            with host_stalls.watched() as stalls:
                run_for(replication, seconds)
            after, ended, spent = workload.status(), time.time(), cpu_seconds()
            catch_up(replication, workload.end().upto_ts)
            cpu = {role: (now - used.get(role, 0.0)) / (ended - begun) for role, now in spent.items()}
            shares = [
                *_shares(replication, skipped, commit_seconds(target, config.apply)),
                f"of {os.cpu_count()} cores: {_cores(cpu)}",
                str(stalls),
            ]
            batches = list(replication.reports)[skipped:]
            measured = lags(workload.probes(seen), watch.sightings)
        age = delta_age(spark, Path(config.delta_dir), begun, ended)
    return LagRun(measured, (after.transactions - before.transactions) / (ended - begun), age, shares, batches, cpu)


def compare_idle(spark: SparkSession, every: float, seconds: float) -> bool:
    """Measure single rows without and with waking; returns whether the goal was met."""
    off, on = (measure_idle(spark, wake, every, seconds) for wake in ("0", SourceConfig().wake_idle_pumps))
    print(f"idle: p50 {percentile(off, 0.5) / percentile(on, 0.5):.1f} times shorter with waking (goal: at most {IDLE_GOAL} s)")
    return percentile(on, 0.5) <= IDLE_GOAL


def measure_idle(spark: SparkSession, wake: str, every: float, seconds: float) -> list[float]:
    """The lags of single rows, one per ``every`` seconds, with ``wake-idle-pumps`` at ``wake``."""
    with contextlib.ExitStack() as stack:
        work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lag-", ignore_cleanup_errors=True)))
        target = stack.enter_context(PrivateMariaDB()).target()
        # one transaction at the beginning, and no other
        load = WorkloadConfig(rate=0.001, sessions=1, ddl_every=0, probe_interval=every)
        workload = stack.enter_context(upstream(work_dir, load, module=plain_pump.__name__, fake_interval=REAL_FAKE_INTERVAL))
        config = settings_for(
            workload,
            DrainerConfig(apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery="sorted", wake_idle_pumps=wake)),
            target,
            work_dir,
        )
        opened = workload.open(PUMPS)
        with Replication(spark, config) as replication, ServerWatch(target, config.apply, PROBE) as watch:
            catch_up(replication, opened.upto_ts)
            workload.begin()
            run_for(replication, 5.0)
            skipped = len(workload.probes())
            run_for(replication, seconds)
            catch_up(replication, workload.end().upto_ts)
            measured = lags(workload.probes(skipped), watch.sightings)
            sent = replication.progress().fakes_sent
    shown = ", ".join(f"{name} {percentile(measured, share):.2f} s" for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)))
    print(f"idle, wake-idle-pumps {wake:<5} {shown}, max {max(measured, default=0.0):.2f} s; {len(measured)} rows, {sent} fakes sent")
    sys.stdout.flush()
    return measured


def run_for(replication: Replication, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        replication.check()
        time.sleep(min(1.0, left))


def commit_seconds(target: TargetConfig, apply: ApplyConfig, times: int = 20) -> float:
    """The median of some commits of one small row to the target, nothing else running: no batch can be applied in less."""
    took = []
    with connect(target, apply) as session:
        session.execute("CREATE DATABASE IF NOT EXISTS commit_times")
        session.execute("CREATE TABLE IF NOT EXISTS commit_times.rows (id INT PRIMARY KEY)")
        for number in range(times):
            begun = time.perf_counter()
            session.execute(f"INSERT INTO commit_times.rows VALUES ({number})")
            session.commit()
            took.append(time.perf_counter() - begun)
        session.execute("DROP DATABASE commit_times")
    return statistics.median(took)


def bounds(progresses: Sequence[Mapping[str, float]], ours: Sequence[float], commit: float) -> str:
    """What bounds the lag, as text. ``progresses``: Spark's durations of each batch, ms; ``ours``: our stages' sum of each, ms; pure.

    A row waits for the batch that runs when it is committed, half of it on average, and is visible when its own batch has ended.
    """
    batch = statistics.median([progress.get("triggerExecution", 0.0) for progress in progresses] or [0.0])
    spark = max(batch - statistics.median(ours or [0.0]), 0.0)
    return (
        f"bounds: one and a half batches {1.5 * batch:.0f} ms, and if our stages took no time {1.5 * spark:.0f} ms (Spark's own part of a "
        f"batch {spark:.0f} ms); one commit of the target {1000 * commit:.1f} ms"
    )


def _shares(replication: Replication, skip: int, commit: float) -> Iterator[str]:
    """Where a batch's time goes: medians in milliseconds, ours inside Spark's ``addBatch``. ``commit``: of the target alone, seconds."""
    reports = list(replication.reports)[skip:]
    ours = _medians([{stage: 1000 * took for stage, took in report.seconds.items()} for report in reports])
    rows = statistics.median([report.row_events for report in reports] or [0])
    yield f"{len(reports)} batches, {rows:.0f} row events each; ours: {ours}"
    durations = [progress.durationMs for progress in replication.query.recentProgress if progress.numInputRows]
    yield f"Spark's: {_medians(durations)}"
    yield bounds(durations, [1000 * sum(report.seconds.values()) for report in reports], commit)


def _cores(cpu: Mapping[str, float]) -> str:
    return ", ".join(f"{role} {share:.2f}" for role, share in sorted(cpu.items(), key=lambda item: -item[1]))


def _medians(samples: Sequence[Mapping[str, float]]) -> str:
    names = dict.fromkeys(name for sample in samples for name in sample)
    medians = {name: statistics.median([sample.get(name, 0) for sample in samples]) for name in names}
    return ", ".join(f"{name} {value:.0f}" for name, value in sorted(medians.items(), key=lambda item: -item[1]))


def delta_age(spark: SparkSession, table: Path, begun: float, ended: float) -> float:
    """The largest age that the table's newest row ever had between two moments: it is oldest just before the next commit."""
    rows = spark.read.format("delta").load(str(table)).select("batch_id", "resolved_at").collect()
    resolved = {row.batch_id: row.resolved_at.timestamp() for row in rows}
    newest, oldest = begun, 0.0
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        batches = [action["txn"]["version"] for action in actions if "txn" in action]
        at = next(action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action) / 1000
        if batches and begun <= at:
            oldest = max(oldest, min(at, ended) - newest)
        if batches and at <= ended:
            newest = resolved[max(batches)]
    return max(oldest, ended - newest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
