"""The Python of docs/installed.md, run as it stands there, but for PD's address: on a cluster that PD names."""

import datetime
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from tests.support.change_scene import rows_of_changes
from tests.support.fakes.etcd import EtcdProcess
from tests.support.fakes.pd import FakePd
from tests.support.pump_writes import CLUSTER, config_of

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
ROOT = Path(__file__).parents[2]
ORDERS = Table("orders", (Column("id", "bigint", not_null=True), Column("total", "decimal(10,2)")), ("id",))


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[str]:
    """The address of PD; its Pumps have an order that was inserted, changed and deleted, and one that is there."""
    with EtcdProcess(tmp_path / "etcd") as etcd, FakePd(etcd.address, CLUSTER, 1) as pd:
        pumps = [PumpServer(config_of(tmp_path, number, pd_urls=pd.urls, fake_binlog_interval=0.2)).start() for number in (1, 2)]
        upstream = Upstream(PumpClient.fixed([p.address for p in pumps], CLUSTER, PumpClientSettings(outcome_pause=0.05)), oracle=pd.oracle)
        tidb = upstream.serve()
        host, _, port = tidb.address.rpartition(":")
        value = json.dumps({"ip": host, "listening_port": 4000, "status_port": int(port)})
        etcd.gateway("kv/put", key=b"/tidb/server/info/one", value=value.encode())
        upstream.ddl.create_database("shop")
        upstream.ddl.create_table("shop", ORDERS)
        txn = upstream.begin()
        gone = txn.insert("shop.orders", {"id": 1, "total": "1.50"})
        txn.insert("shop.orders", {"id": 2, "total": "2.50"})
        txn.commit()
        for change in (lambda txn: txn.update("shop.orders", gone, {"total": "9.99"}), lambda txn: txn.delete("shop.orders", gone)):
            txn = upstream.begin()
            change(txn)
            txn.commit()
        upstream.flush()
        yield pd.members[0].address
        tidb.stop()
        upstream.close()
        for pump in pumps:
            pump.stop()


def programs(page: str) -> list[str]:
    """The Python programs of a page: what is indented, from its import of PySpark on."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", (ROOT / page).read_text(), re.M)
    found = [textwrap.dedent(block).partition("from pyspark.sql import SparkSession\n") for block in blocks]
    return [begin + rest for _, begin, rest in found if begin]


def test_what_the_page_says_works_on_a_cluster_that_pd_names(spark: SparkSession, pd: str) -> None:
    (program,) = programs("docs/installed.md")
    text, addresses = re.subn(r"pd://pd:2379", f"pd://{pd}", program)
    assert addresses == 1, program
    names: dict[str, Any] = {}
    exec(compile(text, "the page", "exec"), names)
    since = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=10)).isoformat()
    reader = spark.read.format("tidb_binlog").options(pumps=f"pd://{pd}", startingTimestamp=since)
    changes: DataFrame = reader.load()
    assert names["stream"].isStreaming and names["stream"].schema == changes.schema
    assert [(row["op"], row["table"]) for row in rows_of_changes(changes)] == [
        ("ddl", None),
        ("ddl", "orders"),
        *((op, "orders") for op in ("insert", "insert", "update", "delete")),
    ]
    kinds = [row["_change_type"] for row in reader.option("table", "shop.orders").load().collect()]
    assert kinds == ["insert", "insert", "update_preimage", "update_postimage", "delete"]
