"""A first load and a table copied again by the whole Drainer: Pumps, registry, Spark's query, a target; writes go on all the time."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, FileConfig, PumpConfig, SourceConfig
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ReplicationError
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyProgress
from tests.support.eventually import eventually
from tests.support.mirror_rows import by_delta, published
from tests.support.mirrored_upstream import MirroredUpstream
from tests.support.private_mysql import RealMariaDB
from tests.support.spark_queries import replicated
from tests.support.target_rows import rows_of, run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CLUSTER_ID = 23
ITEM = Table("item", (Column("id", "bigint"), Column("v", "int"), Column("t", "varchar(20)")), ("id",))
KEYLESS = Table("log", (Column("a", "int"), Column("b", "varchar(10)")))
MARKS = "bootstrap_job_marks"


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[MirroredUpstream, ClusterService]]:
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(RealMariaDB())
        service = ClusterService(Oracle(), CLUSTER_ID).start()
        stack.callback(service.stop)
        pump = PumpConfig(
            node_id="pump-1",
            addr="127.0.0.1:0",
            data_dir=str(tmp_path / "pump"),
            registry=service.url,
            cluster_id=CLUSTER_ID,
            fake_binlog_interval=0.2,
        )
        address = stack.enter_context(PumpProcess(pump)).address
        upstream = stack.enter_context(Upstream(PumpClient.fixed([address], CLUSTER_ID), oracle=service.oracle))
        service.servers = {"the-mirror": {"ip": "10.0.0.1", "listening_port": 4000}}
        service.history, service.mvcc = upstream.jobs, upstream.mvcc.look_up
        mirror = MirroredUpstream(upstream, source)
        stack.callback(mirror.close)
        yield mirror, service


class Writing:
    """Transactions until the end of the block."""

    def __init__(self, mirror: MirroredUpstream) -> None:
        self._mirror = mirror
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.02):
            number += 1
            items = sorted(self._mirror.upstream.rows("shop.item"))  # type: ignore[type-var]
            logs = sorted(self._mirror.upstream.rows("shop.log"))  # type: ignore[type-var]
            first, last, new = items[number % len(items)], items[-1], int(items[-1]) + 1  # type: ignore[call-overload]
            gone = logs[number % len(logs)]

            def work(txn, number=number, first=first, last=last, new=new, gone=gone):  # type: ignore[no-untyped-def]
                txn.insert("shop.item", {"id": new, "v": number, "t": "new"})
                txn.update("shop.item", first, {"v": -number})
                if last != first:
                    txn.delete("shop.item", last)
                txn.insert("shop.log", {"a": number % 3, "b": "x"})
                txn.delete("shop.log", gone)

            self._mirror.change(work)

    def __enter__(self) -> "Writing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_filled_streamed_and_one_table_again(
    mirror: tuple[MirroredUpstream, ClusterService],
    spark: SparkSession,
    mariadb: PrivateMariaDB,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, service = mirror
    caplog.set_level("INFO")
    for name in ("shop", MARKS):
        run_sql(mariadb, f"DROP DATABASE IF EXISTS {name}")
    source.create_database("shop")
    source.create_table("shop", ITEM)
    source.create_table("shop", KEYLESS)
    source.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n, "t": "it's"}) for n in range(200)])
    source.change(lambda txn: [txn.insert("shop.log", {"a": n % 3, "b": "x"}) for n in range(60)])
    config = DrainerConfig(
        source=SourceConfig(pumps=service.url, cluster_id=CLUSTER_ID, tidb_status=service.url),
        target=mariadb.target(),
        apply=ApplyConfig(checkpoint_schema=MARKS, on_finding="stop"),
        checkpoint_dir=str(tmp_path / "spark"),
        delta_dir=str(tmp_path / "delta"),
    )
    reader = source.reader(spark.sparkContext.broadcast)
    reports: list[str] = []
    copied: list[CopyProgress | None] = []

    def watch(over: threading.Event) -> None:
        while not over.wait(0.02):
            for node in service.nodes.listing(DRAINERS).nodes:
                with contextlib.suppress(*FAILURES, ValueError), HttpConnection.to(node.host, 5.0, tls=False) as connection:
                    progress = json.loads(connection.request("GET", "/progress").body)
                    report = NodeReport(node, progress, {}, "")
                    reports.append(report.text())
                    copied.append(report.seen(0.0).copied)

    def stream(request: BootstrapRequest) -> int:
        reports.clear()
        copied.clear()
        over = threading.Event()
        watching = threading.Thread(target=watch, args=[over], daemon=True)
        watching.start()
        with Writing(source), Replication(spark, config, bootstrap=request, upstream=reader) as replication:
            over.set()
            began = replication.commit_ts
            replicated(replication, source.tick(), 1 << 30)
        watching.join()
        assert any("the stream has not begun: " in report for report in reports), reports[:3]
        assert any(one is not None and one.tables == 2 for one in copied), copied
        said: list[str] = []
        begins_anew = replace(config, source=replace(config.source, starting_commit_ts=0))
        with Replication(spark, begins_anew, say=said.append) as replication:
            replicated(replication, source.tick(), 1 << 30)
        assert [text for text in said if "not from initial-commit-ts = 0" in text and f"the directory {tmp_path}/spark" in text], said
        for table in ("shop.item", "shop.log"):
            wanted = rows_of(source.server, table)
            assert rows_of(mariadb, table) == wanted and len(wanted) > 1, table
        return began

    with pytest.raises(
        BootstrapRefused, match=r"none of the upstream's 2 tables \(shop.item, shop.log\).*--bootstrap-all.*initial-commit-ts = 0"
    ):
        Replication(spark, config).start()
    assert run_sql(mariadb, f"SELECT * FROM {MARKS}.checkpoint") == [], "another initial-commit-ts still counts"
    first = stream(BootstrapRequest(everything=True))
    assert f"belongs to cluster {CLUSTER_ID}, whose binlogs the stream reads" in caplog.text
    assert run_sql(mariadb, f"SELECT DISTINCT snapshot_ts, kind FROM {MARKS}.spark_bootstrap") == [(first, "first")]
    run_sql(mariadb, "UPDATE shop.log SET b = 'wrong'", "DROP TABLE shop.item")
    second = stream(BootstrapRequest(tables=(("shop", "*"),)))
    assert run_sql(mariadb, f"SELECT DISTINCT snapshot_ts, kind, state FROM {MARKS}.spark_bootstrap WHERE table_name = ''") == [
        (second, "tables", "joined")
    ]
    assert second > first
    for name in ("shop", MARKS):
        run_sql(mariadb, f"DROP DATABASE IF EXISTS {name}")


def test_a_lake_is_filled_and_a_table_is_loaded_again(
    mirror: tuple[MirroredUpstream, ClusterService], spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, service = mirror
    source.create_database("shop")
    source.create_table("shop", ITEM)
    source.create_table("shop", KEYLESS)
    source.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n, "t": "it's"}) for n in range(200)])
    source.change(lambda txn: [txn.insert("shop.log", {"a": n % 3, "b": "x"}) for n in range(60)])
    lake = tmp_path / "lake"
    config = DrainerConfig(
        source=SourceConfig(pumps=service.url, cluster_id=CLUSTER_ID, tidb_status=service.url),
        apply=ApplyConfig(db_type="lake", lake_interval=0.0, mirror_interval=0.0),
        files=FileConfig(dir=str(lake)),
        checkpoint_dir=str(tmp_path / "spark"),
        delta_dir=str(tmp_path / "delta"),
    )
    reader, everything = source.reader(spark.sparkContext.broadcast), BootstrapRequest(everything=True)

    def path_of(table: str) -> str:
        found = published(lake).get(table)
        return found.path if found is not None else ""

    with Writing(source), Replication(spark, config, bootstrap=everything, upstream=reader) as replication:
        eventually(lambda: path_of("shop.item") and path_of("shop.log"), seconds=60)
        first = path_of("shop.item"), path_of("shop.log")
        assert ctl.main(["reload-tables", "-tables", "shop.item", f"--registry={service.url}"]) == 0
        assert "will be read again from the upstream" in capsys.readouterr().out
        with pytest.raises(ReplicationError, match="refuses: reload-tables shop.ghost: no such table is replicated"):
            ctl.main(["reload-tables", "-tables", "shop.ghost", f"--registry={service.url}"])
        eventually(lambda: path_of("shop.item") not in ("", first[0]), seconds=60)
        replicated(replication, source.tick(), 1 << 30)
    again = path_of("shop.item"), path_of("shop.log")
    with Replication(spark, config, bootstrap=everything, upstream=reader) as replication:
        replicated(replication, source.tick(), 1 << 30)
    assert (path_of("shop.item"), path_of("shop.log")) == again and again[1] == first[1], "the flag stays in a unit file"
    for table, key in (("shop.item", "id"), ("shop.log", "_tidb_rowid")):
        rows = {row[key]: row for row in by_delta(lake, published(lake)[table])}
        wanted = {handle: {key: handle, **row} for handle, row in source.upstream.rows(table).items()}
        assert rows == wanted and len(wanted) > 1, table
