"""The real job of a drainer (``jobs.drainer``) in a process group of its own, started by ``spark-submit.sh``."""

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 900.0
"""Longer than any run between two deaths takes, also on a busy machine."""


class Drainer:
    """One life of the drainer: a process group of its own."""

    def __init__(self, command: list[str], environ: dict[str, str], out: Path) -> None:
        """Start it. ``TIDB_BINLOG_DIE_PID`` is its own process, known only once it runs: the shell in front says it."""
        self._out = out
        shell = f'export {failpoints.DIE_PID}=$$; exec "$@"'
        with out.open("wb") as stream:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", shell, "sh", *command],
                env=environ,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def __enter__(self) -> "Drainer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave nothing of it behind."""
        self.kill()

    @property
    def pid(self) -> int:
        """The job's own process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the job's own process is alive."""
        return self._process.poll() is None

    def wait(self, seconds: float = RUN_SECONDS) -> int:
        """Its exit code, negative for a signal."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the drainer still runs after {seconds:.0f} s:\n{self.output()}") from error

    def until(self, condition: Callable[[], bool], *, seconds: float = RUN_SECONDS, pause: float = 0.02) -> None:
        """Wait for what it does; it must not end before."""

        @functools.wraps(condition)
        def met() -> bool:
            found = condition()
            assert found or self.running, self.output()
            return found

        eventually(met, seconds=seconds, seen=self.output, pause=pause)

    def kill(self) -> None:
        """``kill -9`` of the driver, its JVM and Spark's Python processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it to the driver and its JVM."""
        os.killpg(self._process.pid, number)

    def output(self) -> str:
        """The last of what it printed."""
        return self._out.read_text(errors="replace")[-6000:]


def environ_of(target: PrivateMariaDB | None, log: Path) -> dict[str, str]:
    """The environment of a drainer that writes to ``target``: nothing of ours from outside, and the password."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TIDB_BINLOG")}
    return environ | {"PYTHONPATH": str(ROOT), "TIDB_BINLOG_LOG": str(log)} | password_of(target)


def password_of(target: PrivateMariaDB | None) -> dict[str, str]:
    """The variable with the password of ``target``."""
    return {"TIDB_BINLOG__SYNCER__TO__PASSWORD": target.target().password} if target else {}


def arguments_of(flags: Mapping[str, object]) -> list[str]:
    """The flags of a drainer's command."""
    return [f"--{name}={value}" for name, value in flags.items()]


def command_of(flags: Mapping[str, object]) -> list[str]:
    """The drainer's command."""
    return [str(ROOT / "spark-submit.sh"), "drainer", "--progress=json", *arguments_of(flags)]


def drainer_of(pumps: str, cluster_id: int, delivery: str, target: PrivateMariaDB, work_dir: Path, more: Mapping[str, object]) -> Drainer:
    """A drainer of these Pumps that reads from the beginning; ``more`` flags."""
    to = target.target()
    flags = {
        "spark.pumps": pumps,
        "spark.cluster-id": cluster_id,
        "spark.delivery": delivery,
        "initial-commit-ts": 0,
        "syncer.to.port": to.port,
        "spark.socket": to.socket,
        "syncer.to.user": to.user,
        "addr": "127.0.0.1:0",
        "node-id": "drainer",
        "tidb-status": work_dir / "history.json",
        "checkpoint-dir": work_dir / "spark",
        "delta-dir": work_dir / "delta",
    }
    return Drainer(command_of(flags | more), environ_of(target, work_dir / "job.log"), work_dir / "out.txt")
