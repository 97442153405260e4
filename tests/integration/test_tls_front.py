"""Our own listeners over TLS: gRPC and HTTP on one port, whatever a client offers in ALPN; who is refused, and that limits hold before TLS does."""

import contextlib
import http.client
import logging
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.channels import open_channel, reason
from pyspark_tidb_binlog.binlog_source.rpc import rpc_server
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.http_client import HttpConnection, fetch
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.tls_server import PATIENCE, TlsServer, connected, serving

pytestmark = pytest.mark.grpc


@pytest.fixture
def server(ca: Authority) -> Iterator[TlsServer]:
    with serving(ca.settings("server")) as made:
        yield made


def grpcio_channel(server: TlsServer, tls: TlsSettings) -> grpc.Channel:
    read = [Path(path).read_bytes() if path else None for path in (tls.ca, tls.key, tls.cert)]
    return grpc.secure_channel(server.address, grpc.ssl_channel_credentials(*read), [("grpc.use_local_subchannel_pool", 1)])


def test_grpc_with_alpn(server: TlsServer, ca: Authority) -> None:
    with grpcio_channel(server, TlsSettings(ca.ca)) as channel:
        assert channel.unary_unary("/t/Write")(b"hello", timeout=PATIENCE) == b""
        messages = list(channel.unary_stream("/t/Down")(b"300 100000", timeout=PATIENCE))
    assert server.messages.get(timeout=PATIENCE) == b"hello"
    assert [int(message.split()[0]) for message in messages] == list(range(300)) and {len(message) for message in messages} == {100_000}


@pytest.mark.parametrize("protocols", [["h2"], ["http/1.1"], ["h2", "http/1.1"], ["something-else"], None])
def test_http_whatever_is_offered(server: TlsServer, ca: Authority, protocols: list[str] | None) -> None:
    context = ssl.create_default_context(cafile=ca.ca)
    if protocols is not None:
        context.set_alpn_protocols(protocols)
    with contextlib.closing(http.client.HTTPSConnection(server.address, timeout=PATIENCE, context=context)) as client:
        for _ in range(2):
            client.request("PUT", "/a", b"body")
            assert client.getresponse().read() == b"PUT /a body"
        client.request("GET", "/large")
        assert len(client.getresponse().read()) == 4 << 20


@pytest.mark.shows("wire gotcha 7")
def test_grpc_without_alpn(server: TlsServer, ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TlsSettings.client
    monkeypatch.setattr(TlsSettings, "client", lambda self, *protocols: plain(self))
    with open_channel(server.address, TlsSettings(ca.ca)) as channel:
        assert channel.unary_unary("/t/Write")(b"hello", timeout=PATIENCE) == b""


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_an_operators_tool(server: TlsServer, ca: Authority) -> None:
    made = subprocess.run(["curl", "-sS", "--cacert", ca.ca, f"https://{server.address}/status"], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (0, "GET /status "), made.stderr


def test_our_http_client(server: TlsServer, ca: Authority, tmp_path: Path) -> None:
    assert fetch(f"https://{server.address}/a?b", PATIENCE, tls=TlsSettings(ca.ca)).text == "GET /a "
    with HttpConnection.to(server.address, PATIENCE, tls=TlsSettings(ca.ca)) as connection:
        assert [connection.request("POST", "/a", b"b").text for _ in range(2)] == ["POST /a b"] * 2
    for tls in (TlsSettings(Authority(tmp_path / "other").ca), TlsSettings(ca.ca, allowed_cn=("other",)), None):
        with pytest.raises(ssl.SSLError):
            fetch(f"https://{server.address}/a", PATIENCE, tls=tls)
    os.unlink(ca.ca)
    with pytest.raises(OSError, match="ssl-ca cannot be read"):
        fetch(f"https://{server.address}/a", PATIENCE, tls=TlsSettings(ca.ca, allowed_cn=("x",)))


def refused(server: TlsServer, tls: TlsSettings) -> str:
    """Why a call fails, over gRPC; HTTP fails as well, with nothing answered."""
    with pytest.raises((OSError, http.client.HTTPException)):
        fetch(f"https://{server.address}/a", PATIENCE, tls=tls)
    with open_channel(server.address, tls) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/t/Write")(b"hello", timeout=PATIENCE)
    assert server.messages.empty()
    return reason(failed.value)


@pytest.mark.shows("security.cert-allowed-cn", "pump security.cert-allowed-cn")
def test_who_is_refused(ca: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stranger = Authority(tmp_path / "stranger")
    with serving(ca.settings("server", "server", ("drainer", "server"))) as server, caplog.at_level(logging.WARNING):
        good = ca.settings("good", "drainer")
        with open_channel(server.address, good) as channel:
            assert channel.unary_unary("/t/Write")(b"hello", timeout=PATIENCE) == b""
        assert server.messages.get() == b"hello"
        assert fetch(f"https://{server.address}/a", PATIENCE, tls=good).ok
        strange = stranger.settings("strange", "drainer")
        unwanted = {
            "no certificate": TlsSettings(ca.ca),
            "wrong name": ca.settings("wrong", "other"),
            "expired": ca.settings("expired", "drainer", expired=True),
            "wrong CA": TlsSettings(ca.ca, strange.cert, strange.key),
        }
        for what, tls in unwanted.items():
            why = refused(server, tls)
            assert why.startswith("UNAVAILABLE"), (what, why)
    told = "\n".join(record.getMessage() for record in caplog.records)
    for words in (
        "peer did not return a certificate",
        "'other', 'test-ca'",
        "certificate has expired",
        "self-signed certificate in certificate chain",
    ):
        assert words in told, told


def test_the_cas_own_name_admits_all_that_it_signed(ca: Authority) -> None:
    with serving(ca.settings("server", "server", ("test-ca",))) as server:
        assert fetch(f"https://{server.address}/a", PATIENCE, tls=ca.settings("any", "any", ("test-ca",))).ok


def test_a_client_without_tls_is_refused(server: TlsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.front.port), timeout=PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"HTTP" not in client.recv(1000)
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/t/Write")(b"hello", timeout=2)


def test_a_silent_handshake_ends(ca: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(rpc_server, "IDLE_SECONDS", 0.3)
    with serving(ca.settings("server")) as server, caplog.at_level(logging.WARNING):
        with socket.create_connection(("127.0.0.1", server.front.port), timeout=PATIENCE) as client:
            client.sendall(b"\x16\x03\x01")
            assert client.recv(10) == b""
    assert "refusing the TLS connection of client 127.0.0.1" in caplog.text


def test_handshakes_count_as_connections(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that never speak are closed in the end."""
    monkeypatch.setattr(rpc_server, "IDLE_SECONDS", 1.0)
    with serving(ca.settings("server"), max_connections=8) as server, contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.front.port), timeout=PATIENCE))
        eventually(lambda: len(server.front._peers) == 8, what="further ones are refused")
        eventually(lambda: not server.front._peers, what="the silent ones are closed")
        assert fetch(f"https://{server.address}/a", PATIENCE, tls=TlsSettings(ca.ca)).ok


def test_a_stop_waits_for_no_handshake(ca: Authority) -> None:
    server = TlsServer(ca.settings("server"))
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.front.port), timeout=PATIENCE))
        eventually(lambda: len(server.front._peers) == 3)
        server.front.stop(0)
    assert not server.front._peers


def test_what_a_client_sends_with_its_last_message_of_the_handshake_is_served(server: TlsServer, ca: Authority) -> None:
    """TLS 1.3: the client's Finished and its request may come in one packet."""
    for _ in range(20):
        with connected(server.address, TlsSettings(ca.ca).client()) as client:
            client.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = b""
            while part := client.recv(1000):
                answer += part
        assert answer.endswith(b"GET /a ")


def test_a_unix_socket_has_no_tls(ca: Authority, tmp_path: Path) -> None:
    with serving(ca.settings("server"), socket_path=str(tmp_path / "s")), grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
        assert channel.unary_unary("/t/Write")(b"hello", timeout=PATIENCE) == b""


def test_a_new_certificate_is_shown_without_a_restart(server: TlsServer, ca: Authority) -> None:
    def shown() -> object:
        with connected(server.address, TlsSettings(ca.ca).client()) as client:
            return client.getpeercert()

    before = shown()
    assert shown() == before
    ca.certify("server", "another")
    assert shown() != before


def test_files_that_cannot_be_used_end_the_start(ca: Authority) -> None:
    for tls, why in ((TlsSettings(ca.ca), "also needs ssl-cert and ssl-key"), (TlsSettings(ca.ca, "/a", "/b"), "/a")):
        with pytest.raises(ConfigError, match=why):
            RpcServer("Test").bind("127.0.0.1:0", tls=tls)


def test_a_client_that_reads_nothing_slows_its_stream_down(server: TlsServer, ca: Authority) -> None:
    with grpcio_channel(server, TlsSettings(ca.ca)) as channel:
        call = channel.unary_stream("/t/Down")(b"2000 100000", timeout=PATIENCE)
        next(call)
        eventually(lambda: server.sent > 10)
        time.sleep(0.3)
        reached = server.sent
        assert reached < 1000
        assert len(list(call)) == 1999


def test_a_client_that_asks_and_leaves_at_once_leaves_nothing_behind(server: TlsServer, ca: Authority) -> None:
    """Its request, its end and the end of the handshake may come in one packet."""
    for _ in range(50):
        with connected(server.address, TlsSettings(ca.ca).client()) as client:
            client.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
    eventually(lambda: not server.front._peers, what="all are forgotten")
