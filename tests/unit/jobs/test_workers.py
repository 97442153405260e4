"""The connection of a Python worker to the JVM."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.jobs.spark import workers


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection: the JVM's and the worker's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as jvm,
        server.accept()[0] as worker,
    ):
        yield jvm, worker


def option(connection: socket.socket, name: int) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, name) != 0


def test_a_task_is_acknowledged_at_once_and_read_from_its_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(workers, "_run_task", lambda infile, outfile: read.append(infile.read(4)))
    with connected() as (jvm, worker), worker.makefile("rb") as infile, worker.makefile("wb") as outfile:
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        jvm.sendall(b"task")
        workers.run_task(infile, outfile)
        assert option(worker, socket.TCP_QUICKACK) and option(worker, socket.TCP_NODELAY)
    assert read == [b"task"]


def test_the_end_of_the_tasks_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(workers, "_run_task", lambda infile, outfile: read.append(infile.read(4)))
    with connected() as (jvm, worker), worker.makefile("rb") as infile, worker.makefile("wb") as outfile:
        jvm.shutdown(socket.SHUT_WR)
        workers.run_task(infile, outfile)
    assert read == [b""]


def test_other_connections_are_left_as_they_are() -> None:
    here, there = socket.socketpair()
    with here, there:
        workers.hurry(here.fileno())
        here.sendall(b"x")
        assert there.recv(1) == b"x"


def test_memory_is_given_back_after_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(workers, "_run_task", lambda infile, outfile: done.append("task"))
    monkeypatch.setattr(workers, "give_back", lambda: done.append("given back"))
    with connected() as (jvm, worker), worker.makefile("rb") as infile, worker.makefile("wb") as outfile:
        jvm.sendall(b"task")
        workers.run_task(infile, outfile)
    assert done == ["task", "given back"]
