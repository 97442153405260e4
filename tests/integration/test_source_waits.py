"""A batch that was planned with a Pump that has died since: its read waits, says so, and goes on when the Pump is back."""

import threading
import time
from pathlib import Path

import pytest

from binlog_source.client import Endpoint, read_raw, write
from binlog_source.offset import Position
from binlog_source.pump.process import PumpProcess
from binlog_source.read_notes import noted, waiting
from conf.model import PumpConfig
from schemas.events import BinlogType
from schemas.proto import binlog_pb2

pytestmark = pytest.mark.grpc


def test_a_read_waits_for_its_pump_and_says_so(tmp_path: Path) -> None:
    config = PumpConfig(
        node_id="p:1",
        addr="127.0.0.1:0",
        data_dir=str(tmp_path / "pump"),
        cluster_id=7,
        fake_binlog_interval=0,
        stop_write_at_available_space="",
    )
    stop_file = tmp_path / "scratch" / "stop"
    stop_file.parent.mkdir()
    with PumpProcess(config) as pump:
        endpoint = Endpoint("p:1", pump.address, 7)
        for ts in (10, 20):
            binlog = binlog_pb2.Binlog(tp=int(BinlogType.PREWRITE), start_ts=ts, prewrite_key=b"k", prewrite_value=b"v")
            write(endpoint, binlog.SerializeToString())
            write(endpoint, binlog_pb2.Binlog(tp=int(BinlogType.COMMIT), start_ts=ts, commit_ts=ts + 1).SerializeToString())
        end = whole_log(endpoint)
        pump.kill()
        found: list[int] = []

        def read() -> None:
            with noted(str(stop_file), "p:1") as note:
                for records in read_raw(endpoint, Position(0, 0), end, 1, 60.0, lambda gc_ts: None, note=note):
                    found.extend(records.start_ts.tolist())

        reader = threading.Thread(target=read)
        reader.start()
        deadline = time.monotonic() + 30
        while not waiting(stop_file):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert waiting(stop_file).startswith("read: Pump p:1 since 20")
        pump.start()
        reader.join(60)
        assert found[:4] == [10, 10, 20, 20]
        assert waiting(stop_file) == ""


def whole_log(endpoint: Endpoint) -> Position:
    """Where the Pump's log of four binlogs ends."""
    found = 0
    for records in read_raw(endpoint, Position(0, 0), Position(0, 1 << 40), 1, 10.0, lambda gc_ts: None):
        found += len(records)
        if found >= 4:
            last = len(records) - 1 - (found - 4)
            return Position(int(records.suffixes[last]), int(records.offsets[last]))
    raise AssertionError("the log ended")
