"""DDL text for a TiDB target, as ddl.md 6 and 7 say."""

from typing import Any

import pytest

from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, column, table
from tests.unit.sinks.test_ddl_text import rewritten

ID = column(1, "id", {**INT, "Flag": 4099})


def tidb(query: str, kind: int, info: dict[str, Any] | None = None, **more: Any) -> str:
    return rewritten(query, kind, info or table(10, "t"), Flavour.TIDB, **more).sql


@pytest.mark.shows("ddl set tiflash replica")
def test_a_tiflash_replica_is_passed_through_and_may_fail() -> None:
    found = rewritten("ALTER TABLE `t` SET TIFLASH REPLICA 1;", 30, table(10, "t"), Flavour.TIDB)
    assert (found.sql, found.may_fail) == ("ALTER TABLE `t` SET TIFLASH REPLICA 1", True)
    assert not rewritten("ALTER TABLE `t` SET TIFLASH REPLICA 1, ADD COLUMN `c` INT;", 61, table(10, "t"), Flavour.TIDB).may_fail


@pytest.mark.shows("ddl options of TiDB")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "ALTER TABLE `t` /*T![ttl] TTL = `c` + INTERVAL 3 DAY */;",
            "ALTER TABLE `t` /*T![ttl] TTL = `c` + INTERVAL 3 DAY TTL_ENABLE = 'OFF' */",
        ),
        ("ALTER TABLE `t` /*T![ttl] TTL_ENABLE = 'ON' */;", "ALTER TABLE `t` /*T![ttl] TTL_ENABLE = 'OFF' */"),
        ("ALTER TABLE `t` /*T![ttl] REMOVE TTL */;", "ALTER TABLE `t` /*T![ttl] REMOVE TTL */"),
        ("ALTER TABLE `t` /*T![ttl] TTL_JOB_INTERVAL = '1h' */;", "ALTER TABLE `t` /*T![ttl] TTL_JOB_INTERVAL = '1h' */"),
    ],
)
def test_ttl_is_kept_and_off(text: str, wanted: str) -> None:
    assert tidb(text, 65) == wanted


@pytest.mark.parametrize("words", ["CREATE TABLE", "CREATE GLOBAL TEMPORARY TABLE", "create  table"])
def test_a_table_that_stands_there_is_not_passed_over(words: str) -> None:
    assert tidb(f"{words} IF NOT EXISTS `t` (`id` INT);", 3) == f"{words} `t` (`id` INT)"
    assert tidb(f"{words} `t` (`id` INT COMMENT 'IF NOT EXISTS');", 3) == f"{words} `t` (`id` INT COMMENT 'IF NOT EXISTS')"
    assert tidb("ALTER TABLE `t` ADD COLUMN IF NOT EXISTS `k` INT;", 5) == "ALTER TABLE `t` ADD COLUMN `k` INT"
    assert tidb("CREATE INDEX IF NOT EXISTS `i` ON `t` (`id`);", 7) == "CREATE INDEX `i` ON `t` (`id`)"


def test_ttl_of_a_new_table() -> None:
    text = "CREATE TABLE `t` (`id` INT,`ttl` DATETIME) /*T![ttl] TTL = `ttl` + INTERVAL 1 MONTH */ /*T![ttl] TTL_ENABLE = 'ON' */ PARTITION BY HASH(`id`);"
    assert tidb(text, 3) == text.replace("'ON'", "'OFF'").rstrip(";")
    user = "create table t (id int, ttl datetime) ttl = ttl + interval 1 month comment 'x'"
    assert (
        tidb(user, 3, restored=False) == "create table t (id int, ttl datetime) ttl = ttl + interval 1 month TTL_ENABLE = 'OFF' comment 'x'"
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ALTER TABLE `t` /*T![placement] PLACEMENT POLICY=`p` */;", ""),
        ("ALTER TABLE `t` /*T![placement] PLACEMENT POLICY=`p` */, ADD INDEX(`id`);", "ALTER TABLE `t` ADD INDEX(`id`)"),
        ("alter table t placement policy = p", ""),
        ("alter table t add index (id), placement policy p", "alter table t add index (id)"),
        ("ALTER TABLE `t` ADD COLUMN `placement` INT;", "ALTER TABLE `t` ADD COLUMN `placement` INT"),
    ],
)
def test_placement_belongs_to_the_upstream(text: str, wanted: str) -> None:
    assert tidb(text, 61, restored=False) == wanted


def test_databases_lose_their_policy_too() -> None:
    assert tidb("CREATE DATABASE `d` /*T![placement] PLACEMENT POLICY = `p` */;", 1) == "CREATE DATABASE `d`"
    assert tidb("ALTER DATABASE `d` /*T![placement] PLACEMENT POLICY = `p` */;", 26) == ""
    assert tidb("ALTER DATABASE `d` CHARACTER SET = utf8mb4;", 26) == "ALTER DATABASE `d` CHARACTER SET = utf8mb4"


@pytest.mark.shows("ddl options of TiDB")
def test_what_else_only_tidb_knows_is_passed_through() -> None:
    for spec in ("SHARD_ROW_ID_BITS = 4", "AUTO_ID_CACHE = 100", "STATS_OPTIONS='x'", "AUTO_RANDOM_BASE = 5"):
        text = f"ALTER TABLE `t` /*T! {spec} */"
        assert tidb(text + ";", 16) == text


def test_rows_that_are_there_get_the_origin_default_here_too() -> None:
    now = column(2, "c", {**INT, "Tp": 7, "Flag": 128}, default="CURRENT_TIMESTAMP", origin_default="2021-05-06 07:08:09")
    found = rewritten("ALTER TABLE `t` ADD COLUMN `c` TIMESTAMP DEFAULT CURRENT_TIMESTAMP();", 5, table(10, "t", [ID, now]), Flavour.TIDB)
    assert found.sql == "ALTER TABLE `t` ADD COLUMN `c` TIMESTAMP NULL DEFAULT '2021-05-06 07:08:09'"
    assert found.then == "ALTER TABLE `d`.`t` MODIFY COLUMN `c` TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP"
