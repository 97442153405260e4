"""Tables verified, compared to the two sides' own checksums of them; and what this does to the lag of a stream.

    python -m benchmarks.bench_verify [--rows 1000000] [--runs 3] [--seconds 60] [--without-lag]

Two MariaDBs have the same rows, of the shape of the recording ``bench``. The upstream's stands still, in the place of a snapshot. In turn: one connection asks each
side, one side after the other, for ``COUNT(*), SUM(CRC32(CONCAT_WS(...)))``, which is fast and exact for nothing; then a process of its own verifies the table. The
ratio is the time of the second divided by that of the first. Then a stream of 500 transactions a second writes to the target, without and with a process that
verifies this table again and again. Exit code 0 only if every goal is met.
"""

import argparse
import contextlib
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event

from benchmarks.bench_lag import under_load
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.lag import percentile
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.verify import verification
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint, TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.lease import LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import StateTable
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable

RATIO, LAG, MEMORY = 3.0, 2.0, 300 << 20
"""Goals: the time beside that of the checksums, the lag's p50 beside that without verifying, bytes of memory."""
CLUSTER_ID, DATABASE = 11, "b_verify"
TABLE = f"""CREATE TABLE {DATABASE}.orders (id BIGINT PRIMARY KEY, customer INT NOT NULL, sku VARCHAR(32) NOT NULL, qty INT UNSIGNED, price DECIMAL(12,2), note VARCHAR(200),
    created DATETIME(3), flags BIT(8), kind ENUM('a','b','c'), UNIQUE KEY uk (sku, id))"""
VALUES = """seq, seq % 5000, CONCAT('sku-', seq % 997), IF(seq % 7, seq % 50, NULL), seq % 10000 / 100, IF(seq % 5, REPEAT(MD5(seq), 1 + seq % 3), NULL),
    '2024-05-06 07:08:09.123' + INTERVAL seq SECOND, seq % 256, ELT(1 + seq % 3, 'a', 'b', 'c')"""
CHECKSUM = (
    f"SELECT COUNT(*), SUM(CRC32(CONCAT_WS('|', id, customer, sku, qty, price, note, created, flags + 0, kind))) FROM {DATABASE}.orders"
)


class StillServer(SnapshotSource):
    """A server that nobody writes to."""

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")


def main(argv: Sequence[str]) -> int:
    """Run and print."""
    options = argparse.ArgumentParser(description="Verifying beside checksums, and beside a stream.", allow_abbrev=False)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--runs", type=int, default=3, help="pairs of a checksum and a verification")
    options.add_argument("--seconds", type=float, default=60.0, help="how long the lag is measured, without and with verifying")
    options.add_argument("--without-lag", action="store_true")
    given = options.parse_args(argv)
    with contextlib.ExitStack() as stack:
        source, target = (stack.enter_context(PrivateMariaDB()).target() for _ in range(2))
        for server in (source, target):
            fill(server, given.rows)
        config = DrainerConfig(source=SourceConfig(cluster_id=CLUSTER_ID), target=target)
        make_record(config)
        reached = compare_times(config, source, given.rows, given.runs)
    if not given.without_lag:
        reached &= compare_lags(given.rows, given.seconds)
    return 0 if reached else 1


def fill(server: TargetConfig, rows: int) -> None:
    """The table on one side."""
    with connect(server, ApplyConfig()) as session:
        session.execute("SET SESSION autocommit = 1")
        session.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        session.execute(TABLE)
        session.execute(f"INSERT INTO {DATABASE}.orders SELECT {VALUES} FROM {DATABASE}.seq_1_to_{rows}")
        session.execute(f"ANALYZE TABLE {DATABASE}.orders")


def make_record(config: DrainerConfig) -> None:
    """What a Drainer would have left at the target."""
    with connect(config.target, config.apply) as session:
        checkpoint = TargetCheckpoint(CLUSTER_ID)
        checkpoint.create(session)
        checkpoint.write(session, Checkpoint(1, True, 1))
        StateTable(config.apply.checkpoint_schema, CLUSTER_ID).create(session)
        ensure_ddl_table(session, config.apply)
        lease.ensure_table(session, config.apply.checkpoint_schema)
        session.begin()
        lease.take(session, CLUSTER_ID, config.apply.checkpoint_schema, LeaseHolder("bench"))
        session.commit()


def compare_times(config: DrainerConfig, source: TargetConfig, rows: int, runs: int) -> bool:
    """Measure checksums and verifications in turn; returns whether the goals were met."""
    checksums, verified, memory = list[float](), list[float](), 0
    for _ in range(runs):
        checksums.append(checksum_seconds([source, config.target]))
        seconds, peak = apart(config, source, rows)
        verified.append(seconds)
        memory = max(memory, peak)
    ratio = statistics.median(verified) / statistics.median(checksums)
    print(
        f"{rows:,} rows: checksums of both sides {_seconds(checksums)}, verified {_seconds(verified)}; ratio {ratio:.2f} (goal: at most {RATIO:.0f}); "
        f"{memory >> 20} MiB (goal: at most {MEMORY >> 20})",
        flush=True,
    )
    return ratio <= RATIO and memory <= MEMORY


def checksum_seconds(sides: Sequence[TargetConfig]) -> float:
    """How long both take for their checksum, one after the other."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(connect(side, ApplyConfig())) for side in sides]
        begun = time.monotonic()
        found = {tuple(session.query(CHECKSUM)[0]) for session in sessions}
        assert len(found) == 1, found
        return time.monotonic() - begun


def apart(config: DrainerConfig, source: TargetConfig, rows: int) -> tuple[float, int]:
    """Verify once in a process of its own: seconds without those of its start, and its largest memory in bytes."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_once, args=(config, source, rows, results))
    process.start()
    seconds, peak = results.get(timeout=600)
    process.join()
    return float(seconds), int(peak)


def _once(config: DrainerConfig, source: TargetConfig, rows: int, results: "multiprocessing.Queue[tuple[float, int]]") -> None:
    begun = time.monotonic()
    verify(config, source, rows)
    results.put((time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10))


def verify(config: DrainerConfig, source: TargetConfig, rows: int) -> None:
    """Verify the table, which must be equal."""
    run, _ = verification(config, StillServer(ShippedTarget.of(source, Here)), [f"{DATABASE}.*"])
    (table,) = (found for found in run.run() if isinstance(found, VerifiedTable))
    assert table.tally is not None and (table.tally.rows, table.tally.differing) == (rows, 0), table


def compare_lags(rows: int, seconds: float) -> bool:
    """Measure the lag of a stream without and with verifying; returns whether the goal was met."""
    spark = build_session("tidb-binlog bench verify")
    found = list[float]()
    for beside in (False, True):
        with contextlib.ExitStack() as stack:
            source, target = (stack.enter_context(PrivateMariaDB()).target() for _ in range(2))
            config = DrainerConfig(apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery="sorted"))
            for server in (source, target):
                fill(server, rows)
            if beside:
                stack.enter_context(again_and_again(DrainerConfig(target=target), source, rows))
            run = under_load(spark, config, target, WorkloadConfig(rate=500.0, sessions=16, ddl_every=0), 15.0, seconds)
        found.append(percentile(run.lags, 0.5))
        print(f"lag {'beside verifying' if beside else 'alone'}: p50 {found[-1]:.2f} s, p99 {percentile(run.lags, 0.99):.2f} s", flush=True)
    spark.stop()
    print(f"p50 {found[1] / found[0]:.2f} times as long (goal: at most {LAG:.0f})")
    return found[1] <= LAG * found[0]


@contextlib.contextmanager
def again_and_again(config: DrainerConfig, source: TargetConfig, rows: int) -> Iterator[None]:
    """A process that verifies as long as the block runs."""
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    process = context.Process(target=_again_and_again, args=(config, source, rows, over))
    process.start()
    yield
    over.set()
    process.join()
    assert process.exitcode == 0


def _again_and_again(config: DrainerConfig, source: TargetConfig, rows: int, over: Event) -> None:
    times, begun = 0, time.monotonic()
    with connect(config.target, config.apply) as session:
        while not session.query("SELECT 1 FROM information_schema.tables WHERE table_name = 'spark_lease'") and not over.wait(0.5):
            session.rollback()
    while not over.wait(0.1):
        verify(config, source, rows)
        times += 1
    print(f"verified {times} times in {time.monotonic() - begun:.0f} s", flush=True)


def _seconds(found: Sequence[float]) -> str:
    return " ".join(f"{one:.2f}" for one in found) + " s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
