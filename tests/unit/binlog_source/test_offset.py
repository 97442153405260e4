"""The offset: round trip, hostile JSON, and never backwards."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark, from_json, require_advance
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import Delivery

RAW = BinlogOffset(Delivery.RAW, 50, 10, {"a": PumpMark(Position(1, 7)), "b": PumpMark(Position(0, 3), Position(0, 1))}, 55)
COUNT = st.integers(0, (1 << 63) - 1)
POSITION = st.builds(Position, COUNT, COUNT)
MARKS = st.dictionaries(st.text(min_size=1), st.builds(PumpMark, POSITION, st.none() | POSITION, st.just(0) | COUNT))


def offsets() -> st.SearchStrategy[BinlogOffset]:
    return st.builds(
        lambda delivery, a, b, marks, clock, gone: BinlogOffset(delivery, max(a, b), min(a, b), marks, clock, gone),
        st.sampled_from(Delivery),
        COUNT,
        COUNT,
        MARKS,
        COUNT,
        st.just(0) | COUNT,
    )


@given(offsets())
def test_round_trip(offset: BinlogOffset) -> None:
    assert from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_form_is_frozen() -> None:
    assert json.dumps(RAW.to_json()) == (
        '{"clock_ts": 55, "delivery": "raw", "floor": 10, "pumps": {"a": {"offset": 7, "suffix": 1}, '
        '"b": {"offset": 3, "since": {"offset": 1, "suffix": 0}, "suffix": 0}}, "resolved_ts": 50, "version": 2}'
    )


def test_what_was_seen_is_a_field_of_its_own() -> None:
    """It is absent where nobody knows it, as in every older checkpoint."""
    seen = BinlogOffset(Delivery.SORTED, 50, 10, {"a": PumpMark(Position(0, 50), seen_ts=45)})
    assert '"pumps": {"a": {"offset": 50, "seen_ts": 45, "suffix": 0}}' in json.dumps(seen.to_json())


def test_a_log_that_begins_anew_may_begin_before() -> None:
    require_advance(RAW, dataclasses.replace(RAW, pumps={"a": PumpMark(Position(0, 5), Position(0, 2))}))
    with pytest.raises(ConfigError, match="Pump a goes back from Position"):
        require_advance(RAW, dataclasses.replace(RAW, pumps={"a": PumpMark(Position(0, 5), Position(0, 6))}))


def test_equal_offsets_give_equal_text() -> None:
    turned = dataclasses.replace(RAW, pumps=dict(reversed(RAW.pumps.items())))
    assert json.dumps(turned.to_json()) == json.dumps(RAW.to_json())


HOSTILE = [
    None,
    [],
    "raw",
    7,
    {},
    {"version": 1},
    RAW.to_json() | {"version": 3},
    RAW.to_json() | {"version": 1},
    {name: value for name, value in RAW.to_json().items() if name != "clock_ts"},
    {name: value for name, value in RAW.to_json().items() if name != "clock_ts"} | {"version": 1, "delivery": "sorted"},
    RAW.to_json() | {"clock_ts": None},
    RAW.to_json() | {"clock_ts": -1},
    RAW.to_json() | {"version": True},
    RAW.to_json() | {"version": "1"},
    RAW.to_json() | {"more": 1},
    RAW.to_json() | {"gone_ts": -1},
    RAW.to_json() | {"gone_ts": None},
    RAW.to_json() | {"delivery": "tip"},
    RAW.to_json() | {"delivery": None},
    RAW.to_json() | {"delivery": ["raw"]},
    RAW.to_json() | {"resolved_ts": -1},
    RAW.to_json() | {"resolved_ts": 1.5},
    RAW.to_json() | {"resolved_ts": "50"},
    RAW.to_json() | {"resolved_ts": True},
    RAW.to_json() | {"resolved_ts": 1 << 63},
    RAW.to_json() | {"resolved_ts": 9},
    RAW.to_json() | {"floor": None},
    RAW.to_json() | {"pumps": None},
    RAW.to_json() | {"pumps": []},
    RAW.to_json() | {"pumps": {"": {"offset": 0, "suffix": 0}}},
    RAW.to_json() | {"pumps": {"a": None}},
    RAW.to_json() | {"pumps": {"a": {"offset": 0}}},
    RAW.to_json() | {"pumps": {"a": {"offset": 0, "suffix": 0, "more": 0}}},
    RAW.to_json() | {"pumps": {"a": {"offset": -1, "suffix": 0}}},
    RAW.to_json() | {"pumps": {"a": {"offset": 0, "suffix": 0, "seen_ts": -1}}},
    RAW.to_json() | {"pumps": {"a": {"offset": 0, "suffix": 0, "seen_ts": "5"}}},
    RAW.to_json() | {"pumps": {"a": {"offset": 0, "suffix": 0, "since": 3}}},
    RAW.to_json() | {"pumps": {"a": {"offset": 0, "suffix": 0, "since": {"offset": 1}}}},
]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: json.dumps(v)[:60])
def test_hostile_json_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        from_json(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(RAW.to_json())), JSON))
def test_damaged_fields_are_refused_or_an_offset(damage: dict[str, object]) -> None:
    try:
        offset = from_json(RAW.to_json() | damage)
    except ConfigError:
        return
    assert from_json(offset.to_json()) == offset


BACKWARDS = [
    (dataclasses.replace(RAW, resolved_ts=49), "resolved_ts goes back from 50 to 49"),
    (dataclasses.replace(RAW, floor=11), "floor"),
    (dataclasses.replace(RAW, clock_ts=54), "clock_ts goes back from 55 to 54"),
    (dataclasses.replace(RAW, pumps={"a": PumpMark(Position(1, 6))}), "Pump a goes back"),
    (dataclasses.replace(RAW, pumps={"a": PumpMark(Position(0, 99))}), "Pump a goes back"),
    (dataclasses.replace(RAW, pumps={"c": PumpMark(Position(0, 1), Position(0, 2))}), "Pump c goes back"),
    (dataclasses.replace(RAW, delivery=Delivery.SORTED), "delivery raw"),
]


@pytest.mark.parametrize(("end", "words"), BACKWARDS, ids=[words for _, words in BACKWARDS])
def test_never_backwards(end: BinlogOffset, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        require_advance(RAW, end)


def test_the_clock_is_never_below_r() -> None:
    assert (RAW.clock, dataclasses.replace(RAW, resolved_ts=60).clock) == (55, 60)


def test_forwards_joining_and_leaving_are_fine() -> None:
    require_advance(RAW, RAW)
    require_advance(RAW, dataclasses.replace(RAW, resolved_ts=60, pumps={"b": PumpMark(Position(0, 3))}))
    require_advance(RAW, dataclasses.replace(RAW, pumps={"c": PumpMark(Position(9, 9), Position(0, 0))}))
    with pytest.raises(ConfigError, match="Pump c goes back"):
        require_advance(RAW, dataclasses.replace(RAW, pumps={"c": PumpMark(Position(9, 9), Position(9, 10))}))


def test_the_floor_of_the_first_batch_wins_over_a_newer_now() -> None:
    now = BinlogOffset(Delivery.RAW, 70, 70, {})
    require_advance(now, RAW)
    with pytest.raises(ConfigError, match="resolved_ts goes back from 70 to 50"):
        require_advance(dataclasses.replace(now, pumps=RAW.pumps, floor=10), RAW)
