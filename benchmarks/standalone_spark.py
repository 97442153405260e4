"""A standalone Spark cluster on this machine: a master and workers with the given cores, as processes on loopback.

Promises: as in a real cluster, executors get this project as a zip (``--py-files``), and do not see its directory or the driver's environment. All files
are written below one directory. All processes have ended at the end of the ``with`` block.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.jobs.spark.code_zip import write_zip
from pyspark_tidb_binlog.schemas.errors import ConfigError

_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


class StandaloneSpark:
    """``workers`` workers of ``cores`` cores and ``memory`` MiB, with one executor each."""

    def __init__(self, work_dir: Path, workers: int = 2, cores: int = 1, memory: int = 1024) -> None:
        """Nothing is started before the ``with`` block."""
        self._work_dir = work_dir
        self._workers, self._cores, self._memory = workers, cores, memory
        self._stack = contextlib.ExitStack()
        self.url = ""
        """The master's."""

    def __enter__(self) -> "StandaloneSpark":
        """Start the processes; returns when the master listens."""
        port = free_port()
        self.url = f"spark://{_HOST}:{port}"
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._running("master", _MASTER, "--host", _HOST, "--port", str(port), "--webui-port", "0"))
            self._wait_for(port)
            size = ("--cores", str(self._cores), "--memory", f"{self._memory}m")
            for number in range(1, self._workers + 1):
                place = ("--host", _HOST, "--webui-port", "0", "--work-dir", str(self._work_dir / f"worker-{number}"))
                stack.enter_context(self._running(f"worker-{number}", _WORKER, *size, *place, self.url))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop them."""
        self._stack.close()

    def settings(self) -> dict[str, str]:
        """Spark's settings for a driver that uses the whole cluster and begins when all of it is there."""
        code = self._work_dir / "py-files" / "tidb_binlog_spark.zip"
        write_zip(code)
        return {
            "spark.submit.pyFiles": str(code),
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.executor.cores": str(self._cores),
            # the rest is for Python and what the JVM uses beside its heap; a standalone worker counts the heap only
            "spark.executor.memory": f"{self._memory}m",
            "spark.cores.max": str(self._cores * self._workers),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_START_SECONDS:.0f}s",
        }

    @contextlib.contextmanager
    def _running(self, name: str, *command: str) -> Iterator[None]:
        home = Path(pyspark.__file__).parent
        without = ("PYTHONPATH", "PYSPARK_PYTHON", "SPARK_HOME")
        environ = {key: value for key, value in os.environ.items() if key not in without}
        environ |= {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": _HOST, "PYSPARK_PYTHON": sys.executable}
        place = self._work_dir / name
        place.mkdir(parents=True, exist_ok=True)
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command],
                cwd=place,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield
            finally:
                process.terminate()
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _wait_for(self, port: int) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection((_HOST, port), 1.0):
                return
            time.sleep(0.1)
        raise ConfigError(f"Spark's master did not listen within {_START_SECONDS:.0f} s; its log is {self._work_dir / 'master' / 'log'}")
