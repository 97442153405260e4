"""Every type of DDL that the recorded cases lack, on a real MariaDB: what becomes of it, and of its table (ddl.md 3 and 7)."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, EventFilterRule, TableMigrateRule, TableName, TableRoute
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import JobType, SchemaHistory
from pyspark_tidb_binlog.sinks.bootstrap import copy_record
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyHead, CopyKind, CopyState
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import DdlOutcome, apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.foreseen import WaitingDdls, foreseen
from pyspark_tidb_binlog.sinks.mysql.ddl.plain_text import TextRecord, execute_text
from pyspark_tidb_binlog.sinks.mysql.ddl.recorded import load_outcomes
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, partitions, steps_of, table
from tests.support.ddl_target import CONFIG, apply, ddl_session, dying
from tests.support.fakes.restoring_tidb import DROPPED, RestoringTidb
from tests.support.leases import held
from tests.support.private_mysql import MYSQLD, NO_PAD_BIN, RealMariaDB

pytestmark = pytest.mark.mysql

PARENT = table(10, "p")
TEXT_COLUMN = column(2, "k", VARCHAR)
PLAIN = [column(1, "id", {**INT, "Flag": 4099}), column(2, "n")]
CHILD = table(11, "t", PLAIN)
TEXTS = {2: "CREATE TABLE `p` (`id` INT PRIMARY KEY);", 3: "CREATE TABLE `t` (`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT);"}
FOREIGN = {
    "fk_info": [{"id": 1, "fk_name": {"O": "fk"}, "ref_table": {"O": "p"}, "cols": [{"O": "n"}], "ref_cols": [{"O": "id"}], "state": 5}]
}


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target()) as session:
        yield session


def run(session: Session, kind: int, query: str, after: dict[str, Any] | None = CHILD, **config: Any) -> DdlOutcome:
    """The outcome of a DDL of this type on ``d.t``, after ``p`` and ``t`` were made."""
    h = history(database(1), job(2, 3, PARENT), job(3, 3, CHILD), job(4, kind, after, table_id=11, table_name="t", query=query.lower()))
    *first, last = steps_of(h, TEXTS | {4: query})
    for step in first:
        apply(session, step, h)
    assert last.job.id == 4, "it has a step"
    return apply(session, last, h, dataclasses.replace(CONFIG, **config))


def shown(session: Session) -> str:
    return str(session.query("SHOW CREATE TABLE d.t")[0][1])


@pytest.mark.shows("ddl add foreign key", "ddl drop foreign key")
def test_a_foreign_key_comes_and_goes(session: Session) -> None:
    added = table(11, "t", PLAIN, **FOREIGN)
    assert run(session, 9, "ALTER TABLE `t` ADD CONSTRAINT `fk` FOREIGN KEY (`n`) REFERENCES `p`(`id`);", added).how == "text"
    assert "CONSTRAINT `fk` FOREIGN KEY (`n`) REFERENCES `p` (`id`)" in shown(session)
    h = history(database(1), job(2, 3, PARENT), job(3, 3, CHILD), job(4, 9, added), job(5, 10, CHILD))
    assert apply(session, steps_of(h, {5: "ALTER TABLE `t` DROP FOREIGN KEY `fk`;"})[-1], h).how == "text"
    assert "FOREIGN KEY" not in shown(session)


def test_a_foreign_key_may_refer_to_a_key_that_is_not_unique(session: Session) -> None:
    """As in TiDB; a MySQL server of 8.4 and later takes it only from a session that says so."""
    parent = table(10, "p", PLAIN, index_info=[index(1, "k", ("n", 1))])
    h = history(database(1), job(2, 3, parent), job(3, 3, CHILD), job(4, 9, table(11, "t", PLAIN, **FOREIGN)))
    texts = {
        2: "CREATE TABLE `p` (`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT,KEY `k`(`n`));",
        3: TEXTS[3],
        4: "ALTER TABLE `t` ADD CONSTRAINT `fk` FOREIGN KEY (`n`) REFERENCES `p`(`n`);",
    }
    assert [apply(session, step, h).how for step in steps_of(h, texts)] == ["text"] * 4
    assert "REFERENCES `p` (`n`)" in shown(session)


def test_a_primary_key_that_the_server_makes_itself_is_not_seen(session: Session) -> None:
    if session.flavour is Flavour.MYSQL:
        session.execute("SET SESSION sql_generate_invisible_primary_key = 1")
    bare = table(11, "t", PLAIN[1:], pk_is_handle=False)
    wide = table(11, "t", [*PLAIN[1:], column(3, "m")], pk_is_handle=False)
    h = history(database(1), job(2, 3, bare), job(3, 5, wide))
    made, *steps = steps_of(h, {2: "CREATE TABLE `t` (`n` INT);", 3: "ALTER TABLE `t` ADD COLUMN `m` INT;"})
    apply(session, made, h)
    for step in steps:
        with dying("after-ddl"):
            apply(session, step, h)
        assert apply(session, step, h).how == "found"
    session.execute("INSERT INTO d.t VALUES (1, 2), (1, 2)")
    assert session.query("SELECT * FROM d.t") == [(1, 2), (1, 2)]


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL gives a table a key of its own")
@pytest.mark.parametrize("keyed", ["", ", ADD COLUMN `m` INT FIRST"])
def test_a_primary_key_of_the_upstream_takes_the_place_of_the_server_s(session: Session, keyed: str) -> None:
    """With columns that get other offsets, and however often the process dies behind it; a refusal leaves all as it was."""
    session.execute("SET SESSION sql_generate_invisible_primary_key = 1, sql_require_primary_key = 1")
    bare = table(11, "t", [column(2, "n"), column(4, "k")], pk_is_handle=False)
    key = {"index_info": [index(1, "PRIMARY", ("n", 1 if keyed else 0), unique=True, primary=True)]}
    more = [column(3, "m")] if keyed else []
    own = table(11, "t", [*more, column(2, "n", {**INT, "Flag": 4099}), column(4, "k")], pk_is_handle=False, **key)
    h = history(database(1), job(2, 3, bare), job(3, 61 if keyed else 32, own))
    texts = {2: "CREATE TABLE `t` (`n` INT,`k` INT);", 3: f"ALTER TABLE `t` ADD PRIMARY KEY (`n`) NONCLUSTERED{keyed};"}
    *made, keying = steps_of(h, texts)
    for step in made:
        apply(session, step, h)
    session.execute("INSERT INTO d.t VALUES (1, 2), (1, 2)")
    session.commit()
    with pytest.raises(DdlRefused, match="1062"):
        apply(session, keying, h)
    session.execute("DELETE FROM d.t LIMIT 1")
    session.commit()
    with dying("after-ddl"):
        apply(session, keying, h)
    assert apply(session, keying, h).how == "found"
    session.execute("SET SESSION show_gipk_in_create_table_and_information_schema = 1")
    assert column_names(session, "d", "t") == ("m", "n", "k")[not keyed :]
    assert session.query("SELECT n, k FROM d.t") == [(1, 2)]


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL gives a table a key of its own")
def test_it_takes_that_place_where_only_some_columns_are_replicated(session: Session) -> None:
    """Then the statement is derived at once."""
    session.execute("SET SESSION sql_generate_invisible_primary_key = 1")
    config = dataclasses.replace(CONFIG, routes=(TableRoute(db_name="d", tbl_name="t", columns=("n",)),))
    key = {"index_info": [index(1, "PRIMARY", ("n", 0), unique=True, primary=True)]}
    keyed = [column(2, "n", {**INT, "Flag": 3}), column(3, "m")]
    h = history(
        database(1), job(2, 3, table(11, "t", [column(2, "n"), column(3, "m")], pk_is_handle=False)),
        job(3, 32, table(11, "t", keyed, pk_is_handle=False, **key))
    )  # fmt: skip
    texts = {2: "CREATE TABLE `t` (`n` INT,`m` INT);", 3: "ALTER TABLE `t` ADD PRIMARY KEY (`n`) NONCLUSTERED;"}
    *made, keying = steps_of(h, texts)
    for step in made:
        apply(session, step, h, config)
    with dying("after-ddl"):
        apply(session, keying, h, config)
    session.rollback()
    assert apply(session, keying, h, config).how == "found"
    session.execute("SET SESSION show_gipk_in_create_table_and_information_schema = 1")
    assert column_names(session, "d", "t") == ("n",)


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL gives a table a key of its own")
def test_what_the_server_cannot_give_a_key_to_is_made_without_one(session: Session) -> None:
    session.execute("SET SESSION sql_generate_invisible_primary_key = 1")
    counted = table(11, "t", [column(1, "id", {**INT, "Flag": 521})], pk_is_handle=False, index_info=[index(1, "i", ("id", 0))])
    named = table(12, "u", [column(1, "my_row_id")], pk_is_handle=False)
    key = {"index_info": [index(1, "PRIMARY", ("n", 0), unique=True, primary=True)]}
    keyed = table(13, "w", [column(2, "n", {**INT, "Flag": 4099})], pk_is_handle=False, **key)
    h = history(
        database(1), job(2, 3, counted), job(3, 3, named), job(4, 3, keyed), job(5, 33, table(13, "w", PLAIN[1:], pk_is_handle=False))
    )
    texts = {
        2: "CREATE TABLE `t` (`id` INT AUTO_INCREMENT,KEY `i`(`id`));",
        3: "CREATE TABLE `u` (`my_row_id` INT);",
        4: "CREATE TABLE `w` (`n` INT,PRIMARY KEY (`n`) NONCLUSTERED);",
        5: "ALTER TABLE `w` DROP PRIMARY KEY;",
    }
    assert [apply(session, step, h).how for step in steps_of(h, texts)] == ["text"] * 5
    assert session.query("SELECT @@SESSION.sql_generate_invisible_primary_key") == [(1,)]
    more = history(database(1), job(6, 3, {**counted, "id": 14, "name": {"O": "z"}}))
    session.execute("SET SESSION sql_require_primary_key = 1")
    *_, last = steps_of(more, {6: "CREATE TABLE `z` (`id` INT AUTO_INCREMENT,KEY `i`(`id`));"})
    with pytest.raises(DdlRefused, match="4109"):
        apply(session, last, more)


def test_an_index_over_a_column_that_is_not_replicated_needs_nothing(session: Session) -> None:
    """The upstream notes in its first column that it begins an index."""
    config = dataclasses.replace(CONFIG, routes=(TableRoute(db_name="d", tbl_name="t", columns=("id", "n")),))
    marked = [PLAIN[0], column(2, "n", {**INT, "Flag": 8}), column(3, "m")]
    added = table(11, "t", marked, index_info=[index(1, "i", ("n", 1), ("m", 2))])
    h = history(database(1), job(2, 3, table(11, "t", [*PLAIN, column(3, "m")])), job(3, 7, added))
    texts = {2: "CREATE TABLE `t` (`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT,`m` INT);", 3: "ALTER TABLE `t` ADD INDEX `i`(`n`, `m`);"}
    assert [apply(session, step, h, config).how for step in steps_of(h, texts)] == ["text", "derived", "nothing"]


COLUMN_JOBS = {
    "ADD COLUMN `k` INT": (5, "id n m", "id n m k"),
    "ADD COLUMN `k` INT AFTER `id`": (5, "id n m", "id k n m"),
    "DROP COLUMN `n`": (6, "id n m", "id m"),
    "CHANGE COLUMN `n` `k` INT": (12, "id n m", "id k m"),
    "CHANGE COLUMN `n` `N` INT": (12, "id n m", "id N m"),
    "CHANGE COLUMN `n` `k` INT FIRST": (12, "id n m", "k id m"),
    "MODIFY COLUMN `n` INT FIRST": (12, "id n m", "n id m"),
}


def made_and_changed(session: Session, clause: str, *otherwise: str) -> tuple[SchemaHistory, DdlStep]:
    """The history, and the step of a job on the columns of ``d.t``, whose table was made and then changed ``otherwise`` at the target."""
    kind, *columns = COLUMN_JOBS[clause]
    ids = {"id": 1, "n": 2, "N": 2, "m": 3, "k": 2 if kind == 12 else 4}
    infos = [
        table(11, "t", [column(ids[name], name, PLAIN[0]["type"] if name == "id" else INT) for name in names.split()]) for names in columns
    ]
    h = history(database(1), job(2, 3, infos[0]), job(3, kind, infos[1]))
    texts = {2: "CREATE TABLE `t` (`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT,`m` INT);", 3: f"ALTER TABLE `t` {clause};"}
    *made, changed = steps_of(h, texts)
    for step in made:
        apply(session, step, h)
    for what in otherwise:
        session.execute(f"ALTER TABLE d.t {what}")
    return h, changed


@pytest.mark.parametrize("clause", COLUMN_JOBS)
@pytest.mark.parametrize(
    ("otherwise", "there"),
    [
        (("ADD COLUMN x INT AFTER n", "ADD COLUMN y INT"), "id n x m y"),
        (("ADD COLUMN x INT FIRST", "MODIFY COLUMN m INT AFTER id"), "x id m n"),
        (("DROP COLUMN m",), "id n"),
    ],
)
def test_a_crash_behind_a_change_of_columns_of_a_table_with_others(
    session: Session, clause: str, otherwise: tuple[str, ...], there: str
) -> None:
    h, changed = made_and_changed(session, clause, *otherwise)
    assert column_names(session, "d", "t") == tuple(there.split())
    with dying("after-ddl-intent"):
        apply(session, changed, h)
    with dying("after-ddl"):
        apply(session, changed, h)
    as_executed = column_names(session, "d", "t")
    assert as_executed != tuple(there.split()) and apply(session, changed, h).how == "found"
    assert column_names(session, "d", "t") == as_executed


@pytest.mark.parametrize(("clause", "how"), [("CHANGE COLUMN `n` `k` INT FIRST", "found"), ("MODIFY COLUMN `n` INT FIRST", "text")])
def test_a_crash_behind_a_move_in_a_table_of_another_order(session: Session, clause: str, how: str) -> None:
    """A column with a new name shows that it was executed; where nothing else is new, a second time is harmless."""
    h, changed = made_and_changed(session, clause, "MODIFY COLUMN m INT FIRST")
    with dying("after-ddl"):
        apply(session, changed, h)
    session.rollback()
    assert apply(session, changed, h).how == how
    assert column_names(session, "d", "t") == (COLUMN_JOBS[clause][2].split()[0], "m", "id")


@pytest.mark.parametrize(
    ("clause", "own"),
    [
        ("CHANGE COLUMN `n` `k` INT", "k INT"),
        ("ADD COLUMN `k` INT", "k VARCHAR(9)"),
        ("ADD COLUMN `k` INT AFTER `id`", "k INT NOT NULL DEFAULT 7"),
    ],
)
def test_a_column_of_the_target_that_has_the_new_name_is_not_the_one_of_the_upstream(session: Session, clause: str, own: str) -> None:
    h, changed = made_and_changed(session, clause, f"ADD COLUMN x INT, ADD COLUMN {own}")
    for _ in range(2):
        with pytest.raises(DdlRefused, match="1060"):
            apply(session, changed, h)
    assert column_names(session, "d", "t") == ("id", "n", "m", "x", "k")


@pytest.mark.shows("ddl rebase auto id", "ddl table comment")
@pytest.mark.parametrize(
    ("kind", "query"),
    [
        (JobType.REBASE_AUTO_ID, "ALTER TABLE `t` AUTO_INCREMENT = 5000;"),
        (JobType.TABLE_COMMENT, "ALTER TABLE `t` COMMENT = 'said';"),
    ],
)
def test_an_option_of_the_table(session: Session, kind: JobType, query: str) -> None:
    outcome = run(session, kind, query)
    assert outcome.how == "text"
    session.execute("INSERT INTO d.t (n) VALUES (1)")
    rebased = kind is JobType.REBASE_AUTO_ID
    assert session.query("SELECT id FROM d.t") == [(5000 if rebased else 1,)]
    assert ("COMMENT='said'" in shown(session)) is not rebased


@pytest.mark.shows(
    "ddl shard row id",
    "ddl set tiflash replica",
    "ddl auto id cache",
    "ddl rebase auto random",
    "ddl stats options",
    "ddl set ttl",
    "ddl remove ttl",
)
@pytest.mark.parametrize(
    ("kind", "query"),
    [
        (JobType.SHARD_ROW_ID, "ALTER TABLE `t` /*T! SHARD_ROW_ID_BITS = 4 */;"),
        (JobType.AUTO_ID_CACHE, "ALTER TABLE `t` /*T![auto_id_cache] AUTO_ID_CACHE = 10 */;"),
        (JobType.REBASE_AUTO_RANDOM, "ALTER TABLE `t` /*T![auto_rand_base] AUTO_RANDOM_BASE = 10 */;"),
        (JobType.SET_TTL, "ALTER TABLE `t` /*T![ttl] TTL = `c` + INTERVAL 1 DAY TTL_ENABLE = 'OFF' */;"),
        (JobType.REMOVE_TTL, "ALTER TABLE `t` /*T![ttl] REMOVE TTL */;"),
        (JobType.SET_TIFLASH_REPLICA, "ALTER TABLE `t` SET TIFLASH REPLICA 1;"),
        (JobType.STATS_OPTIONS, "ALTER TABLE `t` STATS_OPTIONS='x';"),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, JobType) else "",
)
def test_what_only_tidb_has_changes_nothing_at_the_target(session: Session, kind: JobType, query: str) -> None:
    assert run(session, kind, query).state == "done"
    assert f"ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={NO_PAD_BIN}" in shown(session)


@pytest.mark.shows(
    "ddl lock table",
    "ddl unlock table",
    "ddl tiflash status",
    "ddl table attributes",
    "ddl partition attributes",
    "ddl create placement",
    "ddl alter placement",
    "ddl drop placement",
    "ddl partition placement",
    "ddl schema placement",
    "ddl table placement",
    "ddl cache table",
    "ddl nocache table",
    "ddl create resource group",
    "ddl alter resource group",
    "ddl drop resource group",
)
@pytest.mark.parametrize("kind", [27, 28, 31, 49, 50, 51, 52, 53, 54, 55, 56, 57, 59, 68, 69, 70])
def test_what_no_target_holds_gets_no_step(kind: int) -> None:
    h = history(database(1), job(2, 3, CHILD), job(3, kind, CHILD, table_name="t", query="whatever"))
    assert [step.job.id for step in steps_of(h, {})] == [1, 2]


@pytest.mark.shows("ddl add primary key", "ddl drop primary key")
def test_a_primary_key_comes_and_goes(session: Session) -> None:
    bare = table(11, "t", PLAIN, pk_is_handle=False)
    keyed = table(11, "t", PLAIN, pk_is_handle=False, index_info=[index(1, "PRIMARY", ("id", 0), unique=True, primary=True)])
    h = history(database(1), job(2, 3, bare), job(3, 32, keyed), job(4, 33, bare))
    texts = {
        2: "CREATE TABLE `t` (`id` INT NOT NULL,`n` INT);",
        3: "ALTER TABLE `t` ADD PRIMARY KEY(`id`) /*T![clustered_index] NONCLUSTERED */;",
        4: "ALTER TABLE `t` DROP PRIMARY KEY;",
    }
    hows = []
    for step in steps_of(h, texts):
        hows.append((apply(session, step, h).how, step.job.id > 1 and "PRIMARY KEY (`id`)" in shown(session)))
    assert hows == [("text", False), ("text", False), ("text", True), ("text", False)]


@pytest.mark.shows("ddl repair table")
def test_a_repaired_table_is_left_as_it_is_or_refused_aloud(session: Session) -> None:
    query = "ADMIN REPAIR TABLE `t` CREATE TABLE `t` (`id` INT PRIMARY KEY,`n` INT);"
    with pytest.raises(DdlRefused, match=r"job 4 on d\.t at commit_ts 40 refused.*syncer.ignore-txn-commit-ts = \[40\]"):
        run(session, JobType.REPAIR_TABLE, query)
    assert "`n` int" in shown(session)


@pytest.mark.shows("ddl create sequence", "ddl alter sequence", "ddl drop sequence")
def test_a_sequence_is_made_changed_and_dropped(session: Session) -> None:
    made = table(12, "s", sequence={"sequence_start": 1})
    h = history(database(1), job(2, 34, made), job(3, 35, made), job(4, 36, None, table_id=12, table_name="s"))
    texts = {
        2: "CREATE SEQUENCE `s` START WITH 5 INCREMENT BY 5 CACHE 10;",
        3: "ALTER SEQUENCE `s` INCREMENT BY 7;",
        4: "DROP SEQUENCE `s`;",
    }
    create, change, drop = steps_of(h, texts)[1:]
    apply(session, steps_of(h, texts)[0], h)
    if session.flavour is Flavour.MYSQL:
        for step in (create, change, drop):
            outcome = apply(session, step, h)
            assert (outcome.state, outcome.how, outcome.losses) == ("done", "nothing", ("d.s: sequence left out, MySQL has none",))
        return
    assert apply(session, create, h).how == "text"
    assert session.query("SELECT increment FROM d.s") == [(5,)]
    assert apply(session, change, h).how == "text"
    assert session.query("SELECT increment FROM d.s") == [(7,)]
    assert apply(session, drop, h).how == "text"
    assert session.query("SHOW TABLES FROM d") == []


@pytest.mark.shows("ddl recover table", "ddl flashback cluster", "ddl recover schema")
@pytest.mark.parametrize(
    ("kind", "query", "words"),
    [
        (JobType.RECOVER_TABLE, "FLASHBACK TABLE `t`;", "recover table cannot be replicated"),
        (JobType.FLASHBACK_CLUSTER, "FLASHBACK CLUSTER TO TIMESTAMP '2023-01-01';", "flashback cluster cannot be replicated"),
        (JobType.RECOVER_SCHEMA, "FLASHBACK DATABASE `d`;", "recover schema cannot be replicated"),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, JobType) else "",
)
def test_what_brings_rows_back_is_refused_with_the_way_on(session: Session, kind: JobType, query: str, words: str) -> None:
    with pytest.raises(DdlRefused, match=rf"{words}.*syncer.ignore-txn-commit-ts = \[40\], or set spark.ddl-policy"):
        run(session, kind, query, None if kind is not JobType.RECOVER_TABLE else CHILD)


@pytest.fixture
def tidb(mariadb: PrivateMariaDB) -> Iterator[RestoringTidb]:
    server = RealMariaDB() if MYSQLD else contextlib.nullcontext(mariadb)
    with server as played, ddl_session(played.target(), databases=("d", "x", DROPPED)) as session:
        yield RestoringTidb(session)


def applied(
    tidb: RestoringTidb, h: SchemaHistory, texts: dict[int, str], config: ApplyConfig = CONFIG, after: int = 0, **more: Any
) -> list[DdlOutcome]:
    """The outcomes of all DDLs ``after`` this job; behind that of job 2, which makes a table, it has the rows 1 and 2."""
    found = []
    for step in [s for s in steps_of(h, texts) if s.job.id > after]:
        decision = decided(step, h, Selection.of(config))
        lease = held(tidb.session, schema=config.checkpoint_schema)
        found.append(apply_ddl(tidb, decision, h, config, lease, lambda _: None, **more))
        if step.job.id == 2 and found[-1].how in ("text", "derived"):
            tidb.execute(f"INSERT INTO {tidb.tables()[0]} VALUES (1), (2)")
            tidb.commit()
    return found


T, U = table(10, "t"), table(10, "u")
MADE = (database(1), job(2, 3, T))
DROP = job(3, 4, table_id=10, table_name="t")
TRUNCATE = job(3, 11, table(11, "t"), table_id=10, table_name="t")
DROP_TRUNCATED = job(5, 4, table_id=11, table_name="t", query="drop table t")
IN_X = {"schema_id": 1001, "schema_name": "x"}
DROP_X = [database(4, "x", 1001), job(5, 3, table(20, "v"), **IN_X), job(6, 4, table_id=20, table_name="v", **IN_X)]
T_TEXTS = {2: "CREATE TABLE `t` (`id` INT PRIMARY KEY);", 3: "DROP TABLE `t`;"}
TRUNCATED = T_TEXTS | {3: "TRUNCATE TABLE `t`;"}
COLUMNS = TableRoute("d", "t", columns=("id",))
ONE_COLUMN = ApplyConfig(drainer="ddl", checkpoint_schema=CONFIG.checkpoint_schema, routes=(COLUMNS,))
TO_X = ApplyConfig(
    drainer="ddl", checkpoint_schema=CONFIG.checkpoint_schema, routes=(TableRoute("d", "t", "x", "v"), TableRoute("d", "u", "x", "w"))
)
NOT_X = dataclasses.replace(TO_X, ignore_table=(TableName("x", "v"),))
NO_DROPS = {
    "binlog_filter_rule": (EventFilterRule("no drops", ("drop table",)),),
    "table_migrate_rule": (TableMigrateRule(("no drops",), "d", "*"),),
}


@pytest.mark.shows("ddl recover table")
@pytest.mark.parametrize(
    ("gone", "back", "text", "config", "sent", "there"),
    [
        ([DROP], T, "RECOVER TABLE BY JOB 3;", CONFIG, "RECOVER TABLE `d`.`t`", {"d.t": [1, 2]}),
        ([DROP], T, "RECOVER TABLE `t` 5;", CONFIG, "RECOVER TABLE `d`.`t`", {"d.t": [1, 2]}),
        ([DROP], U, "FLASHBACK TABLE `t` TO `u`;", CONFIG, "FLASHBACK TABLE `d`.`t` TO `u`", {"d.u": [1, 2]}),
        ([TRUNCATE], U, "FLASHBACK TABLE `t` TO `u`;", CONFIG, "FLASHBACK TABLE `d`.`t` TO `u`", {"d.t": [], "d.u": [1, 2]}),
        ([DROP], T, "RECOVER TABLE BY JOB 3;", ONE_COLUMN, "RECOVER TABLE `d`.`t`", {"d.t": [1, 2]}),
        ([DROP], T, "RECOVER TABLE BY JOB 3;", TO_X, "RECOVER TABLE `x`.`v`", {"x.v": [1, 2]}),
        ([TRUNCATE], U, "FLASHBACK TABLE `t` TO `u`;", TO_X, "FLASHBACK TABLE `x`.`v` TO `w`", {"x.v": [], "x.w": [1, 2]}),
        ([DROP, *DROP_X], T, "RECOVER TABLE `t`;", NOT_X, "RECOVER TABLE `x`.`v`", {"x.v": [1, 2]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("point", ["", "after-ddl-intent", "after-ddl"])
def test_a_tidb_restores_the_table_once(
    tidb: RestoringTidb, gone: list[Any], back: Any, text: str, config: ApplyConfig, sent: str, there: dict[str, list[int]], point: str
) -> None:
    """By its name at the target, also where the process dies around it; ``--check`` has nothing against it. ``there``: the tables with their rows."""
    tidb.execute("CREATE DATABASE x")
    h = history(*MADE, *gone, job(9, 25, back, query=text.lower()))
    texts = (TRUNCATED if TRUNCATE in gone else T_TEXTS) | {9: text}
    assert not list(foreseen(tidb, WaitingDdls(0, h, AppliedJobs(0)), config, [], ["x"]))
    if point:
        applied(tidb, history(*MADE, *gone), texts, config)
        with dying(f"{point}-recover-table"):
            applied(tidb, h, texts, config)
    outcome = applied(tidb, h, texts, config)[-1]
    assert (outcome.state, outcome.how) == ("done", "found" if point == "after-ddl" else "text")
    assert tidb.restored == [sent]
    assert {name: [i for (i,) in tidb.query(f"SELECT id FROM {name} ORDER BY id")] for name in tidb.tables()} == there


V = table(12, "t")


@pytest.mark.shows("ddl recover table")
@pytest.mark.parametrize(
    ("jobs", "config", "words"),
    [
        ([DROP, job(4, 3, V), job(5, 4, table_id=12), job(6, 25, T)], {}, r"job 3 dropped it, and job 5 another table d\.t later.*by hand"),
        ([DROP, job(4, 3, V), job(5, 4, table_id=12), job(6, 25, T)], {"ignore_txn_commit_ts": (50,)}, "and job 5 another table .* later.*by hand"),
        ([TRUNCATE, DROP_TRUNCATED, job(6, 25, table(11, "u"))], NO_DROPS, "job 5 dropped it, which spark_ddl does not record as executed.*by hand"),
        ([TRUNCATE, DROP_TRUNCATED, job(6, 25, table(11, "u"))], {"ignore_txn_commit_ts": (50,)}, "job 5 dropped it, which spark_ddl.*by hand"),
        ([DROP, job(4, 3, V), job(6, 25, T)], {}, r"error 1050.*Drop the table of that name at the target, or rename it away"),
        ([DROP, job(6, 25, U)], {"ignore_table": (TableName("d", "t"),)}, r"d\.t becomes d\.u, but d\.t is not replicated"),
        ([DROP, job(6, 25, U)], {"routes": (TableRoute("d", "u", "x", "u"),)}, r"restored as x\.u, and TiDB restores a table of d only there"),
        ([DROP, job(6, 25, U)], {"routes": (COLUMNS,)}, r"d\.t and d\.u have different lists of columns"),
        ([job(6, 25, table(13, "z"))], {}, "the DDL history does not hold the DROP or TRUNCATE of the table"),
    ],
)  # fmt: skip
def test_what_a_tidb_would_not_restore_as_upstream_is_refused(
    tidb: RestoringTidb, jobs: list[Any], config: dict[str, Any], words: str
) -> None:
    """And ``--check`` says so before. None is sent but what the server itself refuses."""
    tidb.execute("CREATE DATABASE x")
    h, used = history(*MADE, *jobs), dataclasses.replace(CONFIG, **config)
    texts = (TRUNCATED if TRUNCATE in jobs else T_TEXTS) | {4: T_TEXTS[2], 5: T_TEXTS[3], 6: "RECOVER TABLE BY JOB 3;"}
    said = [remark.what for remark in foreseen(tidb, WaitingDdls(0, h, AppliedJobs(0)), used, [], ["x"])]
    with pytest.raises(DdlRefused, match=words):
        applied(tidb, h, texts, used)
    assert tidb.restored == (["RECOVER TABLE `d`.`t`"] if "1050" in words else [])
    assert len(said) == 1 and said[0].startswith("will be refused"), said


@pytest.mark.shows("ddl recover table")
@pytest.mark.parametrize("record", ["begun behind it", "copied since"])
def test_what_the_stream_did_not_drop_there_last_is_not_restored(tidb: RestoringTidb, record: str) -> None:
    """The stream began behind the TRUNCATE, or tables were copied after it: the target keeps other rows under that name."""
    h, texts = history(*MADE, TRUNCATE, job(4, 25, U)), TRUNCATED | {4: "FLASHBACK TABLE `t` TO `u`;"}
    applied(tidb, history(*MADE, TRUNCATE), texts)

    def checked() -> list[str]:
        waiting = WaitingDdls(35, h, AppliedJobs(3), outcomes=load_outcomes(tidb, CONFIG.checkpoint_schema, 1))
        return [r.what for r in foreseen(tidb, waiting, CONFIG, [("d", "t")], ["d"])]

    assert checked() == []
    copy_record.ensure_table(tidb.session, CONFIG.checkpoint_schema)
    head = CopyHead(CopyKind.TABLES, 35, CopyState.PLANNED)
    copy_record.begin(tidb.session, 2, CONFIG.checkpoint_schema, head, [])
    tidb.commit()
    assert checked() == []  # of another cluster
    if record == "copied since":
        copy_record.begin(tidb.session, 1, CONFIG.checkpoint_schema, head, [])
    else:
        tidb.execute("DELETE FROM ddl_marks.spark_ddl")
    tidb.commit()
    (said,) = checked()
    assert "job 3" in said
    with pytest.raises(
        DdlRefused, match="job 3 dropped it, which spark_ddl does not record as executed here, or tables were copied since.*by hand"
    ):
        applied(tidb, h, texts, after=3)
    assert tidb.restored == []
    tidb.execute("CREATE TABLE d.u LIKE d.t")  # a person does
    assert applied(tidb, h, texts, after=3)[-1].how == "found"


@pytest.mark.parametrize(
    ("refusal", "way_out"),
    [
        ((1105, "Can't find dropped/truncated table 't' in GC safe point"), "GC has passed .* make it there by hand.*tidb_gc_life_time"),
        ((1105, "Can't find localTemporary/dropped/truncated table: t in DDL history jobs"), "never had the table: make it there by hand"),
        ((8055, "snapshot is older than GC safe point"), "GC has passed .* make it there by hand"),
        ((8121, "privilege check for 'SUPER' fail"), "Repair the target, or skip"),
    ],
)
def test_a_table_that_a_tidb_cannot_restore_is_made_by_hand(tidb: RestoringTidb, refusal: tuple[int, str], way_out: str) -> None:
    h = history(*MADE, DROP, job(4, 25, T))
    texts = T_TEXTS | {4: "RECOVER TABLE `t`;"}
    applied(tidb, history(*MADE, DROP), texts)
    tidb.collect()
    tidb.refusal = refusal
    for _ in range(2):
        with pytest.raises(DdlRefused, match=rf"on d\.t at commit_ts 40 refused: .*error {refusal[0]}, {refusal[1]}.*{way_out}"):
            applied(tidb, h, texts)
    tidb.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    assert applied(tidb, h, texts)[-1].how == "found"


def test_a_table_that_is_restored_under_a_name_that_is_not_replicated_stays_dropped(tidb: RestoringTidb) -> None:
    h = history(*MADE, DROP, job(4, 25, U))
    config = dataclasses.replace(CONFIG, ignore_table=(TableName("d", "u"),))
    assert applied(tidb, h, T_TEXTS | {4: "FLASHBACK TABLE `t` TO `u`;"}, config)[-1].how == "filtered"
    assert (tidb.restored, tidb.tables()) == ([], [])


def test_a_tidb_that_was_taken_over_from_another_drainer_restores_nothing_by_itself(tidb: RestoringTidb) -> None:
    """The other one may have dropped a later table of the name; where the table is there, it was restored."""
    h = history(*MADE, DROP, job(4, 25, T))
    texts = T_TEXTS | {4: "RECOVER TABLE `t`;"}
    applied(tidb, history(*MADE, DROP), texts)
    with pytest.raises(DdlRefused, match="may have dropped or truncated a later table of that name"):
        applied(tidb, h, texts, safe_from=0)
    tidb.execute("DELETE FROM ddl_marks.spark_ddl WHERE job_id = 4")
    tidb.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    assert applied(tidb, h, texts, safe_from=0)[-1].how == "found"


def test_a_frozen_table_is_not_restored_over_the_upstreams(tidb: RestoringTidb) -> None:
    wide = table(10, "t", [column(1, "id", {**INT, "Flag": 4099}), column(2, "n")])
    h = history(*MADE, job(3, 5, wide), job(4, 4, table_id=10), job(5, 25, wide))
    texts = {2: T_TEXTS[2], 3: "ALTER TABLE `t` ADD COLUMN `n` INT;", 4: "DROP TABLE `t`;", 5: "RECOVER TABLE `t`;"}
    applied(tidb, history(*MADE), texts)
    *_, last = steps_of(h, texts)
    with pytest.raises(DdlRefused, match=r"d\.t was frozen on the target when the upstream dropped it in job 4"):
        apply_ddl(tidb, last, h, CONFIG, held(tidb.session, schema=CONFIG.checkpoint_schema), lambda _: None, frozenset({3}))


def test_a_job_of_the_upstream_is_no_name_at_the_target(session: Session, mariadb: PrivateMariaDB) -> None:
    """Of a DDL that is known by its text alone."""
    session.execute("CREATE DATABASE d")
    session.commit()
    record = TextRecord(lambda _: False, lambda *_: None)
    for flavour in Flavour:
        with pytest.raises(ApplyError, match="names a job of the upstream"):
            execute_text(lambda: connect(mariadb.target(), CONFIG), FEW, "d", "recover table /* x */ by job 7;", flavour, record)


@pytest.mark.shows("ddl of a later TiDB")
def test_a_type_of_a_later_tidb_is_executed_as_its_text(session: Session) -> None:
    outcome = run(session, 199, "ALTER TABLE `t` COMMENT = 'of a later type';")
    assert outcome.how == "text" and "of a later type" in shown(session)


@pytest.mark.shows("ddl of a later TiDB")
def test_a_type_of_a_later_tidb_that_the_target_refuses_says_how_to_go_on(session: Session) -> None:
    with pytest.raises(
        DdlRefused, match=r"error 1064.*syncer.ignore-txn-commit-ts = \[40\], or set spark.ddl-policy to skip or quarantine"
    ):
        run(session, 199, "ALTER TABLE `t` DO SOMETHING NEW;")
    assert run_again(session, "skip").state == "skipped"


def run_again(session: Session, policy: str) -> DdlOutcome:
    h = history(database(1), job(2, 3, PARENT), job(3, 3, CHILD), job(4, 199, CHILD, table_name="t"))
    return apply(
        session, steps_of(h, TEXTS | {4: "ALTER TABLE `t` DO SOMETHING NEW;"})[-1], h, dataclasses.replace(CONFIG, ddl_policy=policy)
    )


@pytest.mark.shows("ddl add check", "ddl drop check", "ddl alter check")
def test_a_check_which_the_upstream_has_made_is_left_out_and_named(session: Session) -> None:
    h = history(database(1), job(2, 3, CHILD), job(3, 43, CHILD), job(4, 45, CHILD), job(5, 44, CHILD))
    texts = {
        2: TEXTS[3],
        3: "ALTER TABLE `t` ADD CONSTRAINT `c` CHECK(`n`>0) ENFORCED;",
        4: "ALTER TABLE `t` ALTER CONSTRAINT `c` NOT ENFORCED;",
        5: "ALTER TABLE `t` DROP CONSTRAINT `c`;",
    }
    outcomes = [apply(session, step, h) for step in steps_of(h, texts)]
    assert [outcome.state for outcome in outcomes] == ["done"] * 5 and "CHECK" not in shown(session)
    assert outcomes[2].losses == ("d.t: CHECK constraint left out, the upstream has checked it",)


@pytest.mark.shows("ddl add columns", "ddl drop columns", "ddl drop indexes")
def test_old_jobs_of_several_columns_and_indexes(session: Session) -> None:
    more = [*PLAIN, column(3, "x"), column(4, "y")]
    indexed = table(11, "t", more, index_info=[index(1, "a", ("x", 2)), index(2, "b", ("y", 3))])
    h = history(
        database(1),
        job(2, 3, CHILD),
        job(3, 37, table(11, "t", more)),
        job(4, 7, indexed),
        job(5, 48, table(11, "t", more)),
        job(6, 38, CHILD),
    )
    texts = {
        2: TEXTS[3],
        3: "ALTER TABLE `t` ADD COLUMN (`x` INT, `y` INT);",
        4: "ALTER TABLE `t` ADD INDEX `a`(`x`), ADD INDEX `b`(`y`);",
        5: "ALTER TABLE `t` DROP INDEX `a`, DROP INDEX `b`;",
        6: "ALTER TABLE `t` DROP COLUMN `x`, DROP COLUMN `y`;",
    }
    for step in steps_of(h, texts):
        assert apply(session, step, h).how == "text"
        if step.job.id == 4:
            assert "KEY `a` (`x`)" in shown(session) and "KEY `b` (`y`)" in shown(session)
    assert "KEY `a`" not in shown(session) and "`y`" not in shown(session)


@pytest.mark.shows("ddl table charset", "ddl index visibility")
def test_partitions_of_a_list_are_kept_by_a_charset_change(session: Session) -> None:
    wide = table(11, "t", [column(1, "id", {**INT, "Flag": 4099}), TEXT_COLUMN], partition=partitions((21, "p0"), (22, "p1")))
    narrow = {**wide, "partition": partitions((21, "p0"))}
    h = history(database(1), job(2, 3, wide), job(3, 22, wide), job(4, 41, wide), job(5, 20, narrow))
    texts = {
        2: "CREATE TABLE `t` (`id` INT PRIMARY KEY,`k` VARCHAR(20),KEY `i`(`k`)) PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (9),PARTITION `p1` VALUES LESS THAN (99));",
        3: "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4 COLLATE UTF8MB4_BIN;",
        4: "ALTER TABLE `t` ALTER INDEX `i` INVISIBLE;",
        5: "ALTER TABLE `t` DROP PARTITION IF EXISTS `p1`;",
    }
    *steps, last = steps_of(h, texts)
    for step in steps:
        assert apply(session, step, h).how == "text"
    assert re.search("PARTITION `?p1`? VALUES", shown(session))
    assert ("INVISIBLE" if session.flavour is Flavour.MYSQL else "IGNORED") in shown(session)
    assert apply(session, last, h).how == "text"
    assert "p1" not in shown(session)


@pytest.mark.shows("ddl alter partitioning", "ddl remove partitioning")
def test_a_table_is_partitioned_anew_under_another_id(session: Session) -> None:
    """Its rows stay, and it is known under its new id only, over a death behind each of the two DDLs."""
    h = history(
        database(1),
        job(2, 3, CHILD),
        job(3, JobType.ALTER_PARTITIONING, table(20, "t", PLAIN, partition=partitions((21, "p0"), (22, "p1"))), table_id=11),
        job(4, JobType.REMOVE_PARTITIONING, table(30, "t", PLAIN), table_id=20),
    )
    texts = {2: TEXTS[3], 3: "ALTER TABLE `t` PARTITION BY HASH (`id`) PARTITIONS 2;", 4: "ALTER TABLE `t` REMOVE PARTITIONING;"}
    made, made_table, anew, removed = steps_of(h, texts)
    for step in (made, made_table):
        apply(session, step, h)
    session.execute("INSERT INTO d.t VALUES (1, 1), (2, 2)")
    session.commit()
    for step, partitioned in ((anew, True), (removed, False)):
        with dying("after-ddl"):
            apply(session, step, h)
        assert ("PARTITION BY" in shown(session)) is partitioned
        assert apply(session, step, h).state == "done"
        assert ("PARTITION BY" in shown(session)) is partitioned
        assert sorted(session.query("SELECT * FROM d.t")) == [(1, 1), (2, 2)]
    assert [t.table_id for t in h.tables_in("d", 4)] == [30]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_a_partition_is_exchanged_after_a_column_came(session: Session, point: str) -> None:
    """MySQL adds it without rewriting the rows, and then exchanges no partition before the table is rebuilt."""
    narrow = [column(1, "id", {**INT, "Flag": 4099})]
    wide = [*narrow, column(2, "n", default="7", origin_default="7")]

    def parent(columns: list[dict[str, Any]], first: int = 21) -> dict[str, Any]:
        return table(20, "t", columns, partition=partitions((first, "p0"), (22, "p1")))

    h = history(
        database(1),
        job(2, 3, parent(narrow)),
        job(3, 3, table(11, "x", narrow)),
        job(4, 5, parent(wide)),
        job(5, 5, table(11, "x", wide)),
        job(6, 42, parent(wide, 11), table_id=11),
    )
    ranges = "PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (9),PARTITION `p1` VALUES LESS THAN (99))"
    texts = {
        2: f"CREATE TABLE `t` (`id` INT PRIMARY KEY) {ranges};",
        3: "CREATE TABLE `x` (`id` INT PRIMARY KEY);",
        4: "ALTER TABLE `t` ADD COLUMN `n` INT DEFAULT 7;",
        5: "ALTER TABLE `x` ADD COLUMN `n` INT DEFAULT 7;",
        6: "ALTER TABLE `t` EXCHANGE PARTITION `p0` WITH TABLE `x`;",
    }
    *steps, last = steps_of(h, texts)
    for step in steps:
        apply(session, step, h)
        if step.job.id == 3:
            session.execute("INSERT INTO d.t VALUES (1), (20)")
            session.execute("INSERT INTO d.x VALUES (2)")
            session.commit()
    with dying(point):
        apply(session, last, h)
    session.rollback()
    assert apply(session, last, h).how == ("found" if point == "after-ddl" else "text")
    assert session.query("SELECT * FROM d.t ORDER BY id") == [(2, 7), (20, 7)]
    assert session.query("SELECT * FROM d.x") == [(1, 7)]


def test_an_exchange_of_tables_that_differ_otherwise_says_in_what(session: Session) -> None:
    """No right that the account lacks is in its way, and no columns."""
    parent = [table(20, "t", partition=partitions((number, "p0"))) for number in (21, 11)]
    h = history(database(1), job(2, 3, parent[0]), job(3, 3, table(11, "x")), job(4, 42, parent[1], table_id=11))
    texts = {
        2: "CREATE TABLE `t` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (9));",
        3: "CREATE TABLE `x` (`id` INT PRIMARY KEY);",
        4: "ALTER TABLE `t` EXCHANGE PARTITION `p0` WITH TABLE `x`;",
    }
    *steps, last = steps_of(h, texts)
    for step in steps:
        apply(session, step, h)
    session.execute("INSERT INTO d.t VALUES (1)")
    session.commit()
    session.execute("ALTER TABLE d.x ROW_FORMAT = COMPRESSED")
    with pytest.raises(DdlRefused, match=r"Non matching attribute 'ROW_FORMAT'.*Make the two tables alike") as refused:
        apply(session, last, h)
    assert "PROCESS" not in str(refused.value)
    session.rollback()
    session.execute("ALTER TABLE d.x ROW_FORMAT = DEFAULT")  # gives it another id, as an exchange does
    assert apply(session, last, h).how == "text"
    assert session.query("SELECT * FROM d.x") == [(1,)]


def test_a_table_like_one_of_another_database_is_not_like_its_namesake(session: Session) -> None:
    """USE app; CREATE TABLE d.new LIKE orders: d has another table of that name. A table that is there, equal and empty, is taken."""
    session.execute("CREATE DATABASE d")
    session.execute("CREATE TABLE d.orders (id INT PRIMARY KEY, k VARCHAR(5) UNIQUE)")
    new = table(13, "t", [column(1, "id", {**INT, "Flag": 4099}), TEXT_COLUMN])
    h = history(database(1), job(3, 3, new, query="create table d.t like orders"))
    steps = steps_of(h, {3: "CREATE TABLE `d`.`t` LIKE `orders`;"})
    apply(session, steps[0], h)
    with dying("before-ddl-done"):
        apply(session, steps[1], h)
    session.rollback()
    session.execute("DELETE FROM ddl_marks.spark_ddl WHERE job_id = 3")
    session.commit()
    assert apply(session, steps[1], h).how == "derived"
    assert "`k` varchar(20)" in shown(session) and "UNIQUE" not in shown(session)


def unnamed(*keys: tuple[str, str]) -> dict[str, Any]:
    found = [{"id": i, "fk_name": {"O": n}, "ref_table": {"O": "p"}, "cols": [{"O": c}], "state": 5} for i, (n, c) in enumerate(keys)]
    return {"fk_info": found}


def test_a_foreign_key_without_a_name_is_dropped_under_the_targets_name(session: Session) -> None:
    """TiDB calls it fk_1, MariaDB t_ibfk_1; another one, which the target's DBA has made, stays."""
    wide = [*PLAIN, column(3, "m")]
    both, one = unnamed(("fk_1", "n"), ("fk_2", "m")), unnamed(("fk_2", "m"))
    h = history(
        database(1),
        job(2, 3, PARENT),
        job(3, 3, table(11, "t", wide, **unnamed(("fk_1", "n")))),
        job(4, 9, table(11, "t", wide, **both), query="add"),
        job(5, 10, table(11, "t", wide, **one), query="drop"),
        job(6, 6, table(11, "t", [wide[0], wide[2]], **one), query="alter table t drop column n"),
    )
    texts = {
        2: TEXTS[2],
        3: "CREATE TABLE `t` (`id` INT PRIMARY KEY,`n` INT,`m` INT,FOREIGN KEY (`n`) REFERENCES `p`(`id`) ON DELETE CASCADE);",
        4: "ALTER TABLE `t` ADD FOREIGN KEY (`m`) REFERENCES `p`(`id`);",
        5: "ALTER TABLE `t` DROP FOREIGN KEY `fk_1`;",
        6: "ALTER TABLE `t` DROP COLUMN `n`;",
    }
    steps = steps_of(h, texts)
    for step in steps[:3]:
        apply(session, step, h)
    session.execute("ALTER TABLE d.t ADD CONSTRAINT own FOREIGN KEY (m) REFERENCES p (id)")
    for step, how in zip(steps[3:], ("found", "found", "found"), strict=True):
        with dying("after-ddl"):
            apply(session, step, h)
        session.rollback()
        assert apply(session, step, h).how == how
    assert "`n`" not in shown(session) and "t_ibfk_2` FOREIGN KEY (`m`)" in shown(session) and "`own` FOREIGN KEY (`m`)" in shown(session)
    assert shown(session).count("FOREIGN KEY") == 2


def test_a_condition_in_a_text_that_is_all_that_is_known(session: Session, mariadb: PrivateMariaDB) -> None:
    """MySQL has none in ALTER TABLE and of indexes; a second time it is so already."""
    session.execute("CREATE DATABASE d")
    session.execute("CREATE TABLE d.t (id INT PRIMARY KEY, gone INT)")
    session.commit()
    texts = (
        "ALTER TABLE `t` ADD COLUMN IF NOT EXISTS `n` INT DEFAULT (IF(1,2,3))",
        "CREATE INDEX IF NOT EXISTS `i` ON `t` (`n`)",
        "ALTER TABLE `t` DROP COLUMN IF EXISTS `gone`",
    )
    for text in (*texts, *texts, "DROP INDEX IF EXISTS `i` ON `t`"):
        execute_text(
            lambda: connect(mariadb.target(), CONFIG), FEW, "d", text, session.flavour, TextRecord(lambda _: False, lambda *_: None)
        )
    assert column_names(session, "d", "t") == ("id", "n")
    assert "KEY `i`" not in shown(session)


def test_a_view_of_a_table_that_it_spells_otherwise(session: Session) -> None:
    h = history(
        database(1),
        job(2, 3, table(10, "Orders", PLAIN)),
        job(3, 3, table(11, "t", PLAIN)),
        job(4, 21, table(12, "v", PLAIN, pk_is_handle=False)),
    )
    made = "(`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT)"
    query = "CREATE VIEW `v` AS SELECT ORDERS.id, x.n FROM ORDERS JOIN T x ON x.id = ORDERS.id"
    for step in steps_of(h, {2: f"CREATE TABLE `Orders` {made}", 3: f"CREATE TABLE `t` {made}", 4: query}):
        apply(session, step, h)
    session.execute("INSERT INTO d.Orders VALUES (1, 1)")
    session.execute("INSERT INTO d.t VALUES (1, 7)")
    assert session.query("SELECT * FROM d.v") == [(1, 7)]
