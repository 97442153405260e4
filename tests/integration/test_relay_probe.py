"""When recovery without the upstream begins: whether any part of the upstream answers, and what the target's checkpoint says."""

import socket
import threading
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, RelayConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.stream import recovery
from pyspark_tidb_binlog.jobs.stream.recovery import recover_without_upstream, upstream_away
from pyspark_tidb_binlog.jobs.stream.targets import sink_of
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.relay.relayed_sink import RelayedSink


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def config_of(pumps: str, status: str = "", target: TargetConfig | None = None, log_dir: str = "") -> DrainerConfig:
    return DrainerConfig(
        source=SourceConfig(pumps=pumps, cluster_id=7, tidb_status=status),
        target=target or TargetConfig(),
        apply=ApplyConfig(lease_timeout=5.0),
        relay=RelayConfig(log_dir),
    )


def test_a_registry_that_answers_is_an_upstream(tmp_path: Path) -> None:
    service = ClusterService(Oracle(tmp_path / "oracle"), 7, data_dir=tmp_path).start()
    try:
        assert upstream_away(config_of(service.url)) == ""
    finally:
        service.stop()
    assert "the upstream cannot be reached" in upstream_away(config_of(service.url))


def test_pd_that_does_not_answer() -> None:
    assert "cannot be reached" in upstream_away(config_of(f"pd://127.0.0.1:{closed_port()}"))


@pytest.mark.parametrize("where", ["pumps", "status"])
def test_one_port_that_answers_is_an_upstream(where: str) -> None:
    dead = closed_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        alive = server.getsockname()[1]
        pumps = f"127.0.0.1:{dead},127.0.0.1:{alive if where == 'pumps' else dead}"
        status = f"http://127.0.0.1:{dead},http://127.0.0.1:{alive if where == 'status' else dead}"
        assert upstream_away(config_of(pumps, status)) == ""
    assert "none of the Pumps" in upstream_away(config_of(pumps, status))


@pytest.mark.parametrize(("status", "asked"), [("http://lb", "http://lb:80"), ("http://x:1, https://lb", "https://lb:443")])
def test_a_status_port_has_the_port_of_its_scheme(status: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_answers", lambda url: url == asked)
    assert upstream_away(config_of("10.0.0.1:8250", status)) == ""
    with pytest.raises(ConfigError, match="'ftp://lb' is not of the form"):
        upstream_away(config_of("10.0.0.1:8250", "ftp://lb"))


@pytest.mark.mysql
@pytest.mark.parametrize(
    ("row", "there", "recovers"),
    [
        ('{"consistent":false,"commitTS":5}', True, True),
        ('{"consistent":true,"commitTS":5}', True, False),
        ('{"consistent":false,"commitTS":5}', False, False),
        (None, True, False),
    ],
)
def test_only_a_checkpoint_that_is_not_consistent_is_recovered(
    mariadb: PrivateMariaDB, tmp_path: Path, row: str | None, there: bool, recovers: bool
) -> None:
    log_dir = tmp_path / "relay"
    if there:
        log = BinlogWriter(log_dir)
        log.append([slave.Binlog(type=slave.DML, commit_ts=5).SerializeToString()])
        log.close()
    config = config_of(f"127.0.0.1:{closed_port()}", "recorded.json", target=mariadb.target(), log_dir=str(log_dir))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        if row is not None:
            cursor.execute("CREATE DATABASE tidb_binlog")
            cursor.execute("CREATE TABLE tidb_binlog.checkpoint(clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)")
            cursor.execute("INSERT INTO tidb_binlog.checkpoint VALUES (7, %s)", [row])
            connection.commit()
        try:
            if recovers:
                with pytest.raises(
                    PumpUnavailable, match="cannot be reached.*was replayed.*consistent at 5 .*Start again when the upstream is back"
                ):
                    recover_without_upstream(config, threading.Event())
                cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
                assert cursor.fetchall() == (('{"consistent":true,"commitTS":5,"ts-map":{},"schema-version":0}',),)
            else:
                recover_without_upstream(config, threading.Event())
        finally:
            cursor.execute("DROP DATABASE IF EXISTS tidb_binlog")


def test_without_a_directory_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "upstream_away", lambda config: pytest.fail("the upstream was asked"))
    recover_without_upstream(config_of("127.0.0.1:1"), threading.Event())


def test_the_sink_is_relayed_only_with_a_directory(tmp_path: Path) -> None:
    from dataclasses import replace

    from pyspark_tidb_binlog.conf.model import TableRoute

    plain = config_of("127.0.0.1:1")
    assert type(sink_of(plain, 7, lambda seconds: None)) is MySQLSink
    relayed = config_of("127.0.0.1:1", log_dir=str(tmp_path))
    assert type(sink_of(relayed, 7, lambda seconds: None)) is RelayedSink
    hiding = replace(relayed, apply=replace(relayed.apply, routes=(TableRoute(db_name="d", tbl_name="t", where="id > 1"),)))
    with pytest.raises(ConfigError, match=r"syncer\.relay\.log-dir.*where of spark\.route"):
        sink_of(hiding, 7, lambda seconds: None)
