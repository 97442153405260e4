"""A server of this project that prints ``serving HOST:PORT``, as a separate process; the standalone registry as one.

Promises: ``start`` returns when the server accepts calls, or raises ``PumpUnavailable`` with its stderr. ``kill`` is ``kill -9``. ``start`` after ``kill``
or ``stop`` uses the same data directory and the same port. The process ends with its parent, even if the parent is killed (if ``setpriv`` exists).
"""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from pyspark_tidb_binlog.conf.entry import CODE, IN_CHECKOUT
from pyspark_tidb_binlog.jobs.spark.jvm_settings import PUMPS
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 15.0
_SERVING = "serving "


def dies_with_parent(number: str) -> tuple[str, ...]:
    """The prefix of a command with which the kernel sends this signal when the parent dies; empty if ``setpriv`` does not exist.

    The kernel sends the signal when the parent thread ends: use the prefix only in the main thread.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return ()
    return (setpriv, "--pdeathsig", number)


class ServerProcess:
    """``python -m MODULE FLAGS`` that prints ``serving HOST:PORT``."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._name = name
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """The host:port that it serves."""

    @property
    def pid(self) -> int:
        """The process id, 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> "ServerProcess":
        """Start the process and wait until it serves."""
        paths = [*([str(CODE)] if IN_CHECKOUT else []), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {**os.environ, **PUMPS, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        with tempfile.TemporaryFile() as errors:
            # a separate session: Ctrl-C in the terminal must reach only the job, which then stops its servers in order
            command = [*dies_with_parent("KILL"), *self._command]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environ, start_new_session=True)
            line = self._first_line(self._process)
            if not line.startswith(_SERVING):
                self.kill()
                errors.seek(0)
                raise PumpUnavailable(f"{self._name} did not start ({line!r}): {errors.read().decode(errors='replace').strip()[-2000:]}")
        self.address = line.removeprefix(_SERVING).strip()
        return self

    def _first_line(self, process: subprocess.Popen[bytes]) -> str:
        if process.stdout is None:
            return ""
        deadline = time.monotonic() + _START_TIMEOUT
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return "no answer in time"
        return process.stdout.readline().decode(errors="replace")

    def kill(self) -> None:
        """``kill -9``, and wait until the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def stop(self) -> None:
        """SIGTERM, and wait; ``kill -9`` if it does not end."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap(self._process)

    def wait(self, seconds: float) -> int:
        """Wait until the process has ended by itself; its exit code. ``PumpUnavailable`` if it still runs after ``seconds``."""
        if self._process is None:
            return 0
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise PumpUnavailable(f"{self._name} still runs after {seconds:g} s") from error
        self._reap(self._process)
        return code

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def __enter__(self) -> "ServerProcess":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


class UpstreamProcess(ServerProcess):
    """``python -m pyspark_tidb_binlog.jobs.lab.registry.standalone``; a port of 0 is chosen at the first start and kept."""

    def __init__(self, data_dir: Path, cluster_id: int, *, addr: str = "127.0.0.1:0", history: Path | None = None, floor: int = 0) -> None:
        self._flags = [f"--data-dir={data_dir}", f"--cluster-id={cluster_id}", f"--floor={floor}"]
        self._flags += [f"--history={history}"] if history is not None else []
        super().__init__("registry", self._with(addr))

    def start(self) -> "UpstreamProcess":
        """See ``ServerProcess``."""
        super().start()
        self._command = self._with(self.address)
        return self

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.address}"

    def _with(self, addr: str) -> list[str]:
        return [sys.executable, "-m", "pyspark_tidb_binlog.jobs.lab.registry.standalone", *self._flags, f"--addr={addr}"]
