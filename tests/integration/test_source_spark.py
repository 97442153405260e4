"""The source and pairing in real Spark queries on real Pumps: content, restarts, determinism, deaths, orphans."""

import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.stream import resolve_delivery, transactions, transactions_between
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed, schedule
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.schemas.changes.change_rows import CHANGE
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery, tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import RAW
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.pump_writes import CLUSTER, commit, config_of, fake, prewrite, send
from tests.support.spark_queries import WAIT, Taken, end, rows_of, run, source_of_pumps, until
from tests.support.stream_reader import next_offset

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("delivery", [pytest.param("sorted", marks=pytest.mark.slow), "raw"])
def test_a_recorded_case_over_batches_and_a_restart(spark: SparkSession, tmp_path: Path, delivery: str) -> None:
    case = load(GOLDEN / "online")
    pumps = [PumpServer(config_of(tmp_path, number, cluster_id=case.cluster_id)).start() for number in (1, 2)]
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
        assert {r["commit_ts"] for r in again if r["control"] != ControlType.RESOLVED} == set(wanted)
    finally:
        for pump in pumps:
            pump.stop()


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_pairs_over_batches_and_a_batch_that_fails_is_read_again(
    spark: SparkSession, tmp_path: Path, pumps: list[PumpServer], delivery: str
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
    eventually(lambda: not query.isActive, seconds=WAIT, pause=0.05)
    assert "the sink broke" in str(query.exception())
    failing.clear()
    query = run(spark, source, take, tmp_path)
    until(query, lambda: taken.resolved >= tso(1020) and taken.replays > 0)
    end(query, tmp_path / "stop")
    assert sorted(taken.payloads) == [tso(1002), tso(1004), tso(1012)]
    found = binlog_pb2.Binlog.FromString(taken.payloads[tso(1004)] or b"")
    assert (found.tp, found.start_ts, found.prewrite_value) == (binlog_pb2.Commit, tso(1000), b"value of %d" % tso(1000))


def test_a_checkpoint_refuses_the_other_delivery(spark: SparkSession, tmp_path: Path, pumps: list[PumpServer]) -> None:
    taken = Taken()
    for pump in pumps:
        send(pump, fake(tso(1010)))
    query = run(spark, source_of_pumps(pumps, delivery="sorted"), taken, tmp_path)
    until(query, lambda: taken.resolved >= tso(1010))
    end(query, tmp_path / "stop")
    options = options_of(source_of_pumps(pumps, delivery="raw"))
    frame = spark.readStream.format("tidb_binlog").options(**options).load().select("control", "start_ts", "commit_ts", "payload")
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


@pytest.mark.shows("spark.tidb-status")
def test_an_orphan_is_settled_by_the_upstream_and_a_copy_goes_out_once(
    spark: SparkSession, tmp_path: Path, pumps: list[PumpServer]
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
    status = f"http://127.0.0.1:{server.server_port}"
    query = run(spark, source_of_pumps(pumps, delivery="raw", tidb_status=status), taken, tmp_path)
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


def test_available_now_ends_by_itself(spark: SparkSession, tmp_path: Path, pumps: list[PumpServer]) -> None:
    taken = Taken()
    send(pumps[0], prewrite(tso(1000)), commit(tso(1000), tso(1001)), fake(tso(1010)))
    send(pumps[1], fake(tso(1012)))
    frame = transactions(spark, source_of_pumps(pumps, delivery="sorted"), Delivery.SORTED)
    writer = frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(int(WAIT))
    assert taken.resolved == tso(1010) and sorted(taken.payloads) == [tso(1001)]


def test_offsets_without_spark_are_the_same_after_a_restart(tmp_path: Path, pumps: list[PumpServer]) -> None:
    """What a replayed batch reads depends on its two offsets alone."""
    send(pumps[0], prewrite(tso(1000)), commit(tso(1000), tso(1001)), fake(tso(1010)))
    send(pumps[1], prewrite(tso(1002)), fake(tso(1012)), commit(tso(1002), tso(1013)))
    options = options_of(source_of_pumps(pumps, delivery="raw"), StreamOptions(bucket_ids=(0, 1)))
    reader = BinlogStreamReader(options)
    begin = reader.initialOffset()
    finish = next_offset(reader, begin)
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
    reader = spark.newSession().readStream.format("tidb_binlog").option("pumps", "127.0.0.1:1")
    assert reader.load().columns == CHANGE.names
    assert reader.option("format", "protocol").load().columns == RAW.names
