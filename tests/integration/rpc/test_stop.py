"""A front that is stopped: what is under way ends in order, and nothing is waited for for ever."""

import gc
import logging
import socket
import threading
import time

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.rpc import calls as calls_module
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from tests.support.eventually import eventually
from tests.support.own_host import OWN_HOST
from tests.support.rpc_front import PATIENCE, Raw, Server, blocked_at, calm, streaming, unary

pytestmark = pytest.mark.grpc


def test_stopping_closes_the_connections_that_were_just_accepted(recwarn):
    """A client that connects while it stops is not left with a socket that nobody closes."""
    for _ in range(20):
        server = Server()
        clients = [socket.create_connection((OWN_HOST, server.front.port), PATIENCE) for _ in range(40)]
        server.front.stop(0)
        for client in clients:
            client.close()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_two_stop_it_at_once():
    """Each returns when it is stopped; neither waits for a loop that the other has ended."""
    front = RpcServer("test").bind(f"{OWN_HOST}:0").serve(Methods())
    is_alive, stopped, looked = front._thread.is_alive, threading.Event(), []

    def slowly():
        alive = is_alive()
        looked.append(alive)
        if len(looked) > 1:
            stopped.wait(PATIENCE / 2)
        return alive

    front._thread.is_alive = slowly
    both = [threading.Thread(target=lambda: (front.stop(0.1), stopped.set()), daemon=True) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(PATIENCE)
    assert not any(one.is_alive() for one in both)
    front.stop(0)


def test_stop_ends_streams_and_lets_calls_under_way_finish(server, channel):
    waiting = streaming(channel, "Wait")(b"x")
    assert next(waiting) == b"here"
    held = unary(channel, "Hold").future(b"x")
    eventually(lambda: server.held.qsize() == 1)
    stopping = threading.Thread(target=server.front.stop, args=(PATIENCE,))
    stopping.start()
    assert list(waiting) == [] and waiting.code() is grpc.StatusCode.OK
    assert stopping.is_alive()
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Write")(b"too late")
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE and server.messages.qsize() == 1
    server.answer_one()
    assert held.result(PATIENCE) == b""
    stopping.join(PATIENCE)
    assert not stopping.is_alive()


def test_what_was_sent_before_stop_arrives_though_its_client_is_slow(server):
    client = Raw(server)
    client.call(1, b"Down", b"100000 995")
    sent = blocked_at(server, 1000)
    stopping = threading.Thread(target=server.front.stop, args=(PATIENCE,))
    stopping.start()
    assert server.ended.get(timeout=PATIENCE) is True
    client.widen(1 << 30, 1)
    body = client.body(1)
    assert body == b"".join(b"\x00\x00\x00\x03\xe3" + (b"%d " % n).ljust(995, b".") for n in range(sent))
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    client.socket.close()


def test_stop_does_not_wait_for_ever_for_a_client_that_does_not_read(server):
    client = Raw(server, initial_window=(1 << 31) - 1)
    client.widen(1 << 30)
    client.call(1, b"Down", b"100000 10000")
    calm(server)
    server.front.stop(0.1)
    assert server.ended.get_nowait() is True and not server.front._peers
    client.socket.close()
    gc.collect()  # a transport left open would complain here


def test_stop_waits_for_the_handler_of_a_client_that_is_gone(server):
    done = threading.Event()

    def dawdle(call):
        server.calls.put(call)
        eventually(lambda: call.cancelled)
        time.sleep(0.2)
        done.set()

    server.front.methods.stream[b"/t/Dawdle"] = dawdle
    client = Raw(server)
    client.call(1, b"Dawdle", b"")
    server.calls.get(timeout=PATIENCE)
    client.kill()
    server.front.stop(PATIENCE)
    assert done.is_set()


def test_a_handler_that_does_not_end_is_named(server, caplog, monkeypatch):
    monkeypatch.setattr(calls_module, "LINGER", 0.05)
    server.front.methods.stream[b"/t/Deaf"] = lambda call: server.calls.put(call) or server.go_on.wait(PATIENCE)
    client = Raw(server)
    client.call(1, b"Deaf", b"")
    server.calls.get(timeout=PATIENCE)
    with caplog.at_level(logging.ERROR):
        server.front.stop(0)
    assert "1 streams have not ended" in caplog.text
    client.socket.close()


def test_after_stop_nothing_happens(server):
    server.front.stop(0)
    server.front.call(lambda: pytest.fail("the loop is closed"))
    server.front.stop(0)
