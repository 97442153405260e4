"""Where a front listens: addresses, and the Unix sockets of others."""

import socket

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from tests.support.own_host import OWN_HOST
from tests.support.rpc_front import PATIENCE, Server, unary

pytestmark = pytest.mark.grpc


def test_a_unix_socket(tmp_path):
    path = tmp_path / "pump.sock"
    for _ in range(2):  # the second time over what a killed process left behind
        server = Server(socket_path=str(path))
        with grpc.insecure_channel(f"unix:{path}") as channel:
            assert unary(channel, "Write")(b"x") == b""
        server.front.stop(0)
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))


def test_a_port_in_use(server):
    with pytest.raises(NotUsableYet, match=f"cannot listen on {OWN_HOST}:{server.front.port}"):
        RpcServer("Second").bind(server.address)


def test_a_port_that_another_takes_between_bind_and_serve():
    first = RpcServer("First").bind("127.0.0.1:0")
    second = RpcServer("Second").bind(f"127.0.0.1:{first.port}")
    first.serve(Methods())
    with pytest.raises(NotUsableYet, match="Second cannot listen"):
        second.serve(Methods())
    first.stop(0)
    second.stop(0)


@pytest.mark.parametrize("addr", ["", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", "256.0.0.1:0", "127.0.0.1:-1"])
def test_an_address_that_is_none(addr):
    with pytest.raises(ConfigError, match="Test cannot listen on") as refused:
        RpcServer("Test").bind(addr)
    assert not isinstance(refused.value, NotUsableYet)


@pytest.mark.parametrize("addr", ["192.0.2.1:0", "not-there-yet.invalid:0"])
def test_an_address_that_may_be_there_later(addr):
    with pytest.raises(NotUsableYet, match="Test cannot listen on"):
        RpcServer("Test").bind(addr)


def test_a_file_is_not_taken_for_a_socket(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="precious") as refused:
        RpcServer("Test").bind("127.0.0.1:0", str(path))
    assert path.read_text() == "data" and not isinstance(refused.value, NotUsableYet)


def test_a_socket_at_which_somebody_answers_is_left_alone_and_a_stale_one_is_replaced(tmp_path):
    path = tmp_path / "pump.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    first = Server(socket_path=str(path))
    with pytest.raises(NotUsableYet, match=r"another process listens there: .*pump\.sock"):
        RpcServer("Second").bind("127.0.0.1:0", str(path))
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert unary(channel, "Write")(b"the first goes on", timeout=PATIENCE) == b""
    first.front.stop(0)
    assert not path.exists()


def test_a_socket_of_another_user_is_refused_and_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "pump.sock"

    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    with socket.socket(socket.AF_UNIX) as others:
        others.bind(str(path))
    with monkeypatch.context() as patched, pytest.raises(ConfigError, match=r"cannot listen on .*pump\.sock: .*Permission denied"):
        patched.setattr(socket.socket, "connect", refuse)
        RpcServer("Second").bind("127.0.0.1:0", str(path))
    assert path.exists()


def test_a_socket_that_another_has_replaced_is_told_and_not_removed(tmp_path):
    path = tmp_path / "pump.sock"
    early = RpcServer("Early").bind("127.0.0.1:0", str(path))  # does not listen yet, so nobody answers
    second = Server(socket_path=str(path))
    with pytest.raises(NotUsableYet, match="another process has replaced it"):
        early.serve(Methods())
    early.stop(0)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert unary(channel, "Write")(b"still there", timeout=PATIENCE) == b""
    path.unlink()
    second.front.stop(0)


def test_before_serve_connections_are_refused():
    front = RpcServer("Test").bind("127.0.0.1:0")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", front.port), 1)
    front.stop(0)
