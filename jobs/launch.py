"""What ``spark-submit`` is given to run: ``launch.py JOB [options]`` calls ``main`` of the module ``jobs.JOB``.

Promises: the job's code is imported as a module and never is ``__main__``, so whatever it sends to executors is sent by name.
Its stdout and stderr are those of ``spark-submit.sh``: Spark would give a pipe for both and copy it to stdout, so that nobody
could tell a terminal from a file or an error from output.
"""

import io
import os
import sys
from importlib import import_module
from pathlib import Path

from jobs.cli import run_job


def take_console(pid: str) -> None:
    """Make the descriptors 3 and 4 that process ``pid`` keeps for us our stdout and stderr."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            console = os.open(f"/proc/{pid}/fd/{number + 2}", os.O_WRONLY | os.O_APPEND)
        except OSError:
            continue  # a socket, or no /proc: Spark's pipe will do
        os.dup2(console, number)
        os.close(console)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


if __name__ == "__main__":
    if pid := os.environ.pop("TIDB_BINLOG_CONSOLE", ""):
        take_console(pid)
    if runs := os.environ.pop("TIDB_BINLOG_RUNS", ""):
        Path(runs).touch()
    sys.exit(run_job(import_module(f"jobs.{sys.argv[1]}").main, sys.argv[2:]))
