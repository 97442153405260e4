"""Definitions of both sides: what differs is named with the DDL that mends it, nearest forms and what is recorded are not held against the target."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TableRoute
from pyspark_tidb_binlog.jobs import verify
from pyspark_tidb_binlog.jobs.lab.emulator import online
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.values import EVERY_TYPE
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.verify.definition import NotCompared, Standard, unlike
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable
from tests.support.emulated_stream import EmulatedStream
from tests.support.shown_tables import as_tidb_shows
from tests.support.target_rows import run_sql
from tests.support.verify_site import MARKS, VerifySite

pytestmark = pytest.mark.mysql


@pytest.fixture
def site(mariadb: PrivateMariaDB) -> Iterator[VerifySite]:
    made = VerifySite(mariadb, {"upstream_new_collations": "true"})
    yield made
    made.close()


@dataclass(frozen=True)
class Case:
    upstream: str
    target: str
    words: str = ""
    """Of the one difference; empty: none."""
    by_intent: bool = False
    mend: str = ""
    """What mends it, of which the words are gone afterwards."""


COLUMN = "id INT PRIMARY KEY, v {}"
CASES = {
    "the same": Case(COLUMN.format("VARCHAR(20) NOT NULL DEFAULT 'a'"), COLUMN.format("VARCHAR(20) NOT NULL DEFAULT 'a'")),
    "another order": Case("id INT PRIMARY KEY, v INT, w INT", "w INT, v INT, id INT PRIMARY KEY"),
    "own column and key": Case("id INT PRIMARY KEY", "id INT PRIMARY KEY, mine INT, KEY (mine), UNIQUE KEY (mine, id)"),
    "lacks a column": Case(
        "id INT PRIMARY KEY, v INT NOT NULL DEFAULT '7'",
        "id INT PRIMARY KEY",
        "column v missing",
        mend="ALTER TABLE `down`.`t` ADD COLUMN `v` INT NOT NULL DEFAULT '7'",
    ),
    "INT for BIGINT": Case(
        COLUMN.format("BIGINT"), COLUMN.format("INT"), "column v is ", mend="ALTER TABLE `down`.`t` MODIFY COLUMN `v` BIGINT NULL"
    ),
    "signed for unsigned": Case(COLUMN.format("INT UNSIGNED"), COLUMN.format("INT"), "column v is "),
    "BIGINT for INT": Case(COLUMN.format("INT"), COLUMN.format("BIGINT"), "column v is ", True),
    "BIGINT for INT UNSIGNED": Case(COLUMN.format("INT UNSIGNED"), COLUMN.format("BIGINT"), "column v is ", True),
    "a shorter text": Case(
        COLUMN.format("VARCHAR(20)"),
        COLUMN.format("VARCHAR(10)"),
        "column v is ",
        mend="ALTER TABLE `down`.`t` MODIFY COLUMN `v` VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL",
    ),
    "TEXT for VARCHAR": Case(COLUMN.format("VARCHAR(20)"), COLUMN.format("TEXT")),
    "TINYTEXT for TEXT": Case(COLUMN.format("TEXT"), COLUMN.format("TINYTEXT"), "column v is "),
    "fewer digits": Case(COLUMN.format("DECIMAL(10,2)"), COLUMN.format("DECIMAL(9,2)"), "column v is "),
    "a coarser scale": Case(COLUMN.format("DECIMAL(10,2)"), COLUMN.format("DECIMAL(10,1)"), "column v is "),
    "fewer words": Case(COLUMN.format("ENUM('a','b')"), COLUMN.format("ENUM('a')"), "column v is "),
    "more words": Case(COLUMN.format("ENUM('a')"), COLUMN.format("ENUM('a','b')"), "column v is ", True),
    "no fractions": Case(COLUMN.format("DATETIME(3)"), COLUMN.format("DATETIME"), "column v is "),
    "a shorter range": Case(COLUMN.format("DATETIME"), COLUMN.format("TIMESTAMP NULL"), "column v is "),
    "NOT NULL": Case(
        COLUMN.format("INT"), COLUMN.format("INT NOT NULL"), "column v is ", mend="ALTER TABLE `down`.`t` MODIFY COLUMN `v` INT NULL"
    ),
    "NULL": Case(COLUMN.format("INT NOT NULL"), COLUMN.format("INT"), "column v is ", True),
    "another default": Case(
        COLUMN.format("INT DEFAULT 7"),
        COLUMN.format("INT DEFAULT 8"),
        "column v has another default than '7'",
        mend="ALTER TABLE `down`.`t` ALTER COLUMN `v` SET DEFAULT '7'",
    ),
    "no default": Case(
        COLUMN.format("VARCHAR(9) DEFAULT 'it''s'"), COLUMN.format("VARCHAR(9)"), "column v has another default than 'it''s'"
    ),
    "another long number": Case(
        COLUMN.format(f"DECIMAL(65) DEFAULT {'9' * 64}"),
        COLUMN.format(f"DECIMAL(65) DEFAULT {'8' * 64}"),
        "column v has another default than '999",
    ),
    "the same number": Case(COLUMN.format("DECIMAL(5,2) DEFAULT 1"), COLUMN.format("DECIMAL(7,3) DEFAULT '1.000'"), "column v is ", True),
    "utf8mb4 for gbk": Case(COLUMN.format("CHAR(9) CHARACTER SET gbk"), COLUMN.format("CHAR(9)")),
    "latin1 for utf8mb4": Case(COLUMN.format("CHAR(9)"), COLUMN.format("CHAR(9) CHARACTER SET latin1"), "column v is "),
    "not padding": Case(COLUMN.format("CHAR(9)"), COLUMN.format("CHAR(9) COLLATE utf8mb4_nopad_bin")),
    "another collation": Case(COLUMN.format("CHAR(9)"), COLUMN.format("CHAR(9) COLLATE utf8mb4_general_ci"), "column v is ", True),
    "lacks a key": Case(
        "id INT PRIMARY KEY, v INT, KEY by_v (v)",
        "id INT PRIMARY KEY, v INT",
        "key by_v missing or different",
        mend="ALTER TABLE `down`.`t` ADD KEY `by_v` (`v`)",
    ),
    "lacks the primary key": Case(
        "id INT PRIMARY KEY", "id INT NOT NULL", "key PRIMARY missing or different", mend="ALTER TABLE `down`.`t` ADD PRIMARY KEY (`id`)"
    ),
    "a key that is not unique": Case(
        "id INT PRIMARY KEY, v INT, UNIQUE KEY by_v (v)", "id INT PRIMARY KEY, v INT, KEY by_v (v)", "key by_v missing or different"
    ),
    "a key of other columns": Case(
        "id INT PRIMARY KEY, v INT, w INT, KEY by_v (v, w)",
        "id INT PRIMARY KEY, v INT, w INT, KEY by_v (w, v)",
        "key by_v missing or different",
    ),
    "a longer key": Case("id INT PRIMARY KEY, v INT, KEY by_v (v)", "id INT PRIMARY KEY, v INT, KEY longer (v, id)"),
    "a key of another name": Case(
        "id INT PRIMARY KEY, v VARCHAR(9), UNIQUE KEY by_v (v(3))", "id INT PRIMARY KEY, v VARCHAR(9), UNIQUE KEY named (v(3))"
    ),
    "a longer prefix": Case(
        "id INT PRIMARY KEY, v VARCHAR(9), UNIQUE KEY by_v (v(3))",
        "id INT PRIMARY KEY, v VARCHAR(9), UNIQUE KEY by_v (v(4))",
        "key by_v missing or different",
    ),
}


def structure(table: VerifiedTable) -> list[NotCompared]:
    return [one for one in table.left_out if not one.words.endswith("its route leaves it out")]


@pytest.mark.parametrize("name", CASES)
def test_definitions(site: VerifySite, name: str) -> None:
    case = CASES[name]
    site.sql(f"CREATE TABLE up.t ({case.upstream})", f"CREATE TABLE down.t ({case.target})")
    found = site.table()
    assert found.tally is not None and found.differs == bool(case.words and not case.by_intent)
    named = structure(found)
    assert len(named) == bool(case.words) and all(one.words.startswith(case.words) and one.by_intent == case.by_intent for one in named)
    if case.mend:
        assert [one.mend for one in named] == [case.mend]
        site.sql(case.mend)
        assert structure(site.table()) == []


def test_keys_that_fold_texts(site: VerifySite) -> None:
    site.sql("CREATE TABLE up.t (k VARCHAR(9) PRIMARY KEY)", "CREATE TABLE down.t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY)")
    (other, folded) = structure(site.table())
    assert other.by_intent and not folded.by_intent
    assert folded.words.startswith("a unique key of the target (PRIMARY) takes texts for equal that differ upstream, in k")
    assert "execute ALTER TABLE `down`.`t` MODIFY `k` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL" in folded.words


def test_keys_of_columns_that_a_route_leaves_out(mariadb: PrivateMariaDB) -> None:
    site = VerifySite(
        mariadb, {"routes": (TableRoute(db_name="up", to_db="down"), TableRoute(db_name="up", tbl_name="t", columns=("id", "v")))}
    )
    try:
        site.sql(
            "CREATE TABLE up.t (id INT PRIMARY KEY, v INT, w INT, KEY (w, v), KEY (v))", "CREATE TABLE down.t (id INT PRIMARY KEY, v INT)"
        )
        assert [(one.words, one.by_intent) for one in structure(site.table())] == [("key v missing or different", False)]
    finally:
        site.close()


RECORDED = {
    "column v: INT AS (`id` + 1) is left out: the server lacks a function": "v",
    "key by_w left out": "by_w",
    "left out: ALTER TABLE `down`.`t` ADD KEY `by_w` (`w`): Too many keys": "by_w",
}


@pytest.mark.parametrize("loss", RECORDED)
def test_what_a_ddl_records_is_by_intent(site: VerifySite, loss: str) -> None:
    name = RECORDED[loss]
    site.sql("CREATE TABLE up.t (id INT PRIMARY KEY, v INT, w INT, KEY by_w (w))", "CREATE TABLE down.t (id INT PRIMARY KEY, w INT)")
    assert [one.by_intent for one in structure(site.table())] == [False, False]
    site.record_ddl(9, "done", 90)
    site.sql(f"UPDATE {MARKS}.spark_ddl SET losses = '{json.dumps(['down.t: ' + loss, 'down.other: key by_w left out'])}' WHERE job_id = 9")
    found = {("v" if "column v" in one.words else "by_w"): one for one in structure(site.table())}
    assert {key: one.by_intent for key, one in found.items()} == {"v": name == "v", "by_w": name == "by_w"}
    assert found[name].words.endswith(f": {loss} (DDL of job 9 at commit_ts 90)") and not found[name].mend


def test_what_is_known_of_a_table_that_differs(site: VerifySite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.sql("CREATE TABLE up.t (id INT PRIMARY KEY, v INT)", "CREATE TABLE down.t (id INT PRIMARY KEY)", "CREATE TABLE up.gone (id INT)")
    site.record_ddl(9, "not synced", 90)
    site.sql(f"UPDATE {MARKS}.spark_ddl SET query = 'ALTER TABLE `t` ADD COLUMN `w` INT' WHERE job_id = 9")
    site.record_ddl(8, "done", 80)
    site.sql(f"UPDATE {MARKS}.spark_ddl SET query = 'CREATE TABLE gone (id INT)', note = 'ignored' WHERE job_id = 8")
    settings = site.written(tmp_path, "ignore-txn-commit-ts = [70, 60]")
    site.hold(2)
    assert verify.main(["-config", str(settings), "--tables", "up.t"], site.source) == 1
    assert capsys.readouterr().out.splitlines()[:5] == [
        "up.t: NOT AS IT SHOULD BE: not compared: column v missing",
        "  ALTER TABLE `down`.`t` ADD COLUMN `v` INT NULL;",
        "  DDL of job 9 at commit_ts 90, not synced: ALTER TABLE `t` ADD COLUMN `w` INT",
        "  ignore-txn-commit-ts skips the transactions at 60, 70",
        "up.t: 0 rows at 100 (1970-01-01 00:00:00.000): equal",
    ]
    assert verify.main(["-config", str(settings), "--json"], site.source) == 1
    gone, t, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert gone["not_compared"][0]["by_intent"] and gone["not_compared"][0]["why"].endswith("80, ignored: CREATE TABLE gone (id INT)")
    assert len(t["explained"]) == 2 and t["structure"] == []


WIDE = Table("wide", (Column("id", "bigint"), *(Column(f"c{i}", kind) for i, kind in enumerate(EVERY_TYPE))), ("id",))
ITEM = Table(
    "item",
    (
        Column("id", "bigint unsigned"),
        Column("n", "int", not_null=True, default=5),
        Column("t", "varchar(20)", default="it's \\ "),
        Column("d", "decimal(9,2)", default="1.5"),
        Column("e", "enum('a','b')", default="b"),
        Column("k", "varchar(9)", collate="utf8mb4_general_ci"),
    ),
    ("id",),
    unique=(("n", "t(3)"), ("k",)),
)
KEYED = Table("keyed", (Column("a", "varchar(20)"), Column("b", "datetime(3)"), Column("c", "blob")), ("a", "b"), clustered=False)
LOG = Table("log", (Column("a", "int"), Column("b", "text")))
DDLS: tuple[Callable[[Any], object], ...] = (
    lambda ddl: ddl.add_column("shop.item", Column("added", "bigint", not_null=True, default=-7)),
    lambda ddl: ddl.alter("shop.item", online.add_column(Column("ci", "char(9)", collate="utf8mb4_unicode_ci"), "id")),
    lambda ddl: ddl.alter("shop.item", online.add_index("by_ci", "ci(4)", "n"), online.add_index("only", "added", "id", unique=True)),
    lambda ddl: ddl.modify_column("shop.item", Column("n", "bigint", not_null=True, default=6)),
    lambda ddl: ddl.modify_column("shop.item", Column("t", "varchar(40)")),
    lambda ddl: ddl.modify_column("shop.item", Column("d", "varchar(30)"), convert=str),
    lambda ddl: ddl.modify_column("shop.item", Column("e", "enum('a','b','c')")),
    lambda ddl: ddl.alter("shop.item", online.rename_column("added", "renamed")),
    lambda ddl: ddl.alter("shop.item", online.drop_index("by_ci")),
    lambda ddl: ddl.drop_column("shop.item", "renamed"),
    lambda ddl: ddl.add_column("shop.wide", Column("json", "json")),
    lambda ddl: ddl.alter("shop.keyed", online.add_index("by_b", "b")),
    lambda ddl: ddl.drop_column("shop.keyed", "c"),
    lambda ddl: ddl.truncate("shop.keyed"),
    lambda ddl: ddl.rename("shop.log", "shop.entries"),
    lambda ddl: ddl.add_column("shop.entries", Column("moment", "timestamp(3)")),
    lambda ddl: ddl.drop_table("shop.wide"),
)


@pytest.mark.spark
def test_no_ddl_of_a_stream_leaves_a_difference(spark: SparkSession, mariadb: PrivateMariaDB) -> None:
    config = DrainerConfig(target=mariadb.target(), apply=ApplyConfig(checkpoint_schema=MARKS, on_finding="stop"))
    with EmulatedStream(spark, config) as stream, connect(config.target, config.apply) as session:
        try:
            stream.create("shop", WIDE, ITEM, KEYED, LOG)
            for ddl in (lambda ddl: None, *DDLS):
                ddl(stream.upstream.ddl)
                stream.apply()
                history = stream.history()
                for at in history.tables_in("shop", history.newest_version):
                    (there,) = read_tables(session, [(at.schema, at.name)]).values()
                    standard = Standard(config.apply, dialect_of(session, config.apply), Flavour.TIDB)
                    # Whether the upstream compares texts as bytes is not known in this stream.
                    assert [one.words for one in unlike(as_tidb_shows(at), there, (), standard) if "old collations" not in one.words] == []
                session.rollback()
        finally:
            for name in ("shop", MARKS):
                run_sql(mariadb, f"DROP DATABASE IF EXISTS {name}")
