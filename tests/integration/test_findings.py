"""What differs on a real target is found, named by its row, and recorded or refused; what is harmless is not."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError, ServerRefused
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnType
from pyspark_tidb_binlog.sinks.mysql.checked import CLOSER_ROWS, checked
from pyspark_tidb_binlog.sinks.mysql.effects import StatementResult
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.attempts import run_transaction
from tests.support.plan_samples import INT_PK, TABLE_ID, Events, column, index, plan_rows, table, text
from tests.support.target_rows import refusing

pytestmark = pytest.mark.mysql

RECORD = ApplyConfig(log_row_data=True)
STOP = ApplyConfig(on_finding="stop")
PAIR = table([column("id", flag=INT_PK), column("u"), text("v")], [index("uu", ("u", -1))], handle="int")
KEYLESS = table([column("a"), text("b")])
LIMITS = PlanLimits()
PAIR_SQL = "CREATE TABLE d.t (id bigint primary key, u bigint, v {type}, UNIQUE KEY uu (u)) ENGINE=InnoDB"


@pytest.fixture(params=["savepoints", "none"], autouse=True)
def savepoints(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TiDB has none: there the transaction is run again."""
    if request.param == "none":
        monkeypatch.setattr(Session, "has_savepoints", False)


@pytest.fixture
def target(mariadb: PrivateMariaDB) -> Iterator[TargetConfig]:
    with connect(mariadb.target(), RECORD) as session:
        session.execute("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        yield mariadb.target()
        session.execute("DROP DATABASE d")


def sql(target: TargetConfig, *statements: str) -> list[tuple[object, ...]]:
    """Run by hand; the last one's rows."""
    with connect(target, RECORD) as session:
        for statement in statements[:-1]:
            session.execute(statement)
        session.commit()
        return session.query(statements[-1])


def apply(
    target: TargetConfig, events: Events, at: TableAt = PAIR, config: ApplyConfig = RECORD, limits: PlanLimits = LIMITS
) -> tuple[Finding, ...]:
    """One transaction as the driver and the executors run it; the transactions seen say how often it was run."""
    plan = plan_rows(events.table(), {TABLE_ID: at}, limits)

    def work(session: Session) -> tuple[Finding, ...]:
        for effects in checked(session, config):
            effects.run(plan.deletes)
            effects.run(plan.writes)
        return tuple(effects.findings)

    return run_transaction(lambda: connect(target, config), work, RetryPolicy(retries=0))


def facts(findings: tuple[Finding, ...]) -> list[tuple[str, str, int, int, int]]:
    return [(f.kind, f.key, f.commit_ts, f.wanted, f.found) for f in findings]


def test_what_is_as_the_binlogs_say_is_no_finding(target: TargetConfig) -> None:
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'b'),(3,3,'same'),(4,4,'x')", "SELECT 1")
    events = Events(PAIR).update((1, 1, "a"), (1, 1, "A")).update((2, 2, "b"), (2, 20, "b")).update((3, 3, "same"), (3, 3, "same"))
    events.delete(4, 4, "x").insert(5, 2, "new")
    assert apply(target, events, config=STOP) == ()
    assert sql(target, "SELECT * FROM d.t ORDER BY id") == [(1, 1, "A"), (2, 20, "b"), (3, 3, "same"), (5, 2, "new")]


def test_rows_that_are_missing_are_named_one_by_one(target: TargetConfig) -> None:
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (1,1,'a'),(3,3,'c'),(5,5,'same')", "SELECT 1")
    events = Events(PAIR).delete(1, 1, "a").delete(2, 2, "b")
    events.update((3, 3, "c"), (3, 3, "C")).update((4, 4, "d"), (4, 4, "D")).update((5, 5, "same"), (5, 5, "same"))
    assert facts(apply(target, events)) == [("rows", "id=2", 1002, 1, 0), ("rows", "id=4", 1004, 1, 0)]
    assert sql(target, "SELECT * FROM d.t ORDER BY id") == [(3, 3, "C"), (4, 4, "D"), (5, 5, "same")]


DEFAULTED = table([column("id", flag=INT_PK), column("n")], handle="int")


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("closer_rows", [0, CLOSER_ROWS])
def test_a_row_that_stays_as_it_is_was_not_missing(
    target: TargetConfig, rows: int, closer_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB counts such a row as added when it has NULL in a column that has a default."""
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.checked.CLOSER_ROWS", closer_rows)
    created = "CREATE TABLE d.t (id bigint primary key, n bigint DEFAULT 7) ENGINE=InnoDB"
    sql(target, created, "INSERT INTO d.t (id, n) VALUES " + ",".join(f"({number},NULL)" for number in range(1, rows + 1)), "SELECT 1")
    events = Events(DEFAULTED)
    for number in range(1, rows + 1):
        events.update((number, None), (number, None))
    assert apply(target, events, DEFAULTED, STOP) == ()
    events.update((99, 5), (99, None))
    (found,) = apply(target, events, DEFAULTED)
    named = f"id=1 and {rows} more" if closer_rows == 0 else "id=99"
    assert (found.key, found.wanted - found.found) == (named, 1)
    assert sql(target, "SELECT COUNT(*) FROM d.t WHERE n IS NULL") == [(rows + 1,)]


@pytest.mark.parametrize("there", ["(2,2,'b')", "(2,7,'other')", "(9,2,'other')", "(2,7,'other'),(9,2,'other')"])
def test_a_row_that_stands_where_one_is_added_is_found_and_gives_way(target: TargetConfig, there: str) -> None:
    sql(target, PAIR_SQL.format(type="varchar(20)"), f"INSERT INTO d.t VALUES {there}", "SELECT 1")
    findings = apply(target, Events(PAIR).insert(1, 1, "a").insert(2, 2, "b"))
    assert facts(findings) == [("rows", "id=2", 1002, 1, 0)]
    assert "Duplicate entry '2' for key" in findings[0].words
    assert sql(target, "SELECT * FROM d.t ORDER BY id") == [(1, 1, "a"), (2, 2, "b")]


def test_a_changed_row_that_meets_another_ones_key_is_found_and_written(target: TargetConfig) -> None:
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (1,7,'drifted'),(9,1,'other')", "SELECT 1")
    assert facts(apply(target, Events(PAIR).update((1, 1, "a"), (1, 1, "b")))) == [("rows", "id=1", 1001, 1, 0)]
    assert sql(target, "SELECT * FROM d.t ORDER BY id") == [(1, 1, "b")]


def test_equal_rows_without_a_key_are_counted(target: TargetConfig) -> None:
    sql(target, "CREATE TABLE d.t (a bigint, b varchar(100)) ENGINE=InnoDB", "INSERT INTO d.t VALUES (1,'x'),(2,'y')", "SELECT 1")
    findings = apply(target, Events(KEYLESS).delete(1, "x", rowid=1).delete(1, "x", rowid=2).delete(2, "y", rowid=3), KEYLESS)
    assert [(f.wanted, f.found, f.commit_ts) for f in findings] == [(2, 1, 1002)]
    assert "`a` <=> 1" in findings[0].key


@pytest.mark.parametrize(
    ("type_", "value", "errno"),
    [
        ("varchar(20) CHARACTER SET latin1", "日本", 1366),
        ("varchar(20) CHARACTER SET utf8mb3", "😀", 1366),
        ("varchar(3)", "too long", 1265),
        ("tinyint", "300", 1264),
        ("int", "abc", 1366),
        ("datetime", "not a time", 1265),
    ],
)
@pytest.mark.parametrize("how", ["inserted", "changed", "changed, but missing", "inserted, but there"])
def test_a_value_that_was_changed_by_the_target_is_found(target: TargetConfig, type_: str, value: str, errno: int, how: str) -> None:
    there = {"changed, but missing": "(1,1,NULL)", "inserted, but there": "(12,3,NULL),(4,12,NULL)"}.get(how, "(1,1,NULL),(2,2,NULL)")
    sql(target, PAIR_SQL.format(type=type_), f"INSERT INTO d.t VALUES {there}", "SELECT 1")
    fits = "2026-01-01" if type_ == "datetime" else "5"
    change = how.startswith("changed")
    if change:
        events = Events(PAIR).update((1, 1, None), (1, 1, fits)).update((2, 2, None), (2, 2, value))
    else:
        events = Events(PAIR).insert(11, 11, None).insert(12, 12, value)
    findings = apply(target, events)
    assert [(f.kind, f.key, f.commit_ts) for f in findings if f"warning {errno}" in f.words] == [
        (FindingKind.VALUE, "id=2" if change else "id=12", 1002)
    ]


@pytest.mark.shows("known wrong: ENUM 0")
def test_harmless_warnings_are_none(target: TargetConfig) -> None:
    at = table([column("id", flag=INT_PK), column("e", ColumnType.ENUM, charset="utf8mb4"), column("d", ColumnType.DATE)], handle="int")
    sql(target, "CREATE TABLE d.t (id bigint primary key, e enum('a','b'), d date) ENGINE=InnoDB", "SELECT 1")
    events = Events(at)
    for i in range(200):
        events.insert(i, i % 3, "0000-00-00" if i % 2 else "2026-00-00")
    assert apply(target, events, at, STOP) == ()
    assert sql(target, "SELECT e+0, COUNT(*), MAX(d = '0000-00-00') FROM d.t GROUP BY 1") == [(0, 67, 1), (1, 67, 1), (2, 66, 1)]
    unknown = Events(at).insert(1000, 0, "2026-01-01").insert(1001, 3, "2026-01-01")
    assert [(f.kind, f.key) for f in apply(target, unknown, at)] == [(FindingKind.VALUE, "id=1001")]


@pytest.mark.shows("spark.on-finding")
def test_stop_commits_nothing_and_says_what_to_do_without_row_data(target: TargetConfig) -> None:
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (1,1,'a')", "SELECT 1")
    events = Events(PAIR).update((1, 1, "a"), (1, 1, "A")).delete(4711, 2, "b")
    with pytest.raises(FindingError, match=r"rows `d`\.`t`, commit_ts 1002 .*1 rows expected, 0 found.*on-finding = record") as caught:
        apply(target, events, config=STOP)
    assert "4711" not in str(caught.value)
    assert sql(target, "SELECT * FROM d.t") == [(1, 1, "a")]


def test_a_refused_row_is_named_with_what_can_be_done(target: TargetConfig) -> None:
    """The server takes no part of the row; the statement of three rows does not say which it was."""
    sql(target, PAIR_SQL.format(type="varchar(20)"), *refusing("d.t", "NEW.v = 'secret'"), "SELECT 1")
    events = Events(PAIR).insert(1, 1, "a").insert(2, 2, "secret").insert(3, 3, "c")
    with pytest.raises(
        ApplyError, match=r"`d`\.`t`, key …, commit_ts 1002 .*schema version 40.*1644.*ignore-txn-commit-ts = \[1002\]"
    ) as caught:
        apply(target, events, config=STOP)
    assert "secret" not in str(caught.value)
    with pytest.raises(ApplyError, match=r"key id=2, commit_ts 1002"):
        apply(target, events)
    assert sql(target, "SELECT * FROM d.t") == []


def test_a_row_above_the_servers_packet_is_refused_at_once(target: TargetConfig) -> None:
    sql(target, PAIR_SQL.format(type="longtext"), "SELECT 1")
    ((most,),) = sql(target, "SELECT @@max_allowed_packet")
    assert isinstance(most, int)
    events = Events(PAIR).insert(1, 1, "a").insert(2, 2, "x" * most)
    beyond = rf"{f'{most:,}'[:-3]}\d+ bytes, but the target's max_allowed_packet is {most:,}"
    with pytest.raises(ApplyError, match=rf"`d`\.`t`, key id=2, commit_ts 1002 .*{beyond}"):
        apply(target, events)
    with pytest.raises(ApplyError, match="key …, commit_ts 1002") as caught:
        apply(target, events, config=STOP)
    assert caught.value.errno == 1153


@pytest.mark.shows("spark.log-row-data")
def test_errors_and_their_traces_hold_no_row_data(target: TargetConfig) -> None:
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (4711,1,'a')", "SELECT 1")
    with connect(target, STOP) as session, pytest.raises(ApplyError) as caught:
        session.execute(b"INSERT INTO d.t VALUES (%d,2,'%s')" % (4700 + 11, b"sec" + b"ret"))
    shown = "".join(traceback.format_exception(caught.value))
    assert "4711" not in shown
    assert "secret" not in shown
    assert "INSERT INTO d.t VALUES …" in str(caught.value)
    assert caught.value.words in ("Duplicate entry '4711' for key 'PRIMARY'", "Duplicate entry '4711' for key 't.PRIMARY'")


@pytest.mark.parametrize("closer_rows", [0, CLOSER_ROWS])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_error_that_ends_the_transaction_commits_no_half_of_it(
    target: TargetConfig, monkeypatch: pytest.MonkeyPatch, at: int, closer_rows: int
) -> None:
    """A server with a full lock table does that: what comes after it is a transaction of its own. The second statement is doubtful."""
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (1,1,'a'),(2,2,'b')", "SELECT 1")
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.checked.CLOSER_ROWS", closer_rows)
    answer, sent = Session.answer, list[bytes]()

    def ended(session: Session, statement: bytes, meanwhile: Callable[[], None] | None = None) -> StatementResult:
        sent.append(statement)
        if len(sent) == at:
            session.rollback()
            raise ServerRefused("error 1206, The total number of locks exceeds the lock table size", 1206)
        return answer(session, statement, meanwhile)

    monkeypatch.setattr(Session, "answer", ended)
    events = Events(PAIR).delete(1, 1, "a").delete(2, 2, "b").delete(3, 3, "c").delete(4, 4, "d").insert(5, 5, "e").insert(6, 6, "f")
    try:
        apply(target, events, limits=PlanLimits(max_rows=2, max_keys=2))
    except ApplyError as error:
        assert error.errno == 1206
        assert sql(target, "SELECT id FROM d.t ORDER BY id") == [(1,), (2,)]
    else:
        assert sql(target, "SELECT id FROM d.t ORDER BY id") == [(5,), (6,)]


def test_a_server_that_takes_no_statement_back_has_the_transaction_again(target: TargetConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """MyRocks refuses ROLLBACK TO SAVEPOINT behind changes."""
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (1,1,'a')", "SELECT 1")
    execute = Session.execute

    def refusing(session: Session, statement: str | bytes, args: Sequence[object] | None = None) -> int:
        if str(statement).startswith("ROLLBACK TO"):
            raise ServerRefused("error 4061, MyRocks currently does not support ROLLBACK TO SAVEPOINT if modifying rows", 4061)
        return execute(session, statement, args)

    monkeypatch.setattr(Session, "execute", refusing)
    events = Events(PAIR).delete(1, 1, "a").delete(2, 2, "b").insert(3, 3, "c").insert(4, 4, "d")
    assert [finding.key for finding in apply(target, events)] == ["id=2"]
    assert sql(target, "SELECT id FROM d.t ORDER BY id") == [(3,), (4,)]


def test_many_doubts_are_looked_at_up_to_a_bound(target: TargetConfig) -> None:
    """Beyond it a finding names its statement: a target that differs in everything must not be asked row by row for ever."""
    sql(target, PAIR_SQL.format(type="varchar(20)"), "SELECT 1")
    events = Events(PAIR)
    for i in range(CLOSER_ROWS + 3000):
        events.delete(i, i, None)
    findings = apply(target, events)
    assert sum(f.wanted for f in findings) == CLOSER_ROWS + 3000
    assert sum(f.found for f in findings) == 0
    assert len(findings) == CLOSER_ROWS + 3


def test_an_error_that_may_pass_is_no_finding(target: TargetConfig) -> None:
    sql(target, PAIR_SQL.format(type="varchar(20)"), "INSERT INTO d.t VALUES (1,1,'a')", "SELECT 1")
    short = dataclasses.replace(target, params=(("innodb_lock_wait_timeout", "1"),))
    with connect(target, RECORD) as other:
        other.query("SELECT * FROM d.t WHERE id = 1 FOR UPDATE")
        with pytest.raises(ApplyError) as caught:
            apply(short, Events(PAIR).update((1, 1, "a"), (1, 1, "b")).update((1, 1, "b"), (1, 1, "c")))
    assert caught.value.errno == 1205


@pytest.mark.parametrize("most", [1, 2, 3, 2000])
def test_rows_of_several_statements_that_meet_each_other_are_found(target: TargetConfig, most: int) -> None:
    """The target has a key that the upstream has no more; what one statement writes row by row is in the way of the next."""
    sql(
        target,
        "CREATE TABLE d.t (id bigint primary key, v bigint, UNIQUE KEY u (v)) ENGINE=InnoDB",
        "INSERT INTO d.t VALUES (1,10)",
        "SELECT 1",
    )
    at = table([column("id", flag=INT_PK), column("v")], handle="int")
    events = Events(at).update((1, 10), (1, 50))
    for i, v in enumerate((50, 51, 51, 52, 52, 53, 54, 54)):
        events.insert(100 + i, v)
    findings = apply(target, events, at, limits=PlanLimits(max_rows=most))
    assert {f.kind for f in findings} == {FindingKind.ROWS}
    assert sql(target, "SELECT v, MAX(id) FROM d.t GROUP BY v ORDER BY v") == [(50, 100), (51, 102), (52, 104), (53, 105), (54, 107)]


@pytest.mark.parametrize("unique", [True, False])
def test_a_row_that_the_target_could_not_hold_can_be_removed_again(target: TargetConfig, unique: bool) -> None:
    key = "UNIQUE KEY u (v)" if unique else "KEY u (v)"
    sql(target, f"CREATE TABLE d.t (v varchar(100) CHARACTER SET latin1 NOT NULL, a bigint, {key}) ENGINE=InnoDB", "SELECT 1")
    at = table([text("v", int(ColumnFlag.NOT_NULL)), column("a")], [index("u", ("v", -1), unique=unique)])
    assert len(apply(target, Events(at).insert("日本", 1, rowid=1).insert("ok", 2, rowid=2), at)) == 1
    (found,) = apply(target, Events(at, 2000).delete("日本", 1, rowid=1).delete("ok", 2, rowid=2), at)
    assert (found.kind, found.found, found.commit_ts) == (FindingKind.ROWS, 0, 2001)
    assert sql(target, "SELECT v FROM d.t") == [("??",)]


@pytest.mark.parametrize("key", ["", ", UNIQUE KEY u (v)", ", KEY u (v)"])
def test_the_last_of_64_members_of_a_set(target: TargetConfig, key: str) -> None:
    members = tuple(f"m{i}" for i in range(64))
    sql(target, f"CREATE TABLE d.t (v SET{members} NOT NULL, a bigint{key}) ENGINE=InnoDB", "SELECT 1")
    v = dataclasses.replace(column("v", ColumnType.SET, int(ColumnFlag.NOT_NULL), 20, 0, "utf8mb4"), elems=members)
    at = table([v, column("a")], [index("u", ("v", -1), unique="UNIQUE" in key)] if key else [])
    last, first_and_last, first = 1 << 63, (1 << 63) + 1, 1
    events = Events(at).insert(last, 1, rowid=1).insert(first_and_last, 2, rowid=2).insert(first, 3, rowid=3)
    assert apply(target, events, at, STOP) == ()
    events = (
        Events(at, 2000).update((last, 1), (last, 9), rowid=1).delete(first_and_last, 2, rowid=2).update((first, 3), (last + 2, 3), rowid=3)
    )
    assert apply(target, events, at, STOP) == ()
    assert sql(target, "SELECT v, a FROM d.t ORDER BY a") == [("m1,m63", 3), ("m63", 9)]


def test_values_of_a_generated_key_change_places(target: TargetConfig) -> None:
    """No image holds them."""
    sql(
        target,
        "CREATE TABLE d.t (id bigint primary key, a bigint, g bigint AS (a % 10) STORED, UNIQUE KEY u (g)) ENGINE=InnoDB",
        "INSERT INTO d.t (id, a) VALUES (1,1),(2,2),(3,3)",
        "SELECT 1",
    )
    g = dataclasses.replace(column("g"), generated_expr="`a` % 10", generated_stored=True)
    at = table([column("id", flag=INT_PK), column("a"), g], [index("u", ("g", -1))], handle="int")
    events = Events(at).update((1, 1, 1), (1, 4, 4)).update((2, 2, 2), (2, 1, 1)).update((1, 4, 4), (1, 2, 2)).update((3, 3, 3), (3, 13, 3))
    assert apply(target, events, at, STOP) == ()
    assert sql(target, "SELECT * FROM d.t ORDER BY id") == [(1, 2, 2), (2, 1, 1), (3, 13, 3)]
