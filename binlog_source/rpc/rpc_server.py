"""A server of gRPC and HTTP/1 on one port: asyncio in a thread of its own. IO shell around ``http2``, ``grpc_message`` and ``http1``.

    socket bytes -> detect the protocol -> http2.Connection -> Call -> unary handler (on the loop) | stream handler (a thread each)
                                        -> http1 request    -> http handler (in a pool)

Promises:

* A unary handler runs on the loop's thread and must not block. It keeps the ``PendingCall``. ``RpcServer.answer`` answers it later, many at
  once, if its client is still connected.
* A stream handler runs in a thread. Its client's flow control slows it down, and it is notified when its client cancels or disconnects.
* An exception in a handler fails its own call and no other.
* ``hold`` pauses reading from clients of unary calls, so that what is not stored yet stays with them. Nothing is read from a client that does not read.
* The memory of large unfinished requests is bounded (``request_memory``); so are streams and connections, of which further ones are refused.
* ``stop`` returns when no handler is running, or when its timeouts have passed.
* With TLS, every connection of the TCP port uses TLS (``secured_peer``), whatever its ALPN. A Unix socket has no TLS.
"""

import asyncio
import functools
import logging
import resource
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from pyspark_tidb_binlog.binlog_source.rpc import http1
from pyspark_tidb_binlog.binlog_source.rpc.calls import CallPeer, Methods, PendingCall, StreamCall, StreamHandler
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import OK, RESOURCE_EXHAUSTED, Refusal
from pyspark_tidb_binlog.binlog_source.rpc.listening import SocketFile, cannot_listen, host_and_port
from pyspark_tidb_binlog.binlog_source.rpc.peer import LINGER, Peer, refusal_of
from pyspark_tidb_binlog.binlog_source.rpc.request_memory import RequestMemory
from pyspark_tidb_binlog.binlog_source.rpc.secured_peer import SecuredPeer
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import TlsSettings

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


class RpcServer:
    """The listening sockets and their loop. ``bind``, ``serve``, then ``stop``."""

    def __init__(self, name: str) -> None:
        self.methods = Methods()
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"{name}", daemon=True)
        self._stopping = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._servers: list[asyncio.Server] = []
        self._peers: dict[Peer, None] = {}
        self._refused = 0
        self._handlers: set[threading.Thread] = set()
        self.memory = RequestMemory()
        """The memory for large unfinished requests."""
        self.held = False
        """Whether reading of unary calls is paused."""
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
            asyncio.run_coroutine_threadsafe(self._bind(addr, socket_path, tls), self._loop).result()
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
            asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        except OSError as error:
            # another process bound the port too, and was the first to listen; or it has taken the socket
            raise cannot_listen(f"{self._name} cannot listen on port {self.port}", "", error) from error
        return self

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _bind(self, addr: str, socket_path: str, tls: TlsSettings | None) -> None:
        host, port = host_and_port(addr)
        peer = functools.partial(Peer, self) if tls is None else functools.partial(SecuredPeer, self, tls)
        create = functools.partial(self._loop.create_server, peer, backlog=_ACCEPT, start_serving=False)
        server = await create(host, port)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        for listener in server.sockets:
            # connections inherit the options
            for level, option, value in _KEEPALIVE:
                listener.setsockopt(level, option, value)
        if socket_path:
            file = SocketFile(socket_path)
            unix = self._loop.create_unix_server(lambda: Peer(self), socket_path, backlog=_ACCEPT, start_serving=False)
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
        """Check the clients' timeouts, and schedule the next check."""
        for peer in list(self._peers):
            peer.look(self.now())
        if self._refused:
            _log.warning("%s: refused %d connections: %d are open", self._name, self._refused, len(self._peers))
            self._refused = 0
        self._loop.call_later(LOOK, self._look)

    def now(self) -> float:
        """The loop's clock."""
        return self._loop.time()

    def call(self, act: Callable[..., None], *arguments: object) -> None:
        """Have ``act`` called on the loop's thread; does nothing once the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            _log.debug("%s: the loop is closed", self._name)

    def soon(self, act: Callable[[], None]) -> None:
        """On the loop's thread: call ``act`` after everything that is ready now."""
        self._loop.call_soon(act)

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """On the loop's thread: call ``act`` after ``seconds``."""
        return self._loop.call_later(seconds, act)

    def answer(self, answers: Sequence[tuple[PendingCall, Refusal | None]]) -> None:
        """On the loop's thread: answer unary calls with an empty message, or refuse them."""
        touched: dict[CallPeer, None] = {}
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

    def joined(self, peer: Peer) -> None:
        """A connection was made; it is closed if there are too many."""
        self._peers[peer] = None
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = self.methods.max_connections if descriptors < 0 else min(self.methods.max_connections, descriptors // 2)
        if len(self._peers) > most:
            self._refused += 1
            peer.close()

    def left(self, peer: Peer) -> None:
        """A connection was lost."""
        self._peers.pop(peer, None)

    def run_stream(self, handler: StreamHandler, call: StreamCall) -> None:
        """Run a stream handler in a thread of its own.

        Raises:
            Refusal: too many streams are open.
        """
        if len(self._handlers) >= self.methods.max_streams:
            raise Refusal(RESOURCE_EXHAUSTED, f"{self._name}: more than {self.methods.max_streams} streams at the same time")
        thread = threading.Thread(target=self._stream_main, args=(handler, call), name=f"{self._name} stream", daemon=True)
        thread.start()
        self._handlers.add(thread)

    def _stream_main(self, handler: StreamHandler, call: StreamCall) -> None:
        try:
            handler(call)
            call.finish(OK, "")
        except Exception as error:  # last resort of the thread: the client must not wait for ever
            refusal = refusal_of(error)
            call.finish(refusal.status, refusal.text)
        finally:
            self.call(self._handlers.discard, threading.current_thread())

    def run_http(self, request: http1.HttpRequest, answered: Callable[[http1.HttpRequest, http1.HttpResponse], None]) -> None:
        """Answer a request from the pool; ``answered`` is called on the loop's thread."""
        assert self._pool is not None, "connections are refused until serve"
        self._pool.submit(lambda: self.call(answered, request, self._http_answer(request)))

    def _http_answer(self, request: http1.HttpRequest) -> http1.HttpResponse:
        try:
            return self.methods.http(request)
        except Exception as error:  # last resort of the thread: the client must not wait for ever
            _log.exception("%s %s failed", request.method, request.path)
            # not its text, which may hold anything
            return http1.HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log of this process\n".encode())

    def stop(self, grace: float) -> None:
        """Accept no further call, give the calls under way ``grace`` seconds to end, close. A second ``stop`` waits for the end of the first."""
        with self._stopping:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(self._wind_up(grace), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
            if self._pool is not None:
                self._pool.shutdown()

    async def _wind_up(self, grace: float) -> None:
        for server in self._servers:
            for listener in server.sockets:
                self._loop.remove_reader(listener.fileno())
        if accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            # asyncio has accepted these connections but not handed them over: closing the servers first would leak their sockets
            await asyncio.wait(accepting, timeout=LINGER)
        for server in self._servers:
            server.close()
        for peer in list(self._peers):
            peer.leave()
        deadline = self._loop.time() + grace
        await self._until(deadline, lambda: not self._handlers and not any(peer.busy for peer in self._peers))
        for peer in list(self._peers):
            peer.close()
        await self._until(self._loop.time() + 2 * LINGER, lambda: not self._handlers and not self._peers)
        if self._handlers:
            _log.error("%s stops, but %d streams have not ended", self._name, len(self._handlers))
        if self._socket_file is not None:
            self._socket_file.remove()

    async def _until(self, deadline: float, done: Callable[[], bool]) -> None:
        while not done() and self._loop.time() < deadline:
            await asyncio.sleep(_POLL)
