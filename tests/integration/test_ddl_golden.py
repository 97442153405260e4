"""Every DDL of the golden cases on a real MariaDB, and a crash at every point of every DDL of ``ddl`` and of the swaps."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table, remarkable
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import lacks
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, dialect_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import read_after, take_snapshot
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.verify.definition import Standard, unlike
from tests.support.ddl_jobs import database, history, job, partitions, steps_of, table
from tests.support.ddl_target import Died, assert_columns, committed, deadly, losses
from tests.support.golden_case import ddl_steps, load_case
from tests.support.leases import held
from tests.support.shown_tables import as_tidb_shows

pytestmark = pytest.mark.mysql

SEQUENCES = (JobType.CREATE_SEQUENCE, JobType.ALTER_SEQUENCE, JobType.DROP_SEQUENCE)
CASES = ("ddl", "beyond_mysql", "online", "types", "keys", "txn", "bank")


class Counting:
    """A session that remembers what it executed."""

    def __init__(self, session: Session, log: list[str]) -> None:
        self.session, self.log = session, log
        self.flavour = session.flavour

    def execute(self, sql: Any, args: Any = None) -> int:
        self.log.append(sql)
        return self.session.execute(sql, args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


@pytest.fixture
def config(mariadb: PrivateMariaDB) -> Iterator[ApplyConfig]:
    config = ApplyConfig(drainer="d")
    with connect(mariadb.target(), config) as session:
        # Tests of other files replicate the same cases into this server.
        drop_all(session)
        ensure_ddl_table(session, config)
    yield config
    with connect(mariadb.target(), config) as session:
        drop_all(session)


def drop_all(session: Session) -> None:
    for (name,) in session.query("SHOW DATABASES"):
        if name not in ("mysql", "sys", "information_schema", "performance_schema"):
            session.execute(f"DROP DATABASE `{name.replace('`', '``')}`")


@pytest.mark.shows(
    "ddl create schema",
    "ddl drop schema",
    "ddl create table",
    "ddl drop table",
    "ddl add column",
    "ddl drop column",
    "ddl add index",
    "ddl drop index",
    "ddl truncate table",
    "ddl modify column",
    "ddl rename table",
    "ddl rename index",
    "ddl add partition",
    "ddl drop partition",
    "ddl create view",
    "ddl drop view",
    "ddl multi schema change",
)
@pytest.mark.parametrize("name", CASES)
def test_every_ddl_of_the_case_is_taken(name: str, mariadb: PrivateMariaDB, config: ApplyConfig) -> None:
    case = load_case(name)
    steps = ddl_steps(case)
    done: list[int] = []
    with connect(mariadb.target(), config) as session:
        for step in steps:
            outcome = apply_ddl(session, step, case.history, config, held(session), lambda _, ts=step.commit_ts: done.append(ts))
            needless = session.flavour is Flavour.MYSQL and step.job.type in SEQUENCES
            assert (outcome.state, outcome.how) in ([("done", "nothing")] if needless else [("done", "text"), ("done", "changes")])
        assert done == [s.commit_ts for s in steps]
        assert_columns(session, case.history, steps[-1].job.version, case.info["databases"])
        assert_nothing_lacks(session, case.history, steps[-1], case.info["databases"])
        assert_definitions_are_equal(session, case.history, steps[-1], case.info["databases"], config)


def assert_definitions_are_equal(
    session: Session, history: SchemaHistory, last: DdlStep, databases: list[str], config: ApplyConfig
) -> None:
    """``verify`` names no difference of a definition that no record explains."""
    standard = Standard(config, dialect_of(session, config), Flavour.TIDB, remarkable(session, config.checkpoint_schema))
    compared = 0
    for at in (t for schema in databases for t in history.tables_in(schema, last.job.version)):
        if not at.info.is_view and not at.info.is_sequence:
            (there,) = read_tables(session, [(at.schema, at.name)]).values()
            assert [one for one in unlike(as_tidb_shows(at), there, (), standard) if not one.by_intent] == []
            compared += 1
    assert compared


def assert_nothing_lacks(session: Session, history: SchemaHistory, last: DdlStep, databases: list[str]) -> None:
    """Every table is as the infos say, in every type and key; and another type is seen."""
    subject = subject_of(last, history)
    for schema in databases:
        tables = history.tables_in(schema, last.job.version)
        held_there = tuple(t for t in tables if session.flavour is not Flavour.MYSQL or not t.info.is_sequence)
        there = read_after(session, held_there)
        assert not lacks(dataclasses.replace(subject, before=(), after=held_there), Dialect(session.flavour), there)
        for at in (t for t in tables if not t.info.is_view and not t.info.is_sequence):
            for column in (c for c in at.info.public_columns() if not c.hidden):
                other = dataclasses.replace(column, tp=ColumnType.BIT if column.tp != ColumnType.BIT else ColumnType.DATE, flen=3)
                info = dataclasses.replace(at.info, columns=tuple(other if c is column else c for c in at.info.columns))
                changed = dataclasses.replace(subject, before=(), after=(dataclasses.replace(at, info=info),))
                assert lacks(changed, Dialect(session.flavour), there)


@pytest.mark.shows("known wrong: expression index")
def test_what_the_target_cannot_hold_is_named(mariadb: PrivateMariaDB, config: ApplyConfig) -> None:
    case = load_case("beyond_mysql")
    with connect(mariadb.target(), config) as session:
        for step in ddl_steps(case):
            apply_ddl(session, step, case.history, config, held(session), lambda _: None)
        of_the_server = {
            Flavour.MARIADB: ["g_beyond.expr_idx: expression index ue left out"],
            Flavour.MYSQL: [
                "g_beyond.sq: sequence left out, because MySQL has none",
                "g_beyond.useq: column v: default from a sequence left out",
            ],
        }
        assert losses(session, config) == [
            *of_the_server[session.flavour],
            "g_beyond.auto_r: AUTO_RANDOM left out",
            "g_beyond.shard: SHARD_ROW_ID_BITS left out",
            "g_beyond.ttl: TTL left out",
            "g_beyond.gtmp: temporary table created as an ordinary table, which stays empty",
        ]


def crash_through(mariadb: PrivateMariaDB, config: ApplyConfig, step: DdlStep, history: SchemaHistory) -> list[str]:
    """Die once at each point, then finish; what was executed in all."""
    log: list[str] = []
    checkpoints: list[int] = []
    for point in ("after-ddl-intent", "after-ddl", "before-ddl-done", ""):
        with connect(mariadb.target(), config) as session, deadly(point), contextlib.suppress(Died):
            apply_ddl(Counting(session, log), step, history, config, held(session), lambda _: checkpoints.append(1))
    assert checkpoints
    return [sql for sql in log if sql.split()[0] in ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE")]


def executed_once(executed: list[str]) -> None:
    """A TRUNCATE may be executed again, because no rows were written since."""
    assert len(executed) == 1 or (len(set(executed)) == 1 and "TRUNCATE" in executed[0]), executed


@pytest.mark.shows("ddl gotcha 10")
def test_a_crash_at_each_point_of_each_ddl_executes_it_once(mariadb: PrivateMariaDB, config: ApplyConfig) -> None:
    case = load_case("ddl")
    steps = ddl_steps(case)
    for step in steps:
        executed_once(crash_through(mariadb, config, step, case.history))
    with connect(mariadb.target(), config) as session:
        assert_columns(session, case.history, steps[-1].job.version, case.info["databases"])
        states = session.query("SELECT DISTINCT state FROM tidb_binlog.spark_ddl")
    assert states == [("done",)]


def test_a_crash_at_each_point_of_refused_definitions_changes_nothing(mariadb: PrivateMariaDB, config: ApplyConfig) -> None:
    """The DDLs of public bug reports, each taken in some form."""
    case, found = load_case("reports"), []
    for crashes in (False, True):
        for step in ddl_steps(case):
            if crashes:
                crash_through(mariadb, config, step, case.history)
            else:
                with connect(mariadb.target(), config) as session:
                    assert apply_ddl(session, step, case.history, config, held(session), lambda _: None).state == "done"
        with connect(mariadb.target(), config) as session:
            databases = case.info["databases"]
            sql = f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ({', '.join(['%s'] * len(databases))})"
            names = [tuple(map(str, row)) for row in session.query(f"{sql} ORDER BY 1, 2", databases)]
            found.append(take_snapshot(session, databases, names).objects | {"losses": losses(session, config)})
            drop_all(session)
            ensure_ddl_table(session, config)
    shown = [{name: one if name == "losses" else one.create for name, one in objects.items()} for objects in found]
    assert len(shown[0]) > 50 and shown[0] == shown[1]


def swap_history() -> SchemaHistory:
    def parted(*pairs: tuple[int, str]) -> dict[str, Any]:
        return table(30, "p", partition=partitions(*pairs))

    moved = table(11, "b")
    ranges = "PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (100), PARTITION `p1` VALUES LESS THAN (200))"
    ddls: list[tuple[int, str, dict[str, Any], dict[str, Any]]] = [
        (3, "CREATE TABLE `a` (`id` INT PRIMARY KEY)", table(11, "a"), {}),
        (3, "CREATE TABLE `b` (`id` INT PRIMARY KEY)", table(12, "b"), {}),
        (47, "RENAME TABLE `a` TO `x`, `b` TO `a`, `x` TO `b`", moved, {"many": [table(11, "x"), table(12, "a"), moved]}),
        (3, f"CREATE TABLE `p` (`id` INT PRIMARY KEY) {ranges}", parted((31, "p0"), (32, "p1")), {}),
        (42, "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `b`", parted((11, "p0"), (32, "p1")), {"table_id": 11}),
        (23, "ALTER TABLE `p` TRUNCATE PARTITION `p0`", parted((33, "p0"), (32, "p1")), {}),
        (11, "TRUNCATE TABLE `a`", table(13, "a"), {"table_id": 12}),
        (20, "ALTER TABLE `p` DROP PARTITION `p1`", parted((33, "p0")), {}),
    ]
    jobs = (job(n, kind, info, query=text, schema_name="swap", **more) for n, (kind, text, info, more) in enumerate(ddls, 2))
    return history(database(1, "swap"), *jobs)


@pytest.mark.shows(
    "ddl truncate table",
    "ddl exchange partition",
    "ddl rename tables",
    "ddl gotcha 8",
    "known wrong: RENAME TABLES",
    "known wrong: EXCHANGE PARTITION",
)
def test_swaps_exchanges_and_truncations_move_rows_once(mariadb: PrivateMariaDB, config: ApplyConfig) -> None:
    h, seen = swap_history(), []
    rows = {3: ("INSERT INTO swap.a VALUES (1)", "INSERT INTO swap.b VALUES (2)"), 5: ("INSERT INTO swap.p VALUES (50), (150)",)}
    with connect(mariadb.target(), config) as session:
        for step in steps_of(h):
            executed_once(crash_through(mariadb, config, step, h))
            committed(session, *rows.get(step.job.id, ()))
            if step.job.id >= 4:
                names = ("a", "b") if step.job.id == 4 else ("a", "b", "p")
                seen.append({n: [i for (i,) in session.query(f"SELECT id FROM swap.{n} ORDER BY id")] for n in names})
            session.commit()
    assert seen == [
        {"a": [2], "b": [1]},
        {"a": [2], "b": [1], "p": [50, 150]},
        {"a": [2], "b": [50], "p": [1, 150]},
        {"a": [2], "b": [50], "p": [150]},
        {"a": [], "b": [50], "p": [150]},
        {"a": [], "b": [50], "p": []},
    ]


def test_a_table_without_an_id_is_in_doubt(mariadb: PrivateMariaDB, config: ApplyConfig) -> None:
    """Two that are swapped look alike before and after it, and a second time would undo it."""
    with connect(mariadb.target(), config) as session:
        session.execute("CREATE DATABASE other")
        session.execute("CREATE TABLE other.t (a INT) ENGINE=MyISAM")
        session.execute("CREATE VIEW other.v AS SELECT 1")
        assert not take_snapshot(session, [], [("other", "t")]).ids_known
        assert take_snapshot(session, [], [("other", "v"), ("other", "gone")]).ids_known
