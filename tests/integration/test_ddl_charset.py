"""Keys of a table made without any charset clause compare as TiDB's do, whatever the target's defaults are."""

from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.history import JobReader, SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
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
