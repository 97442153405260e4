"""HTTP requests to the services around a Pump and a Drainer: the standalone registry, status ports, a Pump's pages. Over ``http.client``.

Promises: connections are direct, whatever proxies the environment names. Redirects are not followed, and nothing is repeated. Each wait
for the server takes at most ``timeout`` seconds. Of an answer other than 200 at most 64 KiB are read. A request without a whole answer
raises one of ``FAILURES``. Over TLS the server is verified by the given ``TlsSettings``, or by the CAs that this machine trusts.
"""

import contextlib
import http.client
import socket
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tls import HTTP1, TlsSettings

FAILURES = (OSError, http.client.HTTPException)
Tls = TlsSettings | bool
"""How a server is spoken to: False = without TLS, True = with TLS as this machine trusts, or by settings."""
_ERROR_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a server answered."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is 200."""
        return self.status == http.client.OK

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


class HttpConnection:
    """A keep-alive connection to one server; a request opens it if it is closed. For one request at a time."""

    def __init__(self, host: str, port: int | None, timeout: float, *, tls: Tls) -> None:
        """``port``: None for the scheme's own; ``timeout``: seconds."""
        self._connection: http.client.HTTPConnection
        if isinstance(tls, TlsSettings):
            self._connection = _VerifiedConnection(host, port, timeout, tls)
        elif tls:
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout)

    @classmethod
    def to(cls, address: str, timeout: float, *, tls: Tls) -> Self:
        """A connection to ``host:port``; ``ValueError`` when it has another form."""
        host, _, port = address.rpartition(":")
        return cls(host.strip("[]"), int(port), timeout, tls=tls)

    def request(self, method: str, target: str, body: bytes | None = None) -> HttpAnswer:
        """One request and its answer; ``target`` is path and query. A connection that fails is closed."""
        try:
            self._connection.request(method, target, body)
            response = self._connection.getresponse()
            answer = HttpAnswer(response.status, response.read(None if response.status == http.client.OK else _ERROR_BYTES))
        except FAILURES:
            self.close()
            raise
        if not response.isclosed():
            # the rest of the answer would be taken for the next one
            self.close()
        return answer

    def interrupt(self) -> None:
        """End the request that another thread waits for, which raises: ``close`` would not wake a thread that reads from the socket."""
        reading = self._connection.sock
        if reading is not None:
            with contextlib.suppress(OSError):
                reading.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; the next request opens it again."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _VerifiedConnection(http.client.HTTPSConnection):
    """Takes the context, which may have changed, at each connection."""

    def __init__(self, host: str, port: int | None, timeout: float, tls: TlsSettings) -> None:
        super().__init__(host, port, timeout=timeout, context=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._tls = tls

    def connect(self) -> None:
        """Connect, and verify the server; ``ssl.SSLError`` when it is refused."""
        try:
            self._context = self._tls.client(HTTP1)
        except ConfigError as error:
            raise ssl.SSLError(1, str(error)) from error
        super().connect()


def fetch(url: str, timeout: float, method: str = "GET", body: bytes | None = None, tls: TlsSettings | None = None) -> HttpAnswer:
    """The answer of an ``http://`` or ``https://`` URL, over a connection of its own; ``ValueError`` when it is none.

    ``tls``: how an ``https://`` server is verified; None: by the CAs that this machine trusts.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError(f"{url!r} is not of the form http://host:port/path")
    with HttpConnection(parts.hostname, parts.port, timeout, tls=parts.scheme == "https" and (tls or True)) as connection:
        return connection.request(method, urlunsplit(("", "", parts.path or "/", parts.query, "")), body)
