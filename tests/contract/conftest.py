"""Each registry under test on a server of its own, and clients of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from tests.support.certificates import Authority
from tests.support.fakes.etcd import EtcdProcess
from tests.support.registry_sites import PdSite, Site, StandaloneSite


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture
def pd_site(etcd: EtcdProcess) -> Iterator[PdSite]:
    site = PdSite(etcd, members=2)
    with site.pd:
        yield site


@pytest.fixture(params=["standalone", "pd", pytest.param("standalone-tls", marks=pytest.mark.slow), "pd-tls"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A server of each kind; ``…-tls`` asks its clients for certificates."""
    kind, _, secure = request.param.partition("-")
    tls = Authority(tmp_path / "ca").settings("node", "node", ("node",)) if secure else None
    if kind == "pd" and tls is None:
        yield request.getfixturevalue("pd_site")
        return
    if kind == "pd":
        made = PdSite(request.getfixturevalue("etcd"), members=2, tls=tls)
        with made.pd:
            yield made
        return
    standalone = StandaloneSite(tmp_path, tls)
    standalone.up()
    yield standalone
    standalone.down()


@pytest.fixture
def open_client(site: Site) -> Iterator[Callable[[], Registry]]:
    """Makes clients of the site, closed with the test."""
    clients: list[Registry] = []

    def make() -> Registry:
        clients.append(open_registry(site.url, site.tls))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def registry(open_client: Callable[[], Registry]) -> Registry:
    """A client of the site."""
    return open_client()
