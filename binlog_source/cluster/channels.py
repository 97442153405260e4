"""gRPC channels to the nodes of a cluster, and why their calls failed. With TLS: a Unix socket under grpcio whose connections become TLS
connections to one server.

    tunnel = TlsTunnel("host:8250", tls, 20.0)
    channel = grpc.insecure_channel(tunnel.target)

grpcio's own TLS refuses servers that select no protocol in ALPN, and real Pumps select none (wire.md 7). It cannot check
``cert-allowed-cn``, and it reads a certificate only once.

Promises: connections are direct, whatever proxies the environment names (as in ``schemas.http_client``). A process forks before its first
channel, as for Spark's workers: after that, grpcio's calls hang in a fork without ``GRPC_ENABLE_FORK_SUPPORT=1``. With TLS the server is
verified before anything is sent: by its CA, its name and ``cert-allowed-cn``. Each connection uses the certificate files as they are then.
The socket has an abstract name, so ``kill -9`` leaves no file. It serves this process only: another process, also a fork, is disconnected.
grpcio sees only a closed socket, so ``details`` puts the newest reason into its text.
"""

import contextlib
import errno
import logging
import os
import re
import select
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import grpc

from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import H2, TlsSettings

_DIRECT = ("grpc.enable_http_proxy", 0)
_CONNECT_SECONDS = 20.0
"""gRPC's own default."""
_TLS_CONNECT_SECONDS = 1.0
"""A connection over TLS has at least this time: it takes three times as many round trips as one without."""
_CHUNK = 128 << 10
"""Bytes of a direction that are held."""
_MOST_KNOWN = 1000
_PAUSE = 0.1
"""Seconds until the next try of a process without a free file descriptor."""
_NO_HTTP2 = "Failed parsing HTTP/2"
_TARGET = re.compile(r"unix-abstract:tidb-binlog-tls-\w+")
_PEER = struct.Struct("3i")
"""Process, user and group of a Unix socket's other end."""
_log = logging.getLogger(__name__)
_known: dict[str, tuple[str, str]] = {}
"""By target: the server's address, and why the newest connection failed, or "". Without a lock, which a fork might inherit locked."""


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
    """The text of a failed call; over TLS with the server's address and the reason."""
    text = error.details() or ""
    found = _TARGET.search(text)
    address, why = _known.get(found[0], ("", "")) if found else ("", "")
    # What the server has said instead of HTTP/2, only grpcio knows.
    if why and _NO_HTTP2 not in text:
        return f"failed to connect to {address}: {why}"
    return text.replace(found[0], address) if found and address else text


def reason(error: grpc.RpcError) -> str:
    """The code and text of a failed call."""
    return f"{error.code().name}: {details(error)}" if isinstance(error, grpc.Call) else str(error)


class TlsTunnel:
    """The way to one server, until ``close``."""

    def __init__(self, address: str, tls: TlsSettings, connect_seconds: float) -> None:
        """``address``: ``host:port``; ``connect_seconds``: for TCP to each of the host's addresses, and for TLS's handshake."""
        host, _, port = address.rpartition(":")
        self._address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._tls = tls
        self._seconds = connect_seconds
        self._process = os.getpid()
        name = f"tidb-binlog-tls-{self._process}_{os.urandom(8).hex()}"
        self.target = f"unix-abstract:{name}"
        """What grpcio connects to."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._note("")
        threading.Thread(target=self._accept, name=f"TLS to {address}", daemon=True).start()

    def close(self) -> None:
        """Take no further connections; those that are open end with grpcio's."""
        if self._process == os.getpid():  # a fork would close its parent's
            self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    near, _ = self._listener.accept()
                except OSError as error:
                    if error.errno == errno.EINVAL:  # closed
                        return
                    _log.warning("no connection to %s for now: %s", self._address, error)
                    time.sleep(_PAUSE)
                    continue
                process, *_ = _PEER.unpack(near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
                if process == self._process:
                    threading.Thread(target=self._carry, args=(near,), name=f"TLS to {self._address}", daemon=True).start()
                else:
                    _log.warning(
                        "process %d is disconnected from the way to %s: only process %d may use it", process, self._address, self._process
                    )
                    near.close()

    def _carry(self, near: socket.socket) -> None:
        """Connect to the server and copy, until one side ends."""
        with near:
            try:
                with self._connected() as far:
                    self._note("")
                    try:
                        _copy(near, far)
                    finally:
                        with contextlib.suppress(OSError):
                            far.shutdown(socket.SHUT_RDWR)  # reaches the server even if a fork still has the socket
            except (OSError, ValueError, ConfigError) as error:  # ValueError: no name of a host
                self._note(_why(error, self._seconds))

    def _connected(self) -> ssl.SSLSocket:
        context = self._tls.client(H2)
        bare = socket.create_connection((self._host, self._port), self._seconds)
        try:
            bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(bare, server_hostname=self._host)
        finally:
            bare.close()  # without effect once the TLS socket has it

    def _note(self, why: str) -> None:
        _known.pop(self.target, None)
        _known[self.target] = self._address, why
        for oldest in list(_known)[:-_MOST_KNOWN]:
            _known.pop(oldest, None)


class _Way:
    """The bytes from one socket to another, both without blocking."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._buffer = memoryview(bytearray(_CHUNK))
        self._left = self._buffer[:0]
        self.at, self.event = source, select.POLLIN
        """The socket to wait for, and its event."""

    def move(self) -> None:
        """Copy what has arrived, until a socket is not ready.

        Raises:
            EOFError: grpcio closed its side.
            OSError: the server closed the connection, or it failed.
        """
        full = True
        try:
            while self._left or full:
                if not self._left:
                    self.at, self.event = self._source, select.POLLIN
                    size = self._read()
                    self._left, full = self._buffer[:size], size == _CHUNK
                self.at, self.event = self._sink, select.POLLOUT
                self._left = self._left[self._sink.send(self._left) :]
            self.at, self.event = self._source, select.POLLIN
        except BlockingIOError:
            return
        except ssl.SSLWantReadError:
            self.event = select.POLLIN
        except ssl.SSLWantWriteError:
            self.event = select.POLLOUT
        except OSError as error:
            if isinstance(self.at, ssl.SSLSocket):
                raise
            raise EOFError from error

    def _read(self) -> int:
        size = self._source.recv_into(self._buffer)
        secured = isinstance(self._source, ssl.SSLSocket)
        if not size:
            raise ConnectionResetError("the server closed the connection: see its log") if secured else EOFError
        # One call reads one record of TLS. The records that follow are sent to grpcio with it; a failure is met again by the next read.
        with contextlib.suppress(OSError):
            while secured and size < _CHUNK and (more := self._source.recv_into(self._buffer[size:])):
                size += more
        return size


def _copy(near: socket.socket, far: ssl.SSLSocket) -> None:
    """Copy both ways until grpcio closes ``near``.

    Raises:
        OSError: the server closed the connection, or it failed.
    """
    near.setblocking(False)
    far.setblocking(False)
    down, up = _Way(far, near), _Way(near, far)
    with contextlib.suppress(EOFError):
        while True:
            wanted = {near: 0}  # grpcio's close is noticed in any case
            for way in (down, up):
                wanted[way.at] = wanted.get(way.at, 0) | way.event
            poller = select.poll()
            for one, events in wanted.items():
                poller.register(one, events)
            ready = dict(poller.poll())
            if down.at.fileno() in ready:
                down.move()
            if up.at.fileno() in ready:
                try:
                    up.move()
                except OSError:
                    down.move()  # raises why the server has closed the connection, if the server said it
                    raise
            if near.fileno() in ready and not wanted[near]:
                return


def _why(error: Exception, seconds: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}: check security.ssl-ca and the server's certificate"
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no connection within {seconds:g} s"
    return str(error) or type(error).__name__
