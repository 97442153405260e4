"""A target that turns read-only, is killed or refuses us, on a real MariaDB: what passes is waited out and said, what cannot is said at once."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, TransientError
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, Sessions, connect
from tests.support.attempts import run_retried, run_transaction
from tests.support.target_rows import run_sql

pytestmark = pytest.mark.mysql


class Told(list[str]):
    """What was waited for, and ``then``, once, at the first wait: the trouble ends only after it was noticed."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = [then]

    def __call__(self, waited: TransientError | None) -> None:
        self.append(str(waited).partition(" since ")[0])
        while self._then:
            self._then.pop()()


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    """A private one of this file, to be killed and made read-only."""
    with PrivateMariaDB() as server:
        yield server


@pytest.fixture
def plain(server: PrivateMariaDB) -> TargetConfig:
    """An account that ``read_only`` stops: it may write everywhere and is no administrator."""
    run_sql(
        server,
        "SET GLOBAL read_only = 0",
        "DROP DATABASE IF EXISTS h_away",
        "CREATE USER IF NOT EXISTS plain@localhost IDENTIFIED BY 'pw'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON h_away.* TO plain@localhost",
        "CREATE DATABASE h_away",
        "CREATE TABLE h_away.t (id INT PRIMARY KEY)",
    )
    return replace(server.target(), user="plain", password="pw")


def rows(server: PrivateMariaDB) -> list[int]:
    return [row[0] for row in run_sql(server, "SELECT id FROM h_away.t ORDER BY id")]


def insert(session: Session) -> None:
    session.execute("REPLACE INTO h_away.t VALUES (1)")


def add_column(session: Session) -> None:
    session.execute("ALTER TABLE h_away.t ADD COLUMN c INT")


@pytest.fixture(params=["new", "kept"])
def sessions(request: pytest.FixtureRequest, plain: TargetConfig) -> Iterator[Sessions]:
    """Of the plain account; ``kept``: from before the trouble."""
    kept = KeptSessions(lambda: connect(plain, ApplyConfig()), 3600.0)
    if request.param == "kept":
        run_transaction(kept.use, lambda session: session.query("SELECT 1"))
    yield kept.use if request.param == "kept" else lambda: connect(plain, ApplyConfig())
    kept.close()


@pytest.mark.parametrize("work", [insert, add_column])
def test_read_only_is_waited_out(server: PrivateMariaDB, plain: TargetConfig, sessions: Sessions, work: Callable[[Session], None]) -> None:
    run_sql(server, "SET GLOBAL read_only = 1")
    told = Told(lambda: run_sql(server, "SET GLOBAL read_only = 0"))
    patience = RetryPolicy(retries=0, seconds=60.0, tell=told)
    run = run_transaction if work is insert else run_retried
    run(sessions, work, patience)
    assert (told[0], told[-1]) == (f"target {plain.socket}: read-only", "None")
    assert rows(server) == ([1] if work is insert else [])


def test_a_killed_server_is_waited_for_until_it_is_back(server: PrivateMariaDB, plain: TargetConfig, sessions: Sessions) -> None:
    with contextlib.ExitStack() as stack:
        told = Told(lambda: stack.callback(in_background(server.restart).join))
        server.kill()
        run_transaction(sessions, insert, RetryPolicy(retries=0, seconds=60.0, tell=told))
    assert (told[0], told[-1]) == (f"target {plain.socket}: not reachable", "None")
    assert rows(server) == [1]


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.shows("spark.retry-seconds")
def test_a_wait_ends(server: PrivateMariaDB, plain: TargetConfig) -> None:
    run_sql(server, "SET GLOBAL read_only = 1")
    with pytest.raises(RetryableApplyError, match="1290"):
        run_transaction(lambda: connect(plain, ApplyConfig()), insert, RetryPolicy(retries=2, pause=lambda seconds: None))


@pytest.mark.parametrize(
    ("changed", "sql", "errno"),
    [
        ({"password": "wrong"}, "SELECT 1", 1045),
        ({"user": "nobody"}, "SELECT 1", 1045),
        ({}, "INSERT INTO h_away_not.t VALUES (1)", 1142),
        ({}, "CREATE DATABASE h_away_not", 1044),
        (None, "INSERT INTO h_away.missing VALUES (1)", 1146),
        (None, "USE h_away_not", 1049),
    ],
)
def test_what_cannot_pass_is_said_at_once(
    server: PrivateMariaDB, plain: TargetConfig, changed: dict[str, str] | None, sql: str, errno: int
) -> None:
    """``changed``: what the plain account has otherwise; None: an account that may do everything."""
    account = server.target() if changed is None else replace(plain, **changed)

    def never(seconds: float) -> None:
        raise AssertionError("nothing is waited for")

    with pytest.raises(ApplyError) as refused:
        run_transaction(lambda: connect(account, ApplyConfig()), lambda session: session.execute(sql), RetryPolicy(pause=never))
    assert (refused.value.errno, type(refused.value)) == (errno, ServerRefused)
