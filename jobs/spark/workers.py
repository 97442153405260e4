"""The parent of Spark's Python workers (``spark.python.daemon.module``): PySpark's own, with everything imported, and SIGINT and SIGTERM
blocked. [spark]

PySpark's workers collect garbage after every task. With the imported modules included, a collection takes 40 ms, and a small batch has four tasks. So the
collector skips the modules imported here. After each task, free memory goes back to the system, for the workers of the next step
(``jobs/spark/allocator.py``).

The JVM writes a task to its worker in small pieces, over TCP without TCP_NODELAY: the second piece leaves when the first is acknowledged. A receiver
without data to send delays the acknowledgement by 40 ms. So a worker acknowledges the beginning of a task at once, and sends its own small pieces
without waiting.

systemd sends SIGTERM to every process of a unit, also to the job, which then finishes its batch. If a worker ended on SIGTERM, that batch would fail.
Workers still end when Spark closes their input, also when the JVM dies.
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
    """Make a TCP connection acknowledge received data at once, and send written data at once. Other connections stay unchanged."""
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
