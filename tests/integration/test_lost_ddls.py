"""DDLs of a real TiDB whose binlogs are taken out of the recording, on a real MariaDB, over lives and a kill: the target is that of the whole recording."""

import dataclasses
import gzip
import json
import shutil
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import remarkable
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.arena import Arena
from tests.support.golden_case import GOLDEN, load_case
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def without(lost: set[int], directory: Path) -> RecordedCase:
    """``ddl`` without the binlogs of these jobs; the Pumps then say nothing for more than a minute, in which the upstream does nothing."""
    case, jobs = load(GOLDEN / "ddl"), {d.job_id for d in load_case("ddl").ddls}
    shutil.copytree(case.directory, directory)
    history = [job for job in json.loads(gzip.decompress(case.history.read_bytes())) if job["binlog"]["FinishedTS"] <= case.end_ts]
    assert jobs <= {job["id"] for job in history}
    (directory / case.history.name).write_bytes(gzip.compress(json.dumps(history).encode()))
    end_ts = case.end_ts + tso(61_000)
    pumps = tuple(
        (*(p for p in payloads if binlog_pb2.Binlog.FromString(p).ddl_job_id not in lost), fake(end_ts + 1).payload)
        for payloads in case.pumps
    )
    return dataclasses.replace(case, directory=directory, pumps=pumps, end_ts=end_ts)


@pytest.mark.shows("ddl gotcha 11")
@pytest.mark.parametrize("every", [1, 2, 7], ids=["all", "every other", "a few"])
def test_they_are_executed_in_their_place(every: int, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    jobs = sorted({d.job_id for d in load_case("ddl").ddls})
    lost = set(jobs[::every])
    case = without(lost, tmp_path / "case")
    with Arena(case, mariadb, tmp_path / "arena", "sorted") as arena:
        prepare_target(mariadb.target(), arena.settings(), case.databases, drop=True)
        arena.write()
        middle = load_case("ddl").ddls
        for end in (middle[len(middle) // 3].commit_ts + 1, middle[2 * len(middle) // 3].commit_ts, case.end_ts - tso(30_000)):
            arena.drain(spark, [f"--spark.ending-commit-ts={end}"])
        with arena.drainer("after-ddl:1") as drainer:
            assert drainer.wait() == (0 if every == 7 else -signal.SIGKILL), "in a DDL that nothing but the time brings"
        arena.drain(spark)
        arena.assert_equal()
        session = connect(mariadb.target(), arena.settings().apply)
        named = {ddl.job_id for ddl in remarkable(session, "tidb_binlog") if any("never came" in loss for loss in ddl.losses)}
        session.close()
        assert named == lost
        executed = run_sql(mariadb, "SELECT job_id FROM tidb_binlog.spark_ddl WHERE job_id > 0 ORDER BY 1")
        assert [job_id for (job_id,) in executed] == jobs
