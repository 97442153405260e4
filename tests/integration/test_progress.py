"""Checkpoint row and markers on a real MariaDB, through crashes at every step of a span in parts."""

from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql import progress
from pyspark_tidb_binlog.sinks.mysql.progress import Checkpoint, Mark, Marker
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.sink import TargetProgress, UnfinishedSpan

pytestmark = pytest.mark.mysql

SCHEMA = "h_progress"
CLUSTER = 7710381286325113206


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig()) as session:
        progress.ensure_tables(session, SCHEMA)
        progress.ensure_tables(session, SCHEMA)
        yield session
        session.execute(f"DROP DATABASE {SCHEMA}")


def load(session: Session, cluster_id: int = CLUSTER) -> TargetProgress:
    return progress.load(session, cluster_id, SCHEMA)


def save(session: Session, ts: int, consistent: bool, cluster_id: int = CLUSTER) -> None:
    progress.write_checkpoint(session, cluster_id, Checkpoint(ts, consistent, 48), SCHEMA)


def test_an_empty_target(session: Session) -> None:
    assert load(session) == TargetProgress(0, True, 0, None, known=False)
    save(session, 0, True)
    assert load(session) == TargetProgress(0, True, 48, None)


@pytest.mark.shows("tidb_binlog.checkpoint")
def test_checkpoint_row_is_the_drainers(session: Session) -> None:
    session.begin()
    save(session, 470604628714323969, True)
    session.commit()
    assert session.query(f"SELECT * FROM {SCHEMA}.checkpoint") == [
        (CLUSTER, '{"consistent":true,"commitTS":470604628714323969,"ts-map":{},"schema-version":48}')
    ]
    columns = session.query(
        "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s AND table_name = 'checkpoint' "
        "ORDER BY ordinal_position",
        [SCHEMA],
    )
    assert columns in ([("clusterID", shown), ("checkPoint", "mediumtext")] for shown in ("bigint(20) unsigned", "bigint unsigned"))
    assert load(session) == TargetProgress(470604628714323969, True, 48, None)


@pytest.mark.shows("the cluster of the only row")
def test_an_unknown_cluster_is_that_of_the_only_row(session: Session) -> None:
    assert progress.only_cluster(session, "no_such_schema") == 0
    assert progress.only_cluster(session, SCHEMA) == 0
    save(session, 5, True)
    assert progress.only_cluster(session, SCHEMA) == CLUSTER
    save(session, 6, True, cluster_id=1)
    with pytest.raises(ApplyError, match="several clusters"):
        progress.only_cluster(session, SCHEMA)


def test_a_broken_row_says_what_to_do(session: Session) -> None:
    session.execute(f"REPLACE INTO {SCHEMA}.checkpoint VALUES (1, 'rubbish')")
    with pytest.raises(ApplyError, match="Repair or delete the row"):
        load(session, cluster_id=1)


def test_a_span_in_parts_from_begin_to_end(session: Session) -> None:
    span = (100, 200)
    save(session, 100, False)
    progress.begin_span(session, CLUSTER, *span, 2, SCHEMA)
    assert load(session) == TargetProgress(100, False, 48, UnfinishedSpan(100, 200, 2, frozenset()))
    assert progress.planned_without(session, Marker(CLUSTER, *span, 1, 2, Mark.DELETE), SCHEMA) is None
    assert progress.claim_part(session, Marker(CLUSTER, *span, 1, 2, "delete"), SCHEMA)
    assert progress.planned_without(session, Marker(CLUSTER, *span, 1, 2, Mark.DELETE), SCHEMA) is not None
    assert not progress.claim_part(session, Marker(CLUSTER, *span, 1, 2, Mark.DELETE), SCHEMA)
    assert progress.claim_part(session, Marker(CLUSTER, *span, 0, 2, Mark.DELETE), SCHEMA)
    assert progress.claim_part(session, Marker(CLUSTER, *span, 0, 2, Mark.WRITE), SCHEMA)
    progress.begin_span(session, CLUSTER, *span, 2, SCHEMA)
    done = frozenset({(0, "delete"), (1, "delete"), (0, "write")})
    assert load(session).unfinished == UnfinishedSpan(100, 200, 2, done)
    assert load(session, cluster_id=8).unfinished is None
    save(session, 200, True)
    progress.finish_span(session, CLUSTER, span[1], SCHEMA)
    assert load(session) == TargetProgress(200, True, 48, None)
    assert session.query(f"SELECT * FROM {SCHEMA}.spark_progress") == []


def test_a_marker_says_what_its_part_was_planned_without(session: Session) -> None:
    span = (100, 200)
    progress.begin_span(session, CLUSTER, *span, 2, SCHEMA)
    assert progress.planned_without(session, Marker(CLUSTER, *span, 0, 2, Mark.DELETE), SCHEMA) is None
    assert progress.claim_part(session, Marker(CLUSTER, *span, 0, 2, Mark.DELETE), SCHEMA, {120, 9})
    assert progress.claim_part(session, Marker(CLUSTER, *span, 1, 2, Mark.DELETE), SCHEMA)
    assert not progress.claim_part(session, Marker(CLUSTER, *span, 0, 2, Mark.DELETE), SCHEMA, {5}), "it stays as it is"
    found = [progress.planned_without(session, Marker(CLUSTER, *span, part, 2, Mark.DELETE), SCHEMA) for part in range(2)]
    assert found == [frozenset({9, 120}), frozenset()]
    assert not progress.deletes_done(session, CLUSTER, *span, 2, SCHEMA)
    assert not progress.deletes_done(session, CLUSTER, *span, 2, SCHEMA, {9, 120})
    progress.correct_deletes(session, Marker(CLUSTER, *span, 1, 2, Mark.DELETE), {120, 9}, SCHEMA)
    assert progress.deletes_done(session, CLUSTER, *span, 2, SCHEMA, {9, 120})


def test_an_atomic_span_keeps_one_marker(session: Session) -> None:
    for from_ts, to_ts in ((1, 2), (2, 3)):
        session.begin()
        progress.mark_atomic(session, CLUSTER, from_ts, to_ts, SCHEMA)
        save(session, to_ts, True)
        session.commit()
    assert session.query(f"SELECT cluster_id, from_ts, to_ts, part, parts, phase FROM {SCHEMA}.spark_progress") == [
        (CLUSTER, 2, 3, 0, 1, "atomic")
    ]
    assert load(session) == TargetProgress(3, True, 48, None)


def test_an_unknown_phase_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="sideways"):
        progress.claim_part(session, Marker(CLUSTER, 1, 2, 0, 1, "sideways"), SCHEMA)


def test_markers_live_and_die_with_the_transaction(session: Session) -> None:
    session.commit()
    progress.begin_span(session, CLUSTER, 1, 2, 1, SCHEMA)
    session.commit()
    session.begin()
    assert progress.claim_part(session, Marker(CLUSTER, 1, 2, 0, 1, Mark.WRITE), SCHEMA)
    session.rollback()
    assert progress.planned_without(session, Marker(CLUSTER, 1, 2, 0, 1, Mark.WRITE), SCHEMA) is None


def test_two_unfinished_spans_are_refused(session: Session) -> None:
    progress.begin_span(session, CLUSTER, 1, 2, 2, SCHEMA)
    progress.begin_span(session, CLUSTER, 1, 3, 2, SCHEMA)
    with pytest.raises(ApplyError, match="a Drainer begins one at a time"):
        load(session)
