"""A gRPC client over TLS for one server. It also connects to a server that selects no protocol in ALPN, as a real Pump (wire.md 7).
grpcio refuses such a server.

    client = H2Client("host:8250", tls)
    call = client.start(b"/binlog.Pump/PullBinlogs")     # ClientCall

All clients of a process share one thread, an asyncio loop. A client has one connection, opened by the first call. After a loss the next
call opens another. ``connect_seconds`` bounds that, from the name's resolution to the end of TLS's handshake.

Promises: thread-safe; no method waits. The server is verified before anything is sent: by its CA, its name and ``cert-allowed-cn``. A
replaced certificate is used from the next connection on. A forked process has its own clients, not its parent's.
"""

import asyncio
import os
import ssl
import threading
from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.rpc.client_call import ClientCall, Fields
from pyspark_tidb_binlog.binlog_source.rpc.client_connection import ClientConnection
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import H2, TlsSettings

CONNECT_SECONDS = 20.0
_AGAIN_SECONDS = 0.2
"""Pause before a connection is tried again for calls that wait for their server."""


class _Loop:
    """The thread that serves every client of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="TLS clients", daemon=True).start()
            return self._loop


_LOOP = _Loop()


class H2Client:
    """Calls to one server."""

    def __init__(self, address: str, tls: TlsSettings, connect_seconds: float = CONNECT_SECONDS) -> None:
        """``address``: ``host:port``; nothing is opened yet."""
        host, _, port = address.rpartition(":")
        self._address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._loop = _LOOP.running()
        self._connection: ClientConnection | None = None
        self._served: dict[ClientCall, ClientConnection] = {}
        self._waiting: dict[ClientCall, None] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._retired = False
        self.closed = False

    def start(
        self, path: str, metadata: Fields = (), *, timeout: float | None = None, waits: bool = False, compress: bool = False
    ) -> ClientCall:
        """Begin a call, which fails as ``DEADLINE_EXCEEDED`` after ``timeout`` seconds; for the others see ``ClientCall``."""
        call = ClientCall(self, path.encode(), metadata, waits=waits, compress=compress)
        self._soon(self._begin, call, timeout)
        return call

    def retire(self) -> None:
        """Close once the calls under way have ended."""
        self._soon(self._retire)

    def close(self) -> None:
        """Close; the calls under way end as cancelled."""
        self.closed = True
        self._soon(self._close)

    # What calls use, from any thread.

    def push(self, call: ClientCall) -> None:
        """There is more to send."""
        self._soon(self._with, call, ClientConnection.push)

    def open_window(self, call: ClientCall) -> None:
        """Messages were taken after the server had to wait."""
        self._soon(self._with, call, ClientConnection.open_window)

    def give_up(self, call: ClientCall) -> None:
        """The caller wants no more of a call."""
        self._soon(self._drop, call, CANCELLED, "the call was cancelled")

    def _soon(self, act: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(act, *arguments)

    # On the loop's thread.

    def _begin(self, call: ClientCall, timeout: float | None) -> None:
        if self.closed:
            call.end(CANCELLED, "the client is closed")
            return
        if timeout is not None:
            call.deadline = self._loop.time() + timeout
            expiry = self._loop.call_at(call.deadline, self._drop, call, DEADLINE_EXCEEDED, f"no end of the call within {timeout:g} s")
            call.on_end(expiry.cancel)
        if self._connection is not None:
            self._serve(self._connection, call)
            return
        self._waiting[call] = None
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    def _serve(self, connection: ClientConnection, call: ClientCall) -> None:
        self._served[call] = connection
        if call.on_end(lambda: self._forget(call)):
            connection.begin(call)
        else:
            self._forget(call)

    def _forget(self, call: ClientCall) -> None:
        self._served.pop(call, None)

    def _with(self, call: ClientCall, act: Callable[[ClientConnection, ClientCall], None]) -> None:
        connection = self._served.get(call)
        if connection is not None:
            act(connection, call)

    def _drop(self, call: ClientCall, status: int, text: str) -> None:
        self._waiting.pop(call, None)
        connection = self._served.get(call)
        if connection is not None:
            connection.drop(call, status, text)
        else:
            call.end(status, text)

    async def _connect(self) -> None:
        """Open a connection for the calls that wait."""
        try:
            while self._waiting:
                try:
                    connection = await asyncio.wait_for(self._opened(), self._connect_seconds)
                except (OSError, TimeoutError, ValueError, ConfigError) as error:  # ValueError: no name of a host
                    self._refuse(_why(error, self._connect_seconds))
                    await asyncio.sleep(_AGAIN_SECONDS if self._waiting else 0)
                    continue
                waiting, self._waiting = list(self._waiting), {}
                for call in waiting:
                    self._serve(connection, call)
                if self._retired:
                    connection.leave()
        finally:
            self._connecting = None

    async def _opened(self) -> ClientConnection:
        """A connection to a server that is verified.

        Raises:
            OSError: there is none; ``ssl.SSLError`` is one.
        """
        transport, connection = await self._loop.create_connection(
            lambda: ClientConnection(self._address, self._gone),
            self._host,
            self._port,
            ssl=self._tls.client(H2),
            server_hostname=self._host,
            ssl_handshake_timeout=self._connect_seconds,
        )
        try:
            await connection.greet()
        except BaseException:
            transport.abort()
            raise
        self._connection = connection
        return connection

    def _refuse(self, why: str) -> None:
        """Fail the calls that do not wait for their server."""
        for call in [call for call in self._waiting if not call.waits]:
            del self._waiting[call]
            call.end(UNAVAILABLE, f"failed to connect to {self._address}: {why}")

    def _gone(self, connection: ClientConnection) -> None:
        """A connection takes no further calls."""
        if self._connection is connection:
            self._connection = None

    def _retire(self) -> None:
        self._retired = True
        if self._connection is not None:
            self._connection.leave()

    def _close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for call in list(self._waiting):
            self._drop(call, CANCELLED, "the client was closed")
        for connection in {*filter(None, (self._connection,)), *self._served.values()}:
            connection.fail("the client was closed", CANCELLED)


def _why(error: Exception, seconds: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, TimeoutError) and not error.args:
        return f"no connection within {seconds:g} s"
    return str(error) or type(error).__name__
