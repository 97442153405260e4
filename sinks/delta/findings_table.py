"""The Delta table ``findings``, next to ``checkpoint``: every deviation of the target or the Pumps from the binlogs.

Promises: the background writer of ``sinks.delta.checkpoint_table`` writes a batch's findings before its checkpoint row, each batch once
(``sinks.delta.appended_table``). Keys and words are stored in full regardless of ``log-row-data``: restrict access to the table accordingly.
A crash may lose the findings of a transaction that is committed on the target while its batch is not yet in Delta; the log has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tidb_binlog.schemas.events import moment_of
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.sinks.delta.appended_table import AppendedTable
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import FILLED_UP, CheckpointRow

SCHEMA = pa.schema(
    [
        pa.field("app_id", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("resolved_ts", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("table", pa.string()),
        pa.field("commit_ts", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.string()),
        pa.field("wanted", pa.int64()),
        pa.field("found", pa.int64()),
        pa.field("words", pa.string()),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""The table's columns. ``batch_id`` -1: of a span that was replayed at start. Unknown values are null."""


@dataclass(frozen=True, slots=True)
class RecordedFindings:
    """What the table already holds."""

    batch_id: int = -1
    """Newest batch of this query."""
    replayed_ts: int = 0
    """End of the newest span that was replayed at start."""


def missing_findings(rows: Sequence[CheckpointRow], known: RecordedFindings) -> list[CheckpointRow]:
    """The batches whose findings the table lacks, in order. Pure."""
    return [
        r for r in rows if r.findings and (r.resolved_ts > known.replayed_ts if r.batch_id == FILLED_UP else r.batch_id > known.batch_id)
    ]


class DeltaFindings(AppendedTable):
    """The table; made with the first finding."""

    def __init__(self, uri: str, app_id: str, retention: float) -> None:
        """Does not access the table before ``lacking``."""
        super().__init__(uri, SCHEMA, app_id, retention)

    def lacking(self, rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
        """Those of ``rows`` whose findings the table lacks."""
        batch_id = self.newest_batch()
        (replayed,) = self.found(f"SELECT max(resolved_ts) AS ts FROM t WHERE batch_id = {FILLED_UP}")
        return missing_findings(rows, RecordedFindings(batch_id, replayed["ts"] or 0))

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        """Add the findings of ``rows`` in one commit."""
        self.commit(as_table(rows, self._app_id), max(r.batch_id for r in rows))


def as_table(rows: Sequence[CheckpointRow], app_id: str) -> pa.Table:
    """The findings of ``rows`` as Arrow, in ``SCHEMA``."""
    return pa.Table.from_pylist([_values(row, f) | {"app_id": app_id} for row in rows for f in row.findings], schema=SCHEMA)


def _values(row: CheckpointRow, finding: Finding) -> dict[str, object]:
    ts = finding.commit_ts
    return {
        "batch_id": row.batch_id,
        "resolved_ts": row.resolved_ts,
        "kind": str(finding.kind),
        "table": finding.table or None,
        "commit_ts": ts or None,
        "committed_at": moment_of(ts) if ts else None,
        "key": finding.key or None,
        "wanted": finding.wanted if finding.wanted >= 0 else None,
        "found": finding.found if finding.found >= 0 else None,
        "words": finding.words,
        "recorded_at": row.recorded_at,
    }
