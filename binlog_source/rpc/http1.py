"""The server side of HTTP/1.1 for operators' tools: small requests, one answer each, keep-alive. The ``h11`` library parses and serializes.
``Dialogue`` is pure; ``HttpPeer`` is a connection on the loop's thread.

    dialogue = Dialogue()
    dialogue.take(data); request = dialogue.request()   # None while it is not complete
    dialogue.answer(request, answer)                    # bytes to send

Promises: buffers are bounded, and a client that pipelines too many requests is closed. An invalid request raises ``BadRequest``, and the
connection closes after its answer. A request that would change something is invalid, too, if it comes from a page in a browser: the page's
site may have a name that resolves to this machine.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

import h11

_log = logging.getLogger(__name__)

BACKLOG_BYTES = 2 << 20
"""Bytes of answers that wait for a client to read them: above this a stream's handler waits, and no further request is answered."""
_MAX_HEAD = 64 * 1024
_MAX_BODY = 1 << 20
MAX_REQUEST = _MAX_HEAD + _MAX_BODY
"""Maximum bytes of one request."""
TEXT = "text/plain; charset=utf-8"
_LOOKS = (b"GET", b"HEAD", b"OPTIONS")
"""Methods that change nothing."""
_OF_A_PAGE = (b"origin", b"sec-fetch-site")
"""Headers that browsers send, and that a page cannot leave out."""


class BadRequest(Exception):
    """An invalid request; the text is the body of the answer."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; ``path`` is unquoted and without its query."""

    method: str
    path: str
    body: bytes = b""
    query: str = ""
    """What follows the path's ``?``, as it was sent."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One answer."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    """Further ones."""


SUCCESS, NO_SUCH_NODE, OTHER_ERROR = 200, 2, 3
"""The codes in a node's answers to ``PUT /state`` and similar requests (wire.md 8); the HTTP status is always 200."""
NOT_ALLOWED = HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED)
NOT_FOUND = HttpResponse(HTTPStatus.NOT_FOUND, b"404 page not found\n")


def json_answer(value: Any, indent: int | None = None) -> HttpResponse:
    """A value as Go's JSON encoder writes it: compact or indented, with a line feed at the end."""
    text = json.dumps(value, indent=indent, separators=None if indent else (",", ":"), ensure_ascii=False)
    return HttpResponse(body=text.encode() + b"\n")


def only(method: str, request: HttpRequest, make: Callable[[], HttpResponse]) -> HttpResponse:
    """The answer of an endpoint that has one method."""
    return make() if request.method == method else NOT_ALLOWED


def node_answer(message: str, code: int, data: Mapping[str, int] | None = None) -> HttpResponse:
    """A real node's ``Response`` in JSON: indented, without a line feed at its end."""
    body = json_answer({"message": message, "code": code, "data": data}, indent=2).body
    return HttpResponse(HTTPStatus.OK, body.rstrip(b"\n"), "application/json; charset=UTF-8")


class Dialogue:
    """The server's side of one connection: a request, its answer, the next request."""

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._asked: h11.Request | None = None
        self._body = bytearray()
        self.waiting = 0
        """Bytes received since the last complete request; they are parsed once it is answered."""

    @property
    def open(self) -> bool:
        """Whether another request may come."""
        return self._h11.our_state not in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)

    def take(self, data: bytes) -> None:
        """Receive more bytes."""
        self.waiting += len(data)
        self._h11.receive_data(data)

    def request(self) -> HttpRequest | None:
        """The next request, once it is complete.

        Raises:
            BadRequest: answer by ``refuse`` and close.
        """
        try:
            while True:
                event = self._h11.next_event()
                if isinstance(event, h11.Request):
                    self._asked = event
                elif isinstance(event, h11.Data):
                    self._add(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    return self._found()
                else:
                    return None
        except h11.RemoteProtocolError as error:
            raise BadRequest(f"not an HTTP/1 request: {error}", HTTPStatus(error.error_status_hint)) from error

    def expectation(self) -> bytes:
        """The ``100 Continue`` that the client waits for before it sends its body; else nothing."""
        if not self._h11.they_are_waiting_for_100_continue:
            return b""
        return self._h11.send(h11.InformationalResponse(status_code=100, headers=[])) or b""

    def _add(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > _MAX_BODY:
            raise BadRequest(f"a body of more than {_MAX_BODY} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _found(self) -> HttpRequest:
        assert self._asked is not None
        asked, body = self._asked, bytes(self._body)
        self._asked, self._body = None, bytearray()
        self.waiting = len(self._h11.trailing_data[0])
        if not asked.http_version.startswith(b"1."):
            raise BadRequest("not an HTTP/1 request", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if asked.method == b"CONNECT":
            raise BadRequest("CONNECT is not supported", HTTPStatus.METHOD_NOT_ALLOWED)
        if asked.method not in _LOOKS and any(name in _OF_A_PAGE for name, _ in asked.headers):
            raise BadRequest("a request from a page in a browser may change nothing here: use a command-line client", HTTPStatus.FORBIDDEN)
        target = asked.target.decode("ascii")
        try:
            parts = urlsplit(target)
        except ValueError as error:
            raise BadRequest(f"not a path: {target[:100]!r}") from error
        return HttpRequest(asked.method.decode("ascii"), unquote(parts.path), body, parts.query)

    def answer(self, answer: HttpResponse, *, bodiless: bool) -> bytes:
        """Serialize the answer to the last complete request; ``bodiless``: to a HEAD, with the body's length only."""
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))), *answer.headers]
        response = h11.Response(status_code=answer.status.value, headers=headers, reason=answer.status.phrase)
        said = self._h11.send(response) or b""
        if answer.body and not bodiless:
            said += self._h11.send(h11.Data(data=answer.body)) or b""
        said += self._h11.send(h11.EndOfMessage()) or b""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        return said

    def refuse(self, error: BadRequest) -> bytes:
        """Serialize the answer to an invalid request; nothing follows it."""
        body = f"{error}\n".encode(errors="replace")
        head = f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\nContent-Type: {TEXT}\r\n"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


RunHttp = Callable[[HttpRequest, Callable[[HttpRequest, HttpResponse], None]], None]
"""Answers a request in another thread, then calls its second argument on the loop's thread."""


class HttpPeer:
    """The requests and answers of one connection."""

    def __init__(self, run: RunHttp, transport: asyncio.Transport) -> None:
        self._run = run
        self._transport = transport
        self._dialogue = Dialogue()
        self._ended = False
        self.answering = False
        """Whether a request is under way."""

    def received(self, data: bytes) -> None:
        """Process more bytes; none: the write buffer has room for more answers."""
        if data:
            self._dialogue.take(data)
        self._next()
        if self._dialogue.waiting > MAX_REQUEST:
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
        except BadRequest as error:
            self._refuse(error)
            return
        if request is not None:
            self.answering = True
            self._run(request, self._answered)
        else:
            self._transport.write(self._dialogue.expectation())

    def _refuse(self, error: BadRequest) -> None:
        self._transport.write(self._dialogue.refuse(error))
        self._transport.close()

    def _answered(self, request: HttpRequest, answer: HttpResponse) -> None:
        self.answering = False
        if not self._transport.is_closing():
            self._transport.write(self._dialogue.answer(answer, bodiless=request.method == "HEAD"))
            if self._dialogue.open:
                self._next()
            if not self._dialogue.open or (self._ended and not self.answering):
                self._transport.close()
