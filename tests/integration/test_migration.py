"""Moving over from a real Drainer at its checkpoint row, and back again (``docs/migrating-from-drainer.md``): nothing lost, nothing twice.

What a real Drainer leaves at the target is the row of ``tidb_binlog.checkpoint`` and nothing else of ours; what it finds when it takes over is
the same row, in its own form. A live hand-over to a real Drainer is not tried here.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN
from tests.support.spark_queries import replicated

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

OURS = ("spark_lease", "spark_state", "spark_ddl")


def test_the_row_is_all_that_a_start_needs(spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    with Arena(load(GOLDEN / "ddl"), mariadb, tmp_path, "sorted", Cut(step_bytes=500, max_bytes=3000)) as arena:
        prepare_target(mariadb.target(), arena.settings(), arena.case.databases, drop=True)
        arena.write()
        with Replication(spark, arena.settings()) as replication:
            replicated(replication, arena.case.end_ts, 3)
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT clusterID, checkPoint FROM tidb_binlog.checkpoint")
            ((cluster_id, row),) = cursor.fetchall()
            left = json.loads(row)
            assert cluster_id == arena.case.cluster_id and arena.case.start_ts < left["commitTS"] < arena.case.end_ts
            assert list(left) == ["consistent", "commitTS", "ts-map", "schema-version"] and left["consistent"] is True
            assert row == json.dumps(left, separators=(",", ":")), "a real Drainer's form, which it reads"
            cursor.execute("SHOW CREATE TABLE tidb_binlog.checkpoint")
            made = str(cursor.fetchall()[0][1])
            assert re.search(r"`clusterID` bigint(\(20\))? unsigned NOT NULL", made) and "`checkPoint` mediumtext" in made
            for table in OURS:
                cursor.execute(f"DROP TABLE tidb_binlog.{table}")
            connection.commit()
        for directory in (arena.spark_dir, arena.delta_dir, Path(f"{arena.delta_dir}-findings")):
            shutil.rmtree(directory, ignore_errors=True)
        with Replication(spark, arena.settings()) as replication:
            assert replication.commit_ts >= left["commitTS"]
            assert replicated(replication, arena.case.end_ts)
        arena.assert_equal()
