"""What a Drainer that was killed, or another one after it, has left at a target and in its relay log, built by hand: no row is lost or doubled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, CheckpointConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql import progress
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.crashed_site import CLUSTER, CrashedSite, inserted

pytestmark = pytest.mark.mysql


@pytest.fixture
def site(mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[CrashedSite]:
    found = CrashedSite(mariadb, tmp_path)
    yield found
    found.drop()


# A step that ends where safe mode ends, as before a DDL.

KEYLESS = [inserted(100, "x", (1, "a", 1)), inserted(105, "x", (2, "b", 2))]


@pytest.mark.parametrize("seen", ["by this life", "by a life of an older release"])
def test_a_real_one_that_went_on_within_our_span_leaves_the_rest_of_it_in_doubt(site: CrashedSite, seen: str) -> None:
    site.checkpoint(95, consistent=True)
    with connect(site.server.target(), ApplyConfig()) as session:
        progress.ensure_tables(session)
        if seen == "by this life":
            progress.begin_span(session, CLUSTER, 90, 109, 2)
        else:
            session.execute(f"INSERT INTO tidb_binlog.spark_progress VALUES ({CLUSTER}, 95, 109, 0, 0, 'safe', NULL, NOW())")
        session.commit()
    site.query("INSERT INTO d.x VALUES (1, 'a', 1), (2, 'b', 2)")  # the parts that were done
    assert site.stream(KEYLESS, (95, 109)) == ()
    assert site.query("SELECT * FROM d.x ORDER BY a") == [(1, "a", 1), (2, "b", 2)]


def test_a_savepoint_that_was_set_back_to_before_a_ddl_that_was_refused(site: CrashedSite, tmp_path: Path) -> None:
    elsewhere = CheckpointConfig(type="file"), str(tmp_path / "data")
    site.query("INSERT INTO d.x VALUES (1, 'a', 1), (2, 'b', 2)")
    site.stream([], (109, 109), *elsewhere)
    (tmp_path / "data" / "savepoint").write_text("consistent = true\ncommitTS = 95\nschema-version = 1\n")
    assert site.stream(KEYLESS, (95, 109), *elsewhere) == ()
    assert site.query("SELECT * FROM d.x ORDER BY a") == [(1, "a", 1), (2, "b", 2)]
