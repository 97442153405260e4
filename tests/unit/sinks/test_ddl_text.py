"""DDL text for a MariaDB target, one rule at a time."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset, target_charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.frozen_names import DdlForm
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Rewritten, rewrite, silent_losses, subject_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import VARCHAR, column, database, history, index, job, partitions, table

CS = "DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_nopad_bin"
CLAUSE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
ID = column(1, "id")
LATIN1 = {**VARCHAR, "Charset": "latin1", "Collate": "latin1_bin"}
CI = {**VARCHAR, "Collate": "utf8mb4_general_ci"}
ENUM = {**VARCHAR, "Tp": 247, "Elems": ["a", "b"]}


def rewritten(query: str, kind: int, info: dict[str, Any] | None = None, flavour: Flavour = Flavour.MARIADB, **more: Any) -> Rewritten:
    """``query`` of a job on table ``t`` (id 10), which exists unless the job makes it."""
    old = more.pop("old", table(10, "t"))
    jobs = [database(1)] if kind in (3, 1) else [database(1), job(2, 3, old)]
    restored = more.pop("restored", True)
    last = job(9, kind, info, query="raw", **more)
    return on(history(*jobs, last), query, flavour, restored)


def on(h: SchemaHistory, query: str, flavour: Flavour = Flavour.MARIADB, restored: bool = True) -> Rewritten:
    last = h.ordered[-1]
    step = DdlStep(90, last, query, False, AppliedJobs(last.version - 1), AppliedJobs(last.version))
    return rewrite(subject_of(step, h), Dialect(flavour), restored=restored)


def create(body: str, columns: list[dict[str, Any]] | None = None, tail: str = "", **more: Any) -> Rewritten:
    return rewritten(f"CREATE TABLE `t` ({body}){tail};", 3, table(10, "t", columns or [], **more))


def alter(spec: str, kind: int, columns: list[dict[str, Any]] | None = None, **more: Any) -> Rewritten:
    return rewritten(f"ALTER TABLE `t` {spec};", kind, table(10, "t", columns or []), **more)


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


@pytest.mark.parametrize(
    ("body", "columns", "wanted"),
    [
        ("`id` INT PRIMARY KEY", None, "`id` INT PRIMARY KEY"),
        ("`id` INT,`s` VARCHAR(20)", [ID, column(2, "s", VARCHAR)], "`id` INT, `s` VARCHAR(20)"),
        (
            "`id` INT,`s` VARCHAR(20) NOT NULL DEFAULT _UTF8MB4'it''s, (x)'",
            [ID, column(2, "s", VARCHAR)],
            "`id` INT, `s` VARCHAR(20) NOT NULL DEFAULT 'it''s, (x)'",
        ),
        (
            "`id` INT,`s` VARCHAR(20) CHARACTER SET LATIN1 COLLATE latin1_bin NOT NULL",
            [ID, column(2, "s", LATIN1)],
            "`id` INT, `s` VARCHAR(20) NOT NULL",
        ),
        ("`id` INT,`s` VARCHAR(20) COLLATE utf8mb4_general_ci", [ID, column(2, "s", CI)], "`id` INT, `s` VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"),
        ("`id` INT,`s` ENUM('a','b') COLLATE utf8mb4_general_ci", [ID, column(2, "s", {**ENUM, "Collate": "utf8mb4_general_ci"})],
         "`id` INT, `s` ENUM('a','b') CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"),
        ("`id` BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5) */", None, "`id` BIGINT PRIMARY KEY"),
        ("`id` INT,PRIMARY KEY(`id`) /*T![clustered_index] CLUSTERED */", None, "`id` INT, PRIMARY KEY(`id`)"),
        ("`id` INT,PRIMARY KEY(`id`) NONCLUSTERED", None, "`id` INT, PRIMARY KEY(`id`)"),
        ("`id` INT CHECK (`id` > 0) NOT ENFORCED NOT NULL,CONSTRAINT `c` CHECK (`id` < 9) ENFORCED", None, "`id` INT NOT NULL"),
        ("`id` INT,INDEX `i`(`id`) INVISIBLE", None, "`id` INT, INDEX `i`(`id`) IGNORED"),
        ("`id` INT,UNIQUE `ue`((LOWER(`id`))),INDEX(`id`)", None, "`id` INT, INDEX(`id`)"),
        ("`id` INT,`v` INT GENERATED ALWAYS AS((`id`+1)*(2)) VIRTUAL", None, "`id` INT, `v` INT GENERATED ALWAYS AS((`id`+1)*(2)) VIRTUAL"),
        ("`id` INT,CONSTRAINT FOREIGN KEY (`id`) REFERENCES `p`(`id`) ON DELETE CASCADE", None,
         "`id` INT, CONSTRAINT FOREIGN KEY (`id`) REFERENCES `p`(`id`) ON DELETE CASCADE"),
        ("`id` INT COMMENT 'a\\b'", None, "`id` INT COMMENT 'a\\\\b'"),
        ("`check` INT,`ttl` INT,`auto_random` INT", None, "`check` INT, `ttl` INT, `auto_random` INT"),
    ],
)  # fmt: skip
def test_create_table(body: str, columns: list[dict[str, Any]] | None, wanted: str) -> None:
    assert create(body, columns).sql == f"CREATE TABLE `d`.`t` ({wanted}) {CS}"


@pytest.mark.shows("ddl options of TiDB")
@pytest.mark.parametrize(
    ("tail", "wanted"),
    [
        (" ENGINE = MyISAM ROW_FORMAT = FIXED", ""),
        (
            " DEFAULT CHARACTER SET = UTF8MB4 DEFAULT COLLATE = UTF8MB4_BIN COMMENT = 'x;y' AUTO_INCREMENT = 7",
            " COMMENT = 'x;y' AUTO_INCREMENT = 7",
        ),
        (" /*T! SHARD_ROW_ID_BITS = 0 */ /*T! PRE_SPLIT_REGIONS = 2 */", ""),
        (
            " PARTITION BY LIST (`id`) (PARTITION `a` VALUES IN (_UTF8MB4'x', 2))",
            " PARTITION BY LIST (`id`) (PARTITION `a` VALUES IN ('x', 2))",
        ),
        (" /*T![ttl] TTL = `c` + INTERVAL 1 DAY */ COMMENT = 'c'", " COMMENT = 'c'"),
    ],
)
def test_table_options(tail: str, wanted: str) -> None:
    made = table(10, "t", partition=partitions((11, "a"))) if "PARTITION BY" in tail else table(10, "t")
    assert rewritten(f"CREATE TABLE `t` (`id` INT){tail};", 3, made).sql == f"CREATE TABLE `d`.`t` (`id` INT) {CS}{wanted}"


@pytest.mark.shows("spark.upstream-collation")
def test_another_default_charset() -> None:
    sql = create("`id` INT,`s` VARCHAR(20)", [ID, column(2, "s", VARCHAR)], " CHARSET = GBK", charset="gbk", collate="gbk_chinese_ci").sql
    assert sql == f"CREATE TABLE `d`.`t` (`id` INT, `s` VARCHAR(20) {CLAUSE}) DEFAULT CHARACTER SET = gbk COLLATE = gbk_chinese_ci"


@pytest.mark.shows("ddl temporary tables")
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("CREATE TABLE `t` LIKE `o`;", "CREATE TABLE `d`.`t` LIKE `o`"),
        ("create table if not exists t (like x.o)", "CREATE TABLE `d`.`t` LIKE x.o"),
        ("CREATE GLOBAL TEMPORARY TABLE `t` (`id` INT) ON COMMIT DELETE ROWS;", f"CREATE TABLE `d`.`t` (`id` INT) {CS}"),
        (
            "create table t (id bigint auto_random primary key clustered) shard_row_id_bits 4",
            f"CREATE TABLE `d`.`t` (id bigint primary key) {CS}",
        ),
    ],
)
def test_other_ways_to_make_a_table(query: str, wanted: str) -> None:
    assert rewritten(query, 3, table(10, "t")).sql == wanted


@pytest.mark.parametrize(
    ("spec", "kind", "columns", "wanted"),
    [
        ("ADD COLUMN `s` VARCHAR(20) NOT NULL FIRST", 5, [ID, column(2, "s", VARCHAR)], f"ADD COLUMN `s` VARCHAR(20) {CLAUSE} NOT NULL FIRST"),
        ("ADD COLUMN (`s` VARCHAR(20), `n` INT)", 61, [ID, column(2, "s", VARCHAR), column(3, "n")], f"ADD COLUMN (`s` VARCHAR(20) {CLAUSE}, `n` INT)"),
        ("ADD `s` SET('a','b') AFTER `id`", 5, [ID, column(2, "s", {**ENUM, "Tp": 248})], f"ADD `s` SET('a','b') {CLAUSE} AFTER `id`"),
        ("MODIFY COLUMN `s` TEXT", 12, [ID, column(2, "s", VARCHAR)], f"MODIFY COLUMN `s` TEXT {CLAUSE}"),
        ("CHANGE COLUMN `a` `s` VARCHAR(30) CHARSET LATIN1", 12, [ID, column(2, "s", LATIN1)], f"CHANGE COLUMN `a` `s` VARCHAR(30) {CLAUSE}"),
        ("ADD COLUMN `j` JSON DEFAULT NULL, ADD COLUMN `k` BIGINT DEFAULT 7", 61, None, "ADD COLUMN `j` JSON DEFAULT NULL, ADD COLUMN `k` BIGINT DEFAULT 7"),
        ("ALTER INDEX `i` INVISIBLE", 41, None, "ALTER INDEX `i` IGNORED"),
        ("ADD UNIQUE INDEX `u`(`id`), ALGORITHM = INPLACE, LOCK = NONE", 7, None, "ADD UNIQUE INDEX `u`(`id`)"),
        ("CONVERT TO CHARACTER SET UTF8MB4", 22, None, f"CONVERT TO {CLAUSE}"),
        ("DEFAULT CHARACTER SET = UTF8MB4 COLLATE = UTF8MB4_BIN", 22, None, CS),
        ("COLLATE utf8mb4_bin", 22, None, CS),
        ("ADD PARTITION (PARTITION `p2` VALUES LESS THAN (_UTF8MB4'2028-01-01'))", 19, None, "ADD PARTITION (PARTITION `p2` VALUES LESS THAN ('2028-01-01'))"),
        ("ADD COLUMN IF NOT EXISTS `k` BIGINT", 5, None, "ADD COLUMN `k` BIGINT"),
        ("ADD UNIQUE INDEX IF NOT EXISTS `u`(`id`)", 7, None, "ADD UNIQUE INDEX `u`(`id`)"),
        ("PARTITION BY LINEAR KEY(`id`) PARTITIONS 3", 71, None, "PARTITION BY KEY(`id`) PARTITIONS 3"),
        ("DROP PARTITION `p2`", 20, None, "DROP PARTITION `p2`"),
        ("COMMENT = 'x'", 17, None, "COMMENT = 'x'"),
        ("ADD PRIMARY KEY(`id`) /*T![clustered_index] NONCLUSTERED */", 32, None, "ADD PRIMARY KEY(`id`)"),
        ("RENAME COLUMN `a` TO `b`", 12, None, "RENAME COLUMN `a` TO `b`"),
    ],
)  # fmt: skip
def test_alter_table(spec: str, kind: int, columns: list[dict[str, Any]] | None, wanted: str) -> None:
    assert alter(spec, kind, columns).sql == f"ALTER TABLE `t` {wanted}"


@pytest.mark.parametrize(
    "spec",
    [
        "SET TIFLASH REPLICA 1",
        "/*T![placement] PLACEMENT POLICY=`x` */",
        "/*T! SHARD_ROW_ID_BITS = 4 */",
        "/*T![auto_id_cache] AUTO_ID_CACHE = 100 */",
        "/*T![ttl] REMOVE TTL */",
        "AUTO_RANDOM_BASE = 5",
        "ADD CONSTRAINT `c` CHECK (`id` > 0)",
        "DROP CHECK `c`",
        "ADD INDEX `e`((LOWER(`s`)))",
    ],
)
def test_what_leaves_nothing_to_execute(spec: str) -> None:
    assert alter(spec, 16).sql == ""


def test_national_text_has_the_charset_that_it_has_upstream() -> None:
    """MariaDB's is utf8mb3, which has no place for what the upstream's holds."""
    made = create("`a` NATIONAL VARCHAR(9),`b` NCHAR(9),`c` NVARCHAR(9)", [column(i, name, VARCHAR) for i, name in enumerate("abc", 1)])
    assert made.sql == f"CREATE TABLE `d`.`t` (`a` VARCHAR(9), `b` CHAR(9), `c` VARCHAR(9)) {CS}"
    added = alter("ADD COLUMN `a` NATIONAL CHAR VARYING(9) NOT NULL", 5, [ID, column(2, "a", VARCHAR)])
    assert added.sql == f"ALTER TABLE `t` ADD COLUMN `a` CHAR VARYING(9) {CLAUSE} NOT NULL"


def test_binary_behind_a_type_does_not_choose_the_collation() -> None:
    """Servers take it for the ``_bin`` that pads, where 'a' and 'a ' are one key, or refuse it behind a collation."""
    columns = [column(1, "a", VARCHAR), column(2, "b", ENUM)]
    made = create("`a` VARCHAR(9) BINARY NOT NULL,`b` ENUM('a','b') BINARY CHARACTER SET UTF8MB4 COLLATE UTF8MB4_BIN", columns)
    assert made.sql == f"CREATE TABLE `d`.`t` (`a` VARCHAR(9) NOT NULL, `b` ENUM('a','b')) {CS}"
    assert alter("ADD COLUMN `a` CHAR(9) BINARY", 5, columns).sql == f"ALTER TABLE `t` ADD COLUMN `a` CHAR(9) {CLAUSE}"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("DROP COLUMN IF EXISTS `v`, DROP IF EXISTS `OWN`", "DROP COLUMN IF EXISTS `v`"),
        (
            "DROP COLUMN IF EXISTS `own`, MODIFY COLUMN IF EXISTS `own` INT, MODIFY COLUMN IF EXISTS `V` INT",
            "MODIFY COLUMN IF EXISTS `V` INT",
        ),
        ("DROP COLUMN `v`, DROP INDEX IF EXISTS `own`, DROP INDEX IF EXISTS `k`", "DROP COLUMN `v`, DROP INDEX IF EXISTS `k`"),
        ("DROP PARTITION IF EXISTS `p`", "DROP PARTITION IF EXISTS `p`"),
    ],
)
def test_what_only_the_target_has_is_not_dropped_because_the_upstream_does_not_have_it(spec: str, wanted: str) -> None:
    old = table(10, "t", [ID, column(2, "v")], index_info=[index(1, "k", ("v", 1))])
    assert alter(spec, 71, [ID, column(2, "v")], old=old).sql == f"ALTER TABLE `t` {wanted}"
    without = wanted.replace(" IF EXISTS", "")
    assert alter(spec, 71, [ID, column(2, "v")], old=old, flavour=Flavour.MYSQL).sql == f"ALTER TABLE `t` {without}", (
        "it has no such syntax"
    )


def test_indexes_that_the_target_was_made_without_are_not_dropped_there() -> None:
    hidden = column(2, "_v$_e_0", hidden=True, generated_expr_string="lower(`s`)")
    old = table(10, "t", [ID, hidden], index_info=[index(1, "e", ("_v$_e_0", 1)), index(2, "i", ("id", 0))])
    for spec, wanted in (("DROP INDEX `e`", ""), ("RENAME INDEX `e` TO `f`", ""), ("DROP INDEX `i`", "ALTER TABLE `t` DROP INDEX `i`")):
        assert alter(spec, 8, old=old).sql == wanted
    assert rewritten("DROP INDEX `e` ON `t`;", 8, table(10, "t"), old=old).sql == ""
    assert rewritten("DROP INDEX `i` ON `d`.`t`;", 8, table(10, "t"), old=old).sql == "ALTER TABLE `d`.`t` DROP INDEX `i`"


@pytest.mark.parametrize(
    ("query", "wanted", "losses"),
    [
        ("CREATE UNIQUE INDEX `i` ON `t` (`id`);", "CREATE UNIQUE INDEX `i` ON `t` (`id`)", ()),
        ("CREATE INDEX `i` ON `t` (`id`) INVISIBLE;", "CREATE INDEX `i` ON `t` (`id`) IGNORED", ()),
        ("CREATE INDEX `i` ON `t` ((`id` + 1));", "", ("d.t: expression index i left out",)),
    ],
)
def test_create_index(query: str, wanted: str, losses: tuple[str, ...]) -> None:
    assert rewritten(query, 7, table(10, "t")) == Rewritten(wanted, losses)


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


@pytest.mark.shows("ddl gotcha 4")
def test_user_text_has_backslash_escapes() -> None:
    info = table(10, "t")
    assert "comment 'it\\'s, not )')" in rewritten("create table t (id int comment 'it\\'s, not )')", 3, info, restored=False).sql


def test_mysql_has_no_sequences() -> None:
    h = history(database(1), job(2, 34, table(10, "s", sequence={})))
    assert on(h, "CREATE SEQUENCE `s`;", Flavour.MYSQL) == Rewritten("", ("d.s: sequence left out, because MySQL has none",))
    made = rewritten("CREATE TABLE `t` (`id` INT DEFAULT NEXTVAL(`s`), KEY((`id`+1)));", 3, table(10, "t"), Flavour.MYSQL)
    assert made.sql == "CREATE TABLE `d`.`t` (`id` INT, KEY((`id`+1))) DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_0900_bin"


def test_tidb_keeps_its_own_text() -> None:
    text = "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5) */) /*T![placement] PLACEMENT POLICY=`p` */ COMMENT='a\\b';"
    assert (
        rewritten(text, 3, table(10, "t"), Flavour.TIDB).sql
        == "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5) */)  COMMENT='a\\\\b'"
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
    assert target_charset(*upstream, flavour) == Charset(*wanted)


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
    assert target_charset(*upstream, flavour, binary=True) == Charset(*wanted)


def test_an_old_mysql_pads() -> None:
    assert target_charset("utf8mb4", "utf8mb4_bin", Flavour.MYSQL, nopad=False).collate == "utf8mb4_bin"


@pytest.mark.parametrize(
    ("query", "form"),
    [
        ("CREATE TABLE `d`.`t` LIKE `s`;", DdlForm.INFOS),
        ("create table if not exists d . t ( like s )", DdlForm.INFOS),
        ("CREATE TABLE /* a.b */ `t` LIKE `s`;", DdlForm.TEXT),
        ("CREATE TABLE `d`.`t` LIKE `d`.`s`;", DdlForm.TEXT),
        ("CREATE TABLE `t` LIKE `a`.`s`;", DdlForm.TEXT),
        ("CREATE TABLE `d`.`t` (`like` INT DEFAULT 1.5);", DdlForm.TEXT),
        ("CREATE TABLE `d`.`t` (`a` INT CHECK (`a` LIKE 'x'));", DdlForm.TEXT),
    ],
)
def test_like_a_table_of_a_database_that_is_not_known(query: str, form: DdlForm) -> None:
    h = history(database(1), job(9, 3, table(10, "t")))
    step = DdlStep(90, h.ordered[-1], query, False, AppliedJobs(8), AppliedJobs(9))
    assert subject_of(step, h).given.form is form


def test_partitions_that_the_upstream_has_not_made_are_not_made() -> None:
    """With tidb_enable_list_partition = OFF TiDB accepts the clause and makes a table without partitions."""
    text = "CREATE TABLE `t` (`id` INT) PARTITION BY LIST (`id`) (PARTITION `p0` VALUES IN (1));"
    without = rewritten(text, 3, table(10, "t", [ID]))
    assert without.sql == f"CREATE TABLE `d`.`t` (`id` INT) {CS}" and without.losses == ()
    assert "PARTITION BY LIST (`id`)" in rewritten(text, 3, table(10, "t", [ID], partition=partitions((11, "p0")))).sql


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT system, t.Empty AS library FROM d.external", "SELECT `system`, t.`Empty` AS `library` FROM d.`external`"),
        ("SELECT 'system', \"empty\", `system`, @system, system_time FROM t -- x", None),
        ("SELECT GROUPING(a), a.grouping, b FROM LATERAL (SELECT 1) a", "SELECT GROUPING(a), a.`grouping`, b FROM LATERAL (SELECT 1) a"),
        ("SELECT GROUP_CONCAT(a SEPARATOR ','), separator FROM t", "SELECT GROUP_CONCAT(a SEPARATOR ','), `separator` FROM t"),
        ("SELECT SCHEMA(), CAST(a AS DEC), rank, `key` FROM t FOR UPDATE", None),
    ],
)
def test_names_that_only_the_target_reserves_are_quoted(text: str, wanted: str | None) -> None:
    query, info = f"CREATE VIEW v AS {text}", table(12, "v", [ID], pk_is_handle=False)
    for flavour in (Flavour.MYSQL, Flavour.MARIADB):
        shown = rewritten(query, 21, info, flavour, restored=False).sql
        assert shown == f"CREATE VIEW v AS {wanted or text.removesuffix(' -- x')}"


ORDERS, ITEMS = table(10, "orders"), table(11, "Items")


@pytest.mark.parametrize(
    ("query", "kind", "info", "wanted"),
    [
        ("ALTER TABLE `ORDERS` ADD INDEX `i`(`id`);", 7, table(10, "orders"), "ALTER TABLE `orders` ADD INDEX `i`(`id`)"),
        ("ALTER TABLE `D`.`Orders` COMMENT = 'a\\b';", 17, table(10, "orders"), "ALTER TABLE `d`.`orders` COMMENT = 'a\\\\b'"),
        ("CREATE INDEX `i` ON `Orders` (`id`);", 7, table(10, "orders"), "CREATE INDEX `i` ON `orders` (`id`)"),
        ("DROP INDEX `i` ON `Orders`;", 8, table(10, "orders"), "ALTER TABLE `orders` DROP INDEX `i`"),
        ("CREATE TABLE `New` LIKE `ITEMS`;", 3, table(12, "New"), "CREATE TABLE `d`.`New` LIKE `Items`"),
        (
            "ALTER TABLE `orders` ADD FOREIGN KEY (`id`) REFERENCES `d`.`items`(`id`);",
            9,
            table(10, "orders"),
            "ALTER TABLE `orders` ADD FOREIGN KEY (`id`) REFERENCES `d`.`Items`(`id`)",
        ),
        ("ALTER TABLE `orders` COMMENT = 'ITEMS ORDERS';", 17, table(10, "orders"), "ALTER TABLE `orders` COMMENT = 'ITEMS ORDERS'"),
    ],
)
def test_tables_are_spelled_as_they_were_made(query: str, kind: int, info: dict[str, Any], wanted: str) -> None:
    """TiDB takes a name in any letters; a target with lower_case_table_names = 0 has another table, or none, of that name."""
    assert on(history(database(1), job(2, 3, ORDERS), job(3, 3, ITEMS), job(4, kind, info, query="raw")), query).sql == wanted


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT `id` FROM `ORDERS`", "SELECT `id` FROM `orders` AS `ORDERS`"),
        ("SELECT ORDERS.id FROM ORDERS, items x", "SELECT ORDERS.id FROM `orders` AS `ORDERS`, `Items` x"),
        (
            "SELECT o.id FROM (D.Orders o LEFT JOIN items ON items.id = o.id) WHERE EXISTS (SELECT 1 FROM Orders) WITH CHECK OPTION",
            "SELECT o.id FROM (`d`.`orders` o LEFT JOIN `Items` AS `items` ON items.id = o.id) WHERE EXISTS "
            "(SELECT 1 FROM `orders` AS `Orders`) WITH CHECK OPTION",
        ),
        ("SELECT EXTRACT(YEAR FROM items) AS y FROM orders", "SELECT EXTRACT(YEAR FROM items) AS y FROM orders"),
        ("WITH Orders AS (SELECT 1) SELECT * FROM Orders", "WITH Orders AS (SELECT 1) SELECT * FROM Orders"),
        ("SELECT D.Orders.id FROM D.Orders", "SELECT D.Orders.id FROM D.Orders"),
        ("SELECT 1 FROM DUAL WHERE EXISTS (SELECT 1 FROM ITEMS)", "SELECT 1 FROM DUAL WHERE EXISTS (SELECT 1 FROM `Items` AS `ITEMS`)"),
    ],
)
def test_tables_of_a_view_are_spelled_as_they_were_made(query: str, wanted: str) -> None:
    """Its columns keep their spelling; with results of its own, or columns by database and table, it stays as it is."""
    last = job(4, 21, table(12, "v", [ID], pk_is_handle=False), query="raw")
    made = history(database(1), job(2, 3, ORDERS), job(3, 3, ITEMS), last)
    assert on(made, f"CREATE VIEW v AS {query}").sql == f"CREATE VIEW v AS {wanted}"


def test_names_in_pairs_are_spelled_as_they_were_made() -> None:
    made = history(
        database(1),
        job(2, 3, ORDERS),
        job(3, 3, ITEMS),
        job(4, 47, table(11, "ORDERS"), many=[table(10, "Tmp"), table(11, "ORDERS"), table(10, "items")], table_id=11, query="raw"),
    )
    query = "RENAME TABLE `Orders` TO `Tmp`, `ITEMS` TO `ORDERS`, `TMP` TO `items`;"
    assert on(made, query).sql == "RENAME TABLE `d`.`orders` TO `d`.`Tmp`, `d`.`Items` TO `d`.`ORDERS`, `d`.`Tmp` TO `d`.`items`"
