"""A server of gRPC and HTTP/1 on one port: asyncio in a thread of its own. IO shell around ``http2`` and ``http1``.

    socket bytes -> detect the protocol -> http2.Connection -> Call -> unary handler (on the loop) | stream handler (a thread each)
                                        -> http1 request    -> http handler (in a pool)

Promises:

* A unary handler runs on the loop's thread and must not block. It keeps the ``PendingCall``. ``RpcServer.answer`` answers it later, many at
  once, if its client is still connected.
* A stream handler runs in a thread. Its client's flow control slows it down, and it is notified when its client cancels or disconnects.
* An exception in a handler fails its own call and no other.
* ``hold`` pauses reading from clients of unary calls, so that what is not stored yet stays with them. Nothing is read from a client that does not read.
* The memory of large unfinished requests is bounded (``BoundedMemory``); so are streams and connections, of which further ones are refused.
* ``stop`` returns when no handler is running, or when its timeouts have passed.
* With TLS, every connection of the TCP port uses TLS. A client that offers HTTP/1 in ALPN gets HTTP/1: curl and Prometheus offer both and want
  a page, which has no HTTP/2 here. gRPC's clients offer only HTTP/2. A Unix socket has no TLS.
* A Unix socket at which somebody answers is left alone, and so is any other file. A stale socket may be replaced. A process removes only its
  own file, never the file of a process that has replaced it.
"""

import asyncio
import errno
import functools
import logging
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark_tidb_binlog.binlog_source.rpc.calls import IDLE_SECONDS, LINGER, Connections, Methods, Peer, PendingCall
from pyspark_tidb_binlog.binlog_source.rpc.frames import Refusal
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from pyspark_tidb_binlog.schemas.tls import H2, HTTP1, TlsSettings

_log = logging.getLogger(__name__)

_LISTEN_BACKLOG = 512
_ACCEPT = 8
"""Connections accepted at once: for a moment they may exceed their limit of descriptors by so many."""
LOOK = 1.0
"""Seconds between two checks of the clients' timeouts."""
_POLL = 0.005
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),
)
"""As Go's listeners set it: a client whose machine died is detected within minutes."""


_PASSING = frozenset(
    {
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
    }
)
"""Failures that pass: the port's former owner still has it, this machine has not got the address yet, a resource runs short."""
_NO_NAME = re.compile(r"[0-9.]*|.*:.*")
"""Hosts that no name server is asked for."""
_ANSWER_SECONDS = 1.0
_Inode = tuple[int, int]


class SecuredPeer(Peer):
    """One connection over TLS.

    It counts as a connection from its first moment, so the server's limits also hold for TLS's handshake. The handshake takes at most
    ``IDLE_SECONDS``. A client's bytes are looked at only after the client is verified as the settings ask. The certificate shown is the one in
    its file when the connection is made.
    """

    def __init__(self, server: Connections, tls: TlsSettings) -> None:
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


class RpcServer(Connections):
    """The listening sockets and their loop. ``bind``, ``serve``, then ``stop``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Lock()
        self._servers: list[asyncio.Server] = []
        self._socket_file: SocketFile | None = None
        self.port = 0
        """The TCP port it listens on."""

    def bind(self, addr: str, socket_path: str = "", tls: TlsSettings | None = None) -> "RpcServer":
        """Bind ``host:port`` (port 0: any free one), with TLS if given, and, if given, a Unix socket; connections are refused until ``serve``.

        Raises:
            NotUsableYet: the port or the socket is taken, this machine has not got the address or a name, certificate and key do not fit together.
            ConfigError: it cannot listen there, or the files of ``tls`` cannot be used.
        """
        self._thread.start()
        try:
            if tls is not None:
                tls.check(listens=True)
            asyncio.run_coroutine_threadsafe(self._bind(addr, socket_path, tls), self.loop).result()
        except ConfigError:
            self.stop(0)
            raise
        except (OSError, ValueError, OverflowError) as error:
            self.stop(0)
            what = f"{self._name} cannot listen on {addr}{' or ' + socket_path if socket_path else ''}"
            raise cannot_listen(what, addr.rpartition(":")[0], error) from error
        return self

    def serve(self, methods: Methods) -> "RpcServer":
        """Accept connections, and answer with ``methods``.

        Raises:
            NotUsableYet: another process listens there meanwhile.
        """
        self.methods = methods
        self.memory.capacity = methods.request_memory
        self._pool = ThreadPoolExecutor(methods.http_threads, thread_name_prefix=f"{self._name} http")
        try:
            asyncio.run_coroutine_threadsafe(self._serve(), self.loop).result()
        except OSError as error:
            # another process bound the port too, and was the first to listen; or it has taken the socket
            raise cannot_listen(f"{self._name} cannot listen on port {self.port}", "", error) from error
        return self

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    async def _bind(self, addr: str, socket_path: str, tls: TlsSettings | None) -> None:
        host, port = host_and_port(addr)
        peer = functools.partial(Peer, self) if tls is None else functools.partial(SecuredPeer, self, tls)
        create = functools.partial(self.loop.create_server, peer, backlog=_ACCEPT, start_serving=False)
        server = await create(host, port)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        for listener in server.sockets:
            # connections inherit the options
            for level, option, value in _KEEPALIVE:
                listener.setsockopt(level, option, value)
        if socket_path:
            file = SocketFile(socket_path)
            unix = self.loop.create_unix_server(lambda: Peer(self), socket_path, backlog=_ACCEPT, start_serving=False)
            self._servers.append(await unix)
            file.bound()
            self._socket_file = file

    async def _serve(self) -> None:
        if self._socket_file is not None:
            self._socket_file.check()
        for server in self._servers:
            await server.start_serving()
            for listener in server.sockets:
                # asyncio uses ``backlog`` both for the accept queue and for how many it accepts at once: lengthen the queue only
                with listener.dup() as same:
                    same.listen(_LISTEN_BACKLOG)
        self._look()

    def _look(self) -> None:
        """Schedule the next check, and check the clients' timeouts."""
        self.loop.call_later(LOOK, self._look)  # first: a check that fails must not be the last
        for peer in list(self._peers):
            peer.look(self.loop.time())
        if self._refused:
            _log.warning("%s: refused %d connections: %d are open", self._name, self._refused, len(self._peers))
            self._refused = 0

    def answer(self, answers: Sequence[tuple[PendingCall, Refusal | None]]) -> None:
        """On the loop's thread: answer unary calls with an empty message, or refuse them."""
        touched: dict[Peer, None] = {}
        for call, refusal in answers:
            peer = call.peer
            connection = peer.connection
            if connection is None:
                continue
            if refusal is None:
                connection.answer(call.stream_id, b"")
            else:
                connection.refuse(call.stream_id, refusal.status, refusal.text)
            touched[peer] = None
        for peer in touched:
            peer.flush()

    def hold(self, held: bool) -> None:
        """On the loop's thread: pause or resume reading of unary calls."""
        if held != self.held:
            self.held = held
            for peer in list(self._peers):
                peer.attend()
                if not self.held:
                    peer.go_on()

    def stop(self, grace: float) -> None:
        """Accept no further call, give the calls under way ``grace`` seconds to end, close. A second ``stop`` waits for the end of the first."""
        with self._stopping:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(self._wind_up(grace), self.loop).result()
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join()
            if self._pool is not None:
                self._pool.shutdown()

    async def _wind_up(self, grace: float) -> None:
        for server in self._servers:
            for listener in server.sockets:
                self.loop.remove_reader(listener.fileno())
        if accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            # asyncio has accepted these connections but not handed them over: closing the servers first would leak their sockets
            await asyncio.wait(accepting, timeout=LINGER)
        for server in self._servers:
            server.close()
        for peer in list(self._peers):
            peer.leave()
        deadline = self.loop.time() + grace
        await self._until(deadline, lambda: not self._handlers and not any(peer.busy for peer in self._peers))
        for peer in list(self._peers):
            peer.close()
        await self._until(self.loop.time() + 2 * LINGER, lambda: not self._handlers and not self._peers)
        if self._handlers:
            _log.error("%s stops, but %d streams have not ended", self._name, len(self._handlers))
        if self._socket_file is not None:
            self._socket_file.remove()

    async def _until(self, deadline: float, done: Callable[[], bool]) -> None:
        while not done() and self.loop.time() < deadline:
            await asyncio.sleep(_POLL)


def host_and_port(addr: str) -> tuple[str | None, int]:
    """The parts of ``host:port``; None: every address.

    Raises:
        ValueError: it has no port.
    """
    host, _, text = addr.rpartition(":")
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise ValueError(f"{port} is no port")
    return host.strip("[]") or None, port


def cannot_listen(what: str, host: str, error: Exception) -> ConfigError:
    """The error about a failure to listen; ``what``: the server and its address, ``host``: the address's host."""
    text = f"{what}: {error}"
    if isinstance(error, socket.gaierror):
        passes = not _NO_NAME.fullmatch(host)
    else:
        passes = isinstance(error, OSError) and error.errno in _PASSING
    return NotUsableYet(text) if passes else ConfigError(text)


class SocketFile:
    """The file of a Unix socket that this process listens at."""

    def __init__(self, path: str) -> None:
        """Look at the file of the path.

        Raises:
            OSError: somebody answers at the socket (EADDRINUSE), or the file is no socket, or cannot be looked at.
        """
        self.path = path
        self._own: _Inode | None = None
        found = self._there()
        if found is None:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_ANSWER_SECONDS)
            try:
                probe.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                return  # its process is gone
            except (BlockingIOError, TimeoutError):
                pass  # it has no time to answer
        raise OSError(errno.EADDRINUSE, "another process listens there", path)

    def bound(self) -> None:
        """It was made by this process."""
        self._own = self._inode()

    def check(self) -> None:
        """Check that the file is still this process's own.

        Raises:
            OSError: another process has replaced it (EADDRINUSE).
        """
        if self._inode() != self._own:
            raise OSError(errno.EADDRINUSE, "another process has replaced it, or it was removed", self.path)

    def remove(self) -> None:
        """Remove it, if it is one's own."""
        if self._own is not None and self._inode() == self._own:
            os.unlink(self.path)

    def _there(self) -> os.stat_result | None:
        try:
            return os.lstat(self.path)
        except FileNotFoundError:
            return None

    def _inode(self) -> _Inode | None:
        found = self._there()
        return (found.st_dev, found.st_ino) if found is not None else None
