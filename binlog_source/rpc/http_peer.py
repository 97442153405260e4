"""One HTTP/1 connection: one request at a time. Everything here runs on the loop's thread.

Promises: a client is closed if its request takes more than ``REQUEST_SECONDS`` to arrive; if it sends no request, or reads nothing of its
answer, for ``IDLE_SECONDS``; or if it pipelines too many requests. Its bytes count against the server's ``Budget``.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyspark_tidb_binlog.binlog_source.rpc import http1
from pyspark_tidb_binlog.binlog_source.rpc.budget import Budget, Share
from pyspark_tidb_binlog.binlog_source.rpc.calls import BACKLOG_BYTES

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
"""Within which a request must be complete."""
IDLE_SECONDS = 120.0
"""Allowed between two requests, or without progress in sending an answer."""
ENDLESS = float("inf")


class AwaitedInput(NamedTuple):
    """What is awaited of a client; the timeout runs while it stays the same."""

    seconds: float
    """Timeout."""
    requests: int = 0
    """Requests received so far."""
    unsent: int = 0
    """Bytes of answers that are not sent yet."""


class HttpServer(Protocol):
    """What a connection uses of its server."""

    budget: Budget

    def run_http(self, request: http1.HttpRequest, answered: Callable[[http1.HttpRequest, http1.HttpResponse], None]) -> None:
        """Answer a request; ``answered`` is called on the loop's thread."""


class HttpPeer:
    """The requests and answers of one connection."""

    def __init__(self, server: HttpServer, transport: asyncio.Transport) -> None:
        self._server = server
        self._transport = transport
        self._dialogue = http1.Dialogue()
        self._ended = False
        self._requests = 0
        self.share = Share(server.budget, lambda stream_id: None)
        """Its share of the server's memory for unfinished requests."""
        self.answering = False
        """Whether a request is under way."""

    @property
    def turn(self) -> AwaitedInput:
        """What is awaited of the client now."""
        unsent = self._transport.get_write_buffer_size()
        if self.answering:
            return AwaitedInput(ENDLESS)
        return AwaitedInput(IDLE_SECONDS if unsent or self._dialogue.idle else REQUEST_SECONDS, self._requests, unsent)

    def received(self, data: bytes) -> None:
        """Process more bytes; none: the write buffer has room for more answers."""
        if data:
            self._dialogue.take(data)
        self._next()
        if self._dialogue.waiting > http1.MAX_REQUEST:
            _log.warning("closing an HTTP/1 connection: its client sent %d bytes without waiting for answers", self._dialogue.waiting)
            self._transport.abort()

    def ended(self) -> bool:
        """The client sends no more; whether it still waits for an answer."""
        self._ended = True
        return self.answering

    def _next(self) -> None:
        if self.answering or self._transport.is_closing() or self._transport.get_write_buffer_size() > BACKLOG_BYTES:
            self._count()
            return
        try:
            request = self._dialogue.request()
        except http1.BadRequest as error:
            self._refuse(error)
            return
        if request is not None:
            self.answering = True
            self._requests += 1
            self._server.run_http(request, self._answered)
        else:
            self._transport.write(self._dialogue.expectation())
        self._count()

    def _count(self) -> None:
        self.share.count(self._dialogue.waiting - self.share.counted)

    def _refuse(self, error: http1.BadRequest) -> None:
        self._transport.write(self._dialogue.refuse(error))
        self._transport.close()

    def _answered(self, request: http1.HttpRequest, answer: http1.HttpResponse) -> None:
        self.answering = False
        if not self._transport.is_closing():
            self._transport.write(self._dialogue.answer(answer, bodiless=request.method == "HEAD"))
            if self._dialogue.open:
                self._next()
            if not self._dialogue.open or (self._ended and not self.answering):
                self._transport.close()
