"""The source and pairing in real Spark queries on real Pumps: content, restarts, determinism, deaths, orphans."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from binlog_source.emulator.process import PumpProcess
from binlog_source.emulator.rehearsal import feed, load, schedule
from binlog_source.pump.server import EmbeddedPump
from binlog_source.source.datasource import BinlogStreamReader
from binlog_source.source.offset import from_json
from binlog_source.source.options import StreamOptions, options_of
from binlog_source.source.pull import Endpoint, write
from binlog_source.stream import resolve_delivery, transactions, transactions_between
from conf.model import PairConfig, PumpConfig, SourceConfig
from schemas.events import Delivery, Op, tso
from schemas.packed import unpacked
from schemas.proto import binlog_pb2
from schemas.stages import RAW, TRANSACTION

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CLUSTER = 7
WAIT = 400.0


def prewrite(start_ts: int, key: bytes = b"k") -> bytes:
    binlog = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=start_ts, prewrite_key=key, prewrite_value=b"value of %d" % start_ts)
    return binlog.SerializeToString()


def commit(start_ts: int, commit_ts: int) -> bytes:
    return binlog_pb2.Binlog(tp=binlog_pb2.Commit, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k").SerializeToString()


def fake(ts: int) -> bytes:
    return binlog_pb2.Binlog(tp=binlog_pb2.Rollback, start_ts=ts, commit_ts=ts).SerializeToString()


def send(pump: EmbeddedPump | PumpProcess, *payloads: bytes) -> None:
    for payload in payloads:
        write(Endpoint("p", pump.address, CLUSTER), payload, timeout=30)


def config_of(directory: Path, number: int, cluster_id: int = CLUSTER) -> PumpConfig:
    data_dir = str(directory / f"pump-{number}")
    given = {"cluster_id": cluster_id, "fake_binlog_interval": 0, "sync_log": False, "stop_write_at_available_space": ""}
    return PumpConfig(f"pump-{number}", "127.0.0.1:0", data_dir=data_dir, **given)


@pytest.fixture
def pumps(tmp_path: Path) -> Iterator[list[EmbeddedPump]]:
    made = [EmbeddedPump(config_of(tmp_path, number)).start() for number in (1, 2)]
    yield made
    for pump in made:
        pump.stop()


def source_of_pumps(pumps: list[EmbeddedPump], **more: object) -> SourceConfig:
    config = SourceConfig(",".join(p.address for p in pumps), CLUSTER, starting_commit_ts=0)
    return replace(config, **more)  # type: ignore[arg-type]


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return unpacked(frame.toArrow().column("transactions"), TRANSACTION).to_pylist()


class Taken:
    """What a query gave, batch by batch: spans and payloads by commit_ts; a batch that comes again must be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int, int, bytes | None]]] = {}
        self.replays = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted((r["tp"], r["start_ts"], r["commit_ts"], r["payload"]) for r in rows_of(frame))
        if batch_id in self.batches:
            assert self.batches[batch_id] == rows
            self.replays += 1
        self.batches[batch_id] = rows

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(s, c) for _, rows in sorted(self.batches.items()) for tp, s, c, _ in rows if tp == Op.RESOLVED]

    @property
    def resolved(self) -> int:
        return max((c for _, c in self.spans), default=-1)

    @property
    def payloads(self) -> dict[int, bytes | None]:
        found: dict[int, bytes | None] = {}
        # Spark runs a new stream's first batch even when the source has nothing to give yet.
        for rows in filter(None, self.batches.values()):
            (span,) = [(s, c) for tp, s, c, _ in rows if tp == Op.RESOLVED]
            for tp, _, commit_ts, payload in rows:
                if tp != Op.RESOLVED:
                    assert span[0] < commit_ts <= span[1] and commit_ts not in found
                    found[commit_ts] = payload
        return found


def until(query: StreamingQuery, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not done():
        if query.exception() is not None:
            raise AssertionError(str(query.exception())[:3000])
        assert time.monotonic() < deadline, f"not done in {WAIT} s: {query.lastProgress}"
        time.sleep(0.05)


def end(query: StreamingQuery, stop_file: Path) -> None:
    """Stop while idle, as the drainer does."""
    stop_file.touch()
    deadline = time.monotonic() + WAIT
    while query.status["isTriggerActive"] and query.status["isDataAvailable"] and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    query.stop()
    stop_file.unlink()


def run(
    spark: SparkSession, source: SourceConfig, taken: Callable[[DataFrame, int], None], directory: Path, pair: PairConfig | None = None
) -> StreamingQuery:
    frame = transactions(spark, source, pair or PairConfig(), Delivery(source.delivery), StreamOptions(str(directory / "stop"), 20.0))
    return frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(directory / "checkpoint")).start()


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_a_recorded_case_over_batches_and_a_restart(spark: SparkSession, tmp_path: Path, delivery: str) -> None:
    case = load(Path(__file__).parent.parent / "golden" / "online")
    pumps = [EmbeddedPump(config_of(tmp_path, number, case.cluster_id)).start() for number in (1, 2)]
    try:
        logs = schedule(case, move_back_seed=3, move_back_most=400)

        def feed_third(third: int) -> None:
            pieces = [log[len(log) * third // 3 : len(log) * (third + 1) // 3] for log in logs]
            list(feed(case, [p.address for p in pumps], logs=pieces))

        wanted = {}
        for payload in (payload for log in case.pumps for payload in log):
            binlog = binlog_pb2.Binlog.FromString(payload)
            if binlog.tp == binlog_pb2.Commit and case.start_ts < binlog.commit_ts <= case.end_ts:
                wanted[binlog.commit_ts] = binlog
        source = source_of_pumps(
            pumps, cluster_id=case.cluster_id, delivery=delivery, starting_commit_ts=case.start_ts, ending_commit_ts=case.end_ts
        )
        taken = Taken()
        feed_third(0)
        query = run(spark, source, taken, tmp_path)
        until(query, lambda: len(taken.batches) >= 1)
        feed_third(1)
        until(query, lambda: len(taken.batches) >= 2)
        end(query, tmp_path / "stop")
        feed_third(2)
        query = run(spark, source, taken, tmp_path)
        until(query, lambda: taken.resolved >= case.end_ts)
        end(query, tmp_path / "stop")
        assert {ts: binlog_pb2.Binlog.FromString(p or b"") for ts, p in taken.payloads.items()} == wanted
        spans = taken.spans
        assert spans[0][0] == case.start_ts and spans[-1][1] == case.end_ts
        assert all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False))
        again = rows_of(transactions_between(spark, source, case.start_ts, case.end_ts))
        assert {r["commit_ts"] for r in again if r["tp"] != Op.RESOLVED} == set(wanted)
    finally:
        for pump in pumps:
            pump.stop()


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_pairs_over_batches_and_a_batch_that_fails_is_read_again(
    spark: SparkSession, tmp_path: Path, pumps: list[EmbeddedPump], delivery: str
) -> None:
    taken = Taken()
    failing = threading.Event()

    def take(frame: DataFrame, batch_id: int) -> None:
        taken(frame, batch_id)
        if failing.is_set() and len(rows_of(frame)) > 1:
            raise ValueError("the sink broke")

    source = source_of_pumps(pumps, delivery=delivery)
    send(pumps[0], prewrite(tso(1000)), prewrite(tso(1001)), commit(tso(1001), tso(1002)), fake(tso(1003)))
    send(pumps[1], fake(tso(1010)))
    query = run(spark, source, take, tmp_path)
    time.sleep(1)
    send(pumps[0], commit(tso(1000), tso(1004)), fake(tso(1020)))
    until(query, lambda: taken.resolved >= tso(1010))
    failing.set()
    send(pumps[1], prewrite(tso(1011)), commit(tso(1011), tso(1012)), fake(tso(1020)))
    deadline = time.monotonic() + WAIT
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "the sink broke" in str(query.exception())
    failing.clear()
    query = run(spark, source, take, tmp_path)
    until(query, lambda: taken.resolved >= tso(1020) and taken.replays > 0)
    end(query, tmp_path / "stop")
    assert sorted(taken.payloads) == [tso(1002), tso(1004), tso(1012)]
    found = binlog_pb2.Binlog.FromString(taken.payloads[tso(1004)] or b"")
    assert (found.tp, found.start_ts, found.prewrite_value) == (binlog_pb2.Commit, tso(1000), b"value of %d" % tso(1000))


def test_a_checkpoint_refuses_the_other_delivery(spark: SparkSession, tmp_path: Path, pumps: list[EmbeddedPump]) -> None:
    taken = Taken()
    for pump in pumps:
        send(pump, fake(tso(1010)))
    query = run(spark, source_of_pumps(pumps, delivery="sorted"), taken, tmp_path)
    until(query, lambda: taken.resolved >= tso(1010))
    end(query, tmp_path / "stop")
    options = options_of(source_of_pumps(pumps, delivery="raw"))
    frame = spark.readStream.format("tidb_binlog").options(**options).load().select("tp", "start_ts", "commit_ts", "payload")
    query = frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(PySparkException, match="delivery"):
        query.awaitTermination(WAIT)


def test_a_pump_killed_in_mid_stream_holds_r_until_it_is_back(spark: SparkSession, tmp_path: Path) -> None:
    taken = Taken()
    with PumpProcess(config_of(tmp_path, 1)) as one, PumpProcess(config_of(tmp_path, 2)) as two:
        assert isinstance(one, PumpProcess) and isinstance(two, PumpProcess)
        source = SourceConfig(f"{one.address},{two.address}", CLUSTER, "raw", 0)
        assert resolve_delivery(replace(source, delivery="")) is Delivery.RAW
        send(one, prewrite(tso(1000)), commit(tso(1000), tso(1001)), fake(tso(1010)))
        send(two, fake(tso(1010)))
        query = run(spark, source, taken, tmp_path)
        until(query, lambda: taken.resolved >= tso(1010))
        two.kill()
        send(one, prewrite(tso(1011)), commit(tso(1011), tso(1012)), fake(tso(1020)))
        until(query, lambda: two.address in str(query.lastProgress and query.lastProgress.sources[0].latestOffset))
        assert taken.resolved == tso(1010)
        two.start()
        send(two, fake(tso(1020)))
        until(query, lambda: taken.resolved >= tso(1020))
        end(query, tmp_path / "stop")
    assert sorted(taken.payloads) == [tso(1001), tso(1012)]


def test_an_orphan_is_settled_by_the_upstream_and_a_copy_goes_out_once(
    spark: SparkSession, tmp_path: Path, pumps: list[EmbeddedPump]
) -> None:
    lost, undone, copied = tso(5000), tso(5001), tso(5002)
    writes = {b"lost".hex(): (0, lost, tso(5003)), b"undone".hex(): (3, undone, undone)}

    class Upstream(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tp, start_ts, commit_ts = writes[self.path.rpartition("/")[2].lower()]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"value":{"info":{"writes":[{"type":%d,"start_ts":%d,"commit_ts":%d}]}}}' % (tp, start_ts, commit_ts))

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    taken = Taken()
    pair = PairConfig(resolver=f"http://127.0.0.1:{server.server_port}")
    query = run(spark, source_of_pumps(pumps, delivery="raw"), taken, tmp_path, pair)
    try:
        send(pumps[0], prewrite(lost, b"lost"), prewrite(undone, b"undone"), prewrite(copied))
        send(pumps[1], prewrite(copied), commit(copied, tso(5004)))

        def settled() -> bool:
            at[0] += 500
            for pump in pumps:
                send(pump, fake(tso(at[0])))
            time.sleep(0.4)
            return taken.resolved > tso(5004)

        at = [8000]
        until(query, settled)
        end(query, tmp_path / "stop")
    finally:
        server.shutdown()
        server.server_close()
    assert sorted(taken.payloads) == [tso(5003), tso(5004)]


def test_available_now_ends_by_itself(spark: SparkSession, tmp_path: Path, pumps: list[EmbeddedPump]) -> None:
    taken = Taken()
    send(pumps[0], prewrite(tso(1000)), commit(tso(1000), tso(1001)), fake(tso(1010)))
    send(pumps[1], fake(tso(1012)))
    frame = transactions(spark, source_of_pumps(pumps, delivery="sorted"), PairConfig(), Delivery.SORTED)
    writer = frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(int(WAIT))
    assert taken.resolved == tso(1010) and sorted(taken.payloads) == [tso(1001)]


def test_offsets_without_spark_are_the_same_after_a_restart(tmp_path: Path, pumps: list[EmbeddedPump]) -> None:
    """What a replayed batch reads depends on its two offsets alone."""
    send(pumps[0], prewrite(tso(1000)), commit(tso(1000), tso(1001)), fake(tso(1010)))
    send(pumps[1], prewrite(tso(1002)), fake(tso(1012)), commit(tso(1002), tso(1013)))
    options = options_of(source_of_pumps(pumps, delivery="raw", pairing_buckets=2))
    reader = BinlogStreamReader(options)
    begin = reader.initialOffset()
    deadline = time.monotonic() + 30
    finish = begin
    while finish == begin and time.monotonic() < deadline:
        finish = reader.latestOffset(begin, reader.getDefaultReadLimit())
    reader.stop()
    assert from_json(finish).resolved_ts == tso(1010)
    assert set(from_json(finish).pumps) == {p.address for p in pumps}

    def rows() -> list[object]:
        fresh = BinlogStreamReader(options)
        return [batch.to_pylist() for part in fresh.partitions(begin, finish) for batch in fresh.read(part)]

    first = rows()
    send(pumps[0], prewrite(tso(1020)), commit(tso(1020), tso(1021)))
    assert rows() == first
    assert BinlogStreamReader(options).partitions(finish, finish) == []


def test_spark_finds_the_format_without_registering(spark: SparkSession) -> None:
    frame = spark.newSession().readStream.format("tidb_binlog").option("pumps", "127.0.0.1:1").load()
    assert frame.columns == RAW.names
