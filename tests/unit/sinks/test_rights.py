"""What SHOW GRANTS of each server says, and what server variables mean: pure."""

import pytest

from pyspark_tidb_binlog.sinks.mysql.rights import Granted, WantedRights, may_write_read_only, missing_rights, read_grants, statements
from pyspark_tidb_binlog.sinks.mysql.server_variables import NAMES, judged

ALL = "GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` IDENTIFIED BY PASSWORD '*0' WITH GRANT OPTION"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (ALL, Granted(frozenset({"ALL PRIVILEGES"}), "*")),
        ("GRANT SELECT, LOCK TABLES ON `a``b`.* TO 'x'@'%'", Granted(frozenset({"SELECT", "LOCK TABLES"}), "a`b")),
        ("GRANT SELECT,INSERT ON test.* TO 'x'@'%'", Granted(frozenset({"SELECT", "INSERT"}), "test")),
        ("GRANT SHOW  VIEW ON `d\\_%`.* TO `x`@`%`", Granted(frozenset({"SHOW VIEW"}), "d\\_%")),
    ],
    ids=["MariaDB's root", "a quoted name", "TiDB without quotes", "a pattern"],
)
def test_grants_as_servers_print_them(line: str, wanted: Granted) -> None:
    assert read_grants([line]) == (wanted,)


@pytest.mark.parametrize(
    "line",
    [
        "GRANT SELECT ON `d`.`t` TO `x`@`%`",
        "GRANT SELECT (a, b) ON `d`.`t` TO `x`@`%`",
        "GRANT `r` TO `x`@`%`",
        "GRANT PROXY ON ''@'%' TO 'root'@'localhost' WITH GRANT OPTION",
        "SET DEFAULT ROLE `r` FOR `x`@`%`",
    ],
)
def test_what_gives_no_right_on_a_database(line: str) -> None:
    assert read_grants([line]) == ()


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("d", "D", True),
        ("d_", "dx", True),
        ("d\\_", "dx", False),
        ("d\\_", "d_", True),
        ("shop%", "shop_2", True),
        ("*", "x", True),
        ("d", "dd", False),
    ],
)
def test_patterns(pattern: str, name: str, covered: bool) -> None:
    assert Granted(frozenset({"SELECT"}), pattern).covers("SELECT", name) is covered
    assert Granted(frozenset({"SELECT"}), pattern).covers("INSERT", name) is False
    assert Granted(frozenset({"SELECT"}), pattern).covers("SELECT", "") is (pattern == "*")


def said(lines: list[str], wanted: WantedRights) -> list[str]:
    return [remark.words for remark in missing_rights(read_grants(lines), wanted, "'x'@'%'", "db:3306")]


def test_what_is_missing_and_what_it_breaks() -> None:
    wanted = WantedRights(["a", "b"], "tidb_binlog", views=True, foreign_keys=True, asks_timestamp=True)
    assert said([ALL], wanted) == []
    granted = ["GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON *.* TO x", "GRANT CREATE VIEW, SHOW VIEW ON a.* TO x"]
    lines = said(granted, wanted)
    assert [line.split(" lacks ")[1].split(":")[0] for line in lines] == [
        "REFERENCES on a.*, b.*", "CREATE VIEW on b.*", "SHOW VIEW on b.*", "PROCESS, which only a start after a crash needs", "REPLICATION CLIENT",
    ]  # fmt: skip
    assert [line[:7] for line in lines] == ["hinders"] * 3 + ["note   "] * 2
    assert "GRANT CREATE VIEW ON `b`.* TO 'x'@'%'" in lines[1]
    assert len(said(granted, WantedRights(["a"], "tidb_binlog"))) == 1
    many = WantedRights([f"d{n}" for n in range(9)], "tidb_binlog")
    assert "d4.* and 4 more" in said(["GRANT SELECT, INSERT, UPDATE, CREATE, DROP, ALTER, INDEX, PROCESS ON *.* TO x"], many)[1]


def test_what_mysql_takes_away_in_one_database() -> None:
    """With ``partial_revokes``: as MySQL 9.7 prints it."""
    lines = [
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, PROCESS, INDEX, ALTER ON *.* TO `x`@`%`",
        "REVOKE INSERT, ALTER ON `d_1`.* FROM `x`@`%`",
        "REVOKE ALL PRIVILEGES ON `mysql`.* FROM `x`@`%`",
    ]
    assert said(lines, WantedRights(["a", "dx1"], "tidb_binlog")) == []
    assert [line.split(" lacks ")[1].split(":")[0] for line in said(lines, WantedRights(["a", "d_1"], "tidb_binlog"))] == [
        "INSERT on d_1.*", "ALTER on d_1.*",
    ]  # fmt: skip
    assert "no start" in said(lines, WantedRights([], "d_1"))[0]
    assert not any(one.covers("SELECT", "mysql") for one in read_grants(lines))


def test_what_a_partial_revoke_takes_is_missing_there_only() -> None:
    """As MySQL prints it; a grant on the database itself stands beside it."""
    everywhere = "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, PROCESS ON *.* TO `x`@`%`"
    revoked = ["REVOKE INSERT, DELETE ON `a\\_b`.* FROM `x`@`%`", "GRANT DELETE ON `a\\_b`.* TO `x`@`%`"]
    (line,) = said([everywhere, *revoked], WantedRights(["a_b", "axb"], "tidb_binlog"))
    assert "lacks INSERT on a_b.*" in line
    assert line in said([everywhere, "REVOKE INSERT ON `a_b`.* FROM `x`@`%`"], WantedRights(["a_b", "axb"], "tidb_binlog"))


def test_who_may_write_to_a_read_only_server() -> None:
    assert may_write_read_only(read_grants([ALL]))
    assert may_write_read_only(read_grants(["GRANT READ_ONLY ADMIN ON *.* TO x"]))
    assert not may_write_read_only(read_grants(["GRANT ALL PRIVILEGES ON d.* TO x", "GRANT SELECT ON *.* TO x"]))


@pytest.mark.parametrize(
    ("name", "value", "hinders"),
    [
        ("super_read_only", "ON", True),
        ("tidb_restricted_read_only", "1", True),
        ("transaction_read_only", "ON", True),
        ("innodb_force_recovery", "1", True),
        ("enforce_storage_engine", "MyISAM", True),
        ("innodb_force_primary_key", "ON", True),
        ("sql_require_primary_key", "ON", True),
        ("sql_generate_invisible_primary_key", "ON", False),
        ("explicit_defaults_for_timestamp", "OFF", True),
        ("innodb_default_row_format", "compact", True),
        ("max_allowed_packet", "1048576", True),
        ("max_connections", "5", True),
        ("max_user_connections", "5", True),
        ("offline_mode", "ON", True),
        ("lower_case_table_names", "0", False),
        ("innodb_flush_log_at_trx_commit", "2", False),
        ("wsrep_on", "ON", False),
    ],
)
def test_a_variable(name: str, value: str, hinders: bool) -> None:
    assert name in NAMES
    found = list(judged({name: value}, "db", 6, may_write=False, has_zones=True))
    assert [(remark.hinders, name in remark.what) for remark in found] == [(hinders, True)]


def test_a_server_that_makes_primary_keys_takes_tables_without() -> None:
    required = {"sql_require_primary_key": "ON", "sql_generate_invisible_primary_key": "ON"}
    assert [remark.hinders for remark in judged(required, "db", 6, may_write=False, has_zones=True)] == [False]


def test_read_only_depends_on_the_account_and_zones_are_missed() -> None:
    def found(**given: bool) -> list[bool]:
        return [remark.hinders for remark in judged({"read_only": "ON"}, "db", 6, **{"may_write": False, "has_zones": True} | given)]

    assert (found(), found(may_write=True), found(has_zones=False)) == ([True], [False], [True, False])


def test_what_servers_have_by_default_is_good() -> None:
    usual = {
        "read_only": "OFF",
        "max_allowed_packet": "16777216",
        "max_connections": "151",
        "max_user_connections": "0",
        "innodb_flush_log_at_trx_commit": "1",
        "innodb_default_row_format": "dynamic",
        "enforce_storage_engine": "",
        "innodb_force_recovery": "0",
        "explicit_defaults_for_timestamp": "ON",
        "lower_case_table_names": "1",
        "wsrep_on": "OFF",
    }
    assert list(judged(usual, "db", 6, may_write=False, has_zones=True)) == []


def test_the_statements_give_what_is_wanted_and_nothing_else() -> None:
    """What they grant, as a server prints it, lacks nothing; without any one right something is missing."""
    wanted = WantedRights(["a_b", "c`d"], "marks", views=True, foreign_keys=True, asks_timestamp=True, marks=True)
    given = list(statements(wanted, "'x'@'%'"))
    assert given[0].endswith("ON `a\\_b`.* TO 'x'@'%'") and "`c``d`" in given[1]
    assert [words for words in said(given, wanted) if "a CREATE DATABASE of a name" not in words] == []
    for number, line in enumerate(given):
        for right in line.removeprefix("GRANT ").partition(" ON ")[0].split(", "):
            rest = line.replace(f"{right}, ", "", 1) if f"{right}, " in line else line.replace(f", {right} ON", " ON")
            fewer = [*given[:number], *([rest] if rest != line else []), *given[number + 1 :]]
            assert any(f"lacks {right}" in words for words in said(fewer, wanted)), (line, right)
