"""Pumps of a small cluster, and binlogs sent to them one by one as TiDB sends them."""

from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.writer import write_binlog
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from tests.support.binlogs import payload

CLUSTER = 7


def prewrite(start_ts: int, key: bytes = b"k") -> bytes:
    """A Prewrite whose value names it."""
    return payload(0, start_ts, prewrite_key=key, prewrite_value=b"value of %d" % start_ts)


def commit(start_ts: int, commit_ts: int) -> bytes:
    return payload(1, start_ts, commit_ts, prewrite_key=b"k")


def fake(ts: int) -> bytes:
    """A fake binlog."""
    return payload(2, ts, ts)


def send(pump: PumpServer | PumpProcess, *payloads: bytes) -> None:
    """Write them, in order."""
    for one in payloads:
        write_binlog(pump.address, CLUSTER, one, timeout=30, tls=None)


def config_of(directory: Path, number: int, **more: Any) -> PumpConfig:
    """Pump ``number``: a free port, no fake binlogs of its own, writes however full the disk is; ``more``: other settings."""
    given = {"cluster_id": CLUSTER, "fake_binlog_interval": 0, "sync_log": False, "stop_write_at_available_space": ""}
    return PumpConfig(f"pump-{number}", "127.0.0.1:0", data_dir=str(directory / f"pump-{number}"), **(given | more))
