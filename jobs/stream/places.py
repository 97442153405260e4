"""Small files in Spark's checkpoint directory: ``var/spark``, ``file:///…``, ``s3a://…``, ``hdfs://…``, ``dbfs:/…``. [spark]

Promises: a path means the same as in Spark, because Spark's own file manager for checkpoints reads and writes the files. A file is
replaced as a whole, atomically if the file system supports that.
"""

from typing import Any

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.jobs.spark.pyspark_insides import checkpoint_file_manager
from pyspark_tidb_binlog.sinks.engine.spark_jvm import jvm_of


class CheckpointFiles:
    """A directory, as ``checkpointLocation`` names it."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        """Nothing is read or created."""
        self.uri = uri
        jvm = jvm_of(spark)
        self._path = jvm.org.apache.hadoop.fs.Path
        self._bytes_of = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._root = self._path(uri)
        self._files = checkpoint_file_manager(spark, self._root)

    def read(self, name: str) -> str | None:
        """The text of the file ``name``; None where there is none."""
        path = self._at(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._bytes_of(stream)).decode()
        finally:
            stream.close()

    def names(self, directory: str) -> list[str]:
        """The names of the files in ``directory``; none where there is no such directory."""
        path = self._at(directory)
        return [str(found.getPath().getName()) for found in self._files.list(path)] if self._files.exists(path) else []

    def write(self, name: str, text: str) -> None:
        """Create or replace the file ``name``; creates a missing directory."""
        if self.read(name) == text:
            return
        self._files.mkdirs(self._root)
        self._create(name, text)
        if self.read(name) != text:
            # This file system cannot rename onto an existing file, and Spark only logs that.
            self.delete(name)
            self._create(name, text)

    def delete(self, name: str) -> None:
        """Delete the file ``name``, if it is there."""
        self._files.delete(self._at(name))

    def _create(self, name: str, text: str) -> None:
        stream = self._files.createAtomic(self._at(name), True)
        stream.write(text.encode())
        stream.close()

    def _at(self, name: str) -> Any:
        return self._path(self._root, name)
