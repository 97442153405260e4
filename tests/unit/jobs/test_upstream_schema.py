"""Table infos and DDL text of the embedded upstream, as the decoder reads them."""

import pytest

from pyspark_tidb_binlog.jobs.lab.emulator import schema
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.schemas.errors import ConfigError


def info(*columns, **more):
    return schema.parsed(schema.table_json(Table("t", columns, **more), 7))


def test_integer_key_is_the_handle():
    table = info(Column("id", "bigint unsigned"), Column("v", "varchar(20)"), primary_key=("id",))
    assert table.pk_is_handle and [c.name for c in table.unique_keys()[0]] == ["id"] and table.columns[0].unsigned
    assert table.indexes == ()


def test_other_clustered_key():
    table = info(Column("a", "varchar(10)"), Column("b", "int"), primary_key=("a", "b"))
    assert table.is_common_handle and [c.name for c in table.handle_columns()] == ["a", "b"]


def test_nonclustered_and_unique_keys():
    table = info(Column("a", "int"), Column("b", "int", not_null=True), primary_key=("a",), clustered=False, unique=(("b",),))
    assert not table.pk_is_handle and table.handle_columns() == ()
    assert [[c.name for c in key] for key in table.unique_keys()] == [["a"], ["b"]]


def test_types():
    table = info(Column("d", "decimal(10,2)"), Column("t", "datetime(3)"), Column("e", "enum('a','it''s')"), Column("j", "json"))
    d, t, e, j = table.columns
    assert (d.flen, d.decimal, t.decimal, e.elems, e.charset, j.charset) == (10, 2, 3, ("a", "it's"), "utf8mb4", "binary")
    with pytest.raises(ConfigError, match="geometry"):
        info(Column("g", "geometry"))


def test_text_is_tidbs():
    table = Table("t", (Column("id", "bigint"), Column("s", "varchar(5)", not_null=True, default="it's")), ("id",), unique=(("s",),))
    assert table.text() == (
        "CREATE TABLE `t` (`id` BIGINT,`s` VARCHAR(5) NOT NULL DEFAULT _UTF8MB4'it''s',PRIMARY KEY(`id`) /*T![clustered_index] CLUSTERED */,UNIQUE `u1`(`s`));"
    )


def test_defaults():
    added = schema.column_json(Column("c", "int", not_null=True, default=5), 3, 2, added=True)
    table = schema.parsed(schema.with_columns(schema.table_json(Table("t", (Column("id", "int"),), ("id",)), 7), [added]))
    assert (schema.default_of(table.columns[0]), schema.origin_of(table.columns[0])) == (5, 5)
    for kind, zero in [("int", 0), ("double", 0.0), ("decimal(5,2)", "0"), ("date", "0000-00-00"), ("varchar(3)", ""), ("enum('a')", 1)]:
        assert schema.default_of(info(Column("c", kind, not_null=True)).columns[0]) == zero
        assert schema.default_of(info(Column("c", kind)).columns[0]) is None
