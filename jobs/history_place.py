"""Where a Drainer reads the DDL history of its upstream."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from pyspark_tidb_binlog.binlog_source.cluster.registries import PD_SCHEME, open_registry, tidb_status_ports
from pyspark_tidb_binlog.binlog_source.cluster.tidb_servers import TidbServers
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import TlsSettings


def history_at(config: DrainerConfig, tls: TlsSettings | None, closing: contextlib.ExitStack) -> str | Callable[[], Sequence[str]]:
    """As the settings say, else the status ports of the TiDB servers that PD knows; for ``HistoryFeed``.

    Args:
        config: the settings.
        tls: the cluster's; None: without TLS.
        closing: closes what is opened for it.

    Raises:
        ConfigError: neither says where.
    """
    if config.ddl_history:
        return config.ddl_history
    if not config.source.pumps.startswith(PD_SCHEME):
        raise ConfigError("spark.tidb-status is not set: name TiDB's status port (http://host:10080) or a recorded history file")
    registry = open_registry(config.source.pumps, tls)
    closing.callback(registry.close)
    return TidbServers(partial(tidb_status_ports, registry), scheme="https" if tls else "http").urls
