"""Which changes of an ALTER the target has already."""

from dataclasses import replace
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import Alteration
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import Presence
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from tests.support.ddl_jobs import INT, column, index, table


def at_target(*names: str, kind: str = "int(11)") -> TargetTable:
    return TargetTable("d", "t", tuple(TargetColumn(n, kind, True, None, False, False) for n in names), (), collation="utf8mb4_nopad_bin")


def left(old: list[dict[str, Any]], new: list[dict[str, Any]], there: TargetTable, query: str = "x") -> list[str]:
    infos = (TableInfo.from_json(table(10, "t", columns, pk_is_handle=False)) for columns in (old, new))
    altered = Alteration.of(*infos, query, Dialect(Flavour.MARIADB))
    assert altered is not None
    presence = Presence(altered, there)
    return altered.clauses(presence.missing(), presence.own_columns())


A, B, C = (column(n, name, INT) for n, name in enumerate("abc", 1))
RENAMED = column(1, "r", INT)


@pytest.mark.parametrize(
    ("new", "there", "wanted"),
    [
        ([B, RENAMED, C], "abc", ["MODIFY COLUMN `b` INT NULL FIRST", "CHANGE COLUMN `a` `r` INT NULL"]),
        ([B, RENAMED, C], "rbc", ["MODIFY COLUMN `b` INT NULL FIRST"]),
        ([B, RENAMED, C], "bac", ["CHANGE COLUMN `a` `r` INT NULL"]),
        ([B, RENAMED, C], "brc", []),
        ([B, RENAMED, C], "xbyrc", []),
        ([A, C], "abc", ["DROP COLUMN `b`"]),
        ([A, C], "ac", []),
        ([A, B, C, column(4, "d", INT)], "abc", ["ADD COLUMN `d` INT NULL"]),
        ([A, B, C, column(4, "d", INT)], "ab", ["ADD COLUMN `d` INT NULL"]),
        ([A, B, column(4, "d", INT), C], "ac", ["ADD COLUMN `d` INT NULL AFTER `a`"]),
        ([A, B, C, column(4, "d", INT)], "dabc", []),
    ],
)
def test_only_what_is_lacking_is_made(new: list[dict[str, Any]], there: str, wanted: list[str]) -> None:
    """Also among columns of somebody's own, in another order, or where one of the upstream's is missing."""
    assert left([A, B, C], new, at_target(*there)) == wanted


def test_a_column_of_a_type_that_nobody_knows_hinders_no_other_one() -> None:
    vector = column(9, "v", {**INT, "Tp": 225})
    assert left([A, vector], [A, vector, B], at_target("a", "v")) == ["ADD COLUMN `b` INT NULL"]


def test_a_column_of_another_type_is_not_the_one_that_comes() -> None:
    assert left([A], [A, B], at_target("a", "b", kind="varchar(9)")) == ["ADD COLUMN `b` INT NULL"]


def test_a_column_that_gets_the_name_of_another_one_is_not_told_apart() -> None:
    old, new = [A, B], [column(1, "b", INT), column(2, "a", INT)]
    infos = (TableInfo.from_json(table(10, "t", columns, pk_is_handle=False)) for columns in (old, new))
    assert Alteration.of(*infos, "x", Dialect(Flavour.MARIADB)) is None


@pytest.mark.parametrize(
    ("flavour", "keys", "wanted"),
    [
        (Flavour.MYSQL, (), [[], []]),
        (Flavour.MYSQL, (TargetKey("uk", (("b", -1),), False),), [[], []]),
        (Flavour.MYSQL, (TargetKey("uk", (("", -1),), False),), [["RENAME INDEX `uk` TO `ul`"], ["DROP INDEX `uk`"]]),
        (Flavour.TIDB, (), [["RENAME INDEX `uk` TO `ul`"], []]),
    ],
)
def test_an_index_over_an_expression_that_the_target_lacks_does_not_change(
    flavour: Flavour, keys: tuple[TargetKey, ...], wanted: list[list[str]]
) -> None:
    """A plain one of its name is somebody's own. One that it has goes, also where the target cannot make another one."""
    hidden = {**column(3, "_V$_uk_0", INT), "hidden": True, "generated_expr_string": "`a` + 1"}
    indexes = ([index(1, "uk", ("_V$_uk_0", 2))], [index(1, "ul", ("_V$_uk_0", 2))], [])
    old, *new = (TableInfo.from_json(table(10, "t", [A, B, hidden], pk_is_handle=False, index_info=found)) for found in indexes)
    there = replace(at_target("a", "b"), other_keys=keys)
    found = [a for info in new if (a := Alteration.of(old, info, "x", Dialect(flavour))) is not None]
    assert [a.clauses(Presence(a, there).missing()) for a in found] == wanted
