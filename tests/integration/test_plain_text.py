"""A DDL of a replay or of the relay log is executed once, whatever happens to its record: a lock, a killed connection, a refusal, a lost answer."""

import datetime
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import DdlRefused, RetryableApplyError
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.replay import file_replay, plain_text
from pyspark_tidb_binlog.sinks.replay.file_replay import Replayed
from pyspark_tidb_binlog.sinks.replay.mysql_replay import MySQLReplay
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack
from tests.integration.test_lost_commits import Pair, inserts_into, pair
from tests.support.crashed_site import CrashedSite, ddl_record, inserted, records
from tests.support.target_rows import refusing

pytestmark = pytest.mark.mysql
__all__ = ["pair"]

EXCHANGE = "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `q`"
SWAP = "RENAME TABLE `a` TO `tmp`, `b` TO `a`, `tmp` TO `b`"
PLAIN = {
    "ALTER TABLE `p` DROP PARTITION `p0`": {"PRIMARY"},
    "ALTER TABLE `p` ADD PARTITION (PARTITION `p2` VALUES LESS THAN (300))": {"PRIMARY"},
    "ALTER TABLE `a` ADD COLUMN `m` INT, ADD INDEX (`m`)": {"PRIMARY", "m"},
    "ALTER TABLE `a` ADD COLUMN `m` INT, MODIFY COLUMN `id` BIGINT": {"PRIMARY"},
    "ALTER TABLE `a` ADD CONSTRAINT `c` CHECK (`id` > 0)": {"PRIMARY"},
    "ALTER TABLE `keyless` ADD PRIMARY KEY (`id`)": {"PRIMARY"},
}
"""With the indexes that the table has afterwards."""
UNNAMED = {"ALTER TABLE `a` ADD INDEX (`id`)": {"PRIMARY", "id"}}
WAITING = [
    *(pytest.param(*case, marks=pytest.mark.slow if place else ()) for place, case in enumerate(PLAIN.items())),
    *UNNAMED.items(),
]
"""Each waits for a second: in ``make test`` one that would fail a second time, and one that would be done twice."""


@pytest.fixture
def shared(mariadb: PrivateMariaDB) -> Iterator[Pair]:
    """The run's server, where a statement waits for a second at most. Who has it die takes ``pair``."""
    made = Pair(mariadb)
    ((waits,),) = made.query("SELECT @@GLOBAL.innodb_lock_wait_timeout")
    made.query("SET GLOBAL innodb_lock_wait_timeout = 1")
    yield made
    made.query(f"SET GLOBAL innodb_lock_wait_timeout = {waits}")
    for name in ("d", "gone", "tidb_binlog"):
        made.query(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def tables(shared: Pair) -> Pair:
    shared.query("CREATE DATABASE d")
    shared.query(
        "CREATE TABLE d.p (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))"
    )
    for name, row in (("q", 2), ("a", 1), ("b", 2)):
        shared.query(f"CREATE TABLE d.{name} (id INT PRIMARY KEY)")
        shared.query(f"INSERT INTO d.{name} VALUES ({row})")
    shared.query("INSERT INTO d.p VALUES (1)")
    shared.query("CREATE TABLE d.keyless (id INT NOT NULL)")
    return shared


def behind(monkeypatch: pytest.MonkeyPatch, words: str, happens: Callable[[Session], None]) -> list[str]:
    """Once the first statement that begins with ``words`` is answered, something happens; gives those that were answered."""
    execute, sent = Session.execute, list[str]()

    def executed(self: Session, sql: bytes | str, args: Any = None) -> int:
        found = execute(self, sql, args)
        if isinstance(sql, str) and sql.startswith(words):
            sent.append(sql)
            if len(sent) == 1:
                happens(self)
        return found

    monkeypatch.setattr(Session, "execute", executed)
    return sent


def locked(pair: Pair, table: str) -> Callable[[Session], None]:
    """Somebody else holds our record for longer than a statement waits."""

    def lock(_: Session) -> None:
        other = pair.server.connect()
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"SELECT * FROM tidb_binlog.{table} FOR UPDATE")
        threading.Timer(1.6, other.close).start()

    return lock


def killed(pair: Pair) -> Callable[[Session], None]:
    def kill(session: Session) -> None:
        connection: Any = session._connection
        pair.query(f"KILL CONNECTION {connection.thread_id()}")

    return kill


def replayed(pair: Pair, *binlogs: pb.Binlog) -> Replayed:
    replay = MySQLReplay(pair.server.target(), ApplyConfig(lease_timeout=30.0), 0, ReadBack(datetime.UTC))
    try:
        replay.take_all(binlogs)
        return replay.done
    finally:
        replay.close()


def ddl(statement: str) -> pb.Binlog:
    return pb.Binlog(tp=pb.DDL, commit_ts=15, ddl_query=f"use `d`; {statement};;".encode())


def indexes(pair: Pair, statement: str) -> set[str]:
    sql = "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = 'd' AND table_name = '{}'"
    return {str(name) for (name,) in pair.query(sql.format(statement.split("`")[1]))}


@pytest.mark.parametrize("statement", [EXCHANGE, SWAP])
def test_a_ddl_that_a_second_time_undoes_itself_waits_for_its_record(tables: Pair, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    sent = behind(monkeypatch, statement[:11], locked(tables, "spark_state"))
    assert replayed(tables, ddl(statement)).ddls == 1
    assert len(sent) == 1
    assert tables.query(f"SELECT id FROM d.{'p' if statement is EXCHANGE else 'a'}") == [(2,)]


@pytest.mark.parametrize(("statement", "left"), WAITING)
def test_a_ddl_is_executed_once_though_its_record_waits(
    tables: Pair, monkeypatch: pytest.MonkeyPatch, statement: str, left: set[str]
) -> None:
    behind(monkeypatch, "ALTER TABLE", locked(tables, "spark_state"))
    done = replayed(tables, ddl(statement))
    assert (done.ddls, done.so_already) == (1, 0)
    assert indexes(tables, statement) == left


@pytest.mark.parametrize(("statement", "left"), PLAIN.items())
def test_a_ddl_that_was_answered_before_its_connection_was_killed_is_there(
    tables: Pair, monkeypatch: pytest.MonkeyPatch, statement: str, left: set[str]
) -> None:
    behind(monkeypatch, "ALTER TABLE", killed(tables))
    done = replayed(tables, ddl(statement))
    assert (done.ddls, done.so_already) == (1, 1)
    assert indexes(tables, statement) == left


LATE = "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `{}` AS SELECT `id` FROM `{}`"
VIEWS = (LATE.format("over", "v"), LATE.format("v", "late"), "CREATE TABLE `view` (`id` INT)", "RENAME TABLE `b` TO `late`")
"""The first needs the second, which the last makes possible."""


def test_a_view_that_a_replay_cannot_make_is_named_and_tried_again(tables: Pair, caplog: pytest.LogCaptureFixture) -> None:
    texts = [pb.Binlog(tp=pb.DDL, commit_ts=15 + at, ddl_query=f"use `d`; {sql};;".encode()) for at, sql in enumerate(VIEWS)]
    assert (done := replayed(tables, *texts)).ddls == 4 and done.so_already == 0
    assert "the view of the DDL of commit_ts 16 is left out" in caplog.text and "Table 'd.late' doesn't exist" in caplog.text
    assert tables.query("SELECT id FROM d.over") == [(2,)]


@pytest.mark.parametrize("there", [True, False])
def test_a_database_that_is_gone_was_dropped(tables: Pair, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """It was dropped by a connection that was killed before the record, or by a replay before."""
    if there:
        tables.query("CREATE DATABASE gone")
    behind(monkeypatch, "DROP DATABASE", killed(tables))
    dropped = pb.Binlog(tp=pb.DDL, commit_ts=15, ddl_query=b"use `gone`; DROP DATABASE `gone`;;")
    assert replayed(tables, dropped).so_already == 1


@pytest.mark.parametrize("statement", [EXCHANGE, SWAP])
def test_one_that_would_undo_itself_is_left_to_a_person(tables: Pair, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    sent = behind(monkeypatch, statement[:11], killed(tables))
    for _ in range(2):
        with pytest.raises(
            DdlRefused, match=r"was executed, or may have been: .* would undo it.* If it was not executed, execute it by hand"
        ):
            replayed(tables, ddl(statement))
    assert len(sent) == 1


@pytest.mark.parametrize("statement", [EXCHANGE, "ALTER TABLE `p` DROP PARTITION `p0`"])
def test_a_ddl_whose_record_is_refused_is_no_refused_ddl(tables: Pair, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """A trigger stands for a full disk."""
    full = refusing("tidb_binlog.spark_state", "NEW.value LIKE '%ddl-executed%'")

    def fill(_: Session) -> None:
        for sql in full:
            tables.query(sql)

    sent = behind(monkeypatch, statement[:11], fill)
    with pytest.raises(DdlRefused, match="was executed, or may have been: it was executed, but the target refuses its record"):
        replayed(tables, ddl(statement))
    assert tables.query("SELECT JSON_VALUE(value, '$.kind') FROM tidb_binlog.spark_state") == [("ddl",)]
    for verb in ("INSERT", "UPDATE"):
        tables.query(f"DROP TRIGGER tidb_binlog.spark_state_{verb}")
    with pytest.raises(DdlRefused):
        replayed(tables, ddl(statement))
    assert len(sent) == 1


def test_the_answer_to_the_record_is_lost(tables: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, armed = Session.commit, list[Session]()

    def lost(self: Session) -> None:
        commit(self)
        if self in armed:
            armed.clear()
            self.abandon()
            raise RetryableApplyError("the answer was lost", 2013, "Lost connection")

    sent = behind(monkeypatch, "ALTER TABLE", armed.append)
    monkeypatch.setattr(Session, "commit", lost)
    assert replayed(tables, ddl(EXCHANGE)).ddls == 1
    assert len(sent) == 1
    assert tables.query("SELECT id FROM d.p") == [(2,)]


def lost_once_it_is_so(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica is behind from before the DDL, and takes the server's place when that has said that the DDL is so already."""
    execute, has_all_of, fails = file_replay.execute_text, plain_text.has_all_of, iter([pair.fail_over])

    def begun(*arguments: Any) -> Any:
        monkeypatch.setattr(file_replay, "execute_text", execute)
        pair.replicate()
        return execute(*arguments)

    def so(*arguments: Any) -> bool:
        next(fails, lambda: None)()
        return has_all_of(*arguments)

    monkeypatch.setattr(file_replay, "execute_text", begun)
    monkeypatch.setattr(plain_text, "has_all_of", so)
    monkeypatch.setattr(plain_text, "_DONE_BEFORE", frozenset())
    behind(monkeypatch, "ALTER TABLE", killed(pair))


def test_what_a_lost_server_said_of_a_ddl_of_a_replay_is_asked_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    lost_once_it_is_so(pair, monkeypatch)
    pair.query("CREATE TABLE d.k (id INT PRIMARY KEY)")
    done = replayed(pair, ddl("ALTER TABLE `k` ADD COLUMN `u` INT"), inserts_into("k", 20, 7))
    assert pair.query("SELECT * FROM d.k") == [(7, 7)]
    assert not done.left_out


@pytest.mark.parametrize("table", ["checkpoint", "spark_state"])
def test_a_swap_of_the_relay_log_is_executed_once(shared: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: str) -> None:
    site = CrashedSite(shared.server, tmp_path)
    shared.query("CREATE TABLE d.y2 LIKE d.y")
    site.checkpoint(5)
    first, last = records([inserted(10, "y", (1, "y", 1)), inserted(30, "y", (9, "new", 9))])
    swap = "RENAME TABLE y TO tmp, y2 TO y, tmp TO y2"
    site.log([first, ddl_record(15, "c1", "ALTER TABLE c1 ADD INDEX i (n)"), ddl_record(20, "y", swap), last])
    sent = behind(monkeypatch, "RENAME", locked(shared, table))
    assert site.recover().commit_ts == 30
    assert len(sent) == 1
    assert (site.query("SELECT id FROM d.y"), site.query("SELECT id FROM d.y2")) == ([(9,)], [(1,)])
