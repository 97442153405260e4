"""A whole cluster over TLS: registry, Pumps, Drainer, source; and PD's etcd, a Go server that asks for certificates."""

import logging
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.endpoints import Endpoints
from pyspark_tidb_binlog.binlog_source.cluster.etcd import Etcd
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.cluster.status_port import StatusPorts, status_ports
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.pump import periodic
from pyspark_tidb_binlog.binlog_source.pump.periodic import notify
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter, WriteFailed, write_binlog
from pyspark_tidb_binlog.binlog_source.source.delivery import resolve_delivery
from pyspark_tidb_binlog.binlog_source.source.gc_bound import gc_ts_of
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, channel, offers_raw, renew
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs import pump as pump_job
from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.http_client import fetch
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.certificates import Authority, table_of
from tests.support.drainer_nodes import PretendedStream
from tests.support.eventually import eventually
from tests.support.pump_writes import CLUSTER, commit, config_of, prewrite
from tests.support.stream_reader import commits_between
from tests.support.tls_server import without_alpn

pytestmark = pytest.mark.grpc


@pytest.fixture
def tls(ca: Authority) -> TlsSettings:
    """One certificate for all nodes, as many clusters have it."""
    return ca.settings("node", "node", ("node",))


@pytest.fixture(params=["with ALPN", "without ALPN"])
def service(tls: TlsSettings, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterService]:
    if request.param == "without ALPN":
        without_alpn(monkeypatch)
    made = ClusterService(Oracle(), CLUSTER, tls=tls).start()
    yield made
    made.stop()


@pytest.fixture
def registry(service: ClusterService, tls: TlsSettings) -> Iterator[RegistryClient]:
    made = RegistryClient(service.url, tls)
    yield made
    made.close()


@pytest.fixture
def drainer(service: ClusterService, tls: TlsSettings) -> Iterator[DrainerNode]:
    made = PretendedStream(lambda: 42).node(RegistryClient(service.url, tls), tls=tls).start()
    yield made
    made.stop()


@pytest.fixture
def pump(service: ClusterService, drainer: DrainerNode, tls: TlsSettings, tmp_path: Path) -> Iterator[PumpServer]:
    """One that had to notify the Drainer."""
    made = PumpServer(config_of(tmp_path, 1, registry=service.url, cluster_id=0, heartbeat_interval=0.1, security=table_of(tls))).start()
    yield made
    made.stop()


def test_a_registry(service: ClusterService, registry: RegistryClient, ca: Authority) -> None:
    assert service.url.startswith("https://") and registry.cluster_id() == CLUSTER
    registry.put_status(PUMPS, NodeStatus("a", "127.0.0.1:1"))
    known = registry.listing(PUMPS)
    assert registry.changes(PUMPS, known.revision, 0.1).nodes == ()
    assert registry.tso() < registry.tso()
    for stranger in (TlsSettings(ca.ca), None):
        with pytest.raises(PumpUnavailable):
            RegistryClient(service.url, stranger).cluster_id()


def test_a_wait_for_changes_ends_when_the_client_closes(registry: RegistryClient) -> None:
    threading.Timer(0.3, registry.close).start()
    with pytest.raises(PumpUnavailable):
        registry.changes(PUMPS, registry.listing(PUMPS).revision, 60)


@pytest.mark.parametrize("kind", [Delivery.SORTED, Delivery.RAW])
def test_a_stream(
    service: ClusterService,
    registry: RegistryClient,
    pump: PumpServer,
    tls: TlsSettings,
    kind: Delivery,
) -> None:
    packed = "gzip" if kind is Delivery.RAW else ""
    config = SourceConfig(service.url, delivery=str(kind), starting_commit_ts=registry.tso(), compressor=packed, security=table_of(tls))
    reader = BinlogStreamReader(options_of(config, StreamOptions()))
    try:
        begin = reader.initialOffset()
        start_ts = registry.tso()
        with_tls = PumpWriter(pump.address, CLUSTER, tls=tls)
        with_tls.write(prewrite(start_ts))
        commit_ts = registry.tso()
        with_tls.start_many([commit(start_ts, commit_ts)]).result()
        with_tls.close()
        # nothing but the waker writes fakes
        end = eventually(lambda: _past(reader, begin, commit_ts), what="the Pump was woken", seen=reader.reportLatestOffset)
        assert commits_between(reader, begin, end) == {commit_ts}
    finally:
        reader.stop()


def _past(reader: BinlogStreamReader, begin: dict[str, object], ts: int) -> dict[str, object] | None:
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    return end if from_json(end).resolved_ts >= ts else None


def test_a_pump(pump: PumpServer, tls: TlsSettings, ca: Authority) -> None:
    endpoint = Endpoint(pump.node_id, pump.address, CLUSTER, tls)
    assert offers_raw(endpoint, 60)
    before = channel(endpoint)
    renew(pump.address)
    assert channel(endpoint) is not before and offers_raw(endpoint, 60)
    renew(pump.address)
    write_binlog(pump.address, CLUSTER, prewrite(5), tls=tls)
    assert gc_ts_of(pump.node_id, pump.address, tls) == 0
    assert fetch(f"https://{pump.address}/status", 60, tls=tls).ok
    for stranger in (TlsSettings(ca.ca), ca.settings("other", "other", ("node",)), None):
        with pytest.raises(WriteFailed):
            write_binlog(pump.address, CLUSTER, prewrite(6), tls=stranger)
        with pytest.raises(PumpUnavailable, match=f"http{'s' if stranger else ''}://{pump.address}/state/pump-1/who"):
            gc_ts_of(pump.node_id, pump.address, stranger)


def test_an_orphan_is_settled_over_tls(
    pump: PumpServer, service: ClusterService, tls: TlsSettings, ca: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    write_binlog(pump.address, CLUSTER, prewrite(5), tls=tls)
    write_binlog(pump.address, CLUSTER, prewrite(7), tls=tls)
    secured = ["-ssl-ca", tls.ca, "-ssl-cert", tls.cert, "-ssl-key", tls.key]
    url = f"https://{pump.address}"
    for flags, where, why in (
        ([], url, "-ssl-ca together, or neither"),
        (secured, f"http://{pump.address}", "-ssl-ca together, or neither"),
    ):
        with pytest.raises(ConfigError, match=why):
            pump_job.main(["settle", *flags, where, "5", "rollback"])
    with pytest.raises(PumpUnavailable, match="does not answer"):
        pump_job.main(["settle", "-ssl-ca", ca.ca, url, "5", "rollback"])
    assert pump_job.main(["settle", *secured, url, "5", "rollback"]) == 0
    assert "5" in capsys.readouterr().out
    assert pump_job.main(["settle", *secured, url, "7", "commit", "9", f"--cluster-id={CLUSTER}"]) == 0
    eventually(lambda: pump.service.store.state.low == pump.service.store.state.at or None, what="no Prewrite waits")


def test_a_drainer_is_notified(
    drainer: DrainerNode, tls: TlsSettings, ca: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = NodeStatus("drainer", drainer.address, NodeState.ONLINE)
    with caplog.at_level(logging.INFO):
        notify([status], tls)
    assert "notified: the Pumps are" in caplog.text
    monkeypatch.setattr(periodic, "OVERALL", 1.0)
    with pytest.raises(PumpUnavailable, match="fail to notify all living drainer: Drainer drainer"):
        notify([status], TlsSettings(ca.ca))


def test_status_ports(service: ClusterService, tls: TlsSettings, ca: Authority) -> None:
    """PD names ports without a scheme; what an operator names says how it is to be spoken to."""
    for addresses in ((service.address,), status_ports(service.url), ("127.0.0.1:1", service.address)):
        assert StatusPorts(addresses, tls).look_up(b"k")["key"] == "6B"
    for addresses, settings in (((service.address,), None), ((f"http://{service.address}",), tls), ((service.url,), TlsSettings(ca.ca))):
        with pytest.raises(PumpUnavailable):
            StatusPorts(addresses, settings).look_up(b"k")
    assert status_ports("http://a, https://b:1,http://[::1]:2") == ("http://a:80", "https://b:1", "http://[::1]:2")
    with pytest.raises(ConfigError, match="https://host:port"):
        status_ports("a:1")


# PD's etcd.


@pytest.fixture
def etcd(ca: Authority, tls: TlsSettings, tmp_path: Path) -> Iterator[str]:
    binary = shutil.which("etcd")
    assert binary is not None, "etcd is not installed: run `make setup`, or install Debian's package etcd-server"
    client, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
    flags = {
        "name": "one",
        "data-dir": tmp_path / "data",
        "listen-client-urls": f"https://{client}",
        "advertise-client-urls": f"https://{client}",
        "listen-peer-urls": f"http://{peer}",
        "initial-advertise-peer-urls": f"http://{peer}",
        "initial-cluster": f"one=http://{peer}",
        "cert-file": tls.cert,
        "key-file": tls.key,
        "trusted-ca-file": tls.ca,
        "heartbeat-interval": 10,
        "election-timeout": 50,
        "log-level": "error",
    }
    command = [binary, "--client-cert-auth", *(f"--{name}={value}" for name, value in flags.items())]
    with (tmp_path / "etcd.log").open("wb") as log, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
        yield client
        process.kill()


def test_etcd_with_client_certificates(etcd: str, ca: Authority, tls: TlsSettings) -> None:
    endpoints = Endpoints("PD", f"https://127.0.0.1:1,https://{etcd}", tls)
    store = Etcd(endpoints)

    def ready() -> bool:
        try:
            store.put(b"/a/1", b"x" * 100_000)
        except PumpUnavailable:
            return False
        return True

    eventually(ready, what="etcd answers")
    found = store.below(b"/a/")
    assert [(pair.key, len(pair.value)) for pair in found.pairs] == [(b"/a/1", 100_000)]
    store.put(b"/a/2", b"y")
    store.wait_for_put(b"/a/", found.revision + 1, 30)
    assert [pair.key for pair in store.below(b"/a/", found.revision).pairs] == [b"/a/2"]
    endpoints.close()
    for stranger in (TlsSettings(ca.ca), TlsSettings(ca.ca, tls.cert, tls.key, ("other",))):
        refused = Endpoints("PD", f"https://{etcd}", stranger)
        with pytest.raises(PumpUnavailable, match="PD https://"):
            Etcd(refused).below(b"/a/")
        refused.close()


def test_https_needs_a_ca() -> None:
    with pytest.raises(ConfigError, match="security.ssl-ca"):
        Endpoints("PD", "https://127.0.0.1:1", tls=None)


@pytest.mark.parametrize("allowed", [(), ("other",)])
def test_a_certificate_that_is_refused_is_not_waited_for(
    service: ClusterService, pump: PumpServer, tls: TlsSettings, tmp_path: Path, allowed: tuple[str, ...]
) -> None:
    """A start does not try for ``upstream-timeout`` what cannot change."""
    ours = replace(tls, allowed_cn=allowed) if allowed else Authority(tmp_path / "other").settings("node", "node")
    said: list[str] = []
    why = (
        r"[: (]the certificate's Common Names are 'node'.* allows none of them"
        if allowed
        else "refused: self-signed|CERTIFICATE_VERIFY_FAILED"
    )
    for pumps in (pump.address, service.url):
        with pytest.raises(PumpUnavailable, match=why):
            resolve_delivery(SourceConfig(pumps, CLUSTER, security=table_of(ours)), 300.0, said.append)
    assert said == []
