"""An embedded upstream on real Pumps whose changes are read with ``format("tidb_binlog")``. Imports pyspark."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from tests.support.pump_writes import CLUSTER, fake, send

ITEM = Table("item", (Column("id", "bigint", not_null=True), Column("name", "varchar(20)"), Column("n", "int")), ("id",))


def rows_of_changes(changes: DataFrame) -> list[dict[str, Any]]:
    """The rows, variants as JSON: PySpark 4.2 makes no Arrow table of a variant that is null."""
    variants = {f.name for f in changes.schema if f.dataType.typeName() == "variant"}
    return changes.selectExpr(*(f"to_json({c}) AS {c}" if c in variants else c for c in changes.columns)).toArrow().to_pylist()


class ChangeScene:
    """The database ``shop`` with the table ``item``; streams whose rows are collected batch by batch."""

    def __init__(self, spark: SparkSession, pumps: list[PumpServer], directory: Path) -> None:
        self.spark, self._pumps, self._directory = spark, pumps, directory
        self.upstream = Upstream(PumpClient.fixed([p.address for p in pumps], CLUSTER, PumpClientSettings(outcome_pause=0.05)))
        self.upstream.ddl.create_database("shop")
        self.upstream.ddl.create_table("shop", ITEM)
        self._service = self.upstream.serve()
        self.start_ts = self.upstream.oracle.next()
        self.batches: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def __enter__(self) -> "ChangeScene":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._service.stop()
        self.upstream.close()

    def write(self, work: Callable[[Any], object]) -> int:
        """One transaction; its commit_ts."""
        txn = self.upstream.begin()
        work(txn)
        return int(txn.commit())

    def promise(self) -> int:
        """Everything up to the present is promised by all Pumps; the ts."""
        self.upstream.flush()
        ts = self.upstream.oracle.next()
        for pump in self._pumps:
            send(pump, fake(ts))
        return ts

    @property
    def options(self) -> dict[str, str]:
        """Where the Pumps and the history are, from the creation of the table on."""
        pumps = ",".join(p.address for p in self._pumps)
        return {
            "pumps": pumps,
            "clusterId": str(CLUSTER),
            "tidbStatus": self._service.url,
            "startingCommitTs": str(self.start_ts),
            "historyLag": "0.5",
        }

    def stream(self, **more: str) -> DataFrame:
        """A stream of changes; ``more``: other options."""
        return self.spark.readStream.format("tidb_binlog").options(**(self.options | more)).load()

    def read(self, **more: str) -> DataFrame:
        """A batch of what is promised."""
        return self.spark.read.format("tidb_binlog").options(**(self.options | {"endingCommitTs": str(self.promise())} | more)).load()

    def taken(self, frame: DataFrame, name: str = "one") -> list[dict[str, Any]]:
        """What the stream ``frame`` gives until it has everything that is promised, with a checkpoint of this name; as rows of all its lives."""
        assert self._writer(frame, name).trigger(availableNow=True).start().awaitTermination(300)
        return self.rows(name)

    def running(self, frame: DataFrame, name: str = "one") -> StreamingQuery:
        """The same, going on until it is stopped."""
        return self._writer(frame, name).start()

    def rows(self, name: str = "one") -> list[dict[str, Any]]:
        """What the lives of a checkpoint have given, each batch as it came last."""
        return [row for (of, _), rows in sorted(self.batches.items()) if of == name for row in rows]

    def _writer(self, frame: DataFrame, name: str) -> DataStreamWriter:
        def take(batch: DataFrame, batch_id: int) -> None:
            self.batches[name, batch_id] = rows_of_changes(batch)

        return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self._directory / name))
