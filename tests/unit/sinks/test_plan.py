"""Statements of a span, as text."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine import identity
from pyspark_tidb_binlog.sinks.engine.fold import HIDDEN, HiddenRows, marked
from pyspark_tidb_binlog.sinks.engine.identity import row_identities
from pyspark_tidb_binlog.sinks.mysql import plan as plans
from pyspark_tidb_binlog.sinks.mysql.part_plans import DeleteCorrection
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits
from pyspark_tidb_binlog.sinks.mysql.statements import Statement
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


def changed(before: TableAt, after: TableAt, **more: Any) -> TableAt:
    """``after``, made of ``before`` by a DDL."""
    version = SchemaVersion(after.version + 1)
    info = replace(after.info, columns=tuple(replace(c, id=i) for c, i in zip(after.info.columns, more.pop("ids"), strict=True)))
    return replace(after, info=info, version=version, snapshots=(*before.snapshots, TableSnapshot(version, "d", "t", info)), **more)


def exact(name: str) -> str:
    return f"CAST(CONVERT(`{name}` USING utf8mb4) AS BINARY)"


INDEXED = table([text("u")], [index("uu", ("u", -1), unique=False)])
TWO_KEYS = table([column("a"), column("b"), text("c")], [index("ab", ("a", -1), ("b", -1)), index("c", ("c", 3))])
NULLABLE = table([column("u"), column("v")], [index("uu", ("u", -1))])
NEEDED = table([column("u", flag=NOT_NULL), column("v")], [index("uu", ("u", -1))])
A, C, AC = table([column("a")]), table([column("c")]), table([column("a"), column("c")])
INSERT, INTO_U = "INSERT INTO `d`.`t`", "INSERT INTO `d`.`t` (`id`,`u`) VALUES"
DELETE = "DELETE FROM `d`.`t` WHERE"
Case = tuple[TableAt, Events, list[str]]
"""The table as it is, what happened to its rows, and the statements without their beginnings."""
CASES: dict[str, Case] = {
    "inserts are one insert": (BY_ID, Events(BY_ID).insert(1, "a").insert(2, None), [f"{INSERT} (`id`,`v`) VALUES (1,'a'),(2,NULL)"]),
    "deletes by key": (BY_ID, Events(BY_ID).delete(7, "x").delete(8, "y"), [f"{DELETE} `id` IN (7,8)"]),
    "deletes by several columns": (
        COMMON, Events(COMMON).delete("it's", 1, 0).delete("b", 2, None), [f"{DELETE} (`a`,`b`) IN (('it''s',1),('b',2),(NULL,NULL))"]
    ),
    "an update that keeps every unique key needs no delete": (
        WITH_UNIQUE, Events(WITH_UNIQUE).update((1, 5), (1, 5)).update((2, None), (2, None)), [f"{INTO_U} (1,5),(2,NULL)" + CHANGE]
    ),
    **{
        f"an update of a unique key from {old} deletes first": (
            WITH_UNIQUE, Events(WITH_UNIQUE).update((1, old), (1, new)), [f"{DELETE} `id` IN (1)", f"{INTO_U} (1,{new or 'NULL'})"]
        )
        for old, new in ((5, 6), (None, 6), (5, None))
    },
    "unique values swapped between rows": (
        WITH_UNIQUE, Events(WITH_UNIQUE).update((1, 5), (1, None)).update((2, 6), (2, 5)).update((1, None), (1, 6)),
        [f"{DELETE} `id` IN (1,2)", f"{INTO_U} (1,6),(2,5)"],
    ),
    "a key that changes only in case is deleted": (
        COMMON, Events(COMMON).delete("Key", 1, 5).insert("KEY", 1, 5, same=True),
        [f"{DELETE} (`a`,`b`) IN (('Key',1),(NULL,NULL))", f"{INSERT} (`a`,`b`,`c`) VALUES ('KEY',1,5)"],
    ),
    "rows without a key are matched by every column, and inserted": (
        KEYLESS, Events(KEYLESS).delete(1, "a", rowid=1).delete(1, "a", rowid=2).delete(None, None, rowid=3).update((2, "b"), (2, "B"), rowid=4),
        [
            f"{DELETE} `a` <=> 1 AND {exact('b')} <=> 'a' LIMIT 2", f"{DELETE} `a` <=> NULL AND {exact('b')} <=> NULL LIMIT 1",
            f"{DELETE} `a` <=> 2 AND {exact('b')} <=> 'b' LIMIT 1", f"{INSERT} (`a`,`b`) VALUES (2,'B')",
        ],
    ),
    "an indexed text of a table without a key is found by the index, too": (
        INDEXED, Events(INDEXED).delete("x", rowid=1), [f"{DELETE} `u` <=> 'x' AND {exact('u')} <=> 'x' LIMIT 1"]
    ),
    "a row is found by its first key without a NULL": (
        TWO_KEYS,
        Events(TWO_KEYS).delete(1, 2, "x", rowid=1).delete(1, None, "long text", rowid=2).delete(None, 2, None, rowid=3)
        .update((3, 4, None), (3, 4, "y"), rowid=4).update((5, 6, None), (5, 6, None), rowid=5).update((None, 7, "z"), (None, 8, "z"), rowid=6),
        [
            f"{DELETE} (`a`,`b`) IN ((1,2),(3,4),(NULL,NULL))", f"{DELETE} `c` IN ('long text','z')",
            f"{DELETE} `a` <=> NULL AND `b` <=> 2 AND `c` <=> NULL AND {exact('c')} <=> NULL LIMIT 1",
            f"{INSERT} (`a`,`b`,`c`) VALUES (5,6,NULL) ON DUPLICATE KEY UPDATE `a`=VALUES(`a`),`b`=VALUES(`b`),`c`=VALUES(`c`)",
            f"{INSERT} (`a`,`b`,`c`) VALUES (3,4,'y'),(NULL,8,'z')",
        ],
    ),
    "a row without a value in any key is deleted even where its keys stay": (
        NULLABLE, Events(NULLABLE).update((None, 2), (None, 3), rowid=1).update((1, 2), (1, 3), rowid=2),
        [
            f"{DELETE} `u` <=> NULL AND `v` <=> 2 LIMIT 1",
            f"{INSERT} (`u`,`v`) VALUES (1,3) ON DUPLICATE KEY UPDATE `u`=VALUES(`u`),`v`=VALUES(`v`)", f"{INSERT} (`u`,`v`) VALUES (NULL,3)",
        ],
    ),
    "a row without a clustered key is found by its unique key": (NEEDED, Events(NEEDED).delete(4, 2, rowid=9), [f"{DELETE} `u` IN (4)"]),
    # Images that lack columns while a DDL runs.
    "a column that the image lacks is not asked for": (
        replace(table([column("a"), column("b"), column("c")], [index("c", ("c", -1))]), leaving=frozenset({3})),
        Events(table([column("a"), column("b")])).delete(1, 2, rowid=1).delete(1, 2, rowid=2).delete(5, 6, rowid=3),
        [f"{DELETE} `a` <=> 1 AND `b` <=> 2 LIMIT 2", f"{DELETE} `a` <=> 5 AND `b` <=> 6 LIMIT 1"],
    ),
    "of a column that is new the default is the likelier": (
        changed(A, AC, ids=(1, 2)), Events(A).delete(1, rowid=1), [f"{DELETE} `a` <=> 1 ORDER BY `c` <=> NULL DESC LIMIT 1"]
    ),
    "of a column with a new type its former value is the likelier": (
        changed(AC, table([column("a"), text("c")]), ids=(1, 3)), Events(AC).delete(1, 7, rowid=1),
        [f"{DELETE} `a` <=> 1 ORDER BY {exact('c')} <=> CAST(7 AS BINARY) DESC LIMIT 1"],
    ),
    "also of the only column": (
        changed(C, table([text("c")]), ids=(3,)), Events(C).delete(7, rowid=1),
        [f"{DELETE} TRUE ORDER BY {exact('c')} <=> CAST(7 AS BINARY) DESC LIMIT 1"],
    ),
    "a key whose column the image lacks is no key": (
        replace(table([column("a"), column("b")], [index("b", ("b", -1)), index("a", ("a", -1))]), leaving=frozenset({2})),
        Events(A).delete(1, rowid=1).delete(None, rowid=2), [f"{DELETE} `a` IN (1)", f"{DELETE} `a` <=> NULL LIMIT 1"],
    ),
}  # fmt: skip


@pytest.mark.shows("known wrong: key changes only in case")
@pytest.mark.parametrize("case", CASES)
def test_statements(case: str) -> None:
    at, events, wanted = CASES[case]
    assert texts(plan(at, events)) == wanted


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


def test_images_with_and_without_the_column_in_one_span() -> None:
    at = replace(table([column("a"), column("c")]), leaving=frozenset({2}))
    both = pa.concat_tables([Events(table([column("a")])).delete(1, rowid=1).table(), Events(at, 2000).delete(1, 5, rowid=2).table()])
    assert texts(plan_rows(both, {TABLE_ID: at}, LIMITS)) == [
        "DELETE FROM `d`.`t` WHERE `a` <=> 1 ORDER BY `c` <=> 5 DESC LIMIT 1",
        "DELETE FROM `d`.`t` WHERE `a` <=> 1 LIMIT 1",
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
