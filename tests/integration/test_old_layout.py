"""Targets of the layout before the lease: real tables as the former release made them, taken over through a death at every statement."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.fold import Numbering
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql import old_layout, progress
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import ensure_ddl_table, load_applied
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.sink import TargetProgress, UnfinishedSpan
from tests.support.ddl_jobs import database, history, job, table
from tests.support.ddl_target import Died
from tests.support.leases import held

pytestmark = pytest.mark.mysql

SCHEMA = "old_marks"
CONFIG = ApplyConfig(checkpoint_schema=SCHEMA)
HISTORY = history(database(1), job(2, 3, table(10, "t")), job(3, 3, table(11, "u")))

FORMER = (
    f"CREATE DATABASE {SCHEMA}",
    f"CREATE TABLE {SCHEMA}.checkpoint (clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)",
    f"CREATE TABLE {SCHEMA}.spark_progress ("
    "drainer varchar(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
    "from_ts bigint unsigned NOT NULL, to_ts bigint unsigned NOT NULL, part int NOT NULL, parts int NOT NULL, "
    "phase varchar(16) CHARACTER SET ascii NOT NULL, done_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), "
    "PRIMARY KEY (drainer, from_ts, to_ts, part, parts, phase)) ENGINE=InnoDB",
    f"CREATE TABLE {SCHEMA}.spark_ddl ("
    "drainer VARCHAR(191) NOT NULL, job_id BIGINT NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, version BIGINT NOT NULL, "
    "early TINYINT NOT NULL, state VARCHAR(16) NOT NULL, query LONGTEXT NOT NULL, executed LONGTEXT, picture LONGTEXT, losses LONGTEXT, "
    "note LONGTEXT, began TIMESTAMP(3) NULL, ended TIMESTAMP(3) NULL, PRIMARY KEY (drainer, job_id)) "
    "ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin",
)

UNFINISHED = UnfinishedSpan(100, 200, 2, frozenset({(0, "delete"), (1, "delete"), (0, "write")}), Numbering.ROWS)


class Mortal:
    """A session whose process dies before its ``last``-th statement is sent."""

    def __init__(self, session: Session, last: int) -> None:
        self.session, self.left = session, last

    def _count(self) -> None:
        if not self.left:
            raise Died
        self.left -= 1

    def execute(self, sql: str, args: Sequence[Any] | None = None) -> int:
        self._count()
        return self.session.execute(sql, args)

    def query(self, sql: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        self._count()
        return self.session.query(sql, args)

    def begin(self) -> None:
        self._count()
        self.session.begin()

    def commit(self) -> None:
        self._count()
        self.session.commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


@pytest.fixture
def open_session(mariadb: PrivateMariaDB) -> Iterator[Callable[[], Session]]:
    yield lambda: connect(mariadb.target(), CONFIG)
    with connect(mariadb.target(), CONFIG) as session:
        session.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")


def write_former(session: Session, spans: Sequence[tuple[str, int, int]], checkpoints: Sequence[tuple[int, int]]) -> None:
    """The former layout with an unfinished span per (drainer, from_ts, to_ts), and a checkpoint per (cluster, commit_ts)."""
    for statement in FORMER:
        session.execute(statement)
    for cluster_id, commit_ts in checkpoints:
        progress.save_checkpoint(session, cluster_id, commit_ts, 1, False, SCHEMA)
    marks = [(-1, "span"), (0, "delete"), (1, "delete"), (0, "write")]
    for drainer, from_ts, to_ts in spans:
        for part, phase in marks:
            session.execute(
                f"INSERT INTO {SCHEMA}.spark_progress (drainer, from_ts, to_ts, part, parts, phase) VALUES (%s, %s, %s, %s, 2, %s)",
                [drainer, from_ts, to_ts, part, phase],
            )
    session.commit()


def write_ddl(session: Session, drainer: str, job_id: int, state: str, early: int = 1, version: int = 0) -> None:
    session.execute(
        f"INSERT INTO {SCHEMA}.spark_ddl (drainer, job_id, commit_ts, version, early, state, query, ended) "
        "VALUES (%s, %s, %s, %s, %s, %s, 'x', IF(%s = 'intent', NULL, NOW(3)))",
        [drainer, job_id, job_id * 10, version or job_id, early, state, state],
    )
    session.commit()


def start(session: Session, cluster_id: int = 7, drainer: str = "drainer", jobs: SchemaHistory = HISTORY) -> TargetProgress:
    """What ``MySQLSink.open`` does to our tables."""
    lease = held(session, cluster_id, SCHEMA)
    old_layout.set_aside(session, SCHEMA)
    progress.ensure_tables(session, SCHEMA)
    ensure_ddl_table(session, CONFIG)
    session.commit()
    old_layout.adopt(session, lease, drainer, jobs)
    found = progress.load(session, cluster_id, SCHEMA)
    session.commit()
    return found


def tables(session: Session) -> set[str]:
    return {str(name) for (name,) in session.query(f"SHOW TABLES FROM {SCHEMA}")}


PRESENT = {"checkpoint", "spark_lease", "spark_progress", "spark_ddl"}


def test_an_unfinished_span_and_early_marks_through_a_death_at_every_statement(open_session: Callable[[], Session]) -> None:
    deaths, survived = 0, False
    while not survived:
        with open_session() as session:
            session.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
            write_former(session, [("drainer", 100, 200)], [(7, 100)])
            write_ddl(session, "drainer", 2, "done")
            write_ddl(session, "drainer", 3, "intent")
        with open_session() as session:
            try:
                start(Mortal(session, deaths))  # type: ignore[arg-type]
                survived = True
            except Died:
                deaths += 1
        with open_session() as session:
            assert start(session) == TargetProgress(100, False, 1, UNFINISHED)
            assert load_applied(session, CONFIG, 7, 1) == AppliedJobs(1, frozenset({2}))
            assert session.query(f"SELECT cluster_id, job_id, state FROM {SCHEMA}.spark_ddl") == [(7, 2, "done"), (7, 3, "intent")]
            assert tables(session) == PRESENT
    assert deaths > 20


def test_a_drainer_that_was_renamed_finds_its_span(open_session: Callable[[], Session]) -> None:
    with open_session() as session:
        write_former(session, [("former", 100, 200)], [(7, 100)])
        write_ddl(session, "former", 2, "done")
        assert start(session, drainer="renamed").unfinished == UNFINISHED
        assert load_applied(session, CONFIG, 7, 1) == AppliedJobs(1, frozenset({2}))
        assert tables(session) == PRESENT


def test_what_is_behind_the_checkpoint_is_forgotten(open_session: Callable[[], Session]) -> None:
    """A span that another name left when it was renamed, and the stream went past."""
    with open_session() as session:
        write_former(session, [("former", 50, 120), ("drainer", 100, 200)], [(7, 100)])
        assert start(session) == TargetProgress(100, False, 1, UNFINISHED)
        assert session.query(f"SELECT COUNT(*) FROM {SCHEMA}.spark_progress") == [(4,)]


def test_two_clusters_with_one_name_each_take_their_own(open_session: Callable[[], Session]) -> None:
    theirs = history(database(1), job(4, 3, table(10, "t")), job(5, 3, table(11, "u")))
    with open_session() as session:
        write_former(session, [("drainer", 100, 200), ("drainer", 101, 300)], [(7, 100), (8, 101)])
        write_ddl(session, "drainer", 3, "done")
        write_ddl(session, "drainer", 5, "done")
        assert start(session, 8, jobs=theirs).unfinished == UnfinishedSpan(101, 300, 2, UNFINISHED.done, Numbering.ROWS)
        assert load_applied(session, CONFIG, 8, 1) == AppliedJobs(1, frozenset({5}))
        assert tables(session) == PRESENT | {"spark_progress_by_drainer", "spark_ddl_by_drainer"}
        assert start(session, 7) == TargetProgress(100, False, 1, UNFINISHED)
        assert load_applied(session, CONFIG, 7, 1) == AppliedJobs(1, frozenset({3}))
        assert tables(session) == PRESENT


def test_of_two_records_of_one_job_the_ended_one_counts(open_session: Callable[[], Session]) -> None:
    with open_session() as session:
        write_former(session, [], [(7, 100)])
        write_ddl(session, "a", 2, "intent")
        write_ddl(session, "b", 2, "done")
        write_ddl(session, "a", 3, "done")
        write_ddl(session, "drainer", 3, "intent")
        start(session)
        assert session.query(f"SELECT job_id, state FROM {SCHEMA}.spark_ddl ORDER BY job_id") == [(2, "done"), (3, "intent")]


def test_two_names_at_one_checkpoint_are_for_a_person_to_decide(open_session: Callable[[], Session]) -> None:
    with open_session() as session:
        write_former(session, [("a", 100, 200), ("b", 100, 210)], [(7, 100)])
        with pytest.raises(ApplyError, match=r"\['a', 'b'\].*Set node-id"):
            start(session)
        session.rollback()
        assert start(session, drainer="b").unfinished == UnfinishedSpan(100, 210, 2, UNFINISHED.done, Numbering.ROWS)


def test_a_release_that_knows_no_lease_fails_at_its_next_write(open_session: Callable[[], Session]) -> None:
    with open_session() as session:
        write_former(session, [("drainer", 100, 200)], [(7, 100)])
        start(session)
        with pytest.raises(ApplyError, match="Unknown column 'drainer'"):
            session.execute(
                f"INSERT IGNORE INTO {SCHEMA}.spark_progress (drainer, from_ts, to_ts, part, parts, phase) VALUES ('drainer', 100, 200, 1, 2, 'write')"
            )
        with pytest.raises(ApplyError, match="Unknown column 'drainer'"):
            write_ddl(session, "drainer", 4, "intent")


def test_a_restored_target_beside_what_was_left_aside(open_session: Callable[[], Session]) -> None:
    with open_session() as session:
        write_former(session, [("drainer", 100, 200), ("other", 101, 300)], [(7, 100), (8, 101)])
        start(session)
        session.execute(f"DROP TABLE {SCHEMA}.spark_progress")
        session.execute(FORMER[2])
        with pytest.raises(ApplyError, match=f"drop {SCHEMA}.spark_progress_by_drainer and start again"):
            start(session)
