"""Which columns of the target are said to change values in silence, and which are not disturbed."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.exactness import inexact
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetTable
from tests.support.plan_samples import INT_PK, NOT_NULL, column, index, table, text

UNSIGNED = int(ColumnFlag.UNSIGNED)
ID = column("id", flag=INT_PK)


def there(**types: str) -> TargetTable:
    return TargetTable("d", "t", tuple(TargetColumn(name, kind, True, None, False, False) for name, kind in types.items()), ())


@pytest.mark.parametrize(
    ("upstream", "kind"),
    [
        (column("v", ColumnType.INT), "bigint(20)"),
        (column("v", ColumnType.INT), "double"),
        (column("v", ColumnType.MEDIUMINT, UNSIGNED), "float"),
        (column("v"), "int(11)"),
        (column("v", ColumnType.TINYINT, flen=1), "tinyint(1)"),
        (column("v"), "decimal(20,0)"),
        (column("v"), "varchar(30)"),
        (column("v", ColumnType.DECIMAL, flen=10, decimal=4), "decimal(12,5)"),
        (column("v", ColumnType.DECIMAL, flen=10, decimal=4), "double"),
        (column("v", ColumnType.FLOAT, flen=12, decimal=-1), "double"),
        (column("v", ColumnType.DATETIME, decimal=3), "timestamp(3)"),
        (column("v", ColumnType.TIMESTAMP), "datetime(6)"),
        (column("v", ColumnType.DATE), "datetime"),
        (column("v", ColumnType.JSON), "longtext"),
        (text("v"), "varchar(9)"),
        (text("v"), "mediumtext"),
        (replace(text("v"), tp=ColumnType.STRING, flen=10), "char(20)"),
        (column("v", ColumnType.STRING, flen=4), "binary(4)"),
        (replace(column("v", ColumnType.ENUM), elems=("x",)), "enum('x','y')"),
    ],
)
def test_what_is_only_wider_shorter_or_called_otherwise_is_not_disturbed(upstream: ColumnInfo, kind: str) -> None:
    assert inexact(table([ID, upstream], handle="int"), there(id="bigint(20)", v=kind)) == ()


@pytest.mark.parametrize(
    ("upstream", "kind", "words"),
    [
        (column("v"), "double", "rounds off digits"),
        (column("v", ColumnType.INT), "float", "rounds off digits"),
        (column("v", ColumnType.DOUBLE, flen=22, decimal=-1), "float", "rounds off digits"),
        (column("v", ColumnType.DOUBLE, flen=22, decimal=-1), "double(10,2)", "rounds off digits"),
        (column("v", ColumnType.DOUBLE, flen=22, decimal=-1), "int(11)", "rounds off fractions"),
        (column("v", ColumnType.DECIMAL, flen=10, decimal=4), "int(11)", "rounds off fractions"),
        (column("v", ColumnType.DECIMAL, flen=10, decimal=4), "decimal(12,2)", "rounds off fractions"),
        (column("v", ColumnType.DECIMAL, flen=20), "double", "rounds off digits"),
        (column("v", ColumnType.DATETIME, decimal=6), "datetime", "cuts off fractions of a second"),
        (column("v", ColumnType.DATETIME), "date", "cuts off the time of day"),
        (column("v", ColumnType.TIME), "datetime", "values of another kind"),
        (text("v"), "char(100)", "cuts off blanks"),
        (text("v"), "int(11)", "values of another kind"),
        (column("v", ColumnType.VARCHAR, flen=4), "binary(10)", "adds zeros"),
        (column("v", ColumnType.BIT, flen=8), "varchar(9)", "values of another kind"),
    ],
)
def test_what_changes_values_in_silence_is_said(upstream: ColumnInfo, kind: str, words: str) -> None:
    (found,) = inexact(table([ID, upstream], handle="int"), there(id="bigint(20)", V=kind))
    assert (found.column, found.key) == ("v", False) and words in found.words and "ALTER TABLE `d`.`t` MODIFY `v` " in found.words


def test_a_key_by_which_rows_are_taken_for_others() -> None:
    for kind in ("double", "varchar(30)"):
        (found,) = inexact(table([ID, text("v")], handle="int"), there(id=kind, v="varchar(9)"))
        assert found.key and f"id is {kind} instead of BIGINT" in found.words and "MODIFY `id` BIGINT NOT NULL" in found.words
    for kind in ("varchar(9)", "longtext"):
        assert inexact(table([text("u")], [index("u", ("u", -1))]), there(u=kind)) == ()
    few = table([column("id", ColumnType.INT, NOT_NULL)], handle="int")
    assert inexact(few, there(id="varchar(30)")) == inexact(few, there(id="double")) == ()


def test_a_column_that_is_computed_upstream_and_plain_at_the_target() -> None:
    at = table(
        [ID, replace(column("s"), generated_expr="`id` + 1"), replace(column("_V$_k"), generated_expr="`id`", hidden=True)], handle="int"
    )
    (found,) = inexact(at, there(id="bigint(20)", s="bigint(20)", **{"_V$_k": "bigint(20)"}))
    assert not found.key and found.words.startswith("column s is computed upstream but a plain column in the target")
    stored = replace(at, info=replace(at.info, columns=tuple(replace(c, generated_stored=c.name == "s") for c in at.info.columns)))
    assert inexact(stored, there(id="bigint(20)", s="bigint(20)")) == ()
    made = replace(there(id="bigint(20)").columns[0], name="s", generated=True)
    assert inexact(at, replace(there(id="bigint(20)"), columns=(*there(id="bigint(20)").columns, made))) == ()
