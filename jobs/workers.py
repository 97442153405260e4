"""The parent of Spark's Python workers (``spark.python.daemon.module``): PySpark's own, deaf to Ctrl-C and SIGTERM. [spark]

systemd sends SIGTERM to every process of a unit. A worker that obeyed would fail the batch that the job, which heard it too, is about to end in order.
Workers end as ever when Spark closes their input, which also happens when the JVM dies.
"""

import signal

from pyspark.daemon import manager

if __name__ == "__main__":
    # Blocked rather than ignored: PySpark sets handlers of its own, here and in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    manager()
