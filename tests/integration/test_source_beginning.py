"""``initial-commit-ts`` 0 on Pumps whose GC has run: raw gives what sorted gives, all that is complete; a Commit whose Prewrite is collected is no error."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.pairing.bucket import pair_bucket
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery, tso
from pyspark_tidb_binlog.schemas.packed import unpacked
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from tests.support.fakes.chunks import MemoryChunks, MemoryPieces
from tests.support.fine_pump import fine_store
from tests.support.store_model import commit, prewrite

pytestmark = [pytest.mark.grpc, pytest.mark.spark]

DAY = 86_400_000
OLD = time.time_ns() // 1_000_000 - 9 * DAY
LAST = tso(OLD + 9 * DAY)


def a_pump(name: str, directory: Path, first: int) -> tuple[PumpServer, list[int]]:
    """A Pump with overlapping transactions, the first 40 collected; the commit_ts of those that are complete."""
    config = PumpConfig(
        name, "127.0.0.1:0", data_dir=str(directory / name), cluster_id=7, fake_binlog_interval=0, stop_write_at_available_space="",
        sync_log=False,
    )  # fmt: skip
    with fine_store(max_file_size=20_000):
        pump = PumpServer(config).start()
    ms = [OLD + first + n * 1000 + (8 * DAY if n >= 40 else 0) for n in range(80)]
    pairs = [(tso(at), tso(at + 1500)) for at in ms]
    store = pump.service.store
    store.write([prewrite(pairs[0][0], b"v" * 1000)])
    for (start_ts, commit_ts), (following, _) in zip(pairs, pairs[1:], strict=False):
        store.write([prewrite(following, b"v" * 1000), commit(start_ts, commit_ts)])
    store.write([commit(*pairs[-1]), fake(LAST)])
    store.catch_up()
    pump._collector()
    assert store.beginning > Pointer(0, 0)
    return pump, [commit_ts for _, commit_ts in pairs if commit_ts > store.gc_ts]


@pytest.fixture
def pumps(tmp_path: Path) -> Iterator[list[tuple[PumpServer, list[int]]]]:
    made = [a_pump("p1", tmp_path, 0), a_pump("p2", tmp_path, 200)]
    yield made
    for pump, _ in made:
        pump.stop()


def run(source: SourceConfig) -> list[tuple[int, int, int]]:
    """The rows behind pairing, of all batches; each begins where the one before ended."""
    reader = BinlogStreamReader(options_of(source, StreamOptions(patience=3.0, read_patience=3.0, packed=True)))
    at, state, rows, upto = reader.initialOffset(), None, [], 0
    chunks, pieces = MemoryChunks(), MemoryPieces()
    for _ in range(100):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        if end != at:
            values = [row["rows"] for part in reader.partitions(at, end) for batch in reader.read(part) for row in batch.to_pylist()]
            if source.delivery == Delivery.RAW:
                paired = pair_bucket(0, values, state, chunks, pieces, 0, source)
                state, values = paired.state, list(paired.transactions)
            batch = [
                (row["control"], row["start_ts"], row["commit_ts"]) for row in unpacked(map(pa.scalar, values), TRANSACTION).to_pylist()
            ]
            assert [row[1] for row in batch if row[0] == ControlType.RESOLVED] == [upto], "no gap, from 0 on"
            rows, at, upto = [*rows, *batch], end, from_json(end).resolved_ts
        if upto >= LAST:
            break
    reader.stop()
    assert upto == LAST
    return rows


@pytest.mark.shows("initial-commit-ts")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("at_once", [1 << 30, 5000])
@pytest.mark.parametrize("delivery", list(Delivery))
def test_all_that_is_complete(pumps: list[tuple[PumpServer, list[int]]], delivery: Delivery, at_once: int, strict: bool) -> None:
    addresses = ",".join(pump.address for pump, _ in pumps)
    source = SourceConfig(addresses, 7, str(delivery), 0, 0, at_once, fail_on_data_loss=strict)
    rows = run(source)
    assert [row for row in rows if row[0] == ControlType.LOST] == []
    begun = max(pump.service.store.gc_ts for pump, _ in pumps)
    wanted = sorted(ts for _, commits in pumps for ts in commits if ts > begun)
    assert sorted(ts for control, _, ts in rows if control is None) == wanted and len(wanted) == 80


def test_where_nothing_was_collected_it_begins_at_0(tmp_path: Path) -> None:
    config = PumpConfig("p3", "127.0.0.1:0", data_dir=str(tmp_path), cluster_id=7, fake_binlog_interval=0, stop_write_at_available_space="")
    pump = PumpServer(config).start()
    pump.service.store.write([prewrite(1), commit(1, 5), fake(LAST)])
    rows = run(SourceConfig(pump.address, 7, "raw", 0))
    assert (None, 1, 5) in rows
    pump.stop()
