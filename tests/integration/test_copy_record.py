"""What is recorded of a copy where the target has lost transactions that it had committed: nothing is taken for copied that is not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.bootstrap import copy_record
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopiedRange, CopiedTable, CopyHead, CopyKind, CopyState
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import KeyRange
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

pytestmark = pytest.mark.mysql

CLUSTER, SCHEMA, TS = 7, "copy_record", 100
A, B = (CopiedTable("d", name, CopyState.PLANNED, 5) for name in "ab")


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    """A session where two tables are ready to be copied, in one range each."""
    with connect(mariadb.target(), ApplyConfig()) as session:
        session.execute(f"CREATE DATABASE {SCHEMA}")
        copy_record.ensure_table(session, SCHEMA)
        copy_record.begin(session, CLUSTER, SCHEMA, CopyHead(CopyKind.FIRST, TS, CopyState.PLANNED), [A, B])
        for table in (A, B):
            copy_record.note_empty(session, CLUSTER, SCHEMA, table, TS, CopyKind.FIRST, [KeyRange()])
        yield session
        session.rollback()
        session.execute(f"DROP DATABASE {SCHEMA}")


def copied(session: Session, table: CopiedTable) -> None:
    """All rows of a table."""
    place = copy_record.lock_range(session, CLUSTER, SCHEMA, CopiedRange("d", table.name, 0, KeyRange()), TS)
    copy_record.advance(session, CLUSTER, SCHEMA, place, (), (5, 50), done=True)


def lost(session: Session, table: CopiedTable, state: CopyState) -> None:
    """The record of ``table`` is that of an earlier moment."""
    session.execute(f"UPDATE {SCHEMA}.spark_bootstrap SET state = '{state}' WHERE table_name = '{table.name}' AND unit < 0")
    if state is CopyState.PLANNED:
        session.execute(f"DELETE FROM {SCHEMA}.spark_bootstrap WHERE table_name = '{table.name}' AND unit >= 0")


def test_a_copy_is_done_and_joined_where_each_table_is(session: Session) -> None:
    for table in (A, B):
        copied(session, table)
        assert copy_record.note_done(session, CLUSTER, SCHEMA, table) == 5
        assert copy_record.note_done(session, CLUSTER, SCHEMA, table) == 5, "again, because the answer to the commit was lost"
    copy_record.note_all_done(session, CLUSTER, SCHEMA, [A, B])
    for _ in range(2):
        copy_record.note_joined(session, CLUSTER, SCHEMA)
    record = copy_record.load(session, CLUSTER, SCHEMA)
    assert record is not None and record.joined
    assert record.tables == tuple(replace(t, state=CopyState.DONE) for t in (A, B))


def test_a_table_whose_end_is_lost_keeps_the_whole_from_being_done(session: Session) -> None:
    for table in (A, B):
        copied(session, table)
        copy_record.note_done(session, CLUSTER, SCHEMA, table)
    lost(session, A, CopyState.EMPTY)
    with pytest.raises(ApplyError, match=r"d\.a: .*spark_bootstrap does not record this table as copied.* has lost transactions"):
        copy_record.note_all_done(session, CLUSTER, SCHEMA, [A, B])
    with pytest.raises(ApplyError, match="does not record the copy as done.* has lost transactions"):
        copy_record.note_joined(session, CLUSTER, SCHEMA)
    record = copy_record.load(session, CLUSTER, SCHEMA)
    assert record is not None and record.begun, "the next start goes on"


def test_a_table_whose_ranges_are_lost_is_not_done(session: Session) -> None:
    copied(session, A)
    lost(session, A, CopyState.PLANNED)
    with pytest.raises(ApplyError, match=r"d\.a: its state is planned.* has lost transactions"):
        copy_record.note_done(session, CLUSTER, SCHEMA, A)
    with pytest.raises(ApplyError, match=r"d\.b: 1 ranges are not copied .* has lost transactions"):
        copy_record.note_done(session, CLUSTER, SCHEMA, B)
