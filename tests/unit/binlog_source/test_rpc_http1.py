"""HTTP/1.1 requests and answers as bytes: partial, pipelined and bad ones, and JSON as Go writes it."""

from http import HTTPStatus

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.http1 import MAX_REQUEST, BadRequest, Dialogue, HttpRequest, HttpResponse, json_answer

GET = b"GET /status?verbose=1 HTTP/1.1\r\nHost: pump:8250\r\n\r\n"
PUT = b"PUT /state/a%20b/pause HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nbody"
CHUNKED = b"PUT /c HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n"
MEANT = {
    GET: HttpRequest("GET", "/status", query="verbose=1"),
    PUT: HttpRequest("PUT", "/state/a b/pause", b"body"),
    CHUNKED: HttpRequest("PUT", "/c", b"body"),
}
OK = HttpResponse(body=b"fine")


def asked(data):
    dialogue = Dialogue()
    dialogue.take(data)
    return dialogue, dialogue.request()


def test_requests_one_after_the_other():
    dialogue, first = asked(GET + PUT + b"GET")
    assert first == MEANT[GET] and dialogue.waiting == len(PUT) + 3
    assert dialogue.request() is None, "not before it is answered"
    dialogue.answer(OK, bodiless=False)
    assert dialogue.request() == MEANT[PUT] and dialogue.open
    dialogue.answer(OK, bodiless=False)
    assert dialogue.request() is None


@pytest.mark.parametrize("whole", MEANT)
def test_a_request_is_found_once_it_is_complete(whole):
    dialogue = Dialogue()
    for at in range(len(whole) - 1):
        dialogue.take(whole[at : at + 1])
        assert dialogue.request() is None
    dialogue.take(whole[-1:])
    assert dialogue.request() == MEANT[whole] and dialogue.waiting == 0


@pytest.mark.parametrize(
    ("version", "said", "kept"),
    [
        ("1.1", "C: d", True),
        ("1.1", "Connection: close", False),
        ("1.1", "connection:  Close , TE", False),
        ("1.1", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", True),
        ("1.0", "C: d", False),
    ],
)
def test_whether_the_connection_stays_open(version, said, kept):
    dialogue, found = asked(f"GET / HTTP/{version}\r\nHost: p\r\n{said}\r\n\r\n".encode())
    assert found == HttpRequest("GET", "/")
    assert (b"Connection: close" not in dialogue.answer(OK, bodiless=False)) is kept
    assert dialogue.open is kept


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/", "/"), ("http://pump:8250/status", "/status"), ("/a%2Fb%C3%BC?x#y", "/a/bü"), ("/%ff", "/\ufffd"), ("*", "*")],
)
def test_paths(path, meant):
    _, found = asked(f"GET {path} HTTP/1.1\r\nHost: p\r\n\r\n".encode())
    assert found.path == meant


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: p\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: p\r\n\r\n",
        b"GET //[ HTTP/1.1\r\nHost: p\r\n\r\n",
        b"CONNECT pump:80 HTTP/1.1\r\nHost: p\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: p\r\nName : value\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: x\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: -1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: \xb2\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: 1048577\r\n\r\n" + b"x" * 1048577,
        b"PUT / HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 65536,
        bytes(range(256)) + b"\r\n\r\n",
    ],
)
def test_bad_requests(data):
    dialogue = Dialogue()
    dialogue.take(data)
    with pytest.raises(BadRequest) as bad:
        dialogue.request()
    said = dialogue.refuse(bad.value)
    assert said.startswith(f"HTTP/1.1 {bad.value.status.value} ".encode()) and b"\r\nConnection: close\r\n" in said
    assert 400 <= bad.value.status < 600


@pytest.mark.parametrize("said", [b"Origin: http://evil.example", b"origin: null", b"Origin: http://p", b"Sec-Fetch-Site: same-origin"])
def test_a_page_in_a_browser_may_look_and_change_nothing(said):
    for whole in (PUT, CHUNKED, PUT.replace(b"PUT", b"POST"), PUT.replace(b"PUT", b"DELETE"), PUT.replace(b"PUT", b"put")):
        with pytest.raises(BadRequest, match="a page in a browser may change nothing here") as bad:
            asked(whole.replace(b"Host: p", b"Host: p\r\n" + said))
        assert bad.value.status is HTTPStatus.FORBIDDEN
    assert asked(GET.replace(b"Host:", said + b"\r\nHost:"))[1] == MEANT[GET]


def test_the_largest_request():
    head = b"PUT / HTTP/1.1\r\nHost: p\r\nContent-Length: 1048576\r\n\r\n"
    dialogue, found = asked(head + b"y" * 1048576)
    assert len(found.body) == 1048576 and dialogue.waiting == 0
    assert len(head) + 1048576 <= MAX_REQUEST


def test_who_asks_whether_to_send_its_body_is_told_to():
    dialogue, found = asked(PUT.replace(b"Host: p", b"Host: p\r\nExpect: 100-continue").removesuffix(b"body"))
    assert found is None
    assert dialogue.expectation().startswith(b"HTTP/1.1 100 ") and dialogue.expectation() == b""
    dialogue.take(b"body")
    assert dialogue.request() == MEANT[PUT]


def test_answers():
    answer = HttpResponse(HTTPStatus.NOT_FOUND, b"404 page not found\n")
    head = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 19\r\n"
    for asks, bodiless, said in (
        (GET, False, head + b"\r\n404 page not found\n"),
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), False, head + b"Connection: close\r\n\r\n404 page not found\n"),
        (GET.replace(b"GET", b"HEAD"), True, head + b"\r\n"),
    ):
        dialogue, _ = asked(asks)
        assert dialogue.answer(answer, bodiless=bodiless) == said


def test_json_as_go_writes_it():
    assert json_answer({"a": [1, None], "b": "ü"}).body == '{"a":[1,null],"b":"ü"}\n'.encode()
    assert json_answer({"a": 1}, 2).body == b'{\n  "a": 1\n}\n'
    assert json_answer(None).body == b"null\n"
