"""Sessions that are kept between two uses, on a real MariaDB: each use finds them as new, and none is kept that could do harm."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError, LeaseLost, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql import lease, parallel
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.parallel import PartTarget
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, begin_ddl, connect, kept_sessions
from pyspark_tidb_binlog.sinks.mysql.statements import Phase
from tests.support.attempts import run_retried, run_transaction
from tests.support.ddl_jobs import database, history, job, steps_of, table
from tests.support.eventually import eventually
from tests.support.fakes.planned import Planned
from tests.support.leases import take_lease
from tests.support.recorded import begun
from tests.support.target_rows import run_sql

pytestmark = pytest.mark.mysql

ROOT = Path(__file__).parents[2]


def never(seconds: float) -> None:
    raise AssertionError("an attempt failed visibly")


AT_ONCE = RetryPolicy(pause=never)

STATE = (
    "SELECT @@time_zone, @@foreign_key_checks, @@unique_checks, @@autocommit, @@sql_mode, @@wait_timeout, @@{isolation}, @@max_error_count, "
    "@@character_set_client, @@character_set_connection, @@character_set_results, @@collation_connection, @@innodb_lock_wait_timeout, DATABASE()"
)


@pytest.fixture
def target(mariadb: PrivateMariaDB) -> Iterator[TargetConfig]:
    config = mariadb.target()
    with connect(config, ApplyConfig()) as session:
        session.execute("CREATE DATABASE h_kept")
        session.execute("CREATE TABLE h_kept.t (id int primary key) ENGINE=InnoDB")
        yield config
        session.execute("DROP DATABASE h_kept")


@pytest.fixture
def kept(target: TargetConfig) -> Iterator[KeptSessions]:
    made = keeping(target)
    yield made
    made.close()


def keeping(target: TargetConfig, lease_timeout: float = 3600.0) -> KeptSessions:
    return KeptSessions(lambda: connect(target, ApplyConfig(lease_timeout=lease_timeout)), lease_timeout)


def number(session: Session) -> int:
    return int(session.query("SELECT CONNECTION_ID()")[0][0])


def run(kept: KeptSessions, work: Callable[[Session], object] = number, policy: RetryPolicy = AT_ONCE) -> object:
    return run_transaction(kept.use, work, policy)


def insert(row: int, session: Session) -> int:
    session.execute(f"INSERT INTO h_kept.t VALUES ({row})")
    return number(session)


def rows(target: TargetConfig) -> list[int]:
    with connect(target, ApplyConfig()) as session:
        return [row for (row,) in session.query("SELECT id FROM h_kept.t ORDER BY id")]


def kill(target: TargetConfig, connection: object) -> None:
    with connect(target, ApplyConfig()) as session:
        session.execute(f"KILL {connection}")
        eventually(lambda: not session.query("SELECT 1 FROM information_schema.processlist WHERE id = %s", [connection]))


# What is kept.


def test_two_uses_share_a_connection_that_is_as_new(target: TargetConfig, kept: KeptSessions) -> None:
    def state(session: Session) -> object:
        return session.query(STATE.format(isolation="transaction_isolation" if session.flavour is Flavour.MYSQL else "tx_isolation"))

    with connect(target, ApplyConfig(lease_timeout=3600.0)) as fresh:
        wanted = state(fresh)
    first = run(kept, partial(insert, 1))
    with connect(target, ApplyConfig()) as session:
        session.execute("SET GLOBAL time_zone = '+05:00', GLOBAL sql_mode = 'ANSI_QUOTES', GLOBAL autocommit = 1")
        try:
            assert (run(kept), run(kept, state)) == (first, wanted)
        finally:
            session.execute("SET GLOBAL time_zone = DEFAULT, GLOBAL sql_mode = DEFAULT")
    assert rows(target) == [1]


def test_what_a_use_leaves_open_is_rolled_back_at_its_end(target: TargetConfig, kept: KeptSessions) -> None:
    """Not at the next one: until then it would hold its locks."""
    first = run_retried(kept.use, partial(insert, 1), AT_ONCE)
    with connect(target, ApplyConfig()) as other:
        other.execute("SET SESSION innodb_lock_wait_timeout = 1")
        other.execute("INSERT INTO h_kept.t VALUES (1)")
    assert run(kept) == first
    assert rows(target) == []


def test_executors_keep_theirs_for_all_tasks_with_the_same_settings(target: TargetConfig) -> None:
    apply = ApplyConfig(checkpoint_schema="h_kept")
    with connect(target, apply) as session:
        held = take_lease(session, schema="h_kept")
        begun(session, (10, 20), 4, "h_kept")
        session.commit()
        before = connections(session)
        to = PartTarget(ShippedTarget.of(target, Here), apply, held, 10, 20, 4)
        for part in range(4):
            parallel._write_part(to, part, Phase.WRITE, Planned())
        assert connections(session) - before == 1
        take_lease(session, schema="h_kept", drainer="another")
        with pytest.raises(LeaseLost, match="another"):
            parallel._write_part(to, 0, Phase.DELETE, Planned())
        kept_sessions(target, apply).close()


def connections(session: Session) -> int:
    return int(session.query("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1])


HISTORY = history(
    database(1, "h_kept_ddl"),
    job(2, 3, table(10, "t"), query="CREATE TABLE `t` (`id` INT PRIMARY KEY)", schema_name="h_kept_ddl"),
    *(job(i, 11, table(8 + i, "t"), query="TRUNCATE TABLE `t`", schema_name="h_kept_ddl", table_id=7 + i) for i in range(3, 9)),
)


def test_a_sink_needs_a_connection_for_rows_and_one_for_ddls(target: TargetConfig) -> None:
    config = DrainerConfig(target=target, apply=ApplyConfig(checkpoint_schema="h_kept", lease_timeout=3600.0))
    sink = MySQLSink(config, 1, never)
    with connect(target, ApplyConfig()) as session:

        def there() -> set[int]:
            return {int(row[0]) for row in session.query("SELECT id FROM information_schema.processlist")}

        others = there()
        create_database, create_table, *truncates = steps_of(HISTORY, {j.id: f"{j.query};" for j in HISTORY.ordered})
        try:
            sink.open(lambda identity, commit_ts: 5, lambda: HISTORY)
            for step in (create_database, create_table):
                sink.apply_ddl(step, HISTORY, {})
            sink.apply_ddl(truncates[0], HISTORY, {})
            before = connections(session)
            for step in truncates[1:]:
                sink.apply_ddl(step, HISTORY, {})
            assert connections(session) == before
            mine = there() - others
            assert len(mine) == 3, "the third is the one that holds the lease"
        finally:
            sink.close()
            session.execute("DROP DATABASE IF EXISTS h_kept_ddl")
        eventually(lambda: not there() & mine)


# What is not kept.


class Ours(Exception):
    """A check of ours that fails in the middle of a transaction."""


@pytest.mark.parametrize("error", [Ours(), FindingError("found"), LeaseLost("lost"), KeyboardInterrupt()])
def test_an_error_in_the_middle_of_a_transaction_closes_the_connection(
    target: TargetConfig, kept: KeptSessions, error: BaseException
) -> None:
    first = run(kept)

    def work(session: Session) -> None:
        insert(1, session)
        raise error

    with pytest.raises(type(error)):
        run(kept, work)
    assert run(kept, partial(insert, 2)) != first
    assert rows(target) == [2]


def test_an_error_that_the_use_took_for_an_answer_closes_it_too(kept: KeptSessions) -> None:
    def work(session: Session) -> int:
        with contextlib.suppress(ApplyError):
            session.execute("SELECT * FROM h_kept.nowhere")
        return number(session)

    assert run(kept, work) != run(kept)


LEAVES = {
    "autocommit": lambda session: session.execute("SET SESSION autocommit = 1"),
    "a longer timeout": lambda session: session.wait_longer(2),
    "a transaction after its end": lambda session: session.execute("SET SESSION completion_type = 1"),
}


@pytest.mark.parametrize("left", LEAVES)
def test_a_use_that_leaves_something_closes_the_connection(kept: KeptSessions, left: str) -> None:
    def work(session: Session) -> int:
        LEAVES[left](session)
        return number(session)

    assert run(kept, work) != run(kept)


def test_it_is_kept_for_half_of_the_time_after_which_the_server_closes_it(target: TargetConfig) -> None:
    """Counted from its opening, so a process that was stopped meanwhile finds it too old as well."""
    kept = keeping(target, 1.0)
    first = run(kept)
    time.sleep(0.6)
    assert run(kept) != first
    kept.close()


def test_what_is_returned_after_the_end_is_closed(target: TargetConfig) -> None:
    kept = keeping(target)
    with kept.use() as session:
        kept.close()
        mine = number(session)
    with connect(target, ApplyConfig()) as other:
        eventually(lambda: not other.query("SELECT 1 FROM information_schema.processlist WHERE id = %s", [mine]))


def test_no_connection_is_used_in_two_processes(kept: KeptSessions) -> None:
    first = run(kept)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, str(run(kept)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read() not in ("", str(first))
    assert run(kept) == first, "the child must not have closed its parent's connection"


# What happened to the connection meanwhile.


def test_a_connection_that_the_server_closed_is_replaced_in_silence(target: TargetConfig, kept: KeptSessions) -> None:
    first = run(kept)
    kill(target, first)
    assert run(kept, partial(insert, 1)) != first
    assert rows(target) == [1]


def test_a_loss_after_the_first_statement_is_a_failed_attempt(target: TargetConfig, kept: KeptSessions) -> None:
    run(kept)
    told: list[str] = []
    attempts: list[int] = []

    def work(session: Session) -> int:
        attempts.append(insert(len(attempts), session))
        if len(attempts) == 1:
            kill(target, attempts[0])
        return number(session)

    run(kept, work, RetryPolicy(pause=lambda _: None, tell=lambda error: told.append(str(error))))
    assert (len(attempts), told[0].partition(" since ")[0], told[-1]) == (2, f"target {target.socket}: connection lost", "None")
    assert rows(target) == [1]


def test_a_server_that_restarted_in_between_is_not_waited_for(fresh_mariadb: PrivateMariaDB) -> None:
    kept = keeping(fresh_mariadb.target())
    with kept.use() as session:
        assert session.query("SELECT @@max_allowed_packet") == [(session.max_allowed_packet,)]
    fresh_mariadb.kill()
    fresh_mariadb.restart()
    assert run(kept) is not None
    kept.close()


def test_another_server_behind_the_address_is_noticed_before_anything_is_written() -> None:
    with PrivateMariaDB() as one:
        over_tcp = replace(one.target(), socket="", user="two", password="pw")
        kept = keeping(over_tcp)
        run_sql(one, "CREATE USER two@'%' IDENTIFIED BY 'pw'", "GRANT ALL ON tidb_binlog.* TO two@'%'")
        with connect(one.target(), ApplyConfig()) as session:
            held = take_lease(session)
        run(kept, lambda session: lease.check(session, held))
        port = one.port
    with PrivateMariaDB(options={"max_allowed_packet": "32M"}, port=port) as other:
        run_sql(other, "CREATE USER two@'%' IDENTIFIED BY 'pw'", "GRANT ALL ON tidb_binlog.* TO two@'%'")
        with connect(other.target(), ApplyConfig()) as session:
            take_lease(session)
        assert run(kept, lambda session: session.max_allowed_packet) == 32 * 1024 * 1024
        with pytest.raises(LeaseLost):
            run(kept, lambda session: lease.check(session, held))
        kept.close()


# DDLs.


@pytest.mark.parametrize(("wanted", "current"), [("h_kept", "h_kept"), ("h_kept_nowhere", None), ("", None)])
def test_a_ddl_never_finds_the_database_of_the_one_before(
    target: TargetConfig, kept: KeptSessions, wanted: str, current: str | None
) -> None:
    with connect(target, ApplyConfig()) as session:
        session.execute("CREATE DATABASE h_kept_before")
    run_retried(kept.use, lambda session: session.use("h_kept_before"), AT_ONCE, partial(begin_ddl, "h_kept_before"))
    found = run_retried(kept.use, lambda session: session.query("SELECT DATABASE()"), AT_ONCE, partial(begin_ddl, wanted))
    with connect(target, ApplyConfig()) as session:
        session.execute("DROP DATABASE h_kept_before")
    assert found == [(current,)]


def test_a_ddls_connection_that_the_server_closed_is_replaced_in_silence(target: TargetConfig, kept: KeptSessions) -> None:
    for chosen in ("", "h_kept"):
        first = run_retried(kept.use, number, AT_ONCE, partial(begin_ddl, chosen))
        kill(target, first)
        assert run_retried(kept.use, lambda session: session.use("h_kept"), AT_ONCE, partial(begin_ddl, "h_kept")) is None


# Two Drainers.

WRITE = """
    import json, os, sys
    from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
    from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions
    from pyspark_tidb_binlog.sinks.mysql.lease import LeaseHolder, check
    from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeaseGuard
    from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
    from pyspark_tidb_binlog.sinks.mysql.session import connect
    from tests.support.attempts import run_transaction
    seconds = float(sys.argv[1])
    target, apply = TargetConfig(**json.loads(os.environ["TARGET"])), ApplyConfig(checkpoint_schema="h_kept", lease_timeout=seconds)
    guard = LeaseGuard(lambda: connect(target, apply), 1, "h_kept", LeaseHolder("first"), seconds, RetryPolicy(5))
    held = guard.take()
    kept = KeptSessions(lambda: connect(target, apply), 3600.0)
    def work(session):
        check(session, held)
        session.execute("INSERT INTO h_kept.t VALUES (%s)", [int(line)])
        return session.query("SELECT CONNECTION_ID()")[0][0]
    for line in sys.stdin:
        print(run_transaction(kept.use, work, RetryPolicy(5)), flush=True)
"""


@pytest.mark.parametrize("closed", [True, False], ids=["closed by the server meanwhile", "still open"])
def test_a_drainer_that_slept_with_a_kept_connection_writes_nothing_after_its_successor(target: TargetConfig, closed: bool) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITE), "1.0"]
    environ = os.environ | {"TARGET": json.dumps({name: value for name, value in dataclasses.asdict(target).items() if name != "security"})}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        print(1, file=process.stdin, flush=True)
        connection = int(process.stdout.readline())
        print(2, file=process.stdin, flush=True)
        assert int(process.stdout.readline()) == connection
        process.send_signal(signal.SIGSTOP)
        with connect(target, ApplyConfig(lease_timeout=3600.0)) as session:
            if closed:
                eventually(lambda: not session.query("SELECT 1 FROM information_schema.processlist WHERE id = %s", [connection]))
            take_lease(session, schema="h_kept", drainer="second")
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("3\n", timeout=60)
    assert "LeaseLost" in said and "drainer 'second'" in said
    assert "attempt 1" not in said
    assert rows(target) == [1, 2]


def test_a_failed_first_statement_on_a_new_connection_is_an_error(kept: KeptSessions) -> None:
    with pytest.raises(ApplyError, match="h_kept_nowhere"):
        run_retried(kept.use, number, AT_ONCE, lambda session: session.use("h_kept_nowhere"))


def test_a_host_that_vanished_is_not_waited_for_longer_than_a_connection(target: TargetConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.session._FIRST_TIMEOUT", 0.5)
    kept = keeping(replace(target, read_timeout=30.0))
    first = run(kept)
    silent = []

    def once(session: Session) -> None:
        if not silent:
            silent.append(number(session))
            session.query("SELECT SLEEP(20)")  # stands for a host that does not answer
        session.begin()

    begun = time.monotonic()
    second = run_retried(kept.use, number, AT_ONCE, once)
    assert (silent, second != first, time.monotonic() - begun < 15) == ([first], True, True)
    with pytest.raises(RetryableApplyError, match="timed out"):
        run_retried(keeping(replace(target, read_timeout=0.5)).use, lambda s: s.query("SELECT SLEEP(5)"), RetryPolicy(retries=0))
    kept.close()
