"""HTTP/1.1 as an operator's tools speak it: small requests, one answer each, connections kept open. The ``h11`` library reads and writes it.

    dialogue = Dialogue()
    dialogue.take(data); request = dialogue.request()   # None while it is not complete
    dialogue.answer(request, answer)                    # bytes to send

Promises: pure. A request that is not understood is a ``BadRequest``; the connection is closed after its answer. What is kept is bounded.
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
"""Bytes of one request."""
TEXT = "text/plain; charset=utf-8"


class BadRequest(Exception):
    """The text is the answer."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``path`` is unquoted and without the query."""

    method: str
    path: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    content_type: str = TEXT


NOT_FOUND = Answer(HTTPStatus.NOT_FOUND, b"404 page not found\n")
NOT_ALLOWED = Answer(HTTPStatus.METHOD_NOT_ALLOWED)


def json_answer(value: Any, indent: int | None = None) -> Answer:
    """A value as a Go server's encoder writes it: without blanks, a line feed at the end, or indented."""
    text = json.dumps(value, indent=indent, separators=None if indent else (",", ":"), ensure_ascii=False)
    return Answer(body=text.encode() + b"\n")


class Dialogue:
    """The server's side of one connection: a request, its answer, the next request."""

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._asked: h11.Request | None = None
        self._body = bytearray()
        self.waiting = 0
        """Bytes taken since a request was last found: those after it, which are looked at when it is answered."""

    @property
    def open(self) -> bool:
        """Whether another request may come."""
        return self._h11.our_state not in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)

    @property
    def idle(self) -> bool:
        """Whether nothing of a request has come."""
        return self._asked is None and not self._h11.trailing_data[0]

    def take(self, data: bytes) -> None:
        """More bytes."""
        self.waiting += len(data)
        self._h11.receive_data(data)

    def request(self) -> Request | None:
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
            raise BadRequest(f"not a request of HTTP/1: {error}", HTTPStatus(error.error_status_hint)) from error

    def expectation(self) -> bytes:
        """What a client waits for that asks whether it may send its body; else nothing."""
        if not self._h11.they_are_waiting_for_100_continue:
            return b""
        return self._h11.send(h11.InformationalResponse(status_code=100, headers=[])) or b""

    def _add(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > _MAX_BODY:
            raise BadRequest(f"a body of more than {_MAX_BODY} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _found(self) -> Request:
        assert self._asked is not None
        asked, body = self._asked, bytes(self._body)
        self._asked, self._body = None, bytearray()
        self.waiting = len(self._h11.trailing_data[0])
        if not asked.http_version.startswith(b"1."):
            raise BadRequest("not a request of HTTP/1", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if asked.method == b"CONNECT":
            raise BadRequest("no tunnels here", HTTPStatus.METHOD_NOT_ALLOWED)
        target = asked.target.decode("ascii")
        try:
            path = unquote(urlsplit(target).path)
        except ValueError as error:
            raise BadRequest(f"not a path: {target[:100]!r}") from error
        return Request(asked.method.decode("ascii"), path, body)

    def answer(self, answer: Answer, *, bodiless: bool) -> bytes:
        """An answer to the request that was found; ``bodiless``: to a HEAD, which is told the body's length only."""
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        response = h11.Response(status_code=answer.status.value, headers=headers, reason=answer.status.phrase)
        said = self._h11.send(response) or b""
        if answer.body and not bodiless:
            said += self._h11.send(h11.Data(data=answer.body)) or b""
        said += self._h11.send(h11.EndOfMessage()) or b""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        return said

    def refuse(self, error: BadRequest) -> bytes:
        """The answer to what was not understood; nothing follows it."""
        body = f"{error}\n".encode(errors="replace")
        head = f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\nContent-Type: {TEXT}\r\n"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
