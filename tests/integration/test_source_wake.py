"""A stream over Pumps that never write a fake of their own: it moves because it wakes them, and only when there is something to release."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plain_pump import PlainCall
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump.handlers import Handlers
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.source import readers, waker
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery
from tests.support.eventually import eventually
from tests.support.pump_writes import commit, config_of, fake, prewrite, send
from tests.support.stream_reader import commits_between, next_offset

pytestmark = pytest.mark.grpc

WAIT = 0.1
"""Seconds that a call of ``latestOffset`` waits in vain, and the interval at which Pumps are woken."""
LOOKS = 6
"""So many calls wait for several of these intervals."""


class Cluster:
    """Two Pumps in a registry, and readers of them."""

    def __init__(self, service: ClusterService, registry: RegistryClient, directory: Path, delivery: Delivery) -> None:
        self.service, self.registry, self.delivery = service, registry, delivery
        self.begin = registry.tso()
        more = {"registry": service.url, "cluster_id": 0, "heartbeat_interval": 0.1}
        self.pumps = [PumpServer(config_of(directory, number, **more)).start() for number in (1, 2)]
        self.readers: list[BinlogStreamReader] = []

    def reader(self, **more: Any) -> BinlogStreamReader:
        settings = {"wake_idle_pumps": f"{WAIT}s"} | more
        config = SourceConfig(self.service.url, delivery=str(self.delivery), starting_commit_ts=self.begin, **settings)
        self.readers.append(BinlogStreamReader(options_of(config, StreamOptions())))
        return self.readers[-1]

    def transaction(self, pump: int) -> int:
        """Commit one on a Pump; its commit_ts."""
        start_ts = self.registry.tso()
        send(self.pumps[pump], prewrite(start_ts))
        commit_ts = self.registry.tso()
        send(self.pumps[pump], commit(start_ts, commit_ts))
        return commit_ts

    def writes(self) -> list[int]:
        return [pump.service.writes for pump in self.pumps]

    def close(self) -> None:
        for reader in self.readers:
            reader.stop()
        for pump in self.pumps:
            pump.stop()


IN_ORDER = pytest.mark.parametrize("cluster", ["sorted"], indirect=True)
"""For what a stream decides before it knows how Pumps deliver."""


@pytest.fixture(params=["raw", "sorted", "of a real Pump"])
def cluster(
    request: pytest.FixtureRequest, service: ClusterService, registry: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    # on a machine that stands still for a second a fake would be sent again
    monkeypatch.setattr(waker, "_SEND_SECONDS", 60.0)
    monkeypatch.setattr(readers, "_WAIT_SECONDS", WAIT)
    if request.param == "of a real Pump":
        own = Handlers._pull
        monkeypatch.setattr(Handlers, "_pull", lambda handlers, call: own(handlers, PlainCall(call)))
    made = Cluster(service, registry, tmp_path, Delivery.RAW if request.param == "raw" else Delivery.SORTED)
    yield made
    made.close()


def begun(cluster: Cluster, reader: BinlogStreamReader) -> dict[str, Any]:
    """The stream once both Pumps have said something, and stand at different promises."""
    for pump in cluster.pumps:
        send(pump, fake(cluster.registry.tso()))
    at = next_offset(reader, reader.initialOffset())
    assert cluster.writes() == [1, 1]
    return at


def read_until(reader: BinlogStreamReader, at: dict[str, Any], commit_ts: int) -> tuple[dict[str, Any], set[int]]:
    """Take batches until R has reached ``commit_ts``: the last offset, and the commit_ts in them."""
    found: set[int] = set()
    while from_json(at).resolved_ts < commit_ts:
        end = next_offset(reader, at)
        found |= commits_between(reader, at, end)
        at = end
    return at, found


def stands(reader: BinlogStreamReader, at: dict[str, Any]) -> bool:
    return all(reader.latestOffset(at, reader.getDefaultReadLimit()) == at for _ in range(LOOKS))


def woken(reader: BinlogStreamReader) -> Mapping[str, int]:
    return (reader.reportLatestOffset() or {})["woken"]


def test_a_row_now_and_then_needs_one_fake(cluster: Cluster) -> None:
    reader = cluster.reader()
    at = begun(cluster, reader)
    for turn in range(6):
        commit_ts = cluster.transaction(turn % 2)
        at, found = read_until(reader, at, commit_ts)
        assert commit_ts in found
    eventually(lambda: stands(reader, at))
    # each Pump: its first fake, three transactions, and a fake for each transaction of the other one
    assert cluster.writes() == [1 + 6 + 3] * 2
    assert woken(reader) == {"pump-1": 3, "pump-2": 3}


def test_nobody_is_woken_when_all_are_idle(cluster: Cluster) -> None:
    """The Pumps stand at different promises, but nothing waits for R."""
    reader = cluster.reader()
    at = begun(cluster, reader)
    assert stands(reader, at) and cluster.writes() == [1, 1] and woken(reader) == {}


@pytest.mark.shows("spark.wake-idle-pumps")
def test_with_0_the_stream_waits_for_the_pump(cluster: Cluster) -> None:
    reader = cluster.reader(wake_idle_pumps="0")
    at = begun(cluster, reader)
    commit_ts = cluster.transaction(0)
    assert from_json(at).resolved_ts < commit_ts
    for _ in range(LOOKS):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert from_json(at).resolved_ts < commit_ts and cluster.writes() == [3, 1]
    send(cluster.pumps[1], fake(cluster.registry.tso()))
    assert read_until(reader, at, commit_ts)[1] >= ({commit_ts} if cluster.delivery is Delivery.SORTED else set())


@pytest.mark.parametrize(
    ("cluster", "state"),
    [("raw", NodeState.PAUSING), ("sorted", NodeState.PAUSED), ("of a real Pump", NodeState.CLOSING)],
    indirect=["cluster"],
)
def test_a_pump_that_is_not_online_is_left_alone(cluster: Cluster, state: NodeState) -> None:
    reader = cluster.reader()
    at = begun(cluster, reader)
    cluster.pumps[1].service.state = state
    eventually(lambda: {node.node_id: node.state for node in cluster.registry.listing(PUMPS).nodes}["pump-2"] is state)
    commit_ts = cluster.transaction(0)
    for _ in range(LOOKS):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert from_json(at).resolved_ts < commit_ts and cluster.writes() == [3, 1] and woken(reader) == {}


def test_a_prewrite_under_way_holds_the_fake_back_and_gets_no_second_one(cluster: Cluster) -> None:
    """Its commit_ts is below the fake: TiDB had it before the Pump was woken, and writes the Commit afterwards."""
    reader = cluster.reader()
    at = begun(cluster, reader)
    under_way = cluster.registry.tso()
    send(cluster.pumps[1], prewrite(under_way))
    early = cluster.registry.tso()
    late = cluster.transaction(0)
    seen: set[int] = set()

    def look() -> bool:
        nonlocal at
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        seen.update(commits_between(reader, at, end))
        at = end
        return cluster.writes()[1] >= 3

    eventually(look, pause=0)
    for _ in range(LOOKS):
        look()
    assert from_json(at).resolved_ts < early and cluster.writes() == [3, 3], "a first fake, the Prewrite, one that wakes"
    assert early not in seen
    send(cluster.pumps[1], commit(under_way, early))
    at, found = read_until(reader, at, late)
    assert {early, late} <= seen | found


def test_two_drainers_wake_the_same_pumps(cluster: Cluster) -> None:
    first, second = cluster.reader(), cluster.reader()
    at = begun(cluster, first)
    positions, found = {first: at, second: at}, {first: set[int](), second: set[int]()}
    written = set()
    for turn in range(10):
        commit_ts = cluster.transaction(turn % 2)
        written.add(commit_ts)
        for reader in (first, second) if turn % 3 else (second, first):
            positions[reader], more = read_until(reader, positions[reader], commit_ts)
            assert not more & found[reader]
            found[reader] |= more
    assert found == {first: written, second: written}


@IN_ORDER
def test_a_pump_that_writes_its_own_fakes_often_gets_no_others(cluster: Cluster) -> None:
    reader = cluster.reader(wake_idle_pumps="3600s")
    at = begun(cluster, reader)
    for _ in range(5):
        commit_ts = cluster.transaction(0)
        send(cluster.pumps[1], fake(cluster.registry.tso()))
        at, _ = read_until(reader, at, commit_ts)
    assert woken(reader) == {} and cluster.writes() == [1 + 10, 1 + 5]


@IN_ORDER
def test_the_stream_goes_on_while_the_registry_gives_no_timestamps(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = cluster.reader()
    at = begun(cluster, reader)
    whole = RegistryClient.tso

    def away(registry: RegistryClient, count: int = 1) -> int:
        if registry is cluster.registry:
            return whole(registry, count)
        raise PumpUnavailable("no timestamps")

    monkeypatch.setattr(RegistryClient, "tso", away)
    commit_ts = cluster.transaction(0)
    for _ in range(LOOKS):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert from_json(at).resolved_ts < commit_ts and cluster.writes() == [3, 1]
    send(cluster.pumps[1], fake(cluster.registry.tso()))
    read_until(reader, at, commit_ts)
    assert [record.getMessage() for record in caplog.records if "cannot be woken" in record.getMessage()] == [
        "idle Pumps cannot be woken, so resolved_ts waits for the Pumps' own fake binlogs: the registry: no timestamps"
    ]


@IN_ORDER
@pytest.mark.shows("spark.ending-commit-ts")
def test_a_stream_past_its_end_wakes_nobody(cluster: Cluster) -> None:
    commit_ts = cluster.transaction(0)
    for pump in cluster.pumps:
        send(pump, fake(cluster.registry.tso()))
    reader = cluster.reader(ending_commit_ts=commit_ts)
    at, _ = read_until(reader, reader.initialOffset(), commit_ts)
    cluster.transaction(0)
    assert stands(reader, at) and cluster.writes() == [2 + 1 + 2, 1]


def test_available_now_wakes_nobody(cluster: Cluster) -> None:
    for pump in cluster.pumps:
        send(pump, fake(cluster.registry.tso()))
    cluster.transaction(0)
    reader = cluster.reader()
    reader.prepareForTriggerAvailableNow()
    at = next_offset(reader, reader.initialOffset())
    assert stands(reader, at) and cluster.writes() == [3, 1]
