"""By which keys two row operations are in conflict, and which lane and round each gets."""

import dataclasses
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.causality import Conflict, OpKeys, keys_of, schedule
from pyspark_tidb_binlog.sinks.engine.row_ops import operations_of
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, Events, column, index, table, text

U_KEY = index("u", ("u", -1))


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
    return table([ID, collated("u", collate)], [index("u", ("u", length))], handle="int")


ID = column("id", flag=INT_PK)
ONLY_ID, PLAIN, U = table([ID], handle="int"), table([ID, column("n")], handle="int"), table([ID, column("u")], [U_KEY], handle="int")
UV = table([ID, column("u"), column("v")], [U_KEY, index("v", ("v", -1), unique=False)], handle="int")
TWO = table([column("a", flag=INT_PK), column("b", flag=INT_PK)], [index("PRIMARY", ("a", -1), ("b", -1), primary=True)], handle="common")
KEYLESS, NULLABLE = table([column("a"), column("b")]), table([column("u"), column("b")], [U_KEY])
NEEDED = table([column("u", flag=NOT_NULL), column("b")], [U_KEY])
BYTES, PREFIX = table([ID, text("u", charset="binary")], [U_KEY], handle="int"), by_text("utf8mb4_bin", 2)
GENERATED = table(
    [ID, column("a"), dataclasses.replace(column("g"), generated_expr="a % 2")], [index("ag", ("a", -1), ("g", -1))], handle="int"
)
REAL = table([ID, column("u", ColumnType.DOUBLE, 0, 22, -1)], [U_KEY], handle="int")
LEAVING = dataclasses.replace(NULLABLE, leaving=frozenset({1}))
GONE = Events(NULLABLE).insert(1, 2, rowid=1).delete(None, 2, rowid=2).insert(3, 2, rowid=3)
BEFORE = Events(ONLY_ID).delete(1).delete(2)
SHARED: dict[str, tuple[TableAt, Events, list[tuple[int, int]]]] = {
    "an update has the keys of both rows": (
        PLAIN, Events(PLAIN).update((3, 0), (4, 0)).update((2, 0), (5, 0)).delete(3, 0).insert(5, 1).insert(6, 1), [(0, 2), (1, 3)]
    ),
    "every unique key counts and no other": (
        UV, Events(UV).insert(1, 10, 7).insert(2, 20, 7).update((3, 30, 7), (3, 10, 7)).delete(4, 20, 7), [(0, 2), (1, 3)]
    ),
    "equal values of two keys are two keys": (U, Events(U).insert(1, 2).insert(2, 3), []),
    "a composite key is compared as a whole": (TWO, Events(TWO).insert(1, 2).insert(1, 3).insert(2, 2).delete(1, 2), [(0, 3)]),
    "NULL is in conflict with nothing": (U, Events(U).insert(1, None).insert(2, None).insert(3, 0).delete(4, 0), [(2, 3)]),
    "rows without a key are one key": (KEYLESS, Events(KEYLESS).insert(1, 2, rowid=1).insert(3, 4, rowid=2), [(0, 1)]),
    "only the rows with NULL of a nullable key are": (
        NULLABLE,
        Events(NULLABLE).insert(1, 2, rowid=1).insert(None, 4, rowid=2).insert(3, 4, rowid=3).update((3, 4), (None, 5), rowid=3).insert(3, 5, rowid=4),
        [(1, 3), (2, 3), (2, 4), (3, 4)],
    ),
    "NOT NULL is what makes a key find every row": (NEEDED, Events(NEEDED).insert(1, 2, rowid=1).insert(2, 4, rowid=2), []),
    "one value that cannot be compared leaves the column out for all": (
        by_text("utf8mb4_general_ci"), Events(by_text("utf8mb4_general_ci")).insert(1, "a").insert(2, "b").delete(3, "é"), [(0, 1), (0, 2), (1, 2)]
    ),
    "bytes are compared exactly": (
        BYTES, Events(BYTES).insert(1, b"a").insert(2, b"A").insert(3, b"a ").insert(4, b"\xff").delete(5, b"\xff"), [(3, 4)]
    ),
    "a prefix index is compared by the prefix": (PREFIX, Events(PREFIX).insert(1, "éab").insert(2, "éac").insert(3, "éb"), [(0, 1)]),
    "minus zero is zero": (REAL, Events(REAL).insert(1, 0.0).insert(2, -0.0).insert(3, 1.0), [(0, 1)]),
    "a generated column is left out of a key": (GENERATED, Events(GENERATED).insert(1, 5, 6).insert(2, 5, 7).insert(3, 6, 8), [(0, 1)]),
    "rows of a table are apart": (ONLY_ID, BEFORE, []),
    "a frozen table is one key": (dataclasses.replace(ONLY_ID, frozen=True), BEFORE, [(0, 1)]),
    "a table whose images lack a column is one key": (dataclasses.replace(PLAIN, dropping=True), BEFORE, [(0, 1)]),
    # It is found without that column, so that it may be taken for a row that has a key.
    "while a column leaves, a row without a key is in conflict with all": (LEAVING, GONE, [(0, 1), (0, 2), (1, 2)]),
    "and not before": (NULLABLE, GONE, []),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED)
def test_which_operations_share_a_key(case: str) -> None:
    at, events, wanted = SHARED[case]
    assert shared(events, at) == wanted


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


def test_tables_do_not_touch_each_other() -> None:
    one, other = table([column("id", flag=INT_PK)], handle="int"), table([column("id", flag=INT_PK)], handle="int", name="o")
    rows: Any = Events(one).insert(1).table().to_pylist() + [row | {"table_id": 78} for row in Events(other).delete(1).table().to_pylist()]
    events = Events(one).table().from_pylist(rows, schema=Events(one).table().schema)
    keys = keys_of(operations_of(events, {TABLE_ID: one, 78: dataclasses.replace(other, table_id=78)})).lists()
    assert not set(keys[0]) & set(keys[1])
