"""HTTP/1.1 as an operator's tools speak it: small requests, one answer each, connections kept open.

Promises: pure. A request that is not understood is a ``BadRequest``; the connection is closed after its answer.
"""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

_MAX_HEAD = 64 * 1024
_MAX_BODY = 1 << 20
_LENGTH_DIGITS = 9
MAX_REQUEST = _MAX_HEAD + _MAX_BODY + 4
"""Bytes of one request."""
TEXT = "text/plain; charset=utf-8"


class BadRequest(Exception):
    """The text is the answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``path`` is unquoted and without the query."""

    method: str
    path: str
    body: bytes = b""
    keep_alive: bool = True


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


def split(buffer: bytes) -> tuple[Request, bytes] | None:
    """The first request in ``buffer`` and what follows it; None while it is not complete."""
    head, blank, rest = buffer.partition(b"\r\n\r\n")
    if len(head) > _MAX_HEAD:
        raise BadRequest(f"more than {_MAX_HEAD} bytes of headers")
    if not blank:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(f"not a request of HTTP/1: {first[:100]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    readable = length.isdecimal() and len(length) <= _LENGTH_DIGITS
    if "transfer-encoding" in headers or not readable or int(length) > _MAX_BODY:
        raise BadRequest(f"a body needs a Content-Length of at most {_MAX_BODY}")
    if len(rest) < int(length):
        return None
    said = headers.get("connection", "").lower()
    keep_alive = "keep-alive" in said if parts[2] == "HTTP/1.0" else "close" not in said
    try:
        path = unquote(urlsplit(parts[1]).path)
    except ValueError as error:
        raise BadRequest(f"not a path: {parts[1][:100]!r}") from error
    request = Request(parts[0], path, rest[: int(length)], keep_alive)
    return request, rest[int(length) :]


def encode(answer: Answer, keep_alive: bool, *, bodiless: bool = False) -> bytes:
    """An answer as bytes; ``bodiless``: to a HEAD, which is told the body's length only."""
    head = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.content_type}\r\n"
    head += f"Content-Length: {len(answer.body)}\r\n" + ("" if keep_alive else "Connection: close\r\n")
    return head.encode() + b"\r\n" + (b"" if bodiless else answer.body)
