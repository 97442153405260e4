"""What a stream costs while nothing happens: ``python -m benchmarks.bench_idle [--seconds 60] [--target mysql|lake] [--delivery sorted|raw]``.

``./spark-submit.sh drainer`` behind two Pumps that deliver as real ones do (``--delivery raw``: ours) and write a fake binlog every 3 s; nobody writes
rows. Once it has caught up and has run for ten seconds more, prints the CPU time of its processes in the seconds that follow, as a part of one core,
and the memory that they hold.
"""

import argparse
import contextlib
import dataclasses
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import plain_pump
from pyspark_tidb_binlog.conf.load import flags_of
from pyspark_tidb_binlog.conf.model import DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PUMP
from pyspark_tidb_binlog.jobs.lab.small_cluster import PUMPS, into_lake, settings_for, upstream

ROOT = Path(__file__).resolve().parent.parent
FAKE_INTERVAL = 3.0
"""A real Pump's default. Seconds."""
_SETTLE_SECONDS = 25.0
NOTHING = WorkloadConfig(rate=0.001, sessions=1, ddl_every=0, probe_interval=1e6)
CORES, MEMORY = 0.03, 550
"""The goals: of one core, and MiB."""


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--target", choices=("mysql", "lake"), default="mysql")
    options.add_argument("--delivery", choices=("sorted", "raw"), default="sorted")
    options.add_argument("--hold", action="store_true", help="wait for Enter before the end, for a profiler")
    given = options.parse_args()
    config = DrainerConfig(source=SourceConfig(delivery=given.delivery))
    module = plain_pump.__name__ if given.delivery == "sorted" else PUMP
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idle-", ignore_cleanup_errors=True)))
        target = stack.enter_context(PrivateMariaDB()).target()
        workload = stack.enter_context(upstream(place, NOTHING, module=module, fake_interval=FAKE_INTERVAL))
        if given.target == "lake":
            config = into_lake(config, place / "lake")
        config = settings_for(workload, config, target, place)
        workload.open(PUMPS)
        workload.begin()
        job = stack.enter_context(drainer(config, place))
        time.sleep(_SETTLE_SECONDS)
        before = spent(job.pid)
        time.sleep(given.seconds)
        after = spent(job.pid)
        for pid, process in sorted(after.items(), key=lambda item: -item[1].pss):
            used = process.seconds - (before[pid].seconds if pid in before else 0.0)
            print(f"{pid:>7} {100 * used / given.seconds:6.2f} % of a core, {process.pss >> 20:5d} MiB  {process.name}")
        used = sum(process.seconds for process in after.values()) - sum(process.seconds for process in before.values())
        held = sum(process.pss for process in after.values()) >> 20
        print(
            f"{given.target}, {given.delivery}: {100 * used / given.seconds:.2f} % of a core (goal: at most {100 * CORES:.0f}), "
            f"{held} MiB (goal: at most {MEMORY})"
        )
        if given.hold:
            input("Enter ends it: ")


@contextlib.contextmanager
def drainer(config: DrainerConfig, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job as a user starts it, ended by SIGTERM."""
    flags = [f"--{path}={value}" for path, value in flags_of(config).items()]
    environ = os.environ | {"TIDB_BINLOG_LOG": str(place / "drainer.log")}
    with (place / "out").open("ab") as out:
        command = [str(ROOT / "spark-submit.sh"), "--master", "local[2]", "drainer", *flags]
        job = subprocess.Popen(command, stdout=out, stderr=out, env=environ, start_new_session=True)
    try:
        yield job
        if job.poll() is not None:
            raise SystemExit(f"the job has ended with {job.poll()}:\n{(place / 'out').read_text()}")
    finally:
        job.terminate()
        job.wait(30)


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """What a process has used."""

    name: str
    seconds: float
    """Of CPU, with its children that have ended."""
    pss: int
    """Bytes."""


def spent(session: int) -> dict[int, Spent]:
    """Each process of a session."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == session:
                name = " ".join(part.rpartition("/")[2] for part in process.cmdline())[:70]
                found[process.pid] = Spent(name, sum(process.cpu_times()[:4]), process.memory_full_info().pss)
    return found


if __name__ == "__main__":
    main()
