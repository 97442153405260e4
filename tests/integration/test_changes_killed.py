"""Queries of changes into Delta tables that are killed between Spark's offset file and its commit file: every change is there once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from tests.support.change_scene import ChangeScene
from tests.support.delta_queries import QUERIES, DeltaQueries

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Change = tuple[int, int, str, int]
"""commit_ts, seq, op, id."""
DEATHS = (("one plain", True), ("all batch", False), ("all plain", False), ("one batch", True))
"""The query, and whether its write was done."""


class Writer:
    """Writes transactions one after the other, and knows what each has changed."""

    def __init__(self, scene: ChangeScene) -> None:
        self._scene = scene
        self.changes: list[Change] = []

    @contextmanager
    def going_on(self) -> Iterator[None]:
        over = threading.Event()

        def write() -> None:
            number = 0
            while not over.wait(0.3):
                number += 1
                self._write(3 * number)

        writing = threading.Thread(target=write)
        writing.start()
        try:
            yield
        finally:
            over.set()
            writing.join()

    def _write(self, first: int) -> None:
        done: list[tuple[str, int]] = []

        def work(txn: Any) -> None:
            for n in range(3):
                txn.insert("shop.item", {"id": first + n, "name": "a", "n": 1})
                done.append(("insert", first + n))
            if first > 3:
                txn.update("shop.item", first - 1, {"n": 2})
                txn.delete("shop.item", first - 2)
                done.extend([("update", first - 1), ("delete", first - 2)])

        ts = self._scene.write(work)
        self._scene.promise()
        self.changes += [(ts, seq, op, row) for seq, (op, row) in enumerate(done)]


@pytest.mark.slow
def test_a_kill_between_the_offset_and_the_commit_of_a_batch(spark: SparkSession, pumps: list[PumpServer], tmp_path: Path) -> None:
    """Four queries at once on the same Pumps, one of which has begun a batch, and written it or not, when all of them are killed."""
    with ChangeScene(spark, pumps, tmp_path / "checkpoints") as scene:
        queries = DeltaQueries(str(tmp_path), scene.options)
        writer = Writer(scene)
        with writer.going_on():
            for name, written in DEATHS:
                queries.killed_at(name, written=written)
        queries.finish()
    wanted = sorted(writer.changes)
    assert len(wanted) > 50
    seq, op, row = "_change_seq", "replace(_change_type, '_postimage')", "id"
    for name, table in QUERIES.items():
        kept = spark.read.format("delta").load(str(queries.table(name)))
        assert len(queries.batches(name, "commits")) > 1
        if table:
            kept = kept.where("_change_type <> 'update_preimage'").selectExpr("_commit_version", seq, op, row)
        else:
            kept = kept.where("op <> 'ddl'").selectExpr("commit_ts", "seq", "op", "key:id::bigint")
        assert sorted(map(tuple, kept.collect())) == wanted, name
