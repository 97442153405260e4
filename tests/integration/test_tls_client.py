"""``TlsChannel``, the gRPC client for TLS: servers with and without ALPN, of any size and pace, that fail in every way."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.channels import open_channel
from pyspark_tidb_binlog.binlog_source.cluster.secure_channel import TlsChannel
from pyspark_tidb_binlog.binlog_source.rpc.client_call import WINDOW
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.tls_server import PATIENCE, TlsServer, serving, without_alpn

pytestmark = pytest.mark.grpc
CODE = grpc.StatusCode


@pytest.fixture(params=["with ALPN", "without ALPN"])
def server(ca: Authority, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsServer]:
    if request.param == "without ALPN":
        without_alpn(monkeypatch)
    with serving(ca.settings("server", "server", ("client", "server"))) as made:
        yield made


@pytest.fixture
def tls(ca: Authority) -> TlsSettings:
    return ca.settings("client", "client", ("server", "client"))


@pytest.fixture
def channel(server: TlsServer, tls: TlsSettings) -> Iterator[TlsChannel]:
    with open_channel(server.address, tls) as made:
        assert isinstance(made, TlsChannel)
        yield made


def failure(call: Callable[[], Any]) -> grpc.Call:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    assert isinstance(failed.value, grpc.Call)
    return failed.value


@pytest.mark.shows("wire gotcha 7")
def test_grpcio_refuses_a_server_without_alpn(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is a client of our own (wire.md 7)."""
    without_alpn(monkeypatch)
    with serving(ca.settings("server")) as server:
        trusted = grpc.ssl_channel_credentials(Path(ca.ca).read_bytes())
        with grpc.secure_channel(server.address, trusted) as channel:
            assert "missing selected ALPN" in str(failure(lambda: channel.unary_unary("/t/Write")(b"", timeout=PATIENCE)).details())


def test_a_call(server: TlsServer, channel: TlsChannel) -> None:
    method = channel.unary_unary("/t/Write", request_serializer=str.encode, response_deserializer=len)
    assert method("hello", timeout=PATIENCE) == 0
    assert server.messages.get() == b"hello"
    future = method.future("again")
    assert (future.result(PATIENCE), future.code(), future.details(), future.done(), future.cancelled()) == (0, CODE.OK, "", True, False)


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_535, 65_536, 20 << 20])
def test_requests_of_any_size(server: TlsServer, channel: TlsChannel, size: int) -> None:
    channel.unary_unary("/t/Write")(b"x" * size, timeout=PATIENCE)
    assert len(server.messages.get()) == size


@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 0), (5000, 10), (300, 100_000), (3, 20 << 20)])
def test_a_stream(channel: TlsChannel, count: int, size: int) -> None:
    call = channel.unary_stream("/t/Down")(b"%d %d" % (count, size), metadata=(("x-say", "hi"),), timeout=PATIENCE)
    assert dict(call.initial_metadata())["x-echo"] == "hi"
    messages = list(call)
    assert messages == [(b"%d " % number).ljust(size, b".") for number in range(count)]
    assert (call.code(), call.details(), call.is_active()) == (CODE.OK, "", False)
    assert dict(call.trailing_metadata())["grpc-status"] == "0"


def test_a_stream_in_gzip(channel: TlsChannel) -> None:
    call = channel.unary_stream("/t/Down")(b"50 100000", timeout=PATIENCE, compression=grpc.Compression.Gzip)
    assert dict(call.initial_metadata())["grpc-encoding"] == "gzip"
    assert [len(message) for message in call] == [100_000] * 50


def test_a_slow_reader_slows_the_server_down_and_nobody_else(server: TlsServer, channel: TlsChannel) -> None:
    size = 100_000
    slow = channel.unary_stream("/t/Down")(b"2000 %d" % size)
    next(slow)
    eventually(lambda: server.sent > 10)
    time.sleep(0.3)
    # what is held here, the window that is open, and what the server takes over from its handler
    assert server.sent * size < 3 * WINDOW + (4 << 20)
    assert slow.inner._queued < 2 * WINDOW + 2 * size
    assert len(list(channel.unary_stream("/t/Down")(b"300 100000", timeout=PATIENCE))) == 300
    assert len(list(slow)) == 1999


@pytest.mark.parametrize("text", ["no", "größer als 100 %\n", ""])
def test_a_refusal(channel: TlsChannel, text: str) -> None:
    error = failure(lambda: channel.unary_unary("/t/Refuse")(text.encode(), timeout=PATIENCE))
    assert (error.code(), error.details(), error.initial_metadata()) == (CODE.UNKNOWN, text, ())
    late = channel.unary_stream("/t/RefuseLate")(text.encode(), timeout=PATIENCE)
    assert [next(late), next(late)] == [b"one", b"two"]
    assert failure(lambda: next(late)) is late and (late.code(), late.details()) == (CODE.UNKNOWN, text)
    assert failure(lambda: channel.unary_unary("/t/Unknown")(b"", timeout=PATIENCE)).code() is CODE.UNIMPLEMENTED


def test_a_request_that_is_too_large_is_refused_while_it_is_sent(ca: Authority, tls: TlsSettings) -> None:
    with serving(ca.settings("server", "server"), max_request=1000) as server, open_channel(server.address, tls) as channel:
        method = channel.unary_unary("/t/Write")
        assert failure(lambda: method(b"x" * (8 << 20), timeout=PATIENCE)).code() is CODE.RESOURCE_EXHAUSTED
        assert method(b"x", timeout=PATIENCE) == b""


def test_a_time_out(server: TlsServer, channel: TlsChannel) -> None:
    begun = time.monotonic()
    call = channel.unary_unary("/t/Hold").future(b"", timeout=0.2)
    assert failure(call.result).code() is CODE.DEADLINE_EXCEEDED and time.monotonic() - begun >= 0.2
    waits = channel.unary_stream("/t/Wait")(b"", timeout=0.3)
    assert failure(lambda: list(waits)).code() is CODE.DEADLINE_EXCEEDED
    eventually(lambda: not server.front._handlers, what="the server is told", seconds=PATIENCE)
    assert channel.unary_unary("/t/Write")(b"", timeout=PATIENCE) == b""


def test_cancel_from_another_thread(server: TlsServer, channel: TlsChannel) -> None:
    call = channel.unary_stream("/t/Wait")(b"")
    assert next(call) == b"here"
    threading.Timer(0.1, call.cancel).start()
    assert failure(lambda: next(call)).code() is CODE.CANCELLED and call.cancelled()
    assert server.ended.get(timeout=PATIENCE) is True
    future = channel.unary_unary("/t/Hold").future(b"")
    future.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        future.result(PATIENCE)


def test_many_calls_from_many_threads(server: TlsServer, channel: TlsChannel) -> None:
    """More than the server allows at the same time wait for their turn."""
    held = [channel.unary_unary("/t/Hold").future(b"%d" % number, timeout=PATIENCE) for number in range(600)]
    eventually(lambda: server.held.qsize() == 512, what="as many as the server allows")
    time.sleep(0.1)
    assert server.held.qsize() == 512
    for _ in held:
        server.answer_one()
    assert [call.result() for call in held] == [b""] * 600
    with ThreadPoolExecutor(8) as pool:
        sums = pool.map(lambda n: sum(map(len, channel.unary_stream("/t/Down")(b"20 %d" % (10_000 * n), timeout=PATIENCE))), range(24))
        assert list(sums) == [20 * max(10_000 * n, 2) if n else 2 * 10 + 3 * 10 for n in range(24)]


def test_nobody_listens(server: TlsServer, channel: TlsChannel) -> None:
    assert channel.unary_unary("/t/Write")(b"", timeout=PATIENCE) == b""
    server.front.stop(0)
    error = eventually(lambda: failure(lambda: channel.unary_unary("/t/Write")(b"", timeout=PATIENCE)))
    assert error.code() is CODE.UNAVAILABLE


def test_a_call_that_waits_for_its_server(ca: Authority, tls: TlsSettings) -> None:
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
    with open_channel(address, tls) as channel:
        method = channel.unary_unary("/t/Write")
        assert failure(lambda: method(b"", timeout=PATIENCE)).code() is CODE.UNAVAILABLE
        assert failure(lambda: method(b"", timeout=0.5, wait_for_ready=True)).code() is CODE.DEADLINE_EXCEEDED
        waits = method.future(b"", timeout=PATIENCE, wait_for_ready=True)
        with serving(ca.settings("server", "server"), addr=address):
            assert waits.result() == b""


def test_calls_under_way_end_well_when_the_server_stops(server: TlsServer, channel: TlsChannel) -> None:
    """GOAWAY: what the server has begun it finishes; a new call is told at once."""
    waits, held = channel.unary_stream("/t/Wait")(b""), channel.unary_unary("/t/Hold").future(b"")
    assert next(waits) == b"here"
    call = server.held.get(timeout=PATIENCE)
    stops = threading.Thread(target=server.front.stop, args=(PATIENCE,))
    stops.start()
    eventually(lambda: channel.client._connection is None, what="GOAWAY came")
    assert failure(lambda: channel.unary_unary("/t/Write")(b"", timeout=PATIENCE)).code() is CODE.UNAVAILABLE
    server.front.call(server.front.answer, ((call, None),))
    assert held.result(PATIENCE) == b""
    server.go_on.set()
    list(waits)
    assert waits.code() is CODE.OK
    stops.join()


def test_a_restarted_server_is_found_again(ca: Authority, tls: TlsSettings) -> None:
    with serving(ca.settings("server", "server")) as first, open_channel(first.address, tls) as channel:
        address = first.address
        assert channel.unary_unary("/t/Write")(b"", timeout=PATIENCE) == b""
        first.front.stop(0)
        with serving(ca.settings("server", "server"), addr=address):
            eventually(lambda: _succeeds(lambda: channel.unary_unary("/t/Write")(b"", timeout=PATIENCE)))


def _succeeds(call: Callable[[], Any]) -> bool:
    with contextlib.suppress(grpc.RpcError):
        call()
        return True
    return False


def test_a_closed_channel(server: TlsServer, tls: TlsSettings) -> None:
    channel = open_channel(server.address, tls)
    waits = channel.unary_stream("/t/Wait")(b"")
    assert next(waits) == b"here"
    channel.close()
    assert failure(lambda: next(waits)).code() is CODE.CANCELLED
    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary("/t/Write")(b"")
    assert server.ended.get(timeout=PATIENCE) is True


def test_a_retired_channel_closes_with_its_last_call(server: TlsServer, channel: TlsChannel) -> None:
    waits = channel.unary_stream("/t/Wait")(b"")
    assert next(waits) == b"here"
    channel.retire()
    eventually(lambda: channel.client._connection is None)
    assert len(server.front._peers) == 1
    server.go_on.set()
    assert list(waits) == [b"the last"]
    eventually(lambda: not server.front._peers)


# Servers that are not to be trusted.


def why_not(address: str, tls: TlsSettings) -> str:
    with open_channel(address, tls) as channel:
        error = failure(lambda: channel.unary_unary("/t/Write")(b"secret", timeout=PATIENCE))
    assert error.code() is CODE.UNAVAILABLE
    return str(error.details())


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({"cn": "server", "expired": True}, "certificate has expired"),
        ({"cn": "server", "names": ("10.0.0.1",)}, "IP address mismatch"),
        ({"cn": "127.0.0.1", "names": ()}, "IP address mismatch"),
        ({"cn": "other"}, "'other', 'test-ca'"),
    ],
)
def test_a_server_that_is_not_to_be_trusted(ca: Authority, shown: dict[str, Any], why: str) -> None:
    with serving(ca.settings("server", **shown)) as server:
        assert why in why_not(server.address, TlsSettings(ca.ca, allowed_cn=("server", "127.0.0.1")))
        assert server.messages.empty()


def test_a_server_of_another_ca(ca: Authority, tmp_path: Path) -> None:
    with serving(Authority(tmp_path / "other").settings("server")) as server:
        assert "certificate is refused" in why_not(server.address, TlsSettings(ca.ca))


def test_a_server_without_tls(why_of: "WhyOf") -> None:
    assert "wrong version number" in why_of(lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), secured=False)


def test_a_certificate_that_cannot_be_read(ca: Authority) -> None:
    assert "ssl-ca cannot be read from /nowhere" in why_not("127.0.0.1:1", TlsSettings("/nowhere"))


class WhyOf:
    """Why a call fails on a server that does ``act`` with its one connection."""

    def __init__(self, ca: Authority) -> None:
        self._ca = ca

    def __call__(self, act: Callable[[Any], None], *, secured: bool = True) -> str:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._serve, args=(listener, act, secured))
            thread.start()
            try:
                return why_not(f"127.0.0.1:{listener.getsockname()[1]}", TlsSettings(self._ca.ca))
            finally:
                thread.join()

    def _serve(self, listener: socket.socket, act: Callable[[Any], None], secured: bool) -> None:
        bare, _ = listener.accept()
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(bare)
            context = self._ca.settings("server").server("h2")
            client = stack.enter_context(context.wrap_socket(bare, server_side=True)) if secured else bare
            act(client)
            while client.recv(1000):
                pass


@pytest.fixture
def why_of(ca: Authority) -> WhyOf:
    return WhyOf(ca)


def test_a_server_that_speaks_something_else(why_of: WhyOf) -> None:
    assert "does not speak HTTP/2" in why_of(lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def test_a_server_that_closes_at_once(why_of: WhyOf) -> None:
    assert "closed" in why_of(lambda client: client.close())


def h2_server(client: Any, answer: Callable[[h2.connection.H2Connection, int], None]) -> None:
    """Answer the first call by the ``h2`` library."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    connection.initiate_connection()
    while True:
        client.sendall(connection.data_to_send())
        for event in connection.receive_data(client.recv(65536)):
            if isinstance(event, h2.events.RequestReceived):
                answer(connection, event.stream_id or 0)
                client.sendall(connection.data_to_send())
                return


HEAD = [(":status", "200"), ("content-type", "application/grpc")]


@pytest.mark.parametrize(
    ("acts", "code", "text"),
    [
        ([("send_headers", [(":status", "503")], True)], CODE.UNAVAILABLE, "HTTP status 503"),
        ([("send_headers", [(":status", "404")], True)], CODE.UNIMPLEMENTED, "HTTP status 404"),
        ([("send_headers", [(":status", "200"), ("content-type", "text/html")])], CODE.UNKNOWN, "text/html"),
        ([("send_headers", HEAD), ("send_headers", [("x", "y")], True)], CODE.UNKNOWN, "without a status"),
        ([("send_headers", HEAD, True)], CODE.UNKNOWN, "without a status"),
        ([("send_headers", [*HEAD, ("grpc-status", "0")], True)], CODE.INTERNAL, "without a message"),
        ([("send_headers", [*HEAD, ("grpc-status", "99")], True)], CODE.UNKNOWN, ""),
        (
            [("send_headers", HEAD), ("send_data", b"\0\0\0\0\x09half"), ("send_headers", [("grpc-status", "0")], True)],
            CODE.INTERNAL,
            "9 bytes into a message",
        ),
        ([("send_headers", HEAD), ("send_data", b"\1\0\0\0\x01x")], CODE.INTERNAL, "compressed"),
        ([("reset_stream", 7)], CODE.UNAVAILABLE, "HTTP/2 error 7"),
        ([("reset_stream", 8)], CODE.CANCELLED, "HTTP/2 error 8"),
        ([("reset_stream", 11)], CODE.RESOURCE_EXHAUSTED, "HTTP/2 error 11"),
        ([("reset_stream", 0)], CODE.INTERNAL, "HTTP/2 error 0"),
    ],
)
def test_an_answer_that_is_none(ca: Authority, acts: list[tuple[Any, ...]], code: grpc.StatusCode, text: str) -> None:
    def answer(connection: h2.connection.H2Connection, stream_id: int) -> None:
        for name, *arguments in acts:
            getattr(connection, name)(stream_id, *arguments)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        whys = WhyOf(ca)
        thread = threading.Thread(target=whys._serve, args=(listener, lambda client: h2_server(client, answer), True))
        thread.start()
        with open_channel(f"127.0.0.1:{listener.getsockname()[1]}", TlsSettings(ca.ca)) as channel:
            error = failure(lambda: channel.unary_unary("/t/Write")(b"", timeout=PATIENCE))
        thread.join()
    assert error.code() is code and text in str(error.details()), error


def test_a_silent_host_is_given_up(ca: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with open_channel(address, TlsSettings(ca.ca), connect_seconds=0.1) as channel:
            error = failure(lambda: channel.unary_unary("/t/Write")(b"", timeout=PATIENCE))
    assert error.code() is CODE.UNAVAILABLE and "no connection within 1 s" in str(error.details())
