"""Ports for servers that are started next."""

import os
import socket

import pytest

from pyspark_tidb_binlog.jobs.lab import ports
from pyspark_tidb_binlog.jobs.lab.ports import free_port, require_free
from pyspark_tidb_binlog.schemas.errors import ConfigError


def test_a_free_port_is_not_one_that_the_kernel_gives_to_clients() -> None:
    with socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        lowest = int(ports._EPHEMERAL.read_text().split()[0]) if ports._EPHEMERAL.exists() else 32_768
        assert client.getsockname()[1] >= lowest
    assert all(10_000 <= free_port() < max(lowest, 11_000) for _ in range(20))


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        monkeypatch.setattr(ports.random, "randrange", lambda low, high: port)
        with pytest.raises(ConfigError, match="no free port"):
            free_port()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_who_holds_a_port_is_named(host: str) -> None:
    port = free_port()
    require_free(port, "")
    with socket.create_server((host, port)):
        with pytest.raises(
            ConfigError, match=rf"cannot listen on 127.0.0.1:{port}: process {os.getpid()} \(.*\) listens there; try another"
        ):
            require_free(port, "try another")
    require_free(port, "")
