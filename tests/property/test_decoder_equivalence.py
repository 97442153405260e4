"""The two row decoders against each other and against what was written: any table, any rows, any damage."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas import decoder, reference_decoder
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from tests.support.drawn_rows import Events, at, column, events, table
from tests.support.examples import examples

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@examples(150, suppress_health_check=SLOW_DRAWS)
@given(events())
def test_images_are_what_was_written(drawn: Events) -> None:
    stats = decoder.DecodeStats()
    for select, image, ops in (("new", "new_images", (Op.INSERT, Op.UPDATE)), ("old", "old_images", (Op.UPDATE, Op.DELETE))):
        part = drawn.only(*ops)
        fast = getattr(decoder, image)(part.table, part.ops, part.rows, part.versions, stats)
        fast.validate(full=True)
        assert fast.equals(getattr(reference_decoder, image)(part.table, part.ops, part.rows, part.versions))
        assert [list(row.values()) for row in fast.to_pylist()] == getattr(part, select)
    part = drawn.only(Op.UPDATE, Op.DELETE)
    args = (part.table, part.ops, part.rows, part.versions)
    fast = decoder.old_rows(*args)
    fast.validate(full=True)
    assert fast.equals(reference_decoder.old_rows(*args))
    assert stats.fallback == 0


@examples(100, suppress_health_check=SLOW_DRAWS)
@given(events())
def test_keys_agree_and_never_need_the_slow_way(drawn: Events) -> None:
    stats = decoder.DecodeStats()
    fast = decoder.row_keys(drawn.table, drawn.ops, drawn.rows, stats)
    fast.validate(full=True)
    assert fast.equals(reference_decoder.row_keys(drawn.table, drawn.ops, drawn.rows))
    assert stats.fallback == 0


def damage(draw: st.DrawFn, row: bytes) -> bytes:
    """The row with a bit flipped, cut short, or with bytes put in or taken out."""
    place = draw(st.integers(0, max(len(row) - 1, 0)))
    match draw(st.sampled_from(["flip", "cut", "insert", "remove", "replace"])):
        case "flip" if row:
            return row[:place] + bytes((row[place] ^ 1 << draw(st.integers(0, 7)),)) + row[place + 1 :]
        case "cut":
            return row[:place]
        case "insert":
            return row[:place] + draw(st.binary(min_size=1, max_size=10)) + row[place:]
        case "remove":
            return row[:place] + row[place + draw(st.integers(1, 4)) :]
        case _:
            return row[:place] + draw(
                st.sampled_from(
                    [b"\xff" * 10, b"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a\x01\xff\xff\xff\xff\xff\xff\xff\xff"]
                )
            )


@st.composite
def damaged_events(draw: st.DrawFn) -> Events:
    """Events of which some rows are damaged."""
    drawn = draw(events(max_rows=4))
    rows = [damage(draw, r) if draw(st.booleans()) else r for r in drawn.rows.to_pylist()]
    return Events(drawn.table, drawn.ops, pa.array(rows, pa.binary()), drawn.versions, drawn.old, drawn.new, drawn.owners)


def outcome(decode: Callable[..., Any], *args: Any) -> Any:
    """What a decoder answers; its refusal as a text."""
    try:
        return decode(*args)
    except Corruption as error:
        return str(error)


@examples(400, suppress_health_check=SLOW_DRAWS)
@given(damaged_events())
def test_damage_is_one_error_and_the_same_in_both(drawn: Events) -> None:
    for i in range(len(drawn.ops)):
        one = slice(i, i + 1)
        ops, rows, versions = drawn.ops[one], drawn.rows[one], drawn.versions[one]
        calls: list[tuple[str, tuple[Any, ...]]] = [("row_keys", (drawn.table, ops, rows))]
        calls += [("new_images", (drawn.table, ops, rows, versions))] if ops[0] != Op.DELETE else []
        calls += [("old_rows", (drawn.table, ops, rows, versions))] if ops[0] != Op.INSERT else []
        for name, args in calls:
            assert_same(outcome(getattr(decoder, name), *args), outcome(getattr(reference_decoder, name), *args))


@examples(150, suppress_health_check=SLOW_DRAWS)
@given(damaged_events())
def test_damage_beside_good_rows_is_refused_by_both_or_by_none(drawn: Events) -> None:
    for name, ops in (("new_images", (Op.INSERT, Op.UPDATE)), ("old_images", (Op.UPDATE, Op.DELETE))):
        part = drawn.only(*ops)
        args = (part.table, part.ops, part.rows, part.versions)
        fast, slow = outcome(getattr(decoder, name), *args), outcome(getattr(reference_decoder, name), *args)
        if isinstance(slow, str):
            assert isinstance(fast, str)  # each names the damaged row it met first
        else:
            assert_same(fast, slow)


def assert_same(fast: Any, slow: Any) -> None:
    if isinstance(slow, str) or isinstance(fast, str):
        assert fast == slow
    else:
        fast.validate(full=True)
        assert fast.equals(slow)


@pytest.mark.parametrize("count", [1, 3, 200])
def test_one_damaged_row_among_good_ones_is_found(count: int) -> None:
    info = at(table((column(1, 8, 3),), pk_is_handle=True))
    rows = pa.array([b"\x08\x02\x08\x02"] * count + [b"\x08\x02\x08"], pa.binary())
    ops = np.full(count + 1, int(Op.DELETE), np.int32)
    with pytest.raises(Corruption, match=r"damaged DELETE row of table db\.t"):
        decoder.old_images(info, ops, rows, np.full(count + 1, 10, np.int64))
