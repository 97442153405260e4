"""A registry that is away for a while ends nothing: it is waited for."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.binlog_source.cluster import discovery as discovery_module
from pyspark_tidb_binlog.binlog_source.cluster.discovery import ConfiguredDiscovery, OfflinePump, RegistryDiscovery, patiently
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.pairing.bucket import _tell
from pyspark_tidb_binlog.binlog_source.pairing.transitions import MissingOutcome
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.backoff import Backoff
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery, tso
from tests.support.fakes.registry import FakeRegistry


class AwayFor(ConfiguredDiscovery):
    """Gives answers from the ``times``-th question on."""

    def __init__(self, times):
        super().__init__("h:1", 7)
        self.times = times
        self.asked = 0

    def pumps(self, resolved_ts=0):
        self.asked += 1
        if self.asked <= self.times:
            raise PumpUnavailable("registry http://pd:2379 does not answer")
        return super().pumps(resolved_ts)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(discovery_module, "_BACKOFF", Backoff(0.001, 2.0))


def test_it_is_asked_again_until_it_answers():
    away = AwayFor(3)
    assert patiently(away.pumps, 30) == {"h:1": "h:1"} and away.asked == 4


def test_patience_ends():
    with pytest.raises(PumpUnavailable, match="does not answer"):
        patiently(AwayFor(10**9).pumps, 0.02)


def test_a_pump_is_in_service_while_its_heartbeat_moves():
    """A real one that closes ends its heartbeats, and may stay registered as online."""
    now = [0.0]
    found = RegistryDiscovery("http://r:1", 7, lambda: now[0])
    found.registry = registry = FakeRegistry()
    assert found.online() == {}

    def beat(pump, state=NodeState.ONLINE):
        registry.put_status(PUMPS, NodeStatus(pump, f"{pump}:8250", state, 0, registry.tso()))

    def look(at):
        now[0] = at
        found.pumps()
        asked = len(registry.asked)
        in_service = found.online()
        assert len(registry.asked) == asked, "without a request"
        return in_service

    beat("p1")
    beat("p2")
    beat("p3", NodeState.PAUSED)
    assert look(100.0) == look(110.0) == {"p1": "p1:8250", "p2": "p2:8250"}
    beat("p1")
    assert look(110.1) == look(120.0) == {"p1": "p1:8250"}
    beat("p1", NodeState.CLOSING)
    beat("p2")
    assert look(120.1) == {"p2": "p2:8250"}


def test_a_list_of_addresses_names_nobody_in_service():
    assert ConfiguredDiscovery("h:1,h:2", 7).online() == {}


def test_the_partitions_of_a_batch_wait_for_the_registry():
    """Spark asks for them once; an error here ends the stream."""
    reader = BinlogStreamReader({"pumps": "h:1", "clusterId": "7"})
    away = AwayFor(3)
    reader._discovery = away
    start = BinlogOffset(Delivery.SORTED, 5, 5, {"h:1": PumpMark(Position(0, 5))})
    end = BinlogOffset(Delivery.SORTED, 9, 5, {"h:1": PumpMark(Position(0, 9))})
    (partition,) = reader.partitions(start.to_json(), end.to_json())
    assert (partition.endpoint.address, partition.upto_ts, away.asked) == ("h:1", 9, 5)


def test_outcomes_that_cannot_be_told_now_do_not_end_the_batch(monkeypatch, caplog):
    def away(source):
        raise PumpUnavailable("registry http://pd:2379 does not answer")

    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.pairing.bucket._endpoints", away)
    _tell([MissingOutcome("p", 5, 9)], SourceConfig(pumps="http://pd:2379"))
    assert "1 outcomes are not written to their Pumps yet" in caplog.text


def test_a_pump_whose_state_cannot_be_read_is_there():
    """Without it R would advance past what it has."""
    found = RegistryDiscovery("http://r:1", 7)
    found.registry = registry = FakeRegistry()
    registry.put_status(PUMPS, NodeStatus("p1", "p1:8250"))
    listing = registry.listing(PUMPS)
    registry.listing = lambda kind: replace(listing, unreadable=("p2",))
    with pytest.raises(PumpUnavailable, match="Pump p2 with a state that cannot be read"):
        found.pumps()


def test_who_is_offline_is_known_with_how_far_it_came():
    found = RegistryDiscovery("http://r:1", 7)
    found.registry = registry = FakeRegistry()
    for pump, state, ts in (("p1", NodeState.ONLINE, 9), ("p2", NodeState.OFFLINE, 5), ("p3", NodeState.OFFLINE, 8)):
        registry.put_status(PUMPS, NodeStatus(pump, f"{pump}:8250", state, ts))
    assert dict(found.pumps(5)) == {"p1": "p1:8250", "p3": "p3:8250"}
    assert found.offline() == {"p2": OfflinePump("p2:8250", 5), "p3": OfflinePump("p3:8250", 8)}
    assert ConfiguredDiscovery("h:1", 7).offline() == {}
    for state, successor in ((NodeState.ONLINE, "p4"), (NodeState.PAUSED, "")):
        registry.put_status(PUMPS, NodeStatus("p4", "p3:8250", state, 9))
        found.pumps(5)
        assert found.offline()["p3"] == OfflinePump("p3:8250", 8, successor=successor)


@pytest.mark.parametrize("last", [NodeState.ONLINE, NodeState.PAUSED, NodeState.CLOSING])
def test_whoever_was_set_offline_may_have_had_more_than_its_last_heartbeat_says(last):
    """That is older than its death, and the Commits of what it held come later."""
    found = RegistryDiscovery("http://r:1", 7)
    found.registry = registry = FakeRegistry()
    for state in (last, NodeState.OFFLINE):
        registry.put_status(PUMPS, NodeStatus("p1", "p1:8250", state, 5, tso(1_000)))
    assert set(found.pumps(tso(600_000))) == {"p1"} and not found.pumps(tso(601_000))
    assert found.offline() == {"p1": OfflinePump("p1:8250", tso(601_000), left=False)}
    assert registry.asked.count("own_state") == 1, "once for each entry"
    registry.put_status(PUMPS, NodeStatus("p1", "p1:8250", NodeState.OFFLINE, 6, tso(2_000)))
    assert not found.pumps(6) and found.offline() == {"p1": OfflinePump("p1:8250", 6)}, "it came back, and left"
    registry.put_status(PUMPS, NodeStatus("p1", "p1:8250", NodeState.OFFLINE, 7, tso(3_000)))
    registry.compact()
    assert not found.pumps(7) and found.offline() == {"p1": OfflinePump("p1:8250", 7)}, "nobody knows any more"
