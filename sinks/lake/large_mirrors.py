"""What Spark does for large mirrors, whose files a merge of delta-rs would all write again: it marks rows as removed, by deletion vectors. [spark]

Promises: a call makes at most one version of a mirror, whose ``userMetadata`` is the given mark. Spark's commits are no compare-and-swap: the version
may come after one of another program, so ``MirrorTable`` looks which one it is. Half of the slots are left to the stream.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.engine.spark_jvm import SPARK_FAULTS
from pyspark_tidb_binlog.sinks.lake.ledger import REFUSES_OLD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_BYTES = 128 << 20
"""Of a file that a compaction writes. Smaller ones, and those with many removed rows, are written again."""
REFUSED_NAMES = frozenset({"_metadata", "_tmp_metadata_row_index", "__delta_internal_row_index", "__delta_internal_is_row_deleted"})
"""In lower case. Spark has columns of these names itself, and cannot read or write a table that has them and deletion vectors."""

FEATURES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""By a type in SQL: what a table needs for it."""


class SparkFailed(Exception):
    """Spark could not write to a mirror; another attempt may succeed."""


class LargeMirrors:
    """Spark as a writer of mirrors on a file system that its executors have, too. It does one thing at a time."""

    def __init__(self, spark: "SparkSession", above_bytes: int = 1 << 30) -> None:
        """``above_bytes``: of live files. A mirror that has more has deletion vectors from then on."""
        self.above_bytes = above_bytes
        # Of its own: the settings are nobody else's.
        self._session, self._lock = spark.newSession(), threading.Lock()
        half = str(max(1, spark.sparkContext.defaultParallelism // 2))
        for name, value in {
            "spark.databricks.delta.optimize.maxFileSize": str(_FILE_BYTES),
            "spark.databricks.delta.optimize.minFileSize": str(_FILE_BYTES // 2),
            "spark.databricks.delta.optimize.maxThreads": half,
            "spark.sql.files.maxPartitionNum": half,
            "spark.sql.shuffle.partitions": half,
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            REFUSES_OLD: "false",
            # The stream's sessions collect none. Then each removal adds an empty file.
            "spark.databricks.delta.stats.collect": "true",
            # What the program's user may have set: a second commit, one without a mark, rows that are passed over, dates that move.
            "spark.databricks.delta.autoCompact.enabled": "false",
            "spark.databricks.delta.commitInfo.enabled": "true",
            "spark.sql.files.ignoreCorruptFiles": "false",
            "spark.sql.files.ignoreMissingFiles": "false",
            "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
            "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        }.items():
            self._session.conf.set(name, value)

    def remove(self, uri: str, found_by: pa.Table, mark: str) -> None:
        """Remove the rows of these identities (``MirrorChanges.found_by``)."""
        with self._marked(mark) as session:
            columns = session.table(_table(uri)).schema
            names = found_by.column_names
            session.createDataFrame(found_by, StructType([columns[name] for name in names])).createOrReplaceTempView("s")
            found = " AND ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in names)
            session.sql(f"MERGE INTO {_table(uri)} t USING s ON {found} WHEN MATCHED THEN DELETE")
            session.catalog.dropTempView("s")

    def restore(self, uri: str, version: int, mark: str) -> None:
        """Make the rows those of a version."""
        with self._marked(mark) as session:
            session.sql(f"RESTORE TABLE {_table(uri)} TO VERSION AS OF {version}")

    def compact(self, uri: str, mark: str) -> None:
        """Write small files, and those with many removed rows, again."""
        with self._marked(mark) as session:
            session.sql(f"OPTIMIZE {_table(uri)}")

    def alter(self, mark: str, *, uri: str, clause: str) -> None:
        """Change columns by one of ``column_clauses``."""
        with self._marked(mark) as session:
            session.sql(f"ALTER TABLE {_table(uri)} {clause}")

    @contextmanager
    def _marked(self, mark: str) -> Iterator["SparkSession"]:
        with self._lock:
            try:
                self._session.conf.set("spark.databricks.delta.commitInfo.userMetadata", mark)
                yield self._session
            except SPARK_FAULTS as error:
                raise SparkFailed(str(getattr(error, "java_exception", error)).partition("\n")[0]) from error


def column_clauses(there: Sequence[str], kept: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What ALTER TABLE needs, one after the other, so that a table with the columns ``there`` has those ``kept``, by their names before, and ``new`` ones, each with its type; pure.

    Files have the former names: Spark adds column mapping, and the columns' names in files to the schema. A name may be that of another column before, or
    differ in case only. So each renamed column has a name of its own in between.
    """
    features = [f", 'delta.feature.{FEATURES[kind]}' = 'supported'" for kind in sorted(FEATURES.keys() & set(new.values()))]
    gone = [quote_name(name) for name in there if name not in kept]
    renamed = [
        (quote_name(was), quote_name(f"_tidb_{place}"), quote_name(name)) for place, (was, name) in enumerate(kept.items()) if was != name
    ]
    return [
        f"SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'{''.join(features)})",
        *([f"DROP COLUMNS ({', '.join(gone)})"] if gone else []),
        *(f"RENAME COLUMN {was} TO {between}" for was, between, _ in renamed),
        *(f"RENAME COLUMN {between} TO {name}" for _, between, name in renamed),
        *([f"ADD COLUMNS ({', '.join(f'{quote_name(name)} {kind}' for name, kind in new.items())})"] if new else []),
    ]


def _table(uri: str) -> str:
    """The table in SQL. Spark may have another file system where a path names none."""
    return f"delta.{quote_name(f'file://{os.path.abspath(uri)}')}"
