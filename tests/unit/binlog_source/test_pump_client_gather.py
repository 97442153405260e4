"""Prewrites and outcomes that gather: each caller gets the fate of its own record, and none is lost or written twice."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_tidb_binlog.binlog_source.pump_client.clock import Clock
from pyspark_tidb_binlog.binlog_source.pump_client.connection import CallCounters, PrewriteWriter, PumpConnection, write_group
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed
from tests.support.fakes.pump_world import Wire, World, fails


@pytest.fixture
def world():
    return World()


@pytest.fixture
def connection(world):
    made = PumpConnection("a", "a:1", lambda address: Wire(world, address), CallCounters(lambda: None, lambda: None))
    yield made
    made.close()


def together(prewrite_writer, payloads):
    barrier = threading.Barrier(len(payloads))

    def write(payload):
        barrier.wait()
        prewrite_writer.write(payload)

    with ThreadPoolExecutor(len(payloads)) as pool:
        return [future.exception() for future in [pool.submit(write, payload) for payload in payloads]]


def test_what_is_begun_together_goes_together_and_nothing_is_lost(world, connection):
    payloads = [b"%d" % number for number in range(8)]
    assert together(PrewriteWriter(connection, Clock(), 0.05), payloads) == [None] * 8
    assert sorted(world.taken("a:1")) == payloads and len(world.calls) < 8


def test_one_caller_alone_is_served(world, connection):
    prewrite_writer = PrewriteWriter(connection, Clock(), 0.001)
    prewrite_writer.write(b"a")
    prewrite_writer.write(b"b")
    assert [call.payloads for call in world.calls] == [(b"a",), (b"b",)]


def test_without_gathering_each_goes_alone(world, connection):
    prewrite_writer = PrewriteWriter(connection, Clock(), 0)
    assert together(prewrite_writer, [b"a", b"b", b"c"]) == [None] * 3
    assert sorted(call.payloads for call in world.calls) == [(b"a",), (b"b",), (b"c",)]


def test_a_failed_group_fails_for_each_of_it_and_the_next_one_is_tried(world, connection):
    prewrite_writer = PrewriteWriter(connection, Clock(), 0.05)
    world.rules = {"a:1": fails("UNKNOWN", "the disk is full")}
    errors = together(prewrite_writer, [b"a", b"b"])
    assert [(type(error), error.code) for error in errors] == [(WriteFailed, "UNKNOWN")] * 2
    assert errors[0] is not errors[1]
    world.rules = {}
    prewrite_writer.write(b"good")


def test_a_group_that_is_too_large_goes_one_by_one(world, connection):
    world.rules = {"a:1": lambda payloads: fails("RESOURCE_EXHAUSTED", "")(payloads) if sum(map(len, payloads)) > 3 else None}
    large, *small = write_group(connection, [b"12345", b"1", b"123"])
    assert large.code == "RESOURCE_EXHAUSTED" and small == [None, None]
    assert [len(call.payloads) for call in world.calls] == [3, 1, 1, 1]


def test_a_defect_leaves_nobody_waiting(world, connection):
    prewrite_writer = PrewriteWriter(connection, Clock(), 0.05)
    both = threading.Barrier(2)

    def broken(payloads):
        raise RuntimeError("a defect")

    def write():
        both.wait()
        prewrite_writer.write(b"x")

    world.rules = {"a:1": broken}
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(write) for _ in range(2)]
        errors = [future.exception(timeout=5) for future in futures]
    assert any(isinstance(error, RuntimeError) for error in errors)
