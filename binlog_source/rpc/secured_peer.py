"""A connection that begins with TLS. Everything here runs on the loop's thread.

Promises: it counts as a connection from its first moment, so the server's limits also hold for TLS's handshake. The handshake takes at most
``IDLE_SECONDS``. A client's bytes are looked at only after the client is verified as the settings ask. The certificate shown is the
one in its file when the connection is made. A client that offers HTTP/1 in ALPN gets HTTP/1: curl and Prometheus offer both and want a
page, which has no HTTP/2 here. gRPC's clients offer only HTTP/2.
"""

import asyncio
import logging

from pyspark_tidb_binlog.binlog_source.rpc.peer import IDLE_SECONDS, LINGER, Peer, PeerServer
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import H2, HTTP1, TlsSettings

_log = logging.getLogger(__name__)


class SecuredPeer(Peer):
    """One connection over TLS."""

    def __init__(self, server: PeerServer, tls: TlsSettings) -> None:
        super().__init__(server)
        self._tls = tls
        self._bare: asyncio.Transport | None = None
        """The connection below TLS, during the handshake."""
        self._gone = False
        self._early: list[bytes] = []
        """What came with the end of the handshake."""
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection was made; TLS begins."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._bare = transport
        self._join(transport)
        if not transport.is_closing():
            self._handshake = asyncio.get_running_loop().create_task(self._secure(transport))

    async def _secure(self, bare: asyncio.Transport) -> None:
        transport: asyncio.Transport | None = None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                bare,
                self,
                self._tls.server(HTTP1, H2),
                server_side=True,
                ssl_handshake_timeout=IDLE_SECONDS,
                ssl_shutdown_timeout=LINGER,
            )
        except ConnectionResetError:
            _log.debug("client %s has gone before TLS began", self.address)
        except (OSError, ConfigError) as error:
            _log.warning("refusing the TLS connection of client %s: %s", self.address, str(error) or type(error).__name__)
        closed, self._bare = self._gone or self._bare is None, None
        if transport is None or closed:
            (transport or bare).abort()
            self.connection_lost(None)
            return
        self._use(transport)
        early, self._early = b"".join(self._early), []
        if early:
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection was lost, perhaps before ``_secure`` went on after the handshake."""
        self._gone = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were received."""
        if self._transport is None:
            self._early.append(data)
        else:
            super().data_received(data)

    def close(self) -> None:
        """Close the connection; one that is not secured yet at once."""
        if self._bare is not None:
            self._bare.abort()
            self._bare = None
        super().close()
