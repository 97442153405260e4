"""What a DDL that is not executed freezes, and what meets a frozen table, from histories alone; what a server does is in the integration test of the same name."""

from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableRoute
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.frozen import (
    NONE_FROZEN,
    FrozenTable,
    FrozenTables,
    UnwritableTable,
    fitted,
    from_json,
    frozen_by,
    hit,
    to_json,
    unwritten,
    writable,
)
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, given
from pyspark_tidb_binlog.sinks.routing.routes import Routes
from tests.support.ddl_jobs import INT, column, database, foreign_key, history, index, job, partitions, table

ID = column(1, "id", {**INT, "Flag": 4099})
V, A = column(2, "v"), column(3, "a")
T = FrozenTable(4, "d", "t", {1: "id", 2: "v"})
"""``t`` as it was when its RENAME to ``s``, job 4, was not executed."""
NO_T = FrozenTable(4, "d", "t", None)


def t(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return table(10, "t", [ID, *columns], **more)


def frozen(h: SchemaHistory, *refused: int, keeps: Any = lambda _: True) -> FrozenTables:
    """What these jobs freeze, one after the other."""
    found = NONE_FROZEN
    for number in refused:
        one = h.job(number)
        assert one is not None
        found = {**found, **frozen_by(one, h, found, keeps)}
    return found


def at(h: SchemaHistory, table_id: int = 10, version: int = 99) -> TableAt:
    found = h.table_at(table_id, version)
    assert found is not None
    return found


def test_a_table_is_frozen_as_it_was_and_stays_so() -> None:
    h = history(database(1), job(2, 3, t(V)), job(3, 5, t(V, A)), job(4, 6, t(A)))
    found = frozen(h, 3, 4)
    assert found == {10: FrozenTable(3, "d", "t", {1: "id", 2: "v"})}
    assert from_json(to_json(found)) == found and from_json(to_json({9: NO_T})) == {9: NO_T}


LIVES: list[tuple[dict[str, Any], FrozenTables]] = [
    (job(5, 11, table(20, "s", [ID, V]), table_id=10), {20: T}),
    (job(5, 72, table(20, "s", [ID, V]), table_id=10), {20: T}),
    (job(5, 4, table_id=10), {}),
    (job(5, 2, None, table_id=0), {}),
    (job(5, 3, table(12, "n", [ID])), {12: FrozenTable(5, "d", "n", None)}),
    (
        job(5, 60, None, many=[table(12, "n", [ID]), table(13, "m", [ID])]),
        {i: FrozenTable(5, "d", n, None) for i, n in ((12, "n"), (13, "m"))},
    ),
    (
        job(5, 47, None, many=[table(10, "x", [ID, V]), table(11, "s", [ID])], query="rename table s to x, o to s"),
        {11: FrozenTable(5, "d", "o", {1: "id"})},
    ),
]


@pytest.mark.parametrize(("last", "more"), LIVES)
def test_a_later_job_that_is_not_executed_freezes_all_its_tables(last: dict[str, Any], more: FrozenTables) -> None:
    """Under a new id a table is what it was, until the record of the first job is done."""
    h = history(database(1), job(2, 3, t(V)), job(3, 3, table(11, "o", [ID])), job(4, 14, table(10, "s", [ID, V])), last)
    assert frozen(h, 4, 5) == {10: T, **more}


def test_an_exchange_freezes_both_sides() -> None:
    h = history(
        database(1),
        job(2, 3, t(V)),
        job(3, 3, table(20, "p", [ID, V], partition=partitions((21, "p0")))),
        job(4, 42, table(20, "p", [ID, V], partition=partitions((10, "p0"))), table_id=10),
    )
    columns = {1: "id", 2: "v"}
    assert frozen(h, 4) == {20: FrozenTable(4, "d", "p", columns), 21: FrozenTable(4, "d", "t", columns)}


def test_a_table_that_was_not_replicated_has_no_table_there() -> None:
    h = history(database(1), job(2, 3, t(V)), job(3, 14, table(10, "s", [ID, V])))
    assert frozen(h, 3, keeps=lambda one: one.name == "s") == {10: FrozenTable(3, "d", "s", None)}
    assert frozen(h, 3, keeps=lambda _: False) == {}


MEETS: list[tuple[dict[str, Any], bool]] = [
    (job(5, 5, table(10, "s", [ID, V, A])), True),
    (job(5, 4, table_id=10, table_name="s"), True),
    (job(5, 11, table(20, "s", [ID, V]), table_id=10), True),
    (job(5, 14, table(10, "t", [ID, V])), True),
    (job(5, 47, None, many=[table(10, "x", [ID, V]), table(11, "s", [ID])], query="rename table s to x, o to s"), True),
    (job(5, 3, table(12, "t", [ID])), True),
    (job(5, 60, None, many=[table(12, "n", [ID]), table(13, "t", [ID])]), True),
    (job(5, 21, table(12, "T", [ID], view={})), True),
    (job(5, 14, table(11, "t", [ID])), True),
    (job(5, 3, table(12, "n", [ID, V], fk_info=[foreign_key("f", "v", "s", "id")])), True),
    (job(5, 9, table(11, "o", [ID], fk_info=[foreign_key("f", "id", "s", "id")])), True),
    (job(5, 2, None, table_id=0), True),
    (job(5, 3, table(12, "n", [ID])), False),
    (job(5, 3, table(12, "n", [ID, V], fk_info=[foreign_key("f", "v", "o", "id")])), False),
    (job(5, 19, table(11, "o", [ID], partition=partitions((30, "p")))), False),
    (job(5, 26, None, table_id=0), False),
]


@pytest.mark.parametrize(("last", "meets"), MEETS)
def test_a_job_that_meets_a_frozen_table_is_not_executed(last: dict[str, Any], meets: bool) -> None:
    h = history(database(1), job(2, 3, t(V)), job(3, 3, table(11, "o", [ID])), job(4, 14, table(10, "s", [ID, V])), last)
    found = given(h.jobs[5], "", h, {10: T})
    assert found.form is (DdlForm.FROZEN if meets else DdlForm.TEXT)
    if meets:
        assert "d.t is frozen since the DDL of job 4" in found.why and "set the row of job 4 in spark_ddl to state = 'done'" in found.why
    assert given(h.jobs[5], "", h, {}).form is DdlForm.TEXT


def test_the_database_of_a_frozen_table_is_not_dropped_though_the_upstream_s_has_left_it() -> None:
    moved = job(3, 14, t(), schema_id=2000, schema_name="e")
    other = {**database(8, "e", 2000), "id": 8}
    other["binlog"]["SchemaVersion"] = 1
    h = history(database(1), other, job(2, 3, t()), moved, job(5, 2, None, table_id=0))
    assert hit(h.jobs[5], h, frozen(h, 3)) and not hit(h.jobs[5], h, {})


@pytest.mark.parametrize(
    ("last", "form"),
    [
        (job(5, 5, t(V)), DdlForm.NOTHING),
        (job(5, 4, table_id=10), DdlForm.NOTHING),
        (job(5, 14, table(10, "s", [ID])), DdlForm.NOTHING),
        (job(5, 11, table(20, "t", [ID]), table_id=10), DdlForm.FROZEN),
        (job(5, 3, table(20, "t", [ID])), DdlForm.TEXT),
        (job(5, 2, None, table_id=0), DdlForm.TEXT),
    ],
)
def test_a_table_that_was_not_made(last: dict[str, Any], form: DdlForm) -> None:
    """There is nothing to change, except that its new id has none either."""
    h = history(database(1), job(4, 3, t()), last)
    assert given(h.jobs[5], "", h, {10: NO_T}).form is form


def test_a_view_that_was_not_made_is_replaced() -> None:
    view = {"view": {}}
    h = history(database(1), job(4, 21, table(10, "w", [ID], **view)), job(5, 21, table(11, "w", [ID], **view)))
    assert set(h.tables_of_job(h.jobs[5])) == {10, 11}
    assert given(h.jobs[5], "", h, frozen(h, 4)).form is DdlForm.TEXT


def test_names_are_compared_as_they_are_at_the_target() -> None:
    routes = Routes.of(ApplyConfig(routes=(TableRoute("d", "t", "", "n"),)))
    h = history(database(1), job(2, 3, t()), job(4, 14, table(10, "s", [ID])), job(5, 3, table(12, "n", [ID])))
    assert hit(h.jobs[5], h, {10: T}, routes) and not hit(h.jobs[5], h, {10: T})


def test_rows_go_to_the_columns_of_their_ids_only() -> None:
    """``v`` was renamed, and another ``v`` came: neither was executed."""
    w, u = column(2, "w"), index(1, "u", ("w", 1), unique=True)
    h = history(database(1), job(2, 3, t(V)), job(3, 12, t(w, column(5, "v"), A, index_info=[u])))
    now = at(h)
    found = writable(now, FrozenTable(3, "d", "t", {1: "id", 2: "v"}))
    assert isinstance(found, TableAt) and found.frozen
    assert [(c.id, c.name, c.offset) for c in found.info.columns] == [(1, "id", 0), (2, "v", 1)]
    assert [[c.id for c in key] for key in found.info.unique_keys()] == [[1], [2]]
    assert [[(part.name, part.offset) for part in key.columns] for key in found.info.indexes] == [[("v", 1)]]
    assert unwritten(now, FrozenTable(3, "d", "t", {1: "id", 2: "v"})) == ("v", "a")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (None, "rows of d.t are not written: the target has no table d.t since"),
        ({2: "v"}, "rows of d.t, whose primary key the target's table has not, are not written: d.t is frozen since"),
    ],
)
def test_rows_that_have_nowhere_to_go(columns: dict[int, str] | None, words: str) -> None:
    found = writable(at(history(database(1), job(2, 3, t(V)))), FrozenTable(3, "d", "t", columns))
    assert isinstance(found, UnwritableTable) and found.why.startswith(words)


def test_other_tables_of_a_step_stay_as_they_are() -> None:
    h = history(database(1), job(2, 3, t(V)), job(3, 3, table(20, "o", [ID])), job(4, 3, table(30, "n", [ID])), job(5, 5, t(V, A)))
    tables = {i: at(h, i) for i in (10, 20, 30)}
    step, unwritable = fitted(RowsStep(0, 1, 1, tables), frozen(h, 4, 5))
    assert step.tables[20] is tables[20] and step.gone == {30} and [u.table_id for u in unwritable] == [30]
    assert [c.name for c in step.tables[10].info.columns] == ["id", "v"]
    whole = RowsStep(0, 1, 1, tables)
    assert fitted(whole, {}) == (whole, ())


@drawn(st.data())
def test_nothing_lands_in_a_column_of_another_id(data: st.DataObject) -> None:
    """Whatever DDLs follow one that was not executed: a value is written under the name that its column, by the id, had then; and to no other."""
    columns, jobs, ids = [V, A], [job(2, 3, t(V, A))], iter(range(10, 99))
    for number in range(3, 3 + data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(("add", "drop", "rename", "convert")))
        free = data.draw(st.sampled_from(sorted(set("abcdefghijvw") - {c["name"]["O"] for c in columns})))
        place = data.draw(st.integers(0, max(len(columns) - 1, 0)))
        if kind == "add" or not columns:
            columns = [*columns[:place], column(next(ids), free), *columns[place:]]
        else:
            was = columns[place]
            new = {"drop": [], "rename": [{**was, "name": {"O": free}}], "convert": [{**was, "id": next(ids)}]}[kind]
            columns = [*columns[:place], *new, *columns[place + 1 :]]
        jobs.append(job(number, 5, t(*columns)))
    h = history(database(1), *jobs)
    first = data.draw(st.integers(3, int(h.newest_version)))
    there = {c.id: c.name for c in at(h, version=first - 1).info.columns}
    record = from_json(to_json(frozen(h, *range(first, int(h.newest_version) + 1))))
    for version in range(first, int(h.newest_version) + 1):
        now = at(h, version=version)
        found = writable(now, record[10])
        assert isinstance(found, TableAt)
        assert {c.id: c.name for c in found.info.columns} == {c.id: there[c.id] for c in now.info.columns if c.id in there}
        assert set(unwritten(now, record[10])) == {c.name for c in now.info.columns if c.id not in there}
