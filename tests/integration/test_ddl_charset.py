"""Keys of a table made without any charset clause compare as TiDB's do, whatever the target's defaults are; and gbk, of which servers lack characters."""

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.history import JobReader, SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support import ddl_jobs
from tests.support.ddl_jobs import INT, database, history, index, partitioned, steps_of
from tests.support.ddl_target import apply, ddl_session, die, losses
from tests.support.leases import held
from tests.support.private_mysql import NO_PAD_BIN

pytestmark = pytest.mark.mysql

CONFIG = ApplyConfig()
TEXT = {"Tp": 15, "Flag": 4099, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin", "Elems": None}


def column(column_id: int, name: str) -> dict[str, object]:
    return {"id": column_id, "name": {"O": name}, "offset": column_id - 1, "type": TEXT, "state": 5}


def job(job_id: int, kind: int, query: str, columns: tuple[str, ...] = ()) -> dict[str, object]:
    key = {
        "id": 1,
        "idx_name": {"O": "k"},
        "idx_cols": [{"name": {"O": "k"}, "offset": 0, "length": -1}],
        "state": 5,
        "is_unique": True,
        "is_primary": False,
    }
    table = {
        "id": 5,
        "name": {"O": "t"},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [column(i + 1, n) for i, n in enumerate(columns)],
        "index_info": [key],
        "pk_is_handle": False,
        "is_common_handle": False,
    }
    database = {"id": 4, "db_name": {"O": "cs"}, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    binlog = {"SchemaVersion": job_id, "DBInfo": None if columns else database, "TableInfo": table if columns else None}
    return {"id": job_id, "type": kind, "state": 6, "schema_id": 4, "table_id": 5, "schema_name": "cs", "query": query, "binlog": binlog}


@pytest.fixture(params=[("latin1", "latin1_swedish_ci"), ("utf8mb4", "utf8mb4_general_ci")], ids=["latin1", "general_ci"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    charset, collation = request.param
    with (
        PrivateMariaDB(options={"character-set-server": charset, "collation-server": collation}) as server,
        connect(server.target(), CONFIG) as session,
    ):
        assert session.query("SELECT @@character_set_server") == [(charset,)]
        ensure_ddl_table(session, CONFIG)
        yield session


@pytest.mark.shows("ddl create schema")
def test_keys_compare_as_upstream(session: Session) -> None:
    jobs = [
        job(1, 1, "create database cs"),
        job(2, 3, "create table t (k varchar(20) not null, unique k (k))", ("k",)),
        job(3, 5, "alter table t add column m varchar(20)", ("k", "m")),
        job(4, 7, "alter table t add unique (m)", ("k", "m")),
        job(5, 12, "alter table t modify column m varchar(30)", ("k", "m")),
    ]
    history = SchemaHistory.of(JobReader().read(jobs))
    restored = [
        "CREATE DATABASE `cs`;",
        "CREATE TABLE `t` (`k` VARCHAR(20) BINARY NOT NULL,UNIQUE `k`(`k`));",
        "ALTER TABLE `t` ADD COLUMN `m` VARCHAR(20) BINARY;",
        "ALTER TABLE `t` ADD UNIQUE(`m`);",
        "ALTER TABLE `t` MODIFY COLUMN `m` VARCHAR(30);",
    ]
    events = [DdlEvent(i * 10, i, text, 5) for i, text in enumerate(restored, 1)]
    session.execute("CREATE DATABASE other")
    for step in plan_steps((0, 100), events, (), history, AppliedJobs(0)):
        if isinstance(step, DdlStep):
            assert apply_ddl(session, step, history, CONFIG, held(session), lambda _: None).state == "done"
    for word in ("a", "A", "a ", "日本", "é", "É"):
        session.execute("INSERT INTO cs.t VALUES (%s, %s)", [word, word])
    session.commit()
    assert len(session.query("SELECT k FROM cs.t")) == 6
    assert session.query("SELECT k FROM cs.t WHERE k = 'a '") == [("a ",)]
    assert session.query("SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_schema = 'cs'") == [(NO_PAD_BIN,)]
    assert session.query("SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = 'cs'") == [(NO_PAD_BIN,)]


GBK = {**TEXT, "Flag": 0, "Charset": "gbk", "Collate": "gbk_chinese_ci"}
ID = ddl_jobs.column(1, "id", {**INT, "Flag": 4099})
BY_CASE = "is utf8mb4, because the server's gbk lacks characters: it compares by case"
STAYS = "stays gbk, because a key or a partition needs that: the server's gbk has a question mark for €, ǹ, 〾, ⿰ to ⿻ and 66 characters from ⺁ to 䶮"
LONG = {**GBK, "Flen": 1000}


def gbk_table(kind: dict[str, Any] = GBK, table_id: int = 10, name: str = "t", **more: Any) -> dict[str, Any]:
    keys = {"index_info": [index(1, "u", ("k", 1), unique=True)]} if more.pop("keyed", False) else {}
    first = ID if more.get("pk_is_handle", True) else ddl_jobs.column(1, "id", {**INT, "Flag": 1})
    return ddl_jobs.table(table_id, name, [first, ddl_jobs.column(2, "k", kind)], **keys, **more)


@pytest.fixture
def here(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target()) as session:
        yield session


def charsets(session: Session, *tables: str) -> list[str]:
    listed = ", ".join(f"'{name}'" for name in tables or ("t",))
    found = session.query(
        "SELECT character_set_name, collation_name FROM information_schema.columns WHERE table_schema = 'd' AND character_set_name IS NOT NULL "
        f"AND table_name IN ({listed}) ORDER BY table_name DESC, ordinal_position"
    )
    return ["wide" if one == ("utf8mb4", NO_PAD_BIN) else str(one[0]) for one in found]


def run_all(session: Session, *jobs: dict[str, Any]) -> None:
    """The first one makes the database."""
    made = history(database(1), *jobs)
    for step in steps_of(made, {}):
        assert apply(session, step, made).state == "done"


@pytest.mark.parametrize(
    ("info", "charset", "loss"),
    [
        (gbk_table(keyed=True), "wide", BY_CASE),
        (gbk_table(charset="gbk", collate="gbk_chinese_ci"), "wide", BY_CASE),
        (gbk_table({**GBK, "Charset": "", "Collate": "gbk_chinese_ci"}, keyed=True), "wide", BY_CASE),
        (gbk_table({**GBK, "Tp": 247, "Elems": ["⺁", "€"]}), "wide", BY_CASE),
        (gbk_table({**GBK, "Collate": "gbk_bin"}, keyed=True), "wide", ""),
        (gbk_table(LONG), "wide", BY_CASE),
        (gbk_table(LONG, keyed=True), "gbk", STAYS),
        (gbk_table({**GBK, "Flen": 768}, keyed=True), "wide", BY_CASE),
        (gbk_table(pk_is_handle=False, partition=partitioned(1, (31, "p0", "'中'"), columns=("k",))), "gbk", STAYS),
    ],
)
def test_gbk_becomes_utf8mb4_where_it_can(here: Session, info: dict[str, Any], charset: str, loss: str) -> None:
    run_all(here, ddl_jobs.job(2, 3, info, query="create table t"))
    assert charsets(here) == [charset]
    assert losses(here) == ([f"d.t: column k {loss}"] if loss else [])


def test_columns_of_gbk_come_later(here: Session) -> None:
    """A default that the server's gbk lacks; a key for which the column is too wide, which leaves it as it is."""
    made = gbk_table(LONG)
    z = ddl_jobs.column(3, "z", {**GBK, "Tp": 254, "Flag": 1, "Flen": 3}, default="⺁", origin_default="⺁")
    added = {**made, "cols": [*made["cols"], {**z, "offset": 2}]}
    keyed = {**added, "index_info": [index(1, "i", ("k", 1))]}
    said = {**keyed, "cols": [keyed["cols"][0], {**keyed["cols"][1], "comment": "said"}, keyed["cols"][2]]}
    back = {**said, "cols": [*said["cols"][:2], {**said["cols"][2], "type": {**z["type"], "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}}]}
    run_all(here, ddl_jobs.job(2, 3, made), ddl_jobs.job(3, 5, added))
    assert charsets(here) == ["wide", "wide"]
    here.execute("INSERT INTO d.t (id, k) VALUES (1, '⺁€〾')")
    here.commit()
    jobs = [
        ddl_jobs.job(number, kind, info)
        for number, kind, info in ((2, 3, made), (3, 5, added), (4, 7, keyed), (5, 12, said), (6, 12, back))
    ]
    every = history(database(1), *jobs)
    for step in steps_of(every, {})[3:]:
        die(here, step, every, "after-ddl")
        assert apply(here, step, every).state == "done"
    assert charsets(here) == ["wide", "wide"]
    assert here.query("SELECT k, z FROM d.t") == [("⺁€〾", "⺁")]
    assert losses(here) == [f"d.t: column {name} {BY_CASE}" for name in ("k", "z")]


def test_a_column_that_is_gbk_at_the_target_stays_so(here: Session) -> None:
    """Made by hand, or by a release before."""
    here.execute("CREATE DATABASE d")
    here.execute("CREATE TABLE d.t (id INT PRIMARY KEY, k VARCHAR(20) CHARACTER SET gbk COLLATE gbk_chinese_ci, UNIQUE u (k))")
    made = gbk_table(keyed=True)
    said = {**made, "cols": [made["cols"][0], {**made["cols"][1], "comment": "said"}]}
    run_all(here, ddl_jobs.job(2, 3, made), ddl_jobs.job(3, 12, said))
    assert charsets(here) == ["gbk"]
    assert losses(here) == [f"d.t: column k {BY_CASE}"]
