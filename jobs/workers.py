"""The parent of Spark's Python workers (``spark.python.daemon.module``): PySpark's own, with everything imported, and SIGINT and SIGTERM
blocked. [spark]

PySpark's workers collect garbage after every task, which takes 40 ms if what they have imported is looked through each time, and a small
batch has four tasks. What is imported here is not looked through again.

systemd sends SIGTERM to every process of a unit. A worker that ended then would fail the batch that the job, which receives the signal too,
is about to finish. Workers still end when Spark closes their input, which also happens when the JVM dies.
"""

import gc
import signal

from pyspark.daemon import manager

from pyspark_tidb_binlog.jobs.worker_forks import preload

if __name__ == "__main__":
    # Blocked rather than ignored: PySpark sets handlers of its own, here and in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    preload()
    gc.collect()
    gc.freeze()
    manager()
