"""Two million row events: the case ``bench`` played seven times with other keys and timestamps, compared to ``bench`` in the same run.

    python -m benchmarks.bench_long [--deliveries sorted raw] [--plays 7] [--repeat 3] [--max-bytes 134217728]
        [--redo-log 2G]

Per delivery: the backlog ``bench`` and the long one in turn, ``--repeat`` times, and medians of both; measured as ``bench_backlog`` does.
Memory is that of JVM and Python (proportional set size): the largest in each seventh of the long run, beside the largest of ``bench``. The target's redo
log and buffer pool hold the whole long backlog. Else the long run would also measure the server's writing back of pages, which begins after a single play
ends. With MariaDB's default (``--redo-log 96M``) the target's own bulk limit, also printed, is lower for the long backlog, too. Exit code 1 if the long
backlog is slower than ``bench``. The benchmark ends with an error if the target's rows of a play do not have the recording's checksum.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.bench_backlog import ROOT, Run, be_frugal, bulk_limit, memory_samples, one, print_settings
from benchmarks.made_cases import KEYS, play, played
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target, settings_for, staged
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from pyspark_tidb_binlog.sinks.mysql.session import connect


@dataclasses.dataclass(frozen=True, slots=True)
class Long:
    """One run over all plays."""

    seconds: float
    batches: Sequence[BatchReport]
    samples: Sequence[tuple[float, float]]
    """Memory of the stream: seconds since the start, MiB."""


def main() -> int:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--case", type=Path, default=ROOT / "tests" / "golden" / "bench")
    options.add_argument("--warm-up", type=Path, default=ROOT / "tests" / "golden" / "txn")
    options.add_argument("--deliveries", nargs="+", choices=("sorted", "raw"), default=["sorted", "raw"])
    options.add_argument("--plays", type=int, default=7)
    options.add_argument("--repeat", type=int, default=3, help="runs of the single play and of the long one, in turn")
    options.add_argument("--max-bytes", type=int, default=SourceConfig().max_bytes_per_trigger, help="spark.max-bytes-per-trigger")
    options.add_argument("--redo-log", default="2G", help="innodb-log-file-size and innodb-buffer-pool-size of the target")
    given = options.parse_args()
    memory = {"innodb-log-file-size": given.redo_log, "innodb-buffer-pool-size": given.redo_log}
    faster = []
    case = load(given.case)
    for delivery in given.deliveries:
        config = DrainerConfig(
            apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery=delivery, max_bytes_per_trigger=given.max_bytes)
        )
        with PrivateMariaDB(options=memory) as server:
            spark = build_session("bench long", master="local[2]")
            target = server.target()
            one(spark, load(given.warm_up), config, target)
            fill_buffer_pool(target, config)
            print_settings(target, config)
            single, long, limits, long_limits = [], [], [], []
            for _ in range(given.repeat):
                single.append(one(spark, case, config, target))
                limits.append(bulk_limit(target, config))
                long.append(long_backlog(spark, case, given.plays, config, target))
                long_limits.append(bulk_limit(target, config))
            faster.append(report(delivery, case, single, long))
            limit, long_limit = statistics.median(limits), statistics.median(long_limits)
            print(
                f"  the target's bulk limit: {limit:.2f} s for the rows of one play, {long_limit:.2f} s for those of {given.plays}; "
                f"ratio {given.plays * limit / long_limit:.2f}",
                flush=True,
            )
    return 0 if all(faster) else 1


def long_backlog(spark: SparkSession, case: RecordedCase, plays: int, config: DrainerConfig, target: TargetConfig) -> Long:
    """Load every play into fresh Pumps, one after another, then replicate all of them into an emptied target and compare."""
    whole = played(case, plays)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, staged(whole, Path(scratch)) as stage:
        for number in range(plays):
            for _ in feed(play(case, number), stage.addresses):
                pass
        prepare_target(target, config, case.databases, drop=True)
        replication = Replication(spark, settings_for(stage, config, target, Path(scratch)))
        with memory_samples() as samples, replication:
            while not replication.reached(whole.end_ts):
                time.sleep(0.005)
            seconds = time.monotonic() - replication.started_at
        require_equal(case, plays, target, config)
        since_start = [(at - replication.started_at, mib) for at, mib in samples]
        return Long(seconds, [report for report in replication.reports if report.row_events], since_start)


def fill_buffer_pool(target: TargetConfig, config: DrainerConfig) -> None:
    """Make the server allocate the memory of its buffer pool, which costs time once for each page, and write all pages back.

    A server in use has this memory. A single play reuses the memory of the play before; the long backlog could not.
    """
    with connect(target, config.apply) as session:
        rows = int(session.query("SELECT @@innodb_buffer_pool_size DIV 40000")[0][0])
        session.execute("CREATE DATABASE filled")
        session.execute("USE filled")
        session.execute(f"CREATE TABLE pages ENGINE=InnoDB SELECT seq, REPEAT('x', 15000) AS page FROM seq_1_to_{rows}")
        session.execute("DROP DATABASE filled")
        session.execute("SET GLOBAL innodb_max_dirty_pages_pct = 0")
        while int(session.query("SHOW STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")[0][1]) > 100:
            time.sleep(0.1)
        session.execute("SET GLOBAL innodb_max_dirty_pages_pct = DEFAULT")


def require_equal(case: RecordedCase, plays: int, target: TargetConfig, config: DrainerConfig) -> None:
    """End the benchmark unless the target's rows of each play have the recording's count and checksum, with the keys moved back."""
    wanted = json.loads((case.directory / "case.json").read_text())["checksums"][0]
    moved_back = f"concat_ws('|',id mod {KEYS},"
    sums = wanted["sql"].replace("select ", f"select id div {KEYS}, ", 1).replace("concat_ws('|',id,", moved_back)
    if moved_back not in sums:
        raise SystemExit(f"the recording's checksum is not one over id and other columns: {wanted['sql']}")
    with connect(target, config.apply) as session:
        session.execute(f"USE {wanted['table'].partition('.')[0]}")
        found = [tuple(int(value) for value in row) for row in session.query(f"{sums} group by 1 order by 1")]
    if found != [(number, wanted["count"], wanted["sum"]) for number in range(plays)]:
        raise SystemExit(f"the target differs: (play, rows, checksum) {found}; each play should have {wanted['count']}, {wanted['sum']}")


def report(delivery: str, case: RecordedCase, single: Sequence[Run], long: Sequence[Long]) -> bool:
    """Print one delivery; returns whether the long backlog was at least as fast."""
    total = json.loads((case.directory / "case.json").read_text())["row_events"]["total"]
    events = sum(batch.row_events for batch in long[0].batches)
    bench, rate = total / statistics.median(run.seconds for run in single), events / statistics.median(run.seconds for run in long)
    peak = max(run.peak_mib for run in single)
    print(f"{delivery}: bench {total:,} row events, {bench:,.0f} a second (median of {_seconds(single)}), peak memory {peak:,.0f} MiB")
    print(
        f"{delivery}: bench-long {events:,} row events, {rate:,.0f} a second (median of {_seconds(long)}); "
        f"ratio {rate / bench:.2f} (goal >= 1); every play equals the recording"
    )
    for run in long:
        print("  peak memory in each seventh of that time, MiB: " + " ".join(f"{mib:,.0f}" for mib in peaks(run)))
        for number, batch in enumerate(run.batches, 1):
            stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in batch.seconds.items())
            print(f"  batch {number}: {batch.row_events:,} row events; {stages}", flush=True)
    return rate >= bench


def _seconds(runs: Iterable[Run | Long]) -> str:
    return ", ".join(f"{run.seconds:.2f}" for run in runs) + " s"


def peaks(long: Long, pieces: int = 7) -> list[float]:
    """The largest memory in each of ``pieces`` equal pieces of the run's time, in MiB; 0.0 where there is no sample."""
    bounds = [long.seconds * number / pieces for number in range(pieces + 1)]
    return [max((mib for at, mib in long.samples if begin <= at < end), default=0.0) for begin, end in pairwise(bounds)]


if __name__ == "__main__":
    be_frugal()
    sys.exit(main())
