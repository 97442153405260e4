"""HTTP/1.1 requests and answers as bytes: partial, pipelined and bad ones, and JSON as Go writes it."""

from http import HTTPStatus

import pytest

from binlog_source.rpc.http1 import MAX_REQUEST, Answer, BadRequest, Request, encode, json_answer, split

GET = b"GET /status?verbose=1 HTTP/1.1\r\nHost: pump:8250\r\n\r\n"
PUT = b"PUT /state/a%20b/pause HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"


def test_requests_one_after_the_other():
    first, rest = split(GET + PUT + b"GET")
    assert first == Request("GET", "/status")
    second, rest = split(rest)
    assert second == Request("PUT", "/state/a b/pause", b"body")
    assert rest == b"GET" and split(rest) is None


@pytest.mark.parametrize("whole", [GET, PUT])
def test_a_request_is_found_once_it_is_complete(whole):
    assert [split(whole[:cut]) for cut in range(len(whole))] == [None] * len(whole)
    found, rest = split(whole)
    assert found.method.encode() == whole[:3] and rest == b""


@pytest.mark.parametrize(
    ("version", "said", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close", False),
        ("1.1", "connection:  Close , TE", False),
        ("1.1", "Connection: Upgrade, HTTP2-Settings", True),
        ("1.0", "", False),
        ("1.0", "Connection: Keep-Alive", True),
    ],
)
def test_whether_the_connection_stays_open(version, said, kept):
    found, _ = split(f"GET / HTTP/{version}\r\nA: b\r\n{said}\r\n\r\n".encode())
    assert found.keep_alive is kept


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/", "/"), ("http://pump:8250/status", "/status"), ("/a%2Fb%C3%BC?x#y", "/a/bü"), ("/%ff", "/\ufffd"), ("*", "*")],
)
def test_paths(path, meant):
    found, _ = split(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    assert found.path == meant


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET //[ HTTP/1.1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 65536,
        b"GET / HTTP/1.1\r\nX: " + b"y" * 65536 + b"\r\n\r\n",
        bytes(range(256)) + b"\r\n\r\n",
    ],
)
def test_bad_requests(data):
    with pytest.raises(BadRequest):
        split(data)


def test_the_largest_request():
    head = b"PUT / HTTP/1.1\r\nContent-Length: 1048576\r\nX: "
    whole = head + b"x" * (65536 - len(head)) + b"\r\n\r\n" + b"y" * 1048576
    assert len(whole) == MAX_REQUEST
    found, rest = split(whole)
    assert len(found.body) == 1048576 and rest == b""


def test_answers():
    answer = Answer(HTTPStatus.NOT_FOUND, b"404 page not found\n")
    head = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 19\r\n"
    assert encode(answer, True) == head + b"\r\n404 page not found\n"
    assert encode(answer, False) == head + b"Connection: close\r\n\r\n404 page not found\n"
    assert encode(answer, True, bodiless=True) == head + b"\r\n"


def test_json_as_go_writes_it():
    assert json_answer({"a": [1, None], "b": "ü"}).body == '{"a":[1,null],"b":"ü"}\n'.encode()
    assert json_answer({"a": 1}, 2).body == b'{\n  "a": 1\n}\n'
    assert json_answer(None).body == b"null\n"
