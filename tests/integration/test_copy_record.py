"""What is recorded of a copy where the target has lost transactions that it had committed: nothing is taken for copied that is not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopiedRange, CopiedTable, CopyHead, CopyKind, CopyRecord, CopyState
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import KeyRange
from pyspark_tidb_binlog.sinks.mysql.session import connect

pytestmark = pytest.mark.mysql

SCHEMA, HEAD = "copy_record", CopyHead(CopyKind.FIRST, 100)
A, B = (CopiedTable("d", name, rows=5) for name in "ab")


@pytest.fixture
def record(mariadb: PrivateMariaDB) -> Iterator[CopyRecord]:
    """A record where two tables are ready to be copied, in one range each."""
    with connect(mariadb.target(), ApplyConfig()) as session:
        session.execute(f"CREATE DATABASE {SCHEMA}")
        record = CopyRecord(session, 7, SCHEMA)
        record.ensure()
        record.begin(HEAD, [A, B])
        for table in (A, B):
            record.note_empty(HEAD, table, [KeyRange()])
        yield record
        session.rollback()
        session.execute(f"DROP DATABASE {SCHEMA}")


def copied(record: CopyRecord, table: CopiedTable) -> None:
    """All rows of a table."""
    part = record.locked_range(CopiedRange(table.key, 0, KeyRange()), HEAD.ts)
    record.advance(part, (), 5, done=True)


def lost(record: CopyRecord, table: CopiedTable, state: CopyState) -> None:
    """The record of ``table`` is that of an earlier moment."""
    record.session.execute(f"UPDATE {SCHEMA}.spark_bootstrap SET state = '{state}' WHERE table_name = '{table.name}' AND unit < 0")
    if state is CopyState.PLANNED:
        record.session.execute(f"DELETE FROM {SCHEMA}.spark_bootstrap WHERE table_name = '{table.name}' AND unit >= 0")


def test_a_copy_is_done_and_joined_where_each_table_is(record: CopyRecord) -> None:
    for table in (A, B):
        copied(record, table)
        assert record.note_done(HEAD, table) == 5
        assert record.note_done(HEAD, table) == 5, "again, because the answer to the commit was lost"
    record.note_all_done([A.key, B.key])
    for _ in range(2):
        record.note_joined()
    found = record.load()
    assert found is not None and found.joined
    assert found.tables == tuple(replace(t, state=CopyState.DONE, copied=5) for t in (A, B))


def test_a_table_whose_end_is_lost_keeps_the_whole_from_being_done(record: CopyRecord) -> None:
    for table in (A, B):
        copied(record, table)
        record.note_done(HEAD, table)
    lost(record, A, CopyState.EMPTY)
    with pytest.raises(ApplyError, match=r"d\.a: .*spark_bootstrap does not record this table as copied.* has lost transactions"):
        record.note_all_done([A.key, B.key])
    with pytest.raises(ApplyError, match="does not record the copy as done.* has lost transactions"):
        record.note_joined()
    found = record.load()
    assert found is not None and found.begun, "the next start goes on"


def test_a_table_whose_ranges_are_lost_is_not_done(record: CopyRecord) -> None:
    copied(record, A)
    lost(record, A, CopyState.PLANNED)
    with pytest.raises(ApplyError, match=r"d\.a: its state is planned.* has lost transactions"):
        record.note_done(HEAD, A)
    with pytest.raises(ApplyError, match=r"d\.b: 1 ranges are not copied .* has lost transactions"):
        record.note_done(HEAD, B)
