"""Jobs as an operator starts them, over a workload, its Pumps and a target: what tests of signals and of states share."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as parquet

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.small_cluster import PUMPS, upstream
from tests.support.eventually import eventually
from tests.support.target_rows import run_sql
from tests.support.workload_copy import differing

ENTRY = str(Path(__file__).parents[2] / "spark-submit.sh")
LONGEST = 240.0
"""Seconds after which a test gives up; what is asserted about time has a much lower bound in the product."""

Send = Callable[["Job", signal.Signals], None]


@dataclass(frozen=True, slots=True)
class Started:
    """How a job is started: by the checkout's script, or by another command in an environment of its own."""

    command: str = ENTRY
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Job:
    """``./spark-submit.sh …`` in a process group of its own, its output in files."""

    def __init__(self, work_dir: Path, *arguments: str, started: Started | None = None) -> None:
        how = started or Started()
        self.out, self.err, self.log = work_dir / "out.txt", work_dir / "err.txt", work_dir / "job.log"
        environ = {**how.environ, "TIDB_BINLOG_LOG": str(self.log)}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            command = [how.command, *arguments]
            self.process = subprocess.Popen(command, env=environ, cwd=work_dir, stdout=out, stderr=err, start_new_session=True)
        self.pid = self.process.pid
        self.family: set[psutil.Process] = set()

    def lines(self) -> list[dict[str, object]]:
        """What it printed, without a line that is not whole yet."""
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.startswith("{") and line.endswith("}")]

    def look(self) -> set[psutil.Process]:
        """Every process that it has started so far."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.family |= set(psutil.Process(self.pid).children(recursive=True))
        return self.family

    def runs(self, program: str) -> bool:
        """Whether one of them is this one."""
        for process in self.look():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == program:
                    return True
        return False

    def end(self) -> None:
        """Leave nothing of it behind, whatever the test found."""
        for process in self.look():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait()

    def over(self) -> bool:
        """Whether its process has ended."""
        return self.process.poll() is not None

    def wait(self) -> int:
        self.look()
        return self.process.wait(LONGEST)

    def leaves_nothing(self) -> None:
        """Whatever it started is gone, at the latest soon after it."""
        _, alive = psutil.wait_procs(list(self.family), timeout=LONGEST)
        assert [process.name() for process in alive] == []

    def said(self) -> str:
        return f"{self.out.read_text()[-3000:]}\n{self.err.read_text()}\n{self.log.read_text()[-3000:] if self.log.exists() else ''}"


def to_process(job: Job, number: signal.Signals) -> None:
    """As Kubernetes does, and a person with ``kill``."""
    os.kill(job.pid, number)


def to_group(job: Job, number: signal.Signals) -> None:
    """As a terminal does."""
    os.killpg(job.pid, number)


def to_everyone(job: Job, number: signal.Signals) -> None:
    """As systemd does: every process of the unit, whatever its group."""
    for process in {psutil.Process(job.pid), *job.look()}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@dataclass
class Scene:
    """A workload that writes, its Pumps, a target, and what a drainer of them is started with."""

    workload: WorkloadProcess
    target: PrivateMariaDB
    work_dir: Path
    stack: contextlib.ExitStack
    jobs: int = 0
    """How many drainers were started."""

    def drainer(self, *more: str, started: Started | None = None) -> Job:
        """``more``: further flags."""
        self.jobs += 1
        directory = self.work_dir / f"job-{self.jobs}"
        directory.mkdir()
        job = Job(directory, "drainer", "--progress=json", *self.flags(), *more, started=started)
        self.stack.callback(job.end)
        return job

    def flags(self) -> list[str]:
        """Those of each drainer."""
        to = self.target.target()
        secret = self.work_dir / "password"
        secret.write_text(to.password)
        return [
            f"--pumps={self.workload.url}",
            "--initial-commit-ts=0",
            "--addr=127.0.0.1:0",
            "--node-id=drainer",
            f"--tidb-status={self.workload.url}",
            f"--spark.socket={to.socket}",
            f"--syncer.to.user={to.user}",
            f"--spark.password-file={secret}",
            f"--checkpoint-dir={self.work_dir / 'spark'}",
            f"--delta-dir={self.work_dir / 'delta'}",
        ]

    def registered(self) -> dict[str, str]:
        with contextlib.closing(RegistryClient(self.workload.url)) as registry:
            return {node.node_id: node.state.value for node in registry.listing(DRAINERS).nodes}

    def recorded(self) -> int:
        """The newest resolved_ts in Delta, of the files that are committed: a write that a signal has ended leaves a part of one."""
        delta = self.work_dir / "delta"
        actions = [json.loads(line) for log in (delta / "_delta_log").glob("*.json") for line in log.read_text().splitlines()]
        paths = [delta / action["add"]["path"] for action in actions if "add" in action]
        tables = [parquet.read_table(path, columns=["resolved_ts"]) for path in paths if path.exists()]
        return max((ts for table in tables for ts in table.column(0).to_pylist()), default=0)

    def standing(self) -> int:
        """The target's checkpoint."""
        return int(json.loads(run_sql(self.target, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])["commitTS"])

    def differences(self) -> list[str]:
        """The tables of the target that are not those of the upstream, and why."""
        return differing(self.workload, self.target.target())


@contextlib.contextmanager
def scene_in(directory: Path, target: PrivateMariaDB, **workload_settings: float) -> Iterator[Scene]:
    """A workload with its tables and Pumps; whatever was started ends with the block. ``workload_settings``: of ``WorkloadConfig``."""
    config = WorkloadConfig(**({"rate": 8, "probe_interval": 0.5} | workload_settings))  # type: ignore[arg-type]
    with upstream(directory, config) as workload, contextlib.ExitStack() as stack:
        workload.open(PUMPS)
        yield Scene(workload, target, directory, stack)


def streaming(scene: Scene, *more: str) -> Job:
    """A drainer in the middle of its work; ``more``: further flags."""
    scene.workload.begin()
    job = scene.drainer(*more)
    at_work(job)
    return job


def at_work(job: Job) -> None:
    """Wait until it has applied transactions."""
    eventually(
        lambda: job.process.poll() is not None or any(line.get("transactions") for line in job.lines()),
        seconds=LONGEST,
        what="a batch",
        pause=0.05,
    )
    assert job.process.poll() is None, job.said()


def ended_in_order(job: Job, scene: Scene, state: str = "paused") -> dict[str, object]:
    """Status 0, nothing on stderr, a summary, registered in ``state``, Delta as far as the target, no process left; the summary."""
    assert (job.wait(), job.err.read_text()) == (0, ""), job.said()
    summary = job.lines()[-1]["summary"]
    assert isinstance(summary, dict)
    stands_in_order(summary, scene, state)
    job.leaves_nothing()
    return summary


def stands_in_order(summary: dict[str, object], scene: Scene, state: str) -> None:
    """The drainer is registered in ``state``; Delta and ``summary`` say what the target says."""
    assert scene.registered() == {"drainer": state}
    assert scene.recorded() == scene.standing() == summary["resolved_ts"]
