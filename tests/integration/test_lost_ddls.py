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
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DONE, remarkable
from pyspark_tidb_binlog.sinks.mysql.sequences import set_sequences
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.arena import Arena
from tests.support.ddl_jobs import INT, column, database, history, job, table
from tests.support.ddl_target import apply, committed, ddl_session
from tests.support.golden_case import GOLDEN, load_case
from tests.support.target_rows import run_sql

ID = column(1, "id", {**INT, "Flag": 4099})
NOTHING = {"Tp": 0, "Flag": 0, "Flen": 0, "Decimal": 0, "Charset": "", "Collate": ""}
SEQUENCE = {"sequence_start": 1, "sequence_increment": 1, "sequence_min_value": 1, "sequence_max_value": 1000, "sequence_cache_value": 10}
VIEW = {"view_definer": {"CurrentUser": True}, "view_algorithm": 0, "view_security": 1, "view_select": "SELECT `id`, `a` FROM `e`.`t`"}

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


def test_what_names_the_object_of_a_lost_ddl_comes_behind_it(mariadb: PrivateMariaDB) -> None:
    """A table that a lost RENAME takes out of a database that is dropped; a view of it with a lost column; SETVAL and DEFAULT of a lost sequence."""
    before = [database(1), database(2, "e", 1001), job(3, 3, table(10, "t", [ID]), query="CREATE TABLE t (id INT PRIMARY KEY)")]
    sequence, view = table(11, "s", [ID], sequence=SEQUENCE), table(12, "v", [column(1, "id", NOTHING), column(2, "a", NOTHING)], view=VIEW)
    default = column(2, "n", default="nextval(`e`.`s`)", default_is_expr=True)
    lost = [
        job(20, 14, table(10, "t", [ID]), schema_id=1001, schema_name="e", query="RENAME TABLE d.t TO e.t"),
        job(21, 5, table(10, "t", [ID, column(2, "a")]), schema_id=1001, schema_name="e", query="ALTER TABLE t ADD COLUMN a INT"),
        job(22, 34, sequence, schema_id=1001, schema_name="e", query="CREATE SEQUENCE s MAXVALUE 1000 CACHE 10"),
    ]
    comes = [
        job(25, 2, None, query="DROP DATABASE d"),
        job(26, 21, view, schema_id=1001, schema_name="e", query="CREATE VIEW v AS SELECT id, a FROM t"),
        job(
            27,
            3,
            table(13, "u", [ID, default]),
            schema_id=1001,
            schema_name="e",
            query="CREATE TABLE u (id INT PRIMARY KEY, n INT DEFAULT NEXTVAL(s))",
        ),
    ]
    for one in (*lost, *comes):
        one["binlog"]["FinishedTS"], one["real_start_ts"] = one["id"] * 10 + 5, one["id"] * 10 - 3
    h = history(*before, *lost, *comes)
    events = [DdlEvent(j.id * 10, j.id, j.query, 5) for j in h.ordered if j.id < 20 or j.id >= 25]
    with ddl_session(mariadb.target(), databases=("d", "e")) as session:
        done, applied = [], AppliedJobs(0, since=100)
        for span in ((0, 100), (100, 240), (240, 400)):
            for step in plan_steps(span, [*events, DdlEvent(241, 0, "SELECT SETVAL(`e`.`s`, 500);", 5)], (), h, applied):
                if isinstance(step, DdlStep):
                    outcome = apply(session, step, h)
                    done.append((step.job.id, step.lost))
                    assert not outcome.losses and outcome.state == DONE, outcome
                elif step.setvals:
                    assert not set_sequences(session, step.setvals)
                applied = step.applied
            if span[1] == 100:
                committed(session, "INSERT INTO d.t VALUES (1), (2)")
        assert done == [(1, False), (2, False), (3, False), (20, True), (21, True), (22, True), (25, False), (26, False), (27, False)]
        assert session.query("SELECT id, a FROM e.v ORDER BY 1") == [(1, None), (2, None)]
        session.execute("INSERT INTO e.u (id) VALUES (1)")
        assert session.query("SELECT n FROM e.u") == [(501,)]


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
        arena.drain(spark, [f"--spark.ending-commit-ts={middle[len(middle) // 3].commit_ts + 1}"])
        with arena.drainer("after-ddl:1") as drainer:
            assert drainer.wait() == -signal.SIGKILL
        for end in (middle[2 * len(middle) // 3].commit_ts, case.end_ts - tso(30_000)):
            arena.drain(spark, [f"--spark.ending-commit-ts={end}"])
        arena.drain(spark)
        arena.assert_equal()
        session = connect(mariadb.target(), arena.settings().apply)
        named = {ddl.job_id for ddl in remarkable(session, "tidb_binlog") if any("never came" in loss for loss in ddl.losses)}
        session.close()
        assert named == lost
        executed = run_sql(mariadb, "SELECT job_id FROM tidb_binlog.spark_ddl WHERE job_id > 0 ORDER BY 1")
        assert [job_id for (job_id,) in executed] == jobs
