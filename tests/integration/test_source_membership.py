"""Pumps that join and leave between batches, found through a real registry; and a registry that is away for a while."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plain_pump import PlainCall
from pyspark_tidb_binlog.binlog_source.changes.change_readers import ChangeStreamReader
from pyspark_tidb_binlog.binlog_source.cluster import pump_pages
from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import require_pump
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump.handlers import Handlers
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.writer import write_binlog
from pyspark_tidb_binlog.binlog_source.source.delivery import resolve_delivery
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark, from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogReader, BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.jobs.ctl import main as ctl
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.nodes import Nodes
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.ddl_jobs import database
from tests.support.eventually import eventually
from tests.support.pump_writes import CLUSTER, commit, config_of, fake, prewrite, send
from tests.support.stream_reader import advance, commits_between, next_offset

pytestmark = [pytest.mark.spark, pytest.mark.grpc]

TRIES = 150
"""Each try waits up to 0.2 s inside ``latestOffset``."""


def pump(name: str, service: ClusterService, directory: Path) -> PumpServer:
    config = PumpConfig(
        name,
        "127.0.0.1:0",
        data_dir=str(directory / name),
        registry=service.url,
        fake_binlog_interval=0,
        heartbeat_interval=3600,
        sync_log=False,
        stop_write_at_available_space="",
    )
    return PumpServer(config).start()


def offset(value: dict[str, Any]) -> BinlogOffset:
    return from_json(value)


@pytest.mark.shows("spark.pumps")
@pytest.mark.parametrize("delivery", list(Delivery))
def test_pumps_join_and_leave(service: ClusterService, registry: RegistryClient, tmp_path: Path, delivery: Delivery) -> None:
    first = pump("pump-1", service, tmp_path)
    options = options_of(SourceConfig(service.url, delivery=str(delivery), starting_commit_ts=registry.tso()))
    reader = BinlogStreamReader(options)
    second = None
    try:
        registry.put_status(PUMPS, NodeStatus("pump-0", "127.0.0.1:1", NodeState.OFFLINE, 55, registry.tso()))
        assert resolve_delivery(SourceConfig(service.url), 1.0) is Delivery.RAW, "one that left long ago is not asked"
        one = registry.tso()
        send(first, fake(one))
        begin = advance(reader, reader.initialOffset(), one)
        assert set(offset(begin).pumps) == {"pump-1"}

        second = pump("pump-2", service, tmp_path)
        two = registry.tso()
        send(first, fake(two))
        assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == begin, "a Pump that has said nothing holds R"
        send(second, fake(two))
        joined = advance(reader, begin, two)
        assert set(offset(joined).pumps) == {"pump-1", "pump-2"}
        assert (offset(joined).pumps["pump-2"].since is not None) == (delivery is Delivery.RAW)
        assert {p.endpoint.pump for p in reader.partitions(begin, joined)} == {"pump-1", "pump-2"}

        registry.put_status(PUMPS, NodeStatus("pump-2", second.address, NodeState.OFFLINE, two))
        three = registry.tso()
        send(first, fake(three))
        left = advance(reader, joined, three)
        assert set(offset(left).pumps) == {"pump-1"}
        assert {p.endpoint.pump for p in reader.partitions(begin, joined)} == {"pump-1", "pump-2"}, "a replay reads whom its offset names"
    finally:
        reader.stop()
        for made in (first, second):
            if made is not None:
                made.stop()


def test_a_start_that_options_name_drops_no_pump_of_a_checkpoint(service: ClusterService, registry: RegistryClient, tmp_path: Path) -> None:
    """A batch that was begun is read again after a kill, by a query that is started with the time of its start."""
    history = tmp_path / "history.json"
    history.write_text(json.dumps([database(1)]))
    options = {"pumps": service.url, "clusterId": str(CLUSTER), "tidbStatus": str(history)}
    made = [pump(name, service, tmp_path) for name in ("pump-1", "pump-2")]
    reader = ChangeStreamReader(options | {"startingCommitTs": str(registry.tso())}, None)
    readers = [reader]
    try:
        ts = registry.tso()
        for one in made:
            send(one, fake(ts))
        begin = advance(reader, reader.initialOffset(), ts)
        last = registry.tso()
        for one in made:
            send(one, fake(last))
        end = advance(reader, begin, last)
        registry.put_status(PUMPS, NodeStatus("pump-2", made[1].address, NodeState.OFFLINE, last))
        readers.append(ChangeStreamReader(options | {"startingCommitTs": str(registry.tso())}, None))
        for each in readers:
            assert [[p.endpoint.pump for p in part.pumps] for part in each.partitions(begin, end)] == [["pump-1", "pump-2"]]
    finally:
        for each in readers:
            each.stop()
        for one in made:
            one.stop()


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_pump_that_moves_while_a_batch_reads_from_it(
    service: ClusterService, registry: RegistryClient, tmp_path: Path, delivery: Delivery
) -> None:
    made = pump("pump-1", service, tmp_path)
    reader = BinlogStreamReader(options_of(SourceConfig(service.url, delivery=str(delivery), starting_commit_ts=registry.tso())))
    try:
        begun, one = registry.tso(), registry.tso()
        for tp, commit_ts in ((0, 0), (1, one)):
            binlog = binlog_pb2.Binlog(tp=tp, start_ts=begun, commit_ts=commit_ts, prewrite_value=b"")
            write_binlog(made.address, CLUSTER, binlog.SerializeToString(), tls=None)
        begin = reader.initialOffset()
        (part,) = reader.partitions(begin, advance(reader, begin, one))
        before = made.address
        made.stop()
        made.start()
        assert made.address != before
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
        assert (1, one) in {(row["tp"], row["commit_ts"]) for row in rows}
    finally:
        reader.stop()
        made.stop()


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_replayed_batch_does_not_read_from_a_pump_that_left_with_nothing_in_it(
    service: ClusterService, registry: RegistryClient, delivery: Delivery
) -> None:
    def names(starting: int, max_commit_ts: int) -> set[str]:
        registry.put_status(PUMPS, NodeStatus("pump-2", "127.0.0.1:2", NodeState.OFFLINE, max_commit_ts))
        reader = BinlogStreamReader(options_of(SourceConfig(service.url, delivery=str(delivery), starting_commit_ts=starting)))
        parts = reader.partitions(begin.to_json(), end.to_json())
        reader.stop()
        return {part.endpoint.pump for part in parts}

    registry.put_status(PUMPS, NodeStatus("pump-1", "127.0.0.1:1"))
    begin = BinlogOffset(delivery, 50, 5, {name: PumpMark(Position(0, 50)) for name in ("pump-1", "pump-2")})
    end = BinlogOffset(delivery, 70, 5, {name: PumpMark(Position(0, 70)) for name in ("pump-1", "pump-2")})
    assert names(5, 60) == {"pump-1", "pump-2"}
    assert names(5, 50) == {"pump-1"}
    assert names(70, 60) == {"pump-1"}, "the target has everything up to 70 already"


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_pump_that_was_set_offline_by_hand_is_not_taken_for_one_that_left(
    service: ClusterService, registry: RegistryClient, tmp_path: Path, delivery: Delivery
) -> None:
    """Its last registration is older than what it acknowledged, also when it was stopped in order: what it has may still commit."""
    first, second = (pump(name, service, tmp_path) for name in ("pump-1", "pump-2"))

    def life(**more: Any) -> BinlogStreamReader:
        source = SourceConfig(service.url, delivery=str(delivery), starting_commit_ts=floor, **more)
        return BinlogStreamReader(options_of(source, StreamOptions(patience=2.0)))

    def held(reader: BinlogStreamReader) -> bool:
        return all(reader.latestOffset(begin, reader.getDefaultReadLimit()) == begin for _ in range(3))

    def told(end: dict[str, Any]) -> list[str]:
        rows = (row for part in reader.partitions(begin, end) for batch in reader.read(part) for row in batch.to_pylist())
        return [row["pump"] for row in rows if row["control"] == ControlType.LOST]

    floor = registry.tso()
    reader = life()
    try:
        one, begun = registry.tso(), registry.tso()
        for each in (first, second):
            send(each, fake(one))
        begin = advance(reader, reader.initialOffset(), one)
        send(second, prewrite(begun))
        second.stop()
        assert ctl(["update-pump", "-registry", service.url, "-node-id", "pump-2", "-state", "offline"]) == 0
        two = registry.tso()
        send(first, fake(two))
        assert held(reader)
        reader.stop()
        reader = life(gone_pumps="pump-2")
        assert told(advance(reader, begin, two)) == ["pump-2"], "said to be gone for ever"
        reader.stop()

        second = pump("pump-2", service, tmp_path)
        committed, three = registry.tso(), registry.tso()
        send(second, commit(begun, committed), fake(three))
        send(first, fake(three))
        reader = life()
        end = advance(reader, begin, three)
        assert committed in commits_between(reader, begin, end) and told(end) == [], "it is back"
    finally:
        reader.stop()
        for made in (first, second):
            made.stop()


def test_a_pump_that_never_serves_holds_r_until_it_is_offline(service: ClusterService, registry: RegistryClient, tmp_path: Path) -> None:
    first = pump("pump-1", service, tmp_path)
    reader = BinlogStreamReader(options_of(SourceConfig(service.url, delivery="raw", starting_commit_ts=registry.tso())))
    try:
        registry.put_status(PUMPS, NodeStatus("ghost", "127.0.0.1:1"))
        one = registry.tso()
        send(first, fake(one))
        begin = reader.initialOffset()
        for _ in range(5):
            assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == begin
        assert "ghost" in str(reader.reportLatestOffset())
        registry.put_status(PUMPS, NodeStatus("ghost", "127.0.0.1:1", NodeState.OFFLINE))
        assert set(offset(advance(reader, begin, one)).pumps) == {"pump-1"}
    finally:
        reader.stop()
        first.stop()


def test_a_registry_that_is_away_holds_r_and_ends_the_stream_only_when_that_lasts(tmp_path: Path) -> None:
    service = ClusterService(Oracle(), CLUSTER).start()
    first = PumpServer(
        PumpConfig(
            "pump-1", "127.0.0.1:0", data_dir=str(tmp_path), cluster_id=CLUSTER, fake_binlog_interval=0, stop_write_at_available_space=""
        )
    ).start()
    service.nodes.put(PUMPS, NodeStatus("pump-1", first.address))
    config = SourceConfig(service.url, CLUSTER, "raw", 1)
    reader = BinlogStreamReader(options_of(config, StreamOptions(patience=0.5)))
    try:
        begin = reader.initialOffset()
        service.stop()
        assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == begin
        assert "does not answer" in str(reader.reportLatestOffset())
        with pytest.raises(PumpUnavailable, match="registry"):
            for _ in range(TRIES):
                reader.latestOffset(begin, reader.getDefaultReadLimit())
    finally:
        reader.stop()
        first.stop()


def test_a_batch_of_a_pump_that_nobody_names_any_more_says_so(service: ClusterService, registry: RegistryClient) -> None:
    registry.put_status(PUMPS, NodeStatus("pump-1", "127.0.0.1:1"))
    reader = BinlogStreamReader(options_of(SourceConfig(service.url, delivery="raw"), StreamOptions(patience=0.3)))
    begin = BinlogOffset(Delivery.RAW, 5, 5, {}).to_json()
    end = begin | {"pumps": {"pump-9": {"suffix": 0, "offset": 4, "since": {"suffix": 0, "offset": 0}}}, "resolved_ts": 7}
    with pytest.raises(PumpUnavailable, match=r"batch \(ts 5, 7\] reads Pump pump-9"):
        reader.partitions(begin, end)
    reader.stop()


def losses(reader: BinlogStreamReader, begin: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Pump and span of the LOST rows of a batch."""
    rows = (row for part in reader.partitions(begin, end) for batch in reader.read(part) for row in batch.to_pylist())
    return [(row["pump"], row["start_ts"], row["commit_ts"]) for row in rows if row["control"] == ControlType.LOST]


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_registry_that_has_lost_its_memory_loses_no_pump(
    service: ClusterService, registry: RegistryClient, tmp_path: Path, delivery: Delivery
) -> None:
    """The heartbeat of the one Pump comes before that of the other."""
    first, second = pump("pump-1", service, tmp_path), pump("pump-2", service, tmp_path)
    reader = BinlogStreamReader(options_of(SourceConfig(service.url, delivery=str(delivery), starting_commit_ts=registry.tso())))
    try:
        one = registry.tso()
        send(first, fake(one))
        send(second, fake(one))
        at = advance(reader, reader.initialOffset(), one)
        start_ts, commit_ts, two = registry.tso(), registry.tso(), registry.tso()
        send(second, prewrite(start_ts), commit(start_ts, commit_ts))
        service.nodes = Nodes(None)
        registry.put_status(PUMPS, NodeStatus("pump-1", first.address))
        send(first, fake(two))
        for _ in range(5):
            assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
        assert "Pump pump-2 is not in the registry" in str(reader.reportLatestOffset())
        registry.put_status(PUMPS, NodeStatus("pump-2", second.address))
        send(second, fake(two))
        end = advance(reader, at, two)
        assert commits_between(reader, at, end) == {commit_ts} and losses(reader, at, end) == []
    finally:
        reader.stop()
        first.stop()
        second.stop()


@pytest.mark.shows("spark.gone-pumps")
@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_pump_that_is_gone_for_ever_is_left_out_as_lost(tmp_path: Path, delivery: Delivery) -> None:
    first, second = (PumpServer(config_of(tmp_path, n)).start() for n in (1, 2))

    def life(*listed: PumpServer, gone: str = "") -> BinlogStreamReader:
        pumps = ",".join(made.address for made in listed)
        return BinlogStreamReader(options_of(SourceConfig(pumps, CLUSTER, str(delivery), 5, gone_pumps=gone)))

    readers = [life(first, second), life(first), life(first, gone=second.address), life(first, second, gone=second.address)]
    try:
        send(first, fake(10))
        send(second, fake(10))
        at = advance(readers[0], readers[0].initialOffset(), 10)
        send(first, fake(20))
        with pytest.raises(ConfigError, match=f"Pump {second.address} is not among the Pumps"):
            readers[1].latestOffset(at, readers[1].getDefaultReadLimit())
        without = next_offset(readers[2], at)
        assert set(offset(without).pumps) == {first.address}
        for again in (readers[2], life(first)):
            assert losses(again, at, without) == [(second.address, 10, offset(without).resolved_ts)]
        send(first, fake(30))
        later = next_offset(readers[2], without)
        assert losses(readers[2], without, later) == [], "told once"
        send(first, fake(40))
        send(second, fake(40))
        assert set(offset(advance(readers[3], later, 40)).pumps) == {first.address, second.address}, "it is back"
    finally:
        for reader in readers:
            reader.stop()
        first.stop()
        second.stop()


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_dead_pump_that_is_set_offline_holds_r_only_until_its_loss_is_accepted(
    service: ClusterService, registry: RegistryClient, tmp_path: Path, delivery: Delivery
) -> None:
    """Its last heartbeat was above R."""
    first, second = pump("pump-1", service, tmp_path), pump("pump-2", service, tmp_path)
    started = registry.tso()

    def life(*, fails: bool) -> BinlogStreamReader:
        config = SourceConfig(service.url, delivery=str(delivery), starting_commit_ts=started, fail_on_data_loss=fails)
        return BinlogStreamReader(options_of(config, StreamOptions(patience=0.3)))

    readers = [life(fails=True), life(fails=False)]
    try:
        one = registry.tso()
        send(first, fake(one))
        send(second, fake(one))
        at = advance(readers[0], readers[0].initialOffset(), one)
        second.stop()
        two, three, four = (registry.tso() for _ in range(3))
        registry.put_status(PUMPS, NodeStatus("pump-2", second.address, NodeState.OFFLINE, three))
        send(first, fake(two))
        with pytest.raises(PumpUnavailable, match="Pump pump-2 is registered as offline and does not answer.*fail-on-data-loss"):
            for _ in range(TRIES):
                assert readers[0].latestOffset(at, readers[0].getDefaultReadLimit()) == at
        end = advance(readers[1], at, two)
        assert set(offset(end).pumps) == {"pump-1"} and losses(readers[1], at, end) == [("pump-2", one, three)]
        send(first, fake(four))
        assert losses(readers[1], end, advance(readers[1], end, four)) == [], "told once"
    finally:
        for reader in readers:
            reader.stop()
        first.stop()


class Migrated:
    """pump-1 has left, and pump-3, which has another log, listens at its address; pump-2 was there all the time. All deliver as real ones do."""

    def __init__(self, service: ClusterService, registry: RegistryClient, directory: Path) -> None:
        def made(number: int, address: str = "127.0.0.1:0") -> PumpServer:
            more = {"registry": service.url, "cluster_id": 0, "heartbeat_interval": 3600}
            return PumpServer(replace(config_of(directory, number, **more), addr=address)).start()

        self.commits: dict[str, int] = {}
        self._registry = registry
        first, self.second = made(1), made(2)
        self.address = first.address
        self.write(first)
        left = registry.tso()
        require_pump("pump-1", self.address, tls=None)
        first.stop()
        registry.put_status(PUMPS, NodeStatus("pump-1", self.address, NodeState.OFFLINE, left, left))
        self.third = made(3, self.address)
        for pump in (self.second, self.third):
            self.write(pump)
            send(pump, fake(registry.tso()))
        self.now = registry.tso()
        for pump in (self.second, self.third):
            send(pump, fake(registry.tso()))

    def write(self, pump: PumpServer) -> None:
        start_ts, commit_ts = self._registry.tso(), self._registry.tso()
        send(pump, prewrite(start_ts), commit(start_ts, commit_ts))
        self.commits[pump.node_id] = commit_ts

    def source(self, url: str, **more: Any) -> SourceConfig:
        return SourceConfig(url, starting_commit_ts=0, ending_commit_ts=self.now, delivery="sorted", **more)

    def close(self) -> None:
        self.second.stop()
        self.third.stop()


@pytest.fixture
def migrated(service: ClusterService, registry: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Migrated]:
    own = Handlers._pull
    monkeypatch.setattr(Handlers, "_pull", lambda handlers, call: own(handlers, PlainCall(call)))
    # these Pumps are one process
    monkeypatch.setattr(pump_pages, "_STARTED", re.compile("(no start)"))
    made = Migrated(service, registry, tmp_path)
    yield made
    made.close()


def rows_read(parts: Iterable[Any], reader: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


NOT_READ = r"Pump pump-1 is registered as offline.*Pump pump-3.*gone-pumps"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("accepted", [{}, {"fail_on_data_loss": False}, {"gone_pumps": "pump-1"}])
def test_a_pump_that_left_is_not_taken_for_the_one_at_its_address(
    service: ClusterService, migrated: Migrated, accepted: dict[str, Any], stream: bool
) -> None:
    """What only the former one had cannot be read any more: that is an error, or told as lost."""
    options = options_of(migrated.source(service.url, **accepted), StreamOptions(patience=0.3, read_patience=0.3))
    reader = BinlogStreamReader(options) if stream else BinlogReader(options)
    try:
        if not accepted:
            with pytest.raises(PumpUnavailable, match=NOT_READ):
                for _ in range(TRIES):
                    if stream:
                        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
                    else:
                        reader.partitions()
            return
        if stream:
            rows, at = [], reader.initialOffset()
            while offset(at).resolved_ts < migrated.now:
                begin, at = at, next_offset(reader, at)
                rows += rows_read(reader.partitions(begin, at), reader)
        else:
            rows = rows_read(reader.partitions(), reader)
        assert {row["commit_ts"] for row in rows if row["tp"] == 1} == {migrated.commits["pump-2"], migrated.commits["pump-3"]}
        assert [row["pump"] for row in rows if row["control"] == ControlType.LOST] == ["pump-1"]
    finally:
        if stream:
            reader.stop()


def test_nor_is_one_that_the_registry_still_has_as_online(service: ClusterService, registry: RegistryClient, migrated: Migrated) -> None:
    """It was killed: the registry does not know that it is gone, and only the Pump at the address says who it is."""
    registry.put_status(PUMPS, NodeStatus("pump-1", migrated.address, NodeState.ONLINE, 5, registry.tso()))
    options = options_of(migrated.source(service.url), StreamOptions(patience=0.3, read_patience=0.3))
    reader, batch = BinlogStreamReader(options), BinlogReader(options)
    another = f"{migrated.address} is the address of Pump pump-3, not pump-1"
    begin = reader.initialOffset()

    def held_by_it() -> bool:
        assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == begin
        return another in str(reader.reportLatestOffset())

    try:
        eventually(held_by_it, seen=reader.reportLatestOffset, pause=0)
        with pytest.raises(PumpUnavailable, match=another):
            rows_read(batch.partitions(), batch)
    finally:
        reader.stop()
