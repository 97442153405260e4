"""What the rows that are there hold after ADD COLUMN, and what the column's default is then, on a real MariaDB."""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, VARCHAR, column, index, table, told
from tests.support.ddl_target import CONFIG, apply, committed, ddl_session, die, prepared
from tests.support.shown_columns import declared

pytestmark = pytest.mark.mysql

NOT_NULL = 1
ID = column(1, "id", {**INT, "Flag": 4099})


def kind(
    tp: int, flag: int = 0, flen: int = -1, decimal: int = 0, charset: str = "binary", elems: list[str] | None = None
) -> dict[str, Any]:
    collate = "binary" if charset == "binary" else f"{charset}_bin"
    return {"Tp": tp, "Flag": flag, "Flen": flen, "Decimal": decimal, "Charset": charset, "Collate": collate, "Elems": elems}


TIMESTAMP, DATETIME = kind(7, 128, 19), kind(12, 128, 19)
TEXT = {**VARCHAR, "Flen": 40}


SETTINGS = {"explicit": "1", "implicit": "0"}
"""``explicit_defaults_for_timestamp``, which is set behind the session's own back."""
with_both_settings = pytest.mark.parametrize("session", SETTINGS.values(), ids=SETTINGS, indirect=True)


@pytest.fixture
def session(request: pytest.FixtureRequest, mariadb: PrivateMariaDB) -> Iterator[Session]:
    params = (("explicit_defaults_for_timestamp", getattr(request, "param", SETTINGS["explicit"])),)
    target = dataclasses.replace(mariadb.target(), params=params)
    with ddl_session(target) as session:
        yield session


def products(*choices: Iterable[Any]) -> list[Any]:
    """Each combination with both settings. Columns TIMESTAMP alone differ by them: `make test` has the other combinations with one of the two."""
    made = []
    for number, found in enumerate(itertools.product(*choices)):
        for at, name in enumerate(SETTINGS):
            other = (number + at) % 2 and "timestamp" not in str(found[0])
            made.append(
                pytest.param(*found, SETTINGS[name], id="-".join(map(str, (*found, name))), marks=pytest.mark.slow if other else ())
            )
    return made


TWO_ROWS = "INSERT INTO d.t VALUES (1), (2)"


def to_alter(
    session: Session, added: list[dict[str, Any]], text: str, kind_of_job: int = 5, by_hand: Iterable[str] = ()
) -> tuple[SchemaHistory, DdlStep]:
    """A table of two rows, and the step that adds columns to it."""
    made = (3, table(10, "t", [ID]), "CREATE TABLE `t` (`id` INT PRIMARY KEY);")
    h = told(made, (kind_of_job, table(10, "t", [ID, *added]), text))
    return h, prepared(session, h, {}, TWO_ROWS, *by_hand)


def cells(session: Session, name: str = "c") -> set[Any]:
    return {value for (value,) in session.query(f"SELECT CAST({name} AS CHAR) FROM d.t")}


CASES = {
    "timestamp now": (
        "TIMESTAMP DEFAULT CURRENT_TIMESTAMP()",
        (TIMESTAMP, {"default": "CURRENT_TIMESTAMP", "origin_default": "2021-05-06 07:08:09"}),
        "2021-05-06 07:08:09",
        ("current_timestamp()", "YES", ""),
    ),
    "timestamp(3) now on update": (
        "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
        (kind(7, 8192 | 129, 23, 3), {"default": "CURRENT_TIMESTAMP", "origin_default": "2021-05-06 07:08:09"}),
        "2021-05-06 07:08:09.000",
        ("current_timestamp(3)", "NO", "on update current_timestamp(3)"),
    ),
    "datetime now": (
        "DATETIME DEFAULT CURRENT_TIMESTAMP()",
        (DATETIME, {"default": "CURRENT_TIMESTAMP", "origin_default": "2021-05-06 15:08:09"}),
        "2021-05-06 15:08:09",
        ("current_timestamp()", "YES", ""),
    ),
    "timestamp literal of another zone": (
        "TIMESTAMP DEFAULT _UTF8MB4'2020-01-01 00:00:00'",
        (TIMESTAMP, {"default": "2019-12-31 16:00:00", "origin_default": "2019-12-31 16:00:00", "version": 2}),
        "2019-12-31 16:00:00",
        ("'2019-12-31 16:00:00'", "YES", ""),
    ),
    "timestamp without a word": ("TIMESTAMP", (TIMESTAMP, {}), None, ("NULL", "YES", "")),
    "timestamp not null": (
        "TIMESTAMP NOT NULL",
        (kind(7, 129, 19), {"origin_default": "0000-00-00 00:00:00"}),
        "0000-00-00 00:00:00",
        ("'0000-00-00 00:00:00'", "NO", ""),
    ),
    "datetime zero": (
        "DATETIME NOT NULL DEFAULT '0000-00-00 00:00:00'",
        (kind(12, 129, 19), {"default": "0000-00-00 00:00:00", "origin_default": "0000-00-00 00:00:00"}),
        "0000-00-00 00:00:00",
        ("'0000-00-00 00:00:00'", "NO", ""),
    ),
    "date now": (
        "DATE DEFAULT CURRENT_DATE()",
        (kind(10, 128, 10), {"default": "CURRENT_DATE", "origin_default": "2021-05-06"}),
        "2021-05-06",
        ("curdate()", "YES", ""),
    ),
    "uuid": (
        "VARCHAR(40) DEFAULT (UUID()) COMMENT 'x, y'",
        (TEXT, {"default": "uuid()", "default_is_expr": True, "origin_default": "as upstream has it"}),
        "as upstream has it",
        ("uuid()", "YES", ""),
    ),
    "rand": (
        "DOUBLE NOT NULL DEFAULT (RAND())",
        (kind(5, 1, 22, -1), {"default": "rand()", "default_is_expr": True, "origin_default": "0.5"}),
        "0.5",
        ("rand()", "NO", ""),
    ),
    "date_format": (
        "VARCHAR(40) DEFAULT (DATE_FORMAT(NOW(), '%Y-%m-%d'))",
        (TEXT, {"default": "date_format(now(), '%Y-%m-%d')", "default_is_expr": True, "origin_default": "2021-05-06"}),
        "2021-05-06",
        ("date_format(current_timestamp(),'%Y-%m-%d')", "YES", ""),
    ),
    "another origin": ("INT DEFAULT 5", (INT, {"default": "5", "origin_default": "3"}), "3", ("5", "YES", "")),
    "no origin": ("INT DEFAULT 5", (INT, {"default": "5", "origin_default": None}), None, ("5", "YES", "")),
    "bit": (
        "BIT(9) DEFAULT b'100000001'",
        (kind(16, 32, 9), {"default_bit": "AQE=", "origin_default_bit": "AQM=", "default": "\x01\x01", "origin_default": "\x01\x03"}),
        None,
        ("b'100000001'", "YES", ""),
    ),
    "enum": (
        "ENUM('a','b') NOT NULL",
        (kind(247, 1, charset="utf8mb4", elems=["a", "b"]), {"origin_default": "b"}),
        "b",
        (None, "NO", ""),
    ),
    "set": (
        "SET('a','b') DEFAULT 'a'",
        (kind(248, 0, charset="utf8mb4", elems=["a", "b"]), {"default": "a", "origin_default": "a,b"}),
        "a,b",
        ("'a'", "YES", ""),
    ),
    "decimal": (
        "DECIMAL(6,2) DEFAULT 1.5",
        (kind(246, 0, 6, 2), {"default": "1.50", "origin_default": "2.50"}),
        "2.50",
        ("1.50", "YES", ""),
    ),
    "json": ("JSON NOT NULL", (kind(245, 1), {"origin_default": "null"}), "null", (None, "NO", "")),
    "text": ("TEXT NOT NULL", (kind(252, 1, 65535, 0, "utf8mb4"), {"origin_default": ""}), "", (None, "NO", "")),
    "quotes": (
        "VARCHAR(20) DEFAULT 'it''s \\\\ x'",
        (VARCHAR, {"default": "it's \\ x", "origin_default": "it's \\ y"}),
        "it's \\ y",
        ("'it''s \\\\ x'", "YES", ""),
    ),
}


@pytest.mark.shows("ddl add column", "ddl set default")
@pytest.mark.parametrize(("case", "session"), products(CASES), indirect=["session"])
def test_rows_hold_what_the_upstream_says(session: Session, case: str) -> None:
    definition, (kind_of, more), value, default = CASES[case]
    h, step = to_alter(session, [column(2, "c", kind_of, **more)], f"ALTER TABLE `t` ADD COLUMN `c` {definition} FIRST;")
    outcome = apply(session, step, h)
    assert (outcome.how, outcome.losses) == ("changes", ())
    if case == "bit":
        assert session.query("SELECT DISTINCT HEX(c) FROM d.t") == [("103",)]
    else:
        assert cells(session) == {value}
    assert declared(session, "c") == default
    assert found_again(session, step, h) == ("done", "nothing", ())


def found_again(session: Session, step: DdlStep, h: SchemaHistory) -> tuple[str, str, tuple[str, ...]]:
    """What becomes of the DDL where nothing says that it was executed: every row holds what it must."""
    committed(session, "DELETE FROM ddl_marks.spark_ddl WHERE job_id = 3")
    again = apply(session, step, h)
    return again.state, again.how, again.losses


FILLED = {
    "BINARY(4) NOT NULL": (kind(254, 1, 4), "\x00\x00\x00\x00", b"\0\0\0\0"),
    "BINARY(4) NOT NULL DEFAULT 'ab'": (kind(254, 1, 4), "ab", b"ab\0\0"),
    "VARBINARY(9) NOT NULL DEFAULT 'a '": (kind(15, 1, 9), "a ", b"a "),
    "CHAR(9) CHARACTER SET gbk NOT NULL DEFAULT '中'": (kind(254, 1, 9, 0, "gbk"), "中", "中".encode()),
    "VARCHAR(9) NOT NULL DEFAULT 'Ä '": (kind(15, 1, 9, 0, "utf8mb4"), "Ä ", "Ä ".encode()),
    "CHAR(9) NOT NULL DEFAULT 'a  '": (kind(254, 1, 9, 0, "utf8mb4"), "a  ", b"a"),
    "CHAR(9) NOT NULL DEFAULT '  '": (kind(254, 1, 9, 0, "utf8mb4"), "  ", b""),
    "DOUBLE(10,2) NOT NULL DEFAULT 1.239": (kind(5, 1, 10, 2), "1.239", b"1.24"),
    "FLOAT(10,2) NOT NULL DEFAULT -1.239": (kind(4, 1, 10, 2), "-1.239", b"-1.24"),
    "DOUBLE NOT NULL DEFAULT 0.1": (kind(5, 1, 22, -1), "0.1", b"0.1"),
    "FLOAT NOT NULL DEFAULT 16777217": (kind(4, 1, 12, -1), "16777217", b"16777200"),
    "BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615": (kind(8, 33, 20), "18446744073709551615", b"18446744073709551615"),
    "DECIMAL(30,9) NOT NULL DEFAULT 12345678901234567890.1": (kind(246, 1, 30, 9), "12345678901234567890.1", b"12345678901234567890.100000000"),
    "DATE NOT NULL": (kind(10, 129, 10), "0000-00-00", b"0000-00-00"),
    "DATETIME(3) NOT NULL DEFAULT '2020-01-02 03:04:05.6'": (kind(12, 129, 23, 3), "2020-01-02 03:04:05.600", b"2020-01-02 03:04:05.600"),
    "TIME(2) NOT NULL DEFAULT '-838:59:59'": (kind(11, 129, 13, 2), "-838:59:59.00", b"-838:59:59.00"),
    "DATE NOT NULL DEFAULT '2020-01-01 23:59:59.9'": (kind(10, 129, 10), "2020-01-01 23:59:59.9", b"2020-01-01"),
    "DATE NOT NULL DEFAULT '2020-01-01 23:59:59.8'": (kind(10, 129, 10), "2020-01-01", b"2020-01-01"),
    "BIGINT NOT NULL DEFAULT 2.5e0": (kind(8, 1, 20), "2.5", b"3"),
    "VARCHAR(40) NOT NULL DEFAULT 1e20": (kind(15, 1, 40, 0, "utf8mb4"), "100000000000000000000", b"100000000000000000000"),
    "VARCHAR(40) NOT NULL DEFAULT -1e20": (kind(15, 1, 40, 0, "utf8mb4"), "-100000000000000000000", b"-100000000000000000000"),
    "YEAR NOT NULL DEFAULT 0": (kind(13, 97, 4), "0", b"2000"),
    "YEAR NOT NULL": (kind(13, 97, 4), "0000", b"0000"),
    "ENUM('x''y','b') NOT NULL DEFAULT 'x''y'": (kind(247, 1, charset="utf8mb4", elems=["x'y", "b"]), "x'y", b"x'y"),
    "SET('a','b') NOT NULL": (kind(248, 1, charset="utf8mb4", elems=["a", "b"]), "", b""),
    "BLOB NOT NULL": (kind(252, 1, 65535), "", b""),
}  # fmt: skip


@pytest.mark.parametrize(("definition", "session"), products(FILLED), indirect=["session"])
def test_the_server_fills_in_what_the_upstream_does(session: Session, definition: str) -> None:
    """And a start that finds the column takes every row for right."""
    kind_of, origin, value = FILLED[definition]
    default = origin if "DEFAULT" in definition else None
    wanted = column(2, "c", kind_of, default=default, origin_default=origin)
    h, step = to_alter(session, [wanted], f"ALTER TABLE `t` ADD COLUMN `c` {definition};")
    apply(session, step, h)
    assert session.query("SELECT DISTINCT CAST(c AS BINARY) FROM d.t") == [(value,)]
    assert found_again(session, step, h) == ("done", "nothing", ())


@pytest.mark.shows("ddl multi schema change")
@with_both_settings
def test_several_columns_of_one_statement(session: Session) -> None:
    now = {"default": "CURRENT_TIMESTAMP", "origin_default": "2021-05-06 07:08:09"}
    added = [column(2, "a", TIMESTAMP, **now), column(3, "b"), column(4, "e", DATETIME, **now)]
    text = "ALTER TABLE `t` ADD COLUMN (`a` TIMESTAMP DEFAULT CURRENT_TIMESTAMP, `b` INT, KEY(`b`)), ADD COLUMN `e` DATETIME DEFAULT NOW() AFTER `b`;"
    h, step = to_alter(session, added, text, 61)
    assert apply(session, step, h).how == "changes"
    assert session.query("SELECT DISTINCT CAST(a AS CHAR), b, CAST(e AS CHAR) FROM d.t") == [
        ("2021-05-06 07:08:09", None, "2021-05-06 07:08:09")
    ]
    assert (declared(session, "a")[0], declared(session, "e")[0]) == ("current_timestamp()", "current_timestamp()")


POINTS = ["after-ddl-intent", "after-ddl-fill", "after-ddl", "before-ddl-done"]


@pytest.mark.parametrize(("point", "session"), products(POINTS), indirect=["session"])
def test_a_crash_between_the_halves(session: Session, point: str) -> None:
    now = {"default": "CURRENT_TIMESTAMP", "origin_default": "2021-05-06 07:08:09"}
    h, step = to_alter(session, [column(2, "c", TIMESTAMP, **now)], "ALTER TABLE `t` ADD COLUMN `c` TIMESTAMP DEFAULT CURRENT_TIMESTAMP;")
    die(session, step, h, point)
    assert apply(session, step, h).state == "done"
    assert cells(session) == {"2021-05-06 07:08:09"}
    assert declared(session, "c") == ("current_timestamp()", "YES", "")


@with_both_settings
def test_a_timestamp_of_a_new_table_may_be_null(session: Session) -> None:
    made, later = (
        table(10, "t", [ID, column(2, "c", TIMESTAMP), column(3, "n", TIMESTAMP, default=f"{year}-12-31 16:00:00", version=2)])
        for year in (2019, 2018)
    )
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `c` TIMESTAMP, `n` TIMESTAMP DEFAULT '2020-01-01 00:00:00' COMMENT 'a');"
    h = told((3, made, create), (15, later, "ALTER TABLE `t` ALTER COLUMN `n` SET DEFAULT '2019-01-01 00:00:00';"))
    change = prepared(session, h, {}, "INSERT INTO d.t (id, c) VALUES (1, NULL)")
    assert cells(session) == {None}
    assert declared(session, "n") == ("'2019-12-31 16:00:00'", "YES", "")
    apply(session, change, h)
    assert declared(session, "n") == ("'2018-12-31 16:00:00'", "YES", "")


@with_both_settings
def test_modify_of_a_timestamp_keeps_its_nulls(session: Session) -> None:
    before, after = (table(10, "t", [ID, column(2, "c", c)]) for c in (TIMESTAMP, kind(7, 128, 23, 3)))
    made = (3, before, "CREATE TABLE `t` (`id` INT PRIMARY KEY, `c` TIMESTAMP NULL DEFAULT NULL);")
    h = told(made, (12, after, "ALTER TABLE `t` MODIFY COLUMN `c` TIMESTAMP(3);"))
    apply(session, prepared(session, h, {}, "INSERT INTO d.t VALUES (1, NULL)"), h)
    assert cells(session) == {None}


@with_both_settings
@pytest.mark.parametrize("point", ["", "after-ddl"])
def test_a_null_that_may_not_be_is_filled_and_told(session: Session, point: str) -> None:
    before, after = column(2, "c", TIMESTAMP, origin_default="2021-05-06 07:08:09"), column(2, "c", kind(7, 129, 19))
    kept = column(3, "k", kind(7, 129 | 8192, 19), default="CURRENT_TIMESTAMP")
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `c` TIMESTAMP NULL, `k` TIMESTAMP NOT NULL DEFAULT NOW() ON UPDATE NOW());"
    change = (12, table(10, "t", [ID, after, kept]), "ALTER TABLE `t` MODIFY COLUMN `c` TIMESTAMP NOT NULL;")
    h = told((3, table(10, "t", [ID, before, kept]), create), change)
    modify = prepared(session, h, {}, "INSERT INTO d.t VALUES (1, NULL, '2001-01-01 00:00:00')")
    die(session, modify, h, point)
    losses = apply(session, modify, h).losses
    assert cells(session) == {"2021-05-06 07:08:09"}
    assert cells(session, "k") == {"2001-01-01 00:00:00"}
    assert losses[0].startswith("d.t: 1 rows held NULL in c, but the upstream has no NULL there")


@pytest.mark.parametrize(
    ("passing", "state"),
    [({"ddl_policy": "skip"}, "skipped"), ({"ignore_txn_commit_ts": (30,)}, "done"), ({"sync_ddl": False}, "not synced")],
)
def test_a_null_that_was_filled_before_a_refusal_is_told(session: Session, passing: dict[str, Any], state: str) -> None:
    """However the DDL is skipped then, and if the answer to that was lost."""
    before, after = ([ID, column(2, "c", {**INT, "Flag": flag}), column(3, "k")] for flag in (0, 1))
    unique = table(10, "t", after, index_info=[index(1, "u", ("k", 2), unique=True)])
    h = told((3, table(10, "t", before), "x"), (61, unique, "ALTER TABLE t MODIFY c INT NOT NULL, ADD UNIQUE u (k)"))
    modify = prepared(session, h, {}, "INSERT INTO d.t VALUES (1, NULL, 7), (2, 2, 7)")
    with pytest.raises(DdlRefused, match="Duplicate entry"):
        apply(session, modify, h)
    for _ in range(2):
        outcome = apply(session, modify, h, dataclasses.replace(CONFIG, **passing))
        assert outcome.state == state and outcome.losses[0].startswith("d.t: 1 rows held NULL in c")
        ((losses, tries),) = session.query("SELECT losses, tries FROM ddl_marks.spark_ddl WHERE job_id = 3")
        assert json.loads(losses) == list(outcome.losses)
        assert "Duplicate entry" in json.loads(tries)[0]["words"]


def test_the_year_0_is_not_2000(session: Session) -> None:
    before, after = (table(10, "t", [ID, column(2, "c", kind(13, flag, 4))]) for flag in (96, 97))
    h = told((3, before, "CREATE TABLE t (id INT PRIMARY KEY, c YEAR)"), (12, after, "ALTER TABLE t MODIFY COLUMN c YEAR NOT NULL"))
    apply(session, prepared(session, h, {}, "INSERT INTO d.t VALUES (1, NULL), (2, 2000)"), h)
    assert session.query("SELECT CAST(c AS CHAR) FROM d.t ORDER BY id") == [("0000",), ("2000",)]


FIVE = {"default": "5", "origin_default": "5"}
BEFORE = {
    "no default": (FIVE, "INT", "", "UPDATE `d`.`t` SET `c` = '5', `at` = `at` WHERE NOT (`c` <=> '5')"),
    "another default": (FIVE, "INT DEFAULT 6", "", "WHERE NOT"),
    "a default where there is none": ({}, "INT DEFAULT 6", "", "SET `c` = NULL, `at` = `at` WHERE NOT (`c` IS NULL)"),
    "the same default": (FIVE, "INT DEFAULT 5", "", ""),
    "the same, as a literal of another form": (FIVE, "INT DEFAULT '05'", "", ""),
    "that of old rows": ({"default": "7", "origin_default": "5"}, "INT DEFAULT 5", "", ""),
    "the same default, and values of somebody": (FIVE, "INT DEFAULT 5", "UPDATE d.t SET c = 6, at = at WHERE id = 2", "WHERE NOT (`c` <=> '5')"),
    "the same NULL, and values of somebody": ({}, "INT FIRST, ADD COLUMN mine INT", "UPDATE d.t SET c = 6, at = at", "WHERE NOT (`c` IS NULL)"),
    "another default, and the same values": (FIVE, "INT", "UPDATE d.t SET c = 5, at = at", ""),
}  # fmt: skip


def to_add(session: Session, more: dict[str, Any]) -> tuple[SchemaHistory, DdlStep]:
    """Two rows in a table with a column that changes with every UPDATE that does not set it."""
    at = column(2, "at", kind(7, 8192 | 129, 19), default="CURRENT_TIMESTAMP")
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP);"
    text = "ALTER TABLE `t` ADD COLUMN `c` INT" + (f" DEFAULT {more['default']}" if more else "")
    h = told((3, table(10, "t", [ID, at]), create), (5, table(10, "t", [ID, at, column(3, "c", INT, **more)]), text))
    return h, prepared(session, h, {}, "INSERT INTO d.t VALUES (1, '2020-01-01 00:00:00'), (2, '2020-01-01 00:00:00')")


@pytest.mark.parametrize(("case", "dies", "session"), products(BEFORE, [False, True]), indirect=["session"])
def test_a_column_that_a_person_has_added_before(session: Session, case: str, dies: bool) -> None:
    """Rows that hold another value than upstream: the stream stands, until they have it, or a person says that they are meant so."""
    more, by_hand, filled, update = BEFORE[case]
    h, step = to_add(session, more)
    if dies:
        die(session, step, h, "after-ddl-intent")
    committed(session, f"ALTER TABLE d.t ADD COLUMN c {by_hand}", *filter(None, [filled]))
    if not update:
        assert apply(session, step, h).losses == ()
        return
    with pytest.raises(DdlRefused, match=f"(?s)already has the column c.*{re.escape(update)}.*ignore-txn-commit-ts = .30."):
        apply(session, step, h)
    (found,) = session.query("SELECT tries FROM ddl_marks.spark_ddl WHERE job_id = 3")[0]
    update_of_message = re.search("UPDATE .*", json.loads(found)[-1]["words"])
    assert update_of_message is not None
    committed(session, update_of_message[0])
    outcome = apply(session, step, h)
    assert (outcome.state, outcome.losses) == ("done", ())
    assert session.query("SELECT DISTINCT c, CAST(at AS CHAR) FROM d.t") == [(5 if more else None, "2020-01-01 00:00:00")]


def test_what_a_person_means_so_is_left(session: Session) -> None:
    h, step = to_add(session, FIVE)
    session.execute("ALTER TABLE d.t ADD COLUMN c INT")
    skipping = apply(session, step, h, dataclasses.replace(CONFIG, ddl_policy="skip"))
    assert skipping.state == "done" and "already has the column c" in skipping.losses[0]
    committed(session, "DELETE FROM ddl_marks.spark_ddl WHERE job_id = 3")
    ignoring = apply(session, step, h, dataclasses.replace(CONFIG, ignore_txn_commit_ts=(30,)))
    assert (ignoring.state, ignoring.how, ignoring.losses) == ("done", "ignored", skipping.losses)
    assert cells(session) == {None}


def test_a_float_is_what_its_literal_means(session: Session) -> None:
    added, by_hand = column(2, "c", kind(4, 0, 12, -1), default="0.1", origin_default="0.1"), "ALTER TABLE d.t ADD COLUMN c FLOAT"
    h, step = to_alter(session, [added], "ALTER TABLE `t` ADD COLUMN `c` FLOAT DEFAULT 0.1", 5, (by_hand, "UPDATE d.t SET c = 0.1"))
    assert apply(session, step, h).losses == ()


@pytest.mark.parametrize("own", ["INT AS (id + 1)", "VARCHAR(9)"])
def test_somebody_s_own_column_that_cannot_hold_the_upstream_s_is_not_taken_for_it(session: Session, own: str) -> None:
    """With sync-mode = 2 the rows would be written without it, and without a word."""
    h, step = to_alter(session, [column(2, "c", INT)], "ALTER TABLE `t` ADD COLUMN `c` INT;", 5, [f"ALTER TABLE d.t ADD COLUMN c {own}"])
    with pytest.raises(DdlRefused, match="Duplicate column name"):
        apply(session, step, h)
    session.rollback()
    session.execute("ALTER TABLE d.t CHANGE c ours VARCHAR(9)" if own == "VARCHAR(9)" else "ALTER TABLE d.t DROP COLUMN c")
    assert apply(session, step, h).how == "changes"
