"""What an answer of the upstream settles, and what it must not."""

import pytest

from binlog_source.pump.orphans import outcome
from binlog_source.pump.storage.record import Kind

COMMITTED = {"start_ts": 5, "commit_ts": 9}
OTHER = {"start_ts": 3, "commit_ts": 4}
ROLLED_BACK = {"type": 3, "start_ts": 5, "commit_ts": 5}


@pytest.mark.parametrize(
    ("info", "want"),
    [
        ({"writes": [OTHER, COMMITTED]}, (Kind.COMMIT, 5, 9)),
        ({"writes": [{"type": 1} | COMMITTED]}, (Kind.COMMIT, 5, 9)),
        ({"writes": [ROLLED_BACK]}, (Kind.ROLLBACK, 5, 0)),
        ({"writes": [OTHER]}, None),
        ({"lock": {"start_ts": 5}, "writes": None}, None),
        ({"writes": [{"start_ts": 5, "commit_ts": 5}]}, None),
        ({}, None),
    ],
)
def test_outcome(info, want):
    record = outcome(5, {"key": "00", "value": {"info": info}})
    assert (record and record[:3]) == want


def test_an_answer_without_a_value_says_nothing():
    assert outcome(5, {"key": "00"}) is None and outcome(5, {"value": None}) is None
