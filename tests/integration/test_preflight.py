"""``drainer --check`` on a real MariaDB: what it names, and that it changes nothing."""

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.rpc.frames import UNKNOWN, Refusal
from pyspark_tidb_binlog.jobs.check import preflight
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import take_snapshot
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.certificates import Authority, table_of
from tests.support.ddl_jobs import INT, VARCHAR, column, database, index, job, table
from tests.support.ddl_target import CONFIG, ddl_session
from tests.support.fakes.scripted_pump import Asked, ScriptedPump
from tests.support.private_mysql import NO_PAD_BIN
from tests.support.pump_writes import config_of
from tests.support.recorded import record_in

pytestmark = pytest.mark.mysql

MARKS = "check_marks"
ROOT = Path(__file__).parents[2]
KEYED = table(10, "t", [column(1, "id", {**INT, "Flag": 4099}), column(2, "k", VARCHAR)])
NO_KEY = table(11, "plain", [column(1, "a")], pk_is_handle=False)
JOBS = [
    database(1),
    job(2, 3, KEYED, query="create table t (id int primary key, k varchar(20))"),
    job(3, 3, NO_KEY, query="create table plain (a int)"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    with PrivateMariaDB(options={"max-allowed-packet": "64M"}) as server:
        yield server


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PumpServer]:
    pump = PumpServer(config_of(tmp_path_factory.mktemp("pump"), 1, cluster_id=1)).start()
    yield pump
    pump.stop()


@pytest.fixture
def session(server: PrivateMariaDB) -> Iterator[Session]:
    """The target as the upstream is after ``JOBS``, and ``test``."""
    with ddl_session(server.target(), CONFIG, ("d", "test", MARKS)) as session:
        session.execute("CREATE DATABASE d")
        session.execute("CREATE DATABASE test")
        session.execute("CREATE TABLE d.t (id INT PRIMARY KEY, k VARCHAR(20))")
        session.execute("CREATE TABLE d.plain (a INT)")
        session.execute(f"DROP DATABASE {CONFIG.checkpoint_schema}")
        yield session


class Checked:
    """A check's output and exit code."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.lines = text.splitlines()

    def line(self, words: str) -> str:
        found = [line for line in self.lines if words in line]
        assert len(found) == 1, (words, self.lines)
        return found[0]

    @property
    def hindering(self) -> list[str]:
        return [line for line in self.lines if line.startswith("hinders")]


class Checks:
    """Runs checks of one target over one DDL history."""

    def __init__(self, server: PrivateMariaDB, pump: PumpServer, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._pump = pump
        self._history = place / "history.json"
        self._capsys = capsys

    def flags(self, jobs: list[dict[str, Any]], more: dict[str, str]) -> list[str]:
        self._history.write_text(json.dumps(jobs))
        given = {
            "spark.pumps": self._pump.address,
            "spark.cluster-id": "1",
            "spark.socket": str(self._server.socket),
            "syncer.to.user": self._server.target().user,
            "syncer.to.password": self._server.target().password,
            "spark.tidb-status": str(self._history),
            "syncer.to.checkpoint.schema": MARKS,
            "initial-commit-ts": "30",
        }
        return [f"--{name}={value}" for name, value in (given | more).items()]

    def __call__(self, jobs: list[dict[str, Any]] = JOBS, /, **more: str) -> Checked:
        code = preflight.main(self.flags(jobs, {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}))
        return Checked(code, self._capsys.readouterr().out)


@pytest.fixture
def check(server: PrivateMariaDB, pump: PumpServer, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checks:
    return Checks(server, pump, tmp_path, capsys)


def test_a_target_that_is_ready(check: Checks) -> None:
    found = check()
    assert (found.code, found.hindering) == (0, []), found.lines
    assert re.fullmatch(r"nothing hinders the stream \(\d+ remarks\)", found.lines[-1])
    assert "1 tables have no unique key: d.plain" in found.line("no unique key")


def test_settings_that_mean_nothing_and_settings_that_are_wrong(check: Checks) -> None:
    found = check(cache_binlog_count="16")
    assert found.line("cache-binlog-count").startswith("note     settings: without effect here") and found.code == 0
    with pytest.raises(ConfigError, match="did you mean"):
        preflight.main(["--spark.partz=3"])


def test_what_the_target_lacks(check: Checks, session: Session) -> None:
    session.execute("DROP DATABASE test")
    session.execute("DROP TABLE d.plain")
    session.execute("ALTER TABLE d.t DROP COLUMN k, ENGINE = MyISAM")
    found = check()
    assert found.code == 1
    assert "the target lacks the database test, which TiDB has from the start" in found.line("CREATE DATABASE `test`")
    assert "the target lacks 1 tables that the upstream has at this point: d.plain" in found.line("d.plain")
    assert "d.t: the target's table lacks the columns k" in found.line("lacks the columns")
    assert "ALTER TABLE d.t ENGINE = InnoDB" in found.line("MyISAM")
    assert len(found.hindering) == 4
    ignored = check(syncer__ignore_schemas="test,d,mysql")
    assert (ignored.code, ignored.hindering) == (0, [])


def test_an_empty_target(check: Checks, session: Session) -> None:
    session.execute("DROP TABLE d.plain, d.t")
    found = check()
    line = found.line("the target has none of the upstream's 2 tables (d.t, d.plain)")
    assert found.code == 1 and line in found.hindering and "--bootstrap-all" in line and "initial-commit-ts = 0" in line
    record_in(session, MARKS)
    session.execute(f"INSERT INTO {MARKS}.checkpoint VALUES (1, %s)", ['{"consistent":true,"commitTS":30,"schema-version":3}'])
    session.commit()
    found = check(initial_commit_ts="0")
    assert "resumes from the checkpoint of" in found.line("not from initial-commit-ts = 0") and found.line("the target lacks 2 tables")


def test_columns_that_change_values(check: Checks, session: Session) -> None:
    session.execute("ALTER TABLE d.t MODIFY id FLOAT, MODIFY k CHAR(20)")
    found = check()
    assert found.line("column k is char(20)").startswith("note") and "cuts off blanks" in found.line("column k is")
    assert found.code == 1 and "column id is float instead of INT" in found.hindering[0] and len(found.hindering) == 1


def test_columns_in_gbk(check: Checks, session: Session) -> None:
    gbk = table(
        10, "t", [column(1, "id", {**INT, "Flag": 4099}), column(2, "k", {**VARCHAR, "Charset": "gbk", "Collate": "gbk_chinese_ci"})]
    )
    session.execute("ALTER TABLE d.t MODIFY k VARCHAR(30) CHARACTER SET gbk COLLATE gbk_chinese_ci")
    found = check([JOBS[0], job(2, 3, gbk, query="create table t (id int primary key, k varchar(20) character set gbk)"), *JOBS[2:]])
    line = found.line("in which the server has a question mark for €, ǹ")
    assert line.startswith("note     d.t: has gbk columns") and found.code == 0
    alter = line[line.index("ALTER TABLE") :]
    assert alter == f"ALTER TABLE `d`.`t` MODIFY `k` VARCHAR(30) CHARACTER SET utf8mb4 COLLATE {NO_PAD_BIN} NULL"
    session.execute(alter)
    assert not any("gbk" in line for line in check([JOBS[0], job(2, 3, gbk, query="create table t"), *JOBS[2:]]).lines)


def test_a_key_under_another_collation(check: Checks, session: Session) -> None:
    session.execute("ALTER TABLE d.t MODIFY k VARCHAR(20) COLLATE utf8mb4_general_ci, ADD UNIQUE u (k)")
    keyed = {**KEYED, "index_info": [index(1, "u", ("k", 1), unique=True)]}
    found = check(
        [JOBS[0], job(2, 3, keyed, query="create table t (id int primary key, k varchar(20), unique u (k))")],
        spark__upstream_new_collations="true",
    )
    line = found.line("k (utf8mb4_general_ci there, utf8mb4_bin upstream)")
    assert line.startswith("note     d.t: ") and "MODIFY `k` VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL" in line
    assert found.code == 0


@pytest.mark.shows("drainer --check")
def test_an_account_with_too_few_rights(check: Checks, session: Session, server: PrivateMariaDB) -> None:
    for sql in (
        "DROP USER IF EXISTS few@localhost",
        "CREATE USER few@localhost IDENTIFIED BY 'pw'",
        "GRANT SELECT, INSERT, CREATE, DROP, ALTER, INDEX ON `d`.* TO few@localhost",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON `check\\_%`.* TO few@localhost",
        "GRANT SELECT ON test.* TO few@localhost",
    ):
        session.execute(sql)
    found = check(syncer__to__user="few", syncer__to__password="pw")
    assert found.code == 1
    assert "lacks UPDATE on d.*: no row can be changed; GRANT UPDATE ON `d`.* TO 'few'@'localhost'" in found.line("lacks UPDATE")
    assert "lacks DELETE on d.*" in found.line("lacks DELETE")
    assert f"lacks CREATE on {MARKS}.*" in found.line(f"lacks CREATE on {MARKS}")
    assert found.line("lacks PROCESS").startswith("note") and "crash" in found.line("lacks PROCESS")
    assert len(found.hindering) == 3
    before_its_ddls = check(syncer__to__user="few", syncer__to__password="pw", initial_commit_ts="0")
    assert "lacks UPDATE on d.*" in before_its_ddls.line("lacks UPDATE"), "the database is made by a DDL that waits"
    wanted = "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON `d`.* TO 'few'@'localhost'; GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON "
    assert wanted + "`check\\_marks`.* TO" in found.line("needs these rights"), "the pattern means this database only"
    session.execute("GRANT UPDATE, DELETE ON `d`.* TO few@localhost")
    session.execute(f"GRANT CREATE ON {MARKS}.* TO few@localhost")
    assert check(syncer__to__user="few", syncer__to__password="pw").hindering == []
    ring = check(syncer__to__user="few", syncer__to__password="pw", syncer__loopback_control="true")
    assert "lacks SELECT, INSERT, UPDATE, DELETE, CREATE on retl.*" in ring.line("marks each transaction") and len(ring.hindering) == 1
    wrong = check(syncer__to__user="few", syncer__to__password="other")
    assert wrong.code == 1 and "Access denied" in wrong.hindering[0] and "other" not in wrong.hindering[0]


def test_a_read_only_server(check: Checks, session: Session) -> None:
    session.execute("DROP USER IF EXISTS writer@localhost")
    session.execute("CREATE USER writer@localhost IDENTIFIED BY 'pw'")
    session.execute("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, PROCESS ON *.* TO writer@localhost")
    session.execute("SET GLOBAL read_only = ON, GLOBAL innodb_default_row_format = compact, GLOBAL max_allowed_packet = 1048576")
    try:
        found = check(syncer__to__user="writer", syncer__to__password="pw")
    finally:
        session.execute("SET GLOBAL read_only = OFF, GLOBAL innodb_default_row_format = dynamic, GLOBAL max_allowed_packet = 67108864")
    assert found.code == 1
    assert "read_only is ON: nothing can be written; SET GLOBAL read_only = OFF" in found.line("read_only is ON")
    assert "over 767 bytes" in found.line("innodb_default_row_format")
    assert "max_allowed_packet is 1048576" in found.line("max_allowed_packet")
    assert check(syncer__to__user="writer", syncer__to__password="pw").hindering == []


WAITING = [
    *JOBS,
    job(4, 5, table(10, "t", [*KEYED["cols"], column(3, "n")]), query="alter table t add column n int", table_name="t"),
    job(5, 4, table_id=10, table_name="t", query="drop table t"),
    job(6, 25, table(10, "t"), query="recover table t", table_name="t"),
    job(7, 3, table(12, "w"), query="create table w (id int primary key, unique u ((id + 1)))"),
    job(8, 21, table(13, "v", view={"view_select": "x"}), query="create view v as select !!! from"),
    job(9, 3, table(14, "taken"), query="create table taken (id int primary key)"),
]


@pytest.mark.shows("drainer --check")
def test_ddls_that_will_be_refused(check: Checks, session: Session) -> None:
    session.execute("CREATE TABLE d.taken (other INT)")
    found = check(WAITING)
    assert found.code == 1
    assert "DDL of job 6 on d.t" in found.line("restores rows") and "syncer.ignore-txn-commit-ts" in found.line("restores rows")
    assert "DDL of job 8 on d.v" in found.line("error 1064") and found.line("the view is left out").startswith("note")
    assert "DDL of job 9 on d.taken" in found.line("the target has another table of this name")
    assert len(found.hindering) == 2, found.hindering
    skipped = check(WAITING, syncer__ignore_txn_commit_ts="60,90")
    assert skipped.hindering == []


def test_ddls_on_what_the_target_does_not_have(check: Checks, session: Session) -> None:
    session.execute("DROP TABLE d.t")
    found = check(WAITING[:4])
    assert "DDL of job 4 on d.t" in found.line("the target has no table d.t") and found.code == 1
    begun = check(WAITING[:4], initial_commit_ts="0")
    assert not [line for line in begun.hindering if "has no table" in line], "a DDL before it makes the table"


def test_ddls_that_are_not_synced(check: Checks, session: Session) -> None:
    """``sync-ddl = false``: none is executed, and the target's tables may lack columns, as with ``sync-mode = 2``."""
    session.execute("CREATE TABLE d.taken (other INT)")
    session.execute("ALTER TABLE d.t DROP COLUMN k")
    found = check(WAITING, syncer__sync_ddl="false")
    assert (found.code, found.hindering) == (0, [])
    assert "6 DDLs wait and are not executed" in found.line("sync-ddl = false")
    assert "lacks the columns k" in found.line("lacks the columns") and found.line("lacks the columns").startswith("note")
    partial = check(JOBS, syncer__to__sync_mode="2")
    assert (partial.code, partial.hindering) == (0, []) and "lacks the columns k" in partial.line("lacks the columns")
    session.execute("ALTER TABLE d.t RENAME COLUMN id TO other")
    without_key = check(JOBS, syncer__to__sync_mode="2")
    assert "lacks the columns id" in without_key.hindering[0] and without_key.code == 1


@pytest.mark.parametrize("state", ["intent", "refused"])
def test_a_ddl_that_was_begun_before_a_death(check: Checks, session: Session, state: str) -> None:
    """It was executed, by the server or, after its refusal, by a person: what it needed is no longer there, and nothing hinders."""
    moved = job(4, 14, table(10, "moved", KEYED["cols"]), query="rename table t to moved", table_name="moved")
    added = table(10, "moved", [*KEYED["cols"], column(3, "n")])
    waiting = [*JOBS, moved, job(5, 5, added, query="alter table moved add column n int", table_name="moved")]
    record_in(session, MARKS)
    config = replace(CONFIG, checkpoint_schema=MARKS)
    ensure_ddl_table(session, config)
    session.execute(f"INSERT INTO {MARKS}.checkpoint VALUES (1, %s)", [Checkpoint(30, True, 3).to_json()])
    picture = take_snapshot(session, [], [("d", "t"), ("d", "moved")]).to_json()
    session.execute(
        f"INSERT INTO {MARKS}.spark_ddl (cluster_id, job_id, commit_ts, version, early, state, query, executed, picture) VALUES (1,4,40,4,0,%s,'','',%s)",
        [state, picture],
    )
    session.commit()
    assert check(waiting).hindering == []
    session.execute("RENAME TABLE d.t TO d.moved")
    found = check(waiting)
    assert (found.code, found.hindering) == (0, [])
    assert "job 4" in found.line("the target shows its effect")
    session.execute("DROP TABLE d.moved")
    lost = check(waiting).line("has an unknown outcome")
    assert lost.startswith("hinders") and "job 4" in lost and f"delete its row from `{MARKS}`.`spark_ddl`" in lost


@pytest.mark.parametrize("theirs", [False, True])
def test_it_goes_by_the_checkpoint(check: Checks, session: Session, theirs: bool) -> None:
    """``theirs``: a real Drainer has made no table but that."""
    record_in(session, MARKS)
    if theirs:
        session.execute(f"DROP TABLE {MARKS}.spark_state")
    session.execute(f"INSERT INTO {MARKS}.checkpoint VALUES (1, %s)", [Checkpoint(85, False, 8).to_json()])
    session.commit()
    found = check([*WAITING[:5], *WAITING[6:]])
    assert [line for line in found.lines if "DDL of job" in line] == []
    assert "consistent = false" in found.line("a real Drainer did not stop cleanly")


def test_without_a_history(check: Checks) -> None:
    found = check(spark__tidb_status="no/such/file")
    assert found.code == 1 and "no/such/file" in found.hindering[0]
    assert not any("GRANT" in line for line in found.lines), "without a history nobody knows the databases"


def test_a_registry_that_is_none(check: Checks) -> None:
    found = check(spark__pumps="http://127.0.0.1:1", spark__tidb_status="http://127.0.0.1:1")
    assert [line.split(": ", 1)[0] for line in found.hindering] == ["hinders  Pumps", "hinders  DDL history"], found.lines
    assert all(line.lower().count("check that it") + line.count("check that the") == 1 and ";" not in line for line in found.hindering)


def test_a_registry_without_a_pump_still_has_the_clusters_id(check: Checks, request: pytest.FixtureRequest) -> None:
    service = ClusterService(Oracle(), 1).start()
    request.addfinalizer(service.stop)
    found = check(spark__pumps=service.url, spark__cluster_id="0")
    assert len(found.hindering) == 1 and "has no Pump: start a Pump with this registry" in found.hindering[0]
    assert found.line("has no checkpoint of cluster 1: the stream begins at")


@pytest.mark.shows("drainer --check")
def test_a_tidb_that_writes_no_binlogs(check: Checks, request: pytest.FixtureRequest) -> None:
    tidb = ClusterService(Oracle(), 1, history=lambda: JOBS).start()
    request.addfinalizer(tidb.stop)
    for status in ("On", "Unknown"):
        tidb.tell_server(status)
        assert check(spark__tidb_status=tidb.url).hindering == []
    tidb.tell_server("Skipping")
    found = check(spark__tidb_status=tidb.url)
    assert (found.code, len(found.hindering)) == (1, 1)
    assert "TiDB server 127.0.0.1:4000 writes no binlog (Skipping)" in found.hindering[0] and "/binlog/recover" in found.hindering[0]


@pytest.mark.shows("drainer --check")
def test_pumps_that_do_not_serve_the_stream(check: Checks, pump: PumpServer) -> None:
    def of_another_cluster(asked: Asked) -> Iterator[bytes]:
        raise Refusal(UNKNOWN, "cluster ID are mismatch, 1 vs 9")

    greeting = {"tidb-binlog-delivery": "tip", "tidb-binlog-pump": "another"}
    service = ClusterService(Oracle(), 1).start()
    with (
        ScriptedPump(of_another_cluster) as real,
        ScriptedPump(lambda asked: iter([b""])) as theirs,
        ScriptedPump(lambda asked: iter([b""]), node_id="successor") as successor,
        ScriptedPump(lambda asked: iter(()), greeting) as another,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(service.stop)
        stack.enter_context(contextlib.closing(registry := RegistryClient(service.url)))
        registry.put_status(PUMPS, NodeStatus("offline", "127.0.0.1:2", NodeState.OFFLINE))
        assert check(spark__pumps=service.url).hindering == [], "there is none to ask: the stream waits for one"
        addresses = {"pump-1": pump.address, "gone": "127.0.0.1:1", "real": real.address, "moved": another.address}
        addresses |= {"theirs": theirs.address, "former": successor.address}
        for name, address in addresses.items():
            registry.put_status(PUMPS, NodeStatus(name, address))
        found = check(spark__pumps=service.url)
    assert found.code == 1 and len(found.hindering) == 4, found.lines
    assert "Pump gone at 127.0.0.1:1 " in found.line("UNAVAILABLE")
    assert f"Pump real at {real.address} " in found.line("cluster ID are mismatch, 1 vs 9")
    assert successor.address in found.line("is the address of Pump successor, not former")
    assert another.address in found.line("is the address of Pump another, not moved")
    other_cluster = check(spark__cluster_id="2")
    assert pump.address in other_cluster.line("cluster ID are mismatch, 2 vs 1") and other_cluster.code == 1


@pytest.mark.shows("drainer --check")
def test_a_pump_whose_certificate_is_refused(check: Checks, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tls = Authority(tmp_path / "ca").settings("node", "node")
    settings = {"security__ssl_ca": tls.ca, "security__ssl_cert": tls.cert, "security__ssl_key": tls.key}
    pump = PumpServer(config_of(tmp_path, 2, cluster_id=1, security=table_of(tls))).start()
    request.addfinalizer(pump.stop)
    assert check(spark__pumps=pump.address, **settings).hindering == []
    found = check(spark__pumps=pump.address, security__cert_allowed_cn="drainer", **settings)
    assert found.code == 1 and pump.address in found.line("the certificate's Common Names are 'node'")


def contents(session: Session) -> list[tuple[Any, ...]]:
    names = ("schemata", "tables", "columns", "statistics", "user_privileges", "schema_privileges")
    ignored = {"TABLE_ROWS", "CHECK_TIME", "UPDATE_TIME", "AVG_ROW_LENGTH", "DATA_FREE", "CARDINALITY"}
    found = []
    for name in names:
        rows = session.query(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'information_schema' AND UPPER(table_name) = UPPER(%s)",
            [name],
        )
        columns = ", ".join(str(one) for (one,) in rows if str(one).upper() not in ignored)
        where = "" if "privileges" in name else "WHERE " + ("schema_name" if name == "schemata" else "table_schema") + " NOT LIKE '%schema'"
        found += [(name, *row) for row in session.query(f"SELECT {columns} FROM information_schema.{name} {where}")]
    return sorted(found, key=repr)


@pytest.mark.shows("syncer.to.checkpoint.schema", "drainer --check")
def test_nothing_is_changed(check: Checks, session: Session, server: PrivateMariaDB, tmp_path: Path) -> None:
    log = server.data_dir / "general.log"
    session.execute("SET GLOBAL general_log_file = %s, GLOBAL log_output = 'FILE'", [str(log)])
    before = contents(session)
    session.commit()
    session.execute("SET GLOBAL general_log = ON")
    try:
        assert check(WAITING).code == 1
    finally:
        session.execute("SET GLOBAL general_log = OFF")
    assert contents(session) == before
    assert session.query("SHOW DATABASES LIKE %s", [MARKS]) == []
    statements = re.findall(r"\t *\d+ (Query|Prepare|Execute|Init DB)\t(.*)", log.read_text())
    assert len(statements) > 20 and "PREPARE tidb_binlog_check" in log.read_text()
    harmless = re.compile(
        r"(SELECT|SHOW|SET (SESSION|AUTOCOMMIT|NAMES|GLOBAL general_log)|USE|PREPARE|DEALLOCATE PREPARE|START TRANSACTION READ ONLY|ROLLBACK|CREATE TEMPORARY TABLE|DROP TEMPORARY TABLE)\b",
        re.I,
    )
    strange = [text for kind, text in statements if kind == "Execute" or (kind == "Query" and not harmless.match(text))]
    assert strange == []
    locks = [text for _, text in statements if re.search(r"GET_LOCK|FOR UPDATE|SHARE MODE", text)]
    assert locks == ["SELECT GET_LOCK('tidb_binlog.check', 0), RELEASE_LOCK('tidb_binlog.check')"], (
        "of its own, not the lease's, and given back at once"
    )


@pytest.mark.shows("drainer --check")
def test_by_the_command_without_a_jvm(check: Checks, server: PrivateMariaDB, tmp_path: Path) -> None:
    command = [str(ROOT / "spark-submit.sh"), "drainer", *check.flags(JOBS, {}), "--check"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TIDB_BINLOG_LOG": str(tmp_path / "log")},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "nothing hinders the stream" in done.stdout and "java" not in done.stderr
    with connect(server.target(), CONFIG) as session:
        ensure_ddl_table(session, CONFIG)  # what ``ddl_session`` expects to find
