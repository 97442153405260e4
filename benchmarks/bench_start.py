"""From the command to caught up: ``./spark-submit.sh drainer`` behind two Pumps that hold the case ``bench`` and deliver as real ones do.

    python -m benchmarks.bench_start [--case DIR] [--delivery sorted|raw] [--repeat 3]

Prints seconds since the start of the process, as the target shows them: until the first batch, until everything, and, after a ``kill -9`` of the job at
the tip, until the first new binlog. ``--delivery raw`` uses our Pumps. For comparison, in the same run: a bare ``java -version``, a bare PySpark session
that counts one row, and the target's own bulk limit (``bench_backlog``).
"""

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_backlog import bulk_limit, compare
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import RehearsalUpstream, prepare_target, settings_for, staged
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

ROOT = Path(__file__).resolve().parent.parent
OUT = "out"
_LOOK = 0.02
_GIVE_UP = 180.0
_BEYOND = 1 << 18
"""How far the new binlogs are beyond the case: a second."""
_BARE_SESSION = "from pyspark.sql import SparkSession; print(SparkSession.builder.master('local[2]').getOrCreate().range(1).count())"


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """One start, in seconds from its command."""

    first: float
    caught_up: float
    again: float
    """From the command after ``kill -9``."""
    cpu: float
    """CPU seconds until everything was in the target."""


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--case", type=Path, default=ROOT / "tests" / "golden" / "bench")
    options.add_argument("--delivery", choices=("sorted", "raw"), default="sorted")
    options.add_argument("--repeat", type=int, default=3)
    arguments = options.parse_args()
    case, config = (
        load(arguments.case),
        DrainerConfig(apply=ApplyConfig(on_finding="stop"), source=SourceConfig(delivery="raw" if arguments.delivery == "raw" else "")),
    )
    module = "pyspark_tidb_binlog.jobs.pump" if arguments.delivery == "raw" else "benchmarks.plain_pump"
    java = [_timed(["java", "-version"]) for _ in range(3)]
    bare = [_timed([sys.executable, "-c", _BARE_SESSION]) for _ in range(3)]
    print(f"java -version: {statistics.median(java):.2f} s; a bare PySpark session: {statistics.median(bare):.2f} s", flush=True)
    starts, limits = [], []
    with PrivateMariaDB() as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch, staged(case, Path(scratch), module) as stage:
        for _ in feed(case, stage.addresses):
            pass
        for number in range(arguments.repeat):
            place = Path(scratch) / f"run-{number}"
            prepare_target(server.target(), config, case.databases, drop=True)
            starts.append(one(stage, config, server.target(), place, number))
            limits.append(bulk_limit(server.target(), config))
            shutil.rmtree(place)
            print(f"run {number + 1}: {starts[-1]}; bulk limit {limits[-1]:.2f} s", flush=True)
    limit = statistics.median(limits)
    for name in ("first", "caught_up", "again", "cpu"):
        values = [getattr(start, name) for start in starts]
        median = statistics.median(values)
        print(
            f"{name:<10} median {median:6.2f} s (min {min(values):.2f}, max {max(values):.2f}); {median / limit:.1f} times the bulk limit"
        )


def one(stage: RehearsalUpstream, config: DrainerConfig, target: TargetConfig, place: Path, number: int) -> Start:
    """Start on an empty target, wait, kill, start again."""
    settings = settings_for(stage, config, target, place)
    case, begun = stage.case, time.monotonic()
    with connect(target, config.apply) as session:
        with drainer(settings, place) as job:
            first = _reached(job, session, place, case.cluster_id, case.start_ts + 1) - begun
            caught_up = _reached(job, session, place, case.cluster_id, case.end_ts) - begun
            cpu = _cpu(job.pid)
            outcome = compare(case.directory, target)
        if outcome is not None and outcome[1]:
            raise SystemExit(f"the target differs: {outcome[1]}")
        beyond = case.last_ts + (number + 1) * _BEYOND
        for address in stage.addresses:
            with contextlib.closing(PumpWriter(address, case.cluster_id, tls=None)) as writer:
                writer.write(fake(beyond).payload)
        begun = time.monotonic()
        with drainer(settings, place) as job:
            again = _reached(job, session, place, case.cluster_id, beyond) - begun
    return Start(first, caught_up, again, cpu)


@contextlib.contextmanager
def drainer(settings: DrainerConfig, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job as a user starts it, ended by ``kill -9`` of its process group."""
    place.mkdir(parents=True, exist_ok=True)
    source, target = settings.source, settings.target
    flags = [
        f"--pumps={source.pumps}",
        "--addr=127.0.0.1:0",
        "--node-id=drainer",
        f"--cluster-id={source.cluster_id}",
        f"--initial-commit-ts={source.starting_commit_ts}",
        f"--spark.wake-idle-pumps={source.wake_idle_pumps}",
        *([f"--spark.delivery={source.delivery}"] if source.delivery else []),
        f"--tidb-status={source.tidb_status}",
        f"--checkpoint-dir={settings.checkpoint_dir}",
        f"--delta-dir={settings.delta_dir}",
        f"--syncer.to.host={target.host}",
        f"--syncer.to.port={target.port}",
        f"--syncer.to.user={target.user}",
        f"--spark.socket={target.socket}",
    ]
    environ = os.environ | {"TIDB_BINLOG_LOG": str(place / "drainer.log"), "TIDB_BINLOG__SYNCER__TO__PASSWORD": target.password}
    with (place / OUT).open("ab") as out:
        job = subprocess.Popen(
            [str(ROOT / "spark-submit.sh"), "--master", "local[2]", "drainer", *flags],
            stdout=out,
            stderr=out,
            env=environ,
            start_new_session=True,
        )
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _reached(job: "subprocess.Popen[bytes]", session: Session, place: Path, cluster_id: int, commit_ts: int) -> float:
    """When the target's checkpoint was at ``commit_ts``."""
    give_up = time.monotonic() + _GIVE_UP
    while time.monotonic() < give_up and job.poll() is None:
        time.sleep(_LOOK)
        session.rollback()
        with contextlib.suppress(ApplyError):  # not created yet
            recorded = TargetCheckpoint(cluster_id).load(session)
            if recorded is not None and recorded.commit_ts >= commit_ts:
                return time.monotonic()
    raise SystemExit(f"the job did not reach ts {commit_ts}: exit code {job.poll()}\n{(place / OUT).read_text()}")


def _timed(command: list[str]) -> float:
    begun = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begun


def _cpu(session: int) -> float:
    """CPU seconds of the processes of a session, and of those that they have waited for."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = entry.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15])) if int(fields[3]) == session else 0
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
