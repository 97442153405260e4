"""A Pump that no Drainer reads from tells every online Drainer before it serves, so that none passes a commit_ts it will hold."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.source.batch_planner import BatchPlanner
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery
from tests.support.binlogs import payload
from tests.support.drainer_nodes import node_at
from tests.support.pump_writes import send
from tests.support.stream_reader import advance, commits_between

pytestmark = pytest.mark.grpc


@pytest.fixture
def drainer(service: ClusterService) -> Iterator[DrainerNode]:
    made = node_at(RegistryClient(service.url), lambda: 42).start()
    yield made
    made.stop()


def pump(name: str, service: ClusterService, directory: Path, **more: Any) -> PumpServer:
    given = {"registry": service.url, "fake_binlog_interval": 0, "sync_log": False, "stop_write_at_available_space": ""}
    return PumpServer(PumpConfig(name, "127.0.0.1:0", data_dir=str(directory / name), **(given | more)))


def transaction(target: PumpServer, commit_ts: int) -> None:
    send(target, *(payload(tp, commit_ts - 1, at, prewrite_key=b"k", prewrite_value=b"") for tp, at in ((0, 0), (1, commit_ts))))


def state_of(registry: RegistryClient, kind: str, node_id: str) -> NodeState:
    return next(status.state for status in registry.listing(kind).nodes if status.node_id == node_id)


@pytest.mark.shows("node-id")
def test_the_drainer_is_registered(registry: RegistryClient, drainer: DrainerNode) -> None:
    (status,) = registry.listing(DRAINERS).nodes
    assert (status.node_id, status.host, status.state, status.max_commit_ts) == ("drainer", drainer.address, NodeState.ONLINE, 42)


def test_a_stopped_drainer_is_paused(service: ClusterService, registry: RegistryClient) -> None:
    node_at(RegistryClient(service.url), lambda: 1, "d").start().stop()
    assert state_of(registry, DRAINERS, "d") is NodeState.PAUSED


@pytest.mark.shows("Notify")
def test_a_new_pump_serves_once_the_drainer_has_answered(
    service: ClusterService, registry: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()
    plain = DrainerNode._notify

    def slow(self: DrainerNode, call: Any) -> None:
        asked.set()
        go_on.wait(10)
        plain(self, call)

    monkeypatch.setattr(DrainerNode, "_notify", slow)
    drainer = node_at(RegistryClient(service.url), lambda: 1).start()
    made = pump("new", service, tmp_path)
    starting = threading.Thread(target=made.start)
    starting.start()
    assert asked.wait(10)
    assert state_of(registry, PUMPS, "new") is NodeState.ONLINE, "what the Drainer will see when it looks"
    with grpc.insecure_channel(made.address) as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(0.3)
    go_on.set()
    starting.join(10)
    transaction(made, 10)
    made.stop()
    drainer.stop()


def test_a_drainer_that_is_gone_keeps_a_new_pump_offline(
    service: ClusterService, registry: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.pump.periodic.notify.__defaults__", (1.0, None))
    registry.put_status(DRAINERS, NodeStatus("dead", "127.0.0.1:1"))
    made = pump("new", service, tmp_path)
    with pytest.raises(PumpUnavailable, match="fail to notify all living drainer: Drainer dead at 127.0.0.1:1.*set their state to offline"):
        made.start()
    assert state_of(registry, PUMPS, "new") is NodeState.OFFLINE
    registry.put_status(DRAINERS, NodeStatus("dead", "127.0.0.1:1", NodeState.OFFLINE))
    made.start().stop()


def test_a_pump_that_was_paused_notifies_nobody(service: ClusterService, registry: RegistryClient, tmp_path: Path) -> None:
    pump("p", service, tmp_path).start().stop()
    assert state_of(registry, PUMPS, "p") is NodeState.PAUSED
    registry.put_status(DRAINERS, NodeStatus("dead", "127.0.0.1:1"))
    again = pump("p", service, tmp_path).start()
    assert state_of(registry, PUMPS, "p") is NodeState.ONLINE, "though a Drainer that it would have to notify is dead"
    again.stop()


@pytest.mark.parametrize("delivery", list(Delivery))
def test_the_first_commit_of_a_new_pump_is_not_passed(
    service: ClusterService, drainer: DrainerNode, tmp_path: Path, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pump 1 holds {8, 12}; while the Drainer makes up its mind about a batch that ends at 12, Pump 2 joins, and its first is 10."""
    one, two = pump("pump-1", service, tmp_path).start(), pump("pump-2", service, tmp_path)
    reader = BinlogStreamReader(options_of(SourceConfig(service.url, delivery=str(delivery), starting_commit_ts=5), StreamOptions()))
    transaction(one, 8)
    at = advance(reader, reader.initialOffset(), 8)
    plain, planned = BatchPlanner.plan, []

    def join_before_planning(self: BatchPlanner, *given: Any) -> Any:
        if not planned:
            two.start()
            transaction(two, 10)
        end = plain(self, *given)
        planned.append(end.resolved_ts)
        return end

    monkeypatch.setattr(BatchPlanner, "plan", join_before_planning)
    transaction(one, 12)
    read: set[int] = set()
    ends = [8]
    deadline = time.monotonic() + 20
    while ends[-1] < 12 and time.monotonic() < deadline:
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        read |= commits_between(reader, at, end)
        if from_json(end).resolved_ts > ends[-1]:
            ends.append(from_json(end).resolved_ts)
            if ends[-1] == 10:
                transaction(two, 14)
        at = end
    assert planned[0] == 12, "the batch that would have passed 10 was planned"
    assert ends == [8, 10, 12], "and not taken: the next one ends where the new Pump is"
    assert {10, 12} <= read
    reader.stop()
    one.stop()
    two.stop()
