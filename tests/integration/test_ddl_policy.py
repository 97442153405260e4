"""When the target refuses: derived statements, the three policies, filters, and what a crash leaves undecidable."""

import dataclasses
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import by_changes
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome, applied_at, load_applied
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.lease import lock_name
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.ddl_jobs import column, database, history, job, partitions, steps_of, table, told
from tests.support.ddl_target import apply, apply_all, assert_columns, ddl_session, die, prepared
from tests.support.golden_case import ddl_steps, load_case
from tests.support.leases import held

pytestmark = pytest.mark.mysql

CONFIG = ApplyConfig(drainer="policy")
DDL_LOCK = lock_name(DDL, "tidb_binlog", 1)


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target(), CONFIG, ("d", "e", "g_ddl")) as session:
        yield session


def run(session: Session, h: SchemaHistory, config: ApplyConfig = CONFIG, **more: Any) -> list[DdlOutcome]:
    return apply_all(session, steps_of(h), h, dataclasses.replace(config, **more))


def test_no_create_and_no_alter_of_a_golden_case_needs_its_text(session: Session) -> None:
    case = load_case("ddl")
    steps = ddl_steps(case)
    hows = []
    for step in steps:
        subject = subject_of(step, case.history)
        by_infos = by_changes(subject, Dialect(Flavour.MARIADB)) or rewrite(subject, Dialect(Flavour.MARIADB), restored=True).by_infos
        garbled = by_infos and step.job.type != JobType.RENAME_TABLES
        outcome = apply(session, dataclasses.replace(step, query="GARBLED;") if garbled else step, case.history, CONFIG)
        hows.append(f"{outcome.how} of infos" if garbled else outcome.how)
    assert hows.count("text of infos") > 15 and hows.count("changes of infos") > 15
    assert_columns(session, case.history, steps[-1].job.version, case.info["databases"])


RECOVERED = history(
    database(1),
    job(2, 3, table(10, "t"), query="CREATE TABLE `t` (`id` INT PRIMARY KEY);"),
    job(3, 4, table_id=10, table_name="t", query="DROP TABLE `t`;"),
    job(4, 25, table(10, "t"), query="RECOVER TABLE `t`;"),
)


@pytest.mark.shows("spark.ddl-policy")
def test_rows_that_nobody_sends_again_stop_the_stream(session: Session) -> None:
    with pytest.raises(DdlRefused, match=r"commit_ts 40 refused: 'RECOVER TABLE `t`;'.*syncer.ignore-txn-commit-ts = \[40\]"):
        run(session, RECOVERED)
    assert session.query("SELECT state FROM tidb_binlog.spark_ddl ORDER BY job_id")[-1] == ("refused",)
    session.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    assert run(session, RECOVERED)[-1].how == "found", "somebody has made it, with its rows"


@pytest.mark.shows("spark.ddl-policy", "ddl recover table", "syncer.ignore-txn-commit-ts")
@pytest.mark.parametrize(
    ("more", "state", "how"),
    [
        ({"ddl_policy": "skip"}, "skipped", "policy"),
        ({"ddl_policy": "quarantine"}, "quarantined", "policy"),
        ({"ignore_txn_commit_ts": (40,)}, "skipped", "ignored"),
    ],
)
def test_settings_that_go_on_say_so(session: Session, more: dict[str, Any], state: str, how: str) -> None:
    outcome = run(session, RECOVERED, **more)[-1]
    words = f"d.t: DDL {state} at commit_ts 40, so the table is frozen on the target: RECOVER TABLE `t`;"
    assert (outcome.state, outcome.how) == (state, how) and (outcome.losses == (words,) or how == "ignored")


@pytest.mark.shows("syncer.ignore-schemas")
def test_ignored_databases_are_left_alone(session: Session) -> None:
    assert {o.how for o in run(session, RECOVERED, ignore_schemas=("d",))} == {"filtered"}
    assert session.query("SHOW DATABASES LIKE 'd'") == []


@pytest.mark.shows("ddl create tables")
def test_many_tables_take_as_many_queries_as_they_are(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore of TiDB makes hundreds in one job."""
    asked: dict[int, int] = {}
    for many in (4, 16):
        h = history(database(1), job(many, 60, None, many=[table(many * 100 + n, f"t{many}_{n}") for n in range(many)]))
        step = prepared(session, h, config=CONFIG)
        said: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(session, "query", lambda sql, args=None, said=said: said.append(sql) or Session.query(session, sql, args))
            assert apply(session, step, h, CONFIG).how == "text"
        asked[many] = len(said)
        assert all(column_names(session, "d", f"t{many}_{n}") == ("id",) for n in range(many))
    assert asked[16] < 5 * asked[4]


@pytest.mark.mariadb
def test_a_name_that_the_server_cannot_have_is_refused_by_policy(session: Session) -> None:
    h = history(database(1), job(2, 3, table(10, "🔥")))
    assert run(session, h, ddl_policy="skip")[-1].state == "skipped"


def test_an_error_while_marking_leaves_no_mark(session: Session) -> None:
    h = history(database(1))

    def fail(_: object) -> None:
        raise RuntimeError("no checkpoint")

    with pytest.raises(RuntimeError):
        apply_ddl(session, steps_of(h)[0], h, CONFIG, held(session), fail)
    assert session.query("SELECT state FROM tidb_binlog.spark_ddl") == [("intent",)]
    assert apply(session, steps_of(h)[0], h, CONFIG).how == "found"


def test_early_jobs_are_found_again(session: Session) -> None:
    h = told((3, table(10, "t"), "CREATE TABLE `t` (`id` INT PRIMARY KEY);"))
    early = dataclasses.replace(prepared(session, h, config=CONFIG), early=True, query="create table t (id int primary key)")
    apply(session, early, h, CONFIG)
    assert load_applied(session, CONFIG, 1, 1) == AppliedJobs(1, frozenset({2}))
    assert load_applied(session, CONFIG, 1, 2) == AppliedJobs(2)


def test_a_multi_schema_change_behind_the_checkpoint_is_looked_up(session: Session) -> None:
    """Its binlog follows that of a higher version; whether it was executed is told by its record, before and after its binlog."""
    columns = [column(1, "id"), column(2, "x"), column(3, "y")]
    two = {"sub_jobs": [{"type": 5}, {"type": 5}]}
    multi = job(5, 61, table(10, "t", columns), version=10, query="alter table t add column x int, add column y int", multi_schema_info=two)
    h = history(database(1), job(2, 3, table(10, "t")), multi, job(6, 3, table(12, "o"), version=11, query="create table o (id int)"))
    steps = steps_of(h)
    apply_all(session, (step for step in steps if step.job.id != 5), h, CONFIG)
    assert applied_at(session, CONFIG, 1, (45, 11), h) == AppliedJobs(11, behind=frozenset({5}))
    apply(session, dataclasses.replace(steps[2], early=True), h, CONFIG)
    assert applied_at(session, CONFIG, 1, (45, 11), h) == AppliedJobs(11, frozenset({5}))
    assert applied_at(session, CONFIG, 1, (50, 11), h) == AppliedJobs(11), "its binlog is read"


def poor_account(session: Session, server: PrivateMariaDB) -> TargetConfig:
    """An account that may do everything but look at the server's tables of ids."""
    for host in ("'%'", "localhost"):
        session.execute(f"DROP USER IF EXISTS poor@{host}")
        session.execute(f"CREATE USER poor@{host} IDENTIFIED BY 'x'")
        session.execute(f"GRANT ALL ON d.* TO poor@{host}")
        session.execute(f"GRANT ALL ON tidb_binlog.* TO poor@{host}")
    return dataclasses.replace(server.target(), user="poor", password="x")


PARTED = "CREATE TABLE `p` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (9));"


def exchange_of(*more: tuple[int, dict[str, Any], str], columns: Iterable[dict[str, Any]] = ()) -> SchemaHistory:
    """Two tables, what becomes of them, and the exchange of one with the other's partition."""
    made = (3, table(10, "t"), "CREATE TABLE `t` (`id` INT PRIMARY KEY);"), (3, table(20, "p", partition=partitions((21, "p0"))), PARTED)
    return told(*made, *more, (42, table(20, "p", columns, partition=partitions((10, "p0"))), "x"), table_id=10)


def test_an_exchange_that_needs_a_rebuild_says_what_it_lacks(mariadb: PrivateMariaDB, session: Session) -> None:
    """MySQL, after a column came to the table without its rows being rewritten: which tables that is true of is shown with PROCESS only."""
    wide = [column(1, "id"), column(2, "n")]
    h = exchange_of(
        (5, table(10, "t", wide), "ALTER TABLE `t` ADD COLUMN `n` INT;"),
        (5, table(20, "p", wide, partition=partitions((21, "p0"))), "ALTER TABLE `p` ADD COLUMN `n` INT;"),
        columns=wide,
    )
    target = poor_account(session, mariadb)
    exchange = prepared(session, h, {}, "INSERT INTO d.t VALUES (1, 2)", config=CONFIG)
    if session.flavour is Flavour.MYSQL:
        with (
            connect(target, CONFIG) as poor,
            pytest.raises(DdlRefused, match="error 1731.*Grant PROCESS to the target's user, and start again"),
        ):
            apply(poor, exchange, h, CONFIG)
        session.execute("GRANT PROCESS ON *.* TO poor@localhost")
    with connect(target, CONFIG) as poor:
        assert apply(poor, exchange, h, CONFIG).how == "text"
    assert session.query("SELECT * FROM d.p") == [(1, 2)]


def test_without_table_ids_an_invisible_ddl_stops_after_a_crash(mariadb: PrivateMariaDB, session: Session) -> None:
    target, h = poor_account(session, mariadb), exchange_of()
    exchange = prepared(session, h, config=CONFIG)
    with connect(target, CONFIG) as poor:
        die(poor, exchange, h, "after-ddl", CONFIG)
    with connect(target, CONFIG) as poor, pytest.raises(ApplyError, match="Grant PROCESS"):
        apply(poor, exchange, h, CONFIG)


@pytest.mark.parametrize("third", ["b", "old"])
@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_without_table_ids_a_swap_is_made_once(mariadb: PrivateMariaDB, session: Session, point: str, third: str) -> None:
    """Only ids say which of two tables has which name; a name that is new says it, too."""
    many = [table(10, "x"), table(11, "a"), table(10, third)]
    query = f"RENAME TABLE `a` TO `x`, `b` TO `a`, `x` TO `{third}`"
    h = history(database(1), job(2, 3, table(10, "a")), job(3, 3, table(11, "b")), job(4, 47, many[-1], many=many, query=query))
    swap = prepared(session, h, {}, "INSERT INTO d.a VALUES (1)", config=CONFIG)
    target = poor_account(session, mariadb)
    with connect(target, CONFIG) as poor:
        die(poor, swap, h, point, CONFIG)
    with connect(target, CONFIG) as poor:
        if third == "old":
            assert apply(poor, swap, h, CONFIG).how == ("found" if point == "after-ddl" else "text")
        else:
            with pytest.raises(ApplyError, match="Grant PROCESS"):
                apply(poor, swap, h, CONFIG)
    swapped = point == "after-ddl" or third == "old"
    assert session.query(f"SELECT id FROM d.{third if swapped else 'a'}") == [(1,)]


def test_a_successor_waits_for_a_statement_still_running(mariadb: PrivateMariaDB, session: Session) -> None:
    h = history(database(1))
    order: list[str] = []
    with connect(mariadb.target(), CONFIG) as other:
        other.query("SELECT GET_LOCK(%s, 0)", [DDL_LOCK])
        waiting = threading.Thread(
            target=lambda: apply_ddl(session, steps_of(h)[0], h, CONFIG, held(session), lambda _: order.append("ddl"))
        )
        waiting.start()
        waiting.join(0.3)
        order.append("released")
        other.query("SELECT RELEASE_LOCK(%s)", [DDL_LOCK])
        waiting.join()
    assert order == ["released", "ddl"]
