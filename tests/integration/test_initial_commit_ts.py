"""A stream that begins in the middle of a real history, over a target that was filled from a snapshot at that very ts.

The snapshot is what an earlier stream has made up to the ts; of that stream nothing else is left. The ts is the commit_ts of a DDL's
binlog, which is below the FinishedTS that the history tells, so that the job looks as if it were still to come.
"""

import dataclasses
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.source.mid_history import jobs_in_doubt
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN, load_case
from tests.support.spark_queries import replicated
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
CASE = load_case("ddl")


def commit_ts_of(kind: JobType) -> int:
    """That of the binlog of the case's first DDL of this kind."""
    return next(d.commit_ts for d in CASE.ddls if (job := CASE.history.job(d.job_id)) is not None and job.type == kind)


@pytest.mark.shows("initial-commit-ts")
@pytest.mark.parametrize("by_row", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_ddl_whose_binlog_is_before_the_ts_is_not_executed_again(
    by_row: bool, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    """Each stream ends where the next one begins: at a DDL of another kind. ``by_row``: a real Drainer's row says where, with a schema-version
    that is ahead, because rows that it has applied were written under a later one.
    """
    kinds = {commit_ts_of(kind): kind for kind in (JobType.ADD_COLUMN, JobType.TRUNCATE_TABLE, JobType.RENAME_TABLE)}
    with Arena(load(GOLDEN / "ddl"), mariadb, tmp_path / "arena", "sorted", Cut(max_bytes=256 << 20, step_bytes=1 << 20)) as arena:
        settings = arena.settings()
        prepare_target(mariadb.target(), settings, arena.case.databases, drop=True)
        arena.write()
        begin = arena.case.start_ts
        for end in (*sorted(kinds), arena.case.end_ts):
            own = dataclasses.replace(
                settings,
                source=dataclasses.replace(
                    settings.source, starting_commit_ts=-1 if by_row and end != min(kinds) else begin, ending_commit_ts=end
                ),
                checkpoint_dir=str(tmp_path / f"{end}" / "spark"),
                delta_dir=str(tmp_path / f"{end}" / "delta"),
            )
            with Replication(spark, own) as replication:
                replicated(replication, end, 1 << 30)
            executed = executed_by_it(mariadb)
            assert executed, "there are DDLs beyond its beginning"
            assert executed <= {d.job_id for d in CASE.ddls if begin < d.commit_ts <= end}, "those up to there are the snapshot's"
            if end in kinds:
                assert kinds[end] in [job.type for job in jobs_in_doubt(CASE.history, end)]
                prepare_target(mariadb.target(), settings, [], drop=True)
                if by_row:
                    left_by_a_real_one(mariadb, arena.case.cluster_id, end)
            begin = end
        arena.assert_equal()


def executed_by_it(mariadb: PrivateMariaDB) -> set[int]:
    """The ids of the jobs that it recorded."""
    return {int(job_id) for (job_id,) in run_sql(mariadb, "SELECT job_id FROM tidb_binlog.spark_ddl WHERE job_id > 0")}


def left_by_a_real_one(mariadb: PrivateMariaDB, cluster_id: int, commit_ts: int) -> None:
    """Its checkpoint after a clean stop."""
    version = CASE.history.newest_version
    row = f'{{"consistent":true,"commitTS":{commit_ts},"ts-map":{{}},"schema-version":{version}}}'
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS tidb_binlog")
        cursor.execute("CREATE TABLE tidb_binlog.checkpoint (clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)")
        cursor.execute("INSERT INTO tidb_binlog.checkpoint VALUES (%s, %s)", [cluster_id, row])
        connection.commit()
