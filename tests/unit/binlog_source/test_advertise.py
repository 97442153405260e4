"""What may be registered: only what others can reach."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster import registration
from pyspark_tidb_binlog.binlog_source.cluster.registration import advertised
from pyspark_tidb_binlog.binlog_source.pump import server
from pyspark_tidb_binlog.binlog_source.pump.server import EmbeddedPump
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError
from tests.support.drainer_nodes import node_at
from tests.support.fakes.registry import FakeRegistry

HERE, ELSEWHERE = "http://127.0.0.1:2379", "http://192.0.2.7:2379"


@pytest.fixture(autouse=True)
def route(monkeypatch):
    monkeypatch.setattr(registration, "_on_the_way_to", lambda host, port: {"192.0.2.7": "192.0.2.1", "127.0.0.1": "127.0.0.1"}[host])


@pytest.mark.shows("advertise-addr", "pump advertise-addr")
@pytest.mark.parametrize(
    ("addr", "advertise_addr", "registry", "want"),
    [
        ("127.0.0.1:0", "", HERE, "127.0.0.1:8250"),
        ("localhost:8250", "", "http://localhost:2379", "localhost:8250"),
        ("192.0.2.1:8250", "", ELSEWHERE, "192.0.2.1:8250"),
        ("0.0.0.0:8250", "192.0.2.1:9999", ELSEWHERE, "192.0.2.1:9999"),
        ("0.0.0.0:8250", "pump-1.no.such.name.invalid:8250", ELSEWHERE, "pump-1.no.such.name.invalid:8250"),
        ("[::]:8250", "[2001:db8::1]:8250", ELSEWHERE, "[2001:db8::1]:8250"),
        ("127.0.0.1:8250", "", f"{HERE},http://localhost:2380", "127.0.0.1:8250"),
    ],
)
def test_what_others_can_reach(addr, advertise_addr, registry, want):
    assert advertised(addr, advertise_addr, 8250, registry) == want


@pytest.mark.shows("advertise-addr", "pump advertise-addr")
@pytest.mark.parametrize(
    ("addr", "advertise_addr", "registry"),
    [
        ("127.0.0.1:8250", "", ELSEWHERE),
        ("localhost:8250", "", ELSEWHERE),
        ("127.0.0.5:8250", "", ELSEWHERE),
        ("[::1]:8250", "", ELSEWHERE),
        ("0.0.0.0:8250", "localhost:8250", ELSEWHERE),
        ("0.0.0.0:8250", "", ELSEWHERE),
        ("[::]:8250", "", ELSEWHERE),
        (":8250", "", ELSEWHERE),
        ("192.0.2.1:8250", "192.0.2.1:0", ELSEWHERE),
        ("192.0.2.1:8250", "192.0.2.1", ELSEWHERE),
        ("127.0.0.1:8250", "", f"{ELSEWHERE},{HERE}"),
    ],
)
def test_what_they_cannot(addr, advertise_addr, registry):
    with pytest.raises(ConfigError, match=r"cannot be registered.*--advertise-addr 192\.0\.2\.1:8250"):
        advertised(addr, advertise_addr, 8250, registry)


@pytest.mark.parametrize("addr", ["0.0.0.0:8250", ":8250"])
def test_an_address_for_listening_is_none_even_here(addr):
    with pytest.raises(ConfigError, match=r"to listen on.*--advertise-addr 127\.0\.0\.1:8250"):
        advertised(addr, "", 8250, HERE)


class Elsewhere(FakeRegistry):
    """A registry on another machine."""

    url = ELSEWHERE


def test_a_drainer_and_a_pump_refuse_alike(tmp_path, monkeypatch):
    drainer, pump = Elsewhere(), Elsewhere()
    monkeypatch.setattr(server, "_registry_of", lambda config, tls: pump)
    with pytest.raises(ConfigError, match="the registry http://192.0.2.7:2379 is elsewhere"):
        node_at(drainer, lambda: 0, "d1").start()
    with pytest.raises(ConfigError, match="the registry http://192.0.2.7:2379 is elsewhere"):
        EmbeddedPump(PumpConfig(node_id="p1", addr="127.0.0.1:0", data_dir=str(tmp_path), cluster_id=7)).start()
    assert not drainer.listing("drainers").nodes and not pump.listing("pumps").nodes
