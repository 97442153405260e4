"""States of online DDLs and the rows that are written in them (rows.md 6 and 8; the golden case ``online`` counts the versions)."""

import pytest

from pyspark_tidb_binlog.jobs.lab.emulator import online
from pyspark_tidb_binlog.jobs.lab.emulator.online import Change
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.schemas.codec.datum import take_datum
from pyspark_tidb_binlog.schemas.codec.number import Cursor
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.fakes.written import Written

ADD_FIRST = online.add_column(Column("d", "int", default=7), "")
DROP = online.drop_column("b")
MODIFY = online.modify_column(Column("c", "varchar(9)"), str)


def ids(row: bytes, *, skip: int = 0) -> list[int]:
    """The column ids in a row, after ``skip`` datums of the handle."""
    cursor = Cursor(row)
    for _ in range(skip):
        take_datum(cursor)
    found = []
    while cursor.pos < cursor.end:
        cursor.byte()
        found.append(cursor.varint())
        take_datum(cursor)
    return found


class World:
    def __init__(self) -> None:
        self.written = Written()
        self.upstream = Upstream(self.written)
        self.upstream.ddl.create_database("d")
        self.upstream.ddl.create_table("d", Table("t", (Column("a", "int"), Column("b", "int"), Column("c", "int")), unique=(("b",),)))

    def rows(self) -> tuple[list[int], list[int], list[int]]:
        """Column ids in an insert, an update (both halves) and a delete of a session of now; ``_tidb_rowid`` left out."""
        txn = self.upstream.begin()
        handle = txn.insert("d.t", {"a": 1})
        txn.update("d.t", handle, {"a": 2})
        txn.delete("d.t", handle)
        txn.commit()
        mutation = binlog_pb2.PrewriteValue.FromString(self.written.commits()[-1].prewrite_value).mutations[0]
        found = ids(mutation.inserted_rows[0], skip=1), ids(mutation.updated_rows[0]), ids(mutation.deleted_rows[0])
        return found[0], [i for i in found[1] if i > 0], [i for i in found[2] if i > 0]

    def states(self, *changes: Change) -> list[tuple[list[int], list[int], list[int]]]:
        ddl = self.upstream.ddl.start("d.t", *changes)
        found = []
        while not ddl.done:
            ddl.advance()
            found.append(self.rows())
        return found


BEFORE = ([1], [1, 2, 3] * 2, [1, 2, 3])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ADD_FIRST,
            [BEFORE, *[([1, 4], [1, 2, 3, 4] * 2, [1, 2, 3])] * 2, ([4, 1], [4, 1, 2, 3] * 2, [4, 1, 2, 3])],
        ),
        (DROP, [([1], [1, 3, 2] * 2, [1, 3]), *[([1], [1, 3] * 2, [1, 3])] * 3]),
        (
            MODIFY,
            [BEFORE, *[([1, 4], [1, 2, 3, 4] * 2, [1, 2, 3])] * 2, ([1], [1, 2, 4] * 2, [1, 2, 4])],
        ),
    ],
    ids=["add first", "drop", "modify"],
)
def test_rows_of_each_state(change: Change, expected: list[object]) -> None:
    assert World().states(change) == expected


def test_a_multi_schema_change_switches_at_once_and_drops_after() -> None:
    world = World()
    ddl = world.upstream.ddl.alter("d.t", DROP, ADD_FIRST, MODIFY)
    assert len(ddl.versions) == 3 + 3 + 1 + 3
    switched = world.upstream.store.table("d.t").at(ddl.versions[6])
    assert [(c.name, c.id) for c in switched.public_columns()] == [("d", 4), ("a", 1), ("c", 5)]
    assert [c.name for c in switched.columns] == ["d", "a", "c", "b"], "what is not public stands at the end"
    assert [s["schema_version"] for s in ddl.job["multi_schema_info"]["sub_jobs"]] == [ddl.version, 0, 0]
    assert ddl.job["type"] == 61 and [b.ddl_schema_state for b in world.written.commits() if b.ddl_job_id == ddl.job["id"]] == [0]


def test_binlogs_and_text() -> None:
    world = World()
    ddl = world.upstream.ddl.start("d.t", DROP)
    emitted = []
    while not ddl.done:
        ddl.advance()
        emitted.append([b.ddl_schema_state for b in world.written.commits() if b.ddl_job_id == ddl.job["id"]])
        assert (ddl.job in world.upstream.jobs()) == ddl.done
    assert emitted == [[], [1], [1], [1, 0]]
    assert world.upstream.store.table("d.t").at(ddl.version).indexes == (), "the index of the column goes with it"
    texts = [
        online.add_index("i", "a(3)", "b", unique=True).text,
        ADD_FIRST.text,
        online.modify_column(Column("z", "int"), old_name="c").text,
    ]
    assert texts == [
        "ADD UNIQUE INDEX `i`(`a`(3), `b`)",
        "ADD COLUMN `d` Int DEFAULT 7 FIRST".replace("Int", "INT"),
        "CHANGE COLUMN `c` `z` INT",
    ]


def test_a_modified_column_is_filled_for_every_row() -> None:
    world = World()
    txn = world.upstream.begin()
    txn.insert("d.t", {"c": 5})
    txn.commit()
    ddl = world.upstream.ddl.start("d.t", MODIFY)
    while not ddl.done:
        ddl.advance()
        txn = world.upstream.begin()
        txn.insert("d.t", {"c": 6 if not ddl.done else "7"})
        txn.commit()
    assert [r["c"] for r in world.upstream.rows("d.t").values()] == ["5", "6", "6", "6", "7"]
