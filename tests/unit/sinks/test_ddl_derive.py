"""Statements made of table infos."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, On, kind_of
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import altered_by
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import SQL_KINDS
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_definition
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, table

MARIADB = Dialect(Flavour.MARIADB)
CLAUSE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
ID = column(1, "id", {**INT, "Flag": 4099})
A, B = column(2, "a"), column(3, "b")


def derived(kind: int, old: dict[str, Any], new: dict[str, Any], query: str = "x") -> list[str]:
    h = history(database(1), job(2, 3, old), job(9, kind, new, query=query))
    step = DdlStep(90, h.jobs[9], query, False, AppliedJobs(2), AppliedJobs(9))
    subject = subject_of(step, h)
    altered = altered_by(subject, MARIADB)
    return altered.statements(subject.old) if altered and subject.old else []


def test_no_kind_has_a_statement_that_nobody_asks_for() -> None:
    """What the infos show is executed change by change, whatever the kind's row says."""
    shown = (JobEffect.ALTERS, JobEffect.SETS)
    stated = [kind for kind, row in SQL_KINDS.items() if row.statement is not None]
    assert [kind for kind in stated if kind_of(kind).on is On.TABLE and kind_of(kind).effect in shown] == []


@pytest.mark.parametrize(
    ("new", "groups"),
    [
        ([ID, A, B, column(4, "c"), column(5, "e")], [["ADD COLUMN `c` INT NULL", "ADD COLUMN `e` INT NULL"]]),
        (
            [ID, column(4, "c"), column(5, "e"), A, B],
            [["ADD COLUMN `c` INT NULL AFTER `id`"], ["ADD COLUMN `e` INT NULL AFTER `c`"]],
        ),
        ([column(4, "c"), ID, B], [["DROP COLUMN `a`", "ADD COLUMN `c` INT NULL FIRST"]]),
        (
            [ID, column(2, "r"), column(4, "c"), B],
            [["CHANGE COLUMN `a` `r` INT NULL"], ["ADD COLUMN `c` INT NULL AFTER `r`", "ADD KEY `k` (`b`)"]],
        ),
        ([ID, B, A, column(4, "c")], [["MODIFY COLUMN `b` INT NULL AFTER `id`", "ADD COLUMN `c` INT NULL"]]),
    ],
)
def test_a_tidb_gets_no_name_that_the_same_statement_brings(new: list[dict[str, Any]], groups: list[list[str]]) -> None:
    """It looks for the column of AFTER in the table as it was. Other servers take one statement; at the end of the table no AFTER is written."""
    keys = [index(1, "k", ("b", new.index(B)))] if "ADD KEY" in str(groups) else []
    h = history(database(1), job(2, 3, table(10, "t", [ID, A, B])), job(9, 61, table(10, "t", new, index_info=keys), query="x"))
    subject = subject_of(DdlStep(90, h.jobs[9], "x", False, AppliedJobs(2), AppliedJobs(9)), h)
    assert subject.old is not None
    for flavour, wanted in ((Flavour.TIDB, groups), (Flavour.MARIADB, [[clause for group in groups for clause in group]])):
        altered = altered_by(subject, Dialect(flavour))
        assert altered is not None
        assert altered.statements(subject.old) == [f"ALTER TABLE `d`.`t` {', '.join(group)}" for group in wanted]
        assert altered.statements(subject.old, ()) == []


CONVERTED = column(3, "b", VARCHAR)
INDEXED = table(10, "t", [ID, A], index_info=[index(1, "x", ("a", 1)), index(2, "y", ("a", 1))])
REINDEXED = table(10, "t", [ID, A], index_info=[index(2, "z", ("a", 1)), index(3, "u", ("a", 1), ("id", 0), unique=True)])
WORDED = table(10, "t", [ID], comment="it's", charset="gbk", collate="gbk_chinese_ci")
TEXT = f"VARCHAR(20) {CLAUSE} NULL"
DERIVED = {
    "columns come where they belong": (61, table(10, "t", [ID, A, B]), table(10, "t", [column(4, "x", VARCHAR), ID, B, column(5, "y")]), "x",
                                       f"DROP COLUMN `a`, ADD COLUMN `x` {TEXT} FIRST, ADD COLUMN `y` INT NULL"),
    "a type under a new id": (12, table(10, "t", [ID, A]), table(10, "t", [ID, column(3, "a", VARCHAR)]), "x", f"MODIFY COLUMN `a` {TEXT}"),
    "a type under a new name and id": (12, table(10, "t", [ID, A]), table(10, "t", [ID, CONVERTED]), "alter table t change a b varchar(20)",
                                       f"CHANGE COLUMN `a` `b` {TEXT}"),
    "what may be a change of another column is not guessed": (61, table(10, "t", [ID, A]), table(10, "t", [ID, CONVERTED]),
                                                              "alter table t change c b varchar(20), drop column a", ""),
    "moved columns": (12, table(10, "t", [ID, A, B]), table(10, "t", [ID, B, A]), "x", "MODIFY COLUMN `b` INT NULL AFTER `id`"),
    "indexes": (61, INDEXED, REINDEXED, "x", "DROP INDEX `x`, RENAME INDEX `y` TO `z`, ADD UNIQUE KEY `u` (`a`, `id`)"),
    "comment and charset": (17, table(10, "t", [ID]), WORDED, "x", "DEFAULT CHARACTER SET = gbk COLLATE = gbk_chinese_ci, COMMENT = 'it''s'"),
}  # fmt: skip


@pytest.mark.parametrize("case", DERIVED)
def test_what_is_made_of_the_infos(case: str) -> None:
    kind, old, new, query, wanted = DERIVED[case]
    assert derived(kind, old, new, query) == ([f"ALTER TABLE `d`.`t` {wanted}"] if wanted else [])


@pytest.mark.parametrize(
    ("kind", "more", "wanted"),
    [
        ({**INT, "Tp": 8, "Flag": 32 | 1}, {}, "BIGINT UNSIGNED NOT NULL"),
        ({**INT, "Flag": 64 | 32, "Flen": 8}, {}, "INT(8) UNSIGNED ZEROFILL NULL"),
        ({**INT, "Tp": 1, "Flen": 1}, {"default": "1"}, "TINYINT(1) NULL DEFAULT '1'"),
        ({**INT, "Tp": 246, "Flen": 10, "Decimal": 2}, {}, "DECIMAL(10,2) NULL"),
        ({**INT, "Tp": 4, "Flen": 12, "Decimal": -1}, {}, "FLOAT NULL"),
        ({**INT, "Tp": 4, "Flen": 12, "Decimal": 0}, {}, "FLOAT(12,0) NULL"),
        ({**INT, "Tp": 16, "Flen": 9}, {"default_bit": "AQE="}, "BIT(9) NULL DEFAULT b'100000001'"),
        ({**INT, "Tp": 7, "Decimal": 3, "Flag": 8192 | 1}, {"default": "CURRENT_TIMESTAMP"}, "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)"),
        ({**INT, "Tp": 10}, {"default": "CURRENT_DATE"}, "DATE NULL DEFAULT (CURRENT_DATE)"),
        ({**INT, "Tp": 10}, {"default": "CURRENT_TIMESTAMP"}, "DATE NULL DEFAULT (CURRENT_DATE)"),
        ({**INT, "Tp": 254, "Flen": 3}, {}, "BINARY(3) NULL"),
        ({**VARCHAR, "Tp": 252, "Flen": 65535}, {}, "TEXT NULL"),
        ({**INT, "Tp": 251}, {}, "LONGBLOB NULL"),
        ({**VARCHAR, "Tp": 247, "Elems": ["a", "it's"]}, {"default": "a"}, "ENUM('a','it''s') NULL DEFAULT 'a'"),
        ({**INT, "Tp": 245}, {}, "JSON NULL"),
        (INT, {"generated_expr_string": "`a` + 1", "generated_stored": True}, "INT GENERATED ALWAYS AS (`a` + 1) STORED"),
        (VARCHAR, {"default": "uuid()", "default_is_expr": True, "comment": "x\\y"}, "VARCHAR(20) NULL DEFAULT (uuid()) COMMENT 'x\\\\y'"),
    ],
)  # fmt: skip
def test_column_definitions(kind: dict[str, Any], more: dict[str, Any], wanted: str) -> None:
    info = history(database(1), job(2, 3, table(10, "t", [column(1, "c", kind, **more)]))).table_at(10, 2)
    assert info is not None
    found: ColumnInfo = info.info.columns[0]
    assert column_definition(found, info.info, MARIADB, explicit=False) == f"`c` {wanted}"
