"""The kill test in small: the process dies at named points of a recorded case, is started again each time, and nothing differs at the end.

The job dies where Spark takes part; at the points of a DDL a process without Spark dies. The points of rows are those of ``test_in_lanes.py``
and ``test_skipped_in_parts.py``, that of a batch is one of ``test_checkpoint_deaths.py``, those of Delta ``tests/unit/sinks/test_delta_checkpoint.py``. The whole of it is ``tests/torture`` (``make torture``).
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.arena import Arena, Cut
from tests.support.ddl_target import CONFIG, MARKS, apply, assert_columns, ddl_session
from tests.support.golden_case import GOLDEN, ddl_steps, load_case
from tests.support.killed_fork import in_a_life_that_is_killed

WORKER = {"source-read": 2, "pair-state": 3}
"""Point and the pass that kills: a worker that reads, and one that keeps the pairing state."""
DELTA = {"before-delta": 1, "after-delta": 1}
"""Before and after the batch's row in Delta."""
SIX = {"source-read": 3, "pair-state": 9, "before-downstream-commit": 9, "after-ddl-intent": 12, "after-ddl": 20, "after-spark-commit": 3}
"""Besides them: an open transaction, a DDL not run, a DDL run, a batch that Spark has recorded."""


@pytest.mark.shows("drainer gotcha 2", "known wrong: own replay")
@pytest.mark.spark
@pytest.mark.grpc
@pytest.mark.mysql
@pytest.mark.parametrize(
    ("name", "deadly"),
    [
        pytest.param("txn", WORKER, id="worker"),
        pytest.param("txn", DELTA, id="delta", marks=pytest.mark.slow),
        pytest.param("ddl", SIX, id="six", marks=pytest.mark.slow),
    ],
)
def test_the_job_dies_and_nothing_differs(
    name: str, deadly: dict[str, int], spark: SparkSession, fresh_mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    with Arena(
        load(GOLDEN / name), fresh_mariadb, tmp_path, "raw", Cut(step_bytes=400, max_bytes=1000 if name == "txn" else 3000)
    ) as arena:
        arena.write()
        died = arena.live_and_die(",".join(f"{name}:{n}" for name, n in deadly.items()), spark=spark)
        assert died == len(deadly)
        assert arena.deaths() == dict.fromkeys(deadly, 1)
        arena.assert_equal()


@pytest.mark.mysql
def test_a_process_dies_at_each_point_of_a_ddl_and_each_is_executed_once(mariadb: PrivateMariaDB) -> None:
    case, target = load_case("ddl"), mariadb.target()
    steps = ddl_steps(case)

    def executed(session: Session) -> int:
        session.commit()
        ((count,),) = session.query(f"SELECT COUNT(*) FROM {MARKS}.spark_ddl WHERE state = 'done'")
        return int(count)

    def execute(upto: int) -> None:
        with connect(target, CONFIG) as session:
            for step in steps[executed(session) : upto]:
                apply(session, step, case.history)

    with ddl_session(target, databases=tuple(case.info["databases"])) as session:
        for point, after in (("after-ddl-intent", 6), ("after-ddl", 9), ("before-ddl-done", 14)):
            in_a_life_that_is_killed(lambda: execute(len(steps)), f"{point}:{after}")
            assert session.query(f"SELECT COUNT(*) FROM {MARKS}.spark_ddl WHERE state = 'intent'") == [(1,)]
            session.commit()
        execute(len(steps))
        assert executed(session) == len(steps)
        assert_columns(session, case.history, steps[-1].job.version, case.info["databases"])
