"""A definition that the target refuses: the nearest form that holds every value, then a loss in words, and the stream stops only where rows could not be held or found.

Each case is run undisturbed, and again with a death at each statement of each of its DDLs: the tables and the losses are the same.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, VARCHAR, column, database, foreign_key, history, index, job, steps_of, table
from tests.support.ddl_target import CONFIG, Died, apply, ddl_session

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]

ID = column(1, "id", {**INT, "Flag": 4099})


def text(n: int, name: str, length: int, tp: int = 15, **more: Any) -> dict[str, Any]:
    return column(n, name, {**VARCHAR, "Tp": tp, "Flen": length}, **more)


def raw(n: int, name: str, length: int) -> dict[str, Any]:
    return column(n, name, {"Tp": 254, "Flag": 128, "Flen": length, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None})


def computed(n: int, name: str, expression: str, *, stored: bool = False, kind: dict[str, Any] = INT) -> dict[str, Any]:
    return column(n, name, kind, generated_expr_string=expression, generated_stored=stored)


def t(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return table(10, "t", [ID, *columns], **more)


def key(n: int, name: str, info: dict[str, Any], *names: str, unique: bool = False) -> dict[str, Any]:
    offsets = {c["name"]["O"]: c["offset"] for c in info["cols"]}
    return index(n, name, *((c, offsets[c]) for c in names), unique=unique)


def keyed(info: dict[str, Any], *keys: tuple[Any, ...], unique: bool = False) -> dict[str, Any]:
    return {**info, "index_info": [key(n, name, info, *names, unique=unique) for n, (name, *names) in enumerate(keys, 1)]}


@dataclass(frozen=True)
class Case:
    """DDLs: type and definition after each; and what is to be seen at the end."""

    ddls: Sequence[tuple[int, dict[str, Any]]]
    types: dict[str, str]
    """Some columns at the end, as information_schema names them; empty: the target has none of the name."""
    losses: Sequence[str] | None = ()
    """The beginning of each; None: they are not looked at."""
    keys: frozenset[str] = frozenset()
    strict: bool = False
    """With a strict ``sql_mode``; without it the server makes texts of what is too long."""
    rows: str = ""
    """Inserted behind the first DDL, if the target has it."""
    full: str = ""
    """A row of the longest values, which the target holds at the end."""


WIDE = t(text(2, "a", 9000), text(3, "b", 9000), text(4, "k", 100))
NO = "nosuch_function(`a`)"
GENERATED = t(
    column(2, "a"),
    computed(3, "v", NO),
    computed(4, "s", NO, stored=True),
    computed(5, "w", "`v` + 1"),
    computed(6, "fine", "`a` + 1"),
    column(7, "z"),
)
BINARIES = [raw(n, f"c{n}", 255) for n in range(2, 6)]
MORE = [raw(n, f"e{n}", 255) for n in range(6, 10)]
PAST = [(3, t(*BINARIES)), *[(61, t(*BINARIES, *MORE)), (61, t(*BINARIES))] * 7]
P = table(11, "p")
FK = foreign_key("fk_same", "a", "p", "id")


def with_key(name: str, n: int, **more: Any) -> dict[str, Any]:
    own = table(n, name, [ID, column(2, "a")], **more)
    return {**own, "index_info": [index(1, "a", ("a", 1))]}


CASES = {
    "rows of over 65,535 bytes": Case(
        [(3, WIDE), (12, t(text(2, "a", 16000), text(3, "b", 9000), text(4, "k", 100))), (5, t(text(2, "a", 16000), text(3, "b", 9000), text(4, "k", 100), text(5, "c", 9000)))],
        {"a": "text", "b": "text", "k": "varchar(100)", "c": "varchar(9000)"},
        ["column a is TEXT instead of VARCHAR(9000)", "column a is TEXT instead of VARCHAR(16000)", "column b is TEXT instead of VARCHAR(9000)"],
    ),
    "a later column makes them so long": Case(
        [(3, t(text(2, "a", 9000))), (5, t(text(2, "a", 9000), text(3, "b", 9500))), (7, keyed(t(text(2, "a", 9000), text(3, "b", 9500)), ("k", "a")))],
        {"a": "varchar(9000)", "b": "text"},
        ["column b is TEXT instead of VARCHAR(9500)"],
        frozenset({"k"}),
    ),
    "a latin1 that is utf8mb4 at the target": Case(
        [(3, t(column(2, "a", {**VARCHAR, "Flen": 30000, "Charset": "latin1", "Collate": "latin1_bin"})))],
        {"a": "mediumtext"},
        ["column a is MEDIUMTEXT instead of VARCHAR(30000)"],
        strict=True,
    ),
    "40 VARCHAR": Case([(3, t(*(text(n, f"c{n}", 60) for n in range(2, 42))))], {"c2": "varchar(64)", "c41": "varchar(60)"}, ["column c2 is VARCHAR(64) instead of VARCHAR(60)"] * 8),
    "40 CHAR": Case([(3, t(*(text(n, f"c{n}", 60, tp=254) for n in range(2, 42))))], {"c2": "varchar(64)", "c41": "char(60)"}, ["column c2 is VARCHAR(64) instead of CHAR(60)"] * 8),
    "40 BINARY": Case([(3, t(*(raw(n, f"c{n}", 255) for n in range(2, 42))))], {"c2": "varbinary(256)", "c41": "binary(255)"}, ["column c2 is VARBINARY(256) instead of BINARY(255)"] * 10),
    "a later one of 40": Case(
        [(3, t(*(text(n, f"c{n}", 60) for n in range(2, 34)))), *((5, t(*(text(n, f"c{n}", 60) for n in range(2, m)))) for m in range(35, 42))],
        {"c2": "varchar(64)", "c40": "varchar(60)"},
        [f"column c{n} is VARCHAR(64) instead of VARCHAR(60)" for n in range(2, 9)],
        full="INSERT INTO d.t VALUES (1" + ", REPEAT('中', 60)" * 39 + ")",
    ),
    "many columns that come at once": Case(
        [(3, t(*(text(n, f"c{n}", 60) for n in range(2, 32)))), (61, t(*(text(n, f"c{n}", 60) for n in range(2, 72))))],
        {"c2": "varchar(64)", "c71": "varchar(60)"},
        None,
        full="INSERT INTO d.t VALUES (1" + ", REPEAT('中', 60)" * 70 + ")",
    ),
    "a column that a foreign key has": Case(
        [(3, table(11, "p", [column(1, "id", {**INT, "Flag": 4099})])), (3, with_key("t", 10, fk_info=[foreign_key("f", "a", "p", "id")])),
         (12, {**table(10, "t", [ID, column(2, "a", {**INT, "Tp": 8, "Flen": 20})], fk_info=[foreign_key("f", "a", "p", "id")]), "index_info": [index(1, "a", ("a", 1))]}),
         (12, table(11, "p", [column(1, "id", {**INT, "Tp": 8, "Flen": 20, "Flag": 4099})]))],
        {"a": "bigint(20)"},
        ["foreign key f left out, because the server does not change a column that it has"],
        frozenset({"a"}),
    ),
    "a table's past": Case(PAST, {"c2": "binary(255)", "e6": ""}, rows="INSERT INTO d.t (id, c2) VALUES (1, REPEAT('x', 255))"),
    "expressions": Case(
        [(3, GENERATED), (5, t(*GENERATED["cols"][1:], column(8, "last"))), (12, GENERATED)],
        {"v": "", "s": "int(11)", "w": "", "fine": "int(11)", "z": "int(11)", "last": ""},
        ["column v: INT AS (nosuch_function(`a`)) is left out", "column w: INT AS (`v` + 1) is left out", "column s is not computed by the target"],
    ),
    "a computed column that comes, with what names it": Case(
        [
            (3, t(column(2, "a"))),
            (5, t(column(2, "a"), computed(3, "v", NO))),
            (5, t(column(2, "a"), computed(3, "v", NO), column(4, "b"))),
            (7, keyed(t(column(2, "a"), computed(3, "v", NO), column(4, "b")), ("kv", "v"), ("kb", "b"))),
            (5, keyed(t(column(2, "a"), computed(3, "v", NO), column(4, "b"), computed(5, "s", NO, stored=True)), ("kv", "v"), ("kb", "b"))),
            (6, t(column(2, "a"), column(4, "b"), computed(5, "s", NO, stored=True))),
        ],
        {"v": "", "b": "int(11)", "s": "int(11)"},
        ["column v: INT AS (nosuch_function(`a`)) is left out", "key kv left out", "column s is not computed by the target"],
    ),
    "a default that is an expression": Case(
        [(3, t(column(2, "a", default=NO, default_is_expr=True))), (5, t(column(2, "a", default=NO, default_is_expr=True), column(3, "b", default="nosuch()", default_is_expr=True, origin_default="7")))],
        {"a": "int(11)", "b": "int(11)"},
        ["column a: DEFAULT (nosuch_function(`a`)) left out", "left out: ALTER TABLE `d`.`t` MODIFY COLUMN `b`"],
        rows="INSERT INTO d.t (id) VALUES (1)",
    ),
    "foreign keys of one name": Case(
        [(3, P), (3, with_key("c1", 12, fk_info=[FK])), (3, with_key("c2", 13, fk_info=[FK])), (3, with_key("t", 10)), (9, with_key("t", 10, fk_info=[FK])), (10, with_key("c2", 13))],
        {"a": "int(11)"},
        ["foreign key fk_same has another name"] * 2,
        frozenset({"a"}),
    ),
    "too many keys": Case(
        [(3, keyed(t(column(2, "a")), *((f"k{n:02}", "a") for n in range(70))))],
        {"a": "int(11)"},
        [f"left out: ALTER TABLE `d`.`t` ADD KEY `k{n}` (`a`)" for n in range(63, 70)],
        frozenset(f"k{n:02}" for n in range(63)),
    ),
    "keys that come to a full table": Case(
        [(3, keyed(t(column(2, "a")), *((f"k{n:02}", "a") for n in range(62)))), (61, keyed(t(column(2, "a"), column(3, "b")), *((f"k{n:02}", "a") for n in range(65))))],
        {"b": "int(11)"},
        [f"left out: ALTER TABLE `d`.`t` ADD KEY `k{n}` (`a`)" for n in range(63, 65)],
        frozenset(f"k{n:02}" for n in range(63)),
    ),
    "a key that is too long": Case(
        [(3, keyed(t(text(2, "a", 900)), ("u", "a"), unique=True))],
        {"a": "varchar(900)"},
        [],
        frozenset({"u"}),
    ),
}  # fmt: skip


class Mortal:
    """A session that dies behind its ``lives``-th statement that defines something."""

    def __init__(self, session: Session, lives: int) -> None:
        self.session, self.lives = session, lives

    def execute(self, sql: Any, args: Any = None) -> int:
        found = self.session.execute(sql, args)
        if isinstance(sql, str) and sql.startswith(("CREATE TABLE", "ALTER TABLE")):
            self.lives -= 1
            if not self.lives:
                raise Died
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def seen(session: Session, case: Case) -> tuple[Any, ...]:
    """Every table, every row, every loss."""
    names = [str(name) for (name,) in session.query("SELECT table_name FROM information_schema.tables WHERE table_schema = 'd' ORDER BY 1")]
    shown = [session.query(f"SHOW CREATE TABLE d.`{name}`")[0][1] for name in names]
    rows = [session.query(f"SELECT * FROM d.`{name}`") for name in names]
    session.commit()
    return shown, rows, losses(session)


def losses(session: Session) -> list[str]:
    found = session.query(f"SELECT losses FROM {CONFIG.checkpoint_schema}.spark_ddl WHERE losses IS NOT NULL ORDER BY job_id")
    return list(dict.fromkeys(loss for (one,) in found for loss in json.loads(one)))


def run(session: Session, case: Case, lives: int = 0) -> bool:
    """Apply all DDLs; whether it died on the way."""
    jobs = [job(n, kind, info, query=f"-- {n}") for n, (kind, info) in enumerate(case.ddls, 2)]
    h = history(database(1), *jobs)
    mortal, died = Mortal(session, lives), False
    for place, step in enumerate(steps_of(h)):
        try:
            outcome = apply(mortal, step, h)  # type: ignore[arg-type]
        except Died:
            died = True
            session.rollback()
            outcome = apply(session, step, h)
        assert outcome.state == "done", step.query
        if place == 1 and case.rows:
            session.execute(case.rows)
            session.commit()
    return died


@contextmanager
def case_session(case: Case, mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target()) as session:
        session.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, %s)", [",STRICT_ALL_TABLES" if case.strict else ""])
        yield session


@pytest.mark.parametrize("name", CASES)
def test_the_target_takes_it_and_a_death_changes_nothing(name: str, mariadb: PrivateMariaDB) -> None:
    case = CASES[name]
    with case_session(case, mariadb) as session:
        run(session, case)
        wanted = seen(session, case)
        types = {
            str(c): str(kind)
            for c, kind in session.query(
                "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = 'd' AND table_name = 't'"
            )
        }
        assert {c: types.get(c, "") for c in case.types} == case.types
        told = [loss.partition(": ")[2] for loss in losses(session)]
        if case.losses is not None:
            assert len(told) == len(case.losses) and {one for one in case.losses if not any(loss.startswith(one) for loss in told)} == set()
        keys = {
            str(k)
            for (k,) in session.query(
                "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = 'd' AND table_name = 't'"
            )
        }
        assert keys - {"PRIMARY"} == case.keys
        if case.full:
            session.execute(case.full)
    lives = 1
    while True:
        with case_session(case, mariadb) as session:
            if not run(session, case, lives):
                break
            tables, rows, told = seen(session, case)
            assert (tables, rows) == wanted[:2] and set(wanted[2]) <= set(told), f"a death behind statement {lives}"
        lives += 1 + lives // 3
    assert lives > 1  # fmt: skip


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (table(10, "t", [text(1, "a", 900)], pk_is_handle=False, index_info=[index(1, "PRIMARY", ("a", 0), unique=True, primary=True)]), "key was too long"),
        (t(*(column(n, f"c{n}") for n in range(2, 1020))), "error 1005"),
    ],
    ids=["a key that rows are found by", "columns"],
)  # fmt: skip
def test_what_rows_need_stops_the_stream(info: dict[str, Any], words: str, mariadb: PrivateMariaDB) -> None:
    h = history(database(1), job(2, 3, info))
    first, made = steps_of(h)
    with ddl_session(mariadb.target()) as session:
        apply(session, first, h)
        with pytest.raises(DdlRefused, match=words):
            apply(session, made, h)
