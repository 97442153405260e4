"""The parent of Spark's Python workers (``spark.python.daemon.module``): PySpark's own, with everything imported, and SIGINT and SIGTERM
blocked. [spark]

PySpark's workers collect garbage after every task, which takes 40 ms if what they have imported is looked through each time, and a small
batch has four tasks. What is imported here is not looked through again. After each task, memory that is free goes back to the system: the
workers of the next step need it (``jobs/allocator.py``).

A worker that waits for its next task when Spark closes its socket ends without a word: PySpark's own tries to report that the socket is
closed, over that socket, and prints a trace that this failed.

systemd sends SIGTERM to every process of a unit. A worker that ended then would fail the batch that the job, which receives the signal too,
is about to finish. Workers still end when Spark closes their input, which also happens when the JVM dies.
"""

import gc
import signal
import sys
from io import BufferedReader, BufferedWriter

import pyspark.worker
from pyspark.daemon import manager

from pyspark_tidb_binlog.jobs.allocator import give_back, reuse_blocks
from pyspark_tidb_binlog.jobs.worker_forks import preload

_run_task = pyspark.worker.main


def run_task(infile: BufferedReader, outfile: BufferedWriter) -> None:
    """Run the next task of a worker, then give memory back; exit if no task will come."""
    if not infile.peek(1):
        sys.exit(1)
    _run_task(infile, outfile)
    give_back()


if __name__ == "__main__":
    # Blocked rather than ignored: PySpark sets handlers of its own, here and in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    preload()
    pyspark.worker.main = run_task
    gc.collect()
    gc.freeze()
    reuse_blocks()
    manager()
