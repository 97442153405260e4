"""A damaged value log behind real gRPC: one clear error at the reader, or a finding; a real Pump that stands still without a word."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.source import tails as tails_module
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.source.partition import BinlogPartition
from pyspark_tidb_binlog.binlog_source.source.partition_rows import raw_rows_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_raw, read_sorted
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.binlog_source.source.watched_pull import WatchedPull
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.schemas.backoff import steady
from pyspark_tidb_binlog.schemas.errors import DamagedLog, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery
from tests.support.eventually import eventually
from tests.support.fakes.faulty_files import flip
from tests.support.fakes.scripted_pump import Asked, ScriptedPump, message
from tests.support.fine_pump import fine_store
from tests.support.store_model import commit, prewrite

pytestmark = pytest.mark.grpc

STRICT = SourceConfig(pumps="127.0.0.1:1", cluster_id=7)
LOSSY = SourceConfig(pumps="127.0.0.1:1", cluster_id=7, fail_on_data_loss=False)
DELIVERIES = (Delivery.SORTED, Delivery.RAW)


def rows(partition: BinlogPartition, config: SourceConfig) -> list[tuple[int, int, int]]:
    batches = list(raw_rows_of(partition, config, StreamOptions(read_patience=20.0)))
    found = [row for batch in batches for row in batch.to_pylist()]
    return [(row["control"] or row["tp"], row["start_ts"], row["commit_ts"]) for row in found if row["control"] != ControlType.RESOLVED]


@pytest.fixture
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PumpServer]:
    """A Pump whose log lost the Prewrite of 11 (committed at 14); with ``rebuilt`` its index is made after that."""
    config = PumpConfig(node_id="p1", addr="127.0.0.1:0", data_dir=str(tmp_path), cluster_id=7, gc="7", fake_binlog_interval=0)
    with_index = PumpServer(config).start()
    store = with_index.service.store
    store.write([prewrite(5), commit(5, 9), fake(10)])
    hit = store.catch_up().at.offset
    store.write([prewrite(11), commit(11, 14), prewrite(15), commit(15, 19), fake(25), fake(27)])
    store.catch_up()
    flip(tmp_path / "value" / "000000.vlog", hit + 20)
    if request.param == "live":
        yield with_index
        with_index.stop()
        return
    with_index.stop()
    shutil.rmtree(tmp_path / "index")
    rebuilt = PumpServer(config).start()
    yield rebuilt
    rebuilt.stop()


def partition_of(pump: PumpServer, delivery: Delivery) -> BinlogPartition:
    end = pump.service.store.state.at
    return BinlogPartition(Endpoint("p1", pump.address, 7), delivery, 4, 27, Position(0, 0), Position(*end), (0,))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("damaged", ["live", "rebuilt"], indirect=True)
def test_a_damaged_record_is_one_clear_error(damaged: PumpServer, delivery: Delivery) -> None:
    with pytest.raises(DamagedLog, match=r"Pump p1: value log 000000.vlog is damaged from offset \d+ to \d+: .* failOnDataLoss=false"):
        rows(partition_of(damaged, delivery), STRICT)


@pytest.mark.shows("spark.fail-on-data-loss")
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("damaged", ["live", "rebuilt"], indirect=True)
def test_with_fail_on_data_loss_off_it_is_a_finding_and_all_else_arrives(damaged: PumpServer, delivery: Delivery) -> None:
    found = rows(partition_of(damaged, delivery), LOSSY)
    lost = [row for row in found if row[0] == ControlType.LOST]
    assert lost and all(after < 14 <= upto for _, after, upto in lost)
    kept = [commit_ts for tp, _, commit_ts in found if tp == 1]
    assert kept == ([9, 19] if delivery is Delivery.SORTED else [9, 14, 19]), "raw: the Commit without Prewrite is pairing's finding"
    assert rows(partition_of(damaged, delivery), LOSSY) == found, "a batch read again holds the same"


@pytest.mark.parametrize("damaged", ["rebuilt"], indirect=True)
def test_the_drivers_tail_stops_or_goes_on(damaged: PumpServer) -> None:
    offset = BinlogOffset(Delivery.RAW, 10, 10, {})
    strict = Tails(fail_on_data_loss=True)
    strict.follow({"p1": Endpoint("p1", damaged.address, 7)}, 10)
    with pytest.raises(DamagedLog, match="000000.vlog"):
        strict.wait(lambda: strict.views(offset) is None and False, 5)
    lossy = Tails(fail_on_data_loss=False)
    lossy.follow({"p1": Endpoint("p1", damaged.address, 7)}, 10)
    assert lossy.wait(lambda: bool(lossy.views(offset) and lossy.views(offset)["p1"].steps), 5)
    strict.stop()
    lossy.stop()


REAL = [(1, 5, 9), (2, 10, 10), (1, 11, 14), (1, 15, 19), (2, 25, 25)]


def stands_still(asked: Asked) -> Iterator[bytes]:
    """As a real Pump whose record at 14 is damaged: what comes before it, then the end with OK."""
    for tp, start_ts, commit_ts in REAL:
        if commit_ts > asked.offset:
            if commit_ts == 14:
                return
            yield message(tp, start_ts, commit_ts)


def real(pump: ScriptedPump) -> BinlogPartition:
    nowhere = Position(0, 0)
    return BinlogPartition(Endpoint("p7", pump.address, 7), Delivery.SORTED, 4, 25, nowhere, nowhere, (0,))


def test_a_real_pump_that_stands_still_is_an_error_that_names_the_ts() -> None:
    with (
        ScriptedPump(stands_still) as pump,
        pytest.raises(DamagedLog, match=r"Pump p7 ends every pull from ts 10 .* at ts 14 .* is lost"),
    ):
        rows(real(pump), STRICT)


def test_a_real_pump_that_stands_still_is_passed_with_a_finding() -> None:
    with ScriptedPump(stands_still) as pump:
        assert rows(real(pump), LOSSY) == [(1, 5, 9), (1, 15, 19), (ControlType.LOST, 13, 14)]


def test_the_tail_of_a_real_pump_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails_module, "_BACKOFF", steady(0.05))
    offset = BinlogOffset(Delivery.SORTED, 4, 4, {})
    with ScriptedPump(stands_still) as pump:
        known = {"p7": Endpoint("p7", pump.address, 7)}
        strict, lossy = Tails(fail_on_data_loss=True), Tails(fail_on_data_loss=False)
        strict.follow(known, 4)
        lossy.follow(known, 4)
        with pytest.raises(DamagedLog, match="at ts 14"):
            strict.wait(lambda: strict.views(offset) is None and False, 20)
        assert lossy.wait(lambda: bool((v := lossy.views(offset)) and v["p7"].steps[-1].sorted_promise == 25), 20)
        strict.stop()
        lossy.stop()


def test_no_pull_begins_above_the_newest_of_a_real_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the Pump warns in its log. It may end every pull: so it does while it stops."""
    monkeypatch.setattr(tails_module, "_BACKOFF", steady(0.05))
    with ScriptedPump(lambda asked: iter(())) as pump:
        tails = Tails(fail_on_data_loss=True)
        tails.follow({"p7": Endpoint("p7", pump.address, 7)}, 4)
        eventually(lambda: "ends every pull without a message" in tails.unreachable().get("p7", ""), seen=tails.unreachable)
        tails.stop()
    assert max(asked.offset for asked in pump.asked) == 1795277142123 << 18


def test_a_pump_that_ends_every_stream_loses_nothing() -> None:
    """It is out of order, not damaged: nothing is passed over."""
    with ScriptedPump(lambda asked: iter(())) as pump, pytest.raises(PumpUnavailable, match="gave nothing for 6 s"):
        list(read_sorted(Endpoint("p7", pump.address, 7), 4, 25, ReadTerms(6.0, lambda *lost: None)))


def test_a_raw_read_that_gc_overtakes_is_told_of_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first record, and while it has no connection."""
    config = PumpConfig(node_id="p1", addr="127.0.0.1:0", data_dir=str(tmp_path), cluster_id=7, fake_binlog_interval=0)
    with fine_store(max_file_size=1):
        pump = PumpServer(config).start()
    store, listen, told = pump.service.store, WatchedPull.__iter__, []
    for ts in range(100, 110):
        store.write([fake(ts)])
    end = store.catch_up().at

    def cut(pull: WatchedPull) -> Iterator[bytes]:
        monkeypatch.setattr(WatchedPull, "__iter__", listen)
        yield next(listen(pull))
        raise PumpUnavailable("cut off")

    monkeypatch.setattr(WatchedPull, "__iter__", cut)
    runs = read_raw(
        Endpoint("p1", pump.address, 7),
        Position(0, 0),
        Position(*end),
        99,
        ReadTerms(20.0, lambda kind, after_ts, upto_ts, text: told.append(upto_ts)),
    )
    assert 100 in next(runs).commit_ts.tolist() and not told
    assert store.collect(106, 0)
    # the last fake comes again as what the Pump promises
    assert list(dict.fromkeys(ts for run in runs for ts in run.commit_ts.tolist())) == [107, 108, 109] and told == [106]
    pump.stop()
