"""Channels with TLS, which are grpcio's through a ``TlsTunnel``: servers with and without ALPN, and why a server is not spoken to."""

import contextlib
import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.channels import details, open_channel
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.tls_server import PATIENCE, TlsServer, serving, without_alpn

pytestmark = pytest.mark.grpc
CODE = grpc.StatusCode
LARGE = (("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 100))


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
def channel(server: TlsServer, tls: TlsSettings) -> Iterator[grpc.Channel]:
    with open_channel(server.address, tls, LARGE) as made:
        yield made


def write(channel: grpc.Channel, data: bytes = b"", **more: Any) -> object:
    return channel.unary_unary("/t/Write")(data, timeout=PATIENCE, **more)


def failure(call: Callable[[], Any]) -> grpc.Call:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    assert isinstance(failed.value, grpc.Call)
    return failed.value


def _succeeds(channel: grpc.Channel) -> bool:
    with contextlib.suppress(grpc.RpcError):
        write(channel)
        return True
    return False


@pytest.mark.shows("wire gotcha 7")
def test_grpcios_own_tls_refuses_a_server_without_alpn(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is a tunnel (wire.md 7)."""
    without_alpn(monkeypatch)
    with serving(ca.settings("server")) as server:
        trusted = grpc.ssl_channel_credentials(Path(ca.ca).read_bytes())
        with grpc.secure_channel(server.address, trusted) as channel:
            assert "missing selected ALPN" in str(failure(lambda: write(channel)).details())


@pytest.mark.parametrize("size", [0, 1, 16_384, 131_072, 20 << 20])
def test_requests_of_any_size(server: TlsServer, channel: grpc.Channel, size: int) -> None:
    assert write(channel, b"x" * size) == b""
    assert len(server.messages.get()) == size


@pytest.mark.parametrize(("count", "size"), [(0, 1), (5000, 10), (300, 100_000), (3, 20 << 20)])
def test_a_stream(channel: grpc.Channel, count: int, size: int) -> None:
    call = channel.unary_stream("/t/Down")(b"%d %d" % (count, size), metadata=(("x-say", "hi"),), timeout=PATIENCE)
    assert dict(call.initial_metadata())["x-echo"] == "hi"
    assert list(call) == [(b"%d " % number).ljust(size, b".") for number in range(count)]


def test_a_slow_reader_slows_the_server_down_and_nobody_else(server: TlsServer, channel: grpc.Channel) -> None:
    slow = channel.unary_stream("/t/Down")(b"2000 100000")
    next(slow)
    eventually(lambda: server.sent > 10)
    time.sleep(0.3)
    assert server.sent < 1000
    assert len(list(channel.unary_stream("/t/Down")(b"300 100000", timeout=PATIENCE))) == 300
    assert len(list(slow)) == 1999


def test_many_calls_from_many_threads(channel: grpc.Channel) -> None:
    with ThreadPoolExecutor(8) as pool:
        sums = pool.map(lambda n: sum(map(len, channel.unary_stream("/t/Down")(b"20 %d" % (10_000 * n), timeout=PATIENCE))), range(1, 24))
        both = pool.map(lambda n: write(channel, b"x" * n), [1 << 20] * 24)
        assert list(sums) == [200_000 * n for n in range(1, 24)] and list(both) == [b""] * 24


def test_cancel_from_another_thread(server: TlsServer, channel: grpc.Channel) -> None:
    call = channel.unary_stream("/t/Wait")(b"")
    assert next(call) == b"here"
    threading.Timer(0.1, call.cancel).start()
    assert failure(lambda: next(call)).code() is CODE.CANCELLED
    assert server.ended.get(timeout=PATIENCE) is True


def test_a_closed_channel_closes_its_connection(server: TlsServer, tls: TlsSettings) -> None:
    channel = open_channel(server.address, tls)
    waits = channel.unary_stream("/t/Wait")(b"")
    assert next(waits) == b"here"
    channel.close()
    assert failure(lambda: next(waits)).code() is CODE.CANCELLED
    eventually(lambda: not server.front._peers)


def test_a_channel_that_nobody_has_leaves_nothing_behind(server: TlsServer, tls: TlsSettings) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if server.address in thread.name]

    channel = open_channel(server.address, tls)
    assert write(channel) == b"" and len(threads()) == 2
    del channel
    gc.collect()
    eventually(lambda: not threads() and not server.front._peers, seen=threads)


def test_a_call_that_waits_for_its_server(ca: Authority, tls: TlsSettings) -> None:
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
    with open_channel(address, tls, LARGE) as channel:
        error = failure(lambda: write(channel))
        assert (error.code(), details(error)) == (CODE.UNAVAILABLE, f"failed to connect to {address}: [Errno 111] Connection refused")
        waits = channel.unary_unary("/t/Write").future(b"", timeout=PATIENCE, wait_for_ready=True)
        with serving(ca.settings("server", "server"), addr=address):
            assert waits.result() == b""


def test_a_restarted_server_is_found_again(ca: Authority, tls: TlsSettings) -> None:
    with serving(ca.settings("server", "server")) as first, open_channel(first.address, tls, LARGE) as channel:
        address = first.address
        assert write(channel) == b""
        first.front.stop(0)
        eventually(lambda: "Connection refused" in details(failure(lambda: write(channel))))
        with serving(ca.settings("server", "server"), addr=address):
            eventually(lambda: _succeeds(channel))


def test_renewed_certificates_are_used_for_the_next_connection(ca: Authority, tls: TlsSettings) -> None:
    """The client's and the CA's: the server that is restarted has another authority, and admits another name."""
    with serving(ca.settings("server", "server", ("client",))) as first, open_channel(first.address, tls, LARGE) as channel:
        address = first.address
        assert write(channel) == b""
        first.front.stop(0)
        renewed = Authority(Path(tls.ca).parent / "renewed")
        with serving(renewed.settings("server", "server", ("again",)), addr=address):
            eventually(lambda: "certificate is refused" in details(failure(lambda: write(channel))))
            made = renewed.certify("client", "again")
            for new, used in ((made.cert, tls.cert), (made.key, tls.key), (Path(renewed.ca), tls.ca)):
                os.replace(new, used)
            eventually(lambda: _succeeds(channel))


def test_what_the_server_sees(ca: Authority) -> None:
    """The called host's name in TLS and HTTP/2, which must be served as encrypted."""
    seen: list[object] = []

    def serve(client: ssl.SSLSocket) -> None:
        seen.append(client.selected_alpn_protocol())
        client.sendall(b"\0\0\0\4\0\0\0\0\0")
        received = b""
        while b"grpc-timeout" not in received:
            received += client.recv(10_000)
        seen.append(received)

    with Scripted(ca, serve) as scripted:
        scripted.context.sni_callback = lambda _, name, __: seen.append(name)
        failure(lambda: write(scripted.channel("localhost")))
    name, protocol, received = seen
    assert (name, protocol) == ("localhost", "h2")
    https = b"\x87"
    assert isinstance(received, bytes) and f"localhost:{scripted.port}".encode() in received and https in received


# Servers that are not to be trusted.


def why_not(address: str, tls: TlsSettings, options: Sequence[tuple[str, int]] = (), connect_seconds: float = 20.0) -> str:
    with open_channel(address, tls, options, connect_seconds) as channel:
        error = failure(lambda: write(channel, b"secret"))
    assert error.code() is CODE.UNAVAILABLE and address in details(error)
    return details(error)


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({"cn": "server", "expired": True}, "certificate has expired: check security.ssl-ca"),
        ({"cn": "server", "names": ("10.0.0.1",)}, "IP address mismatch"),
        ({"cn": "127.0.0.1", "names": ()}, "IP address mismatch"),
        ({"cn": "other"}, "'other', 'test-ca', and cert-allowed-cn allows none of them"),
    ],
)
def test_a_server_that_is_not_to_be_trusted(ca: Authority, shown: dict[str, Any], why: str) -> None:
    with serving(ca.settings("server", **shown)) as server:
        assert why in why_not(server.address, TlsSettings(ca.ca, allowed_cn=("server", "127.0.0.1")))
        assert server.messages.empty()


def test_a_server_of_another_ca(ca: Authority, tmp_path: Path) -> None:
    with serving(Authority(tmp_path / "other").settings("server")) as server:
        assert "certificate is refused: self-signed" in why_not(server.address, TlsSettings(ca.ca))


def test_a_certificate_that_cannot_be_read() -> None:
    assert "ssl-ca cannot be read from /nowhere" in why_not("127.0.0.1:1", TlsSettings("/nowhere"))


class Scripted:
    """A server that does ``act`` with its one connection."""

    def __init__(self, ca: Authority, act: Callable[[Any], None], *, secured: bool = True) -> None:
        self._ca, self._act, self._secured = ca, act, secured
        self.context = ca.settings("server").server("h2")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Scripted":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def channel(self, host: str) -> grpc.Channel:
        return open_channel(f"{host}:{self.port}", TlsSettings(self._ca.ca))

    def _serve(self) -> None:
        bare, _ = self._listener.accept()
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(bare)
            client = stack.enter_context(self.context.wrap_socket(bare, server_side=True)) if self._secured else bare
            self._act(client)


@pytest.mark.parametrize(
    ("answer", "secured", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "wrong version number"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "http1.x server"),
        (b"", True, "the server closed the connection"),
    ],
)
def test_a_server_that_speaks_something_else(ca: Authority, answer: bytes, secured: bool, why: str) -> None:
    def act(client: Any) -> None:
        client.recv(1000)
        client.sendall(answer)

    with Scripted(ca, act, secured=secured) as scripted:
        assert why in why_not(f"127.0.0.1:{scripted.port}", TlsSettings(ca.ca))


def test_a_silent_host_is_given_up(ca: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert "no connection within 1 s" in why_not(address, TlsSettings(ca.ca), (("grpc.min_reconnect_backoff_ms", 100),), 0.1)


def test_a_server_that_refuses_our_certificate(ca: Authority) -> None:
    with Scripted(ca, lambda client: None) as scripted:
        scripted.context.load_verify_locations(ca.ca)
        scripted.context.verify_mode = ssl.CERT_REQUIRED
        assert "CERTIFICATE_REQUIRED" in why_not(f"127.0.0.1:{scripted.port}", TlsSettings(ca.ca))
    with serving(ca.settings("server", "server", ("server",))) as server:
        assert "the server closed the connection: see its log" in why_not(server.address, TlsSettings(ca.ca))


# Other processes.

PROGRAM = """
import os, signal, socket, sys
import grpc
from pyspark_tidb_binlog.binlog_source.cluster.channels import open_channel
from pyspark_tidb_binlog.binlog_source.cluster.channels import TlsTunnel
from pyspark_tidb_binlog.schemas.tls import TlsSettings

address, tls = sys.argv[1], TlsSettings(*sys.argv[2:])

def call(channel):
    signal.alarm(60)
    assert channel.unary_unary("/t/Write")(str(os.getpid()).encode(), timeout=30) == b""
    return channel
"""
FORK = """
tunnel = TlsTunnel(address, tls, 30.0)
{before}
fork = os.fork()
if not fork:
    with socket.socket(socket.AF_UNIX) as own:
        own.settimeout(30)
        own.connect(chr(0) + tunnel.target.partition(":")[2])
        assert own.recv(10) == b"", "the parent's tunnel serves its own process only"
    tunnel.close()
    call(open_channel(address, tls))
    os._exit(0)
assert os.waitpid(fork, 0)[1] == 0
call(grpc.insecure_channel(tunnel.target))
"""


def started(server: TlsServer, tls: TlsSettings, program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM + program, server.address, tls.ca, tls.cert, tls.key]
    # with a channel before the fork, the fork's calls hang without grpcio's support, with TLS and without
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "1"})


@pytest.mark.parametrize("before", ["", "kept = call(open_channel(address, tls))"])
def test_a_fork_opens_its_own_tunnel(server: TlsServer, tls: TlsSettings, before: str) -> None:
    """As Spark's workers, also of a process that has a tunnel and a channel."""
    with started(server, tls, FORK.format(before=before)) as process:
        assert process.wait(PATIENCE) == 0
    *first, fork, last = [int(server.messages.get()) for _ in range(2 + bool(before))]
    assert {*first, last} == {process.pid} and fork != process.pid


def test_kill_leaves_nothing(server: TlsServer, tls: TlsSettings) -> None:
    with started(server, tls, "kept = call(open_channel(address, tls)); print('ready', flush=True); signal.pause()") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        name = f"tidb-binlog-tls-{process.pid}_"
        assert name in Path("/proc/net/unix").read_text()
        process.send_signal(signal.SIGKILL)
    assert name not in Path("/proc/net/unix").read_text()
    eventually(lambda: not server.front._peers)
