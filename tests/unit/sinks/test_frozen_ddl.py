"""What of a DDL may be sent to a target with frozen tables, from histories alone; that the target stays whole is in the integration test ``test_frozen``."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.mysql.ddl.frozen_names import DdlForm, frozen_tables, given
from tests.support.ddl_jobs import column, database, history, job, partitions, table

ID, V, A = column(1, "id"), column(2, "v"), column(3, "a")


def form(h: SchemaHistory, number: int, *refused: int, query: str = "") -> str:
    found = h.job(number)
    assert found is not None
    return given(found, query, h, frozenset(refused)).form


def test_nothing_is_asked_while_nothing_is_refused() -> None:
    h = history(database(1), job(2, 3, table(10, "t", [ID])), job(3, 2))
    assert [form(h, n) for n in (1, 2, 3)] == [DdlForm.TEXT] * 3


def test_a_later_ddl_of_a_frozen_table_is_sent_in_its_words() -> None:
    h = history(
        database(1),
        job(2, 3, table(10, "t", [ID])),
        job(3, 5, table(10, "t", [ID, V])),
        job(4, 5, table(10, "t", [ID, V, A])),
        job(5, 4, table_id=10),
    )
    assert [form(h, n, 3) for n in (4, 5)] == [DdlForm.TEXT] * 2


AFTER_A_RENAME: list[tuple[dict[str, Any], DdlForm]] = [
    (job(5, 5, table(10, "s", [ID, V, A])), DdlForm.INFOS),
    (job(5, 4, table_id=10, table_name="s"), DdlForm.TEXT),
    (job(5, 11, table(20, "s", [ID, V]), table_id=10), DdlForm.TEXT),
    (job(5, 14, table(10, "x", [ID, V])), DdlForm.TEXT),
    (job(5, 14, table(10, "t", [ID, V])), DdlForm.NOTHING),
    (job(5, 47, None, many=[table(10, "x", [ID, V]), table(11, "s", [ID])], query="rename table s to x, o to s"), DdlForm.REFUSED),
    (job(5, 3, table(12, "t", [ID])), DdlForm.REFUSED),
    (job(5, 21, table(12, "T", [ID])), DdlForm.REFUSED),
    (job(5, 3, table(12, "n", [ID])), DdlForm.TEXT),
    (job(5, 19, table(11, "o", [ID], partition=partitions((30, "p")))), DdlForm.TEXT),
    (job(5, 19, table(10, "s", [ID, V], partition=partitions((30, "p")))), DdlForm.INFOS),
    (job(5, 2, None, table_id=0), DdlForm.TEXT),
]


@pytest.mark.parametrize(("last", "wanted"), AFTER_A_RENAME)
def test_a_frozen_table_with_another_name(last: dict[str, Any], wanted: DdlForm) -> None:
    h = history(database(1), job(2, 3, table(10, "t", [ID, V])), job(3, 3, table(11, "o", [ID])), job(4, 14, table(10, "s", [ID, V])), last)
    assert form(h, 5, 4) is wanted


def test_the_names_outlive_a_truncate() -> None:
    moved = job(3, 14, table(10, "t", [ID]), schema_id=2000, schema_name="e")
    h = history(
        database(1),
        database(8, "e", 2000) | {"id": 8, "binlog": {**database(8, "e", 2000)["binlog"], "SchemaVersion": 1}},
        job(2, 3, table(10, "t", [ID])),
        moved,
        job(4, 11, table(20, "t", [ID]), table_id=10, schema_id=2000, schema_name="e"),
        job(5, 2, None, table_id=0),
    )
    assert [(t.table_id, t.schema, s.schema) for t, s in frozen_tables(h, frozenset({3}), 4)] == [(20, "e", "d")]
    assert form(h, 5, 3) is DdlForm.REFUSED


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        (job(3, 5, table(10, "t", [ID, V])), DdlForm.NOTHING),
        (job(3, 4, table_id=10), DdlForm.NOTHING),
        (job(3, 11, table(20, "t", [ID]), table_id=10), DdlForm.NOTHING),
        (job(3, 3, table(20, "t", [ID])), DdlForm.TEXT),
    ],
)
def test_a_table_that_was_not_made(last: dict[str, Any], wanted: DdlForm) -> None:
    h = history(database(1), job(2, 3, table(10, "t", [ID])), last)
    assert form(h, 3, 2) is wanted


def test_a_table_like_a_frozen_one_is_made_from_the_infos() -> None:
    h = history(database(1), job(2, 3, table(10, "t", [ID])), job(3, 5, table(10, "t", [ID, V])), job(4, 3, table(11, "n", [ID, V])))
    assert form(h, 4, 3, query="CREATE TABLE `n` LIKE `T`") is DdlForm.INFOS
    assert form(h, 4, 3, query="CREATE TABLE `n` LIKE `o`") is DdlForm.TEXT
    assert form(h, 4, 3, query="CREATE TABLE `n` (`id` INT, `t` INT)") is DdlForm.TEXT
