"""DDL text for a MariaDB target, one rule at a time."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite, silent_losses
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Charset, DdlStatement, Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import VARCHAR, column, database, history, job, partitions, table

CS = "DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_nopad_bin"
CLAUSE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
ID = column(1, "id")
LATIN1 = {**VARCHAR, "Charset": "latin1", "Collate": "latin1_bin"}
CI = {**VARCHAR, "Collate": "utf8mb4_general_ci"}
ENUM = {**VARCHAR, "Tp": 247, "Elems": ["a", "b"]}


def rewritten(query: str, kind: int, info: dict[str, Any] | None = None, flavour: Flavour = Flavour.MARIADB, **more: Any) -> DdlStatement:
    """``query`` of a job on table ``t`` (id 10), which exists unless the job makes it."""
    old = more.pop("old", table(10, "t"))
    jobs = [database(1)] if kind in (3, 1) else [database(1), job(2, 3, old)]
    restored = more.pop("restored", True)
    last = job(9, kind, info, query="raw", **more)
    return on(history(*jobs, last), query, flavour, restored)


def on(h: SchemaHistory, query: str, flavour: Flavour = Flavour.MARIADB, restored: bool = True) -> DdlStatement:
    last = h.ordered[-1]
    step = DdlStep(90, last, query, False, AppliedJobs(last.version - 1), AppliedJobs(last.version))
    return rewrite(subject_of(step, h), Dialect(flavour), restored=restored)


def test_databases_are_made_from_the_job() -> None:
    h = history({**database(1, "we`ird"), "query": "create database x"})
    assert on(h, "CREATE DATABASE `we``ird` /*T![placement] PLACEMENT POLICY = `p` */;").sql == (
        "CREATE DATABASE `we``ird` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_nopad_bin"
    )


@pytest.mark.shows("ddl schema charset")
def test_charset_changes_of_a_database() -> None:
    info = {"id": 1000, "db_name": {"O": "d"}, "charset": "gbk", "collate": "gbk_chinese_ci"}
    h = history(database(1), job(2, 26, None, db=info))
    assert on(h, "ALTER DATABASE CHARACTER SET = gbk;").sql == "ALTER DATABASE `d` CHARACTER SET = gbk COLLATE = gbk_chinese_ci"


def test_each_job_of_a_drop_drops_its_own_table() -> None:
    assert rewritten("DROP TABLE IF EXISTS `x`, `t`;", 4, table_id=10).sql == "DROP TABLE `d`.`t`"


@pytest.mark.shows("ddl rename table")
def test_renames_name_their_databases() -> None:
    h = history(database(1), database(2, "e", 1001), job(3, 3, table(10, "t")), job(4, 14, table(10, "u"), schema_id=1001))
    assert on(h, "ALTER TABLE `t` RENAME AS `e`.`u`;").sql == "RENAME TABLE `d`.`t` TO `e`.`u`"
    many = [table(10, "x"), table(11, "t"), table(10, "s")]
    h = history(
        database(1),
        job(3, 3, table(10, "t")),
        job(4, 3, table(11, "s")),
        job(5, 47, many[-1], many=many, query="rename table t to x, s to t, x to s"),
    )
    assert (
        on(h, "RENAME TABLE `t` TO `x`, `s` TO `t`, `x` TO `s`;").sql
        == "RENAME TABLE `d`.`t` TO `d`.`x`, `d`.`s` TO `d`.`t`, `d`.`x` TO `d`.`s`"
    )


def test_exchange_names_both_tables_and_says_nothing_of_validation() -> None:
    h = history(
        database(1),
        job(2, 3, table(10, "plain")),
        job(3, 3, table(20, "p", partition=partitions((21, "p0")))),
        job(4, 42, table(20, "p", partition=partitions((10, "p0"))), table_id=10),
    )
    sql = on(h, "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `plain` WITHOUT VALIDATION;").sql
    assert sql == "ALTER TABLE `d`.`p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`plain`"


def test_mysql_has_no_sequences() -> None:
    h = history(database(1), job(2, 34, table(10, "s", sequence={})))
    assert on(h, "CREATE SEQUENCE `s`;", Flavour.MYSQL) == DdlStatement("", ("d.s: sequence left out, because MySQL has none",))


@pytest.mark.shows("ddl gotcha 4")
def test_user_text_has_backslash_escapes() -> None:
    for kind, text in ((34, "create sequence s comment 'it\\'s, not )'"), (9999, "alter table t hold 'it\\'s'")):
        info = table(10, "s", sequence={}) if kind == 34 else table(10, "t")
        assert rewritten(text + ";", kind, info, restored=False).sql == text


def test_a_type_of_a_later_release_goes_as_it_is() -> None:
    """Without what a server would take for a comment, or for the sign of a string's end."""
    found = rewritten("ALTER TABLE `t` HOLD 'a\\b' /*T![ttl] TTL = `c` + INTERVAL 1 DAY */, EMPTY = 1;", 9999, table(10, "t"))
    assert found.sql == "ALTER TABLE `t` HOLD 'a\\\\b' , EMPTY = 1" and found.losses == ("d.t: what only TiDB has was left out",)


def test_tidb_keeps_its_own_text() -> None:
    text = "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5) */) /*T![placement] PLACEMENT POLICY=`p` */ COMMENT='a\\b';"
    assert (
        rewritten(text, 3, table(10, "t"), Flavour.TIDB).sql
        == "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5) */) /*T![placement] PLACEMENT POLICY=`p` */ COMMENT='a\\\\b'"
    )


@pytest.mark.shows("ddl create placement", "ddl cache table")
def test_what_jobs_without_statement_ask_for_is_named() -> None:
    h = history(database(1), job(2, 3, table(10, "c")), job(3, 57, table(10, "c"), table_name="c"), job(4, 51, schema_name="pp"))
    assert silent_losses(h, 0, 9) == ("d.c: CACHE left out", "pp: placement policy left out")
    assert silent_losses(h, 3, 3) == ()


@pytest.mark.parametrize(
    ("upstream", "flavour", "wanted"),
    [
        (("utf8mb4", "utf8mb4_0900_ai_ci"), Flavour.MARIADB, ("utf8mb4", "utf8mb4_uca1400_nopad_ai_ci")),
        (("utf8mb4", "utf8mb4_0900_ai_ci"), Flavour.MYSQL, ("utf8mb4", "utf8mb4_0900_ai_ci")),
        (("utf8", "utf8_general_ci"), Flavour.MARIADB, ("utf8mb3", "utf8_general_ci")),
        (("latin1", "latin1_bin"), Flavour.MYSQL, ("utf8mb4", "utf8mb4_0900_bin")),
        (("", "gbk_bin"), Flavour.MARIADB, ("gbk", "gbk_nopad_bin")),
        (("binary", "binary"), Flavour.MARIADB, ("binary", "binary")),
        (("", ""), Flavour.TIDB, ("utf8mb4", "utf8mb4_bin")),
    ],
)
def test_charsets(upstream: tuple[str, str], flavour: Flavour, wanted: tuple[str, str]) -> None:
    assert Dialect(flavour).charset(*upstream) == Charset(*wanted)


@pytest.mark.parametrize(
    ("upstream", "flavour", "wanted"),
    [
        (("utf8mb4", "utf8mb4_general_ci"), Flavour.MARIADB, ("utf8mb4", "utf8mb4_nopad_bin")),
        (("", "utf8mb4_unicode_ci"), Flavour.MYSQL, ("utf8mb4", "utf8mb4_0900_bin")),
        (("utf8mb4", "utf8mb4_0900_ai_ci"), Flavour.MARIADB, ("utf8mb4", "utf8mb4_nopad_bin")),
        (("utf8", "utf8_general_ci"), Flavour.MARIADB, ("utf8mb3", "utf8mb3_nopad_bin")),
        (("gbk", "gbk_chinese_ci"), Flavour.MARIADB, ("gbk", "gbk_nopad_bin")),
        (("latin1", "latin1_swedish_ci"), Flavour.MARIADB, ("utf8mb4", "utf8mb4_nopad_bin")),
        (("binary", "binary"), Flavour.MARIADB, ("binary", "binary")),
        (("utf8mb4", "utf8mb4_general_ci"), Flavour.TIDB, ("utf8mb4", "utf8mb4_general_ci")),
        (("utf8", "utf8_general_ci"), Flavour.MYSQL, ("utf8mb4", "utf8mb4_0900_bin")),
        (("ascii", "ascii_bin"), Flavour.MYSQL, ("utf8mb4", "utf8mb4_0900_bin")),
        (("gbk", "gbk_chinese_ci"), Flavour.MYSQL, ("utf8mb4", "utf8mb4_0900_bin")),
        (("binary", "binary"), Flavour.MYSQL, ("binary", "binary")),
    ],
)
def test_old_collations_are_bytes(upstream: tuple[str, str], flavour: Flavour, wanted: tuple[str, str]) -> None:
    assert Dialect(flavour, binary=True).charset(*upstream) == Charset(*wanted)


def test_an_old_mysql_pads() -> None:
    assert Dialect(Flavour.MYSQL, nopad=False).charset("utf8mb4", "utf8mb4_bin").collate == "utf8mb4_bin"


@pytest.mark.parametrize(
    ("query", "form"),
    [
        ("CREATE TABLE `d`.`t` LIKE `s`;", DdlForm.INFOS),
        ("create table if not exists d . t ( like s )", DdlForm.INFOS),
        ("CREATE TABLE `d`.`t` (`like` INT DEFAULT 1.5);", DdlForm.TEXT),
        ("CREATE TABLE `d`.`t` (`a` INT CHECK (`a` LIKE 'x'));", DdlForm.TEXT),
    ],
)
def test_a_table_like_another_is_made_of_its_infos(query: str, form: DdlForm) -> None:
    h = history(database(1), job(9, 3, table(10, "t")))
    step = DdlStep(90, h.ordered[-1], query, False, AppliedJobs(8), AppliedJobs(9))
    assert subject_of(step, h).given.form is form


ORDERS, ITEMS = table(10, "orders"), table(11, "Items")


def test_names_in_pairs_are_spelled_as_they_were_made() -> None:
    made = history(
        database(1),
        job(2, 3, ORDERS),
        job(3, 3, ITEMS),
        job(4, 47, table(11, "ORDERS"), many=[table(10, "Tmp"), table(11, "ORDERS"), table(10, "items")], table_id=11, query="raw"),
    )
    query = "RENAME TABLE `Orders` TO `Tmp`, `ITEMS` TO `ORDERS`, `TMP` TO `items`;"
    assert on(made, query).sql == "RENAME TABLE `d`.`orders` TO `d`.`Tmp`, `d`.`Items` TO `d`.`ORDERS`, `d`.`Tmp` TO `d`.`items`"
