"""A soak test of the stream: ``python -m benchmarks.soak [--minutes 40] [--rate 200] [--delivery raw] [--retention 5m]``.

A private MariaDB, two Pumps, the workload at ``--rate`` transactions a second with a DDL now and then, and the stream that ``drainer``
runs. Prints its resources after a minute and at the end (memory, open files, threads, files and bytes of each directory, the stream's
tables on the target) with bounds that a leak would exceed, and verifies every table. Exit code 0 only if all is flat and equal.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.processes import JVM, PYTHON, Holding, holdings
from benchmarks.soak_bounds import MIB, Look, allowed, verdicts
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig
from pyspark_tidb_binlog.conf.units import days_or_duration
from pyspark_tidb_binlog.jobs.demo import catch_up, verified
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.small_cluster import PUMPS, settings_for, upstream
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.engine.spark_jvm import jvm_of
from pyspark_tidb_binlog.sinks.mysql.session import connect

WARM_SECONDS = 60.0
_CLEAN_SECONDS = 5.0
"""Time for Spark's own thread to remove what a collection has freed."""


def main(argv: Sequence[str]) -> int:
    """Run, measure twice, compare with the bounds."""
    options = argparse.ArgumentParser(description="The resources of the stream after a minute and at the end.", allow_abbrev=False)
    options.add_argument("--minutes", type=float, default=40.0, help="how long it runs (default: 40)")
    options.add_argument("--rate", type=float, default=200.0, help="transactions a second (default: 200)")
    options.add_argument("--delivery", default="raw", choices=["sorted", "raw"])
    options.add_argument("--retention", default="5m", help="delta-retention, short enough to see VACUUM (default: 5m)")
    given = options.parse_args(argv)
    load = WorkloadConfig(rate=given.rate, sessions=16, ddl_every=3000)
    with contextlib.ExitStack() as stack:
        work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True)))
        os.environ.pop("SPARK_LOCAL_DIRS", None)  # it would win over the setting
        spark = build_session("tidb-binlog soak", extra={"spark.local.dir": str(work_dir / "local")})
        stack.callback(spark.stop)
        target = stack.enter_context(PrivateMariaDB()).target()
        workload = stack.enter_context(upstream(work_dir, load))
        config = DrainerConfig(
            apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery=given.delivery), delta_retention=given.retention
        )
        return _soak(spark, workload, settings_for(workload, config, target, work_dir), work_dir, given.minutes * 60)


def _soak(spark: SparkSession, workload: WorkloadProcess, config: DrainerConfig, work_dir: Path, seconds: float) -> int:
    opened = workload.open(PUMPS)
    with Replication(spark, config) as replication:
        catch_up(replication, opened.upto_ts)
        workload.begin()
        _watched(replication, workload, WARM_SECONDS)
        start, begun = look(spark, config, work_dir), time.monotonic()
        _watched(replication, workload, max(0.0, seconds - WARM_SECONDS))
        end, passed = look(spark, config, work_dir), time.monotonic() - begun
        written = workload.end()
        catch_up(replication, written.upto_ts)
        batches = replication.progress().batches
        judged = list(verdicts(start, end, allowed(days_or_duration(config.delta_retention))))
        print(
            f"{written.transactions:,} transactions, {written.ddls:,} DDLs in {batches:,} batches; {passed / 60:.1f} minutes between the measurements"
        )
        print(f"  {'':<42} {'start':>10} {'end':>10}")
        for verdict in judged:
            print(verdict, flush=True)
        equal = verified(replication, config, workload, print)
    flat = all(verdict.flat for verdict in judged)
    print(f"{'FLAT' if flat else 'NOT FLAT'}; {'every table is equal' if equal else 'SOMETHING DIFFERS'}")
    return 0 if flat and equal else 1


def _watched(replication: Replication, workload: WorkloadProcess, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        replication.check()
        workload.status()
        time.sleep(min(1.0, left))


def look(spark: SparkSession, config: DrainerConfig, work_dir: Path) -> Look:
    """The resources held now, after a garbage collection of the JVM."""
    jvm = jvm_of(spark)
    jvm.System.gc()
    time.sleep(_CLEAN_SECONDS)
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    found: dict[str, float] = {"JVM heap after GC, MiB": (runtime.totalMemory() - runtime.freeMemory()) / MIB}
    held = holdings()
    python = sum((held.get(role, Holding()) for role in PYTHON), Holding())
    for name, part in ((JVM, held[JVM]), ("Python", python)):
        found |= {
            f"{name} PSS, MiB": part.pss / MIB,
            f"{name} RSS, MiB": part.rss / MIB,
            f"{name} open": part.files,
            f"{name} threads": part.threads,
        }
    delta, beside = Path(config.delta_dir), Path(config.findings_dir)
    for name, root, skipped in (
        ("checkpoint-dir", Path(config.checkpoint_dir), ""),
        ("spark.local.dir", work_dir / "local", ""),
        ("delta-dir data", delta, "_delta_log"),
        ("delta-dir log", delta / "_delta_log", ""),
        ("delta-dir findings", beside, "_delta_log"),
    ):
        files, size = extent(root, skipped)
        found |= {f"{name} files": files, f"{name} MiB": size / MIB}
    return found | tables(config)


def extent(root: Path, skipped: str = "") -> tuple[int, int]:
    """Number of files and bytes below ``root``; a file that disappears meanwhile does not count."""
    files = size = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != skipped]
        for name in names:
            with contextlib.suppress(OSError):
                size += os.stat(Path(folder) / name).st_size
                files += 1
    return files, size


def tables(config: DrainerConfig) -> Look:
    """Rows and bytes of the stream's own tables on the target."""
    schema = config.apply.checkpoint_schema
    found: dict[str, float] = {}
    with connect(config.target, config.apply) as session:
        listed = "SELECT table_name, data_length + index_length FROM information_schema.tables WHERE table_schema = %s ORDER BY 1"
        for name, size in session.query(listed, [schema]):
            ((rows,),) = session.query(f"SELECT COUNT(*) FROM `{schema}`.`{name}`")
            found |= {f"{schema}.{name} rows": float(rows), f"{schema}.{name} MiB": float(size) / MIB}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
