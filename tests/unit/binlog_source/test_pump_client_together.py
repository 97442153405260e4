"""Prewrites and outcomes that go to a Pump in one call: each gets its own fate, and none is lost."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.connection import PumpConnection, write_group
from pyspark_tidb_binlog.binlog_source.pump_client.settings import DEFAULTS, ClientStats
from tests.support.fakes.pump_world import Wire, World, fails

PREWRITES = {ts: b"p%d" % ts for ts in (10, 20, 30, 40)}


@pytest.fixture
def world():
    return World()


@pytest.fixture
def client(world):
    with PumpClient([NodeStatus(name, f"{name}:1") for name in "ab"], 7, DEFAULTS, world.dependencies()) as made:
        yield made


def test_those_for_one_pump_go_in_one_call_and_outcomes_follow(world, client):
    assert client.prewrite_together(PREWRITES) == {}
    assert [call.payloads for call in world.calls] == [(b"p10", b"p30"), (b"p20", b"p40")]
    for ts in PREWRITES:
        client.outcome(ts, b"c%d" % ts)
    client.flush()
    assert world.taken("a:1")[2:] == [b"c10", b"c30"] and world.taken("b:1")[2:] == [b"c20", b"c40"]
    assert client.stats() == ClientStats(prewrites=4)


def test_those_that_a_pump_refuses_go_to_another(world, client):
    world.rules = {"a:1": fails("UNKNOWN", "the disk is full")}
    assert client.prewrite_together(PREWRITES) == {}
    assert sorted(world.taken("b:1")) == sorted(PREWRITES.values())
    assert client.stats().prewrites == 4


def test_each_that_nobody_takes_is_returned_and_gets_no_outcome(world, client):
    def one_is_bad(payloads):
        return fails()(payloads) if b"p30" in payloads else None

    world.rules = {"a:1": one_is_bad, "b:1": one_is_bad}
    assert list(client.prewrite_together(PREWRITES)) == [30]
    client.outcome(30, b"c30")
    client.outcome(10, b"c10")
    client.flush()
    taken = [payload for call in world.calls for payload in call.payloads]
    assert b"c10" in taken and b"c30" not in taken


def test_a_group_that_is_too_large_goes_one_by_one(world):
    connection = PumpConnection("a", "a:1", lambda address: Wire(world, address), lambda answered: None)
    world.rules = {"a:1": lambda payloads: fails("RESOURCE_EXHAUSTED", "")(payloads) if sum(map(len, payloads)) > 3 else None}
    large, *small = write_group(connection, [b"12345", b"1", b"123"])
    assert large.code == "RESOURCE_EXHAUSTED" and small == [None, None]
    assert [len(call.payloads) for call in world.calls] == [3, 1, 1, 1]
    connection.close()
