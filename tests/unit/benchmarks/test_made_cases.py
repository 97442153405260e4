"""Cases made from a recorded one: the order, the keys and the bytes of what is played again, and the spread over Pumps."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.made_cases import KEYS, play, played, span_of, spread
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import schedule
from pyspark_tidb_binlog.schemas.codec.datum import encode_bytes, encode_int
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

_ID, _NAME = encode_int(1), encode_int(2)


def image(key: int, name: bytes) -> bytes:
    return _ID + encode_int(key) + _NAME + encode_bytes(name)


def commit(ts: int, mutation: binlog_pb2.TableMutation) -> bytes:
    value = binlog_pb2.PrewriteValue(schema_version=5, mutations=[mutation]).SerializeToString()
    return binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=ts - 1, commit_ts=ts, prewrite_value=value).SerializeToString()


def changes(key: int) -> binlog_pb2.TableMutation:
    """One of each; the name that is updated looks like a row's beginning."""
    return binlog_pb2.TableMutation(
        table_id=7,
        inserted_rows=[encode_int(key) + _NAME + encode_bytes(b"new")],
        updated_rows=[image(key, _ID + encode_int(3)) + image(key, b"other")],
        deleted_rows=[image(key, b"other")],
        sequence=[0, 1, 4],
    )


DDL = binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=101, commit_ts=102, ddl_query=b"CREATE TABLE t", ddl_job_id=9).SerializeToString()
CASE = RecordedCase(
    Path("case"),
    1,
    100,
    120,
    ("d",),
    (),
    ((DDL, commit(110, changes(3)), fake(125).payload), (commit(112, changes(-4)), fake(126).payload)),
)


def parsed(payloads: tuple[bytes, ...]) -> list[binlog_pb2.Binlog]:
    return [binlog_pb2.Binlog.FromString(payload) for payload in payloads]


def test_a_play_has_the_same_rows_with_other_keys_and_timestamps_and_no_ddl() -> None:
    shift = 2 * span_of(CASE)
    first, second = play(CASE, 2).pumps
    assert first == (commit(110 + shift, changes(3 + 2 * KEYS)), fake(125 + shift).payload)
    assert second == (commit(112 + shift, changes(-4 + 2 * KEYS)), fake(126 + shift).payload)


def test_plays_follow_each_other() -> None:
    plays = [play(CASE, number) for number in range(3)]
    assert plays[0] == CASE
    for before, after in zip(plays, plays[1:], strict=False):
        assert before.last_ts < min(binlog.start_ts for payloads in after.pumps for binlog in parsed(payloads))
    assert played(CASE, 3) == dataclasses.replace(plays[2], start_ts=CASE.start_ts)


def test_a_table_without_an_integer_handle_is_refused() -> None:
    other = dataclasses.replace(CASE, pumps=((commit(110, binlog_pb2.TableMutation(deleted_rows=[_NAME], sequence=[4])),),))
    with pytest.raises(ValueError, match="integer handle"):
        play(other, 1)


@pytest.mark.parametrize("pumps", [1, 2, 3])
def test_spread_deals_everything_once_and_every_pump_ends_past_the_end(pumps: int) -> None:
    found = spread(CASE, pumps)
    assert len(found.pumps) == pumps
    dealt = [payload for payloads in found.pumps for payload in payloads[:-1]]
    assert sorted(dealt) == sorted([DDL, CASE.pumps[0][1], CASE.pumps[1][0]])
    for payloads, log in zip(found.pumps, schedule(found), strict=True):
        stamps = [binlog.commit_ts for binlog in parsed(payloads)]
        assert stamps == sorted(stamps)
        assert stamps[-1] > CASE.end_ts
        assert log[-1].payload == payloads[-1]
