"""The message of a job when a disk of Spark was full: the messages of Spark and RocksDB name no directory of the settings.

Promises: changes nothing. The check runs after the failure, so more space may be free than at the failure.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.jobs.entry.local_paths import local_path
from pyspark_tidb_binlog.schemas.errors import ReplicationError

_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_MB = 1 << 20


class FullDisks:
    """The directories on this machine that Spark writes to for a stream."""

    def __init__(self, spark: SparkSession, checkpoint_dir: str) -> None:
        """``checkpoint_dir``: the stream's."""
        found = spark.sparkContext.getConf().get("spark.local.dir") or tempfile.gettempdir()
        scratch = os.environ.get("SPARK_LOCAL_DIRS", found).split(",")
        named = [("spark.checkpoint-dir", local_path(checkpoint_dir)), *(("Spark's temporary files in", Path(one)) for one in scratch)]
        self._named = [(name, path) for name, path in named if path is not None]

    def failure_in(self, trace: str) -> ReplicationError | None:
        """The message, if ``trace``, of Spark or its workers, is that of a full disk."""
        said = _FULL.search(trace)
        if said is None:
            return None
        return ReplicationError(
            f"the disk is full ({said[0]}): {'; '.join(self._figures())}. Free space, or set other directories, and start again: the stream resumes from "
            "the target's record; nothing is lost or written twice"
        )

    def _figures(self) -> Iterator[str]:
        for name, path in self._named:
            try:
                there = next((one for one in (path, *path.absolute().parents) if one.exists()), Path("/"))
                free = f"{shutil.disk_usage(there).free // _MB} MB free on this machine"
            except OSError as error:
                free = f"cannot be looked at ({error})"
            yield f"{name} {path}: {free}"
