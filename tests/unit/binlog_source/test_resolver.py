"""Verdicts from ``/mvcc/hex`` JSON, and the record that tells a Pump."""

import pytest

from binlog_source.mvcc import Finding, Verdict, verdict_of
from binlog_source.pairing import Settle
from binlog_source.resolver import prewrite_key_of, record_of
from schemas.proto import binlog_pb2

ANSWER = {
    "key": "7480",
    "region_id": 102,
    "value": {"info": {"writes": [{"type": 3, "start_ts": 30, "commit_ts": 30}, {"type": 1, "start_ts": 20, "commit_ts": 21}, {"start_ts": 10, "commit_ts": 12}],
                       "lock": {"start_ts": 40, "primary": "dA=="}}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("start_ts", "verdict"),
    [
        (10, Verdict(Finding.COMMITTED, 12)),
        (20, Verdict(Finding.COMMITTED, 21)),
        (30, Verdict(Finding.ROLLED_BACK)),
        (40, Verdict(Finding.ALIVE)),
        (50, Verdict(Finding.ABSENT)),
    ],
)
def test_verdicts(start_ts: int, verdict: Verdict) -> None:
    assert verdict_of(ANSWER, start_ts) == verdict


@pytest.mark.parametrize("answer", [{}, {"value": None}, {"value": {"info": {}}}])
def test_nothing_is_absence(answer: object) -> None:
    assert verdict_of(answer, 10) == Verdict(Finding.ABSENT)


@pytest.mark.parametrize("answer", [[], "x", {"value": 3}, {"value": {"info": {"writes": [{"start_ts": 10}]}}}])
def test_other_json_is_no_verdict(answer: object) -> None:
    with pytest.raises(ValueError, match="MVCC"):
        verdict_of(answer, 10)


def test_the_records_that_tell_a_pump() -> None:
    commit = binlog_pb2.Binlog.FromString(record_of(Settle("p", 10, 12)))
    assert (commit.tp, commit.start_ts, commit.commit_ts) == (binlog_pb2.Commit, 10, 12)
    rollback = binlog_pb2.Binlog.FromString(record_of(Settle("p", 10, 0)))
    assert (rollback.tp, rollback.start_ts, rollback.commit_ts) == (binlog_pb2.Rollback, 10, 0)


def test_the_key_of_a_prewrite() -> None:
    assert prewrite_key_of(binlog_pb2.Binlog(prewrite_key=b"k").SerializeToString()) == b"k"
    assert prewrite_key_of(b"\xff") == b""
