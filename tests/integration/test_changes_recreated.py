"""One table's changes while it is dropped and created again under its name: as the query runs, and while it is down."""

import re
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from tests.support.change_scene import ITEM, ChangeScene
from tests.support.eventually import eventually
from tests.support.spark_queries import WAIT

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
OTHER_KEY = Table("item", ITEM.columns, ("name",))
OTHER_COLUMNS = Table(
    "item",
    (Column("n", "bigint"), Column("id", "bigint", not_null=True), Column("born", "datetime"), Column("name", "varchar(9)")),
    ("id",),
)
Row = tuple[Any, ...]


def insert(scene: ChangeScene, **row: Any) -> None:
    scene.write(lambda txn: txn.insert("shop.item", row))


def again(scene: ChangeScene, table: Table) -> None:
    scene.upstream.ddl.drop_table("shop.item")
    scene.upstream.ddl.create_table("shop", table)


def given(scene: ChangeScene, name: str) -> list[Row]:
    return [(row["_change_type"], row["id"], row["name"], row["n"]) for row in scene.rows(name)]


def goes_on(error: BaseException, statement: str) -> str:
    """The value of schemaCommitTs that an error names."""
    found = re.search(rf'changed shop\.item.*{statement}.*option\("schemaCommitTs", "(\d+)"\)', str(error))
    assert found, str(error)[:2000]
    return found[1]


def test_fail_ends_the_query_as_it_runs_and_goes_on_with_the_new_table(scene: ChangeScene) -> None:
    """Nothing of the old table or the new one is lost or given twice; each DROP is told, also one behind which nothing was created yet."""
    query = scene.running(scene.stream(table="shop.item"))
    insert(scene, id=1, name="a", n=1)
    scene.promise()
    eventually(lambda: given(scene, "one"), seconds=WAIT)
    insert(scene, id=2, name="b", n=2)
    again(scene, OTHER_KEY)
    insert(scene, id=1, name="c", n=3)
    scene.promise()
    with pytest.raises(PySparkException) as failed:
        query.awaitTermination(WAIT)
    ts = goes_on(failed.value, "DROP TABLE")
    old_and_new = [("insert", 1, "a", 1), ("insert", 2, "b", 2), ("insert", 1, "c", 3)]
    scene.taken(scene.stream(table="shop.item", schemaCommitTs=ts))
    assert given(scene, "one") == old_and_new
    scene.upstream.ddl.drop_table("shop.item")
    scene.promise()
    with pytest.raises(PySparkException) as failed:
        scene.taken(scene.stream(table="shop.item", schemaCommitTs=ts))
    ts = goes_on(failed.value, "DROP TABLE")
    with pytest.raises(PySparkException, match=r"(?i)no table shop\.item .*removed the table .*DROP TABLE.*created again"):
        scene.taken(scene.stream(table="shop.item", schemaCommitTs=ts))
    scene.upstream.ddl.create_table("shop", OTHER_COLUMNS)
    insert(scene, id=5, name="d", n=1 << 40, born="2026-01-02 03:04:05")
    scene.promise()
    rows = scene.taken(scene.stream(table="shop.item", schemaCommitTs=ts))
    assert given(scene, "one") == [*old_and_new, ("insert", 5, "d", 1 << 40)]
    assert list(rows[-1])[:4] == ["n", "id", "born", "name"] and str(rows[-1]["born"]) == "2026-01-02 03:04:05"


def test_fail_notices_it_where_the_query_was_down_and_begins_nowhere_in_particular(scene: ChangeScene) -> None:
    """Without ``startingCommitTs`` the columns are those of today: the new table's, of which nobody was told."""
    options = {name: value for name, value in scene.options.items() if name != "startingCommitTs"}

    def stream(**more: str) -> Any:
        return scene.spark.readStream.format("tidb_binlog").options(**options, table="shop.item", **more).load()

    query = scene.running(stream())
    eventually(lambda: query.lastProgress is not None, seconds=WAIT)
    insert(scene, id=1, name="a", n=1)
    scene.promise()
    eventually(lambda: given(scene, "one"), seconds=WAIT)
    query.stop()
    insert(scene, id=2, name="b", n=2)
    again(scene, OTHER_COLUMNS)
    insert(scene, id=1, name="c", n=3)
    scene.promise()
    with pytest.raises(PySparkException) as failed:
        scene.taken(stream())
    scene.taken(stream(schemaCommitTs=goes_on(failed.value, "DROP TABLE")))
    assert given(scene, "one") == [("insert", 1, "a", 1), ("insert", 2, "b", 2), ("insert", 1, "c", 3)]


def test_rows_of_the_old_table_that_do_not_fit_are_read_apart(scene: ChangeScene) -> None:
    """As docs/changes.md says: the rest of the old table as a batch, and a new checkpoint behind the DDL."""
    insert(scene, id=1, name="a", n=1)
    scene.promise()
    before = scene.taken(scene.stream(table="shop.item"))
    insert(scene, id=2, name="b", n=2)
    again(scene, Table("item", (Column("id", "bigint", not_null=True), Column("name", "datetime")), ("id",)))
    insert(scene, id=3, name="2026-01-02 03:04:05")
    scene.promise()
    with pytest.raises(PySparkException) as failed:
        scene.taken(scene.stream(table="shop.item"))
    ts = goes_on(failed.value, "DROP TABLE")
    with pytest.raises(
        PySparkException, match=r"column name is timestamp.* as of .* but name is string in these rows.*docs/changes\.md, One table"
    ):
        scene.taken(scene.stream(table="shop.item", schemaCommitTs=ts))
    found = re.search(r"at commit_ts (\d+)", str(failed.value))
    assert found
    last = str(max(row["_commit_version"] for row in before))
    end = str(int(found[1]) - 1)
    rest = scene.read(table="shop.item", startingCommitTs=last, endingCommitTs=end, schemaCommitTs=end).collect()
    behind = scene.taken(scene.stream(table="shop.item", startingCommitTs=found[1], schemaCommitTs=ts), "behind it")
    assert [(row["id"], str(row["name"])) for row in (*before, *rest, *behind)] == [(1, "a"), (2, "b"), (3, "2026-01-02 03:04:05")]


def test_ignore_goes_on_with_the_new_table_under_the_columns_of_the_old_one(scene: ChangeScene) -> None:
    """While the query runs, and over a restart; what does not fit ends it, and is not null."""
    ignore = {"table": "shop.item", "schemaEvolution": "ignore"}
    query = scene.running(scene.stream(**ignore))
    insert(scene, id=1, name="a", n=1)
    again(scene, OTHER_KEY)
    insert(scene, id=1, name="b", n=2)
    scene.promise()
    rows = [("insert", 1, "a", 1), ("insert", 1, "b", 2)]
    eventually(lambda: given(scene, "one") == rows, seconds=WAIT)
    query.stop()
    again(scene, OTHER_COLUMNS)
    insert(scene, id=3, name="c", n=3, born="2026-01-02 03:04:05")
    scene.promise()
    scene.taken(scene.stream(**ignore))
    rows.append(("insert", 3, "c", 3))
    assert given(scene, "one") == rows
    scene.upstream.ddl.drop_table("shop.item")
    scene.promise()
    scene.taken(scene.stream(**ignore))
    scene.upstream.ddl.create_table("shop", OTHER_COLUMNS)
    insert(scene, id=4, name="d", n=1 << 40)
    scene.promise()
    with pytest.raises(PySparkException, match=r"column n is int32 as of schema version .*, but n is int64 in these rows.*schemaCommitTs"):
        scene.taken(scene.stream(**ignore))
    assert given(scene, "one") == rows
