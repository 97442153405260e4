"""Pumps that die, freeze, pause, join, leave and return under a faulty upstream: what the drainer's source reads is what was committed.

The source's reader runs here without Spark, batch by batch while it all happens: a transaction that R passes before its Pump has given it
is missing. Afterwards every Pump is read from the beginning, as a drainer that starts anew would. ``TIDB_BINLOG_TORTURE_SEED`` names another run.
"""

import datetime
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.drainer import node as cistern
from pyspark_tidb_binlog.binlog_source.pairing.bucket import look, pair_bucket
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.binlog_source.source.loss import LossPolicy
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_sorted
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService, nothing_known
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.packed import unpacked
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from tests.support.drainer_nodes import node_at
from tests.support.eventually import eventually
from tests.support.fakes.chunks import MemoryChunks, MemoryPieces
from tests.support.faulty_client import Faults, FaultyClient
from tests.support.pump_herd import Herd, Kind, draw

pytestmark = [pytest.mark.grpc, pytest.mark.spark]

SEED = int(os.environ.get("TIDB_BINLOG_TORTURE_SEED", "1"))
CLUSTER = 7
WRITERS = 4
TABLE = Table("t", (Column("id", "bigint"),), ("id",))
QUICK = PumpClientSettings(write_timeout=0.3, prewrite_pause=0.02, outcome_pause=0.1, probe_interval=0.2, watch_wait=0.1, gather=0.005)


class Noted(FaultyClient):
    """Remembers what the Prewrites hold."""

    rows: dict[int, bytes]

    def prewrite(self, start_ts: int, payload: bytes) -> None:
        self.__dict__.setdefault("rows", {})[start_ts] = binlog_pb2.Binlog.FromString(payload).prewrite_value
        super().prewrite(start_ts, payload)


class Follower:
    """The drainer: its source, one batch after the other, and its place in the cluster. Equal copies of a transaction count as one."""

    def __init__(self, url: str, begin: int, delivery: Delivery) -> None:
        self._source = SourceConfig(url, CLUSTER, str(delivery), begin, tidb_status=url)
        self._reader = BinlogStreamReader(options_of(self._source, StreamOptions(packed=True, bucket_ids=(0, 1))))
        self._waiting: dict[int, bytes | None] = {}
        self._chunks: defaultdict[int, MemoryChunks] = defaultdict(MemoryChunks)
        self._pieces: defaultdict[int, MemoryPieces] = defaultdict(MemoryPieces)
        self._timers: defaultdict[int, set[int]] = defaultdict(set)
        self._watermark_ms = 0
        """What pairing keeps of each bucket."""
        self._stopped = threading.Event()
        self._cistern = node_at(RegistryClient(url), lambda: self.resolved_ts)
        self._pool = ThreadPoolExecutor(1, "follower")
        self._run: Future[None] | None = None
        self.resolved_ts = begin
        self.found: dict[int, bytes] = {}
        """commit_ts -> what the transaction wrote."""
        self.copies = 0
        """Transactions that came already."""

    def __enter__(self) -> "Follower":
        self._cistern.start()
        self._run = self._pool.submit(self._follow)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()
        self._cistern.stop()
        self._reader.stop()

    def wait(self, upto: int) -> None:
        """Until everything up to ``upto`` is read."""
        run = self._run
        assert run is not None

        def read() -> bool:
            if run.done():
                run.result()
            return self.resolved_ts >= upto

        eventually(read, what=f"R is {upto}", seen=self._reader.reportLatestOffset)

    def _follow(self) -> None:
        reader = self._reader
        at = reader.initialOffset()
        while not self._stopped.is_set():
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            upto = from_json(end).resolved_ts
            for row in self._transactions(at, end).to_pylist():
                if row["control"] is None:
                    assert self.resolved_ts < row["commit_ts"] <= upto
                    self._take(row)
            at, self.resolved_ts = end, upto

    def _transactions(self, at: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        """What the batch from ``at`` to ``end`` releases."""
        buckets = defaultdict(list)
        times: list[datetime.datetime | None] = []
        for partition in self._reader.partitions(at, end):
            for batch in self._reader.read(partition):
                for row in batch.to_pylist():
                    buckets[row["bucket"]].append(row["rows"])
                    times.append(row["event_time"])
        if self._source.delivery == Delivery.SORTED:
            return unpacked(map(pa.scalar, chain(*buckets.values())), TRANSACTION)
        released: list[bytes] = []
        for bucket, values in buckets.items():
            chunks = self._chunks[bucket]
            paired = pair_bucket(bucket, values, self._waiting.get(bucket), chunks, self._pieces[bucket], self._watermark_ms, self._source)
            released += paired.transactions
            self._timers[bucket] |= {paired.timer_ms} - {0}
            while fired := {timer for timer in self._timers[bucket] if timer < self._watermark_ms}:
                paired = look(paired.state, self._watermark_ms, self._source)
                self._timers[bucket] = self._timers[bucket] - fired | {paired.timer_ms} - {0}
            self._waiting[bucket] = paired.state
        shown = [int(time.timestamp() * 1000) for time in times if time is not None]
        self._watermark_ms = max([self._watermark_ms, *shown])
        return unpacked(map(pa.scalar, released), TRANSACTION)

    def _take(self, row: dict[str, Any]) -> None:
        value = binlog_pb2.Binlog.FromString(row["payload"]).prewrite_value
        self.copies += row["commit_ts"] in self.found
        assert self.found.setdefault(row["commit_ts"], value) == value


def write(upstream: Upstream, ids: Iterator[int], stop: threading.Event, committed: dict[int, int]) -> None:
    """Transactions until ``stop``; ``committed``: commit_ts -> start_ts."""
    while not stop.wait(0.01):
        txn = upstream.begin()
        for _ in range(2):
            txn.insert("d.t", {"id": next(ids)})
        committed[txn.commit()] = txn.start_ts


def everything(addresses: dict[str, str], begin: int, end: int) -> dict[int, bytes]:
    """All transactions of all Pumps, by commit_ts."""
    found: dict[int, bytes] = {}
    for name, address in addresses.items():
        for records in read_sorted(Endpoint(name, address, CLUSTER), begin, end, ReadTerms(10.0, LossPolicy(fail=True).lost)):
            binlogs = map(binlog_pb2.Binlog.FromString, records.payloads)
            found |= {b.commit_ts: b.prewrite_value for b in binlogs if b.tp == binlog_pb2.Commit and b.commit_ts <= end}
    return found


@pytest.mark.parametrize("delivery", [Delivery.SORTED, pytest.param(Delivery.RAW, marks=pytest.mark.slow)])
def test_what_is_committed_is_read_whatever_becomes_of_the_pumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivery: Delivery
) -> None:
    monkeypatch.setattr(cistern, "HEARTBEAT", 0.1)
    monkeypatch.setenv("TIDB_BINLOG_LOG", str(tmp_path / "pumps.log"))
    oracle, chance = Oracle(), random.Random(SEED)
    upstreams: list[Upstream] = []
    service = ClusterService(oracle, CLUSTER, mvcc=lambda key: upstreams[0].mvcc.look_up(key) if upstreams else nothing_known(key)).start()
    begin = oracle.next()
    committed: dict[int, int] = {}
    stop = threading.Event()
    with (
        closing(RegistryClient(service.url)) as registry,
        Herd(tmp_path, service.url, CLUSTER) as herd,
        Follower(service.url, begin, delivery) as follower,
    ):
        client = Noted.from_registry(registry, QUICK)
        assert isinstance(client, Noted)
        with Upstream(client.inject(Faults(SEED, 0.01, 0.03, 0.5, 0.03)), oracle=oracle) as upstream:
            upstreams.append(upstream)
            upstream.ddl.create_database("d")
            upstream.ddl.create_table("d", TABLE)
            ids = count()
            writers = [threading.Thread(target=write, args=(upstream, ids, stop, committed)) for _ in range(WRITERS)]
            for writer in writers:
                writer.start()
            counts = herd.play(draw(chance, len(Kind), 0.8, 0.8, least=1), print)
            stop.set()
            for writer in writers:
                writer.join()
            upstream.flush()
            end = oracle.next()
            herd.bring_back()
            print(client.stats(), counts)
            wanted = {commit_ts: client.rows[start_ts] for commit_ts, start_ts in committed.items()}
            wanted |= {job["binlog"]["FinishedTS"]: b"" for job in upstream.jobs()}
            follower.wait(end)
        assert follower.found == wanted
        assert everything(herd.addresses, begin, end) == wanted
    service.stop()
    assert len(wanted) > 100 and client.stats().failovers > 0
    assert (follower.copies > 0) is (delivery is Delivery.SORTED), "pairing has made one of them"


def test_events_are_drawn_so_that_they_can_happen() -> None:
    for seed in range(30):
        kinds = [event.kind for event in draw(random.Random(seed), 20, 1, 1)]
        assert len(kinds) == 20 and all(kinds.count(kind) >= 2 for kind in Kind)
        offline = [kinds[:n].count(Kind.LEAVE) - kinds[:n].count(Kind.RETURN) for n in range(20)]
        assert min(offline) >= 0, "nobody returns who has not left"
    assert draw(random.Random(1), 20, 1, 1) == draw(random.Random(1), 20, 1, 1)
