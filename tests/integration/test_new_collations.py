"""``spark.upstream-new-collations``: the upstream's own names where it pads, and a target that has both kinds of tables."""

import dataclasses
import logging
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TargetConfig, UpstreamConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import new_collations, with_collations
from tests.integration import test_findings
from tests.support import plan_samples
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, steps_of, table
from tests.support.ddl_target import apply, committed, ddl_session
from tests.support.plan_samples import NOT_NULL, Events
from tests.support.private_mysql import MYSQLD, NO_PAD_BIN

pytestmark = pytest.mark.mysql

MARKS = "nc_marks"
OLD = ApplyConfig(drainer="nc", checkpoint_schema=MARKS, upstream_new_collations="false")
NEW = dataclasses.replace(OLD, upstream_new_collations="true")
UNKNOWN = dataclasses.replace(OLD, upstream_new_collations="auto")
GENERAL = VARCHAR | {"Collate": "utf8mb4_general_ci"}
GBK = VARCHAR | {"Charset": "gbk", "Collate": "gbk_bin"}


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target(), OLD) as session:
        yield session


def made(name: str = "t", *more: dict[str, object]) -> dict[str, object]:
    columns = [column(1, "id", {**INT, "Flag": 4099}), column(2, "k", VARCHAR), *more]
    return table(10, name, columns, index_info=[index(1, "k", ("k", 1), unique=True)])


CREATE = "CREATE TABLE `t` (`id` INT PRIMARY KEY,`k` VARCHAR(20),UNIQUE `k`(`k`));"
WIDER = VARCHAR | {"Flen": 40}


def shown(session: Session, name: str = "t") -> str:
    return str(session.query(f"SHOW CREATE TABLE d.{name}")[0][1])


def collations(session: Session) -> dict[str, str]:
    rows = session.query(
        "SELECT column_name, collation_name FROM information_schema.columns WHERE table_schema = 'd' AND collation_name IS NOT NULL"
    )
    return {str(name): str(collation) for name, collation in rows}


@pytest.mark.shows("spark.upstream-new-collations")
def test_show_create_table_has_the_names_that_everybody_knows(session: Session) -> None:
    h = history(database(1), job(2, 3, made("t", column(3, "g", GBK))))
    text = CREATE.replace("`k` VARCHAR(20)", "`k` VARCHAR(20),`g` VARCHAR(20) CHARACTER SET GBK COLLATE gbk_bin", 1)
    for step in steps_of(h, {2: text}):
        assert apply(session, step, h, NEW).how == "text"
    assert shown(session).endswith("DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin") and NO_PAD_BIN not in shown(session)
    assert collations(session) == {"k": "utf8mb4_bin", "g": "utf8mb4_bin"}
    session.execute("INSERT INTO d.t VALUES (1, 'a', '')")
    with pytest.raises(ApplyError, match="1062"):  # one key, as in an upstream that pads
        session.execute("INSERT INTO d.t VALUES (2, 'a ', '')")


def test_a_false_one_keeps_apart_what_an_old_upstream_keeps_apart(session: Session) -> None:
    h = history(database(1), job(2, 3, made()))
    for step in steps_of(h, {2: CREATE}):
        apply(session, step, h, OLD)
    assert f"COLLATE={NO_PAD_BIN}" in shown(session)
    session.execute("INSERT INTO d.t VALUES (1, 'a'), (2, 'a ')")
    assert session.query("SELECT COUNT(*) FROM d.t") == [(2,)]


def rows_of_ci_keys(session: Session, target: TargetConfig, config: ApplyConfig) -> tuple[list[tuple[object, ...]], list[str]]:
    """What is there behind inserts of the keys 'a', 'A', 'é', a delete of 'a', and a change of 'é' to 'e', and what was found."""
    key = dataclasses.replace(plan_samples.text("k", NOT_NULL), collate="utf8mb4_general_ci")
    t = plan_samples.table([key, plan_samples.column("n")], [plan_samples.index("PRIMARY", ("k", -1), primary=True)], handle="common")
    first = Events(t).insert("a", 1).insert("A", 2).insert("é", 3)
    then = Events(t, 2000).delete("a", 1).update(("é", 3), ("e", 3))
    found = [f.words for events in (first, then) for f in test_findings.apply(target, events, t, config)]
    return session.query("SELECT k, n FROM d.t ORDER BY n"), found


def test_keys_of_old_collations_are_bytes_whatever_their_name(session: Session, mariadb: PrivateMariaDB) -> None:
    """TiDB with new_collation_enabled = false keeps 'a' and 'A' apart in utf8mb4_general_ci."""
    general = VARCHAR | {"Collate": "utf8mb4_general_ci", "Flag": 4099}
    keyed = {"pk_is_handle": False, "is_common_handle": True, "collate": "utf8mb4_general_ci"}
    made = table(
        11, "t", [column(1, "k", general), column(2, "n")], index_info=[index(1, "PRIMARY", ("k", 0), unique=True, primary=True)], **keyed
    )
    wide = table(11, "t", [column(1, "k", general | {"Flen": 40}), column(2, "n")], index_info=made["index_info"], **keyed)
    h = history(database(1), job(2, 3, made), job(3, 12, wide))
    texts = {
        2: "CREATE TABLE `t` (`k` VARCHAR(20) PRIMARY KEY,`n` INT) DEFAULT CHARACTER SET UTF8MB4 DEFAULT COLLATE UTF8MB4_GENERAL_CI;",
        3: "ALTER TABLE `t` MODIFY COLUMN `k` VARCHAR(40) COLLATE utf8mb4_general_ci NOT NULL;",
    }
    *first, last = steps_of(h, texts)
    for step in first:
        apply(session, step, h, OLD)
    assert rows_of_ci_keys(session, mariadb.target(), OLD) == ([("A", 2), ("e", 3)], [])
    session.rollback()
    for config in (NEW, UNKNOWN):  # another answer: the table stays as it is
        apply(session, last, h, config)
        assert collations(session) == {"k": NO_PAD_BIN} and "varchar(40)" in shown(session)
        committed(session, "DELETE FROM nc_marks.spark_ddl WHERE job_id = 3")


@pytest.mark.skipif(not MYSQLD, reason="only at a MySQL such texts become utf8mb4")
def test_a_key_that_is_too_long_in_utf8mb4_says_what_to_do(session: Session) -> None:
    key = VARCHAR | {"Charset": "utf8", "Collate": "utf8_bin", "Flen": 1000, "Flag": 4099}
    primary = index(1, "PRIMARY", ("k", 0), unique=True, primary=True)
    keyed = {"pk_is_handle": False, "is_common_handle": True, "charset": "utf8", "collate": "utf8_bin"}
    h = history(database(1), job(2, 3, table(10, "t", [column(1, "k", key)], index_info=[primary], **keyed)))
    first, create = steps_of(h, {2: "CREATE TABLE `t` (`k` VARCHAR(1000) PRIMARY KEY) CHARSET=utf8;"})
    apply(session, first, h, OLD)
    with pytest.raises(DdlRefused, match="by hand with the upstream's charset"):
        apply(session, create, h, OLD)
    session.execute("CREATE TABLE d.t (k VARCHAR(1000) PRIMARY KEY) CHARACTER SET utf8mb3 COLLATE utf8mb3_bin")
    assert apply(session, create, h, OLD).state == "done"


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL has an index that needs more than rows of 767 bytes in such a charset")
def test_short_rows_say_what_to_do(session: Session) -> None:
    key = VARCHAR | {"Flen": 255, "Flag": 4099}
    primary = index(1, "PRIMARY", ("k", 0), unique=True, primary=True)
    h = history(
        database(1), job(2, 3, table(10, "t", [column(1, "k", key)], index_info=[primary], pk_is_handle=False, is_common_handle=True))
    )
    steps = steps_of(h, {2: "CREATE TABLE `t` (`k` VARCHAR(255) PRIMARY KEY);"})
    apply(session, steps[0], h, OLD)
    session.execute("SET GLOBAL innodb_default_row_format = COMPACT")
    try:
        with pytest.raises(DdlRefused, match="SET GLOBAL innodb_default_row_format = DYNAMIC there"):
            apply(session, steps[1], h, OLD)
    finally:
        session.execute("SET GLOBAL innodb_default_row_format = DYNAMIC")
    session.rollback()
    assert apply(session, steps[1], h, OLD).how == "text"


@pytest.mark.shows("spark.upstream-new-collations")
def test_a_table_from_before_the_setting_stays_as_it_is(session: Session) -> None:
    wide = made("t", column(3, "n", VARCHAR))
    wide["cols"][1] |= {"type": WIDER}  # type: ignore[index]
    other = table(11, "u", [column(1, "id", {**INT, "Flag": 4099}), column(2, "c", VARCHAR)])
    h = history(
        database(1),
        job(2, 3, made()),
        job(3, 5, made("t", column(3, "n", VARCHAR))),
        job(4, 12, wide),
        job(5, 3, other),
    )
    texts = {
        2: CREATE,
        3: "ALTER TABLE `t` ADD COLUMN `n` VARCHAR(20);",
        4: "ALTER TABLE `t` MODIFY COLUMN `k` VARCHAR(40);",
        5: "CREATE TABLE `u` (`id` INT PRIMARY KEY,`c` VARCHAR(20));",
    }
    steps = steps_of(h, texts)
    for step in steps[:2]:
        apply(session, step, h, OLD)
    committed(session, "INSERT INTO d.t VALUES (1, 'a'), (2, 'a ')")
    assert [apply(session, step, h, NEW).how for step in steps[2:]] == ["changes", "changes", "text"]
    assert collations(session) == {"k": NO_PAD_BIN, "n": "utf8mb4_bin", "c": "utf8mb4_bin"}
    assert "`k` varchar(40)" in shown(session) and session.query("SELECT k FROM d.t ORDER BY id") == [("a",), ("a ",)]


def test_an_empty_table_that_is_there_under_the_other_name_is_taken(session: Session) -> None:
    h = history(database(1), job(2, 3, made()))
    session.execute("CREATE DATABASE d")
    session.execute(f"CREATE TABLE d.t (id INT PRIMARY KEY, k VARCHAR(20), UNIQUE k (k)) CHARSET utf8mb4 COLLATE {NO_PAD_BIN}")
    assert [apply(session, step, h, NEW).how for step in steps_of(h, {2: CREATE})] == ["nothing", "nothing"]
    assert collations(session) == {"k": NO_PAD_BIN}


@pytest.fixture(scope="module")
def upstream() -> Iterator[TargetConfig]:
    """A server with TiDB's table, and accounts: one that may read it, and one that may not."""
    with PrivateMariaDB() as server, server.connect() as connection, connection.cursor() as cursor:
        for sql in (
            "CREATE TABLE mysql.tidb (VARIABLE_NAME VARCHAR(64) PRIMARY KEY, VARIABLE_VALUE VARCHAR(1024), COMMENT VARCHAR(1024))",
            "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'pässword'",
            "GRANT SELECT ON mysql.tidb TO reader@'127.0.0.1'",
            "CREATE USER nobody@'127.0.0.1' IDENTIFIED BY 'pässword'",
        ):
            cursor.execute(sql)
        connection.commit()
        yield server.target()


def asked(upstream: TargetConfig, user: str = "reader", password: str = "pässword") -> UpstreamConfig:
    return UpstreamConfig("127.0.0.1", upstream.port, user, password)


@pytest.mark.shows("spark.upstream.host", "spark.upstream.port", "spark.upstream.user", "spark.upstream-new-collations")
@pytest.mark.parametrize(("value", "wanted"), [("True", True), ("False", False), (None, None)])
def test_auto_asks_the_upstream_and_says_what_it_chose(
    upstream: TargetConfig, value: str | None, wanted: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark_tidb_binlog.sinks.mysql.session import connect

    with connect(upstream, OLD) as session:
        session.execute("DELETE FROM mysql.tidb")
        session.execute("INSERT INTO mysql.tidb VALUES ('tidb_server_version', '149', '')")
        if value is not None:
            session.execute("INSERT INTO mysql.tidb VALUES ('new_collation_enabled', %s, 'If the new collations are enabled.')", [value])
        session.commit()
    assert new_collations(asked(upstream)) is wanted
    caplog.set_level(logging.INFO)
    found = with_collations(DrainerConfig(upstream=asked(upstream)))
    assert found.apply.upstream_new_collations == ("true" if wanted else "false")
    said = f"has new_collation_enabled = {wanted}" if value else "has no new_collation_enabled"
    name = "collations keep their names" if wanted else "every collation becomes a NO PAD _bin"
    assert f"because mysql.tidb at 127.0.0.1:{upstream.port} {said}" in caplog.text and name in caplog.text


@pytest.mark.shows("spark.upstream.password")
@pytest.mark.parametrize(("user", "password", "error"), [("reader", "wrong", "1045"), ("nobody", "pässword", "1142")])
def test_who_gets_no_answer_does_not_know(
    upstream: TargetConfig, user: str, password: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = with_collations(DrainerConfig(upstream=asked(upstream, user, password)))
    assert found.apply.upstream_new_collations == "auto"
    assert f"error {error}" in caplog.text and "did not answer" in caplog.text and password not in caplog.text


@pytest.mark.parametrize(("setting", "why"), [("auto", "names no TiDB to ask"), ("true", "upstream-new-collations = true")])
def test_nobody_is_asked(setting: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    upstream = UpstreamConfig("127.0.0.1", 1) if setting == "true" else UpstreamConfig()
    found = with_collations(DrainerConfig(upstream=upstream, apply=ApplyConfig(upstream_new_collations=setting)))
    assert found.apply.upstream_new_collations == setting
    assert why in caplog.text
