"""The server side of HTTP/1.1 for operators' tools: small requests, one answer each, keep-alive. The ``h11`` library parses and serializes.

    dialogue = Dialogue()
    dialogue.take(data); request = dialogue.request()   # None while it is not complete
    dialogue.answer(request, answer)                    # bytes to send

Promises: pure. Buffers are bounded. An invalid request raises ``BadRequest``, and the connection closes after its answer. A request that
would change something is invalid, too, if it comes from a page in a browser: the page's site may have a name that resolves to this machine.
"""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

import h11

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


NOT_FOUND = HttpResponse(HTTPStatus.NOT_FOUND, b"404 page not found\n")
NOT_ALLOWED = HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED)


def json_answer(value: Any, indent: int | None = None) -> HttpResponse:
    """A value as Go's JSON encoder writes it: compact or indented, with a line feed at the end."""
    text = json.dumps(value, indent=indent, separators=None if indent else (",", ":"), ensure_ascii=False)
    return HttpResponse(body=text.encode() + b"\n")


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
