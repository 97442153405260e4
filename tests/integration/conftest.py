"""Fixtures of the tests with real servers: a cluster's services, its Pumps, a session for DDLs. A module with other needs has its own of the name."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.certificates import Authority
from tests.support.ddl_target import ddl_session
from tests.support.fakes.push_gateway import PushGateway
from tests.support.pump_writes import CLUSTER, config_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.change_scene import ChangeScene


@pytest.fixture
def service() -> Iterator[ClusterService]:
    """Registry and timestamps of the cluster ``CLUSTER``."""
    made = ClusterService(Oracle(), CLUSTER).start()
    yield made
    made.stop()


@pytest.fixture
def registry(service: ClusterService) -> Iterator[RegistryClient]:
    made = RegistryClient(service.url)
    yield made
    made.close()


@pytest.fixture
def no_history_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The DDL history has every job that it will have: rows of a version beyond it wait for nothing."""
    monkeypatch.setattr(HistoryFeed, "lag", 0.0)


@pytest.fixture
def pumps(tmp_path: Path) -> Iterator[list[PumpServer]]:
    """Two Pumps of ``CLUSTER`` without a registry."""
    made = [PumpServer(config_of(tmp_path, number)).start() for number in (1, 2)]
    yield made
    for pump in made:
        pump.stop()


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    """Where DDLs of the database ``d`` can be applied; nothing of them is left behind."""
    with ddl_session(mariadb.target()) as session:
        yield session


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def gateway() -> Iterator[PushGateway]:
    made = PushGateway()
    yield made
    made.server.stop(0)


@pytest.fixture
def scene(spark: "SparkSession", pumps: list[PumpServer], tmp_path: Path) -> "Iterator[ChangeScene]":
    # Not at module level: tests without Spark must not pay for pyspark.
    from tests.support.change_scene import ChangeScene

    with ChangeScene(spark, pumps, tmp_path / "checkpoints") as made:
        yield made
