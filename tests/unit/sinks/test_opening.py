"""What the record of a target means at a start, without a server."""

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.mysql.opening import LEAST_OPEN, doubt_of, safe_until, version_on
from pyspark_tidb_binlog.sinks.mysql.state_table import OURS, SAFE, Row, State
from pyspark_tidb_binlog.sinks.sink import TargetProgress


@pytest.mark.parametrize("start", [100, 150])
def test_our_records_schema_version_counts_also_where_the_stream_begins_behind_it(start: int) -> None:
    """A DDL whose FinishedTS is later than the start is in the target, if the record says so."""
    found = TargetProgress(100, True, 7, None)
    assert version_on(found, SchemaHistory(), start, ours=True) == 7
    assert version_on(found, SchemaHistory(), start, ours=False) == 0


BEYOND = Row("part 150-180 0/2 delete", 150, 180)
"""Of data from before the checkpoint was set back."""


@pytest.mark.parametrize("marked", [True, False])
def test_a_checkpoint_that_is_not_consistent_and_not_ours_is_that_of_a_crash(marked: bool) -> None:
    found = TargetProgress(100, False, 7, None)
    ours = (Row(OURS, 90, 100), Row(f"{SAFE} doubt", 90, 180)) if marked else ()
    doubt = doubt_of(found, State((BEYOND, *ours)), 100)
    assert (doubt.crashed, doubt.upto_ts, doubt.beyond) == (not marked, 0 if marked else 180, 180)


@pytest.mark.parametrize(("now_ts", "until"), [(500, 500), (150, 180), (101, 180), (100, 100 + LEAST_OPEN), (7, 100 + LEAST_OPEN)])
def test_safe_mode_after_a_crash_is_never_over_at_the_checkpoint(now_ts: int, until: int, caplog: pytest.LogCaptureFixture) -> None:
    """A clock at or before the checkpoint is wrong."""
    doubt = doubt_of(TargetProgress(100, False, 7, None), State((BEYOND,)), 100)
    assert safe_until(doubt, 100, now_ts) == until
    assert ("Check the clock of the upstream" in caplog.text) is (now_ts <= 100)
