"""Sessions on a real server: their settings, their errors, and transactions that are tried again."""

import contextlib
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql import target_connection as connections
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.literals import LiteralForm, join_cells, literals
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.mysql.transactions import with_settings
from tests.support.attempts import run_transaction
from tests.support.ddl_target import committed
from tests.support.private_mysql import MYSQLD
from tests.support.recorded import record_in

pytestmark = pytest.mark.mysql

QUICK = RetryPolicy(pause=lambda _: None)


@pytest.fixture
def target(mariadb: PrivateMariaDB) -> Iterator[TargetConfig]:
    config = mariadb.target()
    with connect(config, ApplyConfig()) as session:
        session.execute("CREATE DATABASE h_session")
        session.execute("CREATE TABLE h_session.t (id int primary key, v varchar(20)) ENGINE=InnoDB")
        yield config
        session.execute("DROP DATABASE h_session")


@pytest.fixture
def session(target: TargetConfig) -> Iterator[Session]:
    with connect(target, ApplyConfig()) as session:
        yield session


@pytest.fixture
def tls_target(tmp_path: Path) -> Iterator[TargetConfig]:
    """A server that speaks TLS, with a certificate that nobody has signed."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "target")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    signed = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)  # the server may run as another user
        cert, secret = Path(place, "cert.pem"), Path(place, "key.pem")
        cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
        with PrivateMariaDB(options={"ssl-cert": str(cert), "ssl-key": str(secret)}) as server:
            yield server.target()


def test_the_tls_context_is_made_once(tls_target: TargetConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    build = ssl.create_default_context

    def counted(*args: Any, **options: Any) -> ssl.SSLContext:
        made.append(build(*args, **options))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    monkeypatch.setattr(connections, "_tls_contexts", {})
    for address in (tls_target, replace(tls_target, socket="")):
        with connect(address, ApplyConfig()) as one, connect(address, ApplyConfig()) as two:
            assert [s.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1] != "" for s in (one, two)] == [True, True]
    (context,) = made
    driver: Any = pymysql.connections.Connection(defer_connect=True)
    assert (context.verify_mode, context.check_hostname, context.options, context.verify_flags) == (
        driver.ctx.verify_mode,
        driver.ctx.check_hostname,
        driver.ctx.options,
        driver.ctx.verify_flags,
    )


def test_a_variable_that_is_refused_does_not_take_the_others_with_it(target: TargetConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be unknown or read-only, a variable is left out of the one statement from then on."""
    sent: list[str] = []
    execute = Session.execute

    def noted(session: Session, sql: bytes | str, args: Sequence[Any] | None = None) -> int:
        sent.append(str(sql))
        return execute(session, sql, args)

    monkeypatch.setattr(Session, "execute", noted)
    monkeypatch.setattr(connections, "_refused_by", {})
    for read_only, statements in ((), (4, 1, 1)), ((("innodb_page_size", "1"),), (5, 1, 1)):
        connections._refused_by.clear()
        wanted = (("max_error_count", "7"), ("no_such_variable", "1"), *read_only, ("lock_wait_timeout", "9"))
        monkeypatch.setattr(connections, "_IF_KNOWN", wanted)
        for count in statements:
            sent.clear()
            with connect(target, ApplyConfig()) as session:
                assert session.query("SELECT @@max_error_count, @@lock_wait_timeout") == [(7, 9)]
                assert session.settle(), "a refused setting is not an error of a use"
            assert sum("max_error_count" in sql or "lock_wait" in sql or "no_such" in sql or "page_size" in sql for sql in sent) == count


@pytest.mark.shows("syncer.to.params", "drainer gotcha 8")
def test_session_settings(target: TargetConfig) -> None:
    with connect(replace(target, params=(("lock_wait_timeout", "7"), ("net_read_timeout", "1000"))), ApplyConfig()) as session:
        row = session.query(
            f"SELECT @@time_zone, @@foreign_key_checks, @@unique_checks, @@autocommit, @@sql_mode, @@{'range_optimizer_max_mem_size' if MYSQLD else 'in_predicate_conversion_threshold'}, "
            "@@character_set_connection, @@character_set_client, @@character_set_results, @@lock_wait_timeout"
        )[0]
        mode = {"NO_AUTO_VALUE_ON_ZERO", "ALLOW_INVALID_DATES", "NO_ENGINE_SUBSTITUTION"}
        assert row[:4] == ("+00:00", 0, 1, 0)
        assert set(row[4].split(",")) == (mode if MYSQLD else mode | {"TIME_ROUND_FRACTIONAL"})
        assert row[5:] == (0, "utf8mb4", "utf8mb4", "utf8mb4", 7)
        isolation = session.query("SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')")
        assert {value for _, value in isolation} == {"READ-COMMITTED"}
        assert session.max_allowed_packet == (64 if MYSQLD else 16) * 1024 * 1024
        assert session.flavour is (Flavour.MYSQL if MYSQLD else Flavour.MARIADB)


GLOBALS = {
    "sql_select_limit": "1",
    **({"max_execution_time": "300"} if MYSQLD else {"max_statement_time": "0.3"}),
    "sql_notes": "0",
    "lc_messages": "'de_DE'",
    "sql_big_selects": "0",
    "sql_safe_updates": "1",
    "sql_auto_is_null": "1",
    "completion_type": "1",
    "sql_quote_show_create": "0",
    **({} if MYSQLD else {"sql_if_exists": "1", "system_versioning_asof": "'2001-01-01'"}),
}


@pytest.fixture
def hostile(mariadb: PrivateMariaDB, target: TargetConfig) -> Iterator[TargetConfig]:
    """The server with global variables that change what statements mean."""
    with mariadb.connect() as admin, admin.cursor() as cursor:
        try:
            for name, value in GLOBALS.items():
                cursor.execute(f"SET GLOBAL {name} = {value}")
            yield target
        finally:
            for name in GLOBALS:
                cursor.execute(f"SET GLOBAL {name} = DEFAULT")


def test_global_variables_do_not_change_what_our_statements_mean(hostile: TargetConfig) -> None:
    listed = ", ".join(f"@@SESSION.{name}" for name in GLOBALS)
    with connect(hostile, ApplyConfig()) as session:
        values = dict(zip(GLOBALS, session.query(f"SELECT {listed}")[0], strict=True))
        committed(session, "INSERT INTO h_session.t VALUES (1, 'a'), (2, 'b')", "DELETE FROM h_session.t WHERE v <=> 'b' LIMIT 1")
        assert len(read_tables(session, [("h_session", "t")])["h_session", "t"].columns) == 2
        session.execute("CREATE TABLE h_session.old (a DECIMAL(9,2))" + ("" if MYSQLD else " WITH SYSTEM VERSIONING"))
        answer = session.answer(b"INSERT INTO h_session.old VALUES (1.239)")
        assert [one.words for one in answer.warnings] == ["Data truncated for column 'a' at row 1"]
        assert len(session.query("SELECT a FROM h_session.old")) == 1
        with pytest.raises(ApplyError, match="Can't DROP"):
            session.execute("ALTER TABLE h_session.t DROP COLUMN none")
        session.query("SELECT SLEEP(0.5)")
    assert values["sql_select_limit"] == (1 << 64) - 1 and values["completion_type"] == "NO_CHAIN"
    assert {values.get(name, 0) for name in ("max_statement_time", "max_execution_time", "sql_if_exists")} == {0} and values[
        "lc_messages"
    ] == "en_US"


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL has such a setting")
def test_a_foreign_key_may_refer_to_a_key_that_is_not_unique(target: TargetConfig, session: Session) -> None:
    """As in TiDB; the account may not set more than a plain one."""
    session.execute("CREATE TABLE h_session.parent (a INT, KEY (a))")
    session.execute("CREATE USER plain@localhost IDENTIFIED BY 'pw'")
    session.execute("GRANT CREATE, REFERENCES ON h_session.* TO plain@localhost")
    with connect(replace(target, user="plain", password="pw"), ApplyConfig()) as plain:
        plain.execute("CREATE TABLE h_session.child (a INT, FOREIGN KEY (a) REFERENCES h_session.parent (a))")
    session.execute("DROP USER plain@localhost")


@pytest.mark.shows("syncer.to.params")
@pytest.mark.parametrize("name", ["time_zone", "SQL_MODE", "foreign_key_checks", "unique_checks", "collation_connection"])
def test_params_may_not_break_our_literals(target: TargetConfig, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        connect(replace(target, params=((name, "x"),)), ApplyConfig())


def test_an_unknown_param_is_an_error(target: TargetConfig) -> None:
    with pytest.raises(ApplyError, match="no_such_variable") as caught:
        connect(replace(target, params=(("no_such_variable", "1"),)), ApplyConfig())
    assert caught.value.errno == 1193


@pytest.mark.shows("syncer.to.password")
@pytest.mark.parametrize("password", ["plain", "pä\\'ss wörd", "пароль€"])
def test_any_password(target: TargetConfig, session: Session, password: str) -> None:
    session.execute("DROP USER IF EXISTS h_session@localhost")
    session.execute("CREATE USER h_session@localhost IDENTIFIED BY %s", [password])
    session.commit()
    with connect(replace(target, user="h_session", password=password), ApplyConfig()) as other:
        assert other.query("SELECT CURRENT_USER()") == [("h_session@localhost",)]
    session.execute("DROP USER h_session@localhost")


@pytest.mark.parametrize("engine", ["MyISAM", pytest.param("Aria", marks=pytest.mark.mariadb)])
def test_tables_have_transactions_whatever_the_servers_default(target: TargetConfig, session: Session, engine: str) -> None:
    ((before,),) = session.query("SELECT @@GLOBAL.default_storage_engine")
    session.execute(f"SET GLOBAL default_storage_engine = {engine}, GLOBAL unique_checks = 0")
    try:
        with connect(target, ApplyConfig()) as other:
            assert other.query("SELECT @@default_storage_engine, @@unique_checks") == [("InnoDB", 1)]
            record_in(other, "h_session")
            engines = other.query("SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'h_session'")
            assert engines == [("InnoDB",)]
    finally:
        session.execute(f"SET GLOBAL default_storage_engine = {before}, GLOBAL unique_checks = 1")


@pytest.mark.shows("syncer.to.read-timeout")
def test_a_statement_that_takes_long_has_longer_in_the_next_try(target: TargetConfig) -> None:
    tries = []

    def work(session: Session) -> int:
        tries.append(1)
        with with_settings(session, {"time_zone": "'+08:00'"}):  # a connection that is lost cannot be given its own zone again
            return int(session.query("SELECT SLEEP(2.5)")[0][0])

    waited = []
    patience = RetryPolicy(retries=3, pause=lambda _: None, tell=waited.append)
    assert run_transaction(lambda: connect(replace(target, read_timeout=1.0), ApplyConfig()), work, patience) == 0
    assert len(tries) == 3
    with pytest.raises(RetryableApplyError, match="syncer.to.read-timeout limits the time of a statement"):
        run_transaction(lambda: connect(replace(target, read_timeout=1.0), ApplyConfig()), work, RetryPolicy(retries=0))


def test_bytes_and_arguments(session: Session) -> None:
    session.begin()
    assert session.execute(b"INSERT INTO h_session.t VALUES (1,'100%s'),(2,'\xe6\x97\xa5')") == 2
    assert session.execute("UPDATE h_session.t SET v = %s WHERE id = %s", ["it's", 1]) == 1
    session.commit()
    assert session.query("SELECT * FROM h_session.t ORDER BY id") == [(1, "it's"), (2, "日")]


def test_a_statement_beyond_one_packet(session: Session) -> None:
    with pytest.raises(ApplyError):
        session.execute(b"SELECT '" + b"x" * session.max_allowed_packet + b"'")


def test_closing_drops_what_is_not_committed(target: TargetConfig) -> None:
    with connect(target, ApplyConfig()) as session:
        session.begin()
        session.execute("INSERT INTO h_session.t VALUES (9,'x')")
    with connect(target, ApplyConfig()) as session:
        assert session.query("SELECT * FROM h_session.t") == []


def test_refusal_names_statement_and_words(session: Session) -> None:
    with pytest.raises(ApplyError, match=r"INSERT INTO h_session.nowhere.*1146.*doesn't exist") as caught:
        session.execute("INSERT INTO h_session.nowhere VALUES (1)")
    assert caught.value.errno == 1146
    assert not isinstance(caught.value, RetryableApplyError)


@pytest.mark.parametrize(("away", "errno"), [({"socket": "", "port": 1}, 2003), ({"socket": "/nowhere/socket"}, 2002)])
def test_no_server_is_retryable(target: TargetConfig, away: dict[str, Any], errno: int) -> None:
    with pytest.raises(RetryableApplyError, match="cannot connect") as caught:
        connect(replace(target, **away), ApplyConfig())
    assert caught.value.errno == errno


def test_retries_end(target: TargetConfig) -> None:
    pauses: list[float] = []

    def work(session: Session) -> None:
        raise RetryableApplyError("again", 1213)

    with pytest.raises(RetryableApplyError):
        run_transaction(lambda: connect(target, ApplyConfig()), work, RetryPolicy(retries=3, pause=pauses.append))
    assert pauses == [0.05, 0.1, 0.2]


def test_deadlock_victim_is_run_again(target: TargetConfig, session: Session) -> None:
    committed(session, "INSERT INTO h_session.t VALUES (1,''),(2,'')")
    both_hold_one = threading.Barrier(2)
    attempts: list[int] = []

    def crosswise(first: int, second: int) -> None:
        mine: list[int] = []

        def work(session: Session) -> None:
            mine.append(first)
            session.execute("UPDATE h_session.t SET v = concat(v, 'x') WHERE id = %s", [first])
            if len(mine) == 1:
                both_hold_one.wait()
            session.execute("UPDATE h_session.t SET v = concat(v, 'x') WHERE id = %s", [second])

        run_transaction(lambda: connect(target, ApplyConfig()), work, QUICK)
        attempts.extend(mine)

    threads = [threading.Thread(target=crosswise, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.query("SELECT v FROM h_session.t") == [("xx",), ("xx",)]
    assert len(attempts) == 3, "one of the two was the victim, once"


@pytest.mark.shows("syncer.sql-mode")
@pytest.mark.parametrize("mode", ["", "TRADITIONAL", "STRICT_TRANS_TABLES"])
def test_zero_is_a_value_in_every_mode(target: TargetConfig, mode: str) -> None:
    with connect(target, ApplyConfig(sql_mode=mode)) as session:
        session.execute("CREATE TABLE h_session.counted (id int primary key auto_increment)")
        session.execute("INSERT INTO h_session.counted VALUES (0)")
        assert session.query("SELECT id FROM h_session.counted") == [(0,)]


@pytest.mark.parametrize("mode", ["", "TRADITIONAL", "STRICT_TRANS_TABLES", "NO_ZERO_IN_DATE"])
def test_a_february_31_is_a_value_in_every_mode(target: TargetConfig, mode: str) -> None:
    """As upstream in a session with ALLOW_INVALID_DATES: it is written, copied by an ALTER TABLE of whichever column, found and removed."""
    shown = "SELECT CAST(d AS CHAR), CAST(t AS CHAR), k FROM h_session.days ORDER BY k"
    with connect(target, ApplyConfig(sql_mode=mode)) as session:
        session.execute("CREATE TABLE h_session.days (d date, t datetime(3), k int)")
        session.execute(
            "INSERT INTO h_session.days VALUES ('2026-02-31', '2026-02-30 01:02:03.004', 1), ('2026-00-10', '0000-00-00 00:00:00', 2)"
        )
        session.commit()
        with connect(target, ApplyConfig(sql_mode=mode), for_ddls=True) as ddls:
            ddls.execute("ALTER TABLE h_session.days MODIFY k VARCHAR(9)")
        rows = [("2026-02-31", "2026-02-30 01:02:03.004", "1"), ("2026-00-10", "0000-00-00 00:00:00.000", "2")]
        assert session.query(shown) == rows
        session.commit()
        with connect(target, ApplyConfig(sql_mode=mode), for_ddls=True) as ddls:
            ddls.execute("ALTER TABLE h_session.days MODIFY d DATETIME")
        assert session.query(shown) == [(f"{d} 00:00:00", t, k) for d, t, k in rows]
        found = "d = '2026-02-31' AND t = '2026-02-30 01:02:03.004'"
        assert session.execute(f"DELETE FROM h_session.days WHERE {found}") == 1


@pytest.mark.parametrize("mode", ["ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"])
def test_the_mode_that_the_server_made_of_the_setting_is_looked_at(target: TargetConfig, mode: str) -> None:
    """The check of the words may be passed by a name that only the server knows."""
    config = ApplyConfig()
    object.__setattr__(config, "sql_mode", mode)
    with pytest.raises(ConfigError, match=r"the target's session has sql_mode .*row data could be read as SQL"):
        connect(target, config)


HOSTILE = [
    b"'",
    b"\\'",
    b"\\",
    b"\\\\'",
    b"'; DROP DATABASE h_session; -- ",
    b'"',
    b"a\0b",
    b"\\0'",
    b"`'\"\\",
    b"\xe6'",
    "日'本\\".encode(),
]


@pytest.mark.shows("syncer.sql-mode")
@pytest.mark.parametrize(
    "mode",
    [
        *("", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "ANSI,NO_BACKSLASH_ESCAPES"),
        *(pytest.param(mode, marks=pytest.mark.mariadb) for mode in ("ORACLE", "MSSQL")),
    ],
)
@pytest.mark.parametrize("form", [LiteralForm.TEXT, LiteralForm.BYTES])
def test_no_mode_reads_row_data_as_sql(session: Session, mode: str, form: LiteralForm) -> None:
    """One value stays one value; in a mode without escapes it is at worst another one."""
    values = [v for v in HOSTILE if form is LiteralForm.BYTES or v != b"\xe6'"]
    rows = join_cells(b"(", [literals(pa.array(values, pa.binary()), form)], [], b"),").to_pylist()
    session.execute("CREATE TABLE h_session.b (id int primary key auto_increment, v varbinary(100))")
    session.execute("SET SESSION sql_mode = %s", [mode])
    for row in rows:
        assert session.execute(b"INSERT INTO h_session.b (v) VALUES " + row[:-1]) == 1
    found = [v for (v,) in session.query("SELECT CAST(v AS BINARY) FROM h_session.b ORDER BY id")]
    session.commit()
    plain = "NO_BACKSLASH_ESCAPES" in mode
    assert found == [v.replace(b"\\", b"\\\\").replace(b"\0", b"\\0") if plain else v for v in values]


@pytest.mark.shows("spark.socket")
def test_a_unix_socket_where_nobody_takes_connections_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server that is stopped, once its backlog is full."""
    monkeypatch.setattr(connections, "_CONNECT_SECONDS", 1)
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        path = f"{place}/s"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(path)
        with pytest.raises(RetryableApplyError, match=path):
            connect(TargetConfig(host="h", port=1, user="u", password="p", socket=path, read_timeout=1.0), ApplyConfig())
