"""DDL text for a TiDB target, as ddl.md 6 and 7 say."""

from typing import Any

import pytest

from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import altered_by, by_changes, by_text
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, column, database, history, job, table
from tests.unit.sinks.test_ddl_text import rewritten

ID = column(1, "id", {**INT, "Flag": 4099})


def tidb(query: str, kind: int, info: dict[str, Any] | None = None, **more: Any) -> str:
    return rewritten(query, kind, info or table(10, "t"), Flavour.TIDB, **more).sql


@pytest.mark.shows("ddl set tiflash replica")
def test_a_tiflash_replica_is_passed_through_and_may_fail() -> None:
    found = rewritten("ALTER TABLE `t` SET TIFLASH REPLICA 1;", 30, table(10, "t"), Flavour.TIDB)
    assert (found.sql, found.may_fail) == ("ALTER TABLE `t` SET TIFLASH REPLICA 1", True)


@pytest.mark.shows("ddl options of TiDB")
def test_ttl_is_kept_and_off() -> None:
    ttl = {"ttl_info": {"column": {"O": "c"}, "interval_expr": "3", "interval_time_unit": 3, "enable": True}}
    create, alter = "CREATE TABLE `t` (`id` INT) /*T![ttl] TTL = `c` + INTERVAL 3 DAY */", "ALTER TABLE `t` /*T![ttl] TTL_ENABLE = 'ON' */"
    off = ("ALTER TABLE `d`.`t` TTL_ENABLE = 'OFF'",)
    for text, kind in ((create, 3), (alter, 65)):
        found = rewritten(f"{text};", kind, table(10, "t", **ttl), Flavour.TIDB)
        assert (found.sql, found.then) == (text, off)
    assert not rewritten("ALTER TABLE `t` /*T![ttl] REMOVE TTL */", 66, table(10, "t"), Flavour.TIDB).then


@pytest.mark.parametrize("words", ["CREATE TABLE", "CREATE GLOBAL TEMPORARY TABLE", "create  table"])
def test_a_table_that_stands_there_is_not_passed_over(words: str) -> None:
    assert tidb(f"{words} IF NOT EXISTS `t` (`id` INT);", 3) == f"{words} `t` (`id` INT)"
    assert tidb(f"{words} `t` (`id` INT COMMENT 'IF NOT EXISTS');", 3) == f"{words} `t` (`id` INT COMMENT 'IF NOT EXISTS')"
    assert tidb("ALTER TABLE `t` ADD COLUMN IF NOT EXISTS `k` INT;", 5) == "ALTER TABLE `t` ADD COLUMN `k` INT"
    assert tidb("CREATE INDEX IF NOT EXISTS `i` ON `t` (`id`);", 7) == "CREATE INDEX `i` ON `t` (`id`)"


def test_databases_lose_their_policy_too() -> None:
    wanted = "DATABASE `d` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin"
    assert tidb("CREATE DATABASE `d` /*T![placement] PLACEMENT POLICY = `p` */;", 1) == f"CREATE {wanted}"
    assert tidb("ALTER DATABASE `d` CHARACTER SET = utf8mb4 /*T![placement] PLACEMENT POLICY = `p` */;", 26) == f"ALTER {wanted}"


@pytest.mark.shows("ddl options of TiDB")
def test_what_else_only_tidb_knows_is_passed_through() -> None:
    for spec in ("SHARD_ROW_ID_BITS = 4", "AUTO_ID_CACHE = 100", "STATS_OPTIONS='x'", "AUTO_RANDOM_BASE = 5"):
        text = f"ALTER TABLE `t` /*T! {spec} */"
        assert tidb(text + ";", 16) == text


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ({}, True),
        ({"default": "7", "origin_default": "7"}, False),
        ({"default": "CURRENT_TIMESTAMP", "origin_default": "2021-05-06 07:08:09"}, False),
        ({"generated_expr_string": "`id` + 1"}, True),
    ],
)
def test_a_column_with_a_default_is_made_of_the_infos(more: dict[str, Any], same: bool) -> None:
    """Its text may be another value in another session, and rows that are there get the value that they have upstream."""
    added = table(10, "t", [ID, column(2, "c", {**INT, "Tp": 7, "Flag": 128}, **more)])
    h = history(database(1), job(2, 3, table(10, "t", [ID])), job(3, 5, added))
    subject = subject_of(DdlStep(90, h.jobs[3], "x", False, AppliedJobs(2), AppliedJobs(3)), h)
    altered = altered_by(subject, Dialect(Flavour.TIDB))
    assert altered is not None and by_changes(subject, altered.dialect) and by_text(altered, subject) is same


def test_a_timestamp_of_another_zone_gets_its_default_in_utc() -> None:
    zoned = column(2, "c", {**INT, "Tp": 7, "Flag": 128}, default="2019-12-31 16:00:00", version=2)
    text = "CREATE TABLE `t` (`id` INT,`c` TIMESTAMP DEFAULT '2020-01-01 00:00:00')"
    found = rewritten(text + ";", 3, table(10, "t", [ID, zoned]), Flavour.TIDB)
    assert (found.sql, found.then) == (text, ("ALTER TABLE `d`.`t` ALTER COLUMN `c` SET DEFAULT '2019-12-31 16:00:00'",))
    assert not rewritten(text, 3, table(10, "t", [ID, {**zoned, "version": 0}]), Flavour.TIDB).then, "in the zone of its server"
