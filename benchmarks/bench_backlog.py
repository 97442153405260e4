"""The backlog: 279,016 row events of the case ``bench`` from two Pumps into an empty MariaDB, compared to the server's own bulk limit.

    python benchmarks/bench_backlog.py [--case DIR] [--delivery sorted|raw] [--repeat 5]

Measured from ``query.start()``, on a session warmed by one batch of the case ``txn``, to the commit of the checkpoint at the case's end.
The bulk limit is the time to write the same final rows by plain multi-row INSERTs on two connections. Memory is the largest sum over the JVM and the
stream's Python processes (proportional set size), without Pumps, MariaDB and this process's memory for the recording.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target, settings_for, staged
from pyspark_tidb_binlog.jobs.spark.spark_session import FRUGAL, build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.mysql.session import connect

ROOT = Path(__file__).resolve().parent.parent
_SAMPLE_SECONDS = 0.5
_BARE_KIB = 100 * 1024
"""Memory of a driver process that holds no recording: Python, PySpark and Arrow."""
SETTINGS = ("innodb_flush_log_at_trx_commit", "sync_binlog", "innodb_buffer_pool_size", "innodb_log_file_size", "max_allowed_packet")


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One repetition."""

    seconds: float
    stages: dict[str, float]
    peak_mib: float


def compare(case_dir: Path, target: TargetConfig) -> tuple[int, list[tuple[object, ...]]] | None:
    """(equal tables, differences) from the ``compare.py`` next to the case; None if there is none."""
    script = case_dir.resolve().parent / "compare.py"
    if not script.is_file():
        return None
    spec = importlib.util.spec_from_file_location("golden_compare", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    good, bad = module.compare(str(case_dir), target.host, target.port, target.user, target.password)
    return good, bad


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--case", type=Path, default=ROOT / "tests" / "golden" / "bench")
    options.add_argument("--warm-up", type=Path, default=ROOT / "tests" / "golden" / "txn")
    options.add_argument("--delivery", choices=("sorted", "raw"), default="sorted")
    options.add_argument("--repeat", type=int, default=5)
    arguments = options.parse_args()
    config = DrainerConfig(apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery=arguments.delivery))
    case = load(arguments.case)
    with PrivateMariaDB() as server:
        spark = build_session("bench backlog", master="local[2]")
        target = server.target()
        one(spark, load(arguments.warm_up), config, target)
        print_settings(target, config)
        runs, limits = [], []
        for number in range(arguments.repeat):
            runs.append(one(spark, case, config, target))
            limits.append(bulk_limit(target, config))
            print(
                f"run {number + 1}: {runs[-1].seconds:.2f} s; bulk limit {limits[-1]:.2f} s; peak {runs[-1].peak_mib:,.0f} MiB", flush=True
            )
        summary(arguments.delivery, runs, limits)


def one(spark: SparkSession, case: RecordedCase, config: DrainerConfig, target: TargetConfig) -> Run:
    """Load the case into fresh Pumps, then replicate it into an emptied target."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, staged(case, Path(scratch)) as stage:
        for _ in feed(case, stage.addresses):
            pass
        prepare_target(target, config, case.databases, drop=True)
        replication = Replication(spark, settings_for(stage, config, target, Path(scratch)))
        with memory_samples() as samples:
            with replication:
                while not replication.reached(case.end_ts):
                    time.sleep(0.005)
                seconds = time.monotonic() - replication.started_at
            outcome = compare(case.directory, target)
        if outcome is not None and outcome[1]:
            raise SystemExit(f"the target differs: {outcome[1]}")
        stages: dict[str, float] = {}
        for report in replication.reports:
            for name, spent in report.seconds.items():
                stages[name] = stages.get(name, 0.0) + spent
        stages["before and between batches"] = seconds - sum(stages.values())
        return Run(seconds, stages, max((mib for _, mib in samples), default=0.0))


def bulk_limit(target: TargetConfig, config: DrainerConfig) -> float:
    """Seconds to write the final rows again into an empty twin table, on two connections, statements made beforehand."""
    with connect(target, config.apply) as session:
        session.execute("DROP TABLE IF EXISTS g_bench.twin")
        session.execute("CREATE TABLE g_bench.twin LIKE g_bench.orders")
        columns = [str(c[0]) for c in session.query("SHOW COLUMNS FROM g_bench.orders")]
        quoted = ", ',', ".join(f"IFNULL(QUOTE(`{c}`+0), 'NULL')" if c in ("flags", "kind") else f"QUOTE(`{c}`)" for c in columns)
        rows = [
            bytes(r[0]) if isinstance(r[0], bytes) else str(r[0]).encode()
            for r in session.query(f"SELECT CONCAT('(', {quoted}, ')') FROM g_bench.orders ORDER BY id")
        ]
    statements = [b"INSERT INTO g_bench.twin VALUES " + b",".join(rows[i : i + 2000]) for i in range(0, len(rows), 2000)]
    begun = time.monotonic()
    halves = [threading.Thread(target=_write, args=(target, config, statements[half::2])) for half in range(2)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    seconds = time.monotonic() - begun
    with connect(target, config.apply) as session:
        session.execute("DROP TABLE g_bench.twin")
    return seconds


def _write(target: TargetConfig, config: DrainerConfig, statements: Sequence[bytes]) -> None:
    with connect(target, config.apply) as session:
        session.begin()
        for statement in statements:
            session.execute(statement)
        session.commit()


def print_settings(target: TargetConfig, config: DrainerConfig) -> None:
    """The target's settings that decide its speed."""
    names = ",".join(f"'{name}'" for name in SETTINGS)
    with connect(target, config.apply) as session:
        version = session.query("SELECT VERSION()")[0][0]
        settings = session.query(f"SHOW VARIABLES WHERE Variable_name IN ({names})")
    print(f"target: {version}; " + ", ".join(f"{name} = {value}" for name, value in settings))


def summary(delivery: str, runs: Sequence[Run], limits: Sequence[float]) -> None:
    """Medians and shares."""
    seconds, limit = statistics.median(r.seconds for r in runs), statistics.median(limits)
    print(
        f"{delivery}: median {seconds:.2f} s (min {min(r.seconds for r in runs):.2f}, max {max(r.seconds for r in runs):.2f}), 279,016 row events"
    )
    print(f"bulk limit of the target: median {limit:.2f} s; ratio {seconds / limit:.1f}")
    peaks = [r.peak_mib for r in runs]
    print(f"peak memory of JVM and Python: median {statistics.median(peaks):,.0f} MiB, largest {max(peaks):,.0f} MiB")
    for name in runs[0].stages:
        spent = statistics.median(r.stages.get(name, 0.0) for r in runs)
        print(f"  {name:<28} {spent:6.2f} s  {spent / seconds:6.1%}")


@contextlib.contextmanager
def memory_samples() -> Iterator[list[tuple[float, float]]]:
    """Sample the memory of the stream's processes while the block runs: the monotonic clock's seconds, and MiB."""
    # what this process holds that a driver does not: the recording
    samples, ended, held = list[tuple[float, float]](), threading.Event(), _pss_kib(_own_pid()) - _BARE_KIB

    def sample() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            samples.append((time.monotonic(), (sum(_pss_kib(pid) for pid in _stream_processes()) - held) / 1024))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _stream_processes() -> list[int]:
    """The own process, its JVM and all Python workers below it; without the benchmark's servers."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = stat.read_text().partition(" (")
            fields = rest.rpartition(") ")[2].split()
            parents[int(pid)] = int(fields[1])
            names[int(pid)] = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    mine = {_own_pid()}
    grew = True
    while grew:
        found = {pid for pid, parent in parents.items() if parent in mine} - mine
        grew = bool(found)
        mine |= found
    return [pid for pid in mine if "mariadbd" not in names.get(pid, "") and "pyspark_tidb_binlog.jobs.pump" not in names.get(pid, "")]


def _own_pid() -> int:
    return int(Path("/proc/self").resolve().name)


def _pss_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def be_frugal() -> None:
    """Start this process again with the job's environment: it reads that when it starts, and the workers are forks of it."""
    if not FRUGAL.items() <= os.environ.items():
        os.execve(sys.executable, sys.orig_argv, os.environ | FRUGAL)


if __name__ == "__main__":
    be_frugal()
    main()
