"""Each registry under test on a server of its own, and clients of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registries import open_registry
from pyspark_tidb_binlog.binlog_source.cluster.registry import Registry
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


@pytest.fixture(params=["standalone", "pd"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "pd":
        yield request.getfixturevalue("pd_site")
        return
    standalone = StandaloneSite(tmp_path)
    standalone.up()
    yield standalone
    standalone.down()


@pytest.fixture
def open_client(site: Site) -> Iterator[Callable[[], Registry]]:
    """Makes clients of the site, closed with the test."""
    clients: list[Registry] = []

    def make() -> Registry:
        clients.append(open_registry(site.url))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def registry(open_client: Callable[[], Registry]) -> Registry:
    """A client of the site."""
    return open_client()
