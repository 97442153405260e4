"""Opens the registry of a URL: the standalone one (``http://``, ``https://``) or PD (``pd://``). Only PD also knows the TiDB servers."""

from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.binlog_source.cluster.registry import Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import TlsSettings

PD_SCHEME = "pd://"


def open_registry(url: str, tls: TlsSettings | None = None) -> Registry:
    """The registry at ``http://host:port`` (standalone) or ``pd://host:port,host:port`` (PD); no request is sent yet.

    ``tls``: the cluster's; PD is then spoken to with it, the standalone registry where its URL is ``https://``.

    Raises:
        ConfigError: the URL has another form.
    """
    if url.startswith(PD_SCHEME):
        scheme, addresses = "https" if tls else "http", url.removeprefix(PD_SCHEME).split(",")
        return PdRegistry(",".join(f"{scheme}://{address.strip()}" for address in addresses if address.strip()), tls)
    if url.startswith(("http://", "https://")):
        return RegistryClient(url, tls)
    raise ConfigError(f"registry {url!r} is not of the form http://host:port (standalone) or pd://host:port,host:port (PD)")


def tidb_status_ports(registry: Registry) -> tuple[str, ...]:
    """``host:port`` of the status port of each TiDB server that ``registry`` knows; none if it is the standalone one.

    Raises:
        PumpUnavailable: PD does not answer.
    """
    return registry.tidb_status_ports() if isinstance(registry, PdRegistry) else ()
