"""Changes between two definitions of a table: the algebra over recorded and drawn ones, and what each DDL is called."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.table_changes import (
    AddColumn,
    AddForeignKey,
    AddKey,
    AddPartition,
    AlterOption,
    CreateTable,
    DropColumn,
    DropForeignKey,
    DropKey,
    DropPartition,
    DropTable,
    ModifyColumn,
    ModifyKey,
    ModifyPartition,
    MoveColumn,
    RenameColumn,
    RenameKey,
    Repartition,
    diff,
)
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, ForeignKey, IndexColumn, IndexInfo, PartitionDef, TableInfo
from tests.support.applied_changes import applied, tidy
from tests.support.golden_case import load_case


def column(number: int, name: str, tp: int = ColumnType.INT) -> ColumnInfo:
    return ColumnInfo(number, name, 0, tp, 0, 11, 0, "binary", "binary", (), None, None, None, None, False, "", False, False, 5, "")


def key(number: int, name: str, *columns: str, unique: bool = False) -> IndexInfo:
    return IndexInfo(number, name, tuple(IndexColumn(c, 0, -1) for c in columns), unique, False, 5, False, "")


def table(*columns: ColumnInfo, keys: tuple[IndexInfo, ...] = (), **more: object) -> TableInfo:
    bare = TableInfo(1, "t", "utf8mb4", "utf8mb4_bin", columns, keys, True, False, (), False, False, 0, "")
    return tidy(replace(bare, **more))  # type: ignore[arg-type]


A, B, C, D = (column(n, name) for n, name in enumerate("abcd", 1))
ABC = table(A, B, C)
FK = ForeignKey("fk", ("b",), "d", "p", ("id",), on_delete=2)
P0, P1 = PartitionDef(11, "p0", ("10",)), PartitionDef(12, "p1", ("20",))
PARTED = table(A, partition_type=1, partition_expr="`a`", partitions=(P0, P1))


@pytest.mark.parametrize("name", ["bank", "bench", "beyond_mysql", "ddl", "keys", "online", "txn", "types"])
def test_changes_of_every_recorded_job_give_the_table_after_it(name: str) -> None:
    history, some = load_case(name).history, 0
    for job in history.ordered:
        for table_id in history.tables_of_job(job):
            both = (history.table_at(table_id, version) for version in (job.version - 1, job.version))
            before, after = (found and found.info for found in both)
            changes = diff(before, after, job.query)
            assert applied(before and tidy(before), changes) == (after and tidy(after)), job
            assert diff(after, after) == ()
            some += len(changes)
    assert some


NAMES = ["a", "b", "c", "d", "E", "f"]


@st.composite
def definitions(draw: st.DrawFn) -> TableInfo:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    ids = draw(st.permutations(range(1, 9)))
    types = draw(st.lists(st.sampled_from([ColumnType.INT, ColumnType.BIGINT]), min_size=6, max_size=6))
    columns = [column(i, n, t) for i, n, t in zip(ids, names, types, strict=False)]
    numbers = draw(st.permutations(range(1, 6)))
    keys = [
        key(i, n, *draw(st.lists(st.sampled_from(names), min_size=1, unique=True)), unique=draw(st.booleans()))
        for i, n in zip(numbers, draw(st.lists(st.sampled_from(["k", "l", "m"]), unique=True)), strict=False)
    ]
    foreign = draw(st.lists(st.sampled_from(["x", "y"]), unique=True))
    kind = draw(st.sampled_from([0, 1, 3]))
    parts = draw(st.lists(st.sampled_from(["p", "q", "r", "s"]), unique=True)) if kind else []
    return table(
        *columns,
        keys=tuple(keys),
        foreign_keys=tuple(ForeignKey(name, (draw(st.sampled_from(names)),), on_update=draw(st.integers(0, 1))) for name in foreign),
        partition_type=kind,
        partition_columns=(names[0],) if kind else (),
        partitions=tuple(PartitionDef(draw(st.integers(1, 5)), p, (draw(st.sampled_from("12")),)) for p in parts),
        comment=draw(st.sampled_from(["", "c"])),
    )


@given(definitions(), definitions())
def test_changes_of_any_two_definitions_give_the_second(before: TableInfo, after: TableInfo) -> None:
    assert applied(before, diff(before, after, "ALTER TABLE t DROP COLUMN x")) == after
    assert diff(before, before) == ()


def test_another_name_of_what_a_foreign_key_refers_to_is_no_change_of_its_table() -> None:
    before, after = (table(A, B, foreign_keys=(replace(FK, ref_table=name),)) for name in ("p", "q"))
    assert diff(before, after) == ()
    assert diff(before, table(A, B, foreign_keys=(replace(FK, on_delete=3),))) == (
        DropForeignKey("fk"),
        AddForeignKey(replace(FK, on_delete=3)),
    )


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (None, ABC, (CreateTable(ABC),)),
        (ABC, None, (DropTable(),)),
        (None, None, ()),
        (ABC, table(A, D, B, C), (AddColumn(table(A, D).columns[1], "a"),)),
        (ABC, table(D, A, B, C), (AddColumn(D, ""),)),
        (ABC, table(A, C), (DropColumn("b"),)),
        (ABC, table(A, replace(B, name="x"), C), (RenameColumn("b", "x"),)),
        (ABC, table(replace(A, name="b"), replace(B, name="a"), C), (RenameColumn("a", "b"), RenameColumn("b", "a"))),
        (ABC, table(A, C, B), (MoveColumn("c", "a"),)),
        (ABC, table(C, A, B), (MoveColumn("c", ""),)),
        (ABC, table(A, replace(B, tp=ColumnType.BIGINT, flen=20), C), (ModifyColumn("b", (("tp", 8), ("flen", 20))),)),
        (ABC, table(A, replace(B, id=9, tp=ColumnType.VARCHAR), C), (ModifyColumn("b", (("id", 9), ("tp", 15))),)),
        (ABC, table(A, B, C, keys=(key(1, "k", "b"),)), (AddKey(table(A, B, keys=(key(1, "k", "b"),)).indexes[0]),)),
        (table(A, B, keys=(key(1, "k", "b"),)), table(A, D, B, keys=(key(1, "k", "b"),)), (AddColumn(table(A, D).columns[1], "a"),)),
        (table(A, B, keys=(key(1, "k", "b"),)), table(A, keys=()), (DropKey("k"), DropColumn("b"))),
        (table(A, keys=(key(1, "k", "a"),)), table(A, keys=(key(1, "l", "a"),)), (RenameKey("k", "l"),)),
        (table(A, keys=(key(1, "k", "a"),)), table(A, keys=(replace(key(1, "k", "a"), invisible=True),)), (ModifyKey("k", (("invisible", True),)),)),
        (table(A, keys=(key(1, "k", "a"),)), table(A, keys=(key(2, "k", "a"),)), (ModifyKey("k", (("id", 2),)),)),
        (
            table(A, keys=(key(1, "k", "a"),)),
            table(A, keys=(key(2, "k", "a", unique=True),)),
            (DropKey("k"), AddKey(key(2, "k", "a", unique=True))),
        ),
        (table(A, B), table(A, B, foreign_keys=(FK,)), (AddForeignKey(FK),)),
        (table(A, B, foreign_keys=(FK,)), table(A, B), (DropForeignKey("fk"),)),
        (table(A, B, foreign_keys=(FK,)), table(A, replace(B, name="x"), foreign_keys=(replace(FK, columns=("x",)),)), (RenameColumn("b", "x"),)),
        (PARTED, replace(PARTED, partitions=(P0,)), (DropPartition("p1"),)),
        (PARTED, replace(PARTED, partitions=(P1,)), (DropPartition("p0"),)),
        (replace(PARTED, partitions=(P0,)), PARTED, (AddPartition(P1, "p0"),)),
        (PARTED, replace(PARTED, partitions=(replace(P0, id=20), P1)), (ModifyPartition("p0", (("id", 20),)),)),
        (PARTED, table(A), (Repartition(0, "", (), ()),)),
        (table(A), PARTED, (Repartition(1, "`a`", (), (P0, P1)),)),
        (ABC, replace(ABC, name="u", comment="x"), (AlterOption("name", "u"), AlterOption("comment", "x"))),
        (ABC, replace(ABC, id=2), (AlterOption("id", 2),)),
    ],
)  # fmt: skip
def test_each_change_has_its_name(before: TableInfo | None, after: TableInfo | None, changes: tuple[object, ...]) -> None:
    assert diff(before, after, "ALTER TABLE t") == changes
    assert applied(before, diff(before, after, "ALTER TABLE t")) == after


CHANGED = table(A, replace(D, tp=ColumnType.VARCHAR), C)


@pytest.mark.parametrize(
    "query", ["ALTER TABLE t CHANGE b d VARCHAR(9)", "alter table t drop key k, change column if exists `B` `d` varchar(9) after a"]
)
def test_a_converted_column_under_another_name_is_the_one_that_the_text_names(query: str) -> None:
    changes = diff(ABC, CHANGED, query)
    assert changes == (RenameColumn("b", "d"), ModifyColumn("d", (("id", 4), ("tp", 15)))) and applied(ABC, changes) == CHANGED


@pytest.mark.parametrize("query", ["", "ALTER TABLE t CHANGE b x VARCHAR(9)", "ALTER TABLE t CHANGE x d INT"])
def test_a_column_that_may_be_another_is_refused(query: str) -> None:
    with pytest.raises(SchemaMismatch, match="table t .*may be one that came under another name"):
        diff(ABC, CHANGED, query)


def test_a_dropped_and_an_added_column_are_two() -> None:
    changes = diff(ABC, CHANGED, "ALTER TABLE t DROP COLUMN b, ADD COLUMN d VARCHAR(9) AFTER a")
    assert changes == (DropColumn("b"), AddColumn(CHANGED.columns[1], "a"))
