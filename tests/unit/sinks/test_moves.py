"""Rows of tables with columns of their own that get other keys: what is planned for them, and how what they hold is written down."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.schemas.history import OtherColumn
from pyspark_tidb_binlog.sinks.mysql.moves import HeldValues, literals_of, row_hash
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, plan_rows
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.mysql.target_fit import Misfit, as_found, left_out
from tests.support.plan_samples import INT_PK, NOT_NULL, TABLE_ID, Events, column, index, table, text

PAIR = table([column("id", flag=NOT_NULL), text("u"), column("n")], [index("PRIMARY", ("id", -1), primary=True), index("u", ("u", -1))])
OTHERS = replace(PAIR, others=(OtherColumn("note", "varchar"), OtherColumn("k", "int")))
LIMITS = PlanLimits()


def there(*columns: str, generated: str = "") -> TargetTable:
    found = tuple(TargetColumn(name, "bigint(20)", True, None, name == generated, False) for name in columns)
    return TargetTable("d", "t", found, (TargetKey("PRIMARY", (("id", -1),)),))


def test_a_moved_row_is_no_delete_and_no_insert() -> None:
    events = Events(PAIR).update((1, "a", 0), (2, "a", 0), rowid=1).update((5, "e", 0), (5, "e", 1), rowid=5)
    plan = plan_rows(events.table(), {TABLE_ID: OTHERS}, LIMITS)
    ((move,),) = plan.moves
    assert (plan.deletes, len(plan.writes), plan.counts.written, plan.counts.deleted) == ((), 1, 2, 0)
    assert move.update.sql == b"UPDATE `d`.`t` SET `id`=2,`u`='a',`n`=0 WHERE `id`=1 LIMIT 1"
    assert move.take.sql == b"DELETE FROM `d`.`t` WHERE `id`=1 LIMIT 1"
    assert move.put(HeldValues({"note": "'x'", "k": "7"})).sql == b"INSERT INTO `d`.`t` (`id`,`u`,`n`,`note`,`k`) VALUES (2,'a',0,'x',7)"
    assert move.fresh.sql == b"INSERT INTO `d`.`t` (`id`,`u`,`n`) VALUES (2,'a',0)"
    without = plan_rows(events.table(), {TABLE_ID: PAIR}, LIMITS)
    assert without.moves == () and [s.rows for s in without.deletes] == [1]


def test_what_a_row_held_goes_into_the_columns_of_these_names() -> None:
    """The table was changed while it had no row there: ``k`` was dropped, ``late`` added, and ``NOTE`` written otherwise, behind it."""
    changed = replace(PAIR, others=(OtherColumn("late", "int"), OtherColumn("NOTE", "varchar")))
    events = Events(PAIR).update((1, "a", 0), (2, "a", 0), rowid=1).table()
    ((move,),) = plan_rows(events, {TABLE_ID: changed}, LIMITS).moves
    held = HeldValues({"note": "'x'", "k": "7"})
    assert move.put(held).sql == b"INSERT INTO `d`.`t` (`id`,`u`,`n`,`NOTE`) VALUES (2,'a',0,'x')"
    words = "the columns that only the target has were changed while the row was moved: these were dropped with their values: k; these are new and have their defaults: late"
    assert move.lost(held) == words and move.lost(HeldValues({"late": "1", "Note": "NULL"})) == ""
    assert move.put(HeldValues({"k": "7"})).sql == move.fresh.sql


def test_a_row_without_a_key_is_taken_with_what_it_holds() -> None:
    keyless = table([column("a"), text("b")])
    events = Events(keyless).update((1, None), (2, None), rowid=1)
    ((move,),) = plan_rows(events.table(), {TABLE_ID: replace(keyless, others=OTHERS.others)}, LIMITS).moves
    assert not move.by_key
    taken = move.taken("NULL,7")
    assert (
        taken.sql.startswith(b"DELETE FROM `d`.`t` WHERE CAST(CONCAT(") and b" AS BINARY) = X'4e554c4c2c37' AND `a` <=> 1 AND " in taken.sql
    )
    assert taken.row_text() == move.take.row_text()


def test_a_clustered_row_that_is_deleted_and_inserted_again_is_another_one() -> None:
    at = table([column("id", flag=INT_PK), column("n")], handle="int")
    events = Events(at).delete(1, 1).insert(1, 2).update((2, 1), (2, 2)).table()
    plan = plan_rows(events, {TABLE_ID: replace(at, others=OTHERS.others)}, LIMITS)
    assert [(s.effect, s.rows) for s in (*plan.deletes, *plan.writes)] == [("removes", 1), ("changes", 1), ("adds", 1)]
    assert [(s.effect, s.rows) for s in plan_rows(events, {TABLE_ID: at}, LIMITS).writes] == [("changes", 2)]


def test_the_hash_of_a_row_never_changes() -> None:
    """It is stored between the two phases of a span."""
    assert row_hash(77, b"k").hex() == "a15d8686bc3263fb25e17262ee445521"


def test_an_enum_is_written_down_by_its_number_and_a_text_by_its_bytes() -> None:
    assert literals_of([OtherColumn("e", "enum")]) == "CONCAT(IF(`e` IS NULL, 'NULL', CAST(`e` + 0 AS CHAR)))"
    assert "HEX(CONVERT(`a` USING utf8mb4))" in literals_of([OtherColumn("a", "char"), OtherColumn("e", "enum")])


def test_a_table_as_upstream_is_the_same_object() -> None:
    assert as_found(PAIR, there("N", "u", "id"), partial=False) is PAIR


@pytest.mark.parametrize("partial", [False, True])
def test_columns_of_its_own_that_it_computes_are_none(partial: bool) -> None:
    found = as_found(PAIR, there("id", "u", "n", "own", "sum", generated="sum"), partial=partial)
    assert not isinstance(found, Misfit) and found.others == (OtherColumn("own", "bigint"),) and found.info is PAIR.info


def test_what_is_left_out_is_in_no_key() -> None:
    found = as_found(PAIR, there("id", "n", "u", generated="u"), partial=True)
    assert not isinstance(found, Misfit)
    assert left_out(PAIR, found) == ("u",) and [[c.name for c in key] for key in found.info.unique_keys()] == [["id"]]
    refused = as_found(PAIR, there("id", "n"), partial=False)
    assert isinstance(refused, Misfit) and "it has no column u, which rows write" in refused.why
    assert isinstance(as_found(PAIR, there("x"), partial=True), Misfit)
