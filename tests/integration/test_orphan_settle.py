"""An orphan Prewrite whose outcome the upstream has forgotten: Pump and Drainer wait and say so, and a person settles it."""

import logging
import os
import pwd
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import Reading
from pyspark_tidb_binlog.binlog_source.pairing import resolver
from pyspark_tidb_binlog.binlog_source.pairing.bucket import look, pair_bucket, pieces_of
from pyspark_tidb_binlog.binlog_source.pairing.resolver import outcomes_of, tell
from pyspark_tidb_binlog.binlog_source.pairing.state import Index, pack
from pyspark_tidb_binlog.binlog_source.pairing.transitions import RECORD, MissingOutcome, Orphan
from pyspark_tidb_binlog.binlog_source.pairing.transitions import fresh as fresh_rows
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump_client.writer import OUTCOME_TIMEOUT
from pyspark_tidb_binlog.binlog_source.source.framing import packed_rows, punctuation
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.emulator.mvcc import Mvcc
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.pump import main
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import BinlogType, physical_ms, tso
from pyspark_tidb_binlog.schemas.packed import unpacked
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import RAW, TRANSACTION
from tests.support.eventually import eventually
from tests.support.fakes.chunks import MemoryChunks, MemoryPieces
from tests.support.store_model import commit, prewrite, rollback
from tests.unit.binlog_source.test_pair_bucket import record

pytestmark = pytest.mark.grpc

CLUSTER = 7
START = tso(time.time_ns() // 1_000_000 - 3_600_000)
COMMITTED_AT = START + 1000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout that a test can wait for."""
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.txn_outcome.ORPHAN_TIMEOUT", 1.0)


@pytest.fixture
def mvcc() -> Mvcc:
    """What the upstream knows: START committed, was overwritten, and is collected."""
    made = Mvcc()
    made.commit(b"k", START, COMMITTED_AT)
    made.commit(b"k", START + 2000, START + 3000)
    made.collect(START + 5000)
    return made


@pytest.fixture
def upstream(mvcc: Mvcc, tmp_path: Path) -> Iterator[ClusterService]:
    oracle = Oracle(tmp_path / "oracle")
    service = ClusterService(oracle, CLUSTER, mvcc=mvcc.look_up, gc_safe_point=lambda: mvcc.safe_point).start()
    yield service
    service.stop()


@pytest.fixture
def pump(upstream: ClusterService, tmp_path: Path) -> Iterator[PumpServer]:
    config = PumpConfig(node_id="p1", addr="127.0.0.1:0", data_dir=str(tmp_path / "pump"), registry=upstream.url, fake_binlog_interval=0)
    made = PumpServer(config).start()
    made.service.store.write([prewrite(START)])
    yield made
    made.stop()


def waits(pump: PumpServer) -> bool:
    return bool(pump.service.store.orphans(1 << 62))


@pytest.mark.shows("pump spark.tidb-status")
def test_the_pump_waits_says_so_and_takes_a_persons_word(
    pump: PumpServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://{pump.address}"
    with caplog.at_level(logging.ERROR):
        eventually(lambda: "can no longer be determined" in caplog.text, seen=lambda: caplog.text)
    assert f"./spark-submit.sh pump settle {url} {START} commit COMMIT_TS" in caplog.text
    assert waits(pump), "a committed transaction is never turned into a Rollback"
    with pytest.raises(ConfigError, match="refuses: start_ts .* cannot have committed"):
        main(["settle", url, str(START), "commit", str(START - 1)])
    with pytest.raises(ConfigError, match="no Prewrite of start_ts 5 waits"):
        main(["settle", url, "5", "rollback"])
    assert main(["settle", url, str(START), "commit", str(COMMITTED_AT)]) == 0
    assert f"is committed at {COMMITTED_AT}" in capsys.readouterr().out
    assert pump.service.store.catch_up().sorted_promise == COMMITTED_AT and not waits(pump)


def test_a_pump_that_is_stopped_takes_it_too(
    pump: PumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its own user: what another one writes, the Pump could not open."""
    pump.stop()
    data_dir = str(tmp_path / "pump")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("os.geteuid", lambda: os.getuid() + 1)
        with pytest.raises(
            ConfigError, match=rf"belongs to user .*sudo -u {pwd.getpwuid(os.getuid()).pw_name} .*pump settle {data_dir} {START} rollback"
        ):
            main(["settle", data_dir, str(START), "rollback"])
    assert main(["settle", data_dir, str(START), "rollback"]) == 0
    assert "is rolled back" in capsys.readouterr().out
    pump.start()
    assert not waits(pump)


def test_a_real_pump_takes_it_as_a_binlog(pump: PumpServer) -> None:
    assert main(["settle", f"http://{pump.address}", str(START), "commit", str(COMMITTED_AT), "--cluster-id", str(CLUSTER)]) == 0
    assert pump.service.store.catch_up().sorted_promise == COMMITTED_AT


def test_the_drainer_decides_alike(
    upstream: ClusterService, mvcc: Mvcc, pump: PumpServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "_told_at", {})
    orphan = Orphan("p1", START, prewrite(START).payload, 3_600_000)
    for source in (
        SourceConfig(pumps=upstream.url, tidb_status=upstream.url),
        SourceConfig(pumps=pump.address, cluster_id=CLUSTER, tidb_status=upstream.url),
    ):
        assert outcomes_of([orphan], lambda start_ts: 3_600_000, source).settled == ()
    assert caplog.text.count(f"pump settle http://{pump.address} {START} commit") == 1, "said once in a while"
    fresh = Orphan("p1", START + 6000, prewrite(START + 6000).payload, 3_600_000)
    mvcc.commit(b"other", 1, 2)
    source = SourceConfig(pumps=upstream.url, tidb_status=upstream.url)
    assert outcomes_of([fresh], lambda start_ts: 999, source).settled == (), "whatever the clocks say"
    assert outcomes_of([fresh], lambda start_ts: 1001, source).settled == (MissingOutcome("p1", START + 6000, 0),)


def test_the_drainer_counts_what_it_has_seen_itself(upstream: ClusterService, pump: PumpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watermark runs twenty minutes ahead; the bucket's state carries since when it was looked at, on this machine."""
    monkeypatch.setattr(pump._orphans, "_act", lambda: None)
    start = tso(time.time_ns() // 1_000_000)
    pump.service.store.write([rollback(START), prewrite(start)])
    pump.service.store.catch_up()
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.cluster.txn_outcome.ORPHAN_TIMEOUT", 600.0)
    source = SourceConfig(pumps=upstream.url, delivery="raw", tidb_status=upstream.url)
    record = {"pump": "p1", "tp": 0, "start_ts": start, "commit_ts": 0, "payload": prewrite(start).payload}
    state = pack(Index(fresh_rows(pa.Table.from_pylist([record], schema=RECORD))))
    clock_ms = physical_ms(start) + 1_200_000
    readings = [Reading("boot", 0), Reading("boot", 600_000), Reading("other", 700_000), Reading("other", 1_300_000)]
    for reading in readings:
        monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.pairing.bucket.running_time", lambda now=reading: now)
        state = look(state, clock_ms, source).state
        pump.service.store.catch_up()
        assert waits(pump), reading
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.pairing.bucket.running_time", lambda: Reading("other", 1_300_001))
    look(state, clock_ms, source)
    pump.service.store.catch_up()
    assert not waits(pump)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_commit_behind_a_rollback_wins(
    pump: PumpServer, rows: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody settled it too early; the Prewrite is in the log, and sorted delivery gives it, huge or not."""
    monkeypatch.setattr(pump._orphans, "_act", lambda: None)
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.source.pull.PIECE_BYTES", 1000)
    start = START + 50_000
    value = binlog_pb2.PrewriteValue(schema_version=3)
    value.mutations.add(table_id=9, inserted_rows=[b"%d" % n * 900 for n in range(rows)], sequence=[0] * rows)
    whole = prewrite(start, value.SerializeToString())
    pump.service.store.write([rollback(START), whole, rollback(start), commit(start, start + 5), fake(start + 9)])
    pump.service.store.catch_up()
    late = [pa.RecordBatch.from_pylist([record(BinlogType.COMMIT, start, start + 5)], schema=RAW), punctuation("p1", start, start + 9, [1])]
    values = [value.as_py() for batch in packed_rows(late) for value in batch.column("rows")]
    pieces = MemoryPieces()
    paired = pair_bucket(1, values, None, MemoryChunks(), pieces, 0, SourceConfig(pump.address, CLUSTER, "raw"))
    out = unpacked(map(pa.scalar, [*paired.transactions, *pieces_of(paired.huge, pieces)]), TRANSACTION).to_pylist()
    assert {(row["control"], row["start_ts"], row["commit_ts"]) for row in out} == {(None, start, start + 5)}
    assert len(paired.huge) == (rows > 1) and not pieces.values
    got = [binlog_pb2.PrewriteValue.FromString(binlog_pb2.Binlog.FromString(row["payload"]).prewrite_value) for row in out]
    assert [r for v in got for m in v.mutations for r in m.inserted_rows] == list(value.mutations[0].inserted_rows)
    assert f"start_ts {start} was settled as rolled back, and committed at {start + 5}" in caplog.text


def test_a_host_that_takes_connections_and_is_silent_holds_up_no_outcome() -> None:
    """Each outcome would wait out its whole time, and with it the pairing of all Pumps."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        tell([MissingOutcome("p1", START + n, 0) for n in range(6)], {"p1": Endpoint("p1", host, CLUSTER)})
        assert time.monotonic() - begun < OUTCOME_TIMEOUT, "less than one outcome's"
