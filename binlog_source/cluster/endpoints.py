"""gRPC calls to a few equal servers, of which any may answer: PD's URLs, ``http://host:port`` or, with TLS, ``https://host:port``.

Promises: a request goes to the server that answered last, then to the others. A failed connection is not used again, so a server is used as
soon as it is back. A connection that was open and turns out to be lost is reopened once per request. If no server answers,
``PumpUnavailable`` gives the reason for each URL. Thread-safe.
"""

import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import Message

from pyspark_tidb_binlog.binlog_source.cluster.channels import open_channel, reason
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.tls import TlsSettings

REQUEST_SECONDS = 5.0
"""Timeout of one request to one server (pump.md 1)."""

# A local subchannel pool: a channel that is opened again does not inherit the back-off of the former one.
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

Reply = TypeVar("Reply", bound=Message)


def servers_of(urls: str) -> tuple[str, ...]:
    """Each of the comma separated ``http://host:port`` or ``https://host:port``, once and in this form.

    Raises:
        ConfigError: one has another form, or there is none.
    """
    parts = [urlsplit(url.strip()) for url in urls.split(",") if url.strip()]
    try:
        wrong = not parts or any(
            part.scheme not in ("http", "https") or not part.hostname or not part.port or part.path.strip("/") for part in parts
        )
    except ValueError:  # a port that is no number below 65536
        wrong = True
    if wrong:
        raise ConfigError(
            f"PD's URLs {urls!r} are not of the form http://host:port,http://host:port: write https:// with TLS, or pd://host:port,host:port"
        )
    return tuple(dict.fromkeys(f"{part.scheme}://{part.netloc}" for part in parts))


class RequestRefused(PumpUnavailable):
    """A server has answered, with an error of its own: it will say the same a moment later."""


class Endpoints:
    """The servers behind comma separated URLs, and a channel to each that was used. ``name``: their name in messages."""

    def __init__(self, name: str, urls: str, tls: TlsSettings | None) -> None:
        """``tls``: for ``https://``; ``http://`` goes without, as in etcd's client."""
        self._servers = servers_of(urls)
        self.url = ",".join(self._servers)
        self._name = name
        self._tls = tls
        if tls is None and any(server.startswith("https:") for server in self._servers):
            raise ConfigError(
                f"{name}'s URLs {urls!r} are https: set security.ssl-ca, and also ssl-cert and ssl-key if {name} asks for a certificate"
            )
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._last_good = self._servers[0]
        self._known = False
        """Whether one has answered: it is what it is taken for."""
        self.life = 0
        """How often ``close`` was called."""

    def channel(self, server: str) -> grpc.Channel:
        """The channel to a server by its URL, which need not be in the list."""
        with self._lock:
            if server not in self._channels:
                scheme, _, address = server.partition("://")
                self._channels[server] = open_channel(address, self._tls if scheme == "https" else None, _OPTIONS)
            return self._channels[server]

    def last_good(self) -> grpc.Channel:
        """The channel to the server that answered last."""
        return self.channel(self._last_good)

    def ask_another_first(self) -> None:
        """Next time ask first the server after the last that answered: the last may be wrong."""
        self._last_good = self._servers[(self._servers.index(self._last_good) + 1) % len(self._servers)]

    def ask(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """One unary call.

        Raises:
            PumpUnavailable: no server answered it, or ``close`` was called meanwhile.
            ConfigError: those that answered are something else, which knows no such call.
        """

        def call(channel: grpc.Channel) -> Reply:
            stub = channel.unary_unary(method, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString)
            answer: Reply = stub(request, timeout=REQUEST_SECONDS)
            return answer

        return self._first_answer(call)

    def discard(self, channel: grpc.Channel) -> None:
        """Close a channel that failed. Other calls on it end, and are repeated over a new one."""
        with self._lock:
            self._channels = {server: known for server, known in self._channels.items() if known is not channel}
        channel.close()

    def unavailable(self, why: str) -> PumpUnavailable:
        """The error for a request that no server answers."""
        hint = "" if self._tls else ", and set security.ssl-ca (option sslCa, in ctl the flag -ssl-ca) if the cluster uses TLS"
        return PumpUnavailable(
            f"{self._name} {self.url} does not answer ({why}): check that {self._name} runs and is reachable from this machine{hint}"
        )

    def refused(self, request: str, words: str) -> RequestRefused:
        """The error for a request that is answered with the error ``words``."""
        return RequestRefused(f"{self._name} {self.url} refuses {request}: {words}")

    def close(self) -> None:
        """Close every channel; calls in progress end with an error."""
        with self._lock:
            closing, self._channels = list(self._channels.values()), {}
            self.life += 1
        for channel in closing:
            channel.close()

    def _first_answer(self, call: Callable[[grpc.Channel], Reply]) -> Reply:
        failures, life, first = [], self.life, self._last_good
        strange = not self._known
        for server in sorted(self._servers, key=lambda server: server != first):
            try:
                answer = self._answer_of(server, call)
            except (grpc.RpcError, ValueError) as error:
                if self.life != life:
                    raise self.unavailable("the connection was closed before the answer arrived") from error
                strange = strange and isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED
                failures.append(f"{server.partition('://')[2]}: {reason(error) if isinstance(error, grpc.RpcError) else error}")
                continue
            self._last_good, self._known = server, True
            return answer
        if strange:
            raise ConfigError(
                f"what answers at {self.url} is not {self._name} ({'; '.join(failures)}): give {self._name}'s address. "
                f"This project's own registry, a playground's too, is named by its URL in spark.pumps: {self._servers[0]}"
            )
        raise self.unavailable("; ".join(failures))

    def _answer_of(self, server: str, call: Callable[[grpc.Channel], Reply]) -> Reply:
        """The answer of one server; a connection that was open before and turns out to be lost is replaced once."""
        known, life = server in self._channels, self.life
        channel = self.channel(server)
        try:
            return call(channel)
        except (grpc.RpcError, ValueError) as error:  # ValueError: gRPC raises it for a channel that another thread has closed
            if not self._worth_another(channel, error, known) or self.life != life:
                raise
        return call(self.channel(server))

    def _worth_another(self, channel: grpc.Channel, error: Exception, known: bool) -> bool:
        code = error.code() if isinstance(error, grpc.Call) else None
        if code in _LOST:
            self.discard(channel)
            return known and code is grpc.StatusCode.UNAVAILABLE
        return channel not in self._channels.values()
