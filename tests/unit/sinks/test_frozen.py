"""Shapes of frozen tables, from histories alone; what a server does with them is in the integration test of the same name."""

from typing import Any

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.frozen import RefusedJobs, fitted, shape_of
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, table

ID = column(1, "id", {**INT, "Flag": 4099})
V, A = column(2, "v"), column(3, "a")


def t(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return table(10, "t", [ID, *columns], **more)


def names(h: SchemaHistory, refused: set[int], version: int = 99, table_id: int = 10) -> list[str] | None:
    shape = shape_of(h, frozenset(refused), table_id, version)
    return [c.name for c in shape.info.columns] if shape and shape.info else None


def keys(h: SchemaHistory, refused: set[int]) -> list[tuple[str, list[str]]]:
    shape = shape_of(h, frozenset(refused), 10, 99)
    assert shape is not None and shape.info is not None
    info = shape.info
    return [(i.name, [c.name for c in info.index_columns(i)]) for i in info.indexes]


def test_only_refused_jobs_freeze() -> None:
    h = history(database(1), job(2, 3, t(V)), job(3, 5, t(V, A)))
    assert names(h, set()) is None
    assert names(h, {3}, 2) is None
    assert names(h, {3}) == ["id", "v"]
    assert names(h, {77}) is None


def test_later_jobs_move_it_on() -> None:
    b = column(4, "b")
    h = history(
        database(1),
        job(2, 3, t(V)),
        job(3, 5, t(V, A)),
        job(4, 5, t(V, A, b)),
        job(5, 12, t(column(9, "v", VARCHAR), A, b)),
        job(6, 6, t(A, b)),
    )
    assert names(h, {3}, 4) == ["id", "v", "b"]
    shape = shape_of(h, frozenset({3}), 10, 5)
    assert shape is not None and shape.info is not None and shape.since.id == 3
    assert [(c.id, c.name, c.offset) for c in shape.info.columns] == [(1, "id", 0), (9, "v", 1), (4, "b", 2)]
    assert names(h, {3}) == ["id", "b"]


def test_a_refused_modify_stays_when_another_column_comes() -> None:
    wide = column(2, "v", {**INT, "Tp": 8})
    h = history(database(1), job(2, 3, t(V)), job(3, 12, t(wide)), job(4, 5, t(wide, A)))
    shape = shape_of(h, frozenset({3}), 10, 99)
    assert shape is not None and shape.info is not None
    assert [(c.name, c.tp) for c in shape.info.columns] == [("id", 3), ("v", 3), ("a", 3)]


def test_keys_follow_their_columns() -> None:
    u, w = index(1, "u", ("v", 1), unique=True), index(2, "w", ("a", 1))
    h = history(
        database(1),
        job(2, 3, t(V, index_info=[u])),
        job(3, 5, t(A, V, index_info=[{**u, "idx_cols": [{"name": {"O": "v"}, "offset": 2, "length": -1}]}])),
        job(4, 7, t(A, V, index_info=[{**u, "idx_cols": [{"name": {"O": "v"}, "offset": 2, "length": -1}]}, w])),
    )
    assert keys(h, {3}) == [("u", ["v"])]
    assert keys(h, {4}) == [("u", ["v"])]


def test_another_life_of_the_table_keeps_the_shape() -> None:
    h = history(
        database(1),
        job(2, 3, t(V)),
        job(3, 5, t(V, A)),
        job(4, 11, table(11, "t", [ID, V, A]), table_id=10),
        job(5, 4, table_id=11, table_name="t"),
    )
    assert names(h, {3}, 4, 11) == ["id", "v"]
    assert shape_of(h, frozenset({3}), 11, 5) is None


def test_other_tables_of_a_step_stay_as_they_are() -> None:
    h = history(database(1), job(2, 3, t(V)), job(3, 3, table(20, "o", [ID])), job(4, 5, t(V, A)))
    tables = {i: at for i in (10, 20) if (at := h.table_at(i, 4))}
    step, unwritable = fitted(RowsStep(0, 1, 1, tables), h, RefusedJobs({4}))
    assert unwritable == ()
    assert step.tables[20] is tables[20]
    assert [c.name for c in step.tables[10].info.columns] == ["id", "v"]
    assert step.tables[10].frozen is not None
    assert fitted(RowsStep(0, 1, 1, tables), h, frozenset())[0].tables is tables
