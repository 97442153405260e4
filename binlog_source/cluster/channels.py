"""gRPC channels to the nodes of a cluster: grpcio's own, or with TLS a ``TlsChannel``.

Promises: connections are direct, whatever proxies the environment names (as in ``schemas.http_client``). The TLS code is imported only
where TLS is used, because every worker process of Spark would pay for the import.
"""

from collections.abc import Sequence
from typing import Any

import grpc

from pyspark_tidb_binlog.schemas.tls import TlsSettings

_DIRECT = ("grpc.enable_http_proxy", 0)
_CONNECT_SECONDS = 20.0
"""gRPC's own default."""
_TLS_CONNECT_SECONDS = 1.0
"""A connection over TLS has at least this time: it takes three times as many round trips as one without."""


def open_channel(
    address: str, tls: TlsSettings | None, options: Sequence[tuple[str, Any]] = (), connect_seconds: float = _CONNECT_SECONDS
) -> grpc.Channel:
    """A channel to ``host:port`` or ``unix:///path``, which has no TLS.

    ``options``: grpcio's, for a channel without TLS; ``connect_seconds``: what opening a connection with TLS may take.
    """
    if tls is None or address.startswith("unix:"):
        return grpc.insecure_channel(address, options=(*options, _DIRECT))
    from pyspark_tidb_binlog.binlog_source.cluster.secure_channel import TlsChannel
    from pyspark_tidb_binlog.binlog_source.rpc.h2_client import H2Client

    return TlsChannel(H2Client(address, tls, max(connect_seconds, _TLS_CONNECT_SECONDS)))
