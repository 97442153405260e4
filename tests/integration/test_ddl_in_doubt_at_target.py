"""Whether a DDL was executed before a crash, where other tables have nearly its names, and where what was recorded looks otherwise now."""

import dataclasses
import json

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names, take_snapshot
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.ddl_jobs import INT, column, database, history, job, partitioned, partitions, steps_of, table, told
from tests.support.ddl_target import CONFIG, apply, apply_all, committed, die, dying, prepared, shown
from tests.support.private_mysql import MYSQLD

pytestmark = pytest.mark.mysql

BOUNDS = "(PARTITION `p0` VALUES LESS THAN (9),PARTITION `pä` VALUES LESS THAN (99))"


@pytest.mark.parametrize("database", ["d", "we`ird_%-名"])
def test_tables_whose_names_differ_only_in_case_or_by_a_mark_have_their_own_ids(session: Session, database: str) -> None:
    """Ids go with a RENAME; each partition has one."""
    at = f"`{database.replace('`', '``')}`"
    names = [(database, name) for name in ("Orders", "ORDERS", "orders", "É", "é", "e", "ä", "ä#b", "a%", "a_", "a b-é")]
    session.execute(f"CREATE DATABASE IF NOT EXISTS {at}")
    for _, name in names:
        session.execute(f"CREATE TABLE {at}.`{name}` (id INT PRIMARY KEY)")
    session.execute(f"CREATE TABLE {at}.pt (id INT PRIMARY KEY) PARTITION BY RANGE (id) {BOUNDS}")
    session.execute(f"CREATE TABLE {at}.Pt (id INT PRIMARY KEY)")
    before = take_snapshot(session, [], names)
    assert before.ids_known and all(set(one.ids) == {""} for one in before.objects.values())
    assert len({one.ids[""] for one in before.objects.values()}) == len(names)
    parted = take_snapshot(session, [], [(database, "pt"), (database, "Pt")])
    assert [len(parted.objects[f"{database}.{name}"].ids) for name in ("pt", "Pt")] == [2, 1]
    session.execute(f"RENAME TABLE {at}.`é` TO {at}.`x`, {at}.`e` TO {at}.`é`")
    session.execute(f"RENAME TABLE {at}.`x` TO {at}.`e`")
    after = take_snapshot(session, [], names)
    was, now = ([one.objects[f"{database}.{name}"].ids for name in ("é", "e")] for one in (before, after))
    assert after.ids_known and now == was[::-1]
    session.execute(f"DROP DATABASE {at}")


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_a_rename_beside_tables_of_nearly_its_names(session: Session, point: str) -> None:
    """Somebody's own tables, made before it, and made again while the process is dead."""
    made = (3, table(10, "orders"), "CREATE TABLE `orders` (`id` INT PRIMARY KEY);")
    h = told(made, (JobType.RENAME_TABLE, table(10, "é"), "RENAME TABLE `orders` TO `é`;"))
    own = (f"CREATE TABLE d.`{name}` (id INT PRIMARY KEY, own INT)" for name in ("ORDERS", "Orders", "É"))
    rename = prepared(session, h, {}, "INSERT INTO d.orders VALUES (1)", *own)
    die(session, rename, h, point)
    committed(session, "TRUNCATE d.ORDERS", "TRUNCATE d.É")
    assert apply(session, rename, h).how == ("found" if point == "after-ddl" else "text")
    assert session.query("SELECT * FROM d.é") == [(1,)]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_a_rename_of_a_partitioned_table_to_a_name_of_other_letters(session: Session, point: str) -> None:
    was, now = (table(10, name, partition=partitions((21, "p0"), (22, "pä"))) for name in ("pt", "pé"))
    create = f"CREATE TABLE `pt` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) {BOUNDS};"
    h = told((3, was, create), (JobType.RENAME_TABLE, now, "RENAME TABLE `pt` TO `pé`;"))
    rename = prepared(session, h)
    die(session, rename, h, point)
    assert apply(session, rename, h).how == ("found" if point == "after-ddl" else "text")
    assert column_names(session, "d", "pé") == ("id",)


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL gives a table a key of its own")
def test_what_a_former_release_has_recorded_with_the_server_s_key(session: Session) -> None:
    """Its sessions saw the key; nothing of that is a change of the table."""
    session.execute("SET SESSION sql_generate_invisible_primary_key = 1")
    bare, n = {"pk_is_handle": False, "index_info": None}, [column(2, "n")]
    h = told(
        (3, table(10, "t", n, **bare), "CREATE TABLE `t` (`n` INT);"),
        (JobType.TABLE_COMMENT, table(10, "t", n, comment="x", **bare), "ALTER TABLE `t` COMMENT = 'x';"),
        (JobType.RENAME_TABLE, table(10, "u", n, comment="x", **bare), "RENAME TABLE `t` TO `u`;"),
    )
    *made, comment, rename = steps_of(h)
    apply_all(session, made, h)
    for step in (comment, rename):
        session.execute("SET SESSION show_gipk_in_create_table_and_information_schema = 1")
        die(session, step, h, "after-ddl-intent")
        session.execute("SET SESSION show_gipk_in_create_table_and_information_schema = 0")
        assert apply(session, step, h).how == "text"
    assert "COMMENT='x'" in shown(session, "d.u")


def test_a_changed_database_is_no_sign_that_its_ddl_was_executed(session: Session) -> None:
    """A MySQL's is READ ONLY while the DDL is tried, and then not any more. A second time it does the same."""
    changed = {"id": 1000, "db_name": {"O": "d"}, "charset": "utf8", "collate": "utf8_general_ci"}
    h = history(database(1), job(2, JobType.SCHEMA_CHARSET, None, db=changed, schema_id=1000, schema_name="d"))
    made, alter = steps_of(h, {2: "ALTER DATABASE `d` CHARACTER SET utf8 COLLATE utf8_general_ci"})
    apply(session, made, h)
    if session.flavour is Flavour.MYSQL:
        session.execute("ALTER DATABASE d READ ONLY = 1")
    die(session, alter, h, "after-ddl-intent")
    if session.flavour is Flavour.MYSQL:
        session.execute("ALTER DATABASE d READ ONLY = 0")
    else:
        session.execute("ALTER DATABASE d CHARACTER SET ascii")
    assert apply(session, alter, h).how == "text"
    shown = session.query("SELECT default_character_set_name FROM information_schema.schemata WHERE schema_name = 'd'")
    assert shown == [("utf8mb3",)]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_other_bounds_under_the_same_names_are_made_whatever_else_has_changed(session: Session, point: str) -> None:
    """Somebody's index, made while the process is dead, is no sign that the partitions were divided anew."""
    columns = [column(1, "id", {**INT, "Flag": 4099}), column(2, "b")]

    def bounds(first: int) -> str:
        return f"(PARTITION `p0` VALUES LESS THAN ({first}),PARTITION `p1` VALUES LESS THAN (100))"

    def info(first: int, p0: int, p1: int) -> dict[str, object]:
        return table(10, "t", columns, partition=partitioned(1, (p0, "p0", str(first)), (p1, "p1", "100"), expr="`id`"))

    h = told(
        (3, info(10, 21, 22), f"CREATE TABLE `t` (`id` INT PRIMARY KEY,`b` INT) PARTITION BY RANGE (`id`) {bounds(10)};"),
        (JobType.REORGANIZE_PARTITION, info(50, 31, 32), f"ALTER TABLE `t` REORGANIZE PARTITION `p0`,`p1` INTO {bounds(50)};"),
        (JobType.TRUNCATE_PARTITION, info(50, 41, 32), "ALTER TABLE `t` TRUNCATE PARTITION `p0`;"),
    )
    *made, divide, empty = steps_of(h)
    apply_all(session, made, h)
    committed(session, "INSERT INTO d.t VALUES (1, 1), (20, 20), (60, 60)")
    die(session, divide, h, point)
    session.execute("ALTER TABLE d.t ADD INDEX mine (b)")
    apply_all(session, (divide, empty), h)
    assert session.query("SELECT * FROM d.t") == [(60, 60)]


@pytest.mark.shows("ddl drop schema")
@pytest.mark.parametrize("left", [("a", "b"), ("b",), ()])
def test_what_is_left_of_a_database_whose_drop_the_target_was_killed_in_is_dropped(session: Session, left: tuple[str, ...]) -> None:
    made = [(3, table(number, name), f"CREATE TABLE `{name}` (`id` INT PRIMARY KEY);") for number, name in ((11, "a"), (12, "b"))]
    h = told(*made, (2, None, "DROP DATABASE `d`;"))
    drop = prepared(session, h)
    with dying("after-ddl-intent"):
        apply(session, drop, h)
    # What a database has may be too large for one statement, and is not needed.
    ((picture,),) = session.query("SELECT picture FROM ddl_marks.spark_ddl WHERE job_id = 4")
    assert "CREATE" not in picture and len(picture) < 100
    session.rollback()
    committed(session, *(f"DROP TABLE d.{name}" for name in {"a", "b"} - set(left)))
    outcome = apply(session, drop, h)
    assert (outcome.state, outcome.how) == ("done", "text")
    assert session.query("SHOW DATABASES LIKE 'd'") == []


def as_recorded_by_another_server(session: Session) -> None:
    """The open intent's picture is of a server with other ids, which by chance are those that two tables would have if they had changed places."""
    ((text,),) = session.query("SELECT picture FROM ddl_marks.spark_ddl WHERE state = 'intent'")
    picture = json.loads(text)
    *_, (first, a), (second, b) = [
        ({}, ""),
        *((one["ids"], part) for _, one in sorted(picture["objects"].items()) for part in sorted(one["ids"])),
    ]
    first[a], second[b] = second[b], first.get(a, 1)
    assert picture["server"]
    picture["server"] = dict.fromkeys(picture["server"], "another")
    session.execute("UPDATE ddl_marks.spark_ddl SET picture = %s WHERE state = 'intent'", [json.dumps(picture)])
    session.commit()


def exchange_of(session: Session) -> tuple[DdlStep, SchemaHistory]:
    """A partition and a table with a row each, and the EXCHANGE of them, which is still to be done."""
    made, exchanged = (table(20, "t", partition=partitioned(1, (21, "p0", "9"), (i, "p1", "99"), expr="`id`")) for i in (22, 11))
    bounds = "(PARTITION `p0` VALUES LESS THAN (9),PARTITION `p1` VALUES LESS THAN (99))"
    h = told(
        (3, made, f"CREATE TABLE `t` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) {bounds}"),
        (3, table(11, "x"), "CREATE TABLE `x` (`id` INT PRIMARY KEY)"),
        (42, exchanged, "ALTER TABLE `t` EXCHANGE PARTITION `p1` WITH TABLE `x`"),
        table_id=11,
    )
    return prepared(session, h, {}, "INSERT INTO d.t VALUES (15)", "INSERT INTO d.x VALUES (16)"), h


def test_ids_of_another_server_do_not_say_that_a_partition_was_exchanged(session: Session) -> None:
    """A replica that is behind has taken the place of the server, and gives ids of its own."""
    exchange, h = exchange_of(session)
    die(session, exchange, h, "after-ddl-intent")
    as_recorded_by_another_server(session)
    with pytest.raises(ApplyError, match="the target is no longer the server where it was begun"):
        apply(session, exchange, h)
    session.rollback()
    assert (session.query("SELECT id FROM d.t"), session.query("SELECT id FROM d.x")) == ([(15,)], [(16,)])
    committed(session, "DELETE FROM ddl_marks.spark_ddl WHERE state = 'intent'")
    assert apply(session, exchange, h).how == "text"
    assert (session.query("SELECT id FROM d.t"), session.query("SELECT id FROM d.x")) == ([(16,)], [(15,)])


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_at_another_server_the_names_say_whether_tables_were_renamed(session: Session, point: str) -> None:
    more = (3, table(11, "b", [column(1, "id"), column(2, "n")]), "CREATE TABLE `b` (`id` INT, `n` INT)")
    h = told((3, table(10, "a"), "CREATE TABLE `a` (`id` INT)"), more, (14, table(10, "c"), "ALTER TABLE `a` RENAME TO `c`"))
    rename = prepared(session, h)
    die(session, rename, h, point)
    as_recorded_by_another_server(session)
    assert apply(session, rename, h).how == ("found" if point == "after-ddl" else "text")
    assert session.query("SHOW TABLES FROM d") == [("b",), ("c",)]


@pytest.mark.skipif(bool(MYSQLD), reason="a MySQL has its UUID in its data directory")
@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_the_same_server_in_a_new_container_has_the_same_ids(point: str) -> None:
    """``server_uid`` is of the network card and the port; a privilege that is granted meanwhile shows when the data directory was made."""
    with PrivateMariaDB(options={"port": "13306"}) as server:
        with server.connect() as connection, connection.cursor() as root:
            root.execute("CREATE USER drainer@localhost IDENTIFIED BY 'a password'")
            root.execute("GRANT ALL ON d.* TO drainer@localhost")
            root.execute("GRANT ALL ON ddl_marks.* TO drainer@localhost")
            root.execute("GRANT PROCESS, SUPER ON *.* TO drainer@localhost")
        account = dataclasses.replace(server.target(), user="drainer", password="a password")
        uids = []
        with connect(account, CONFIG) as session:
            ensure_ddl_table(session, CONFIG)
            uids += session.query("SELECT @@GLOBAL.server_uid")
            exchange, h = exchange_of(session)
            with dying(point):
                apply(session, exchange, h)
        with server.connect() as connection, connection.cursor() as root:
            root.execute("GRANT SELECT ON *.* TO drainer@localhost")
        server.kill()
        server._options["port"] = "13307"
        server.restart()
        with connect(account, CONFIG) as session:
            uids += session.query("SELECT @@GLOBAL.server_uid")
            assert apply(session, exchange, h).how == ("found" if point == "after-ddl" else "text")
            assert (session.query("SELECT id FROM d.t"), session.query("SELECT id FROM d.x")) == ([(16,)], [(15,)])
        assert uids[0] != uids[1]
