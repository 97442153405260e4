"""The private MariaDB keeps what was committed, comes back where it was, and leaves nothing behind."""

import os
import pwd
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import ACCOUNT, PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ConfigError
from tests.support.private_mysql import MYSQLD
from tests.support.target_rows import run_sql

pytestmark = pytest.mark.mysql


def test_what_was_committed_outlives_a_kill(fresh_mariadb: PrivateMariaDB) -> None:
    run_sql(fresh_mariadb, "CREATE DATABASE kept", "CREATE TABLE kept.t (i INT)", "INSERT INTO kept.t VALUES (1)")
    port, first = fresh_mariadb.port, fresh_mariadb.pid
    fresh_mariadb.kill()
    with pytest.raises(pymysql.err.OperationalError):
        fresh_mariadb.connect()
    fresh_mariadb.restart()
    assert fresh_mariadb.port == port
    assert fresh_mariadb.pid != first
    assert run_sql(fresh_mariadb, "SELECT i FROM kept.t") == [(1,)]


@pytest.mark.shows("syncer.to.host", "syncer.to.port", "syncer.to.user")
def test_it_flushes_at_every_commit_and_answers_over_tcp_too(mariadb: PrivateMariaDB) -> None:
    target = mariadb.target()
    who = {"user": target.user, "password": target.password}
    with pymysql.connect(host=target.host, port=target.port, **who) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_flush_log_at_trx_commit, @@collation_server")
        assert cursor.fetchall() == ((1, "utf8mb4_0900_ai_ci" if MYSQLD else "utf8mb4_general_ci"),)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users may pass through: pytest's own are closed to all but who runs it."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_it_is_never_root(mariadb: PrivateMariaDB) -> None:
    status = Path(f"/proc/{mariadb.pid}/status").read_text()
    uids, gids = (re.search(rf"^{what}:(.*)$", status, re.MULTILINE)[1].split() for what in ("Uid", "Gid"))
    assert "0" not in uids + gids
    me = os.geteuid()
    assert set(uids) == {str(me) if me else str(pwd.getpwnam("mysql").pw_uid)}
    places = [mariadb.socket.parent, mariadb.socket.parent / "data"]
    assert [(stat.S_IMODE(place.stat().st_mode), str(place.stat().st_uid)) for place in places] == [(0o700, uids[0])] * 2


@pytest.mark.parametrize("user", ["root", ACCOUNT, "mysql", ""])
@pytest.mark.parametrize("password", ["", "guess"])
def test_nobody_comes_in_over_tcp_without_its_password(mariadb: PrivateMariaDB, user: str, password: str) -> None:
    target = mariadb.target()
    with pytest.raises(pymysql.err.OperationalError) as refused:
        pymysql.connect(host=target.host, port=target.port, user=user, password=password)
    assert refused.value.args[0] in (1045, 1698, 3118)  # the last one: the account is locked
    assert len(target.password) >= 32 and target.password not in repr(target)
    assert target.password not in Path(f"/proc/{mariadb.pid}/cmdline").read_text()
    assert not any(target.password in path.read_text(errors="replace") for path in mariadb.socket.parent.iterdir() if path.is_file())


def test_the_account_may_not_touch_the_machines_files(mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1\n")
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT LOAD_FILE('/etc/hostname'), @@secure_file_priv, @@local_infile")
        content, only_there, local = cursor.fetchall()[0]
        assert content is None and local == 0 and Path(only_there).parent == mariadb.socket.parent
        cursor.execute("CREATE DATABASE files")
        cursor.execute("CREATE TABLE files.t (i INT)")
        for statement in ("SELECT 1 INTO OUTFILE '/tmp/x'", f"LOAD DATA INFILE '{tmp_path}/rows' INTO TABLE files.t"):
            with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
                cursor.execute(statement)
        cursor.execute("DROP DATABASE files")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts it as another user")
def test_a_datadir_that_its_user_cannot_reach_is_named(open_path: Path) -> None:
    closed = open_path / "closed"
    closed.mkdir(0o700)
    server = PrivateMariaDB(closed / "db")
    with pytest.raises(ConfigError, match=f"{closed} is not accessible to the system user mysql"):
        server.start()
    server.stop()


def test_another_life_on_the_same_datadir_has_another_password(open_path: Path) -> None:
    passwords = []
    for _ in range(2):
        with PrivateMariaDB(open_path / "db") as server:
            passwords.append(server.target().password)
            server.connect().close()
    assert passwords[0] != passwords[1]


def test_options_win_and_a_given_datadir_stays(open_path: Path) -> None:
    with PrivateMariaDB(open_path / "db", {"character-set-server": "latin1", "collation-server": "latin1_swedish_ci"}) as server:
        socket = server.socket
        assert run_sql(server, "SELECT @@character_set_server") == [("latin1",)]
    assert (open_path / "db" / "mysql").is_dir()
    assert not socket.parent.exists()


def test_a_server_that_cannot_start_says_why(open_path: Path) -> None:
    server = PrivateMariaDB(open_path / "db", {"no-such-option": "1"})
    with pytest.raises(ConfigError, match="ended with code(.|\n)*no-such-option"):
        server.start()
    server.stop()


def test_stopping_twice_and_asking_a_stopped_one(tmp_path: Path) -> None:
    server = PrivateMariaDB(tmp_path / "db")
    server.stop()
    server.stop()
    with pytest.raises(ConfigError, match="not running"):
        _ = server.pid
