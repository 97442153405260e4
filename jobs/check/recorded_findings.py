"""What a Drainer has recorded, as ``ctl`` prints it: the findings in its Delta table, without those that ``verify`` has closed, and the DDLs. No JVM starts.

Promises: row values are shown only if the caller allows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.local_paths import local_path
from pyspark_tidb_binlog.jobs.stream.report import one_ddl, plain
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.sinks.delta.appended_table import FAULTS, found_at, reason_of
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedDdl
from pyspark_tidb_binlog.sinks.verify.verification_table import equal_upto

_QUERY_CHARS = 2000
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
    upto = [equal.get(row["table"] or "", 0) if row["kind"] in _OF_ROWS else 0 for row in rows]
    return [row | {"closed_at": ts if ts >= (row["commit_ts"] or 0) else 0} for row, ts in zip(rows, upto, strict=True)]


def open_findings(config: DrainerConfig) -> Sequence[dict[str, Any]]:
    """The rows that nothing has closed.

    Raises:
        ConfigError: as ``recorded_findings``.
    """
    return [row for row in recorded_findings(config) if not row["closed_at"]]


def ddl_lines(ddls: Sequence[RecordedDdl]) -> Iterator[str]:
    """A paragraph for each DDL."""
    if not ddls:
        yield "every DDL was executed as TiDB wrote it"
    for ddl in ddls:
        how = f" ({ddl.how})" if ddl.how else ""
        yield f"{ddl.state}{how}: job {ddl.job_id}, commit_ts {ddl.commit_ts} ({as_time(ddl.commit_ts)}), cluster {ddl.cluster_id}"
        yield f"  TiDB:     {plain(one_ddl(ddl.query, _QUERY_CHARS))}"
        if ddl.executed and ddl.executed != ddl.query:
            yield f"  executed: {plain(one_ddl(ddl.executed, _QUERY_CHARS))}"
        yield from (f"  lost:     {loss}" for loss in ddl.losses)
        yield from (f"  refused:  {refusal}" for refusal in ddl.refusals)


def finding_lines(rows: Sequence[Mapping[str, Any]], limit: int, show_row_data: bool) -> Iterator[str]:
    """The ``limit`` newest findings, oldest of them first; ``rows`` as in the Delta table."""
    if not rows:
        yield "no findings"
    newest = sorted(rows, key=lambda row: (row["recorded_at"] is not None, row["recorded_at"]))[-limit:]
    if len(newest) < len(rows):
        yield f"{len(rows):,} findings, the newest {len(newest):,}:"
    for row in newest:
        finding = Finding(
            FindingKind(row["kind"]),
            row["words"],
            row["table"] or "",
            row["commit_ts"] or 0,
            row["key"] or "",
            -1 if row["wanted"] is None else row["wanted"],
            -1 if row["found"] is None else row["found"],
        )
        closed = f" (equal at {ts}, {as_time(ts)})" if (ts := row.get("closed_at")) else ""
        yield f"{row['recorded_at']:%Y-%m-%d %H:%M:%S} {in_words(finding, show_row_data)}{closed}"
