"""Sessions on a real MariaDB: their settings, their errors, and transactions that are tried again."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from conf.model import ApplyConfig, TargetConfig
from jobs.mariadb import PrivateMariaDB
from schemas.errors import ApplyError, ConfigError, RetryableApplyError
from sinks.dialect import Flavour
from sinks.session import Session, connect, run_transaction

pytestmark = pytest.mark.mysql


@pytest.fixture
def target(mariadb: PrivateMariaDB) -> Iterator[TargetConfig]:
    config = mariadb.target()
    with connect(config, ApplyConfig()) as session:
        session.execute("CREATE DATABASE h_session")
        session.execute("CREATE TABLE h_session.t (id int primary key, v varchar(20)) ENGINE=InnoDB")
        yield config
        session.execute("DROP DATABASE h_session")


def test_session_settings(target: TargetConfig) -> None:
    with connect(replace(target, params=(("lock_wait_timeout", "7"), ("wait_timeout", "1000"))), ApplyConfig()) as session:
        row = session.query(
            "SELECT @@time_zone, @@foreign_key_checks, @@unique_checks, @@autocommit, @@sql_mode, @@in_predicate_conversion_threshold, "
            "@@character_set_connection, @@lock_wait_timeout, @@tx_isolation"
        )[0]
        mode = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
        assert row[:4] == ("+00:00", 0, 1, 0)
        assert set(row[4].split(",")) == set(mode.split(","))
        assert row[5:] == (0, "utf8mb4", 7, "READ-COMMITTED")
        assert session.max_allowed_packet == 16 * 1024 * 1024
        assert session.flavour is Flavour.MARIADB


@pytest.mark.parametrize("name", ["time_zone", "SQL_MODE", "foreign_key_checks"])
def test_params_may_not_break_our_literals(target: TargetConfig, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        connect(replace(target, params=((name, "x"),)), ApplyConfig())


def test_an_unknown_param_is_an_error(target: TargetConfig) -> None:
    with pytest.raises(ApplyError, match="no_such_variable") as caught:
        connect(replace(target, params=(("no_such_variable", "1"),)), ApplyConfig())
    assert caught.value.errno == 1193


def test_bytes_and_arguments(target: TargetConfig) -> None:
    with connect(target, ApplyConfig()) as session:
        session.begin()
        assert session.execute(b"INSERT INTO h_session.t VALUES (1,'100%s'),(2,'\xe6\x97\xa5')") == 2
        assert session.execute("UPDATE h_session.t SET v = %s WHERE id = %s", ["it's", 1]) == 1
        session.commit()
        assert session.query("SELECT * FROM h_session.t ORDER BY id") == [(1, "it's"), (2, "日")]
        session.rollback()


def test_a_statement_beyond_one_packet(target: TargetConfig) -> None:
    with connect(target, ApplyConfig()) as session:
        big = b"x" * (16 * 1024 * 1024)
        with pytest.raises(ApplyError):
            session.execute(b"SELECT '" + big + b"'")


def test_closing_drops_what_is_not_committed(target: TargetConfig) -> None:
    with connect(target, ApplyConfig()) as session:
        session.begin()
        session.execute("INSERT INTO h_session.t VALUES (9,'x')")
    with connect(target, ApplyConfig()) as session:
        assert session.query("SELECT * FROM h_session.t") == []


def test_refusal_names_statement_and_words(target: TargetConfig) -> None:
    with (
        connect(target, ApplyConfig()) as session,
        pytest.raises(ApplyError, match=r"INSERT INTO h_session.nowhere.*1146.*doesn't exist") as caught,
    ):
        session.execute("INSERT INTO h_session.nowhere VALUES (1)")
    assert caught.value.errno == 1146
    assert not isinstance(caught.value, RetryableApplyError)


def test_no_server_is_retryable(target: TargetConfig) -> None:
    with pytest.raises(RetryableApplyError, match="cannot connect") as caught:
        connect(replace(target, socket="", port=1), ApplyConfig())
    assert caught.value.errno == 2003


def test_no_socket_is_retryable(target: TargetConfig) -> None:
    with pytest.raises(RetryableApplyError, match="cannot connect") as caught:
        connect(replace(target, socket="/nowhere/socket"), ApplyConfig())
    assert caught.value.errno == 2002


def test_killed_connection_is_retryable_and_run_again(target: TargetConfig) -> None:
    calls = 0

    def work(session: Session) -> str:
        nonlocal calls
        calls += 1
        session.execute("REPLACE INTO h_session.t VALUES (5, %s)", [f"try {calls}"])
        if calls == 1:
            with connect(target, ApplyConfig()) as other:
                other.execute(f"KILL {session.query('SELECT CONNECTION_ID()')[0][0]}")
        session.query("SELECT 1")
        return "done"

    assert run_transaction(lambda: connect(target, ApplyConfig()), work, pause=lambda _: None) == "done"
    with connect(target, ApplyConfig()) as session:
        assert session.query("SELECT * FROM h_session.t") == [(5, "try 2")]


def test_retries_end(target: TargetConfig) -> None:
    pauses: list[float] = []

    def work(session: Session) -> None:
        raise RetryableApplyError("again", 1213)

    with pytest.raises(RetryableApplyError):
        run_transaction(lambda: connect(target, ApplyConfig()), work, retries=3, pause=pauses.append)
    assert pauses == [0.05, 0.1, 0.2]


def test_deadlock_victim_is_run_again(target: TargetConfig) -> None:
    with connect(target, ApplyConfig()) as session:
        session.execute("INSERT INTO h_session.t VALUES (1,''),(2,'')")
        session.commit()
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

        run_transaction(lambda: connect(target, ApplyConfig()), work, pause=lambda _: None)
        attempts.extend(mine)

    threads = [threading.Thread(target=crosswise, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with connect(target, ApplyConfig()) as session:
        assert session.query("SELECT v FROM h_session.t") == [("xx",), ("xx",)]
    assert len(attempts) == 3, "one of the two was the victim, once"
