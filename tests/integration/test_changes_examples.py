"""The examples of docs/changes.md, run as they stand there."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from tests.support.change_scene import ChangeScene

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "changes.md"


def examples() -> list[str]:
    """The code of the section, example by example."""
    section = PAGE.read_text().partition("## Examples\n")[2]
    return [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, re.M) if block.strip()]


def rows(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    """The rows of a Delta table, in the order of their key."""
    return [tuple(row) for row in spark.read.format("delta").load(path).orderBy("id").collect()]


def test_the_examples_do_what_they_say(spark: SparkSession, scene: ChangeScene, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark, "upstream": scene.options, "lake": str(tmp_path)}
    merge, go_on, join, append = examples()

    def run(example: str) -> None:
        exec(example, names)
        assert names["query"].awaitTermination(300)

    one = scene.upstream.begin()
    first = one.insert("shop.item", {"id": 1, "name": "a", "n": 1})
    second = one.insert("shop.item", {"id": 2, "name": "b", "n": 1})
    one.update("shop.item", first, {"n": 2})
    names["ts"] = one.commit()
    names["first"] = spark.sql("SELECT * FROM VALUES (1L, 'a', 2), (2L, 'b', 1) AS item (id, name, n)")
    two = scene.upstream.begin()
    two.update("shop.item", first, {"id": 3})
    two.insert("shop.item", {"id": 4, "name": "d", "n": 4})
    two.commit()
    scene.promise()
    run(merge)
    scene.write(lambda txn: txn.delete("shop.item", second))
    scene.promise()
    run(merge)
    assert rows(spark, f"{tmp_path}/item") == [(3, "a", 2), (4, "d", 4)]

    scene.upstream.ddl.add_column("shop.item", Column("size", "int"))
    scene.write(lambda txn: txn.insert("shop.item", {"id": 5, "name": "e", "n": 5, "size": 7}))
    scene.promise()
    with pytest.raises(PySparkException, match="changed shop.item.*ADD COLUMN"):
        run(merge)
    run(go_on)
    assert rows(spark, f"{tmp_path}/item") == [(3, "a", 2, None), (4, "d", 4, None), (5, "e", 5, 7)]

    key = Column("id", "bigint", not_null=True)
    scene.upstream.ddl.create_table("shop", Table("orders", (key, Column("total", "decimal(10,2)")), ("id",)))
    scene.upstream.ddl.create_table(
        "shop", Table("payment", (key, Column("order_id", "bigint"), Column("amount", "decimal(10,2)")), ("id",))
    )
    scene.write(lambda txn: [txn.insert("shop.orders", {"id": n, "total": f"{n}.50"}) for n in (1, 2)])
    scene.write(lambda txn: txn.insert("shop.payment", {"id": 1, "order_id": 2, "amount": "2.50"}))
    scene.promise()
    run(join)
    paid = spark.read.format("delta").load(f"{tmp_path}/paid").collect()
    assert [(row.id, str(row.total), str(row.amount)) for row in paid] == [(2, "2.50", "2.50")]

    run(append)
    kept = spark.read.format("delta").load(f"{tmp_path}/changes")
    counts = dict(kept.where("op <> 'ddl'").groupBy("table").count().collect())
    assert counts == {"item": 8, "orders": 2, "payment": 1}
    assert kept.where("op = 'update'").selectExpr("after:n::int").collect()[0][0] == 2
