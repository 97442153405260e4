"""The process that ``jobs/command.py`` becomes: ``launch.py [SPARK OPTIONS --] JOB [options]`` calls ``main`` of the module ``jobs.JOB``.

Promises: the job's code is imported as a module and is never ``__main__``, so functions sent to executors are pickled by name. The job runs in
the process that was started. The JVM of a Spark job is its child (``jobs/spark/jvm.py``): it starts while the job imports its modules, and exits
before the job ends.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from pyspark_tidb_binlog.jobs.entry.cli import run_job
from pyspark_tidb_binlog.jobs.entry.signals import REQUEST, stop_on_signals
from pyspark_tidb_binlog.jobs.spark import jvm
from pyspark_tidb_binlog.jobs.spark.jvm_settings import is_local
from pyspark_tidb_binlog.jobs.spark.worker_forks import PYTHON, WorkerForks

_log = logging.getLogger(__name__)

UNTIL_STOPPED = frozenset({"demo", "drainer", "playground", "pump", "rehearse"})
"""Jobs that handle stop requests from their start on."""


def main(argv: Sequence[str]) -> int:
    """Run a job; returns its exit code."""
    spark, job, options = split(argv)
    if job in UNTIL_STOPPED:
        stop_on_signals()
    with contextlib.ExitStack() as then:
        if spark:
            forks = _worker_forks(spark)
            if forks is not None:
                then.callback(forks.close)
            child = jvm.launch(spark)
            then.callback(child.end)
            REQUEST.at_once(child.kill)
            if forks is not None:
                import_module(f"{__package__}.{job}")
                forks.fork()
            child.listen()
        return run_job(lambda given: import_module(f"{__package__}.{job}").main(given), options)


def _worker_forks(spark: Sequence[str]) -> WorkerForks | None:
    """None if Spark's Python processes cannot be forks of this process, as on other machines."""
    master = spark[spark.index("--master") + 1] if "--master" in spark else ""
    if not is_local(master) or os.environ.get("PYSPARK_PYTHON") != sys.executable or not os.access(PYTHON, os.X_OK):
        return None
    try:
        return WorkerForks()
    except OSError as error:
        _log.warning("Spark's Python processes start as plain interpreters, not as forks: %s", error)
        return None


def split(argv: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Spark's options, the job, the job's options. Spark's come first, begin with a dash and end with ``--``."""
    given = list(argv)
    end = given.index("--") if given[0].startswith("-") else -1
    return given[: max(end, 0)], given[end + 1], given[end + 2 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
