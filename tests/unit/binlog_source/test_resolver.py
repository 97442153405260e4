"""Verdicts from ``/mvcc/hex`` JSON, and the record that tells a Pump."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import (
    Decision,
    TransactionState,
    Verdict,
    decide,
    outcome_payload,
    undecided_text,
    verdict_of,
)
from pyspark_tidb_binlog.binlog_source.pairing.resolver import prewrite_key_of
from pyspark_tidb_binlog.jobs.lab.emulator.mvcc import Mvcc
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings

ANSWER = {
    "key": "7480",
    "region_id": 102,
    "value": {"info": {"writes": [{"type": 3, "start_ts": 30, "commit_ts": 30}, {"type": 1, "start_ts": 20, "commit_ts": 21}, {"start_ts": 10, "commit_ts": 12}],
                       "lock": {"start_ts": 40, "primary": "dA=="}}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("start_ts", "verdict"),
    [
        (10, Verdict(TransactionState.COMMITTED, 12)),
        (20, Verdict(TransactionState.COMMITTED, 21)),
        (30, Verdict(TransactionState.ROLLED_BACK)),
        (40, Verdict(TransactionState.ALIVE)),
        (50, Verdict(TransactionState.ABSENT)),
        (15, Verdict(TransactionState.ABSENT, overwritten=True)),
        (25, Verdict(TransactionState.ABSENT, overwritten=True)),
    ],
)
def test_verdicts(start_ts: int, verdict: Verdict) -> None:
    assert verdict_of(ANSWER, start_ts) == verdict


def test_nothing_is_absence() -> None:
    assert verdict_of({"key": "6B", "region_id": 102, "value": {"info": {}}}, 10) == Verdict(TransactionState.ABSENT)


REGION_ERROR = {"message": "epoch not match", "epoch_not_match": {"current_regions": [{"id": 102}]}}


@pytest.mark.parametrize(
    "answer",
    [
        {"key": "6B", "region_id": 102, "value": {"region_error": REGION_ERROR}},
        {"key": "6B", "region_id": 102, "value": {"region_error": REGION_ERROR, "info": {}}},
        {"key": "6B", "region_id": 102, "value": {"error": "key is locked"}},
        {"key": "6B", "region_id": 102, "value": {}},
        {"value": None},
        {},
    ],
)
def test_what_does_not_speak_of_the_key_is_no_absence(answer: object) -> None:
    """A TiDB up to v5 answers so, with HTTP 200, when its TiKV has moved the region: the transaction may be committed."""
    with pytest.raises(ValueError, match="no MVCC information"):
        verdict_of(answer, 10)


@pytest.mark.parametrize("answer", [[], "x", {"value": 3}, {"value": {"info": {"writes": [{"start_ts": 10}]}}}])
def test_other_json_is_no_verdict(answer: object) -> None:
    with pytest.raises(ValueError, match="MVCC"):
        verdict_of(answer, 10)


def test_the_records_that_tell_a_pump() -> None:
    commit = binlog_pb2.Binlog.FromString(outcome_payload(10, 12))
    assert (commit.tp, commit.start_ts, commit.commit_ts) == (binlog_pb2.Commit, 10, 12)
    rollback = binlog_pb2.Binlog.FromString(outcome_payload(10, 0))
    assert (rollback.tp, rollback.start_ts, rollback.commit_ts) == (binlog_pb2.Rollback, 10, 0)


def test_the_key_of_a_prewrite() -> None:
    assert prewrite_key_of(binlog_pb2.Binlog(prewrite_key=b"k").SerializeToString()) == b"k"
    assert prewrite_key_of(b"\xff") == b""


COMMITTED, ROLLED_BACK, ALIVE, ABSENT = (
    Verdict(TransactionState.COMMITTED, 12),
    Verdict(TransactionState.ROLLED_BACK),
    Verdict(TransactionState.ALIVE),
    Verdict(TransactionState.ABSENT),
)
OVERWRITTEN = Verdict(TransactionState.ABSENT, overwritten=True)


@pytest.mark.parametrize(
    ("verdict", "waited_ms", "safe_point", "decision"),
    [
        (COMMITTED, 0, 1000, Decision.COMMIT),
        (ROLLED_BACK, 0, 1000, Decision.ROLL_BACK),
        (ALIVE, 10**9, 1000, Decision.WAIT),
        (ABSENT, 600_000, 9, Decision.WAIT),
        (ABSENT, 600_001, 9, Decision.ROLL_BACK),
        (ABSENT, 600_001, 0, Decision.ROLL_BACK),
        (ABSENT, 600_001, 10, Decision.UNDECIDED),
        (ABSENT, 600_001, 11, Decision.UNDECIDED),
        (ABSENT, 600_000, None, Decision.WAIT),
        (ABSENT, 600_001, None, Decision.UNDECIDED),
        (OVERWRITTEN, 600_000, 9, Decision.WAIT),
        (OVERWRITTEN, 600_001, 9, Decision.UNDECIDED),
        (OVERWRITTEN, 600_001, None, Decision.UNDECIDED),
    ],
)
def test_what_absence_proves(verdict: Verdict, waited_ms: int, safe_point: int | None, decision: Decision) -> None:
    assert decide(verdict, 10, waited_ms, safe_point) is decision


def test_a_rollback_that_overlaps_a_commit() -> None:
    write = {"start_ts": 5, "commit_ts": 9, "has_overlapped_rollback": True}
    assert verdict_of({"value": {"info": {"writes": [write]}}}, 9) == Verdict(TransactionState.ROLLED_BACK)
    assert verdict_of({"value": {"info": {"writes": [write]}}}, 5) == Verdict(TransactionState.COMMITTED, 9)


def test_what_was_committed_and_collected_is_never_rolled_back() -> None:
    """The embedded upstream forgets as TiKV does: a commit that was overwritten, then collected, leaves no trace."""
    mvcc = Mvcc()
    mvcc.commit(b"k", 10, 12)
    mvcc.commit(b"k", 20, 22)
    mvcc.roll_back(b"j", 30)
    assert verdict_of(mvcc.look_up(b"k"), 10) == COMMITTED
    mvcc.collect(25)
    assert verdict_of(mvcc.look_up(b"k"), 10) == OVERWRITTEN
    assert verdict_of(mvcc.look_up(b"k"), 20) == Verdict(TransactionState.COMMITTED, 22), "the newest version stays"
    mvcc.collect(40)
    assert verdict_of(mvcc.look_up(b"j"), 30) == ABSENT
    for key, start_ts in ((b"k", 10), (b"j", 30)):
        assert decide(verdict_of(mvcc.look_up(key), start_ts), start_ts, 10**9, mvcc.safe_point) is Decision.UNDECIDED


@pytest.mark.parametrize(
    ("verdict", "why"), [(OVERWRITTEN, "a later transaction wrote its primary key"), (ABSENT, "GC may have collected the trace")]
)
def test_a_person_is_told_what_to_do(verdict: Verdict, why: str) -> None:
    text = undecided_text(10, b"kk", verdict, "p1", "h:8250")
    assert why in text and "6b6b" in text and "Pump p1" in text
    assert "./spark-submit.sh pump settle http://h:8250 10 commit COMMIT_TS" in text and "http://h:8250 10 rollback" in text
    text = undecided_text(10, b"kk", verdict, "p1", "h:8250", TlsSettings("/ca", "/cert", "/key"))
    assert "pump settle -ssl-ca /ca -ssl-cert /cert -ssl-key /key https://h:8250 10 rollback" in text
