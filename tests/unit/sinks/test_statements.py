"""Statements: what they foretell, and cut into rows."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits
from pyspark_tidb_binlog.sinks.mysql.statements import Ahead, Effect, Phase, Statement, values_of
from tests.support.plan_samples import INT_PK, TABLE_ID, VERSION, Events, column, index, plan_rows, table, text

BY_ID = table([column("id", flag=INT_PK), text("v")], handle="int")
COMMON = table(
    [text("a", INT_PK), column("b", flag=INT_PK), column("c")], [index("PRIMARY", ("a", -1), ("b", -1), primary=True)], handle="common"
)
KEYLESS = table([column("a"), text("b")])
ENUM = table([column("id", flag=INT_PK), column("e", ColumnType.ENUM, charset="utf8mb4")], handle="int")


def plan(at: object, events: Events, **limits: int) -> Plan:
    return plan_rows(events.table(), {TABLE_ID: at}, PlanLimits(**limits))  # type: ignore[dict-item]


def test_removed_added_and_changed_rows_stand_apart() -> None:
    found = plan(BY_ID, Events(BY_ID).insert(1, "a").update((2, "b"), (2, "c")).delete(3, "d").insert(4, "e"))
    assert [(s.effect, s.phase, s.rows) for s in (*found.deletes, *found.writes)] == [
        (Effect.REMOVES, Phase.DELETE, 1),
        (Effect.CHANGES, Phase.WRITE, 1),
        (Effect.ADDS, Phase.WRITE, 2),
    ]
    for statement in (*found.deletes, *found.writes):
        assert (statement.origin.table, statement.origin.schema_version, statement.origin.key) == ("`d`.`t`", VERSION, ("id",))
    assert found.writes[1].newest_ts == 1004


def test_a_statement_is_planned_ahead_once_and_its_error_is_raised_in_its_place() -> None:
    first, second = plan(BY_ID, Events(BY_ID).insert(1, "a").insert(2, "b"), max_rows=1).writes
    asked = []

    def planned() -> Iterator[Statement]:
        for statement in (first, second):
            asked.append(statement)
            yield statement
        raise ValueError("damaged")

    ahead = Ahead(planned())
    taken = []
    with pytest.raises(ValueError, match="damaged"):
        for statement in ahead:
            ahead.prepare()
            ahead.prepare()
            taken.append((statement, len(asked)))
    assert taken == [(first, 2), (second, 2)]
    assert list(Ahead([first])) == [first] and list(Ahead([])) == []


@pytest.mark.parametrize("max_rows", [2, 100])
def test_every_statement_can_be_cut_into_rows(max_rows: int) -> None:
    events = Events(COMMON)
    for i in range(5):
        events.insert(f"it's, ({i})\\", i, None)
    rows = [row for s in plan(COMMON, events, max_rows=max_rows).writes for row in s.cut()]
    assert [r.sql.decode() for r in rows] == [rf"INSERT INTO `d`.`t` (`a`,`b`,`c`) VALUES ('it''s, ({i})\\',{i},NULL)" for i in range(5)]
    assert [(r.rows, r.newest_ts, values_of(r.row_text())[1]) for r in rows] == [(1, 1001 + i, b"%d" % i) for i in range(5)]


def test_a_changed_row_is_cut_with_its_tail() -> None:
    (statement,) = plan(BY_ID, Events(BY_ID).update((1, "a"), (1, "b")).update((2, "a"), (2, "b"))).writes
    assert [s.sql for s in statement.cut()] == [
        b"INSERT INTO `d`.`t` (`id`,`v`) VALUES (%d,'b') ON DUPLICATE KEY UPDATE `id`=VALUES(`id`),`v`=VALUES(`v`)" % i for i in (1, 2)
    ]
    assert statement.as_replace() == b"REPLACE INTO `d`.`t` (`id`,`v`) VALUES (1,'b'),(2,'b')"


def test_deletes_are_cut_by_key() -> None:
    (statement,) = plan(BY_ID, Events(BY_ID).delete(7, "x").delete(8, "y")).deletes
    assert [s.sql for s in statement.cut()] == [b"DELETE FROM `d`.`t` WHERE `id` IN (7)", b"DELETE FROM `d`.`t` WHERE `id` IN (8)"]


def test_equal_rows_without_a_key_are_one_statement_that_stays_whole() -> None:
    (statement,) = plan(KEYLESS, Events(KEYLESS).delete(1, "a", rowid=1).delete(1, "a", rowid=2)).deletes
    assert (statement.rows, statement.single, statement.newest_ts) == (2, True, 1002)
    assert list(statement.cut()) == [statement]
    assert statement.row_text().startswith(b"`a` <=> 1 AND ")


def test_zero_enums_are_known_by_row() -> None:
    events = Events(ENUM).insert(1, 0).insert(2, 1).insert(3, 0).insert(4, None)
    (statement,) = plan(ENUM, events).writes
    assert statement.zeros_in("e") == 2
    assert [s.zeros_in("e") for s in statement.cut()] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("row", "values"),
    [
        (b"7", (b"7",)),
        (b"(1,'a,b',NULL)", (b"1", b"'a,b'", b"NULL")),
        (rb"(_binary'it''s \\',-1.5)", (rb"_binary'it''s \\'", b"-1.5")),
        (rb"('\\',')')", (rb"'\\'", b"')'")),
    ],
)
def test_the_values_of_a_row(row: bytes, values: tuple[bytes, ...]) -> None:
    assert values_of(row) == values


def test_the_same_events_give_the_same_statements() -> None:
    events = Events(KEYLESS).delete(1, "a", rowid=1).delete(2, "b", rowid=2).delete(1, "a", rowid=3).table()
    backwards = events.take(pa.array([2, 1, 0]))
    assert plan_rows(events, {TABLE_ID: KEYLESS}, PlanLimits()) == plan_rows(backwards, {TABLE_ID: KEYLESS}, PlanLimits())
