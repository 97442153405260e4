"""A batch that was planned with a Pump that has died since: its read waits, says so, and goes on when the Pump is back."""

import threading
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump_client.writer import write_binlog
from pyspark_tidb_binlog.binlog_source.source.admission import TailView
from pyspark_tidb_binlog.binlog_source.source.loss import LossPolicy
from pyspark_tidb_binlog.binlog_source.source.offset import from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.read_notes import noted, waiting
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_raw
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.schemas.events import BinlogType
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.eventually import eventually
from tests.support.store_model import commit, prewrite
from tests.support.stream_reader import advance, next_offset

pytestmark = [pytest.mark.spark, pytest.mark.grpc]


NOTHING = TailView(Position(0, 0), 0, ())


def config_of(directory: Path, name: str) -> PumpConfig:
    return PumpConfig(
        node_id=name,
        addr="127.0.0.1:0",
        data_dir=str(directory / "pump" / name),
        cluster_id=7,
        fake_binlog_interval=0,
        stop_write_at_available_space="",
    )


def test_a_read_waits_for_its_pump_and_says_so(tmp_path: Path) -> None:
    config = config_of(tmp_path, "p:1")
    stop_file = tmp_path / "scratch" / "stop"
    stop_file.parent.mkdir()
    with PumpProcess(config) as pump:
        endpoint = Endpoint("p:1", pump.address, 7)
        for ts in (10, 20):
            binlog = binlog_pb2.Binlog(tp=int(BinlogType.PREWRITE), start_ts=ts, prewrite_key=b"k", prewrite_value=b"v")
            write_binlog(endpoint.address, 7, binlog.SerializeToString(), tls=None)
            write_binlog(
                endpoint.address,
                7,
                binlog_pb2.Binlog(tp=int(BinlogType.COMMIT), start_ts=ts, commit_ts=ts + 1).SerializeToString(),
                tls=None,
            )
        end = whole_log(endpoint)
        pump.kill()
        found: list[int] = []

        def read() -> None:
            with noted(str(stop_file), "p:1") as note:
                for records in read_raw(endpoint, Position(0, 0), end, 1, ReadTerms(60.0, LossPolicy(fail=True).lost, note=note)):
                    found.extend(records.start_ts.tolist())

        reader = threading.Thread(target=read)
        reader.start()
        waits = eventually(lambda: waiting(stop_file))
        assert waits.pump == "p:1" and waits.words.startswith("read: Pump p:1 since 20")
        pump.start()
        reader.join(60)
        assert found[:4] == [10, 10, 20, 20]
        assert waiting(stop_file) is None


def whole_log(endpoint: Endpoint) -> Position:
    """Where the Pump's log of four binlogs ends. What says how far the log is known is no binlog of it, and may come before the last one."""
    found = 0
    for records in read_raw(endpoint, Position(0, 0), Position(0, 1 << 40), 1, ReadTerms(10.0, LossPolicy(fail=True).lost)):
        for place in np.flatnonzero(records.types != BinlogType.ROLLBACK):
            found += 1
            if found == 4:
                return Position(int(records.suffixes[place]), int(records.offsets[place]))
    raise AssertionError("the log ended")


def test_no_batch_is_planned_with_what_a_dead_pump_has_told_and_nobody_has_read(tmp_path: Path) -> None:
    """It would wait for that Pump, and nothing of the others would be read ahead meanwhile."""
    pumps = [PumpServer(config_of(tmp_path, name)).start() for name in ("alive", "dead")]
    alive, dead = (pump.address for pump in pumps)
    for pump in pumps:
        pump.service.store.write([prewrite(11), commit(11, 14), fake(20)])
    reader = BinlogStreamReader(options_of(SourceConfig(f"{alive},{dead}", 7, "raw", 0), StreamOptions(patience=10.0)))
    at = advance(reader, reader.initialOffset(), 20)
    for pump in pumps:
        pump.service.store.write([prewrite(31), commit(31, 34), fake(40)])
    tails = reader._tails
    assert tails is not None
    assert tails.wait(lambda: all(view.steps for view in (tails.views(from_json(at)) or {"": NOTHING}).values()), 20)
    pumps[1].stop()
    eventually(tails.unreachable)
    end = next_offset(reader, at, ReadMaxBytes(1))
    before, after = from_json(at), from_json(end)
    assert after.pumps[dead].position == before.pumps[dead].position
    assert after.pumps[alive].position > before.pumps[alive].position
    assert after.resolved_ts == before.resolved_ts
    reader.stop()
    pumps[0].stop()
