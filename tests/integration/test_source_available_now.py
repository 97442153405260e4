"""Trigger.AvailableNow ends where all Pumps are: one that is away is an error, never the end of a stream that has read nothing."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeStatus
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery
from tests.support.store_model import commit, prewrite

pytestmark = [pytest.mark.spark, pytest.mark.grpc]

NOBODY = "127.0.0.1:1"


@pytest.fixture
def config(tmp_path: Path) -> PumpConfig:
    return PumpConfig("p1", "127.0.0.1:0", data_dir=str(tmp_path), cluster_id=7, fake_binlog_interval=0, stop_write_at_available_space="")


@pytest.fixture
def pump(config: PumpConfig) -> Iterator[PumpServer]:
    made = PumpServer(config).start()
    made.service.store.write([prewrite(11), commit(11, 14), fake(20)])
    made.service.store.catch_up()
    yield made
    made.stop()


def reader_of(pumps: str, delivery: Delivery, patience: float = 1.0) -> BinlogStreamReader:
    made = BinlogStreamReader(
        options_of(SourceConfig(pumps, 7, str(delivery), 1), StreamOptions(patience=patience, read_patience=patience))
    )
    made.prepareForTriggerAvailableNow()
    return made


def run(reader: BinlogStreamReader) -> dict[str, Any]:
    """As Spark does: until nothing is new."""
    at = reader.initialOffset()
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        at = end
    return at


@pytest.mark.parametrize("delivery", list(Delivery))
def test_it_ends_where_the_pumps_are(pump: PumpServer, delivery: Delivery) -> None:
    reader = reader_of(pump.address, delivery)
    assert from_json(run(reader)).resolved_ts == 20
    reader.stop()


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_pump_that_is_away_is_an_error(pump: PumpServer, delivery: Delivery) -> None:
    reader = reader_of(f"{pump.address},{NOBODY}", delivery)
    with pytest.raises(PumpUnavailable, match=f"AvailableNow .* Pump {NOBODY}: UNAVAILABLE"):
        run(reader)
    reader.stop()


def test_one_that_comes_in_time_is_waited_for(pump: PumpServer, config: PumpConfig) -> None:
    pump.stop()
    reader = reader_of(pump.address, Delivery.RAW, patience=20.0)
    again = PumpServer(dataclasses.replace(config, addr=pump.address))
    starter = threading.Timer(1.0, again.start)
    starter.start()
    assert from_json(run(reader)).resolved_ts == 20
    starter.join()
    reader.stop()
    again.stop()


def test_so_is_a_registry_that_is_away(pump: PumpServer) -> None:
    service = ClusterService(Oracle(), 7).start()
    service.nodes.put(PUMPS, NodeStatus("p1", pump.address))
    reader = reader_of(service.url, Delivery.RAW)
    at = reader.initialOffset()
    service.stop()
    with pytest.raises(PumpUnavailable, match="registry"):
        reader.latestOffset(at, reader.getDefaultReadLimit())
    reader.stop()


def test_a_pump_that_joins_and_does_not_answer_is_no_end(pump: PumpServer) -> None:
    service = ClusterService(Oracle(), 7).start()
    service.nodes.put(PUMPS, NodeStatus("p1", pump.address))
    reader = reader_of(service.url, Delivery.RAW)
    at = reader.initialOffset()
    reader._end.fix(reader._following(from_json(at)), from_json(at))
    service.nodes.put(PUMPS, NodeStatus("p2", NOBODY))
    with pytest.raises(PumpUnavailable, match="cannot reach ts 20: Pump p2: UNAVAILABLE"):
        run(reader)
    reader.stop()
    service.stop()
