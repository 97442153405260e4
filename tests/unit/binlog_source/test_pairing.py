"""Pairing, case by case; the machine as a whole is in tests/property/test_pairing_machine.py."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.pairing.transitions import (
    KEPT,
    RECORD,
    TRANSITIONS,
    MissingOutcome,
    Orphan,
    ResolvedSpan,
    StepResult,
    When,
    look_after,
    merged_payloads,
    step,
)
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

NOTHING = KEPT.empty_table()
P, C, R = 0, 1, 2


def records(*rows: tuple[str, int, int, int]) -> pa.Table:
    """(pump, tp, start, commit); a Prewrite's payload names its start_ts."""
    payloads = [binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=r[2]).SerializeToString() if r[1] == P else b"" for r in rows]
    columns = [[r[i] for r in rows] for i in range(4)] + [payloads]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, RECORD, strict=True)], schema=RECORD)


def run(known: pa.Table, after: int, upto: int, *rows: tuple[str, int, int, int]) -> StepResult:
    return step(known, records(*rows), ResolvedSpan(after, upto))


def released(result: StepResult) -> list[tuple[int, int]]:
    return list(zip(result.released["start_ts"].to_pylist(), result.released["commit_ts"].to_pylist(), strict=True))


def test_every_situation_has_a_fate() -> None:
    situations = set(itertools.product((True, False), When, (When.NONE, When.PAST, When.AHEAD)))
    assert set(TRANSITIONS) == situations - {(False, When.NONE, When.NONE)}


def test_a_pair_in_one_batch() -> None:
    result = run(NOTHING, 0, 20, ("a", C, 5, 9), ("a", P, 5, 0))
    assert released(result) == [(5, 9)] and not result.kept.num_rows
    assert binlog_pb2.Binlog.FromString(result.released["payload"][0].as_py()) == binlog_pb2.Binlog(
        tp=binlog_pb2.Commit, start_ts=5, commit_ts=9
    )


@pytest.mark.parametrize("first", [P, C])
def test_a_pair_over_two_batches(first: int) -> None:
    rows = {P: ("a", P, 5, 0), C: ("a", C, 5, 29)}
    before = run(NOTHING, 0, 4, rows[first])
    assert released(before) == [] and before.kept.num_rows == 1
    assert released(run(before.kept, 4, 30, rows[C - first])) == [(5, 29)]


def test_matched_waits_for_the_punctuation() -> None:
    waiting = run(NOTHING, 0, 28, ("a", P, 5, 0), ("a", C, 5, 29))
    assert released(waiting) == []
    assert released(run(waiting.kept, 28, 29)) == [(5, 29)]


def test_release_is_by_commit_ts() -> None:
    rows = [("a", P, s, 0) for s in (1, 2, 3)] + [("a", C, 1, 30), ("a", C, 2, 10), ("a", C, 3, 20)]
    assert released(run(NOTHING, 0, 99, *rows)) == [(2, 10), (3, 20), (1, 30)]


def test_rollback_drops() -> None:
    result = run(NOTHING, 0, 20, ("a", P, 5, 0), ("a", R, 5, 0))
    assert released(result) == [] and not result.kept.num_rows


def test_rollback_of_an_earlier_batch_drops_a_copy_that_comes_later() -> None:
    first = run(NOTHING, 0, 4, ("b", R, 5, 0))
    second = run(first.kept, 4, 4, ("a", P, 5, 0), ("a", R, 5, 0))
    assert not run(second.kept, 4, 20).kept.num_rows


def test_what_the_stream_began_after_is_dropped_not_waited_for() -> None:
    result = run(NOTHING, 10, 20, ("a", C, 5, 9), ("a", C, 6, 10), ("a", P, 6, 0), ("a", P, 7, 0), ("a", C, 7, 11))
    assert released(result) == [(7, 11)] and not result.kept.num_rows and not result.missing


def test_a_copy_from_another_pump_goes_out_once_and_that_pump_is_told() -> None:
    first = run(NOTHING, 0, 4, ("a", P, 5, 0), ("b", P, 5, 0), ("a", C, 5, 9))
    assert first.unsettled and look_after(first.kept, 5000, 1000).settles == (MissingOutcome("b", 5, 9),)
    second = run(first.kept, 4, 20, ("b", C, 5, 9))
    assert released(second) == [(5, 9)] and not second.kept.num_rows and not second.unsettled


def test_a_copy_after_the_release_is_dropped_once_its_pump_knows() -> None:
    done = run(NOTHING, 0, 20, ("a", P, 5, 0), ("a", C, 5, 9))
    late = run(done.kept, 20, 20, ("b", P, 5, 0))
    assert late.kept.num_rows == 1
    told = run(late.kept, 20, 30, ("b", C, 5, 9))
    assert released(told) == [] and not told.kept.num_rows and not told.missing


def test_a_released_transaction_that_a_pump_must_be_told_of_keeps_no_payload() -> None:
    done = run(NOTHING, 0, 20, ("a", P, 5, 0), ("b", P, 5, 0), ("a", C, 5, 9))
    assert released(done) == [(5, 9)] and done.unsettled
    assert done.kept["payload"].null_count == done.kept.num_rows == 3
    assert look_after(done.kept, 0, 1000).settles == (MissingOutcome("b", 5, 9),)


def test_what_is_wanted_is_wanted_again_a_second_later() -> None:
    first = run(NOTHING, 0, 4, ("a", P, 5, 0), ("b", P, 5, 0), ("a", C, 5, 9))
    assert look_after(first.kept, 5000, 1000).again_ms == 6000
    assert look_after(run(first.kept, 4, 20, ("b", C, 5, 9)).kept, 6000, 1000).again_ms == 0


def test_an_old_prewrite_without_outcome_is_an_orphan() -> None:
    start = tso(10_000)
    lone = run(NOTHING, 0, start - 1, ("a", P, start, 0))
    assert lone.oldest_alone == start
    young = look_after(lone.kept, 10_999, 1000)
    assert not young.orphans and young.again_ms == 11_000
    old = look_after(lone.kept, 11_000, 1000)
    assert old.orphans == (Orphan("a", start, records(("a", P, start, 0))["payload"][0].as_py(), 1000),)
    assert old.again_ms == 12_000
    again = run(lone.kept, start - 1, start - 1)
    assert released(again) == [] and again.kept.num_rows == 1


@pytest.mark.parametrize(
    ("rows", "due"),
    [
        ((("a", P, 5, 0), ("a", C, 5, 29)), 29),
        ((("a", P, 5, 0), ("a", R, 5, 0)), 5),
        ((("a", P, 5, 0),), 0),
        ((("a", C, 5, 29),), 0),
        ((("a", R, 5, 0),), 0),
        ((("a", P, 5, 0), ("b", P, 5, 0), ("a", C, 5, 29)), 0),
        ((("a", P, 5, 0), ("b", P, 5, 0), ("a", C, 5, 29), ("b", C, 5, 29)), 29),
    ],
)
def test_closed_is_what_nothing_more_is_wanted_of_until_r_comes(rows: tuple[tuple[str, int, int, int], ...], due: int) -> None:
    result = run(NOTHING, 0, 4, *rows)
    assert result.kept["due"].to_pylist() == [due] * len(rows)


def test_a_commit_without_prewrite_is_missing_when_due_not_before() -> None:
    waiting = run(NOTHING, 0, 8, ("a", C, 5, 9))
    assert not waiting.missing
    assert run(waiting.kept, 8, 9).missing == ((5, 9),)


def test_two_commit_ts_for_one_start_ts_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="start_ts 5 .* two commit_ts.*a, b"):
        run(NOTHING, 0, 4, ("a", C, 5, 9), ("b", C, 5, 10))


def test_payloads_are_merged_for_commit_ts_of_every_length() -> None:
    stamps = [1, 127, 128, 16383, 16384, (1 << 35) - 1, 1 << 35, (1 << 56) - 1, 1 << 56, 470604693853437952, (1 << 63) - 1]
    prewrite = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=3, ddl_query=b"q", ddl_job_id=4).SerializeToString()
    merged = merged_payloads(pa.chunked_array([[prewrite] * len(stamps)], pa.large_binary()), np.array(stamps))
    for payload, commit_ts in zip(merged.to_pylist(), stamps, strict=True):
        complete = binlog_pb2.Binlog.FromString(payload)
        assert complete == binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=3, commit_ts=commit_ts, ddl_query=b"q", ddl_job_id=4)
