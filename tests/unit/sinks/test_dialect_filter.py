"""Quoting, exact conditions by server, and the database filter."""

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, flavour_of, key_head, match_condition, table_name, write_head
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter


def column(tp: int, charset: str = "binary", name: str = "c") -> ColumnInfo:
    return ColumnInfo(1, name, 0, tp, 0, -1, -1, charset, charset, (), None, None, None, None, False, "", False, False, 5, "")


def condition(c: ColumnInfo, flavour: Flavour = Flavour.MARIADB, indexed: bool = False) -> bytes:
    return b"?".join(match_condition(c, flavour, indexed))


def test_names_are_quoted() -> None:
    assert table_name("a`b", "c d") == "`a``b`.`c d`"
    assert write_head("d", "t", ["a", "ä"]) == "INSERT INTO `d`.`t` (`a`,`ä`) VALUES ".encode()
    assert key_head("d", "t", ["a"]) == b"DELETE FROM `d`.`t` WHERE `a` IN ("
    assert key_head("d", "t", ["a", "b"]) == b"DELETE FROM `d`.`t` WHERE (`a`,`b`) IN ("


@pytest.mark.parametrize(
    ("version", "flavour"),
    [("10.11.19-MariaDB-0+deb12u1", Flavour.MARIADB), ("8.0.35", Flavour.MYSQL), ("5.7.25-TiDB-v6.7.0", Flavour.TIDB)],
)
def test_flavour(version: str, flavour: Flavour) -> None:
    assert flavour_of(version) is flavour


def test_text_is_matched_as_bytes_and_the_rest_as_it_stands() -> None:
    exact = b"CAST(CONVERT(`c` USING utf8mb4) AS BINARY) <=> ?"
    assert condition(column(ColumnType.BIGINT)) == b"`c` <=> ?"
    assert condition(column(ColumnType.VARCHAR)) == b"`c` <=> ?"
    assert condition(column(ColumnType.VARCHAR, "utf8mb4")) == exact
    assert condition(column(ColumnType.VARCHAR, "utf8mb4"), indexed=True) == b"`c` <=> ? AND " + exact.replace(b"?", b"?", 1)
    assert condition(column(ColumnType.ENUM, "utf8mb4")) == b"`c` <=> ?"
    assert condition(column(ColumnType.JSON)) == exact
    assert condition(column(ColumnType.JSON), Flavour.MYSQL) == b"`c` <=> CAST(? AS JSON)"


def test_route_by_database() -> None:
    assert TableFilter().keeps("mysql")
    table_filter = TableFilter.of(ApplyConfig())
    assert table_filter.keeps("shop")
    assert not table_filter.keeps("MySQL")
    assert not table_filter.keeps("information_schema")
    assert table_filter.keeps("mysql2")


@pytest.mark.shows("syncer.replicate-do-db", "drainer gotcha 5")
def test_route_patterns() -> None:
    assert TableFilter(replicate_schemas=("shop",)).keeps("SHOP")
    assert not TableFilter(replicate_schemas=("shop",)).keeps("shop2")
    assert TableFilter(replicate_schemas=("~^shop",)).keeps("shop2")
    assert not TableFilter(replicate_schemas=("~^shop",), ignore_schemas=("shop2",)).keeps("shop2")
    with pytest.raises(ConfigError, match="not a valid regular expression"):
        TableFilter(replicate_schemas=("(",))
