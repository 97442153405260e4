"""A process that applies a random history row by row behind a relay log, to be killed; or that recovers from the log without the upstream."""

import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig, RelayConfig, TargetConfig
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayLog, RelayStream
from pyspark_tidb_binlog.sinks.relay.relayed_sink import RelayedSink, RelaySettings
from pyspark_tidb_binlog.sinks.replay import relay_replay
from pyspark_tidb_binlog.sinks.replay.file_replay import Replayed
from pyspark_tidb_binlog.sinks.replay.relay_replay import RelayReplay
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack, process_zone
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from tests.support.row_sink_process import BEGIN, made, settings_of

CLUSTER = 1
STREAM = RelayStream(CLUSTER, "")


@dataclass(frozen=True)
class RelayTask:
    """What such a process does."""

    target: TargetConfig
    seed: str
    """Of the history."""
    batches: list[int]
    """What the history is made of: transactions each."""
    settings: dict[str, Any]
    """Of the sink; besides ``max_file_bytes``; ``file_limit``: bytes that a file may have; ``recovers``: operations of a transaction of the recovery,
    which the process then runs instead.
    """
    log_dir: str

    def config(self) -> DrainerConfig:
        given = {k: v for k, v in self.settings.items() if k not in ("max_file_bytes", "file_limit", "recovers")}
        return DrainerConfig(target=self.target, apply=settings_of(given), relay=RelayConfig(self.log_dir))

    def live(self) -> None:
        if limit := self.settings.get("file_limit"):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if count := self.settings.get("recovers"):
            relay_replay._OPERATIONS = count
            recover(self)
        else:
            stream_until(self)


def recover(task: RelayTask, pause: Callable[[float], None] = lambda seconds: None) -> Replayed | None:
    """Make the target consistent from the log; None: it is."""
    sink = RelayReplay(task.config(), 0, STREAM, ReadBack(process_zone()), pause)
    try:
        found = sink.start()
        return None if found.consistent else sink.replay(found)
    finally:
        sink.close()


def stream_until(task: RelayTask) -> None:
    """Apply the rest of the history, as the stream does that has the upstream."""
    history, events, ends = made(task.seed, task.batches)
    log = RelayLog(Path(task.log_dir), task.settings.get("max_file_bytes", 10 << 20), STREAM)
    behind = MySQLSink(task.config(), CLUSTER)
    sink = RelayedSink(behind, log, SecondaryBinlogs(process_zone()), RelaySettings(every_step=True))
    try:
        found = sink.open(lambda target, commit_ts: BEGIN if commit_ts is None else commit_ts, SchemaHistory).progress
        left = [found.unfinished.upto_ts] if found.unfinished is not None else []
        for upto_ts in [*left, *(end for end in ends if not left or end > left[0])]:
            if upto_ts > sink.commit_ts:
                rows = rows_between(events, sink.commit_ts, upto_ts)
                sink.apply(rows, history.step(sink.commit_ts, rows, upto_ts), StageClock())
    finally:
        sink.close()
