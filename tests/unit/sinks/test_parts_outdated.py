"""What parts have committed before one of them was refused is counted and told, although the span is planned anew."""

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.structure import PartsOutdated
from pyspark_tidb_binlog.sinks.mysql.tables_there import TablesThere

EARLY, LATE = (Finding(FindingKind.ROWS, words) for words in ("early", "late"))


def test_findings_of_parts_that_were_committed_are_told() -> None:
    tries: list[RowsStep] = []

    def work(step: RowsStep) -> Written:
        tries.append(step)
        if len(tries) == 1:
            raise PartsOutdated(ApplyError("unknown column", 1054), Written(3, (EARLY,)))
        return Written(4, (LATE,))

    there = TablesThere(ApplyConfig(), lambda question: question(None))  # type: ignore[arg-type]
    assert there.as_they_are(RowsStep(0, 1, 1, {}), None, work) == Written(7, (EARLY, LATE))
    assert len(tries) == 2
