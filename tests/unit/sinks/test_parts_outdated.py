"""What parts have committed before one of them was refused is counted and told, although the span is planned anew."""

from typing import Any, cast

import pytest

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.structure import PartsOutdated

EARLY, LATE = (Finding(FindingKind.ROWS, words) for words in ("early", "late"))


@pytest.mark.parametrize("times", [1, 2])
def test_findings_of_parts_that_were_committed_are_told(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    tries: list[object] = []

    def apply_in_parts(*given: object) -> Written:
        tries.append(given)
        if len(tries) <= times:
            raise PartsOutdated(ApplyError("unknown column", 1054), Written(3, (EARLY,)))
        return Written(4, (LATE,))

    sink = MySQLSink(DrainerConfig(), 1)
    monkeypatch.setattr(sink._parts, "_apply", apply_in_parts)
    if times == 1:
        assert sink.apply_parts(cast(Any, None), RowsStep(0, 1, 1, {}), frozenset(), StageClock()) == Written(7, (EARLY, LATE))
    else:
        with pytest.raises(PartsOutdated):
            sink.apply_parts(cast(Any, None), RowsStep(0, 1, 1, {}), frozenset(), StageClock())
    assert len(tries) == 2
