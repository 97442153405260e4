"""Every type of DDL that the recorded cases lack, on a real MariaDB: what becomes of it, and of its table (ddl.md 3 and 7)."""

import dataclasses
import re
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import TableRoute
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.replay.plain_text import execute_text
from tests.support.ddl_jobs import INT, VARCHAR, column, database, foreign_key, history, index, job, partitioned, steps_of, table, told
from tests.support.ddl_target import CONFIG, Unrecorded, apply, apply_all, committed, die, prepared, shown
from tests.support.private_mysql import NO_PAD_BIN

pytestmark = pytest.mark.mysql

PARENT = table(10, "p")
TEXT_COLUMN = column(2, "k", VARCHAR)
BARE = [column(1, "id", {**INT, "Flag": 4099}), column(2, "n")]
PLAIN = [column(1, "id", {**INT, "Flag": 4099 | 512}), column(2, "n")]
CHILD = table(11, "t", PLAIN)
MAKE_P, MAKE_T = "CREATE TABLE `p` (`id` INT PRIMARY KEY);", "CREATE TABLE `t` (`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT);"
TEXTS = {2: MAKE_P, 3: MAKE_T}
FOREIGN = {"fk_info": [foreign_key("fk", "n", "p", "id")]}


def run(session: Session, kind: int, query: str, after: dict[str, Any] | None = CHILD, **config: Any) -> DdlOutcome:
    """The outcome of a DDL of this type on ``d.t``, after ``p`` and ``t`` were made."""
    h = history(database(1), job(2, 3, PARENT), job(3, 3, CHILD), job(4, kind, after, table_id=11, table_name="t", query=query.lower()))
    last = prepared(session, h, TEXTS | {4: query})
    assert last.job.id == 4, "it has a step"
    return apply(session, last, h, dataclasses.replace(CONFIG, **config))


@pytest.mark.shows("ddl add foreign key", "ddl drop foreign key")
def test_a_foreign_key_comes_and_goes(session: Session) -> None:
    added = (9, table(11, "t", PLAIN, **FOREIGN), "ALTER TABLE `t` ADD CONSTRAINT `fk` FOREIGN KEY (`n`) REFERENCES `p`(`id`);")
    h = told((3, PARENT, MAKE_P), (3, CHILD, MAKE_T), added, (10, CHILD, "ALTER TABLE `t` DROP FOREIGN KEY `fk`;"))
    *before, add, drop = steps_of(h)
    apply_all(session, before, h)
    assert apply(session, add, h).how == "changes" and "CONSTRAINT `fk` FOREIGN KEY (`n`) REFERENCES `p` (`id`)" in shown(session)
    assert apply(session, drop, h).how == "changes" and "FOREIGN KEY" not in shown(session)


def test_an_index_over_a_column_that_is_not_replicated_needs_nothing(session: Session) -> None:
    """The upstream notes in its first column that it begins an index."""
    config = dataclasses.replace(CONFIG, routes=(TableRoute(db_name="d", tbl_name="t", columns=("id", "n")),))
    marked = [PLAIN[0], column(2, "n", {**INT, "Flag": 8}), column(3, "m")]
    added = table(11, "t", marked, index_info=[index(1, "i", ("n", 1), ("m", 2))])
    made = (3, table(11, "t", [*PLAIN, column(3, "m")]), "CREATE TABLE `t` (`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT,`m` INT);")
    h = told(made, (7, added, "ALTER TABLE `t` ADD INDEX `i`(`n`, `m`);"))
    assert [outcome.how for outcome in apply_all(session, steps_of(h), h, config)] == ["text", "text", "nothing"]


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
    before, after = (
        table(11, "t", [column(ids[name], name, PLAIN[0]["type"] if name == "id" else INT) for name in names.split()]) for names in columns
    )
    made = (3, before, "CREATE TABLE `t` (`id` INT AUTO_INCREMENT PRIMARY KEY,`n` INT,`m` INT);")
    h = told(made, (kind, after, f"ALTER TABLE `t` {clause};"))
    return h, prepared(session, h, {}, *(f"ALTER TABLE d.t {what}" for what in otherwise))


@pytest.mark.parametrize("clause", COLUMN_JOBS)
@pytest.mark.parametrize(
    ("otherwise", "there"),
    [
        (("ADD COLUMN x INT AFTER n", "ADD COLUMN y INT"), "id n x m y"),
        (("ADD COLUMN x INT FIRST", "MODIFY COLUMN m INT AFTER id"), "x id m n"),
        (("MODIFY COLUMN m INT FIRST",), "m id n"),
        (("DROP COLUMN m",), "id n"),
    ],
)
def test_a_crash_behind_a_change_of_columns_of_a_table_with_others(
    session: Session, clause: str, otherwise: tuple[str, ...], there: str
) -> None:
    h, changed = made_and_changed(session, clause, *otherwise)
    assert column_names(session, "d", "t") == tuple(there.split())
    for point in ("after-ddl-intent", "after-ddl"):
        die(session, changed, h, point)
    as_executed = column_names(session, "d", "t")
    assert as_executed != tuple(there.split()) and apply(session, changed, h).how == "found"
    assert column_names(session, "d", "t") == as_executed


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
    [(JobType.REBASE_AUTO_ID, "ALTER TABLE `t` AUTO_INCREMENT = 5000;"), (JobType.TABLE_COMMENT, "ALTER TABLE `t` COMMENT = 'said';")],
)
def test_an_option_of_the_table(session: Session, kind: JobType, query: str) -> None:
    outcome = run(session, kind, query, {**CHILD, **({"auto_inc_id": 5000} if kind is JobType.REBASE_AUTO_ID else {"comment": "said"})})
    assert outcome.how == "changes"
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
    assert [step.job.id for step in steps_of(h)] == [1, 2]


@pytest.mark.shows("ddl add primary key", "ddl drop primary key")
def test_a_primary_key_comes_and_goes(session: Session) -> None:
    bare = table(11, "t", BARE, pk_is_handle=False)
    keyed = table(11, "t", BARE, pk_is_handle=False, index_info=[index(1, "PRIMARY", ("id", 0), unique=True, primary=True)])
    add = (32, keyed, "ALTER TABLE `t` ADD PRIMARY KEY(`id`) /*T![clustered_index] NONCLUSTERED */;")
    h = told((3, bare, "CREATE TABLE `t` (`id` INT NOT NULL,`n` INT);"), add, (33, bare, "ALTER TABLE `t` DROP PRIMARY KEY;"))
    hows = [(apply(session, step, h).how, step.job.id > 1 and "PRIMARY KEY (`id`)" in shown(session)) for step in steps_of(h)]
    assert hows == [("text", False), ("text", False), ("changes", True), ("changes", False)]


@pytest.mark.shows("ddl repair table")
def test_a_repaired_table_is_left_as_it_is_or_refused_aloud(session: Session) -> None:
    query = "ADMIN REPAIR TABLE `t` CREATE TABLE `t` (`id` INT PRIMARY KEY,`n` INT);"
    with pytest.raises(DdlRefused, match=r"job 4 on d\.t at commit_ts 40 refused.*syncer.ignore-txn-commit-ts = \[40\]"):
        run(session, JobType.REPAIR_TABLE, query)
    assert "`n` int" in shown(session)


@pytest.mark.shows("ddl create sequence", "ddl alter sequence", "ddl drop sequence")
def test_a_sequence_is_made_changed_and_dropped(session: Session) -> None:
    made, changed = (table(12, "s", sequence={"sequence_start": 5, "sequence_increment": n, "sequence_cache_value": 10}) for n in (5, 7))
    alters = [(35, changed, f"ALTER SEQUENCE `s` {what};") for what in ("INCREMENT BY 7", "RESTART WITH 40")]
    h = told(
        (34, made, "CREATE SEQUENCE `s` START WITH 5 INCREMENT BY 5 CACHE 10;"),
        *alters,
        (36, None, "DROP SEQUENCE `s`;"),
        table_id=12,
        table_name="s",
    )
    first, create, change, restart, drop = steps_of(h)
    apply(session, first, h)
    if session.flavour is Flavour.MYSQL:
        for outcome in apply_all(session, (create, change, restart, drop), h):
            assert (outcome.state, outcome.how, outcome.losses) == ("done", "nothing", ("d.s: sequence left out, because MySQL has none",))
        return
    assert apply(session, create, h).how == "text"
    assert session.query("SELECT increment FROM d.s") == [(5,)] and session.query("SELECT NEXT VALUE FOR d.s") == [(5,)]
    numbers = "SELECT start_value, increment, cache_size, next_not_cached_value FROM d.s"
    for step, following in ((change, 55), (restart, 40)):
        assert apply(session, step, h).how == "text"
        assert session.query(numbers) == [(5, 7, 10, following)]
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


@pytest.mark.shows("ddl of a later TiDB")
def test_a_type_of_a_later_tidb_is_executed_as_its_text(session: Session) -> None:
    outcome = run(session, 199, "ALTER TABLE `t` COMMENT = 'of a later type';")
    assert outcome.how == "text" and "of a later type" in shown(session)


@pytest.mark.shows("ddl of a later TiDB")
def test_a_type_of_a_later_tidb_that_the_target_refuses_says_how_to_go_on(session: Session) -> None:
    how_to_go_on = r"error 1064.*syncer.ignore-txn-commit-ts = \[40\], or set spark.ddl-policy to skip or quarantine"
    with pytest.raises(DdlRefused, match=how_to_go_on):
        run(session, 199, "ALTER TABLE `t` DO SOMETHING NEW;")


@pytest.mark.shows("ddl add check", "ddl drop check", "ddl alter check")
def test_a_check_which_the_upstream_has_made_is_left_out_and_named(session: Session) -> None:
    checked = {**CHILD, "constraint_info": [{"constraint_name": {"O": "c"}}]}
    h = told(
        (3, CHILD, MAKE_T),
        (43, checked, "ALTER TABLE `t` ADD CONSTRAINT `c` CHECK(`n`>0) ENFORCED;"),
        (45, checked, "ALTER TABLE `t` ALTER CONSTRAINT `c` NOT ENFORCED;"),
        (44, CHILD, "ALTER TABLE `t` DROP CONSTRAINT `c`;"),
    )
    outcomes = apply_all(session, steps_of(h), h)
    assert [outcome.state for outcome in outcomes] == ["done"] * 5 and "CHECK" not in shown(session)
    assert outcomes[2].losses == ("d.t: CHECK constraint left out, because the upstream has checked it",)


@pytest.mark.shows("ddl add columns", "ddl drop columns", "ddl drop indexes")
def test_old_jobs_of_several_columns_and_indexes(session: Session) -> None:
    more = [*PLAIN, column(3, "x"), column(4, "y")]
    h = told(
        (3, CHILD, MAKE_T),
        (37, table(11, "t", more), "ALTER TABLE `t` ADD COLUMN (`x` INT, `y` INT);"),
        (
            7,
            table(11, "t", more, index_info=[index(1, "a", ("x", 2)), index(2, "b", ("y", 3))]),
            "ALTER TABLE `t` ADD INDEX `a`(`x`), ADD INDEX `b`(`y`);",
        ),
        (48, table(11, "t", more), "ALTER TABLE `t` DROP INDEX `a`, DROP INDEX `b`;"),
        (38, CHILD, "ALTER TABLE `t` DROP COLUMN `x`, DROP COLUMN `y`;"),
    )
    for step in steps_of(h):
        assert apply(session, step, h).how == ("text" if step.job.id < 3 else "changes")
        if step.job.id == 4:
            assert "KEY `a` (`x`)" in shown(session) and "KEY `b` (`y`)" in shown(session)
    assert "KEY `a`" not in shown(session) and "`y`" not in shown(session)


@pytest.mark.shows("ddl table charset", "ddl index visibility")
def test_partitions_of_a_list_are_kept_by_a_charset_change(session: Session) -> None:
    key, parts = index(1, "i", ("k", 1)), [(21, "p0", "9"), (22, "p1", "99")]
    wide = table(11, "t", [BARE[0], TEXT_COLUMN], index_info=[key], partition=partitioned(1, *parts, expr="`id`"))
    bounds = "(PARTITION `p0` VALUES LESS THAN (9),PARTITION `p1` VALUES LESS THAN (99))"
    create = f"CREATE TABLE `t` (`id` INT PRIMARY KEY,`k` VARCHAR(20),KEY `i`(`k`)) PARTITION BY RANGE (`id`) {bounds};"
    h = told(
        (3, {**wide, "charset": "latin1", "collate": "latin1_bin"}, create),
        (22, wide, "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4 COLLATE UTF8MB4_BIN;"),
        (41, {**wide, "index_info": [{**key, "is_invisible": True}]}, "ALTER TABLE `t` ALTER INDEX `i` INVISIBLE;"),
        (20, {**wide, "partition": partitioned(1, parts[0], expr="`id`")}, "ALTER TABLE `t` DROP PARTITION IF EXISTS `p1`;"),
    )
    last = prepared(session, h)
    assert re.search("PARTITION `?p1`? VALUES", shown(session))
    assert ("INVISIBLE" if session.flavour is Flavour.MYSQL else "IGNORED") in shown(session)
    assert apply(session, last, h).how == "text"
    assert "p1" not in shown(session)


@pytest.mark.shows("ddl alter partitioning", "ddl remove partitioning")
def test_a_table_is_partitioned_anew_under_another_id(session: Session) -> None:
    """Its rows stay, and it is known under its new id only, over a death behind each of the two DDLs."""
    parted = table(20, "t", PLAIN, partition=partitioned(2, (21, "p0"), (22, "p1"), expr="`id`"))
    h = history(
        database(1),
        job(2, 3, CHILD, query=MAKE_T),
        job(3, JobType.ALTER_PARTITIONING, parted, table_id=11, query="ALTER TABLE `t` PARTITION BY HASH (`id`) PARTITIONS 2;"),
        job(4, JobType.REMOVE_PARTITIONING, table(30, "t", PLAIN), table_id=20, query="ALTER TABLE `t` REMOVE PARTITIONING;"),
    )
    *before, anew, removed = steps_of(h)
    apply_all(session, before, h)
    committed(session, "INSERT INTO d.t VALUES (1, 1), (2, 2)")
    for step, divided in ((anew, True), (removed, False)):
        die(session, step, h, "after-ddl")
        assert ("PARTITION BY" in shown(session)) is divided
        assert apply(session, step, h).state == "done"
        assert ("PARTITION BY" in shown(session)) is divided
        assert sorted(session.query("SELECT * FROM d.t")) == [(1, 1), (2, 2)]
    assert [t.table_id for t in h.tables_in("d", 4)] == [30]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_a_partition_is_exchanged_after_a_column_came(session: Session, point: str) -> None:
    """MySQL adds it without rewriting the rows, and then exchanges no partition before the table is rebuilt."""
    narrow = [column(1, "id", {**INT, "Flag": 4099})]
    wide = [*narrow, column(2, "n", default="7", origin_default="7")]

    def parent(columns: list[dict[str, Any]], first: int = 21) -> dict[str, Any]:
        return table(20, "t", columns, partition=partitioned(1, (first, "p0", "9"), (22, "p1", "99"), expr="`id`"))

    ranges = "PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (9),PARTITION `p1` VALUES LESS THAN (99))"
    h = told(
        (3, parent(narrow), f"CREATE TABLE `t` (`id` INT PRIMARY KEY) {ranges};"),
        (3, table(11, "x", narrow), "CREATE TABLE `x` (`id` INT PRIMARY KEY);"),
        (5, parent(wide), "ALTER TABLE `t` ADD COLUMN `n` INT DEFAULT 7;"),
        (5, table(11, "x", wide), "ALTER TABLE `x` ADD COLUMN `n` INT DEFAULT 7;"),
        (42, parent(wide, 11), "ALTER TABLE `t` EXCHANGE PARTITION `p0` WITH TABLE `x`;"),
        table_id=11,
    )
    *steps, last = steps_of(h)
    apply_all(session, steps[:3], h)
    committed(session, "INSERT INTO d.t VALUES (1), (20)", "INSERT INTO d.x VALUES (2)")
    apply_all(session, steps[3:], h)
    die(session, last, h, point)
    assert apply(session, last, h).how == ("found" if point == "after-ddl" else "text")
    assert session.query("SELECT * FROM d.t ORDER BY id") == [(2, 7), (20, 7)]
    assert session.query("SELECT * FROM d.x") == [(1, 7)]


def test_an_exchange_of_tables_that_differ_otherwise_says_in_what(session: Session) -> None:
    """No right that the account lacks is in its way, and no columns."""
    parent = [table(20, "t", partition=partitioned(1, (number, "p0", "9"), expr="`id`")) for number in (21, 11)]
    h = told(
        (3, parent[0], "CREATE TABLE `t` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (9));"),
        (3, table(11, "x"), "CREATE TABLE `x` (`id` INT PRIMARY KEY);"),
        (42, parent[1], "ALTER TABLE `t` EXCHANGE PARTITION `p0` WITH TABLE `x`;"),
        table_id=11,
    )
    last = prepared(session, h, {}, "INSERT INTO d.t VALUES (1)", "ALTER TABLE d.x ROW_FORMAT = COMPRESSED")
    with pytest.raises(DdlRefused, match=r"Non matching attribute 'ROW_FORMAT'.*Make this option equal in the two tables") as refused:
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
    die(session, steps[1], h, "before-ddl-done")
    committed(session, "DELETE FROM ddl_marks.spark_ddl WHERE job_id = 3")
    assert apply(session, steps[1], h).how == "nothing"
    assert "`k` varchar(20)" in shown(session) and "UNIQUE" not in shown(session)


def unnamed(*keys: tuple[str, str]) -> dict[str, Any]:
    return {"fk_info": [foreign_key(name, own, "p", "id") for name, own in keys]}


def test_a_foreign_key_without_a_name_is_dropped_under_the_targets_name(session: Session) -> None:
    """TiDB calls it fk_1, MariaDB t_ibfk_1; one that the target's DBA has made over the same column counts as the upstream's."""
    wide, first, second = [*PLAIN, column(3, "m")], ("fk_1", "n"), ("fk_2", "m")
    refers = "FOREIGN KEY (`n`) REFERENCES `p`(`id`) ON DELETE CASCADE"
    h = told(
        (3, PARENT, MAKE_P),
        (3, table(11, "t", wide, **unnamed(first)), f"CREATE TABLE `t` (`id` INT PRIMARY KEY,`n` INT,`m` INT,{refers});"),
        (9, table(11, "t", wide, **unnamed(first, second)), "ALTER TABLE `t` ADD FOREIGN KEY (`m`) REFERENCES `p`(`id`);"),
        (10, table(11, "t", wide, **unnamed(second)), "ALTER TABLE `t` DROP FOREIGN KEY `fk_1`;"),
        (6, table(11, "t", [wide[0], wide[2]], **unnamed(second)), "ALTER TABLE `t` DROP COLUMN `n`;"),
    )
    steps = steps_of(h)
    apply_all(session, steps[:3], h)
    session.execute("ALTER TABLE d.t ADD CONSTRAINT own FOREIGN KEY (m) REFERENCES p (id)")
    for step in steps[3:]:
        die(session, step, h, "after-ddl")
        assert apply(session, step, h).how == "found"
    assert "`n`" not in shown(session) and "`own` FOREIGN KEY (`m`)" in shown(session)
    assert shown(session).count("FOREIGN KEY") == 1


@pytest.mark.parametrize("point", ["", "after-ddl-intent", "after-ddl"])
def test_one_without_a_name_that_goes_is_not_the_one_that_comes(session: Session, point: str) -> None:
    """It is over the same column: DROP FOREIGN KEY fk_1, ADD FOREIGN KEY with another action."""
    cascades = {"fk_info": [foreign_key("fk_2", "n", "p", "id", on_delete=2)]}
    change = job(4, 61, table(11, "t", PLAIN, **cascades), query="alter table t drop foreign key fk_1, add foreign key (n) ...")
    h = history(database(1), job(2, 3, PARENT), job(3, 3, table(11, "t", PLAIN, **unnamed(("fk_1", "n")))), change)
    last = prepared(session, h)
    die(session, last, h, point)
    assert apply(session, last, h).state == "done"
    assert shown(session).count("FOREIGN KEY (`n`) REFERENCES `p` (`id`) ON DELETE CASCADE") == shown(session).count("FOREIGN KEY") == 1


def test_a_condition_in_a_text_that_is_all_that_is_known(session: Session, mariadb: PrivateMariaDB) -> None:
    """MySQL has none in ALTER TABLE and of indexes; a second time it is so already."""
    committed(session, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, gone INT)")
    texts = (
        "ALTER TABLE `t` ADD COLUMN IF NOT EXISTS `n` INT DEFAULT (IF(1,2,3))",
        "CREATE INDEX IF NOT EXISTS `i` ON `t` (`n`)",
        "ALTER TABLE `t` DROP COLUMN IF EXISTS `gone`",
    )
    for text in (*texts, *texts, "DROP INDEX IF EXISTS `i` ON `t`"):
        execute_text(lambda: connect(mariadb.target(), CONFIG), FEW, "d", text, session.flavour, Unrecorded())
    assert column_names(session, "d", "t") == ("id", "n")
    assert "KEY `i`" not in shown(session)
