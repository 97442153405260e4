"""``metrics-addr``: what a Prometheus push gateway receives of a Pump, and that a gateway that is away or refuses hinders nothing."""

from http import HTTPStatus
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.node_tasks import push_regularly, push_url
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.schemas.errors import ConfigError
from tests.support.eventually import eventually
from tests.support.fakes.push_gateway import PushGateway
from tests.support.pump_writes import config_of

pytestmark = pytest.mark.grpc


@pytest.mark.parametrize(
    ("gateway", "instance", "url"),
    [
        ("g:9091", "db1:8250", "http://g:9091/metrics/job/binlog/instance/db1%3A8250"),
        ("https://g/", "a b", "https://g/metrics/job/binlog/instance/a+b"),
        ("g:9091", "a/b", "http://g:9091/metrics/job/binlog/instance@base64/YS9i"),
    ],
)
def test_where_metrics_are_put(gateway: str, instance: str, url: str) -> None:
    """As Prometheus' own library for Go writes it."""
    assert push_url(gateway, instance) == url


@pytest.mark.shows("metrics-addr", "metrics-interval", "pump metrics-addr", "pump metrics-interval", "push gateway")
def test_a_pump_pushes_its_metrics(gateway: PushGateway, tmp_path: Path) -> None:
    pump = PumpServer(config_of(tmp_path, 1, metrics_addr=gateway.address, metrics_interval=1)).start()
    try:
        for _ in range(2):
            request = gateway.received.get(timeout=60)
            assert (request.method, request.path) == ("PUT", "/metrics/job/binlog/instance/pump-1")
            assert b"\nbinlog_pump_storage_gc_ts " in request.body
    finally:
        pump.stop()


@pytest.mark.shows("push gateway")
def test_a_gateway_that_refuses_or_is_away_is_said_and_asked_again(gateway: PushGateway, caplog: pytest.LogCaptureFixture) -> None:
    gateway.status = HTTPStatus.BAD_REQUEST
    task = push_regularly(gateway.address, 0.01, "d1", lambda: b"m 1\n")
    assert task is not None
    try:
        eventually(lambda: "answered 400: no room" in caplog.text)
        gateway.status = HTTPStatus.OK
        told = len(caplog.records)
        for _ in range(gateway.received.qsize() + 5):
            gateway.received.get(timeout=60)
        gateway.server.stop(0)
        eventually(lambda: f"cannot push metrics to {gateway.address}" in caplog.text)
        assert len(caplog.records) > told
    finally:
        task.stop()


def test_without_a_gateway_or_an_interval_nothing_is_pushed() -> None:
    assert push_regularly("", 15, "d1", bytes) is None
    assert push_regularly("g:9091", 0, "d1", bytes) is None
    with pytest.raises(ConfigError, match="metrics-addr: 'ftp://g' is not of the form"):
        push_regularly("ftp://g", 15, "d1", bytes)
