"""A real PD, TiDB and Pump (``PD_URLS``, ``TIDB_STATUS``): what they answer is what the product reads. ``make interop``.

Nothing is written upstream, unless ``TIDB_SQL`` (``user:password@host:4000``) names an account that may: then a database
``tidb_binlog_interop`` is made there and dropped again. A Drainer ``interop`` is registered for the time of a test, and is offline afterwards.
"""

import json
import os
import time
from pathlib import Path

import pymysql
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import tidb_status_ports
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.http_client import fetch
from tests.support.drainer_process import Drainer, command_of, environ_of
from tests.support.eventually import eventually

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

DATABASE = "tidb_binlog_interop"
SECONDS = 10
"""How long a stream without writes of ours follows the cluster."""


def page(url: str) -> bytes:
    answer = fetch(url, 10.0)
    assert answer.ok, (url, answer.status, answer.body[:200])
    return answer.body


def test_pd_says_what_a_drainer_asks(pd: PdRegistry) -> None:
    assert pd.cluster_id() > 0
    stamps = [pd.tso() for _ in range(3)]
    assert stamps == sorted(set(stamps)) and abs(physical_ms(stamps[0]) / 1000 - time.time()) < 3600
    assert tidb_status_ports(pd) != ()
    assert pd.gc_safe_point() < stamps[0]


def test_pumps_answer_as_ours_do(pd: PdRegistry) -> None:
    pumps = [node for node in pd.listing(PUMPS).nodes if node.state is NodeState.ONLINE]
    assert pumps != []
    for pump in pumps:
        status = json.loads(page(f"http://{pump.host}/status"))
        assert {"status", "CommitTS", "Checkpoint", "ErrMsg"} <= status.keys() and pump.node_id in status["status"]
        assert b"binlog_pump_storage_gc_ts" in page(f"http://{pump.host}/metrics")
        json.loads(page(f"http://{pump.host}/drainers"))


def test_the_history_is_the_schema(tidb_status: str) -> None:
    history = HistoryFeed(tidb_status, None, None).snapshot()
    assert len(history) > 0
    version = history.newest_version
    known = {track for track in history.tracks if history.table_at(track, version) is not None}
    for name in (database["db_name"]["O"] for database in json.loads(page(f"{tidb_status}/schema"))):
        if name.lower() in ("mysql", "information_schema", "performance_schema", "metrics_schema", "sys"):
            continue
        shown = json.loads(page(f"{tidb_status}/schema/{name}")) or []
        wanted = {table["id"]: table["name"]["L"] for table in shown if table["id"] in history.tracks}
        assert {i: history.table_at(i, version).name.lower() for i in wanted if i in known} == wanted, name  # type: ignore[union-attr]


def test_a_stream_follows_the_cluster(pd: PdRegistry, tidb_status: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """With ``TIDB_SQL``, rows and DDLs of ours come out equal; without it, the stream reaches a timestamp of the near future."""
    account = os.environ.get("TIDB_SQL", "")
    to = fresh_mariadb.target()
    begin = pd.tso()
    flags = {
        "addr": "127.0.0.1:0",
        "node-id": "interop",
        "data-dir": tmp_path / "data",
        "pd-urls": os.environ["PD_URLS"],
        "spark.tidb-status": tidb_status,
        "initial-commit-ts": begin,
        "syncer.replicate-do-db": DATABASE,
        "syncer.to.host": "127.0.0.1",
        "syncer.to.port": to.port,
        "syncer.to.user": to.user,
    }
    wanted = written(account) if account else []
    flags["spark.ending-commit-ts"] = pd.tso() if account else begin + (SECONDS * 1000 << 18)
    try:
        with Drainer(command_of(flags), environ_of(fresh_mariadb, tmp_path / "job.log"), tmp_path / "out.txt") as drainer:
            assert drainer.wait() == 0, drainer.output()
        with fresh_mariadb.connect() as connection, connection.cursor() as cursor:
            if account:
                cursor.execute(f"SELECT * FROM {DATABASE}.t ORDER BY id")
                assert list(cursor.fetchall()) == wanted
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
            assert json.loads(cursor.fetchall()[0][0])["commitTS"] >= flags["spark.ending-commit-ts"]
    finally:
        if account:
            with connected(account) as upstream, upstream.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        assert ctl.main(["update-drainer", "-pd-urls", os.environ["PD_URLS"], "-node-id", "interop", "-state", "offline"]) == 0
    eventually(lambda: {n.node_id: n.state for n in pd.listing(DRAINERS).nodes}["interop"] is NodeState.OFFLINE)


def connected(account: str) -> "pymysql.connections.Connection[pymysql.cursors.Cursor]":
    user, _, rest = account.partition(":")
    password, _, server = rest.rpartition("@")
    host, _, port = server.rpartition(":")
    return pymysql.connect(host=host, port=int(port), user=user, password=password, charset="utf8mb4", autocommit=True)


def written(account: str) -> list[tuple[object, ...]]:
    """What is in the table after some DDLs and transactions upstream."""
    with connected(account) as upstream, upstream.cursor() as cursor:
        for sql in (
            f"DROP DATABASE IF EXISTS {DATABASE}",
            f"CREATE DATABASE {DATABASE}",
            f"CREATE TABLE {DATABASE}.t (id BIGINT PRIMARY KEY, name VARCHAR(40), at TIMESTAMP(3), f FLOAT, j JSON)",
            f"INSERT INTO {DATABASE}.t VALUES (1, 'a', '2020-01-01 00:00:00.125', 0.1, '[1]'), (2, '日本', NULL, NULL, NULL)",
            f"ALTER TABLE {DATABASE}.t ADD COLUMN extra INT NOT NULL DEFAULT 7",
            f"UPDATE {DATABASE}.t SET id = 3, name = 'moved' WHERE id = 1",
            f"DELETE FROM {DATABASE}.t WHERE id = 2",
            f"INSERT INTO {DATABASE}.t (id, name) VALUES (4, 'b ')",
            f"ALTER TABLE {DATABASE}.t DROP COLUMN at, DROP COLUMN j",
        ):
            cursor.execute(sql)
        cursor.execute(f"SELECT * FROM {DATABASE}.t ORDER BY id")
        return list(cursor.fetchall())
