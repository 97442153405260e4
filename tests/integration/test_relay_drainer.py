"""The real job with a relay log: killed while it applies in parts, then started without any upstream, then with it again.

Many kills: ``tests/torture/test_relay.py``. Row by row, without Spark, and a recovery that dies: ``test_relay_recovery.py``.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.relay_site import RelaySite

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]


@pytest.mark.shows("syncer.relay.log-dir")
def test_killed_in_parts_recovered_without_the_upstream_and_continued(
    spark: SparkSession, fresh_mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    site = RelaySite(fresh_mariadb, tmp_path, {})
    with site.arena as arena:
        arena.write()
        assert site.killed("before-part-write-commit:3")
    before = site.checkpoint()
    assert not before.consistent
    assert site.recover_in(spark) > before.commit_ts
    with site.arena as arena:
        arena.drain(spark, site.in_few_batches)
        arena.assert_equal()
