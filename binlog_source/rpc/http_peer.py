"""One connection that speaks HTTP/1: one request at a time. Everything here happens on the loop's thread.

Promises: a client whose request takes more than ``REQUEST_SECONDS`` to come, or that asks nothing or takes nothing of its answer for
``IDLE_SECONDS``, is closed; so is one that asks on and on and does not wait for the answers. What it sends counts against the server's ``Budget``.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from binlog_source.rpc import http1
from binlog_source.rpc.budget import Share
from binlog_source.rpc.calls import BACKLOG_BYTES

if TYPE_CHECKING:
    from binlog_source.rpc.front import Front

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
"""In which a request must be complete."""
IDLE_SECONDS = 120.0
"""Between two requests, or while an answer does not move."""
ENDLESS = float("inf")


class Turn(NamedTuple):
    """What is awaited of a client: while it stays the same, time runs."""

    seconds: float
    """That it may take."""
    requests: int = 0
    """That the client has made."""
    unsent: int = 0
    """Bytes of answers that it has not taken."""


class HttpPeer:
    """The requests and answers of one connection."""

    def __init__(self, front: "Front", transport: asyncio.Transport) -> None:
        self._front = front
        self._transport = transport
        self._dialogue = http1.Dialogue()
        self._ended = False
        self._requests = 0
        self.share = Share(front.budget, lambda stream_id: None)
        """Of the server's memory for unfinished requests."""
        self.answering = False
        """Whether a request is under way."""

    @property
    def turn(self) -> Turn:
        """What is awaited of the client now."""
        unsent = self._transport.get_write_buffer_size()
        if self.answering:
            return Turn(ENDLESS)
        return Turn(IDLE_SECONDS if unsent or self._dialogue.idle else REQUEST_SECONDS, self._requests, unsent)

    def received(self, data: bytes) -> None:
        """More bytes, or room for more answers."""
        if data:
            self._dialogue.take(data)
        self._next()
        if self._dialogue.waiting > http1.MAX_REQUEST:
            _log.warning("a client is cut off: it sent %d bytes and waits for no answer", self._dialogue.waiting)
            self._transport.abort()

    def ended(self) -> bool:
        """The client says no more: whether it still waits for an answer."""
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
            self._front.run_http(request, self._answered)
        else:
            self._transport.write(self._dialogue.expectation())
        self._count()

    def _count(self) -> None:
        self.share.count(self._dialogue.waiting - self.share.counted)

    def _refuse(self, error: http1.BadRequest) -> None:
        self._transport.write(self._dialogue.refuse(error))
        self._transport.close()

    def _answered(self, request: http1.Request, answer: http1.Answer) -> None:
        self.answering = False
        if not self._transport.is_closing():
            self._transport.write(self._dialogue.answer(answer, bodiless=request.method == "HEAD"))
            if self._dialogue.open:
                self._next()
            if not self._dialogue.open or (self._ended and not self.answering):
                self._transport.close()
