"""Signals to a running drainer, Pump and demo, as a user, Kubernetes and systemd send them: it ends in order, and leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as parquet
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.binlog_source.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.jobs.demo import PUMPS, upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.eventually import eventually

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.grpc]

ENTRY = str(Path(__file__).parents[2] / "spark-submit.sh")
LONGEST = 240.0
"""Seconds after which a test gives up; what is asserted about time has a much lower bound in the product."""

Send = Callable[["Job", signal.Signals], None]


class Job:
    """``./spark-submit.sh …`` in a process group of its own, its output in files."""

    def __init__(self, work_dir: Path, *arguments: str) -> None:
        self.out, self.err, self.log = work_dir / "out.txt", work_dir / "err.txt", work_dir / "job.log"
        environ = os.environ | {"TIDB_BINLOG_LOG": str(self.log)}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen([ENTRY, *arguments], env=environ, cwd=work_dir, stdout=out, stderr=err, start_new_session=True)
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

    def drainer(self) -> Job:
        to = self.target.target()
        secret = self.work_dir / "password"
        secret.write_text(to.password)
        job = Job(
            self.work_dir,
            "drainer",
            f"--pumps={self.workload.url}",
            "--starting-commit-ts=0",
            f"--ddl-history={self.workload.url}",
            f"--resolver={self.workload.url}",
            f"--syncer.to.socket={to.socket}",
            f"--syncer.to.user={to.user}",
            f"--syncer.to.password-file={secret}",
            f"--checkpoint-dir={self.work_dir / 'spark'}",
            f"--delta-dir={self.work_dir / 'delta'}",
        )
        self.stack.callback(job.end)
        return job

    def registered(self) -> dict[str, str]:
        with contextlib.closing(RegistryClient(self.workload.url)) as registry:
            return {node.node_id: node.state.value for node in registry.listing(DRAINERS).nodes}

    def recorded(self) -> int:
        """The newest resolved_ts in Delta."""
        tables = [parquet.read_table(path, columns=["resolved_ts"]) for path in (self.work_dir / "delta").glob("*.parquet")]
        return max((ts for table in tables for ts in table.column(0).to_pylist()), default=0)

    def standing(self) -> int:
        """The target's checkpoint."""
        with contextlib.closing(self.target.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
            return int(json.loads(cursor.fetchall()[0][0])["commitTS"])


@pytest.fixture
def scene(tmp_path: Path, fresh_mariadb: PrivateMariaDB) -> Iterator[Scene]:
    with upstream(tmp_path, WorkloadConfig(rate=20)) as workload, contextlib.ExitStack() as stack:
        workload.open(PUMPS)
        yield Scene(workload, fresh_mariadb, tmp_path, stack)


def streaming(scene: Scene) -> Job:
    """A drainer in the middle of its work."""
    scene.workload.begin()
    job = scene.drainer()
    eventually(
        lambda: job.process.poll() is not None or any(line.get("transactions") for line in job.lines()),
        seconds=LONGEST,
        what="a batch",
        pause=0.05,
    )
    assert job.process.poll() is None, job.said()
    return job


def ended_in_order(job: Job, scene: Scene) -> dict[str, object]:
    """Status 0, nothing on stderr, a summary, registered as paused, Delta as far as the target, no process left; the summary."""
    assert (job.wait(), job.err.read_text()) == (0, ""), job.said()
    summary = job.lines()[-1]["summary"]
    assert isinstance(summary, dict)
    assert scene.registered() == {"drainer": "paused"}
    assert scene.recorded() == scene.standing() == summary["resolved_ts"]
    job.leaves_nothing()
    return summary


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (to_group, signal.SIGINT),
        (to_everyone, signal.SIGTERM),
        pytest.param(to_process, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(to_process, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(to_group, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(to_everyone, signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_stream_ends_between_two_batches(scene: Scene, send: Send, number: signal.Signals) -> None:
    job = streaming(scene)
    send(job, number)
    assert ended_in_order(job, scene)["batches"]


@pytest.mark.parametrize("send", [to_everyone, pytest.param(to_process, marks=pytest.mark.slow)])
def test_a_start_is_given_up(scene: Scene, send: Send) -> None:
    job = scene.drainer()
    eventually(lambda: job.runs("java"), seconds=LONGEST, what="a JVM", pause=0.05)
    send(job, signal.SIGTERM)
    assert (job.wait(), job.err.read_text()) == (0, ""), job.said()
    assert scene.registered() in ({}, {"drainer": "paused"})
    job.leaves_nothing()


def under_way(job: Job) -> None:
    """Wait until a batch is, in rows or in a DDL: the workload decides which comes next."""
    eventually(lambda: job.lines()[-1].get("holding") in ("apply", "ddl"), seconds=LONGEST, what="a batch under way", pause=0.05)


@contextlib.contextmanager
def held_up(scene: Scene) -> Iterator[None]:
    """A batch that is under way does not end while the block lasts."""
    with contextlib.closing(scene.target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM tidb_binlog.checkpoint FOR UPDATE")
        yield
        cursor.execute("ROLLBACK")


@pytest.mark.slow
def test_a_batch_that_takes_its_time_is_finished(scene: Scene) -> None:
    job = streaming(scene)
    with held_up(scene):
        under_way(job)
        standing = scene.standing()
        job.look()
        to_group(job, signal.SIGTERM)
        time.sleep(1.0)  # less than the batch is given
        assert job.process.poll() is None
    assert ended_in_order(job, scene)["resolved_ts"] != standing


def test_a_batch_that_takes_for_ever_is_left(scene: Scene) -> None:
    job = streaming(scene)
    with held_up(scene):
        under_way(job)
        job.look()
        to_group(job, signal.SIGTERM)
        assert job.wait() == 0, job.said()
    assert ended_in_order(job, scene)["resolved_ts"] == scene.standing()


@pytest.mark.slow
def test_a_target_that_is_away_holds_nobody(scene: Scene) -> None:
    job = streaming(scene)
    scene.target.kill()
    eventually(
        lambda: "not reachable since" in str(job.lines()[-1].get("holding")), seconds=LONGEST, what="it says what it waits for", pause=0.05
    )
    to_process(job, signal.SIGTERM)
    assert (job.wait(), job.err.read_text()) == (0, ""), job.said()
    scene.target.restart()
    assert scene.registered() == {"drainer": "paused"}
    job.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_second_signal_ends_at_once(scene: Scene, number: signal.Signals) -> None:
    job = streaming(scene)
    with held_up(scene):
        under_way(job)
        job.look()
        to_group(job, number)
        time.sleep(0.5)  # two signals at the same moment are one
        to_group(job, number)
        assert job.wait() in (130, 128 + number), job.said()
    job.leaves_nothing()


def test_a_pump_pauses(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        job = Job(tmp_path, "pump", "--addr=127.0.0.1:0", f"--data-dir={tmp_path / 'pump'}")
        eventually(lambda job=job: job.out.read_text().startswith("serving"), seconds=LONGEST, what="it serves", pause=0.05)
        to_group(job, number)
        assert (job.wait(), job.err.read_text()) == (0, ""), job.said()


@pytest.mark.parametrize("numbers", [pytest.param([signal.SIGTERM], marks=pytest.mark.slow), [signal.SIGINT, signal.SIGINT]])
def test_a_demo_leaves_no_server_behind(tmp_path: Path, numbers: list[signal.Signals]) -> None:
    job = Job(tmp_path, "demo", "--seconds=600", "--rate=20")
    with contextlib.ExitStack() as stack:
        stack.callback(job.end)
        eventually(
            lambda: any("now the workload writes" in str(line.get("message")) for line in job.lines()),
            seconds=LONGEST,
            what="the workload writes",
            pause=0.05,
        )
        assert job.runs("java") and job.runs("mariadbd")
        for number in numbers:
            to_group(job, number)
            time.sleep(0.5)  # two signals at the same moment are one
        assert (job.wait() == 0) == (len(numbers) == 1), job.said()
        job.leaves_nothing()
