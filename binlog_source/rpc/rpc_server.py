"""A server of gRPC and HTTP/1 on one port: asyncio in a thread of its own. IO shell around ``http2``, ``grpc_message`` and ``http1``.

    socket bytes -> detect the protocol -> http2.Connection -> Call -> unary handler (on the loop) | stream handler (a thread each)
                                        -> http1 request    -> http handler (in a pool)

Promises:

* A unary handler runs on the loop's thread and must not block. It keeps the ``PendingCall``. ``RpcServer.answer`` answers it later, many at
  once, if its client is still connected.
* A stream handler runs in a thread. Its client's flow control slows it down, and it is notified when its client cancels or disconnects.
* An exception in a handler fails its own call and no other.
* ``hold`` pauses reading from all sockets, so that what is not stored yet stays with the clients. Nothing is read from a client that does not read.
* Memory (``budget``) and duration of unfinished requests are bounded, also of compressed ones (``inflater``); so are streams per
  address and connections (``connection_limits``).
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
from pyspark_tidb_binlog.binlog_source.rpc.budget import Budget
from pyspark_tidb_binlog.binlog_source.rpc.calls import CallPeer, Methods, PendingCall, StreamCall, StreamHandler
from pyspark_tidb_binlog.binlog_source.rpc.connection_limits import ConnectionLimiter, bounds
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import OK, RESOURCE_EXHAUSTED, Refusal
from pyspark_tidb_binlog.binlog_source.rpc.inflater import Inflater
from pyspark_tidb_binlog.binlog_source.rpc.listening import SocketFile, cannot_listen, host_and_port
from pyspark_tidb_binlog.binlog_source.rpc.peer import LINGER, Peer, refusal_of
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
_MANY = 2
"""An address with this many times the streams of another address loses a stream to it."""
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
        self._crowds: ConnectionLimiter[Peer] = ConnectionLimiter()
        self._dismissed = 0
        self._handlers: dict[threading.Thread, StreamCall] = {}
        self._streams_of: dict[str, dict[StreamCall, None]] = {}
        self.budget = Budget()
        """The memory for unfinished requests."""
        self.inflater = Inflater(name, self.budget, self)
        self._deaf = False
        self.held = False
        """Whether reading is paused on all sockets."""
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
        self.budget.capacity = methods.max_unfinished
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
        deaf, self._deaf = self._deaf or self.held, self.held
        for peer in list(self._peers):
            peer.look(self.now(), deaf)
        self.inflater.look()
        if self._dismissed:
            _log.warning("%s: closed %d connections to make room: %d are open", self._name, self._dismissed, len(self._peers))
            self._dismissed = 0
        self._loop.call_later(LOOK, self._look)

    def now(self) -> float:
        """The loop's clock."""
        return self._loop.time()

    def relieve_memory(self) -> None:
        """Make room while unfinished requests exceed their memory. On the loop's thread.

        Closed is the client that holds most memory without having asked for it. If most memory belongs to requests that wait for more, no client
        is at fault: then one request is refused, of the client that holds most of that memory.
        """
        while self.budget.overdrawn:
            shares = {peer: peer.share for peer in self._peers}
            held = {peer: share for peer, share in shares.items() if share is not None}
            waiting = max(held, key=lambda peer: held[peer].excused)
            if 2 * self.budget.excused <= self.budget.counted or not waiting.make_room():
                max(held, key=lambda peer: held[peer].idle).evict()

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
        """On the loop's thread: pause or resume reading from all sockets."""
        if held != self.held:
            self.held = held
            self._deaf = self._deaf or held
            for peer in list(self._peers):
                peer.attend()
                if not self.held:
                    peer.go_on()

    def joined(self, peer: Peer, descriptor: int) -> None:
        """A connection was made."""
        self._peers[peer] = None
        self._crowds.add(peer, peer.address)
        limits = bounds(self.methods.max_connections, self.methods.max_connections_per_peer, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        goes = self._crowds.one_too_many(peer, peer.address, limits)
        for dismissed in {goes, peer} if descriptor >= limits.descriptors else {goes}:
            if dismissed is not None:
                self._dismissed += 1
                self._crowds.remove(dismissed, dismissed.address)
                dismissed.dismiss()
        if self.held:
            peer.attend()

    def left(self, peer: Peer) -> None:
        """A connection was lost."""
        self._peers.pop(peer, None)
        self._crowds.remove(peer, peer.address)

    def run_stream(self, handler: StreamHandler, call: StreamCall) -> None:
        """Run a stream handler in a thread of its own.

        Raises:
            Refusal: too many streams are open, in total or for its address.
        """
        methods, address = self.methods, call.address
        own = self._streams_of.get(address, {})
        if len(own) >= methods.max_streams_per_peer:
            text = f"{self._name}: more than {methods.max_streams_per_peer} streams from {address or 'the Unix socket'} at the same time"
            raise Refusal(RESOURCE_EXHAUSTED, text)
        if sum(map(len, self._streams_of.values())) >= methods.max_streams:
            self._make_way(len(own))
        thread = threading.Thread(target=self._stream_main, args=(handler, call), name=f"{self._name} stream", daemon=True)
        thread.start()
        call.moved = self.now()
        self._handlers[thread] = call
        self._streams_of.setdefault(address, {})[call] = None

    def _make_way(self, own: int) -> None:
        """End a stream of the address with the most, for one that has ``own``: the stream that made no progress for the longest time.

        Raises:
            Refusal: no address has many more, or the handlers of ended streams do not return.
        """
        most = max(self._streams_of.values(), key=len)
        text = f"{self._name}: more than {self.methods.max_streams} streams at the same time"
        if len(most) < _MANY * (own + 1) or len(self._handlers) >= _MANY * self.methods.max_streams:
            raise Refusal(RESOURCE_EXHAUSTED, text)
        ended = min(most, key=lambda call: call.moved)
        self._forget(ended)
        ended.end_now(f"{text}, and this client has {len(most) + 1} of them")

    def _stream_main(self, handler: StreamHandler, call: StreamCall) -> None:
        try:
            handler(call)
            call.finish(OK, "")
        except Exception as error:  # last resort of the thread: the client must not wait for ever
            refusal = refusal_of(error)
            call.finish(refusal.status, refusal.text)
        finally:
            self.call(self._stream_ended, threading.current_thread())

    def _stream_ended(self, thread: threading.Thread) -> None:
        self._forget(self._handlers.pop(thread))

    def _forget(self, call: StreamCall) -> None:
        """Stop counting a stream."""
        streams = self._streams_of.get(call.address, {})
        streams.pop(call, None)
        if not streams:
            self._streams_of.pop(call.address, None)

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
            self.inflater.close()

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
