"""A stream that begins in the middle of a real history, over a target that was filled from a snapshot at that very ts.

The snapshot is what an earlier stream has made up to the ts; of that stream nothing else is left. The ts is the commit_ts of a DDL's
binlog, which is below the FinishedTS that the history tells, so that the job looks as if it were still to come.
"""

import dataclasses
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.emulator.rehearsal import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.mid_history import jobs_in_doubt
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.replication import Replication
from pyspark_tidb_binlog.schemas.history import JobType
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN, load_case
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
CASE = load_case("ddl")


def commit_ts_of(kind: JobType) -> int:
    """That of the binlog of the case's first DDL of this kind."""
    return next(d.commit_ts for d in CASE.ddls if (job := CASE.history.job(d.job_id)) is not None and job.type == kind)


@pytest.mark.parametrize("kind", [JobType.ADD_COLUMN, JobType.TRUNCATE_TABLE, JobType.RENAME_TABLE])
def test_a_ddl_whose_binlog_is_before_the_ts_is_not_executed_again(
    kind: JobType, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    ts = commit_ts_of(kind)
    assert kind in [job.type for job in jobs_in_doubt(CASE.history, ts)]
    cut = Cut(max_bytes=256 << 20, step_bytes=1 << 20)
    with Arena(load(GOLDEN / "ddl"), mariadb, tmp_path / "first", "sorted", cut) as arena:
        settings = arena.settings()
        prepare_target(mariadb.target(), settings, arena.case.databases, drop=True)
        arena.write()
        upto = dataclasses.replace(settings, source=dataclasses.replace(settings.source, ending_commit_ts=ts))
        with Replication(spark, upto) as replication:
            replicated(replication, ts, 1 << 30)
        prepare_target(mariadb.target(), settings, [], drop=True)
        beyond = dataclasses.replace(
            settings,
            source=dataclasses.replace(settings.source, starting_commit_ts=ts),
            checkpoint_dir=str(tmp_path / "second" / "spark"),
            delta_dir=str(tmp_path / "second" / "delta"),
        )
        with Replication(spark, beyond) as replication:
            replicated(replication, arena.case.end_ts, 1 << 30)
        arena.assert_equal()
        executed = executed_by_the_second(mariadb)
        assert executed, "there are DDLs beyond it"
        assert executed <= {d.job_id for d in CASE.ddls if d.commit_ts > ts}, "those up to the ts are the snapshot's"


def executed_by_the_second(mariadb: PrivateMariaDB) -> set[int]:
    """The ids of the jobs that it recorded."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT job_id FROM tidb_binlog.spark_ddl")
        return {int(job_id) for (job_id,) in cursor.fetchall()}
