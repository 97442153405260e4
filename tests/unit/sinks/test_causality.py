"""By which keys two row operations are in conflict, and which lane and round each gets."""

import dataclasses
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.causality import Conflict, OpKeys, keys_of, schedule
from pyspark_tidb_binlog.sinks.engine.row_ops import operations_of
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, Events, column, index, table, text

MOVES = [[3, 4], [5, 2], [3]]
"""update id 3->4, update id 2->5, delete id 3."""
MIXED = [[1], [2], [1], [2], [2], [2]]
"""ins 1, ins 2, upd 1, upd 2, del 2, ins 2."""


@pytest.mark.shows("syncer.worker-count")
@pytest.mark.parametrize(("keys", "lanes"), [(MOVES, [0, 1, 0]), (MIXED, [0, 1, 0, 1, 1, 1])])
def test_an_operation_joins_the_lane_of_its_group(keys: list[list[int]], lanes: list[int]) -> None:
    found = schedule(OpKeys.of(keys), 4, Conflict.GROUPS, 1)
    assert (found.lanes.tolist(), found.flushed_before) == (lanes, [])


def test_keys_of_two_lanes_flush_once() -> None:
    found = schedule(OpKeys.of([[1], [2], [1, 2], [1], [3]]), 4, Conflict.GROUPS, 1)
    assert (found.flushed_before, found.rounds.tolist()) == ([2], [0, 0, 1, 1, 1])
    assert found.lanes[3] == found.lanes[2]


def test_two_groups_of_one_lane_need_no_flush() -> None:
    assert schedule(OpKeys.of([[1], [2], [1, 2]]), 4, Conflict.GROUPS, 2).flushed_before == []
    assert schedule(OpKeys.of([[1], [2], [1, 2]]), 1, Conflict.GROUPS, 1).flushed_before == []


def test_neighbours_go_to_the_lane_being_filled() -> None:
    assert schedule(OpKeys.of([[i] for i in range(8)]), 3, Conflict.GROUPS, 2).lanes.tolist() == [0, 0, 1, 1, 2, 2, 0, 0]
    again = [[i] for i in range(7)] + [[0]]
    assert schedule(OpKeys.of(again), 3, Conflict.GROUPS, 2).lanes.tolist() == [0, 0, 1, 1, 2, 2, 0, 0], (
        "the same with a key that comes twice"
    )


@pytest.mark.shows("syncer.enable-detect")
def test_without_detection_the_first_key_decides() -> None:
    found = schedule(OpKeys.of([[1, 9], [2, 9], [1], [5]]), 4, Conflict.OFF, 1)
    assert (found.lanes.tolist(), found.flushed_before) == ([1, 2, 1, 1], [])


def test_nothing_is_scheduled_of_nothing() -> None:
    for conflict in Conflict:
        assert schedule(OpKeys.of([]), 4, conflict, 1).flushed_before == []


# Keys.


def shared(events: Events, at: TableAt) -> list[tuple[int, int]]:
    """The pairs of operations that share a key."""
    keys = [set(k) for k in keys_of(operations_of(events.table(), {TABLE_ID: at})).lists()]
    assert all(keys), "every operation has a key"
    return [(a, b) for b in range(len(keys)) for a in range(b) if keys[a] & keys[b]]


def collated(name: str, collate: str, flag: int = 0) -> ColumnInfo:
    return dataclasses.replace(text(name, flag), collate=collate)


def by_text(collate: str, length: int = -1) -> TableAt:
    return table([column("id", flag=INT_PK), collated("u", collate)], [index("u", ("u", length))], handle="int")


def test_an_update_has_the_keys_of_both_rows() -> None:
    at = table([column("id", flag=INT_PK), column("n")], handle="int")
    events = Events(at).update((3, 0), (4, 0)).update((2, 0), (5, 0)).delete(3, 0).insert(5, 1).insert(6, 1)
    assert shared(events, at) == [(0, 2), (1, 3)]


def test_every_unique_key_counts_and_no_other() -> None:
    at = table(
        [column("id", flag=INT_PK), column("u"), column("v")], [index("u", ("u", -1)), index("v", ("v", -1), unique=False)], handle="int"
    )
    events = Events(at).insert(1, 10, 7).insert(2, 20, 7).update((3, 30, 7), (3, 10, 7)).delete(4, 20, 7)
    assert shared(events, at) == [(0, 2), (1, 3)]


def test_equal_values_of_two_keys_are_two_keys() -> None:
    at = table([column("id", flag=INT_PK), column("u")], [index("u", ("u", -1))], handle="int")
    assert shared(Events(at).insert(1, 2).insert(2, 3), at) == []


def test_a_composite_key_is_compared_as_a_whole() -> None:
    at = table(
        [column("a", flag=INT_PK), column("b", flag=INT_PK)], [index("PRIMARY", ("a", -1), ("b", -1), primary=True)], handle="common"
    )
    assert shared(Events(at).insert(1, 2).insert(1, 3).insert(2, 2).delete(1, 2), at) == [(0, 3)]


def test_null_is_in_conflict_with_nothing() -> None:
    at = table([column("id", flag=INT_PK), column("u")], [index("u", ("u", -1))], handle="int")
    assert shared(Events(at).insert(1, None).insert(2, None).insert(3, 0).delete(4, 0), at) == [(2, 3)]


def test_rows_without_a_key_are_one_key() -> None:
    at = table([column("a"), column("b")])
    assert shared(Events(at).insert(1, 2, rowid=1).insert(3, 4, rowid=2), at) == [(0, 1)]


def test_only_the_rows_with_null_of_a_nullable_key_are() -> None:
    at = table([column("u"), column("b")], [index("u", ("u", -1))])
    events = (
        Events(at)
        .insert(1, 2, rowid=1)
        .insert(None, 4, rowid=2)
        .insert(3, 4, rowid=3)
        .update((3, 4), (None, 5), rowid=3)
        .insert(3, 5, rowid=4)
    )
    assert shared(events, at) == [(1, 3), (2, 3), (2, 4), (3, 4)]


@pytest.mark.parametrize(
    ("collate", "one", "other", "same"),
    [
        ("utf8mb4_general_ci", "a", "A", True),
        ("utf8mb4_0900_ai_ci", "Vi", "wj", True),
        ("utf8mb4_general_ci", "a", "a  ", True),
        ("utf8mb4_unicode_ci", "a", "\x01a", True),
        ("utf8mb4_general_ci", "a", "b", False),
        ("utf8mb4_general_ci", "e", "é", True),
        ("utf8mb4_unicode_ci", "ss", "ß", True),
        ("utf8mb4_unicode_ci", "あ", "ア", True),
        ("utf8mb4_general_ci", "漢字A", "漢字a", True),
        ("utf8mb4_general_ci", "漢字", "漢", False),
        ("utf8mb4_bin", "a", "A", False),
        ("utf8mb4_bin", "e", "é", False),
        ("utf8mb4_bin", "a", "a ", True),
    ],
)
def test_text_is_never_finer_than_a_collation(collate: str, one: str, other: str, same: bool) -> None:
    at = by_text(collate)
    assert shared(Events(at).insert(1, one).insert(2, other), at) == ([(0, 1)] if same else [])


def test_one_value_that_cannot_be_compared_leaves_the_column_out_for_all() -> None:
    at = by_text("utf8mb4_general_ci")
    assert shared(Events(at).insert(1, "a").insert(2, "b").delete(3, "é"), at) == [(0, 1), (0, 2), (1, 2)]


def test_bytes_are_compared_exactly() -> None:
    at = table([column("id", flag=INT_PK), text("u", charset="binary")], [index("u", ("u", -1))], handle="int")
    assert shared(Events(at).insert(1, b"a").insert(2, b"A").insert(3, b"a ").insert(4, b"\xff").delete(5, b"\xff"), at) == [(3, 4)]


def test_a_prefix_index_is_compared_by_the_prefix() -> None:
    at = by_text("utf8mb4_bin", 2)
    assert shared(Events(at).insert(1, "éab").insert(2, "éac").insert(3, "éb"), at) == [(0, 1)]


def test_minus_zero_is_zero() -> None:
    at = table([column("id", flag=INT_PK), column("u", ColumnType.DOUBLE, 0, 22, -1)], [index("u", ("u", -1))], handle="int")
    assert shared(Events(at).insert(1, 0.0).insert(2, -0.0).insert(3, 1.0), at) == [(0, 1)]


def test_a_generated_column_is_left_out_of_a_key() -> None:
    at = table([column("id", flag=INT_PK), column("a"), column("g")], [index("ag", ("a", -1), ("g", -1))], handle="int")
    columns = tuple(dataclasses.replace(c, generated_expr="a % 2") if c.name == "g" else c for c in at.info.columns)
    at = dataclasses.replace(at, info=dataclasses.replace(at.info, columns=columns))
    assert shared(Events(at).insert(1, 5, 6).insert(2, 5, 7).insert(3, 6, 8), at) == [(0, 1)]


def test_a_frozen_table_is_one_key() -> None:
    at = table([column("id", flag=INT_PK)], handle="int")
    frozen = dataclasses.replace(at, frozen=True)
    assert shared(Events(at).insert(1).insert(2), at) == []
    assert shared(Events(frozen).insert(1).insert(2), frozen) == [(0, 1)]


def test_while_a_column_leaves_a_row_without_a_key_is_in_conflict_with_all() -> None:
    """It is found without that column, so that it may be taken for a row that has a key."""
    at = table([column("u"), column("b")], [index("u", ("u", -1))])
    leaving = dataclasses.replace(at, leaving=frozenset({1}))
    events = Events(at).insert(1, 2, rowid=1).delete(None, 2, rowid=2).insert(3, 2, rowid=3)
    assert shared(events, at) == []
    assert shared(events, leaving) == [(0, 1), (0, 2), (1, 2)]


def test_a_table_whose_images_lack_a_column_is_one_key() -> None:
    before = table([column("id", flag=INT_PK)], handle="int")
    after = table([column("id", flag=INT_PK), column("added")], handle="int")
    events = Events(before).delete(1).delete(2)
    assert shared(events, before) == []
    assert shared(events, dataclasses.replace(after, dropping=True)) == [(0, 1)]


def test_tables_do_not_touch_each_other() -> None:
    one, other = table([column("id", flag=INT_PK)], handle="int"), table([column("id", flag=INT_PK)], handle="int", name="o")
    rows: Any = Events(one).insert(1).table().to_pylist() + [row | {"table_id": 78} for row in Events(other).delete(1).table().to_pylist()]
    events = Events(one).table().from_pylist(rows, schema=Events(one).table().schema)
    keys = keys_of(operations_of(events, {TABLE_ID: one, 78: dataclasses.replace(other, table_id=78)})).lists()
    assert not set(keys[0]) & set(keys[1])


def test_not_null_is_what_makes_a_key_find_every_row() -> None:
    at = table([column("u", flag=NOT_NULL), column("b")], [index("u", ("u", -1))])
    assert shared(Events(at).insert(1, 2, rowid=1).insert(2, 4, rowid=2), at) == []
