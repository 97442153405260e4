"""gRPC channels to the nodes of a cluster, with TLS through a ``TlsTunnel``, and why their calls failed.

Promises: connections are direct, whatever proxies the environment names (as in ``schemas.http_client``). A process
forks before its first channel, as for Spark's workers: after that, grpcio's calls hang in a fork without ``GRPC_ENABLE_FORK_SUPPORT=1``.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import grpc

from pyspark_tidb_binlog.binlog_source.rpc.tls_tunnel import TlsTunnel, explained
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

    ``options``: grpcio's; ``connect_seconds``: what opening a connection with TLS may take.
    """
    if tls is None or address.startswith("unix:"):
        return grpc.insecure_channel(address, options=(*options, _DIRECT))
    seconds = max(connect_seconds, _TLS_CONNECT_SECONDS)
    tunnel = TlsTunnel(address, tls, seconds)
    of_tls = (
        ("grpc.default_authority", address),
        ("grpc.http2_scheme", "https"),
        # grpcio gives an attempt up after this time, and must not do so before the tunnel says why
        ("grpc.min_reconnect_backoff_ms", int(seconds * 2000)),
    )
    channel = grpc.insecure_channel(tunnel.target, options=(*of_tls, *options))  # the first of a name counts
    weakref.finalize(channel, tunnel.close)
    return channel


def details(error: grpc.Call) -> str:
    """The text of a failed call."""
    return explained(error.details() or "")


def reason(error: grpc.RpcError) -> str:
    """The code and text of a failed call."""
    return f"{error.code().name}: {details(error)}" if isinstance(error, grpc.Call) else str(error)
