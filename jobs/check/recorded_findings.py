"""Reads the findings that a Drainer has recorded in its Delta table, and which of them ``verify`` has closed, without Spark: ``ctl`` starts no JVM."""

from collections.abc import Sequence
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.local_paths import local_path
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.sinks.delta.appended_table import FAULTS, found_at, reason_of
from pyspark_tidb_binlog.sinks.verify.verification_table import equal_upto

_COLUMNS = ("kind", "table", "commit_ts", "key", "wanted", "found", "words", "recorded_at")
_OF_ROWS = frozenset({FindingKind.ROWS, FindingKind.VALUE})
"""Kinds that say nothing any more once all rows of the table are equal."""


def recorded_findings(config: DrainerConfig) -> Sequence[dict[str, Any]]:
    """All rows, in no order. ``closed_at``: the ts at which ``verify`` found the table to be equal afterwards; 0: the finding is open.

    Raises:
        ConfigError: a Delta table cannot be read.
        NotUsableYet: no Drainer has run with these settings.
    """
    try:
        rows = found_at(config.findings_dir, "SELECT " + ", ".join(f'"{name}"' for name in _COLUMNS) + " FROM t")
    except FAULTS as error:
        raise ConfigError(f"the Delta table {config.findings_dir} cannot be read: {reason_of(error)}. Read it with Spark") from error
    place = local_path(config.delta_dir)
    if not rows and place is not None and not place.exists():
        raise NotUsableYet(
            f"no Drainer has written here: there is no Delta table {config.findings_dir} and no {place.absolute()}; check spark.delta-dir"
        )
    equal = equal_upto(config.verification_dir) if rows else {}
    return [row | {"closed_at": _closed_at(row, equal.get(row["table"] or "", 0))} for row in rows]


def open_findings(config: DrainerConfig) -> Sequence[dict[str, Any]]:
    """The rows that nothing has closed.

    Raises:
        ConfigError: as ``recorded_findings``.
    """
    return [row for row in recorded_findings(config) if not row["closed_at"]]


def _closed_at(row: dict[str, Any], equal: int) -> int:
    return equal if row["kind"] in _OF_ROWS and equal >= (row["commit_ts"] or 0) else 0
