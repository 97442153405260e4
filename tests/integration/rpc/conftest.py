"""A front, and a channel of grpcio's to it."""

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.rpc import rpc_server as front_module
from tests.support.rpc_front import UNLIMITED, Server


@pytest.fixture
def server(monkeypatch):
    """It looks after its connections every 50 ms, from its start."""
    monkeypatch.setattr(front_module, "LOOK", 0.05)
    server = Server()
    yield server
    server.go_on.set()
    server.front.stop(0)


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
        yield channel
