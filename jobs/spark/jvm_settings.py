"""The options and the environment of Spark's JVM. Imports neither Spark nor any package.

Promises: a program's own session (``jobs/spark/spark_session.py``) and the command (``jobs/command.py``) get the same options. Options of the caller win.
"""

import re

from pyspark_tidb_binlog.conf.entry import HOME
from pyspark_tidb_binlog.jobs.spark.class_archive import ClassArchive

FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Environment variables that make the JVM and Python workers return memory after a large batch.

The last is glibc's own default; setting it keeps glibc from raising it to 32 MiB as large blocks are freed: RocksDB in the JVM held 450 MiB
more without it.
"""
PUMPS = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
"""Those of a Pump, which keeps the buffers of small binlogs (a quarter of its writes a second, ``bench_pump``) and returns those of huge ones."""


def is_local(master: str) -> bool:
    """Whether driver and executors are one JVM on this machine."""
    return master.startswith("local") and not master.startswith("local-cluster")


def jvm_options(archive: ClassArchive | None, *, local: bool, given: str) -> str:
    """JVM options that keep Spark's log off the console and make the JVM start quickly and silently (3 s sooner, ``bench_start``).

    With a ``local`` master those of ``conf/jvm.options`` come first, unless ``given`` names a collector: a JVM accepts only one.
    ``archive`` is used if it fits.
    """
    log = f"-Dlog4j2.configurationFile={(HOME / 'conf' / 'log4j2.properties').as_uri()}"
    ours = (HOME / "conf" / "jvm.options").read_text().strip() if local and not re.search(r"-XX:\+Use\w*GC\b", given) else ""
    classes = f"-XX:SharedArchiveFile={archive.file}" if archive is not None and archive.fits() else ""
    return f"{ours} {log} -Xlog:disable -Xlog:all=error:stderr {classes}".strip()
