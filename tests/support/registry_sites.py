"""Where the registries under test run: the standalone service, and PD (a real etcd with a stand-in for the rest of PD before it)."""

from pathlib import Path
from typing import Protocol

import grpc

from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.fakes.etcd import EtcdProcess
from tests.support.fakes.pd import FakePd

CLUSTER = 7710381286325113206


class Site(Protocol):
    """A registry's server."""

    tls: TlsSettings | None
    """How it is spoken to, and how it speaks to others."""

    @property
    def url(self) -> str:
        """What ``open_registry`` takes."""

    def up(self) -> None:
        """Start it, on the address and with the data that it had before."""

    def down(self) -> None:
        """End it."""


class StandaloneSite:
    def __init__(self, directory: Path, tls: TlsSettings | None = None) -> None:
        self.tls = tls
        self._directory = directory
        self._address = "127.0.0.1:0"

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self._address}"

    def up(self) -> None:
        oracle = Oracle(self._directory / "oracle")
        self._service = ClusterService(oracle, CLUSTER, addr=self._address, data_dir=self._directory, tls=self.tls).start()
        self._address = self._service.address

    def down(self) -> None:
        self._service.stop()


class PdSite:
    """``down`` kills etcd too. Nodes that an earlier test left are deleted at the first ``up``."""

    def __init__(self, etcd: EtcdProcess, members: int = 1, tls: TlsSettings | None = None) -> None:
        self.tls = tls
        self.etcd = etcd
        self.pd = FakePd(etcd.address, CLUSTER, members, credentials(tls))
        etcd.gateway("kv/deleterange", key=b"/", range_end=b"0")

    @property
    def url(self) -> str:
        return "pd://" + ",".join(url.partition("://")[2] for url in self.pd.urls.split(","))

    def up(self) -> None:
        self.etcd.start()
        self.pd.start()

    def down(self) -> None:
        self.pd.stop()
        self.etcd.kill()


def credentials(tls: TlsSettings | None) -> grpc.ServerCredentials | None:
    """Those of a server that asks its clients for certificates."""
    if tls is None:
        return None
    ca, cert, key = (Path(path).read_bytes() for path in (tls.ca, tls.cert, tls.key))
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
