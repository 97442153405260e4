"""What goes into the Delta table of findings, and each batch once; no Spark."""

import pytest

from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import FILLED_UP, FINDINGS_SCHEMA, CheckpointRow, findings_as_table, missing_findings

ROWS = Finding(FindingKind.ROWS, "a row was not there", "`d`.`t`", tso(1_700_000_000_123), "id='x'", 1, 0)


def row(batch_id: int, resolved_ts: int, *findings: Finding) -> CheckpointRow:
    return CheckpointRow(batch_id, resolved_ts - 1, resolved_ts, findings=findings)


@pytest.mark.parametrize(
    ("known", "batches"),
    [
        ((-1, 0), [-1, 3, 5]),
        ((3, 0), [-1, 5]),
        ((5, 0), [-1]),
        ((5, 20), []),
        ((-1, 19), [-1, 3, 5]),
    ],
)
def test_each_batch_with_findings_once(known: tuple[int, int], batches: list[int]) -> None:
    rows = [row(FILLED_UP, 20, ROWS), row(3, 30, ROWS, ROWS), row(4, 40), row(5, 50, ROWS)]
    assert [r.batch_id for r in missing_findings(rows, *known)] == batches


def test_findings_as_arrow() -> None:
    found = findings_as_table(
        [row(7, 90, ROWS, Finding(FindingKind.LOST, "gone"), Finding(FindingKind.ROWS, "one more", wanted=0, found=1))], "app"
    )
    assert found.schema == FINDINGS_SCHEMA
    first, second, third = found.to_pylist()
    assert (third["wanted"], third["found"]) == (0, 1)
    assert (first["app_id"], first["batch_id"], first["kind"], first["key"], first["wanted"], first["found"]) == (
        "app",
        7,
        "rows",
        "id='x'",
        1,
        0,
    )
    assert first["committed_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert [second[name] for name in ("table", "commit_ts", "committed_at", "key", "wanted", "found", "words")] == [None] * 6 + ["gone"]
