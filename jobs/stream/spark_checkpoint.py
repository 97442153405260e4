"""Spark's checkpoint directory of a stream: the settings that it was made with, and its position. [spark]

Promises: a query continues only with the delivery and the buckets of its state; other settings are refused. One file next to Spark's own keeps these
settings, and the Drainer's name, which ``conf.unset`` uses if ``node-id`` is not set. The file is written atomically: a start may be killed.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.discovery import Waiting, log_waiting
from pyspark_tidb_binlog.binlog_source.source.buckets import bucket_ids
from pyspark_tidb_binlog.binlog_source.stream import resolve_delivery
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.unset import KEPT, KEPT_NODE_ID
from pyspark_tidb_binlog.jobs.entry.local_paths import local_path
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import checkpoint_file_manager
from pyspark_tidb_binlog.jobs.stream.resume import NothingApplied, committed_ts
from pyspark_tidb_binlog.schemas.durable_file import replace_file
from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.sinks.engine.spark_jvm import jvm_of

_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_MB = 1 << 20


class CheckpointFiles:
    """Small files in a directory, as ``checkpointLocation`` names it: ``var/spark``, ``file:///…``, ``s3a://…``, ``hdfs://…``, ``dbfs:/…``.

    A path means the same as in Spark, because Spark's own file manager for checkpoints reads and writes the files. A file is replaced as a whole,
    atomically if the file system supports that.
    """

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


_KEPT_VERSION = 3
_NOTHING_APPLIED = "tidb-binlog-nothing-applied.json"
_BUCKETS_EACH = 2
"""Pairing buckets of a state partition. The next bucket is paired while the output of one is decoded. Each costs a batch 10 ms."""


class SparkCheckpoint:
    """The ``checkpoint_dir`` of a stream."""

    def __init__(self, spark: SparkSession, config: DrainerConfig, waiting: Waiting = log_waiting) -> None:
        """Reads the settings of the directory. If there are none, asks the Pumps; ``waiting`` waits for them.

        Raises:
            ConfigError: the current settings differ from them.
            PumpUnavailable: the Pumps do not answer.
        """
        self._place = CheckpointFiles(spark, config.checkpoint_dir)
        self.disks = FullDisks(spark, config.checkpoint_dir)
        """What is said when one of Spark's is full."""
        self._node_id = config.apply.drainer
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        self.bucket_ids = bucket_ids(_BUCKETS_EACH * partitions, partitions)
        """The pairing buckets."""
        self.kept_for: str | None = None
        """Identity of the target that it belongs to; None = no checkpoint."""
        kept = self._place.read(KEPT)
        self.delivery = (
            resolve_delivery(config.source, config.upstream_timeout, waiting)
            if kept is None
            else self._kept_delivery(json.loads(kept), config)
        )
        """The delivery that it was made with, else the one that is configured or possible."""

    def _kept_delivery(self, made_with: dict[str, Any], config: DrainerConfig) -> Delivery:
        if made_with["version"] != _KEPT_VERSION:
            raise ConfigError(
                f"the checkpoint {config.checkpoint_dir} has format {made_with['version']}, but this release supports format {_KEPT_VERSION}: "
                "delete the directory (the stream resumes from the target's checkpoint row)"
            )
        self.kept_for = made_with["target"]
        if config.source.delivery not in ("", made_with["delivery"]):
            raise ConfigError(
                f"the checkpoint {config.checkpoint_dir} was made with delivery {made_with['delivery']}, but spark.delivery is "
                f"{config.source.delivery}: set the delivery of the checkpoint, or delete the directory (the stream resumes from the target's checkpoint row)"
            )
        self.bucket_ids = tuple(made_with["bucket_ids"])
        return Delivery(made_with["delivery"])

    @property
    def committed_ts(self) -> int:
        """The resolved_ts up to which Spark has committed batches; 0 = none."""
        return committed_ts(self._place.names("commits"), lambda number: self._place.read(f"offsets/{number}"))

    def note_nothing_applied(self, noted: NothingApplied) -> None:
        """Keep it, instead of an earlier one.

        Raises:
            ConfigError: the directory cannot be written to.
            ReplicationError: its disk is full.
        """
        local = local_path(self._place.uri)
        if local is None:
            self._write(_NOTHING_APPLIED, noted.to_json())
            return
        # Comes in every batch of an idle stream: the JVM takes several times as long.
        try:
            local.mkdir(parents=True, exist_ok=True)
            replace_file(local / _NOTHING_APPLIED, noted.to_json())
        except OSError as error:
            raise self._unwritable(str(error)) from error

    @property
    def nothing_applied(self) -> NothingApplied | None:
        """What was kept last."""
        return NothingApplied.from_json(self._place.read(_NOTHING_APPLIED))

    def clear_half_written(self) -> None:
        """Delete the half-written record of a first batch, which a killed start leaves: Spark starts no query over it.

        Raises:
            ConfigError: there are other files, but no batch is recorded: somebody has deleted the record.
        """
        found = {directory: self._place.names(directory) for directory in ("offsets", "state", "commits")}
        if any(name.isdecimal() for name in found["offsets"]):
            return
        half_written = [name for name in found["offsets"] if name.startswith(".0.")]
        for name in half_written:
            self._place.delete(f"offsets/{name}")
        found["offsets"] = [name for name in found["offsets"] if name not in half_written]
        if left := [f"{directory}/{name}" for directory, names in found.items() for name in names]:
            raise ConfigError(
                f"the checkpoint {self._place.uri} has {left[0]} but records no batch, so Spark starts no query: "
                "delete the directory (the stream resumes from the target's checkpoint row)"
            )

    def keep(self, target: str) -> None:
        """Store what the query is made with, and this Drainer's name, by which it is registered from now on.

        Raises:
            ConfigError: the directory cannot be written to.
            ReplicationError: its disk is full.
        """
        buckets = {"pairing_buckets": len(self.bucket_ids), "bucket_ids": self.bucket_ids}
        made_with = {"version": _KEPT_VERSION, "delivery": str(self.delivery), **buckets, "target": target}
        self._write(KEPT, json.dumps(made_with | {KEPT_NODE_ID: self._node_id}))

    def _write(self, name: str, text: str) -> None:
        try:
            self._place.write(name, text)
        except Py4JJavaError as error:
            raise self._unwritable(str(error.java_exception.getMessage())) from error

    def _unwritable(self, why: str) -> ReplicationError:
        return self.disks.failure_in(why) or ConfigError(f"cannot write to spark.checkpoint-dir {self._place.uri}: {why}")


class FullDisks:
    """The directories on this machine that Spark writes to for a stream; messages of Spark and RocksDB name no directory of the settings."""

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
