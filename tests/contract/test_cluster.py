"""Pump, Pump client and Drainer over either registry: they find each other, keep its clock, and leave in order."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from tests.support.binlogs import payload
from tests.support.drainer_nodes import node_at
from tests.support.eventually import eventually
from tests.support.registry_sites import CLUSTER, Site
from tests.support.stream_reader import commits_between

pytestmark = [pytest.mark.grpc, pytest.mark.parametrize("site", ["standalone", "pd"], indirect=True)]


def pump(site: Site, directory: Path, name: str) -> PumpServer:
    pd = site.url.startswith("pd://")
    where = {"pd_urls": "http://" + site.url.removeprefix("pd://").replace(",", ",http://")} if pd else {"registry": site.url}
    config = PumpConfig(
        name,
        "127.0.0.1:0",
        data_dir=str(directory / name),
        fake_binlog_interval=0.05,
        heartbeat_interval=0.05,
        sync_log=False,
        stop_write_at_available_space="",
        labels=(("zone", "a"),),
        score=3,
        **where,  # type: ignore[arg-type]
    )
    return PumpServer(config)


@pytest.fixture
def drainer(site: Site, registry: Registry) -> Iterator[DrainerNode]:
    made = node_at(open_registry(site.url, tls=None), lambda: 1 << 62).start()
    yield made
    made.stop()


@pytest.mark.shows("pump pd-urls", "pump spark.registry")
def test_a_cluster(site: Site, registry: Registry, drainer: DrainerNode, tmp_path: Path) -> None:
    before = registry.tso()
    pumps = [pump(site, tmp_path, name).start() for name in ("pump-1", "pump-2")]
    (one, two) = registry.listing(PUMPS).nodes
    assert (one.state, two.state, one.score, dict(one.labels)) == (NodeState.ONLINE, NodeState.ONLINE, 3, {"zone": "a"})
    assert pumps[0].service.cluster_id == CLUSTER

    reader = BinlogStreamReader(options_of(SourceConfig(site.url, starting_commit_ts=before), StreamOptions()))
    at = reader.initialOffset()
    committed = []
    with PumpClient.from_registry(registry) as client:
        for _ in range(6):
            start_ts = registry.tso()
            client.prewrite(start_ts, payload(0, start_ts, prewrite_key=b"k", prewrite_value=b""))
            committed.append(registry.tso())
            client.outcome(start_ts, payload(1, start_ts, committed[-1], prewrite_key=b"k", prewrite_value=b""))
        client.flush()
        assert all(pump.service.store.catch_up().max_ts > before for pump in pumps), "both took their turns"

    read: set[int] = set()
    deadline = time.monotonic() + 20
    while from_json(at).resolved_ts < committed[-1] and time.monotonic() < deadline:
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        read |= commits_between(reader, at, end)
        at = end
    assert set(committed) <= read, "fake binlogs of this registry's clock moved R past the last commit"
    reader.stop()

    pumps[0].close()
    pumps[1].stop()
    assert [node.state for node in registry.listing(PUMPS).nodes] == [NodeState.OFFLINE, NodeState.PAUSED]


def test_fakes_and_heartbeats_survive_a_registry_that_goes_away(site: Site, registry: Registry, tmp_path: Path) -> None:
    made = pump(site, tmp_path, "pump-1").start()
    eventually(lambda: made.service.store.state.max_ts)
    site.down()
    time.sleep(0.2)
    held = made.service.store.catch_up().max_ts
    site.up()
    eventually(lambda: made.service.store.state.max_ts > held)
    eventually(lambda: registry.listing(PUMPS).nodes[0].max_commit_ts > held)
    stopped = threading.Thread(target=made.stop)
    stopped.start()
    stopped.join(20)
    assert not stopped.is_alive()
