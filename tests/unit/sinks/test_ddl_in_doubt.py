"""Which DDLs of a relay log must not be executed twice, by their text."""

import pytest

from pyspark_tidb_binlog.sinks.relay.ddl_in_doubt import added_columns, why_not_rows, why_not_twice


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `x`;", "EXCHANGE"),
        ("RENAME TABLE a TO t, b TO a, t TO b", "several tables"),
        ("alter table w modify column e enum('b','a') not null", "ENUM or SET"),
        ("ALTER TABLE w ADD COLUMN z INT, MODIFY `e` /* x */ SET('b','a')", "ENUM or SET"),
        ("ALTER TABLE w MODIFY COLUMN words varchar(9)", "ENUM or SET"),
        ("ALTER TABLE w CHANGE COLUMN a b INT", "renames a column"),
        ("ALTER TABLE w RENAME COLUMN a TO b", "renames a column"),
        ("RENAME TABLE a TO b", ""),
        ("ALTER TABLE w MODIFY COLUMN a varchar(9) CHARACTER SET utf8mb4", ""),
        ("ALTER TABLE w ADD COLUMN e ENUM('a'), ALTER COLUMN e SET DEFAULT 'a'", ""),
        ("ALTER TABLE w RENAME INDEX a TO b", ""),
        ("CREATE TABLE t (e ENUM('exchange partition'))", ""),
        ("CREATE VIEW v AS SELECT 1", ""),
        ("ALTER DATABASE d CHARACTER SET utf8mb4", ""),
    ],
)
def test_why_it_is_left_to_a_person(query: str, why: str) -> None:
    twice, rows = why_not_twice(query), why_not_rows(query, {"words"})
    assert why in twice + rows and bool(twice + rows) == bool(why) and not (twice and rows)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("ALTER TABLE w ADD COLUMN `C` INT, ADD d INT AFTER e, ADD INDEX i (n), ADD COLUMN IF NOT EXISTS f INT;", {"c", "d", "f"}),
        ("ALTER TABLE `d`.`w` ADD COLUMN (`a` DECIMAL(10, 2), b ENUM('x,y'), KEY (n))", {"a", "b"}),
        ("ALTER TABLE w ADD PARTITION (PARTITION p1 VALUES LESS THAN (7)), ADD CONSTRAINT c CHECK (n > 0)", set()),
        ("ALTER TABLE w ADD UNIQUE u (n), ADD PRIMARY KEY (id), DROP COLUMN n, MODIFY COLUMN m INT", set()),
        ("CREATE TABLE w (a INT)", set()),
    ],
)
def test_columns_that_rows_before_it_do_not_have(query: str, columns: set[str]) -> None:
    assert added_columns(query) == columns
