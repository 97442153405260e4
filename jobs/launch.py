"""What ``spark-submit.sh`` runs: ``launch.py [SPARK OPTIONS --] JOB [options]`` calls ``main`` of the module ``jobs.JOB``.

Promises: the job's code is imported as a module and is never ``__main__``, so functions sent to executors are pickled by name. The job is
the process that was started; a Spark job has the JVM as its child (``jobs/jvm.py``), which starts while the job's modules are imported and
has exited when the job ends.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from pyspark_tidb_binlog.jobs import jvm
from pyspark_tidb_binlog.jobs.cli import run_job
from pyspark_tidb_binlog.jobs.signals import REQUEST, stop_on_signals

UNTIL_STOPPED = frozenset({"demo", "drainer", "pump", "rehearse"})
"""Jobs that handle stop requests from their start on."""


def main(argv: Sequence[str]) -> int:
    """Run a job; returns its exit code."""
    spark, job, options = split(argv)
    if job in UNTIL_STOPPED:
        stop_on_signals()
    child = jvm.launch(spark) if spark else None
    try:
        if child is not None:
            REQUEST.at_once(child.kill)
        return run_job(lambda given: import_module(f"{__package__}.{job}").main(given), options)
    finally:
        if child is not None:
            child.end()


def split(argv: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Spark's options, the job, the job's options. Spark's come first, begin with a dash and end with ``--``."""
    given = list(argv)
    end = given.index("--") if given[0].startswith("-") else -1
    return given[: max(end, 0)], given[end + 1], given[end + 2 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
