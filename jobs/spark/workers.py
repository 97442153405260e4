"""The parent of Spark's Python workers (``spark.python.daemon.module``): PySpark's own, with everything imported, and SIGINT and SIGTERM
blocked. [spark]

PySpark's workers collect garbage after every task, which takes 40 ms if what they have imported is looked through each time, and a small
batch has four tasks. What is imported here is not looked through again. After each task, memory that is free goes back to the system: the
workers of the next step need it (``jobs/spark/allocator.py``).

The JVM writes a task to its worker in small pieces, over TCP without TCP_NODELAY: a second piece leaves when the first is acknowledged, which
a receiver that has nothing to say puts off by 40 ms. So a worker acknowledges the beginning of a task at once, and sends its own small pieces
without waiting.

systemd sends SIGTERM to every process of a unit. A worker that ended then would fail the batch that the job, which receives the signal too,
is about to finish. Workers still end when Spark closes their input, which also happens when the JVM dies.
"""

import gc
import os
import signal
import socket
from io import BufferedReader, BufferedWriter

from pyspark_tidb_binlog.jobs.spark.allocator import give_back, reuse_blocks
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import serve_workers, worker_main
from pyspark_tidb_binlog.jobs.spark.worker_forks import preload

_run_task = worker_main()


def run_task(infile: BufferedReader, outfile: BufferedWriter) -> None:
    """PySpark's ``main`` of a worker, over a connection that does not wait; then memory is given back."""
    if infile.peek(1):
        # Only now: Linux forgets the wish with what it acknowledges next.
        hurry(infile.fileno())
    _run_task(infile, outfile)
    give_back()


def hurry(descriptor: int) -> None:
    """Have a TCP connection acknowledge at once what it has received, and send at once what is written. Others are left as they are."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_QUICKACK"):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


if __name__ == "__main__":
    # Blocked rather than ignored: PySpark sets handlers of its own, here and in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    preload()
    gc.collect()
    gc.freeze()
    reuse_blocks()
    serve_workers(run_task)
