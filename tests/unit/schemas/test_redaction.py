"""What people see of a server's words and of a statement: no value of a row."""

import pytest

from pyspark_tidb_binlog.schemas.redaction import statement_head, without_values


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("Duplicate entry 'it's a 'secret'' for key 'uu'", "Duplicate entry '…' for key 'uu'"),
        ("Incorrect string value: '\\xF0\\x9F for column 'x' …' for column `d`.`t`.`v` at row 2", None),
        ("Incorrect integer value: 'secret' for column 'v' at row 1", "Incorrect integer value: '…' for column 'v' at row 1"),
        ("Truncated incorrect DOUBLE value: 'secret'", "Truncated incorrect DOUBLE value: '…'"),
        ("Out of range value for column 'n' at row 3", "Out of range value for column 'n' at row 3"),
        ("Data too long for column 'v' at row 1", "Data too long for column 'v' at row 1"),
        ("can not get 'tikv_gc_safe_point'", "can not get 'tikv_gc_safe_point'"),
        ("Table 'd.t' doesn't exist", "Table 'd.t' doesn't exist"),
        ("Check constraint 't_chk_1' is violated.", "Check constraint 't_chk_1' is violated."),
        ("Cannot convert string 'secret' from utf8mb4 to latin1", "Cannot convert string '…' from utf8mb4 to latin1"),
        ("Duplicate entry 'secret' for key 't.PRIMARY'", "Duplicate entry '…' for key 't.PRIMARY'"),
        ("Table has no partition for value secret", "Table has no partition for value …"),
        ("You have an error in your SQL syntax near ''secret','x')' at line 1", "You have an error in your SQL syntax near '…' at line 1"),
        ("Deadlock found when trying to get lock; try restarting transaction", None),
        ("This version of MySQL doesn't yet support 'a thing'", "This version of MySQL doesn't yet support 'a thing'"),
        ("Variable 'sql_mode' can't be set to the value of 'NO_X'", "Variable 'sql_mode' can't be set to the value of 'NO_X'"),
        (
            "Non matching attribute 'ROW_FORMAT' between partition and table.",
            "Non matching attribute 'ROW_FORMAT' between partition and table.",
        ),
        ("Can't DROP 'c'; check that column/key exists", "Can't DROP 'c'; check that column/key exists"),
        (
            "Cannot drop column 'c': needed in a foreign key constraint 'fk'",
            "Cannot drop column 'c': needed in a foreign key constraint 'fk'",
        ),
        ("a trigger says \"secret\" and 'secret'", "a trigger says '…'"),
    ],
)
def test_words_without_values(words: str, shown: str | None) -> None:
    found = without_values(words)
    assert "secret" not in found
    assert "xF0" not in found
    if shown is not None:
        assert found == shown


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("INSERT INTO `d`.`t` (`id`,`v`) VALUES (1,'secret')", "INSERT INTO `d`.`t` (`id`,`v`) VALUES …"),
        ("DELETE FROM `d`.`t` WHERE `v` IN ('secret')", "DELETE FROM `d`.`t` WHERE …"),
        ("REPLACE INTO `d`.` VALUES x` (`id`) VALUES ('secret')", "REPLACE INTO `d`.` VALUES …"),
        ("replace into t('secret')", "replace into t"),
        ("CREATE TABLE t (v varchar(3) default 'x')", "CREATE TABLE t (v varchar(3) default 'x')"),
        ("COMMIT", "COMMIT"),
    ],
)
def test_the_head_of_a_statement_ends_before_its_first_value(sql: str, shown: str) -> None:
    assert statement_head(sql) == shown
