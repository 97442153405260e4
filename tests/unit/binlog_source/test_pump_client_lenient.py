"""``ignore-error``: the first failure stops the binlog, not the transactions, until recovery."""

import logging

import pytest

from binlog_source.pump_client.client import PumpClient
from binlog_source.pump_client.lenient import LenientClient
from binlog_source.pump_client.settings import PumpClientSettings
from binlog_source.registry import NodeStatus
from tests.fakes.pump_world import World, fails


@pytest.fixture
def world():
    return World()


@pytest.fixture
def client(world):
    inner = PumpClient([NodeStatus("a", "a:1")], 7, PumpClientSettings(write_timeout=0.2), world.surroundings())
    made = LenientClient(inner)
    yield made
    made.close()


def test_good_pumps_are_written_to(world, client):
    client.prewrite(1, b"p")
    client.outcome(1, b"c")
    client.flush()
    assert (world.taken("a:1"), client.skipping, client.skipped, client.cluster_id) == ([b"p", b"c"], False, 0, 7)


def test_after_a_failure_nothing_is_written_until_recovery(world, client, caplog):
    client.prewrite(1, b"before")
    world.rules = {"a:1": fails()}
    client.prewrite(2, b"first")
    assert client.skipping and [record.levelno for record in caplog.records if "skipped from start_ts 2" in record.message] == [
        logging.ERROR
    ]
    world.rules = {}
    world.calls.clear()
    client.prewrite(3, b"second")
    assert client.duplicate(3, b"second") is False
    for start_ts in (1, 2):
        client.outcome(start_ts, b"c")
    client.flush()
    assert world.calls == [] and client.skipped == 4
    client.recover()
    client.outcome(3, b"c")
    client.prewrite(4, b"p")
    client.outcome(4, b"c")
    client.flush()
    assert world.taken("a:1") == [b"p", b"c"], "the outcome of a skipped Prewrite is not written either"
    assert client.skipped == 5
