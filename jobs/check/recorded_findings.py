"""Reads the findings that a Drainer has recorded in its Delta table, without Spark."""

from collections.abc import Sequence
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.local_paths import local_path
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from pyspark_tidb_binlog.sinks.delta.plain_read import read_table

_COLUMNS = ("kind", "table", "commit_ts", "key", "wanted", "found", "words", "recorded_at")


def recorded_findings(config: DrainerConfig) -> Sequence[dict[str, Any]]:
    """All rows, in no order.

    Raises:
        ConfigError: the table is not on this machine's file system.
        NotUsableYet: no Drainer has run with these settings.
    """
    uri = config.delta_dir.rstrip("/")
    place, directory = local_path(uri), local_path(f"{uri}-findings")
    if place is None or directory is None:
        raise ConfigError(f"the Delta table {uri}-findings is not on this machine's file system: read it with Spark")
    table = read_table(directory, _COLUMNS)
    if table is None and not place.exists():
        raise NotUsableYet(
            f"no Drainer has written here: there is no Delta table {directory.absolute()} and no {place.absolute()}; check spark.delta-dir"
        )
    rows: Sequence[dict[str, Any]] = [] if table is None else table.to_pylist()
    return rows
