"""Finds out where to read the upstream's DDL history."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from pyspark_tidb_binlog.binlog_source.cluster.registries import PD_SCHEME, open_registry, tidb_status_ports
from pyspark_tidb_binlog.binlog_source.cluster.tidb_servers import TidbServers
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import TlsSettings


def history_at(
    source: SourceConfig, tls: TlsSettings | None, closing: contextlib.ExitStack, setting: str = "spark.tidb-status"
) -> str | Callable[[], Sequence[str]]:
    """The place of the history for ``HistoryFeed``: ``tidb_status``, else the standalone registry, else the TiDB servers that PD knows.

    Args:
        source: the Pumps and their registry, and ``tidb_status``: status ports, the path of a recorded history, or empty = ask the registry.
        tls: the cluster's; None: without TLS.
        closing: closes the connections that this function opens.
        setting: the setting that an error tells the user to set.

    Raises:
        ConfigError: neither ``tidb_status`` nor a registry is set.
    """
    if source.tidb_status:
        return source.tidb_status
    if "://" not in source.pumps:
        raise ConfigError(f"{setting} is not set: name TiDB's status port (http://host:10080) or a recorded history file")
    if not source.pumps.startswith(PD_SCHEME):
        return source.pumps
    registry = open_registry(source.pumps, tls)
    closing.callback(registry.close)
    return TidbServers(partial(tidb_status_ports, registry), scheme="https" if tls else "http").urls
