"""Checkpoint row and record on a real MariaDB, through crashes at every step of a span in parts."""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import CHECKPOINT_TABLE, TargetCheckpoint, only_cluster
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import PLACE, OpenLanes, OpenParts, Part, Reason, Row, SafeBounds, StateTable
from pyspark_tidb_binlog.sinks.sink import TargetProgress, UnfinishedSpan
from tests.support.recorded import progress_in, record_in, set_checkpoint

pytestmark = pytest.mark.mysql

SCHEMA = "h_record"
CLUSTER = 7710381286325113206
RECORD = StateTable(SCHEMA, CLUSTER)
SPAN = OpenParts(100, 200, 2)


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with connect(mariadb.target(), ApplyConfig()) as session:
        record_in(session, SCHEMA)
        record_in(session, SCHEMA)
        yield session
        session.execute(f"DROP DATABASE {SCHEMA}")


T = TypeVar("T")


def load(session: Session) -> TargetProgress:
    return progress_in(session, RECORD)


def save(session: Session, ts: int, consistent: bool, cluster_id: int = CLUSTER) -> None:
    set_checkpoint(session, StateTable(SCHEMA, cluster_id), ts, consistent=consistent, version=48)


def part(number: int, phase: str) -> Part:
    return Part(100, 200, number, 2, phase)


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
    assert only_cluster(session, "no_such_schema", CHECKPOINT_TABLE) == 0
    assert only_cluster(session, SCHEMA, CHECKPOINT_TABLE) == 0
    save(session, 5, True)
    assert only_cluster(session, SCHEMA, CHECKPOINT_TABLE) == CLUSTER
    save(session, 6, True, cluster_id=1)
    with pytest.raises(ApplyError, match="several clusters"):
        only_cluster(session, SCHEMA, CHECKPOINT_TABLE)


def test_a_broken_row_says_what_to_do(session: Session) -> None:
    session.execute(f"REPLACE INTO {SCHEMA}.checkpoint VALUES (1, 'rubbish')")
    with pytest.raises(ApplyError, match="Repair or delete the row"):
        progress_in(session, StateTable(SCHEMA, 1))


def test_a_span_in_parts_from_begin_to_end(session: Session) -> None:
    save(session, 100, False)
    RECORD.begin_parts(session, SPAN)
    assert load(session) == TargetProgress(100, False, 48, UnfinishedSpan(100, 200, 2, frozenset()))
    assert RECORD.planned_without(session, part(1, "delete")) is None
    assert RECORD.claim(session, part(1, "delete"))
    assert RECORD.planned_without(session, part(1, "delete")) is not None
    assert not RECORD.claim(session, part(1, "delete"))
    assert RECORD.claim(session, part(0, "delete"))
    assert RECORD.claim(session, part(0, "write"))
    RECORD.begin_parts(session, SPAN)
    done = frozenset({(0, "delete"), (1, "delete"), (0, "write")})
    assert load(session).unfinished == UnfinishedSpan(100, 200, 2, done)
    assert progress_in(session, StateTable(SCHEMA, 8)).unfinished is None
    save(session, 200, True)
    RECORD.forget_upto(session, 200)
    assert load(session) == TargetProgress(200, True, 48, None)
    assert RECORD.read(session).rows == ()


def test_a_part_says_what_it_was_planned_without(session: Session) -> None:
    RECORD.begin_parts(session, SPAN)
    assert RECORD.planned_without(session, part(0, "delete")) is None
    assert RECORD.claim(session, part(0, "delete"), {120, 9})
    assert RECORD.claim(session, part(1, "delete"))
    assert not RECORD.claim(session, part(0, "delete"), {5}), "it stays as it is"
    found = [RECORD.planned_without(session, part(number, "delete")) for number in range(2)]
    assert found == [frozenset({9, 120}), frozenset()]
    parts = [part(number, "delete") for number in range(2)]
    assert not RECORD.deletes_done(session, parts, ())
    assert not RECORD.deletes_done(session, parts, {9, 120})
    RECORD.correct(session, part(1, "delete"), {120, 9})
    assert RECORD.deletes_done(session, parts, {9, 120})


def test_one_row_says_which_span_is_ours(session: Session) -> None:
    for from_ts, to_ts in ((1, 2), (2, 3)):
        session.begin()
        RECORD.end(session, from_ts, to_ts)
        save(session, to_ts, True)
        session.commit()
    assert session.query(f"SELECT cluster_id, name, from_ts, to_ts FROM {SCHEMA}.spark_state") == [(CLUSTER, "ours", 2, 3)]
    assert load(session) == TargetProgress(3, True, 48, None)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (OpenParts(100, 300, 2), "holds the unfinished span"),
        (OpenParts(100, 200, 3), "holds the unfinished span"),
        (OpenParts(150, 300, 2), "holds the unfinished span"),
        (OpenParts(100, 200, 2, "others"), "begun with other filters"),
    ],
)
def test_an_unfinished_span_is_not_begun_otherwise(session: Session, other: OpenParts, why: str) -> None:
    RECORD.begin_parts(session, SPAN)
    with pytest.raises(ApplyError, match=why):
        RECORD.begin_parts(session, other)
    assert RECORD.read(session).open == SPAN
    RECORD.begin_parts(session, OpenParts(200, 300, 4))


def test_what_was_left_of_a_span_that_was_passed_by_hand_does_not_count_when_it_comes_again(session: Session) -> None:
    RECORD.begin_parts(session, SPAN)
    assert RECORD.claim(session, part(0, "delete"))
    RECORD.begin_parts(session, OpenParts(200, 300, 2))
    RECORD.forget_beyond(session, 100)
    assert RECORD.read(session).rows == ()
    RECORD.begin_lanes(session, OpenLanes(100, 200, "plan", (3,)))
    RECORD.begin_parts(session, OpenParts(200, 300, 2))
    assert RECORD.read(session).lanes is None


def test_a_stream_forgets_the_place_of_a_recovery_once_it_begins_a_span_itself(session: Session) -> None:
    place = Row(PLACE, 100, 200, '{"kind":"rows"}')
    RECORD.swap(session, None, place)
    assert [RECORD.read(session).relayed_upto(ts) for ts in (99, 100, 101)] == [0, 200, 0]
    RECORD.begin_parts(session, SPAN)
    assert RECORD.read(session).row(PLACE) is None
    RECORD.swap(session, None, place)
    RECORD.begin_lanes(session, LANES)
    assert RECORD.read(session).row(PLACE) is None


def test_a_row_is_swapped_only_if_it_is_as_it_was(session: Session) -> None:
    first, second = Row(PLACE, 100, 200, "1"), Row(PLACE, 100, 200, "2")
    RECORD.swap(session, None, first)
    assert RECORD.swap(session, first, second)
    assert not RECORD.swap(session, first, second), "the answer to its commit was lost"
    RECORD.forget_upto(session, 200)
    assert not RECORD.swap(session, second, first)


def beside(mariadb: PrivateMariaDB, look: Callable[[Session], T], found: list[T]) -> threading.Thread:
    """What another life sees, which has to wait for this one's transaction."""

    def other() -> None:
        with connect(mariadb.target(), ApplyConfig()) as session:
            session.begin()
            found.append(look(session))
            session.rollback()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive() and not found
    return thread


@pytest.mark.parametrize("commits", [True, False])
def test_a_part_under_way_elsewhere_is_waited_for(session: Session, mariadb: PrivateMariaDB, commits: bool) -> None:
    RECORD.begin_parts(session, SPAN)
    session.commit()
    session.begin()
    assert RECORD.claim(session, part(0, "write"))
    found: list[bool] = []
    thread = beside(mariadb, lambda other: RECORD.claim(other, part(0, "write")), found)
    session.commit() if commits else session.rollback()
    thread.join(30)
    assert found == [not commits]


def test_a_commit_under_way_elsewhere_is_seen(session: Session, mariadb: PrivateMariaDB) -> None:
    def locked(session: Session) -> int:
        row = TargetCheckpoint(CLUSTER, SCHEMA).load(session, lock=True)
        assert row is not None
        return row.commit_ts

    save(session, 10, False)
    session.commit()
    session.begin()
    assert locked(session) == 10
    save(session, 20, True)
    found: list[int] = []
    thread = beside(mariadb, locked, found)
    session.commit()
    thread.join(30)
    assert found == [20]


def test_a_late_task_writes_nothing_in_the_next_span(session: Session) -> None:
    RECORD.begin_parts(session, SPAN)
    RECORD.end(session, 100, 200)
    RECORD.begin_parts(session, OpenParts(200, 300, 2))
    session.commit()
    with pytest.raises(ApplyError, match="the span is not open"):
        RECORD.claim(session, part(0, "write"))
    session.rollback()
    assert RECORD.claim(session, Part(200, 300, 0, 2, "write"))


def test_safe_mode_is_recorded_once_for_each_reason(session: Session) -> None:
    RECORD.begin_safe(session, SafeBounds(100, 300))
    RECORD.begin_safe(session, SafeBounds(150, 200, Reason.PARTS))
    assert RECORD.read(session).safe_bounds(150) == SafeBounds(100, 300)
    RECORD.begin_safe(session, SafeBounds(200, 400))
    RECORD.end(session, 150, 200)
    assert RECORD.read(session).safe_bounds(200) == SafeBounds(100, 400)
    RECORD.begin_safe(session, SafeBounds(500, 600))
    assert RECORD.read(session).safe_bounds(500) == SafeBounds(500, 600)
    RECORD.forget_beyond(session, 550)
    assert RECORD.read(session).safe_bounds(550) == SafeBounds(500, 600)
    RECORD.end(session, 550, 600)
    assert RECORD.read(session).safe_bounds(550) == SafeBounds()


LANES = OpenLanes(100, 200, "plan", (0, 0))


def test_lanes_from_begin_to_end(session: Session) -> None:
    RECORD.begin_lanes(session, OpenLanes(1, 2, "other", (7, 7, 7)))
    RECORD.begin_lanes(session, LANES)
    assert RECORD.read(session).lanes == LANES
    assert RECORD.advance(session, LANES, 1, 0, 5)
    assert not RECORD.advance(session, LANES, 1, 0, 5), "the answer to its commit was lost"
    for other, before in ((OpenLanes(100, 300, "plan", ()), 5), (OpenLanes(100, 200, "other", ()), 5), (LANES, 4)):
        with pytest.raises(ApplyError, match=r"lane 1 up to .*Was the table edited"):
            RECORD.advance(session, other, 1, before, 9)
    RECORD.require_done(session, LANES, (0, 5))
    with pytest.raises(ApplyError, match=r"had done \[0, 6\] operations, but .* says \[0, 5\]"):
        RECORD.require_done(session, LANES, (0, 6))
    state = RECORD.read(session)
    assert [state.lanes_at(ts) is not None for ts in (99, 100, 199, 200)] == [False, True, True, False]
    RECORD.end(session, 100, 200)
    assert RECORD.read(session).lanes is None


def test_of_what_lies_beyond_a_checkpoint_only_what_is_open_there_stays(session: Session) -> None:
    RECORD.end(session, 250, 300)
    RECORD.begin_parts(session, OpenParts(200, 300, 2))
    assert RECORD.claim(session, Part(200, 300, 0, 2, "delete"))
    RECORD.begin_lanes(session, OpenLanes(150, 300, "plan", (3,)))
    state = RECORD.read(session)
    assert (state.beyond(200), state.around(200), state.beyond(150), state.around(150)) == (300, 300, 300, 0)
    RECORD.forget_beyond(session, 200)
    assert {row.name for row in RECORD.read(session).rows} == {"open", "part 200-300 0/2 delete", "lane 0"}
    RECORD.forget_beyond(session, 100)
    assert RECORD.read(session).rows == ()
