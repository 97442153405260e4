"""What the Pump client learns of its Pumps: from the registry, and by probing those that failed."""

import threading
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.pump_client.client import Follower, PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import DEFAULTS, PumpClientSettings
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from tests.support.eventually import eventually
from tests.support.fakes.pump_world import World, fails
from tests.support.fakes.registry import FakeRegistry

A, B = NodeStatus("a", "a:1"), NodeStatus("b", "b:1")
PAUSED = replace(A, state=NodeState.PAUSED)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def registry():
    registry = FakeRegistry()
    registry.put_status(PUMPS, A)
    return registry


@pytest.fixture
def client(world, registry):
    made = PumpClient(registry.listing(PUMPS).nodes, 7, DEFAULTS, world.dependencies())
    yield made
    made.close()


@pytest.fixture
def follower(client, registry):
    return Follower(registry, client._pump_set, registry.listing(PUMPS).revision, 0.01)


def demote(client, world, address="a:1"):
    world.rules = {address: fails()}
    with pytest.raises(PumpUnavailable):
        client.prewrite(1, b"p")
    assert "a" not in client.available()


@pytest.mark.parametrize(
    "news, then",
    [
        ([B], ("a", "b")),
        ([replace(B, state=NodeState.OFFLINE)], ("a",)),
        ([PAUSED], ()),
        ([PAUSED, A], ("a",)),
        ([B, PAUSED], ("b",)),
        ([replace(A, update_ts=7)], ("a",)),
    ],
)
def test_news_are_taken_over(client, registry, follower, news, then):
    for status in news:
        registry.put_status(PUMPS, status)
        assert follower.step()
    assert client.available() == then


def test_no_news_are_no_trouble(client, registry, follower):
    registry.put_status(DRAINERS, NodeStatus("d", "d:1"))
    assert follower.step() and follower.step()
    assert client.available() == ("a",)


def test_a_registry_that_was_away_is_listed_anew(client, registry, follower, caplog):
    registry.go_down()
    assert not follower.step() and not follower.step()
    assert caplog.text.count("does not answer") == 1 and client.available() == ("a",)
    registry.put_status(PUMPS, B)
    registry.down = False
    registry.compact()
    assert follower.step() and client.available() == ("a", "b")
    registry.put_status(PUMPS, PAUSED)
    assert follower.step() and client.available() == ("b",)
    assert registry.asked[-4:] == ["changes", "listing", "listing", "changes"]


def test_news_that_the_registry_forgot_come_with_all_nodes(client, registry, follower):
    registry.put_status(PUMPS, B)
    registry.compact()
    assert follower.step() and client.available() == ("a", "b")


def test_a_round_robin_is_not_disturbed_by_heartbeats(client, registry, follower, world):
    registry.put_status(PUMPS, B)
    follower.step()
    for start_ts in range(4):
        registry.put_status(PUMPS, replace(A, update_ts=start_ts))
        follower.step()
        client.prewrite(start_ts, b"p")
    assert "".join(call.address[0] for call in world.calls) == "abab"


def test_a_probe_is_empty_and_brings_back(client, world):
    demote(client, world)
    world.calls.clear()
    client.probe_unavailable()
    assert client.available() == () and client.stats().probes == 1
    world.rules = {}
    client.probe_unavailable()
    assert [call.payloads for call in world.calls] == [(b"",)] * 2
    assert client.available() == ("a",) and client.stats().probes == 2
    client.probe_unavailable()
    assert client.stats().probes == 2, "who is available is not probed"


def test_a_probe_that_is_answered_with_an_errmsg_counts(client, world):
    demote(client, world)
    world.rules = {"a:1": fails("OK", "whatever")}
    client.probe_unavailable()
    assert client.available() == ("a",)


def test_who_is_registered_away_is_not_probed(client, registry, follower, world):
    registry.put_status(PUMPS, PAUSED)
    follower.step()
    client.probe_unavailable()
    assert world.calls == [] and client.stats().probes == 0


def test_probes_come_every_thirty_seconds(client, world):
    demote(client, world)
    world.clock.waits.clear()

    def away(payloads):
        world.clock.closed = client.stats().probes == 4
        return fails()(payloads)

    world.rules = {"a:1": away}
    client._probe()
    assert world.clock.waits == [30.0] * 5 and client.stats().probes == 4


def test_following_waits_only_after_a_failure(client, registry, follower, world):
    registry.go_down()
    real_wait = world.clock.wait

    def wait(seconds):
        world.clock.closed = len(world.clock.waits) == 4
        registry.down = len(world.clock.waits) < 1
        return real_wait(seconds)

    world.clock.wait = wait
    client._follow(follower)
    assert world.clock.waits == [1.0, 1.0, 0, 0, 0]


def test_no_pump_at_all_is_an_error():
    with pytest.raises(PumpUnavailable, match="no pump found in the registry fake://127.0.0.1"):
        PumpClient.from_registry(FakeRegistry())
    with pytest.raises(PumpUnavailable, match="no pump found"):
        PumpClient.fixed([], 7)


def test_from_a_registry_two_threads_follow_and_end(registry):
    registry.put_status(PUMPS, PAUSED)
    before = threading.active_count()
    with PumpClient.from_registry(registry, PumpClientSettings(watch_wait=0.05)) as client:
        assert (client.cluster_id, client.available()) == (7, ())
        assert threading.active_count() == before + 2
        registry.put_status(PUMPS, A)
        eventually(lambda: client.available() == ("a",), seen=client.available)
    assert threading.active_count() == before


def test_a_socket_is_the_one_pump_and_nothing_is_listed():
    registry = FakeRegistry()
    with PumpClient.from_registry(registry, PumpClientSettings(socket="unix:///tmp/pump.sock")) as client:
        assert client.available() == ("local",)
    assert registry.asked == ["cluster_id"]
    with PumpClient.fixed(["a:1", "b:1"], 7) as client:
        assert client.available() == ("a:1", "b:1")
