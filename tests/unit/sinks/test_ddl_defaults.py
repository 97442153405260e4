"""Defaults in DDL text, one rule at a time; what a server makes of them is in the integration test of the same name."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.ddl_tokens import text_of, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.tidb import settle_defaults
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, VARCHAR, column, table

TIMESTAMP = {**INT, "Tp": 7, "Flag": 128, "Flen": 19}
UTC = {"default": "2019-12-31 16:00:00", "origin_default": "2019-12-31 16:00:00", "version": 2}


def settled(text: str, *columns: dict[str, Any], flavour: Flavour = Flavour.MARIADB) -> tuple[str, tuple[str, ...]]:
    info = TableInfo.from_json(table(10, "t", [column(1, "id"), *columns]))
    tokens, added = settle_defaults(list(tokenize(text)), info, TableInfo.from_json(table(10, "t", [column(1, "id")])), flavour)
    return text_of(tokens), tuple(c.name for c in added)


@pytest.mark.parametrize(
    ("clause", "rest"),
    [
        ("DEFAULT 7", ""),
        ("DEFAULT -7", " COMMENT 'x'"),
        ("DEFAULT '7'", " NOT NULL"),
        ("DEFAULT _UTF8MB4'7'", ""),
        ("DEFAULT b'111'", " AFTER `id`"),
        ("DEFAULT (1 + (2))", " UNIQUE"),
        ("DEFAULT RAND()", " COMMENT 'DEFAULT 1'"),
        ("DEFAULT CURRENT_TIMESTAMP", " ON UPDATE CURRENT_TIMESTAMP"),
        ("DEFAULT NEXT VALUE FOR `d`.`s`", " COMMENT 'x'"),
        ("DEFAULT NULL", ""),
    ],
)
def test_the_clause_is_replaced_and_nothing_else(clause: str, rest: str) -> None:
    text, added = settled(
        f"ALTER TABLE `t` ADD COLUMN `c` INT {clause}{rest}, ADD KEY(`c`)", column(2, "c", default="7", origin_default="3")
    )
    assert (text, added) == (f"ALTER TABLE `t` ADD COLUMN `c` INT DEFAULT '3'{rest}, ADD KEY(`c`)", ("c",))


def test_a_missing_clause_is_put_behind_the_type() -> None:
    text, _ = settled("ALTER TABLE `t` ADD `c` INT UNSIGNED NOT NULL FIRST", column(2, "c", {**INT, "Flag": 33}, origin_default="3"))
    assert text == "ALTER TABLE `t` ADD `c` INT UNSIGNED DEFAULT '3' NOT NULL FIRST"


def test_text_that_says_the_same_stays() -> None:
    text = (
        "ALTER TABLE `t` ADD COLUMN (`c` VARCHAR(20) DEFAULT 'x', KEY(`c`)), DROP COLUMN `z`, ADD PARTITION (PARTITION `p` VALUES IN (1))"
    )
    assert settled(text, column(2, "c", VARCHAR, default="x", origin_default="x")) == (text, ())


def test_a_column_that_was_there_is_not_added() -> None:
    text = "ALTER TABLE `t` MODIFY COLUMN `id` INT DEFAULT 7"
    assert settled(text) == (text, ())


@pytest.mark.parametrize("flavour", list(Flavour))
def test_a_timestamp_of_another_zone(flavour: Flavour) -> None:
    wanted = "CREATE TABLE `t` (`id` INT, `c` TIMESTAMP NULL DEFAULT '2019-12-31 16:00:00') COMMENT='a'"
    assert settled(
        "CREATE TABLE `t` (`id` INT, `c` TIMESTAMP DEFAULT '2020-01-01 00:00:00') COMMENT='a'",
        column(2, "c", TIMESTAMP, **UTC),
        flavour=flavour,
    ) == (
        wanted,
        (),
    )


def test_a_timestamp_kept_in_the_servers_zone_stays() -> None:
    text = "ALTER TABLE `t` ALTER COLUMN `c` SET DEFAULT '2020-01-01 00:00:00'"
    assert settled(text, column(2, "c", TIMESTAMP, **{**UTC, "version": 0}))[0] == text
    assert settled(text, column(2, "c", TIMESTAMP, **UTC))[0] == "ALTER TABLE `t` ALTER COLUMN `c` SET DEFAULT '2019-12-31 16:00:00'"


@pytest.mark.parametrize(
    ("definition", "wanted"),
    [
        ("TIMESTAMP", "TIMESTAMP NULL"),
        ("TIMESTAMP(3) COMMENT 'x'", "TIMESTAMP(3) NULL COMMENT 'x'"),
        ("TIMESTAMP NULL", "TIMESTAMP NULL"),
        ("TIMESTAMP DEFAULT NULL", "TIMESTAMP NULL DEFAULT NULL"),
        ("TIMESTAMP DEFAULT NULL NULL", "TIMESTAMP DEFAULT NULL NULL"),
    ],
)
def test_a_nullable_timestamp_says_so(definition: str, wanted: str) -> None:
    for verb in ("MODIFY COLUMN `c`", "CHANGE COLUMN `b` `c`"):
        assert settled(f"ALTER TABLE `t` {verb} {definition}", column(2, "c", TIMESTAMP))[0] == f"ALTER TABLE `t` {verb} {wanted}"


def test_a_timestamp_that_may_not_be_null_does_not() -> None:
    text = "ALTER TABLE `t` MODIFY COLUMN `c` TIMESTAMP NOT NULL"
    assert settled(text, column(2, "c", {**TIMESTAMP, "Flag": 129}))[0] == text


def test_a_default_that_does_not_fit_is_left_to_the_rows_that_lack_the_column() -> None:
    text = "ALTER TABLE `t` ADD COLUMN `c` INT DEFAULT 7"
    assert settled(text, column(2, "c", default="what", origin_default="what")) == (text, ())
