"""One HTTP/1 connection: one request at a time. Everything here runs on the loop's thread.

Promises: a client that pipelines too many requests is closed.
"""

import asyncio
import logging
from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.rpc import http1
from pyspark_tidb_binlog.binlog_source.rpc.calls import BACKLOG_BYTES

_log = logging.getLogger(__name__)


RunHttp = Callable[[http1.HttpRequest, Callable[[http1.HttpRequest, http1.HttpResponse], None]], None]
"""Answers a request in another thread, then calls its second argument on the loop's thread."""


class HttpPeer:
    """The requests and answers of one connection."""

    def __init__(self, run: RunHttp, transport: asyncio.Transport) -> None:
        self._run = run
        self._transport = transport
        self._dialogue = http1.Dialogue()
        self._ended = False
        self.answering = False
        """Whether a request is under way."""

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
            return
        try:
            request = self._dialogue.request()
        except http1.BadRequest as error:
            self._refuse(error)
            return
        if request is not None:
            self.answering = True
            self._run(request, self._answered)
        else:
            self._transport.write(self._dialogue.expectation())

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
