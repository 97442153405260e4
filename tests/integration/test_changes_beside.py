"""Several readers of the same Pumps at once: a query that is held up, one that is not, and a Drainer."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from tests.support.change_scene import ChangeScene, rows_of_changes
from tests.support.eventually import eventually
from tests.support.spark_queries import WAIT, replicated, source_of_pumps
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
MARKS = "beside_marks"


def test_readers_hold_up_nobody_and_each_has_everything(
    spark: SparkSession, pumps: list[PumpServer], mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    """One query stands in its batch until the others have all that is written; then it has the same, in many small batches."""
    held, go_on = threading.Event(), threading.Event()
    slow: dict[int, list[dict[str, Any]]] = {}

    def take_slowly(batch: DataFrame, batch_id: int) -> None:
        slow[batch_id] = rows_of_changes(batch)
        if slow[batch_id]:
            held.set()
            assert go_on.wait(WAIT)

    with ChangeScene(spark, pumps, tmp_path / "checkpoints") as scene:

        def write(first: int) -> int:
            for n in range(first, first + 200, 10):
                scene.write(lambda txn, n=n: [txn.insert("shop.item", {"id": n + i, "name": "x" * 20, "n": n}) for i in range(10)])
                scene.write(lambda txn, n=n: [txn.update("shop.item", n, {"n": -n}), txn.delete("shop.item", n + 1)])
            return scene.promise()

        write(0)
        limited = scene.stream(tables="shop.*", maxBytesPerTrigger="2000")
        writer = limited.writeStream.foreachBatch(take_slowly).option("checkpointLocation", str(tmp_path / "slow"))
        query = writer.start()
        eventually(held.is_set, seconds=WAIT)
        fast = scene.running(scene.stream(tables="shop.*"), "fast")
        config = DrainerConfig(
            source=source_of_pumps(pumps, tidb_status=scene.options["tidbStatus"]),
            target=mariadb.target(),
            apply=ApplyConfig(checkpoint_schema=MARKS, on_finding="stop"),
            checkpoint_dir=str(tmp_path / "spark"),
            delta_dir=str(tmp_path / "delta"),
        )
        with Replication(spark, config) as replication:
            assert replicated(replication, write(1000))
        there = {handle: (row["name"], row["n"]) for handle, row in scene.upstream.rows("shop.item").items()}
        applied = run_sql(mariadb, "SELECT id, name, n FROM shop.item")
        assert {row[0]: row[1:] for row in applied} == there and len(applied) == len(there) == 360
        wanted = rows_of_changes(scene.read(tables="shop.*"))
        assert len(wanted) == 2 * 20 * 12
        eventually(lambda: len(scene.rows("fast")) >= len(wanted), seconds=WAIT)
        fast.stop()
        assert len(slow) <= 2
        go_on.set()
        eventually(lambda: sum(map(len, slow.values())) >= len(wanted), seconds=WAIT)
        query.stop()
        assert scene.rows("fast") == wanted
        assert [row for _, rows in sorted(slow.items()) for row in rows] == wanted and len(slow) > 2
    for name in ("shop", MARKS):
        run_sql(mariadb, f"DROP DATABASE IF EXISTS {name}")
