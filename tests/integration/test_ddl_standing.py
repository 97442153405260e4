"""CREATE TABLE, one or many in a job, where a table of that name stands: it will do only when it is equal and empty, or our own from before a crash."""

import dataclasses

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, job, table, told
from tests.support.ddl_target import CONFIG, Died, apply, committed, ddl_session, die, prepared
from tests.support.private_mysql import NO_PAD_BIN

pytestmark = pytest.mark.mysql

COLUMNS = [column(1, "id", {**INT, "Flag": 4099}), column(2, "v", VARCHAR)]
TEXT = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` VARCHAR(20));"
EQUAL = f"CREATE TABLE d.{{}} (id INT PRIMARY KEY, v VARCHAR(20) COLLATE {NO_PAD_BIN})"


def single(session: Session, *by_hand: str) -> tuple[SchemaHistory, DdlStep]:
    h = told((3, table(10, "t", COLUMNS), TEXT))
    return h, prepared(session, h, {}, *by_hand)


def many(session: Session, *by_hand: str) -> tuple[SchemaHistory, DdlStep]:
    """The tables ``t`` and ``u`` in one job."""
    h = history(database(1), job(2, 60, None, many=[table(10, "t", COLUMNS), table(11, "u", COLUMNS)], table_id=10))
    return h, prepared(session, h, {}, *by_hand)


OTHERS = [
    ("(id INT, v VARCHAR(20))", r"column id is NULL instead of NOT NULL; .*key PRIMARY missing"),
    ("(id INT NOT NULL, v VARCHAR(20))", "key PRIMARY missing"),
    ("(id INT PRIMARY KEY, v VARCHAR(5))", r"column v is varchar\(5\) instead of VARCHAR\(20\)"),
    ("(id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1)", "latin1"),
    ("(id INT PRIMARY KEY, v VARCHAR(20), w INT)", "columns"),
    ("(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE x (v))", "unique key x does not exist upstream"),
    ("(id INT PRIMARY KEY, v VARCHAR(20)) ENGINE = MyISAM", "engine MyISAM has no transactions"),
]


@pytest.mark.parametrize(("there", "words"), OTHERS, ids=[there for there, _ in OTHERS])
def test_another_empty_table_is_refused_and_named(session: Session, there: str, words: str) -> None:
    h, create = single(session, f"CREATE TABLE d.t {there}")
    with pytest.raises(DdlRefused, match=words):
        apply(session, create, h)
    outcome = apply(session, create, h, dataclasses.replace(CONFIG, ddl_policy="skip"))
    assert (outcome.state, outcome.how) == ("skipped", "policy")


@pytest.mark.shows("drainer gotcha 9")
@pytest.mark.parametrize("kind", ["create", "create many", "rename"])
def test_rows_that_a_restore_left_over_are_refused(session: Session, kind: str) -> None:
    """The dump does not drop a table that is newer than it; the binlogs bring its rows once more, and without a key nothing shows them."""
    name, way_out = "t", "Drop the table of that name at the target [(]or, if it is equal, empty it[)]"
    if kind == "rename":
        name, way_out = "v", "Drop the table of that name at the target, or rename"
    left_over = (EQUAL.format(name), f"INSERT INTO d.{name} VALUES (1, 'left over')")
    if kind == "rename":
        h = told((3, table(10, "t", COLUMNS), TEXT), (14, table(10, "v", COLUMNS), "RENAME TABLE t TO v"))
        last = prepared(session, h, {}, *left_over)
    else:
        h, last = (many if kind == "create many" else single)(session, *left_over)
    with pytest.raises(DdlRefused, match=way_out) as caught:
        apply(session, last, h)
    assert "ignore-txn-commit-ts" not in str(caught.value)
    if kind == "create":
        committed(session, "DELETE FROM d.t")
        assert apply(session, last, h).how == "nothing", "an equal one will do while it is empty"


@pytest.mark.parametrize("name", ["t", "u"])
def test_a_standing_table_is_refused_among_many_too(session: Session, name: str) -> None:
    h, create = many(session, f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v VARCHAR(20), old INT)")
    with pytest.raises(DdlRefused, match=f"d.{name}: columns"):
        apply(session, create, h)
    committed(session, f"DROP TABLE d.{name}", EQUAL.format(name), f"INSERT INTO d.{name} VALUES (1, 'stale')")
    with pytest.raises(DdlRefused, match="not empty"):
        apply(session, create, h)
    committed(session, f"DELETE FROM d.{name}")
    assert apply(session, create, h).state == "done"
    assert session.query("SELECT table_name FROM information_schema.tables WHERE table_schema = 'd' ORDER BY 1") == [("t",), ("u",)]


def crash_between(session: Session, create: DdlStep, h: SchemaHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die behind the first table that was made, before the second."""
    made: list[str] = []
    execute = session.execute

    def once(sql: bytes | str, args: object = None) -> int:
        if str(sql).startswith("CREATE TABLE `d`"):
            if made:
                raise Died
            made.append(str(sql))
        return execute(sql, args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(session, "execute", once)
        apply(session, create, h)


@pytest.mark.shows("ddl create tables")
def test_after_a_crash_between_two_of_them_it_goes_on(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    h, create = many(session)
    crash_between(session, create, h, monkeypatch)
    session.execute("ALTER TABLE d.t MODIFY v MEDIUMTEXT")  # as a server that is not strict makes of what it cannot hold
    die(session, create, h, "after-ddl")
    assert apply(session, create, h).how == "found"


def test_a_crash_between_does_not_make_a_standing_table_ours(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    h, create = many(session, EQUAL.format("u"), "INSERT INTO d.u VALUES (1, 'stale')")
    crash_between(session, create, h, monkeypatch)
    with pytest.raises(DdlRefused, match="not empty"):
        apply(session, create, h)


RENAMES = {
    "one": ({10: ("t", "T")}, ""),
    "several": ({10: ("t", "T"), 11: ("u", "U")}, ""),
    "one of several": ({10: ("t", "T"), 11: ("u", "v")}, "RENAME TABLE `d`.`u` TO `d`.`v`"),
    "beside a swap": (
        {10: ("t", "T"), 11: ("u", "v"), 12: ("v", "u")},
        "RENAME TABLE `d`.`u` TO `d`.`x`, `d`.`v` TO `d`.`u`, `d`.`x` TO `d`.`v`",
    ),
}


def test_a_rename_that_changes_only_the_case_of_a_name() -> None:
    """On a server that stores names in lower case the table is called so already. A crash between leaves nothing in doubt either."""
    with PrivateMariaDB(options={"lower-case-table-names": "1"}) as server:
        for case, (names, sql) in RENAMES.items():
            with ddl_session(server.target()) as session:
                made = [
                    job(2 + n, 3, table(i, old), query=f"create table {old} (id int primary key)")
                    for n, (i, (old, _)) in enumerate(names.items())
                ]
                pairs = [(i, old, new) for i, (old, new) in names.items()]
                if case == "beside a swap":
                    pairs = [pairs[0], (11, "u", "x"), (12, "v", "u"), (11, "x", "v")]
                text = "rename table " + ", ".join(f"{old} to {new}" for _, old, new in pairs)
                infos = [table(i, new) for i, _, new in pairs]
                rename = job(9, 14, infos[0], query=text) if len(infos) == 1 else job(9, 47, None, query=text, many=infos)
                h = history(database(1), *made, rename)
                last = prepared(session, h)
                for number, (old, _) in enumerate(names.values()):
                    session.execute(f"INSERT INTO d.{old} VALUES ({number})")
                session.commit()
                die(session, last, h, "before-ddl-done")
                outcome = apply(session, last, h)
                assert (outcome.state, outcome.how) == ("done", "found" if sql else "nothing"), case
                for number, (_, new) in enumerate(names.values()):
                    assert session.query(f"SELECT id FROM d.{new}") == [(number,)], case
