"""Primary keys that a MySQL gives tables itself: they are not seen, and one of the upstream takes their place."""

import dataclasses

import pytest

from pyspark_tidb_binlog.conf.model import TableRoute
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, column, database, history, index, job, steps_of, table
from tests.support.ddl_target import CONFIG, apply, apply_all, committed, dying, prepared
from tests.support.private_mysql import MYSQLD

pytestmark = pytest.mark.mysql

PLAIN = [column(1, "id", {**INT, "Flag": 4099 | 512}), column(2, "n")]


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
    keying = prepared(session, h, texts, "INSERT INTO d.t VALUES (1, 2), (1, 2)")
    with pytest.raises(DdlRefused, match="1062"):
        apply(session, keying, h)
    committed(session, "DELETE FROM d.t LIMIT 1")
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
    apply_all(session, made, h, config)
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
    assert [apply(session, step, h).how for step in steps_of(h, texts)] == ["text"] * 4 + ["changes"]
    assert session.query("SELECT @@SESSION.sql_generate_invisible_primary_key") == [(1,)]
    more = history(database(1), job(6, 3, {**counted, "id": 14, "name": {"O": "z"}}))
    session.execute("SET SESSION sql_require_primary_key = 1")
    *_, last = steps_of(more, {6: "CREATE TABLE `z` (`id` INT AUTO_INCREMENT,KEY `i`(`id`));"})
    with pytest.raises(DdlRefused, match="4109"):
        apply(session, last, more)
