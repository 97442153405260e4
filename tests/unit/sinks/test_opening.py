"""What the record of a target means at a start, without a server."""

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.mysql.opening import Recorded, doubt_of, version_on
from pyspark_tidb_binlog.sinks.sink import TargetProgress


@pytest.mark.parametrize("start", [100, 150])
def test_our_records_schema_version_counts_also_where_the_stream_begins_behind_it(start: int) -> None:
    """A DDL whose FinishedTS is later than the start is in the target, if the record says so."""
    found = TargetProgress(100, True, 7, None)
    assert version_on(found, SchemaHistory(), start, ours=True) == 7
    assert version_on(found, SchemaHistory(), start, ours=False) == 0


@pytest.mark.parametrize("marked", [True, False])
def test_a_checkpoint_that_is_not_consistent_and_not_ours_is_that_of_a_crash(marked: bool) -> None:
    found = TargetProgress(100, False, 7, None)
    doubt = doubt_of(found, Recorded(100, 0, marked, 180, 0))
    assert (doubt.crashed, doubt.upto_ts, doubt.beyond) == (not marked, 0 if marked else 180, 180)
