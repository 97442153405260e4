"""The private MariaDB keeps what was committed, comes back where it was, and leaves nothing behind."""

from pathlib import Path

import pymysql
import pytest

from jobs.mariadb import PrivateMariaDB
from schemas.errors import ConfigError

pytestmark = pytest.mark.mysql


def test_what_was_committed_outlives_a_kill(fresh_mariadb: PrivateMariaDB) -> None:
    with fresh_mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE kept")
        cursor.execute("CREATE TABLE kept.t (i INT)")
        cursor.execute("INSERT INTO kept.t VALUES (1)")
    port, first = fresh_mariadb.port, fresh_mariadb.pid
    fresh_mariadb.kill()
    with pytest.raises(pymysql.err.OperationalError):
        fresh_mariadb.connect()
    fresh_mariadb.restart()
    assert fresh_mariadb.port == port
    assert fresh_mariadb.pid != first
    with fresh_mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT i FROM kept.t")
        assert cursor.fetchall() == ((1,),)


def test_it_flushes_at_every_commit_and_answers_over_tcp_too(mariadb: PrivateMariaDB) -> None:
    target = mariadb.target()
    with pymysql.connect(host=target.host, port=target.port, user=target.user) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_flush_log_at_trx_commit, @@collation_server")
        assert cursor.fetchall() == ((1, "utf8mb4_general_ci"),)


def test_options_win_and_a_given_datadir_stays(tmp_path: Path) -> None:
    with PrivateMariaDB(tmp_path / "db", {"character-set-server": "latin1", "collation-server": "latin1_swedish_ci"}) as server:
        socket = server.socket
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@character_set_server")
            assert cursor.fetchall() == (("latin1",),)
    assert (tmp_path / "db" / "mysql").is_dir()
    assert not socket.parent.exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = PrivateMariaDB(tmp_path / "db", {"no-such-option": "1"})
    with pytest.raises(ConfigError, match="ended with code(.|\n)*no-such-option"):
        server.start()
    server.stop()


def test_stopping_twice_and_asking_a_stopped_one(tmp_path: Path) -> None:
    server = PrivateMariaDB(tmp_path / "db")
    server.stop()
    server.stop()
    with pytest.raises(ConfigError, match="not running"):
        _ = server.pid
