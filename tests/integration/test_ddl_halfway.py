"""A DROP DATABASE that the target was killed in: what is left of the database goes with the next life."""

from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import database, history, job, steps_of, table
from tests.support.ddl_target import apply, apply_all, ddl_session, dying

pytestmark = pytest.mark.mysql


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target(), databases=("halfway",)) as session:
        yield session


@pytest.mark.shows("ddl drop schema")
@pytest.mark.parametrize("left", [("a", "b"), ("b",), ()])
def test_what_is_left_is_dropped(session: Session, left: tuple[str, ...]) -> None:
    info = {"id": 1000, "db_name": {"O": "halfway"}, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    named = {"schema_name": "halfway"}
    jobs = history(
        database(1, "halfway"),
        job(2, 3, table(11, "a"), query="CREATE TABLE `a` (`id` INT PRIMARY KEY)", **named),
        job(3, 3, table(12, "b"), query="CREATE TABLE `b` (`id` INT PRIMARY KEY)", **named),
        job(4, 2, None, db=info, query="DROP DATABASE `halfway`", **named),
    )
    texts = ("CREATE DATABASE `halfway`;", "CREATE TABLE `a` (`id` INT PRIMARY KEY);", "CREATE TABLE `b` (`id` INT PRIMARY KEY);")
    steps = steps_of(jobs, dict(enumerate((*texts, "DROP DATABASE `halfway`;"), 1)))
    apply_all(session, steps[:3], jobs)

    with dying("after-ddl-intent"):
        apply(session, steps[3], jobs)
    # What a database has may be too large for one statement, and is not needed.
    ((picture,),) = session.query("SELECT picture FROM ddl_marks.spark_ddl WHERE job_id = 4")
    assert "CREATE" not in picture and len(picture) < 100
    session.rollback()
    for name in {"a", "b"} - set(left):
        session.execute(f"DROP TABLE halfway.{name}")
    outcome = apply(session, steps[3], jobs)
    assert (outcome.state, outcome.how) == ("done", "text")
    assert not session.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = 'halfway'")
