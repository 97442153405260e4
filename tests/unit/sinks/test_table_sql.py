"""CREATE TABLE, foreign keys, partitions and options from table infos."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, JobType
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import Alteration, altered_by, by_changes
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import bare, with_texts
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import partition_by, partition_change
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import DdlStatement, Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, VARCHAR, column, database, foreign_key, history, index, job, partitioned, table

MARIADB, MYSQL = Dialect(Flavour.MARIADB), Dialect(Flavour.MYSQL)
CS = "DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_nopad_bin"
CLAUSE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
ID = column(1, "id", {**INT, "Flag": 4099})
ID_SQL = "`id` INT NOT NULL"
KEY = "PRIMARY KEY (`id`)"
LATIN1 = {**VARCHAR, "Charset": "latin1", "Collate": "latin1_bin"}
CI = {**VARCHAR, "Collate": "utf8mb4_general_ci"}
GBK = {**VARCHAR, "Charset": "gbk", "Collate": "gbk_chinese_ci"}
ENUM = {**VARCHAR, "Tp": 247, "Elems": ["a", "b"]}
P = foreign_key("fk_1", "n", "p", "id", on_delete=2)


def info_of(*columns: dict[str, Any], **more: Any) -> TableInfo:
    return TableInfo.from_json(table(10, "t", [ID, *columns], **more))


def create(*columns: dict[str, Any], dialect: Dialect = MARIADB, **more: Any) -> DdlStatement:
    return create_table("d", info_of(*columns, **more), dialect)


@pytest.mark.parametrize(
    ("columns", "more", "wanted"),
    [
        ([], {}, ""),
        ([column(2, "s", VARCHAR)], {}, "`s` VARCHAR(20) NULL"),
        ([column(2, "s", {**VARCHAR, "Flag": 1}, default="it's, (x)")], {}, "`s` VARCHAR(20) NOT NULL DEFAULT 'it''s, (x)'"),
        ([column(2, "s", LATIN1)], {}, "`s` VARCHAR(20) NULL"),
        ([column(2, "s", CI)], {}, "`s` VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NULL"),
        ([column(2, "s", {**ENUM, "Collate": "utf8mb4_general_ci"})], {},
         "`s` ENUM('a','b') CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NULL"),
        ([column(2, "n", INT, comment="a\\b")], {}, "`n` INT NULL COMMENT 'a\\\\b'"),
        ([column(2, "v", INT, generated_expr_string="(`id` + 1) * (2)")], {}, "`v` INT GENERATED ALWAYS AS ((`id` + 1) * (2)) VIRTUAL"),
        ([column(2, "check"), column(3, "a`b")], {}, "`check` INT NULL, `a``b` INT NULL"),
        ([column(2, "gone", state=3)], {"index_info": [index(1, "i", ("id", 0)) | {"state": 3}]}, ""),
    ],
)  # fmt: skip
def test_columns(columns: list[dict[str, Any]], more: dict[str, Any], wanted: str) -> None:
    parts = ", ".join(filter(None, [ID_SQL, wanted, KEY]))
    assert create(*columns, **more) == DdlStatement(f"CREATE TABLE `d`.`t` ({parts}) {CS}", (), by_infos=True)


def test_keys() -> None:
    keys = [index(1, "i", ("id", 0)) | {"is_invisible": True}, index(2, "u", ("n", 1), ("id", 0), unique=True) | {"comment": "c"}]
    assert f"{KEY}, KEY `i` (`id`) IGNORED, UNIQUE KEY `u` (`n`, `id`) COMMENT 'c')" in create(column(2, "n"), index_info=keys).sql
    primary = {"pk_is_handle": False, "index_info": [index(1, "PRIMARY", ("id", 0), ("n", 1), unique=True, primary=True)]}
    assert "`n` INT NULL, PRIMARY KEY (`id`, `n`))" in create(column(2, "n"), **primary).sql


def test_an_index_over_an_expression_is_made_where_there_are_such() -> None:
    hidden = column(2, "_v$_e_0", hidden=True, generated_expr_string="lower(`s`)")
    more = {"index_info": [index(1, "e", ("_v$_e_0", 1), unique=True)]}
    made, without = create(hidden, dialect=MYSQL, **more), create(hidden, **more)
    assert f"({ID_SQL}, {KEY}, UNIQUE KEY `e` ((lower(`s`))))" in made.sql and not made.losses
    assert f"({ID_SQL}, {KEY})" in without.sql and without.losses == ("d.t: expression index e left out",)


def test_foreign_keys() -> None:
    """What TiDB calls fk_1 may be in every table there, but only in one of the target's database."""
    own = foreign_key("Own", "n", "p", "id", schema="e", on_update=3)
    made = create(column(2, "n"), fk_info=[P, own]).sql
    assert "FOREIGN KEY (`n`) REFERENCES `d`.`p` (`id`) ON DELETE CASCADE, CONSTRAINT `Own` FOREIGN KEY" in made and "fk_1" not in made
    assert "CONSTRAINT `Own` FOREIGN KEY (`n`) REFERENCES `e`.`p` (`id`) ON UPDATE SET NULL" in made


@pytest.mark.shows("ddl options of TiDB")
def test_options() -> None:
    counts = column(1, "id", {**INT, "Flag": 4099 | 512})
    info = TableInfo.from_json(table(10, "t", [counts], comment="x;y", auto_inc_id=7))
    assert create_table("d", info, MARIADB).sql.endswith(f"{CS} COMMENT = 'x;y' AUTO_INCREMENT = 7")
    assert "AUTO_INCREMENT" not in create(auto_inc_id=7).sql  # no column counts
    keyless = create_table("d", TableInfo.from_json(table(10, "t", [counts], auto_inc_id=7, pk_is_handle=False)), MARIADB)
    assert "AUTO_INCREMENT" not in keyless.sql and keyless.losses == ("d.t: column id: AUTO_INCREMENT left out",)
    gbk = create(column(2, "s", VARCHAR), charset="gbk", collate="gbk_chinese_ci")
    assert gbk.sql.endswith("DEFAULT CHARACTER SET = gbk COLLATE = gbk_chinese_ci") and f"`s` VARCHAR(20) {CLAUSE}" in gbk.sql


@pytest.mark.parametrize(
    ("dialect", "collate", "told"),
    [
        (MARIADB, "utf8mb4_nopad_bin", True),
        (MYSQL, "utf8mb4_0900_bin", True),
        (Dialect(Flavour.MARIADB, nopad=False), "utf8mb4_bin", True),
        (Dialect(Flavour.MARIADB, binary=True), "utf8mb4_nopad_bin", False),
        (Dialect(Flavour.TIDB), "gbk_chinese_ci", False),
    ],
)
def test_a_column_of_gbk(dialect: Dialect, collate: str, told: bool) -> None:
    found = create(column(2, "s", GBK), dialect=dialect, charset="gbk", collate="gbk_chinese_ci")
    clause = "" if collate.startswith("gbk") else f" CHARACTER SET utf8mb4 COLLATE {collate}"
    assert f"`s` VARCHAR(20){clause} NULL" in found.sql and bool(found.losses) is told


def test_a_long_text_of_gbk_is_one_of_utf8mb4() -> None:
    """40,000 bytes upstream."""
    found = with_texts(info_of(column(2, "s", {**GBK, "Flen": 20_000})), MYSQL, "too long", {"s"})
    assert found is not None and found.losses == ("column s is MEDIUMTEXT instead of VARCHAR(20000): too long",)


@pytest.mark.shows("ddl temporary tables", "spark.upstream-collation")
@pytest.mark.parametrize("dialect", [MARIADB, Dialect(Flavour.TIDB)])
def test_what_no_other_server_has_is_a_loss(dialect: Dialect) -> None:
    """A TiDB has it, but CREATE TABLES, and a CREATE whose text it has refused, are made of the infos."""
    ttl = {"column": {"O": "c"}, "interval_expr": "1", "interval_time_unit": 5, "enable": True, "job_interval": "1h"}
    more = {"auto_random_bits": 5, "ShardRowIDBits": 4, "ttl_info": ttl, "policy_ref_info": {"id": 1, "name": {"O": "p"}}}
    check = {"constraint_name": {"O": "c"}, "constraint_expr": "`id` > 0"}
    made = create(temp_table_type=1, constraint_info=[check], dialect=dialect, **more)
    assert made.sql.startswith(f"CREATE TABLE `d`.`t` ({ID_SQL}, {KEY}) DEFAULT")
    assert [loss.removeprefix("d.t: ") for loss in made.losses] == [
        "CHECK constraint left out, because the upstream has checked it",
        "AUTO_RANDOM left out",
        "SHARD_ROW_ID_BITS left out",
        "TTL left out",
        "placement policy left out",
        "temporary table created as an ordinary table, which stays empty",
    ]


def test_a_bare_table_has_what_rows_need() -> None:
    parts = partitioned(1, (11, "p0", "5"), expr="`id`")
    info = info_of(column(2, "n", comment="words"), fk_info=[P], partition=parts, index_info=[index(1, "k", ("n", 1))], comment="more")
    whole = create_table("d", info, MARIADB)
    assert "PARTITION" in whole.sql and "FOREIGN KEY" in whole.sql and "KEY `k`" in whole.sql and not whole.losses
    assert create_table("d", bare(info), MARIADB).sql == f"CREATE TABLE `d`.`t` ({ID_SQL}, `n` INT NULL, {KEY}) {CS}"


def test_a_default_that_is_a_sequence_is_left_out_where_there_are_none() -> None:
    counted = column(2, "n", INT, default="nextval(`d`.`s`)", default_is_expr=True)
    assert "DEFAULT (nextval(`d`.`s`))" in create(counted).sql
    made = create(counted, dialect=MYSQL)
    assert "nextval" not in made.sql and made.losses == ("d.t: column n: default from a sequence left out",)
    altered = Alteration.of(info_of(column(2, "n")), info_of(counted), "x", MYSQL)
    assert altered is not None and list(altered.losses()) == ["column n: default from a sequence left out"]


@pytest.mark.parametrize(
    ("partition", "wanted"),
    [
        (partitioned(1, (11, "p0", "5"), (12, "p1", "MAXVALUE"), expr="year(`d`)"),
         "RANGE (year(`d`)) (PARTITION `p0` VALUES LESS THAN (5), PARTITION `p1` VALUES LESS THAN (MAXVALUE))"),
        (partitioned(1, (11, "p0", "'2026-01-01'", "'a\\\\b'"), columns=("d", "s")),
         "RANGE COLUMNS (`d`, `s`) (PARTITION `p0` VALUES LESS THAN ('2026-01-01', 'a\\\\b'))"),
        (partitioned(3, (11, "a", ["1"], ["NULL"]), expr="`id`"), "LIST (`id`) (PARTITION `a` VALUES IN (1, NULL))"),
        (partitioned(3, (11, "a", ["1", "2"], ["3", "4"]), columns=("a", "b")),
         "LIST COLUMNS (`a`, `b`) (PARTITION `a` VALUES IN ((1, 2), (3, 4)))"),
        (partitioned(3, (11, "a", ["1"]), (12, "b", ["DEFAULT"]), expr="`id`"),
         "LIST (`id`) (PARTITION `a` VALUES IN (1), PARTITION `b` DEFAULT)"),
        (partitioned(2, (11, "p0"), (12, "p1"), expr="`id`"), "HASH (`id`) PARTITIONS 2"),
        (partitioned(4, (11, "p0"), (12, "own"), columns=("id",)), "KEY (`id`) (PARTITION `p0`, PARTITION `own`)"),
        (partitioned(4, (11, "p0")), "KEY () PARTITIONS 1"),
    ],
)  # fmt: skip
def test_partitions(partition: dict[str, Any], wanted: str) -> None:
    info = info_of(partition=partition)
    assert partition_by(info, MARIADB) == f"PARTITION BY {wanted}"
    assert create(partition=partition).sql.endswith(f"{CS} PARTITION BY {wanted}")


@pytest.mark.parametrize("partition", [partitioned(9, (11, "p0", "5"), expr="`id`"), {**partitioned(1, (11, "p0", "5", "6"), columns=("a", "b")), "enable": False}])  # fmt: skip
def test_partitions_of_a_later_release_or_that_tidb_does_not_use_are_a_loss(partition: dict[str, Any]) -> None:
    """A TiDB before 6.2 takes RANGE COLUMNS over several columns, and puts any row in the table."""
    made = create(partition=partition)
    assert "PARTITION" not in made.sql and made.losses == ("d.t: partitions left out",)


def test_the_comment_of_a_partition() -> None:
    partition = partitioned(1, (11, "p0", "5"), expr="`id`")
    partition["definitions"][0]["comment"] = "it's"
    assert partition_by(info_of(partition=partition), MARIADB).endswith("VALUES LESS THAN (5) COMMENT = 'it''s')")


@pytest.mark.parametrize(
    ("effect", "old", "new", "wanted"),
    [
        (JobEffect.ALTERS_PARTITIONS, [(11, "p0", "5")], [(11, "p0", "5"), (12, "p1", "9")], "ADD PARTITION (PARTITION `p1` VALUES LESS THAN (9))"),
        (JobEffect.DROPS_PARTITION, [(11, "p0", "5"), (12, "p1", "9"), (13, "p2", "12")], [(12, "p1", "9")], "DROP PARTITION `p0`, `p2`"),
        (JobEffect.EMPTIES_PARTITION, [(11, "p0", "5"), (12, "p1", "9")], [(11, "p0", "5"), (13, "p1", "9")], "TRUNCATE PARTITION `p1`"),
        (JobEffect.DIVIDES, [(11, "p0", "5"), (12, "p1", "9")], [(13, "p0", "3"), (14, "pn", "5"), (12, "p1", "9")],
         "REORGANIZE PARTITION `p0` INTO (PARTITION `p0` VALUES LESS THAN (3), PARTITION `pn` VALUES LESS THAN (5))"),
        (JobEffect.DIVIDES, [(11, "p0", "5")], [], "REMOVE PARTITIONING"),
        (JobEffect.ALTERS_PARTITIONS, [(11, "p0", "5")], [(11, "p0", "5")], ""),
        (JobEffect.ALTERS_PARTITIONS, [(11, "p0", "5"), (12, "p1", "9")], [(11, "p9", "5"), (12, "p1", "9")],
         "REORGANIZE PARTITION `p0` INTO (PARTITION `p9` VALUES LESS THAN (5))"),
    ],
)  # fmt: skip
def test_changes_of_partitions_are_told_by_their_ids_and_names(effect: JobEffect, old: list[Any], new: list[Any], wanted: str) -> None:
    before, after = (info_of(partition=partitioned(1, *parts, expr="`id`") if parts else None) for parts in (old, new))
    assert partition_change(before, after, effect, MARIADB) == wanted


def test_a_table_that_gets_partitions_or_another_number_of_them_is_partitioned_anew() -> None:
    three = partitioned(2, (21, "p0"), (22, "p1"), (23, "p2"), expr="`id`")
    two = info_of(partition=partitioned(2, (11, "p0"), (12, "p1"), expr="`id`"))
    assert partition_change(two, info_of(partition=three), JobEffect.DIVIDES, MARIADB) == "PARTITION BY HASH (`id`) PARTITIONS 3"
    anew = TableInfo.from_json(table(20, "t", [ID], partition=three))
    assert partition_change(info_of(), anew, JobEffect.DIVIDES, MARIADB) == "PARTITION BY HASH (`id`) PARTITIONS 3"


def step_of(*jobs: dict[str, Any], query: str = "x") -> tuple[DdlStep, SchemaHistory]:
    h = history(database(1), *jobs)
    last = h.ordered[-1]
    return DdlStep(90, last, query, False, AppliedJobs(last.version - 1), AppliedJobs(last.version)), h


@pytest.mark.parametrize(
    "query", ["CREATE TABLE `t` LIKE `o`;", "create table if not exists t (id bigint auto_random primary key clustered)"]
)
def test_nothing_of_the_text_is_read(query: str) -> None:
    subject = subject_of(*step_of(job(3, 3, table(10, "t", [ID])), query=query))
    assert rewrite(subject, MARIADB, restored=True).sql == f"CREATE TABLE `d`.`t` ({ID_SQL}, {KEY}) {CS}"
    assert rewrite(subject, Dialect(Flavour.TIDB), restored=True).sql.startswith(query[:12])


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (JobType.SET_TIFLASH_REPLICA, {}),
        (JobType.SHARD_ROW_ID, {"ShardRowIDBits": 4}),
        (JobType.AUTO_ID_CACHE, {}),
        (JobType.REBASE_AUTO_RANDOM, {}),
        (JobType.REMOVE_TTL, {}),
        (JobType.ADD_CHECK, {"constraint_info": [{"constraint_name": {"O": "c"}}]}),
        (JobType.DROP_CHECK, {}),
        (JobType.STATS_OPTIONS, {}),
        (JobType.MULTI_SCHEMA_CHANGE, {"constraint_info": [{"constraint_name": {"O": "c"}}]}),
    ],
)
def test_what_leaves_nothing_to_execute(kind: JobType, more: dict[str, Any]) -> None:
    subject = subject_of(*step_of(job(2, 3, table(10, "t", [ID])), job(3, kind, table(10, "t", [ID], **more))))
    altered = altered_by(subject, MARIADB)
    assert by_changes(subject, MARIADB) and not by_changes(subject, Dialect(Flavour.TIDB))
    assert altered is not None and altered.clauses() == []
    assert len(list(altered.losses())) == len(more)


def test_foreign_keys_and_counters_are_changes() -> None:
    counts = column(1, "id", {**INT, "Flag": 4099 | 512})
    before, after = (
        TableInfo.from_json(table(10, "t", [counts, column(2, "n")], index_info=keys, fk_info=foreign, auto_inc_id=begins))
        for keys, foreign, begins in ((None, [foreign_key("old", "n", "p", "id")], 0), ([index(1, "fk_1", ("n", 1))], [P], 5000))
    )
    altered = Alteration.of(before, after, "x", MARIADB, "d")
    assert altered is not None and altered.clauses() == [
        "DROP FOREIGN KEY `old`",
        "ADD KEY `fk_1` (`n`)",
        "ADD FOREIGN KEY (`n`) REFERENCES `d`.`p` (`id`) ON DELETE CASCADE",
        "AUTO_INCREMENT = 5000",
    ]
