"""Changes where something is in the way: what a Pump has collected, a Pump that is away, DDLs on a table whose columns are to stay."""

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.jobs.lab.emulator import online
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column
from tests.support.change_scene import ChangeScene, rows_of_changes

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def insert(scene: ChangeScene, **row: Any) -> int:
    return scene.write(lambda txn: txn.insert("shop.item", row))


def test_what_a_pump_has_collected_is_an_error_or_left_out(scene: ChangeScene, pumps: list[PumpServer]) -> None:
    insert(scene, id=1)
    collected = scene.promise()
    later = [insert(scene, id=2), insert(scene, id=3)]
    scene.promise()
    for pump in pumps:
        pump.service.store.collect(collected, 0)
    with pytest.raises(PySparkException, match=f"has collected .* wanted above ts .*oldest kept {collected} .*failOnDataLoss=false"):
        scene.read().collect()
    with pytest.raises(PySparkException, match=f"has collected .*oldest kept {collected} .*failOnDataLoss=false"):
        scene.taken(scene.stream(), "strict")
    assert [row["commit_ts"] for row in rows_of_changes(scene.read(failOnDataLoss="false"))] == later
    more: dict[str, str] = {"failOnDataLoss": "false"}
    assert [row["commit_ts"] for row in scene.taken(scene.stream(**more), "lossy")] == later
    later.append(insert(scene, id=4))
    scene.promise()
    assert [row["id"] for row in scene.taken(scene.stream(table="shop.item", **more), "one table")] == [2, 3, 4]
    assert [row["commit_ts"] for row in scene.taken(scene.stream(**more), "lossy")] == later


def test_a_pump_that_is_away_ends_the_query_with_its_name(spark: SparkSession, scene: ChangeScene, pumps: list[PumpServer]) -> None:
    """Nothing is given of the other one: its rows would be there without those that belong between them."""
    insert(scene, id=1)
    upto = {"endingCommitTs": str(scene.promise()), "pumpPatience": "1", "readPatience": "1"}
    address = pumps[0].address
    pumps[0].stop()
    with pytest.raises(PySparkException, match=f"PumpUnavailable.*{address}"):
        spark.read.format("tidb_binlog").options(**scene.options, **upto).load().collect()
    with pytest.raises(PySparkException, match=f"PumpUnavailable.*{address}"):
        scene.taken(scene.stream(**upto))
    assert scene.batches == {}


def test_columns_that_stay_go_on_under_their_names_and_types_over_changes_of_both(scene: ChangeScene) -> None:
    """A column that is renamed, converted or both has its values where it was; one that does not fit is an error, not null."""
    insert(scene, id=1, name="7", n=1)
    scene.promise()
    rows = scene.taken(scene.stream(table="shop.item", schemaEvolution="ignore"))
    ddl = scene.upstream.ddl
    ddl.alter("shop.item", online.modify_column(Column("label", "bigint"), int, old_name="name"))
    ddl.alter("shop.item", online.rename_column("n", "size"))
    scene.write(lambda txn: txn.update("shop.item", 1, {"label": 8, "size": 2}))
    ddl.truncate("shop.item")
    insert(scene, id=2, label=9, size=3)
    ddl.alter("shop.item", online.modify_column(Column("size", "varchar(20)"), str))
    insert(scene, id=3, label=None, size="4")
    scene.promise()
    rows = scene.taken(scene.stream(table="shop.item", schemaEvolution="ignore"))
    assert [(row["_change_type"], row["id"], row["name"], row["n"]) for row in rows] == [
        ("insert", 1, "7", 1),
        ("update_preimage", 1, "7", 1),
        ("update_postimage", 1, "8", 2),
        ("insert", 2, "9", 3),
        ("insert", 3, None, 4),
    ]
    insert(scene, id=4, size="much")
    ts = scene.promise()
    words = "shop.item, commit_ts .*: column n is int32 as of schema version .*, but size is string in these rows.*much.*schemaCommitTs"
    with pytest.raises(PySparkException, match=words):
        scene.taken(scene.stream(table="shop.item", schemaEvolution="ignore"))
    insert(scene, id=5, label=1, size="5")
    scene.promise()
    rows = scene.read(table="shop.item", startingCommitTs=str(ts), schemaEvolution="ignore").collect()
    assert [(row["id"], row["label"], row["size"]) for row in rows] == [(5, 1, "5")]
