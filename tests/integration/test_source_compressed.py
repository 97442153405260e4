"""``compressor = "gzip"``: what a Pump sends is compressed on the way, and is the same."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.rpc import calls
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogReader
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.events import Delivery, tso
from tests.support.pump_writes import CLUSTER, config_of
from tests.support.store_model import commit, prewrite

pytestmark = pytest.mark.grpc
NOW = time.time_ns() // 1_000_000
LAST = tso(NOW + 1000)


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[PumpServer]:
    made = PumpServer(config_of(tmp_path, 1)).start()
    for number in range(20):
        made.service.store.write([prewrite(tso(NOW + number), b"v" * 100_000), commit(tso(NOW + number), tso(NOW + number) + 1)])
    made.service.store.write([fake(LAST)])
    yield made
    made.stop()


def read(pump: PumpServer, compressor: str) -> list[tuple[int, bytes]]:
    source = SourceConfig(pump.address, CLUSTER, str(Delivery.SORTED), 1, LAST - 1, compressor=compressor)
    reader = BinlogReader(options_of(source, StreamOptions(read_patience=30.0)))
    rows = (row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist())
    return [(row["commit_ts"], row["payload"]) for row in rows if row["control"] is None]


@pytest.mark.shows("compressor")
def test_binlogs_are_compressed_on_the_way(pump: PumpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def packed(message: bytes) -> bytes:
        made = calls_prefixed_gzip(message)
        sizes.append((len(message), len(made)))
        return made

    calls_prefixed_gzip = calls.prefixed_gzip
    monkeypatch.setattr(calls, "prefixed_gzip", packed)
    plain = read(pump, "")
    assert len(plain) >= 20 and sizes == []
    assert read(pump, "gzip") == plain
    before, after = (sum(values) for values in zip(*sizes, strict=True))
    assert before > 2_000_000 and after < before / 10
