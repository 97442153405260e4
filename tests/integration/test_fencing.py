"""A worker or a commit that outlives the driver that began it, against the driver's next life: real locks on a real server."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenParts, Part, StateTable
from tests.support.recorded import record_in, set_checkpoint

pytestmark = pytest.mark.mysql

SCHEMA = "fencing"
PART = Part(10, 20, 0, 2, "write")
RECORD = StateTable(SCHEMA, 7)


@pytest.fixture
def sessions(mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[tuple[Session, Session]]:
    """Two connections of one drainer: the old life's and the new one's."""
    with connect(mariadb.target(), ApplyConfig()) as old, connect(mariadb.target(), ApplyConfig()) as new:
        record_in(old, SCHEMA, 7)
        old.begin()
        RECORD.begin_parts(old, OpenParts(10, 20, 2))
        set_checkpoint(old, RECORD, 10, consistent=False)
        old.commit()
        yield old, new
        old.rollback()
        new.rollback()
        old.execute(f"DROP DATABASE {SCHEMA}")


def beside(session: Session, found: list[object]) -> threading.Thread:
    """The new life claims the part that the old one still holds."""

    def claim() -> None:
        session.begin()
        found.append(RECORD.claim(session, PART))

    thread = threading.Thread(target=claim)
    thread.start()
    return thread


@pytest.mark.parametrize("commits", [True, False])
def test_a_part_under_way_elsewhere_is_waited_for(sessions: tuple[Session, Session], commits: bool) -> None:
    old, new = sessions
    old.begin()
    assert RECORD.claim(old, PART)
    found: list[object] = []
    thread = beside(new, found)
    thread.join(0.5)
    assert thread.is_alive() and not found
    if commits:
        old.commit()
    else:
        old.rollback()
    thread.join(30)
    assert found == [not commits]


def test_a_worker_that_comes_after_the_span_was_finished_writes_nothing(sessions: tuple[Session, Session]) -> None:
    old, new = sessions
    new.begin()
    assert RECORD.claim(new, PART)
    RECORD.forget_upto(new, 20)
    new.commit()
    old.begin()
    with pytest.raises(ApplyError, match="not open"):
        RECORD.claim(old, PART)


def locked_ts(session: Session) -> int:
    found = TargetCheckpoint(7, SCHEMA).load(session, lock=True)
    assert found is not None
    return found.commit_ts


def test_a_commit_under_way_elsewhere_is_seen(sessions: tuple[Session, Session]) -> None:
    old, new = sessions
    old.begin()
    assert locked_ts(old) == 10
    set_checkpoint(old, RECORD, 20, consistent=True)
    found: list[int] = []

    def look() -> None:
        new.begin()
        found.append(locked_ts(new))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    old.commit()
    thread.join(30)
    assert found == [20]
