"""Spark's Python processes as forks, on a local master: their imports happen once, and share memory. [spark]

A stream needs five processes before its first batch: Spark looks for data sources, creates the source, runs it on the driver, plans its reads and
starts workers. As interpreters of their own, each would import PySpark, Arrow and this project: the first
batch would come after 14.8 s instead of 6.4 (two cores, ``bench_start``).

    job:     WorkerForks() -> starts the JVM -> imports PRELOADED -> fork() -> goes on
    program: WorkerForks() -> begin() -> starts the JVM -> goes on; a new process imports PRELOADED meanwhile
    JVM:     jobs/spark/worker-python -m pyspark.daemon … -> fork_client.py -> the process that forks -> a fork that runs the module

Promises: the forking process has one thread, keeps no descriptor of the job except stdin, stdout and stderr, and ends with the job, also after
``kill -9``. A fork gets Spark's arguments, environment, directory and streams, and ignores the signals that Spark's JVM ignores. A fork ends at once:
threads are not joined, ``atexit`` is not called. Without a forking process, Spark's processes are plain interpreters.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from pyspark_tidb_binlog.jobs.spark.fork_client import FORKS, TAKEN
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import WORKER_MODULES

PRELOADED = (
    # What PySpark, PyArrow and grpcio import at their first use, in each process again.
    "encodings.idna",
    "grpc.experimental",
    "pandas",
    "pyarrow.acero",
    *WORKER_MODULES,
    "pyspark_tidb_binlog.binlog_source.spark_format",
    "pyspark_tidb_binlog.sinks.mysql.parallel",
)
"""What Spark's Python processes import for a stream of ours."""
PYTHON = Path(__file__).resolve().with_name("worker-python")
"""For ``PYSPARK_PYTHON``."""
FORKED_BY = (FORKS, "TIDB_BINLOG_PYTHON", "PYSPARK_PYTHON")
"""Environment variables by which the JVM finds who forks."""
_BACKLOG = 64
_REQUEST_SECONDS = 5.0
"""Within which a request must be complete: one at a time is received."""
_PAUSE = 0.05
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def preload() -> None:
    """Import ``PRELOADED``."""
    for name in PRELOADED:
        import_module(name)


class WorkerForks:
    """The place where forks are asked for; requests before ``fork`` wait."""

    def __init__(self) -> None:
        """Bind the socket, and name it in the environment for the JVM that is started next.

        Raises:
            OSError: there can be no socket: its path is too long, or the file system has none.
        """
        self._place = Path(tempfile.mkdtemp(prefix="tbs-forks-"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self._place / "socket"))
        except OSError:
            self._listener.close()
            shutil.rmtree(self._place, ignore_errors=True)
            raise
        self._listener.listen(_BACKLOG)
        self._alive = -1
        self._begun: subprocess.Popen[bytes] | None = None
        os.environ |= {FORKS: str(self._place / "socket"), "TIDB_BINLOG_PYTHON": sys.executable, "PYSPARK_PYTHON": str(PYTHON)}

    def begin(self, out: IO[bytes]) -> None:
        """Start the process that forks as a new one, because this one may have threads; ``out``: where it prints. Ends with this process."""
        number = self._listener.fileno()
        command = [sys.executable, "-m", __name__, str(number), str(self._place)]
        # What an interpreter reads when it starts is as Spark sets it: hashes of text are the same in each run, and prints come at once.
        environ = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"} | os.environ
        read, self._alive = os.pipe()
        try:
            self._begun = subprocess.Popen(command, stdin=read, stdout=out, stderr=out, pass_fds=[number], env=environ)
        except OSError:
            self.close()
            raise
        finally:
            os.close(read)
        self._listener.close()
        self._begun_by = os.getpid()
        atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        # a fork of the program comes here too, if it ends as an interpreter does
        if os.getpid() == self._begun_by:
            self.close()

    def fork(self) -> None:
        """Start the process that forks, with everything imported that this process has imported and ``PRELOADED``."""
        preload()
        ended, self._alive = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            try:
                _only(self._listener.fileno(), ended)
                _serve(self._listener, ended)
            finally:
                # whatever happens, it must not return into the code of the job
                shutil.rmtree(self._place, ignore_errors=True)
                os._exit(0)
        os.close(ended)
        self._listener.close()

    def close(self) -> None:
        """End the process that forks; forks that run are not affected."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        if self._begun is not None:
            self._begun.kill()
            self._begun.wait()
        self._listener.close()
        shutil.rmtree(self._place, ignore_errors=True)


def _serve_alone(listener: socket.socket, place: Path) -> None:
    """In the process of ``begin``, whose standard input ends with the program."""
    try:
        preload()
        _serve(listener, sys.stdin.fileno())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _only(*kept: int) -> None:
    """Close the descriptors of the job: with a pipe's end still open here, the JVM would not see that the job has ended."""
    last = 3
    for descriptor in sorted(kept):
        os.closerange(last, descriptor)
        last = descriptor + 1
    os.closerange(last, os.sysconf("SC_OPEN_MAX"))


def _serve(listener: socket.socket, ended: int) -> None:
    """Fork for each request until the job has ended."""
    # A collection writes to every object that it looks through, so that forks would soon share nothing.
    gc.collect()
    gc.freeze()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # PySpark's workers set handlers of their own, which a blocked signal does not reach: systemd sends SIGTERM to every process of a unit, and the job
    # then finishes its batch. Workers end when Spark closes their input.
    signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    while ended not in select.select([listener.fileno(), ended], [], [])[0]:
        try:
            _serve_one(listener, ended)
        except (OSError, ValueError, KeyError):
            # who asked has gone, or there are no descriptors or processes left for now: the others go on asking
            time.sleep(_PAUSE)


def _serve_one(listener: socket.socket, ended: int) -> None:
    """Fork for one request."""
    link, _ = listener.accept()
    with link, contextlib.ExitStack() as passed:
        request = _received(link, passed)
        link.sendall(TAKEN)
        if os.fork() == 0:
            try:
                listener.close()
                os.close(ended)
                _run(request, link)
            finally:
                os._exit(1)


@dataclass(frozen=True, slots=True)
class _Request:
    """The process that is asked for."""

    arguments: list[str]
    environ: dict[str, str]
    directory: str
    streams: list[int]


def _received(link: socket.socket, passed: contextlib.ExitStack) -> _Request:
    """A request; ``passed`` closes the descriptors that came with it.

    Raises:
        OSError: it did not come.
        ValueError, KeyError: it is not one.
    """
    link.settimeout(_REQUEST_SECONDS)
    head, streams, _, _ = socket.recv_fds(link, 4, 3)
    for stream in streams:
        passed.callback(os.close, stream)
    with link.makefile("rb") as rest:
        size = int.from_bytes(head + rest.read(4 - len(head)), "big")
        found: dict[str, Any] = json.loads(rest.read(size))
    if len(streams) != 3:
        raise ValueError("a request has three streams")
    link.settimeout(None)
    return _Request(list(found["arguments"]), dict(found["environ"]), str(found["directory"]), streams)


def _run(request: _Request, link: socket.socket) -> NoReturn:
    """In the fork: be the process that was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream, given in enumerate(request.streams):
        os.dup2(given, stream)
        os.close(given)
    code = 1
    try:
        os.environ.clear()
        os.environ.update(request.environ)
        os.chdir(request.directory)
        sys.path[:0] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in sys.path]
        code = _exit_code(request.arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # what an interpreter prints and ends with
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        with contextlib.suppress(OSError):
            link.sendall(bytes([code & 0xFF]))
        os._exit(code & 0xFF)


def _exit_code(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["-c", code, *rest]:
                sys.argv = ["-c", *rest]
                exec(code, {"__name__": "__main__"})
            case ["-m", module, *rest]:
                sys.argv = [module, *rest]
                # that the module was imported before it is run is the point
                warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case _:
                raise ValueError(f"not an interpreter's arguments: {arguments}")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    _serve_alone(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
