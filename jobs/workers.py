"""The parent of Spark's Python workers (``spark.python.daemon.module``): PySpark's own, with everything imported, and SIGINT and SIGTERM
blocked. [spark]

PySpark's workers collect garbage after every task, which takes 40 ms if what they have imported is looked through each time, and a small
batch has four tasks. What is imported here is not looked through again. After each task, memory that is free goes back to the system: the
workers of the next step need it (``jobs/allocator.py``).

systemd sends SIGTERM to every process of a unit. A worker that ended then would fail the batch that the job, which receives the signal too,
is about to finish. Workers still end when Spark closes their input, which also happens when the JVM dies.
"""

import gc
import signal
import socket

from pyspark import daemon

from pyspark_tidb_binlog.jobs.allocator import give_back, reuse_blocks
from pyspark_tidb_binlog.jobs.worker_forks import preload

_run_task = daemon.worker


def _one_task(sock: socket.socket, authenticated: bool) -> int:
    code = _run_task(sock, authenticated)
    give_back()
    return code


if __name__ == "__main__":
    # Blocked rather than ignored: PySpark sets handlers of its own, here and in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    preload()
    gc.collect()
    gc.freeze()
    reuse_blocks()
    daemon.worker = _one_task
    daemon.manager()
