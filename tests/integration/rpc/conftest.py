"""A front, and a channel of grpcio's to it."""

import grpc
import pytest

from tests.support.rpc_front import UNLIMITED, Server


@pytest.fixture
def server():
    server = Server()
    yield server
    server.go_on.set()
    server.front.stop(0)


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
        yield channel
