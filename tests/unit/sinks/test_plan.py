"""Statements of a span, as text."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt, TableSnapshot
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine import identity
from pyspark_tidb_binlog.sinks.engine.fold import HIDDEN, HiddenRows, marked
from pyspark_tidb_binlog.sinks.engine.identity import row_identities
from pyspark_tidb_binlog.sinks.mysql import plan as plans
from pyspark_tidb_binlog.sinks.mysql.part_plans import DeleteCorrection
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits
from pyspark_tidb_binlog.sinks.mysql.statements import Phase, Statement
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, Events, column, index, plan_rows, table, text

LIMITS = PlanLimits()
CHANGE = " ON DUPLICATE KEY UPDATE `id`=VALUES(`id`),`u`=VALUES(`u`)"
BY_ID = table([column("id", flag=INT_PK), text("v")], handle="int")
WITH_UNIQUE = table([column("id", flag=INT_PK), column("u")], [index("uu", ("u", -1))], handle="int")
COMMON = table(
    [text("a", INT_PK), column("b", flag=INT_PK), column("c")], [index("PRIMARY", ("a", -1), ("b", -1), primary=True)], handle="common"
)
KEYLESS = table([column("a"), text("b")])


@pytest.fixture(autouse=True, params=[-1, identity.FEW_ROWS], ids=["whole columns", "row by row"])
def decoded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to decode give the same statements."""
    monkeypatch.setattr(identity, "FEW_ROWS", request.param)


def plan(at: TableAt, events: Events, limits: PlanLimits = LIMITS) -> Plan:
    return plan_rows(events.table(), {TABLE_ID: at}, limits)


def texts(plan: Plan) -> list[str]:
    return [s.sql.decode() for s in (*plan.deletes, *plan.writes)]


def test_inserts_are_one_insert() -> None:
    found = plan(BY_ID, Events(BY_ID).insert(1, "a").insert(2, None))
    assert texts(found) == ["INSERT INTO `d`.`t` (`id`,`v`) VALUES (1,'a'),(2,NULL)"]
    statement = found.writes[0]
    assert (statement.rows, statement.phase) == (2, Phase.WRITE)
    assert found.deletes == ()


def test_deletes_by_key() -> None:
    assert texts(plan(BY_ID, Events(BY_ID).delete(7, "x").delete(8, "y"))) == ["DELETE FROM `d`.`t` WHERE `id` IN (7,8)"]


def test_deletes_by_several_columns() -> None:
    assert texts(plan(COMMON, Events(COMMON).delete("it's", 1, 0).delete("b", 2, None))) == [
        "DELETE FROM `d`.`t` WHERE (`a`,`b`) IN (('it''s',1),('b',2))"
    ]


def test_update_that_keeps_every_unique_key_needs_no_delete() -> None:
    assert texts(plan(WITH_UNIQUE, Events(WITH_UNIQUE).update((1, 5), (1, 5)))) == ["INSERT INTO `d`.`t` (`id`,`u`) VALUES (1,5)" + CHANGE]
    assert texts(plan(WITH_UNIQUE, Events(WITH_UNIQUE).update((1, None), (1, None)))) == [
        "INSERT INTO `d`.`t` (`id`,`u`) VALUES (1,NULL)" + CHANGE
    ]


@pytest.mark.parametrize(("old", "new", "literal"), [(5, 6, "6"), (None, 6, "6"), (5, None, "NULL")])
def test_update_of_a_unique_key_deletes_first(old: int | None, new: int | None, literal: str) -> None:
    assert texts(plan(WITH_UNIQUE, Events(WITH_UNIQUE).update((1, old), (1, new)))) == [
        "DELETE FROM `d`.`t` WHERE `id` IN (1)",
        f"INSERT INTO `d`.`t` (`id`,`u`) VALUES (1,{literal})",
    ]


def test_unique_values_swapped_between_rows() -> None:
    events = Events(WITH_UNIQUE).update((1, 5), (1, None)).update((2, 6), (2, 5)).update((1, None), (1, 6))
    assert texts(plan(WITH_UNIQUE, events)) == [
        "DELETE FROM `d`.`t` WHERE `id` IN (1,2)",
        "INSERT INTO `d`.`t` (`id`,`u`) VALUES (1,6),(2,5)",
    ]


@pytest.mark.shows("known wrong: key changes only in case")
def test_a_key_that_changes_only_in_case_is_deleted() -> None:
    events = Events(COMMON).delete("Key", 1, 5).insert("KEY", 1, 5, same=True)
    assert texts(plan(COMMON, events)) == [
        "DELETE FROM `d`.`t` WHERE (`a`,`b`) IN (('Key',1))",
        "INSERT INTO `d`.`t` (`a`,`b`,`c`) VALUES ('KEY',1,5)",
    ]


def test_keyless_rows_are_matched_by_every_column_and_inserted() -> None:
    events = Events(KEYLESS).delete(1, "a", rowid=1).delete(1, "a", rowid=2).delete(None, None, rowid=3).insert(2, "b", rowid=4)
    exact = "CAST(CONVERT(`b` USING utf8mb4) AS BINARY)"
    assert texts(plan(KEYLESS, events)) == [
        f"DELETE FROM `d`.`t` WHERE `a` <=> 1 AND {exact} <=> 'a' LIMIT 2",
        f"DELETE FROM `d`.`t` WHERE `a` <=> NULL AND {exact} <=> NULL LIMIT 1",
        "INSERT INTO `d`.`t` (`a`,`b`) VALUES (2,'b')",
    ]


def test_a_keyless_update_is_delete_and_insert() -> None:
    found = texts(plan(KEYLESS, Events(KEYLESS).update((1, "a"), (1, "A"), rowid=1)))
    assert [t.split()[0] for t in found] == ["DELETE", "INSERT"]


def test_an_indexed_text_of_a_keyless_table_is_found_by_the_index_too() -> None:
    at = table([text("u")], [index("uu", ("u", -1), unique=False)])
    assert texts(plan(at, Events(at).delete("x", rowid=1))) == [
        "DELETE FROM `d`.`t` WHERE `u` <=> 'x' AND CAST(CONVERT(`u` USING utf8mb4) AS BINARY) <=> 'x' LIMIT 1"
    ]


def test_a_row_is_found_by_its_first_key_without_a_null() -> None:
    at = table([column("a"), column("b"), text("c")], [index("ab", ("a", -1), ("b", -1)), index("c", ("c", 3))])
    events = Events(at).delete(1, 2, "x", rowid=1).delete(1, None, "long text", rowid=2).delete(None, 2, None, rowid=3)
    events.update((3, 4, None), (3, 4, "y"), rowid=4).update((5, 6, None), (5, 6, None), rowid=5).update(
        (None, 7, "z"), (None, 8, "z"), rowid=6
    )
    exact = "CAST(CONVERT(`c` USING utf8mb4) AS BINARY)"
    assert texts(plan(at, events)) == [
        "DELETE FROM `d`.`t` WHERE (`a`,`b`) IN ((1,2),(3,4))",
        "DELETE FROM `d`.`t` WHERE `c` IN ('long text','z')",
        f"DELETE FROM `d`.`t` WHERE `a` <=> NULL AND `b` <=> 2 AND `c` <=> NULL AND {exact} <=> NULL LIMIT 1",
        "INSERT INTO `d`.`t` (`a`,`b`,`c`) VALUES (5,6,NULL) ON DUPLICATE KEY UPDATE `a`=VALUES(`a`),`b`=VALUES(`b`),`c`=VALUES(`c`)",
        "INSERT INTO `d`.`t` (`a`,`b`,`c`) VALUES (3,4,'y'),(NULL,8,'z')",
    ]


def test_a_row_without_a_value_in_any_key_is_deleted_even_where_its_keys_stay() -> None:
    at = table([column("u"), column("v")], [index("uu", ("u", -1))])
    assert texts(plan(at, Events(at).update((None, 2), (None, 3), rowid=1))) == [
        "DELETE FROM `d`.`t` WHERE `u` <=> NULL AND `v` <=> 2 LIMIT 1",
        "INSERT INTO `d`.`t` (`u`,`v`) VALUES (NULL,3)",
    ]
    assert texts(plan(at, Events(at).update((1, 2), (1, 3), rowid=1))) == [
        "INSERT INTO `d`.`t` (`u`,`v`) VALUES (1,3) ON DUPLICATE KEY UPDATE `u`=VALUES(`u`),`v`=VALUES(`v`)"
    ]


def test_a_row_without_clustered_key_is_found_by_its_unique_key() -> None:
    at = table([column("u", flag=NOT_NULL), column("v")], [index("uu", ("u", -1))])
    assert texts(plan(at, Events(at).delete(4, 2, rowid=9))) == ["DELETE FROM `d`.`t` WHERE `u` IN (4)"]


def test_statements_end_at_the_limits() -> None:
    events = Events(BY_ID)
    for i in range(10):
        events.insert(i, "x" * 10)
    assert [s.rows for s in plan(BY_ID, events, PlanLimits(max_rows=4)).writes] == [4, 4, 2]
    small = plan(BY_ID, events, PlanLimits(max_bytes=100))
    assert sum(s.rows for s in small.writes) == 10
    assert all(len(s.sql) <= 100 for s in small.writes)
    assert [s.rows for s in plan(BY_ID, events, PlanLimits(max_bytes=1)).writes] == [1] * 10, "a row beyond the limit still goes"
    gone = Events(BY_ID)
    for i in range(5):
        gone.delete(i, "x")
    assert [s.rows for s in plan(BY_ID, gone, PlanLimits(max_keys=2)).deletes] == [2, 2, 1]


def test_the_order_of_the_events_handed_in_does_not_matter() -> None:
    events = Events(WITH_UNIQUE).insert(3, 3).update((1, 5), (1, 6)).delete(2, 2).insert(4, 4).delete(3, 3).table()
    backwards = events.take(pa.array(range(events.num_rows - 1, -1, -1)))
    tables = {TABLE_ID: WITH_UNIQUE}
    assert plan_rows(events, tables, LIMITS) == plan_rows(backwards, tables, LIMITS)
    chunked = pa.concat_tables([backwards.slice(0, 2), backwards.slice(2)])
    keys = row_identities(chunked, tables)
    assert plan_rows(chunked, tables, LIMITS, keys) == plan_rows(events, tables, LIMITS)


@pytest.mark.parametrize(
    ("at", "row", "other"),
    [
        (BY_ID, lambda i: (i, f"v{i}"), lambda i: (i, "w")),
        (WITH_UNIQUE, lambda i: (i, i), lambda i: (i, i + 100)),
        (COMMON, lambda i: (str(i), i, None), lambda i: (str(i), i, 5)),
        (KEYLESS, lambda i: (i, f"v{i}"), lambda i: (i, "w")),
    ],
    ids=["handle", "unique", "common", "keyless"],
)
def test_rows_planned_slice_by_slice_are_the_same_rows(at: TableAt, row: Any, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events(at)
    for i in range(1, 30):
        events.insert(*row(i), rowid=i) if i % 3 else events.update(row(i), other(i), rowid=i)
    whole = plan(at, events)
    monkeypatch.setattr(plans, "SLICE", 4)
    span = plans.SpanPlan(events.table(), {TABLE_ID: at}, LIMITS)
    sliced = list(span.writes())
    assert max(s.rows for s in sliced) <= 4 < max(s.rows for s in whole.writes)
    assert span.deletes == whole.deletes

    def rows(statements: Iterable[Statement]) -> list[tuple[str, bytes, int]]:
        return [(s.effect, row.row_text(), row.newest_ts) for s in statements for row in s.cut()]

    assert rows(sliced) == rows(whole.writes)
    assert list(span.writes()) == sliced, "the same ones at each call"


def test_nothing_gives_no_statement() -> None:
    assert plan_rows(ROW_EVENT.empty_table(), {}, LIMITS) == Plan()


def test_an_unknown_table_says_where_and_what_to_do() -> None:
    with pytest.raises(SchemaMismatch, match=r"table id 77: 1 row events from commit_ts 1001 on .*Check that spark.tidb-status"):
        plan_rows(Events(BY_ID).insert(1, "a").table(), {}, LIMITS)


def test_views_have_no_rows() -> None:
    view = table([column("id", flag=INT_PK), text("v")], handle="int", view=True)
    assert plan(view, Events(BY_ID).insert(1, "a")) == Plan()


def test_every_kind_of_literal() -> None:
    at = table(
        [
            column("id", flag=INT_PK),
            column("f", ColumnType.FLOAT, flen=12, decimal=-1),
            column("d", ColumnType.DECIMAL, flen=10, decimal=2),
            column("t", ColumnType.DATETIME, flen=23, decimal=3),
            text("b", charset="binary"),
            column("j", ColumnType.JSON),
        ],
        handle="int",
    )
    events = Events(at).insert(1, 0.1, "-1.5", "2026-00-00 00:00:00", b"\xff'\\", {"a": 'it\'s "q"'})
    assert plan(at, events).writes[0].sql == (
        b"INSERT INTO `d`.`t` (`id`,`f`,`d`,`t`,`b`,`j`) VALUES "
        b"(1,0.10000000149011612,-1.50,'2026-00-00 00:00:00.000',_binary'\xff''\\\\','{\"a\": \"it''s \\\\\"q\\\\\"\"}')"
    )


# Images that lack columns while a DDL runs.


def changed(before: TableAt, after: TableAt, **more: Any) -> TableAt:
    """``after``, made of ``before`` by a DDL."""
    version = SchemaVersion(after.version + 1)
    info = replace(after.info, columns=tuple(replace(c, id=i) for c, i in zip(after.info.columns, more.pop("ids"), strict=True)))
    return replace(after, info=info, version=version, snapshots=(*before.snapshots, TableSnapshot(version, "d", "t", info)), **more)


def test_a_column_that_the_image_lacks_is_not_asked_for() -> None:
    at = table([column("a"), column("b"), column("c")], [index("c", ("c", -1))])
    without_c = table([column("a"), column("b")])
    gone = replace(at, leaving=frozenset({3}))
    events = Events(without_c).delete(1, 2, rowid=1).delete(1, 2, rowid=2).delete(5, 6, rowid=3)
    assert texts(plan(gone, events)) == [
        "DELETE FROM `d`.`t` WHERE `a` <=> 1 AND `b` <=> 2 LIMIT 2",
        "DELETE FROM `d`.`t` WHERE `a` <=> 5 AND `b` <=> 6 LIMIT 1",
    ]


def test_images_with_and_without_the_column_in_one_span() -> None:
    at = replace(table([column("a"), column("c")]), leaving=frozenset({2}))
    both = pa.concat_tables([Events(table([column("a")])).delete(1, rowid=1).table(), Events(at, 2000).delete(1, 5, rowid=2).table()])
    assert texts(plan_rows(both, {TABLE_ID: at}, LIMITS)) == [
        "DELETE FROM `d`.`t` WHERE `a` <=> 1 ORDER BY `c` <=> 5 DESC LIMIT 1",
        "DELETE FROM `d`.`t` WHERE `a` <=> 1 LIMIT 1",
    ]


def test_of_a_column_that_is_new_the_default_is_the_likelier() -> None:
    old, new = table([column("a")]), table([column("a"), column("c")])
    at = changed(old, new, ids=(1, 2))
    assert texts(plan(at, Events(old).delete(1, rowid=1))) == ["DELETE FROM `d`.`t` WHERE `a` <=> 1 ORDER BY `c` <=> NULL DESC LIMIT 1"]


def test_of_a_column_with_a_new_type_its_former_value_is_the_likelier() -> None:
    old, new = table([column("a"), column("c")]), table([column("a"), text("c")])
    at = changed(old, new, ids=(1, 3))
    assert texts(plan(at, Events(old).delete(1, 7, rowid=1))) == [
        "DELETE FROM `d`.`t` WHERE `a` <=> 1 ORDER BY CAST(CONVERT(`c` USING utf8mb4) AS BINARY) <=> CAST(7 AS BINARY) DESC LIMIT 1"
    ]
    alone = changed(table([column("c")]), table([text("c")]), ids=(3,))
    assert texts(plan(alone, Events(table([column("c")])).delete(7, rowid=1))) == [
        "DELETE FROM `d`.`t` WHERE TRUE ORDER BY CAST(CONVERT(`c` USING utf8mb4) AS BINARY) <=> CAST(7 AS BINARY) DESC LIMIT 1"
    ]


def test_a_key_whose_column_the_image_lacks_is_no_key() -> None:
    at = table([column("a"), column("b")], [index("b", ("b", -1)), index("a", ("a", -1))])
    events = Events(table([column("a")])).delete(1, rowid=1).delete(None, rowid=2)
    assert texts(plan(replace(at, leaving=frozenset({2})), events)) == [
        "DELETE FROM `d`.`t` WHERE `a` IN (1)",
        "DELETE FROM `d`.`t` WHERE `a` <=> NULL LIMIT 1",
    ]


def test_a_row_that_is_inserted_again_without_a_column_is_a_finding() -> None:
    old = table([column("id", flag=INT_PK), column("b")], handle="int")
    at = changed(old, table([column("id", flag=INT_PK), column("b"), column("c")], handle="int"), ids=(1, 2, 3))
    whole = Events(at, 2000).delete(2, 2, 2).table()
    events = pa.concat_tables([Events(old).delete(1, 1).table(), whole])
    keys = row_identities(events, {TABLE_ID: at})
    correction = DeleteCorrection(events, {TABLE_ID: at}, LIMITS, keys, (), {1001, 2001})
    assert [s.sql for s in correction.restores()] == [b"INSERT INTO `d`.`t` (`id`,`b`,`c`) VALUES (1,1,NULL),(2,2,2)"]
    words = "1 rows were inserted again with the default of columns that their images lack"
    assert list(correction.doubts()) == [Finding(FindingKind.VALUE, words, "`d`.`t`", 1001)]


@pytest.mark.parametrize("was_hidden", [False, True])
def test_a_row_that_a_condition_hid_is_not_inserted_again(was_hidden: bool) -> None:
    at = table([column("id", flag=INT_PK), column("b")], handle="int")
    events = Events(at).update((1, 1), (1, 5)).delete(1, 5).table()
    keys = row_identities(events, {TABLE_ID: at})
    images = [{"commit_ts": 1001, "seq": 0, "half": 0}] if was_hidden else []
    shown = marked(events, HiddenRows.of(pa.Table.from_pylist(images, schema=HIDDEN)))
    correction = DeleteCorrection(shown, {TABLE_ID: at}, LIMITS, keys, {1001}, {1001, 1002})
    restored = [] if was_hidden else [b"INSERT INTO `d`.`t` (`id`,`b`) VALUES (1,1)"]
    assert [s.sql for s in correction.restores()] == restored
