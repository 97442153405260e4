"""Spark's JVM as a child of the job, started while the job imports its modules: as in ``spark-submit``, but with the job as the parent.

Promises: only the job reacts to signals. The JVM ignores SIGINT, SIGTERM and SIGHUP from any sender, so that a stream can stop between two batches. The
JVM ends when its stdin closes, so never later than the job. The output of the JVM and of Spark's Python workers goes to the job's log; if the JVM does
not start, the output goes into the error.
"""

import contextlib
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark_tidb_binlog.jobs.entry.logs import spark_log_file
from pyspark_tidb_binlog.jobs.spark import pyspark_insides
from pyspark_tidb_binlog.jobs.spark.jvm_settings import is_local
from pyspark_tidb_binlog.schemas.errors import ConfigError, Stopped

_log = logging.getLogger("spark")

END_SECONDS = 8.0
"""How long Spark may take to shut down."""
_POLL_SECONDS = 0.02
_IGNORING = ("/bin/sh", "-c", "trap '' INT TERM HUP; exec \"$@\"", "sh")
"""An ignored signal stays ignored over exec, and a JVM installs no handler for a signal that it finds ignored."""
_NO_NEWS = (
    "WARNING: Using incubator modules",
    "Starting Streaming TransformWithStateInPandas Python worker",
    "Streaming TransformWithStateInPandas Python worker",
)
"""Not logged: the JVM's notice about its own vector module, and the steps of a worker of PySpark, whose errors come as such."""


class Jvm:
    """``spark-submit ARGUMENTS pyspark-shell``, waiting for PySpark."""

    def __init__(self, spark_home: str, arguments: Sequence[str]) -> None:
        """Start the process without waiting for it."""
        self._place = tempfile.TemporaryDirectory(prefix="tbs-jvm-")
        self._connection = Path(self._place.name) / "connection"
        environ = os.environ | {
            **pyspark_insides.telling(self._connection),
            "SPARK_SUBMIT_OPTS": f"-Dtidb.binlog.log={spark_log_file()} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        }
        command = [*_IGNORING, f"{spark_home}/bin/spark-submit", *arguments, "pyspark-shell"]
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._printed: deque[str] = deque(maxlen=50)
        self._reader = threading.Thread(target=self._read, name="spark-output", daemon=True)

    def listen(self) -> None:
        """Begin to pass its output on. A thread: what forks (``jobs/spark/worker_forks.py``) does so before."""
        self._reader.start()

    def connect(self, asked: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the JVM and pass its address to PySpark in the environment. False: ``asked`` requested a stop meanwhile.

        Raises:
            ConfigError: it exited instead; the message has its output.
        """
        if pyspark_insides.is_reached():
            return True
        while not self._connection.exists():
            if asked():
                return False
            if self._process.poll() is not None:
                self._reader.join(1.0)
                raise ConfigError(f"Spark did not start (exit code {self._process.returncode}):\n" + "\n".join(self._printed))
            time.sleep(_POLL_SECONDS)
        pyspark_insides.reach(self._connection.read_bytes())
        self._place.cleanup()
        return True

    def end(self) -> None:
        """Let the JVM shut down and wait until it has exited; safe to call twice."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            _log.warning("Spark's JVM did not end within %.0f s and is killed", END_SECONDS)
            self.kill()
            self._process.wait()
        if self._reader.ident is not None:
            self._reader.join(1.0)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        self._place.cleanup()

    def kill(self) -> None:
        """``kill -9``; Spark's Python workers find their input closed and end."""
        self._process.kill()

    def _read(self) -> None:
        """Runs in a thread that is joined with a timeout, because a worker that briefly outlives the JVM keeps the pipe open."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (text := line.rstrip()) and not text.startswith(_NO_NEWS):
                self._printed.append(text)
                _log.info("%s", text)


def local_cores(master: str) -> int | None:
    """Threads of a local master (``local``, ``local[4]``, ``local[*,2]``), None for a cluster's."""
    if not is_local(master):
        return None
    inside = master.removeprefix("local").strip("[]").partition(",")[0]
    if inside == "*":
        return len(os.sched_getaffinity(0))
    return int(inside or 1)


_current: Jvm | None = None


def launch(arguments: Sequence[str]) -> Jvm:
    """Start the JVM of this process."""
    global _current
    _current = Jvm(os.environ["SPARK_HOME"], arguments)
    return _current


def connect(asked: Callable[[], bool]) -> bool:
    """Whether there is a JVM for PySpark: the one of ``launch``, once it answers, or the one from which Spark started this process.

    Raises:
        ConfigError: the one of ``launch`` did not start.
        Stopped: ``asked`` requested it.
    """
    if _current is None:
        return pyspark_insides.is_reached()
    if not _current.connect(asked):
        raise Stopped("stopped before Spark had started")
    return True
