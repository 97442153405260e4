"""The HTTP client against a server that a test scripts, connection by connection."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpAnswer, HttpConnection, fetch

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


def received(connection: socket.socket) -> bytes:
    """One request with its body; empty at the end of the connection."""
    request = b""
    while b"\r\n\r\n" not in request or len(request.partition(b"\r\n\r\n")[2]) < int((re.findall(rb"Length: (\d+)", request) or [0])[0]):
        part = connection.recv(65536)
        if not part:
            return b""
        request += part
    return request


class Scripted:
    """Answers the n-th connection's requests with the n-th list of answers, then closes it."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.asked = threading.Event()
        self._scripts = scripts
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for script in self._scripts:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                for answer in script:
                    request = received(connection)
                    if not request:
                        break
                    self.requests.append(request)
                    self.asked.set()
                    connection.sendall(answer)
                else:
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(65536)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def server() -> Iterator[list[Scripted]]:
    made: list[Scripted] = []
    yield made
    for each in made:
        each.close()


def scripted(server: list[Scripted], *scripts: list[bytes]) -> Scripted:
    server.append(Scripted(*scripts))
    return server[-1]


def test_one_connection_serves_many_requests(server: list[Scripted]) -> None:
    one = scripted(server, [OK, OK])
    with HttpConnection.to(one.address, 10, tls=False) as connection:
        assert connection.request("GET", "/a?b=c") == HttpAnswer(200, b"hi")
        assert connection.request("PUT", "/d", b"body").text == "hi"
    assert one.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n") and one.requests[1].endswith(b"Content-Length: 4\r\n\r\nbody")


def test_of_an_error_only_the_beginning_is_read(server: list[Scripted]) -> None:
    endless = b"HTTP/1.1 500 Oops\r\n\r\n" + b"x" * 100_000
    one = scripted(server, [endless], [OK])
    with HttpConnection.to(one.address, 10, tls=False) as connection:
        answer = connection.request("GET", "/")
        assert (answer.status, answer.ok, len(answer.body)) == (500, False, 65536)
        assert connection.request("GET", "/").ok, "over a new connection"


def test_a_redirect_is_an_answer(server: list[Scripted]) -> None:
    one = scripted(server, [b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"])
    assert fetch(f"http://{one.address}/x", 10).status == 302
    assert one.requests[0].startswith(b"GET /x HTTP/1.1\r\n")


def test_the_environment_names_no_proxy(server: list[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    one = scripted(server, [OK])
    assert fetch(f"http://{one.address}", 10, "POST", b"").ok
    assert one.requests[0].startswith(b"POST / HTTP/1.1\r\n")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", b"what\r\n\r\n"])
def test_no_whole_answer_is_a_failure(server: list[Scripted], answer: bytes) -> None:
    one = scripted(server, [answer], [OK])
    with HttpConnection.to(one.address, 10, tls=False) as connection:
        with pytest.raises(FAILURES):
            connection.request("GET", "/")
        assert connection.request("GET", "/").ok, "nothing is repeated, but the connection opens again"


def test_another_thread_ends_a_wait(server: list[Scripted]) -> None:
    one = scripted(server, [b"HTTP/1.1 100 Continue\r\n\r\n", OK])
    connection = HttpConnection.to(one.address, 60, tls=False)
    connection.interrupt()
    failed = threading.Event()

    def wait() -> None:
        try:
            connection.request("GET", "/")
        except FAILURES:
            failed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert one.asked.wait(30)
    connection.interrupt()
    thread.join(30)
    assert failed.is_set()
    connection.close()


@pytest.mark.parametrize("url", ["ftp://h/", "h:80/x", "http://", "http://h:port/"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError):
        fetch(url, 1)


@pytest.mark.parametrize("address", ["h", "h:x"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ValueError):
        HttpConnection.to(address, 1, tls=False)
