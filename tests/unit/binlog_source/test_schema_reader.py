"""What a key held at a ts, by the answers of ``/mvcc/hex``."""

import base64
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.schema_reader import NOW, MetaValue, value_at
from pyspark_tidb_binlog.jobs.lab.emulator.mvcc import Mvcc

KEY = b"k"


def answer(**info: Any) -> Any:
    return {"key": "00", "region_id": 1, "value": {"info": info}}


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


WRITES = [
    {"type": 1, "start_ts": 40, "commit_ts": 41},
    {"type": 3, "start_ts": 35, "commit_ts": 35},
    {"type": 2, "start_ts": 33, "commit_ts": 34},
    {"start_ts": 30, "commit_ts": 31},
    {"start_ts": 20, "commit_ts": 21, "short_value": text(b"short")},
]
VALUES = [{"start_ts": 30, "value": text(b"long")}]


@pytest.mark.parametrize(
    ("ts", "found"),
    [
        (20, MetaValue(None)),
        (21, MetaValue(b"short", 21)),
        (30, MetaValue(b"short", 21)),
        (31, MetaValue(b"long", 31)),
        (40, MetaValue(b"long", 31)),
        (41, MetaValue(None, 41)),
        (NOW, MetaValue(None, 41)),
    ],
)
def test_the_newest_write_up_to_the_ts(ts: int, found: MetaValue) -> None:
    assert value_at(answer(writes=WRITES, values=VALUES), ts, ts) == found


def test_who_may_still_commit_up_to_the_ts_is_waited_for() -> None:
    for lock in ({"start_ts": 50}, {"start_ts": 50, "type": 1}):
        assert value_at(answer(lock=lock, writes=WRITES, values=VALUES), 50, 50) is None
        assert value_at(answer(lock=lock, writes=WRITES, values=VALUES), 49, 49) == MetaValue(None, 41), "it commits later"
    for kind in (2, 5):
        held = {"start_ts": 1, "type": kind}
        assert value_at(answer(lock=held, writes=WRITES, values=VALUES), 31, 31) == MetaValue(b"long", 31), "a lock that changes nothing"


def test_what_is_no_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="the value that start_ts 30 wrote is missing"):
        value_at(answer(writes=WRITES), 31, 31)
    for wrong in (
        [],
        {"value": {"region_error": {"message": "epoch not match"}}},
        {"value": {"info": {"writes": [{"commit_ts": 1}]}}},
        answer(writes=[{"start_ts": 1, "commit_ts": 2, "short_value": "a"}]),
    ):
        with pytest.raises(ValueError, match="no MVCC information"):
            value_at(wrong, 9, 9)


def test_the_embedded_upstream_answers_so_too() -> None:
    mvcc = Mvcc()
    assert value_at(mvcc.look_up(KEY), NOW, NOW) == MetaValue(None)
    mvcc.put(KEY, b"a", 1, 2)
    mvcc.put(KEY, b"b" * 300, 3, 4)
    mvcc.put(KEY, None, 5, 6)
    seen = {ts: value_at(mvcc.look_up(KEY), ts, ts) for ts in (1, 2, 4, 5, 6)}
    assert seen == {
        1: MetaValue(None),
        2: MetaValue(b"a", 2),
        4: MetaValue(b"b" * 300, 4),
        5: MetaValue(b"b" * 300, 4),
        6: MetaValue(None, 6),
    }
    mvcc.collect(4)
    assert value_at(mvcc.look_up(KEY), 2, 2) == MetaValue(None), "collected"
    assert value_at(mvcc.look_up(KEY), 4, 4) == MetaValue(b"b" * 300, 4)
