"""Whether a DDL was executed before a crash, where other tables have nearly its names, and where what was recorded looks otherwise now."""

import dataclasses
import json
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import JobType, SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names, take_snapshot
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.ddl_jobs import INT, column, database, history, job, partitioned, partitions, steps_of, table
from tests.support.ddl_target import CONFIG, apply, apply_all, ddl_session, die, dying, prepared
from tests.support.private_mysql import MYSQLD

pytestmark = pytest.mark.mysql

BOUNDS = "(PARTITION `p0` VALUES LESS THAN (9),PARTITION `pä` VALUES LESS THAN (99))"


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target()) as session:
        yield session


def test_tables_whose_names_differ_only_in_case_or_by_a_mark_have_their_own_ids(session: Session) -> None:
    session.execute("CREATE DATABASE d")
    names = [("d", name) for name in ("Orders", "ORDERS", "orders", "É", "é", "e", "ä", "ä#b", "a%", "a_")]
    for _, name in names:
        session.execute(f"CREATE TABLE d.`{name}` (id INT PRIMARY KEY)")
    session.execute(f"CREATE TABLE d.pt (id INT PRIMARY KEY) PARTITION BY RANGE (id) {BOUNDS}")
    session.execute("CREATE TABLE d.Pt (id INT PRIMARY KEY)")
    picture = take_snapshot(session, [], names)
    assert picture.ids_known and all(set(one.ids) == {""} for one in picture.objects.values())
    assert len({one.ids[""] for one in picture.objects.values()}) == len(names)
    parted = take_snapshot(session, [], [("d", "pt"), ("d", "Pt")])
    assert [len(parted.objects[f"d.{name}"].ids) for name in ("pt", "Pt")] == [2, 1]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_a_rename_beside_tables_of_nearly_its_names(session: Session, point: str) -> None:
    """Somebody's own tables, made before it, and made again while the process is dead."""
    h = history(database(1), job(2, 3, table(10, "orders")), job(3, JobType.RENAME_TABLE, table(10, "é")))
    rename = prepared(
        session,
        h,
        {2: "CREATE TABLE `orders` (`id` INT PRIMARY KEY);", 3: "RENAME TABLE `orders` TO `é`;"},
        "INSERT INTO d.orders VALUES (1)",
    )
    for name in ("ORDERS", "Orders", "É"):
        session.execute(f"CREATE TABLE d.`{name}` (id INT PRIMARY KEY, own INT)")
    die(session, rename, h, point)
    session.execute("TRUNCATE d.ORDERS")
    session.execute("TRUNCATE d.É")
    assert apply(session, rename, h).how == ("found" if point == "after-ddl" else "text")
    assert session.query("SELECT * FROM d.é") == [(1,)]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_a_rename_of_a_partitioned_table_to_a_name_of_other_letters(session: Session, point: str) -> None:
    def info(name: str) -> dict[str, object]:
        return table(10, name, partition=partitions((21, "p0"), (22, "pä")))

    h = history(database(1), job(2, 3, info("pt")), job(3, JobType.RENAME_TABLE, info("pé")))
    texts = {2: f"CREATE TABLE `pt` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) {BOUNDS};", 3: "RENAME TABLE `pt` TO `pé`;"}
    rename = prepared(session, h, texts)
    die(session, rename, h, point)
    assert apply(session, rename, h).how == ("found" if point == "after-ddl" else "text")
    assert column_names(session, "d", "pé") == ("id",)


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL gives a table a key of its own")
def test_what_a_former_release_has_recorded_with_the_server_s_key(session: Session) -> None:
    """Its sessions saw the key; nothing of that is a change of the table."""
    session.execute("SET SESSION sql_generate_invisible_primary_key = 1")
    bare = {"pk_is_handle": False, "index_info": None}
    n = [column(2, "n")]
    h = history(
        database(1),
        job(2, 3, table(10, "t", n, **bare)),
        job(3, JobType.TABLE_COMMENT, table(10, "t", n, comment="x", **bare)),
        job(4, JobType.RENAME_TABLE, table(10, "u", n, comment="x", **bare)),
    )
    texts = {2: "CREATE TABLE `t` (`n` INT);", 3: "ALTER TABLE `t` COMMENT = 'x';", 4: "RENAME TABLE `t` TO `u`;"}
    *made, comment, rename = steps_of(h, texts)
    apply_all(session, made, h)
    for step in (comment, rename):
        session.execute("SET SESSION show_gipk_in_create_table_and_information_schema = 1")
        die(session, step, h, "after-ddl-intent")
        session.execute("SET SESSION show_gipk_in_create_table_and_information_schema = 0")
        assert apply(session, step, h).how == "text"
    assert "COMMENT='x'" in session.query("SHOW CREATE TABLE d.u")[0][1]


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

    def info(first: int, p0: int, p1: int) -> dict[str, object]:
        parts = partitions((p0, "p0"), (p1, "p1"))
        for part, bound in zip(parts["definitions"], (first, 100), strict=True):
            part["less_than"] = [str(bound)]
        return table(
            10,
            "t",
            [column(1, "id", {**INT, "Flag": 4099}), column(2, "b")],
            partition={**parts, "type": 1, "expr": "`id`", "enable": True, "num": 2},
        )

    changes = [job(3, JobType.REORGANIZE_PARTITION, info(50, 31, 32)), job(4, JobType.TRUNCATE_PARTITION, info(50, 41, 32))]
    h = history(database(1), job(2, 3, info(10, 21, 22)), *changes)
    *made, divide, empty = steps_of(
        h,
        {
            2: "CREATE TABLE `t` (`id` INT PRIMARY KEY,`b` INT) PARTITION BY RANGE (`id`) "
            "(PARTITION `p0` VALUES LESS THAN (10),PARTITION `p1` VALUES LESS THAN (100));",
            3: "ALTER TABLE `t` REORGANIZE PARTITION `p0`,`p1` INTO (PARTITION `p0` VALUES LESS THAN (50),PARTITION `p1` VALUES LESS THAN (100));",
            4: "ALTER TABLE `t` TRUNCATE PARTITION `p0`;",
        },
    )
    apply_all(session, made, h)
    session.execute("INSERT INTO d.t VALUES (1, 1), (20, 20), (60, 60)")
    session.commit()
    die(session, divide, h, point)
    session.execute("ALTER TABLE d.t ADD INDEX mine (b)")
    apply(session, divide, h)
    apply(session, empty, h)
    assert session.query("SELECT * FROM d.t") == [(60, 60)]


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
    h = history(
        database(1),
        job(2, 3, made),
        job(3, 3, table(11, "x")),
        job(4, 42, exchanged, table_id=11),
    )
    bounds = "(PARTITION `p0` VALUES LESS THAN (9),PARTITION `p1` VALUES LESS THAN (99))"
    texts = {
        2: f"CREATE TABLE `t` (`id` INT PRIMARY KEY) PARTITION BY RANGE (`id`) {bounds}",
        3: "CREATE TABLE `x` (`id` INT PRIMARY KEY)",
        4: "ALTER TABLE `t` EXCHANGE PARTITION `p1` WITH TABLE `x`",
    }
    exchange = prepared(session, h, texts, "INSERT INTO d.t VALUES (15)", "INSERT INTO d.x VALUES (16)")
    return exchange, h


def test_ids_of_another_server_do_not_say_that_a_partition_was_exchanged(session: Session) -> None:
    """A replica that is behind has taken the place of the server, and gives ids of its own."""
    exchange, h = exchange_of(session)
    die(session, exchange, h, "after-ddl-intent")
    as_recorded_by_another_server(session)
    with pytest.raises(ApplyError, match="the target is no longer the server where it was begun"):
        apply(session, exchange, h)
    session.rollback()
    assert (session.query("SELECT id FROM d.t"), session.query("SELECT id FROM d.x")) == ([(15,)], [(16,)])
    session.execute("DELETE FROM ddl_marks.spark_ddl WHERE state = 'intent'")
    session.commit()
    assert apply(session, exchange, h).how == "text"
    assert (session.query("SELECT id FROM d.t"), session.query("SELECT id FROM d.x")) == ([(16,)], [(15,)])


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_at_another_server_the_names_say_whether_tables_were_renamed(session: Session, point: str) -> None:
    more = table(11, "b", [column(1, "id"), column(2, "n")])
    h = history(database(1), job(2, 3, table(10, "a")), job(3, 3, more), job(4, 14, table(10, "c")))
    texts = {2: "CREATE TABLE `a` (`id` INT)", 3: "CREATE TABLE `b` (`id` INT, `n` INT)", 4: "ALTER TABLE `a` RENAME TO `c`"}
    rename = prepared(session, h, texts)
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
